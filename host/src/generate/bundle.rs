//! The class bundle: the edits of several devices under one name. A bundle is offered only if all its devices are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use onload_cdi::{
    ContainerEdits, Device, DeviceName, Kind, QualifiedName, Registry, Spec, SpecSource,
    deduplicate, variable_name,
};
use onload_core::bundle::Bundle;
use onload_core::class::Class;
use onload_core::config::{CONFIG_PATH, Config};
use onload_core::hook_arguments::HookArguments;
use onload_core::onload::{ONLOAD_INTERFACES, TCPDIRECT_ATTRIBUTES};
use onload_core::request::DeviceRef;
use onload_lease::drain::DrainList;
use onload_sys::text::ShortList;

use super::edit_builder::new_device;
use crate::devices::LOOPBACK;
use crate::discover::exclusion::Exclusion;
use crate::discover::taken_names::check_name;
use crate::spec_name::SpecName;

/// Returns the devices of bundles, and the bundles that are not offered.
pub(super) fn generate_bundles(
    specs: &BTreeMap<SpecName, Spec>,
    config: &Config,
    drain: &DrainList,
) -> (BTreeMap<DeviceName, Device>, Vec<Exclusion>) {
    let (mut devices, mut not_offered) = (BTreeMap::new(), Vec::new());
    if config.bundles.is_empty() {
        return (devices, not_offered);
    }
    let sources = BundleSources::new(specs, drain);
    for (name, bundle) in &config.bundles {
        match sources.build_bundle(name, bundle) {
            Ok((name, device)) => drop(devices.insert(name, device)),
            Err(reason) => not_offered.push(Exclusion::new(Class::Bundle, name, reason)),
        }
    }
    (devices, not_offered)
}

struct BundleSources<'d> {
    registry: Registry,
    drain: &'d DrainList,
}

impl<'d> BundleSources<'d> {
    fn new(specs: &BTreeMap<SpecName, Spec>, drain: &'d DrainList) -> BundleSources<'d> {
        let sources = specs.iter().map(|(name, spec)| SpecSource {
            path: PathBuf::from(name.to_string()),
            priority: 0,
            content: Ok(spec.clone()),
        });
        BundleSources { registry: Registry::from_sources(sources.collect()), drain }
    }

    fn build_bundle(&self, name: &str, bundle: &Bundle) -> Result<(DeviceName, Device), String> {
        let device_name = check_name(name)
            .map_err(|problem| format!("{problem}; choose another name for the bundle"))?;
        let (mut missing, mut edits) = (Vec::new(), Vec::new());
        for (class, references) in &bundle.devices {
            for reference in references {
                match self.device_edits(*class, reference) {
                    Ok(own_edits) => edits.push((*class, own_edits)),
                    Err(reason) => missing.push(reason),
                }
            }
        }
        if !missing.is_empty() {
            return Err(format!(
                "{}; if that is intended, change [bundles.{name}] in {CONFIG_PATH}",
                ShortList(&missing)
            ));
        }
        leave_ambiguous(&mut edits, bundle);
        let edits = merge_edits(edits.into_iter().map(|(_, own)| own));
        Ok(new_device(device_name, edits))
    }

    /// Returns the edits of a device including those of its class, or why the device is missing.
    fn device_edits(&self, class: Class, reference: &DeviceRef) -> Result<ContainerEdits, String> {
        let missing = || match self.drain.find(class, &reference.name) {
            Some(drained) => format!("{class} {} is {drained}", reference.name),
            None => format!("{class} {} not found", reference.name),
        };
        let kind = Kind::try_from(class.cdi_kind()).map_err(|_| missing())?;
        let device = DeviceName::try_from(reference.name.as_str()).map_err(|_| missing())?;
        let name = QualifiedName { kind, device };
        let resolved = self.registry.device(&name).ok_or_else(missing)?;
        let is_pool = !resolved.device.annotations.is_empty();
        let mut edits = self.registry.edits_for(&[name]).map_err(|error| error.to_string())?;
        match reference.count {
            None => {}
            Some(count) if is_pool => set_pool_count(&mut edits, count),
            Some(count) => {
                return Err(format!(
                    "{class} {} is not a pool, so *{count} is not possible",
                    reference.name
                ));
            }
        }
        Ok(edits)
    }
}

fn set_pool_count(edits: &mut ContainerEdits, count: u32) {
    for hook in &mut edits.hooks {
        let Some((_, mut arguments)) = HookArguments::from_command(&hook.args) else {
            continue;
        };
        for take in &mut arguments.take {
            take.count = count;
        }
        arguments.replace_in(&mut hook.args);
    }
}

/// Removes variables that select an interface if the bundle has several, as for a container that names several.
fn leave_ambiguous(edits: &mut [(Class, ContainerEdits)], bundle: &Bundle) {
    let choices = [
        (ONLOAD_INTERFACES, &[Class::Nic, Class::NicPlain, Class::NicNodes][..]),
        (TCPDIRECT_ATTRIBUTES, &[Class::Zf]),
    ];
    for (variable, classes) in choices {
        let names: BTreeSet<&str> = classes
            .iter()
            .filter_map(|class| bundle.devices.get(class))
            .flatten()
            .map(|reference| reference.name.as_str())
            .filter(|name| *name != LOOPBACK)
            .collect();
        if names.len() < 2 {
            continue;
        }
        for (class, own) in edits.iter_mut() {
            if classes.contains(class) {
                own.env.retain(|entry| variable_name(entry) != variable);
            }
        }
    }
}

/// Merges the edits of several devices without duplicates.
fn merge_edits(edits: impl Iterator<Item = ContainerEdits>) -> ContainerEdits {
    let mut all = ContainerEdits::default();
    edits.for_each(|own| all.append(&own));
    let mut set = BTreeSet::new();
    // As in engines, the last value of a variable takes precedence.
    let mut env: Vec<String> = std::mem::take(&mut all.env);
    env.reverse();
    env.retain(|entry| set.insert(variable_name(entry).to_owned()));
    env.reverse();
    all.env = env;
    all.device_nodes = deduplicate(std::mem::take(&mut all.device_nodes));
    all.mounts = deduplicate(std::mem::take(&mut all.mounts));
    all.hooks = deduplicate(std::mem::take(&mut all.hooks));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::test_tree::sample;
    use crate::generate::{InstalledFiles, generate};
    use crate::pools::discover_with_pools;

    const TWO_NODES: &str = "debian13-2numa-onload-rxe-vfio";

    fn specs(host: &str, config: &Config) -> BTreeMap<SpecName, Spec> {
        let (inventory, pools) = discover_with_pools(&sample(host), config);
        let installed = InstalledFiles { hook: true, ..InstalledFiles::default() };
        generate(&inventory, &pools.offered, config, installed).unwrap()
    }

    fn edits(specs: &BTreeMap<SpecName, Spec>, name: &str) -> ContainerEdits {
        let spec = &specs[&SpecName::devices(Class::Bundle)];
        spec.devices.iter().find(|device| device.name == name).unwrap().container_edits.clone()
    }

    fn reasons(host: &str, text: &str) -> Vec<String> {
        let config = Config::parse(text).unwrap();
        let specs = specs(host, &config);
        let (_, not_offered) = generate_bundles(&specs, &config, &DrainList::default());
        not_offered.into_iter().map(|entry| format!("{}: {}", entry.name, entry.reason)).collect()
    }

    #[test]
    fn a_bundle_has_once_what_its_devices_have_with_what_they_share() {
        let config = Config::parse(
            "[bundles.hft]\ndevices = [\"nic=ens1\", \"nic-nodes=ens1\", \"rdma=all\", \"vfio=0000:81:10.0\", \
             \"vfio=any*2\", \"hugepages=2Mi\", \"profile=latency\"]\ncpus = \"numa\"\n",
        )
        .unwrap();
        let specs = specs(TWO_NODES, &config);
        let bundle = edits(&specs, "hft");
        let drain = DrainList::default();
        let offered = BundleSources::new(&specs, &drain);
        let mut alone = ContainerEdits::default();
        for (class, wanted) in &config.bundles["hft"].devices {
            for wanted in wanted {
                alone.append(&offered.device_edits(*class, wanted).unwrap());
            }
        }
        let unique = |list: &[String]| list.iter().cloned().collect::<BTreeSet<String>>();
        assert_eq!(unique(&bundle.env), unique(&alone.env));
        assert_eq!(unique(&bundle.env).len(), bundle.env.len());
        for node in &alone.device_nodes {
            let same = bundle.device_nodes.iter().filter(|one| *one == node);
            assert_eq!(same.count(), 1, "{}", node.path);
        }
        for mount in &alone.mounts {
            let same = bundle.mounts.iter().filter(|one| *one == mount);
            assert_eq!(same.count(), 1, "{}", mount.container_path);
        }
        assert!(alone.device_nodes.len() > bundle.device_nodes.len());
        let arguments = |wanted: &str| {
            let mut hooks = bundle.hooks.iter();
            hooks.any(|hook| hook.args.join(" ").contains(wanted))
        };
        for wanted in [
            "createRuntime --take vfio:any*2",
            "poststop --take vfio:any*2",
            "--memlock unlimited --expect /dev/infiniband/uverbs",
            "--lease vfio:0000:81:10.0",
            "--expect /dev/onload=nic:onload",
        ] {
            assert!(arguments(wanted), "{wanted}: {:?}", bundle.hooks);
        }
        assert!(bundle.env.iter().any(|entry| entry == "LD_PRELOAD=libonload.so"));
        assert!(bundle.env.iter().any(|entry| entry == "ONLOAD_CTK_NIC_ENS1=ens1"));
        assert!(!bundle.env.iter().any(|entry| entry.contains("BUNDLE")));
    }

    #[test]
    fn a_bundle_that_is_not_whole_is_left_out_with_what_is_missing() {
        let reason = reasons(
            TWO_NODES,
            "[bundles.whole]\ndevices = [\"hugepages=2Mi\"]\n\
             [bundles.part]\ndevices = [\"hugepages=2Mi\", \"nic=ens9\", \"profile=none-such\"]\n\
             [bundles.all]\ndevices = [\"hugepages=2Mi\"]\n\
             [bundles.count]\ndevices = [\"hugepages=2Mi*2\"]\n",
        );
        assert_eq!(
            reason,
            [
                "all: \"all\" is a reserved word; choose another name for the bundle",
                "count: hugepages 2Mi is not a pool, so *2 is not possible; if that is intended, \
                 change [bundles.count] in /etc/onload-ctk/config.toml",
                "part: nic ens9 not found, profile none-such not found; if that is intended, \
                 change [bundles.part] in /etc/onload-ctk/config.toml",
            ]
        );
        assert_eq!(reasons(TWO_NODES, ""), [""; 0]);
    }

    #[test]
    fn two_interfaces_choose_none_and_one_is_chosen() {
        let config = Config::parse(
            "[cdi]\nselect-interface = true\n\
             [bundles.one]\ndevices = [\"nic=enp101s0f0np0\", \"nic-plain=loopback\", \"zf=enp101s0f0v0\"]\n\
             [bundles.two]\ndevices = [\"nic=enp101s0f0np0\", \"nic-nodes=enp101s0f0v0\"]\n",
        )
        .unwrap();
        let specs = specs("x2-2port-sriov", &config);
        let chosen = |name: &str, variable: &str| {
            edits(&specs, name)
                .env
                .into_iter()
                .filter(|entry| variable_name(entry) == variable)
                .collect::<Vec<_>>()
        };
        assert_eq!(chosen("one", ONLOAD_INTERFACES), ["EF_INTERFACE_WHITELIST=enp101s0f0np0"]);
        assert_eq!(chosen("one", TCPDIRECT_ATTRIBUTES), ["ZF_ATTR=interface=enp101s0f0v0"]);
        assert_eq!(chosen("two", ONLOAD_INTERFACES), [""; 0]);
    }
}
