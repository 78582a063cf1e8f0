//! Settings of virtual functions while a container has them, from the operator's configuration. They belong to the
//! device: every container gets it with these settings, by whichever name or pool it was requested. A device with
//! contradictory settings is not offered.

use std::collections::BTreeMap;
use std::path::Path;

use onload_cdi::DeviceName;
use onload_core::class::Class;
use onload_core::config::{CONFIG_PATH, Config, Mover, PoolConfig};
use onload_core::vf_config::VfConfig;
use onload_sys::text::ShortList;

use super::device::{HostDevice, group_inseparable};
use super::function_index::FunctionIndex;
use super::inventory::Inventory;
use super::selection::select;
use crate::discover::exclusion::Exclusion;

/// The settings of each device, or an error if pools contradict each other.
type VfConfigs = BTreeMap<(Class, DeviceName), Result<VfConfig, String>>;

pub(super) fn apply_vf_configs(inventory: &mut Inventory, config: &Config) {
    let vf_configs = resolve_vf_configs(inventory, config);
    let config_of = |device: &HostDevice| vf_configs.get(&(device.class, device.name.clone()));
    let all = inventory.devices.iter_mut().chain(&mut inventory.drained);
    for device in all.filter(|_| !vf_configs.is_empty()) {
        device.vf = config_of(device).and_then(|vf| vf.clone().ok());
    }
    let warnings = exclude(inventory, |device| config_of(device)?.clone().err());
    inventory.warnings.extend(warnings);
}

/// Excludes devices with settings if there is no hook to apply them. Returns warnings.
#[must_use]
pub fn exclude_without_hook(inventory: &mut Inventory, hook: &Path) -> Vec<String> {
    let is_rdma_exclusive = inventory.is_rdma_exclusive();
    let warnings = exclude(inventory, |device| {
        let (prefix, task) = match device.class {
            _ if device.vf.is_some() => ("it has a table vf, but ", "applies"),
            Class::Netdev => ("", "moves"),
            Class::Rdma if is_rdma_exclusive => ("", "moves"),
            _ => return None,
        };
        Some(format!(
            "{prefix}the hook {}, which {task} it, does not exist; install it, or set hook-path in \
             [cdi]",
            hook.display()
        ))
    });
    inventory.not_offered.sort();
    warnings
}

fn exclude(
    inventory: &mut Inventory,
    find_reason: impl Fn(&HostDevice) -> Option<String>,
) -> Vec<String> {
    let mut refused: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for device in std::mem::take(&mut inventory.devices) {
        let Some(reason) = find_reason(&device) else {
            inventory.devices.push(device);
            continue;
        };
        let exclusion = Exclusion::new(device.class, device.name.as_str(), reason.as_str());
        inventory.not_offered.push(exclusion.with_pci(device.pci));
        let names = refused.entry(reason).or_default();
        names.push(format!("{}={}", device.class, device.name));
        inventory.refused.push(device);
    }
    refused
        .into_iter()
        .map(|(reason, names)| format!("not offered: {}: {reason}", ShortList(&names)))
        .collect()
}

fn resolve_vf_configs(inventory: &Inventory, config: &Config) -> VfConfigs {
    let mut vf_configs = VfConfigs::new();
    for class in Class::ALL {
        let pools: Vec<(&String, &PoolConfig)> =
            config.pools.iter().filter(|(_, pool)| pool.class == class).collect();
        let is_of_pool = pools.iter().any(|(_, pool)| pool.vf.is_some());
        let is_own =
            class == Class::Netdev && config.netdev.values().any(|netdev| netdev.vf.is_some());
        if !is_of_pool && !is_own {
            continue;
        }
        // Includes drained devices, so that draining does not change a device.
        let devices = inventory.with_drained();
        let candidates = group_inseparable(devices.filter(|device| device.class == class));
        let function_index = FunctionIndex::from_inventory(inventory);
        let mut pools_by_candidate: Vec<Vec<(&String, &PoolConfig)>> =
            vec![Vec::new(); candidates.len()];
        for (name, pool) in pools {
            let chosen = select(&candidates, &pool.select, &function_index).chosen;
            for (candidate_pools, is_chosen) in pools_by_candidate.iter_mut().zip(chosen) {
                candidate_pools.extend(is_chosen.then_some((name, pool)));
            }
        }
        for (candidate, candidate_pools) in candidates.iter().zip(pools_by_candidate) {
            // A container can get it by any of these names.
            for device in candidate {
                if let Some(vf) = resolve_device(device, &candidate_pools, config).transpose() {
                    vf_configs.insert((class, device.name.clone()), vf);
                }
            }
        }
    }
    vf_configs
}

/// Returns the settings of a device from its own section, or else from its pools.
fn resolve_device(
    device: &HostDevice,
    pools: &[(&String, &PoolConfig)],
    config: &Config,
) -> Result<Option<VfConfig>, String> {
    let own_config = || config.netdev.get(device.name.as_str())?.vf.as_ref();
    let own_config = (device.class == Class::Netdev).then(own_config).flatten();
    let mut pool_configs = pools.iter().filter_map(|(name, pool)| Some((name, pool.vf.as_ref()?)));
    let first = pool_configs.next();
    let Some(vf) = own_config.or(first.map(|(_, vf)| vf)) else {
        return Ok(None);
    };
    if let Some((plugin, _)) = pools.iter().find(|(_, pool)| pool.mover == Mover::Cni) {
        return Err(format!(
            "its table vf has settings, but a CNI plugin moves the members of pool {plugin} \
             without applying them; remove it from that pool or remove its table vf in \
             {CONFIG_PATH}"
        ));
    }
    let other = pool_configs.find(|(_, other)| own_config.is_none() && *other != vf);
    if let (Some((one, _)), Some((other, _))) = (first, other) {
        return Err(format!(
            "it is in pools {one} and {other}, whose tables vf differ; make the tables equal, or \
             select it only once, in {CONFIG_PATH}"
        ));
    }
    Ok(Some(vf.clone()))
}

#[cfg(test)]
mod tests {
    use onload_core::hook_arguments::HookArguments;

    use super::*;
    use crate::devices::discover;
    use crate::discover::test_tree::{AsHost, Tree, sample};
    use crate::generate::{GeneratedSpecs, InstalledFiles, generate};
    use crate::pools::{PoolSet, discover_with_pools, resolve};
    use crate::spec_name::SpecName;

    const CAPTURED: &str = "debian13-2numa-onload-rxe-vfio";
    const WITH_HOOK: InstalledFiles =
        InstalledFiles { hook: true, preload_file: false, onload_socket: false };

    fn config(text: &str) -> Config {
        Config::parse(text).unwrap()
    }

    fn read_host(text: &str) -> (Inventory, PoolSet, Config) {
        let config = config(text);
        let (inventory, pools) = discover_with_pools(&sample(CAPTURED), &config);
        (inventory, pools, config)
    }

    fn pool(name: &str, addresses: &[&str], vf: &str) -> String {
        format!(
            "[pools.{name:?}]\nclass = \"vfio\"\nselect = {{ addresses = {addresses:?} }}\nvf = {{ {vf} }}\n"
        )
    }

    /// The devices of class vfio in a specification, each with what its hook is told of its function.
    fn describe_specs(specs: &GeneratedSpecs) -> Vec<String> {
        let spec = specs.get(&SpecName::devices(Class::Vfio));
        let described = spec.into_iter().flat_map(|spec| &spec.devices).map(|device| {
            let asked = device
                .container_edits
                .hooks
                .iter()
                .filter_map(|hook| HookArguments::from_command(&hook.args));
            let vf: BTreeMap<String, ()> =
                asked.flat_map(|(_, asked)| asked.vf).map(|vf| (vf.to_string(), ())).collect();
            let vf: Vec<String> = vf.into_keys().collect();
            format!("{} {}", device.name, vf.join(" "))
        });
        described.collect()
    }

    fn members(pools: &PoolSet) -> Vec<String> {
        let members = pools.offered.iter().map(|pool| {
            let members = pool.pool.members.iter().map(|one| one.name.to_string());
            format!("{}: {}", pool.name, members.collect::<Vec<_>>().join(" "))
        });
        members.collect()
    }

    #[test]
    fn a_function_whose_pools_differ_is_offered_to_nobody_by_any_name() {
        let one = pool("one", &["0000:81:10.0"], "vlan = 100");
        let both = pool("two", &["0000:81:10.0", "0000:81:10.2"], "vlan = 200");
        let (inventory, pools, config) = read_host(&(one + &both));
        let specs = generate(&inventory, &pools.offered, &config, WITH_HOOK).unwrap();
        let described = describe_specs(&specs);
        assert!(!described.iter().any(|described| described.contains("81:10.0")), "{described:?}");
        let other = "0000:81:10.2 vfio:0000:81:10.2=vlan=200".to_owned();
        assert!(described.contains(&other), "{described:?}");
        let members = members(&pools);
        assert!(!members.iter().any(|pool| pool.contains("81:10.0")), "{members:?}");
        assert!(members.contains(&"two: 0000:81:10.2".to_owned()), "{members:?}");
        let reason = "it is in pools one and two, whose tables vf differ; make the tables equal, \
            or select it only once, in /etc/onload-ctk/config.toml";
        let entry = Exclusion::new(Class::Vfio, "0000:81:10.0", reason)
            .with_pci("0000:81:10.0".parse().ok());
        assert!(inventory.not_offered.contains(&entry));
        let warning = format!("not offered: vfio=0000:81:10.0: {reason}");
        assert!(inventory.warnings.contains(&warning), "{:?}", inventory.warnings);
        let listed = inventory.offered_only().vfio;
        assert!(!listed.iter().any(|one| one.pci_address.to_string() == "0000:81:10.0"));
    }

    #[test]
    fn pools_that_are_alike_and_pools_without_a_table_share_a_function() {
        let one = pool("one", &["0000:81:10.0"], "vlan = 100");
        let same = pool("two", &["0000:81:10.0"], "vlan = 100");
        let without = "[pools.all-of-them]\nclass = \"vfio\"\n";
        let (inventory, pools, config) = read_host(&(one + &same + without));
        let specs = generate(&inventory, &pools.offered, &config, WITH_HOOK).unwrap();
        let described = describe_specs(&specs);
        assert_eq!(described[0], "0000:81:10.0 vfio:0000:81:10.0=vlan=100");
        assert_eq!(described[1], "0000:81:10.2 ");
    }

    #[test]
    fn a_table_holds_although_its_pool_is_not_offered() {
        // It has a device's name.
        let misnamed = pool("0000:81:1f.0", &["0000:81:10.0"], "vlan = 100");
        let (inventory, mut pools, config) = read_host(&misnamed);
        let mut refused = inventory.not_offered.iter().filter(|entry| entry.name == "0000:81:1f.0");
        assert!(refused.next().is_some());
        let wanted = "0000:81:10.0 vfio:0000:81:10.0=vlan=100";
        let specs = generate(&inventory, &pools.offered, &config, WITH_HOOK).unwrap();
        assert_eq!(describe_specs(&specs)[0], wanted);
        // Old readers of CDI get no pools at all.
        pools.drop_unsupported("0.5.0".parse().unwrap());
        let specs = generate(&inventory, &pools.offered, &config, WITH_HOOK).unwrap();
        assert_eq!(describe_specs(&specs)[0], wanted);
    }

    #[test]
    fn without_the_hook_a_function_with_a_table_is_not_offered_and_others_are() {
        let (mut inventory, pools, config) =
            read_host(&pool("one", &["0000:81:10.0"], "vlan = 100"));
        let specs =
            generate(&inventory, &pools.offered, &config, InstalledFiles::default()).unwrap();
        assert_eq!(describe_specs(&specs)[0], "0000:81:10.2 ");
        let message = exclude_without_hook(&mut inventory, Path::new("/h"));
        let reason = "it has a table vf, but the hook /h, which applies it, does not exist; \
            install it, or set hook-path in [cdi]";
        assert_eq!(message, [format!("not offered: vfio=0000:81:10.0: {reason}")]);
        let mut entries = inventory.not_offered.iter();
        assert!(entries.any(|entry| entry.name == "0000:81:10.0" && entry.reason == reason));
        assert!(exclude_without_hook(&mut inventory, Path::new("/h")).is_empty());
    }

    #[test]
    fn draining_changes_nothing_of_what_a_function_is_set_up_to_be() {
        let one = pool("one", &["0000:81:10.0"], "vlan = 100");
        let config = config(&(one + &pool("two", &["0000:81:10.0", "0000:81:10.2"], "vlan = 200")));
        let mut inventory = discover(&sample(CAPTURED), &Config::default());
        let mut at = inventory
            .devices
            .iter()
            .enumerate()
            .filter(|(_, one)| one.name.as_str() == "0000:81:10.0");
        let (at, _) = at.next().unwrap();
        let device = inventory.devices.remove(at);
        inventory.drained.push(HostDevice { is_drained: true, ..device });
        apply_vf_configs(&mut inventory, &config);
        let pools = resolve(&inventory, &config);
        let specs = generate(&inventory, &pools.offered, &config, WITH_HOOK).unwrap();
        let other = "0000:81:10.2 vfio:0000:81:10.2=vlan=200";
        assert_eq!(describe_specs(&specs)[0], other);
        // And back.
        let device = inventory.drained.remove(0);
        inventory.devices.insert(at, device);
        apply_vf_configs(&mut inventory, &config);
        let pools = resolve(&inventory, &config);
        let specs = generate(&inventory, &pools.offered, &config, WITH_HOOK).unwrap();
        assert_eq!(describe_specs(&specs)[0], other);
    }

    #[test]
    fn each_function_of_a_group_is_what_the_pool_says_of_one() {
        let tree = Tree::new();
        tree.file("/sys/class/misc/iommu/dev", "10:125\n");
        tree.node("/dev/iommu", 10, 125);
        for (number, address) in [(0, "0000:81:10.0"), (1, "0000:81:10.1")] {
            let function = tree.function(address, "0x020000", 0);
            let group = "/sys/kernel/iommu_groups/15";
            tree.link(&format!("{group}/devices/{address}"), &function);
            tree.link(&format!("{function}/iommu_group"), group);
            tree.bind(&function, "vfio-pci");
            tree.file(&format!("{function}/vfio-dev/vfio{number}/dev"), format!("511:{number}\n"));
            tree.node(&format!("/dev/vfio/devices/vfio{number}"), 511, number);
        }
        let config = config(&pool("one", &["0000:81:10.1"], "vlan = 100"));
        let (inventory, pools) = discover_with_pools(&tree.host(), &config);
        let specs = generate(&inventory, &pools.offered, &config, WITH_HOOK).unwrap();
        let wanted =
            ["0000:81:10.0", "0000:81:10.1"].map(|name| format!("{name} vfio:{name}=vlan=100"));
        assert_eq!(describe_specs(&specs), wanted);
    }

    #[test]
    fn an_interface_s_own_table_goes_before_its_pools_and_a_cni_plugin_before_none() {
        let text = "[netdev.ens1v0]\nvf = { vlan = 7 }\n\
                    [pools.a]\nclass = \"netdev\"\nvf = { vlan = 8 }\n\
                    [pools.b]\nclass = \"netdev\"\nvf = { vlan = 9 }\n\
                    [pools.c]\nclass = \"netdev\"\nmove = \"cni\"\n";
        let config = config(text);
        let pools: Vec<_> = config.pools.iter().collect();
        let resolve = |name, pools: &[_]| {
            let device = HostDevice::new(Class::Netdev, name).unwrap();
            let vf = resolve_device(&device, pools, &config);
            vf.map(|vf| vf.map(|vf| vf.to_string()))
        };
        assert_eq!(resolve("ens1v0", &pools[..2]), Ok(Some("vlan=7".to_owned())));
        assert_eq!(resolve("ens1v1", &pools[..1]), Ok(Some("vlan=8".to_owned())));
        assert_eq!(resolve("ens1v1", &pools[2..]), Ok(None));
        assert!(resolve("ens1v1", &pools[..2]).unwrap_err().starts_with("it is in pools a and b"));
        for refused in [resolve("ens1v0", &pools[2..]), resolve("ens1v1", &pools[1..])] {
            let refused = refused.unwrap_err();
            assert!(refused.contains("a CNI plugin moves the members of pool c"), "{refused}");
        }
    }
}
