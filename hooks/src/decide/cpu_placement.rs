//! CPU and memory placement from the bundles of a request, and the NUMA nodes of their devices.

use std::collections::BTreeSet;

use onload_core::bundle::{Bundle, Cpus, Mems};
use onload_core::class::Class;
use onload_core::expectation::ExpectedDevice;
use onload_core::gpu_name;
use onload_core::hook_arguments::HookArguments;
use onload_core::request::{ExpandedBundle, Origin, Request};

use super::pools::MembersByPool;
use super::specs::OnloadSpecs;
use super::sysfs::Sysfs;

/// A bundle's settings for the CPUs and memory of its containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CpuPlacement {
    pub bundle: String,
    pub origin: Origin,
    pub cpus: Option<Cpus>,
    pub mems: Option<Mems>,
    /// The NUMA nodes of its devices, as far as the kernel names any.
    pub nodes: BTreeSet<u32>,
}

/// Reads the placements of a request's devices, in its order. `members_by_pool` are the members that pools assigned.
pub(super) fn read_placements(
    request: &Request,
    members_by_pool: &MembersByPool,
    specs: &OnloadSpecs,
    sysfs: &Sysfs,
) -> Vec<CpuPlacement> {
    let mut placements = Vec::new();
    if let Some(entry) = &request.bundles {
        for ExpandedBundle { name, bundle } in &entry.value {
            if bundle.cpus.is_some() || bundle.mems.is_some() {
                placements.push(CpuPlacement {
                    bundle: name.clone(),
                    origin: entry.origin.clone(),
                    cpus: bundle.cpus.clone(),
                    mems: bundle.mems.clone(),
                    nodes: numa_nodes(bundle, members_by_pool, specs, sysfs),
                });
            }
        }
    }
    placements
}

fn numa_nodes(
    bundle: &Bundle,
    members_by_pool: &MembersByPool,
    specs: &OnloadSpecs,
    sysfs: &Sysfs,
) -> BTreeSet<u32> {
    let mut nodes = BTreeSet::new();
    for (class, device_refs) in &bundle.devices {
        for device_ref in device_refs {
            for name in resolve_names(*class, &device_ref.name, members_by_pool, specs) {
                nodes.extend(sysfs.numa_node(*class, &name));
            }
        }
    }
    nodes
}

/// Returns the devices that a name refers to.
fn resolve_names(
    class: Class,
    name: &str,
    members_by_pool: &MembersByPool,
    specs: &OnloadSpecs,
) -> Vec<String> {
    if let Some(members) = members_by_pool.get(&(class, name.to_owned())) {
        return members.clone();
    }
    match name {
        "all" => specs.device_names(class),
        "loopback" => Vec::new(),
        name if class == Class::Rdma && gpu_name::is_gpu_name(name) => {
            nearest_rdma_names(name, specs)
        }
        name => vec![name.to_owned()],
    }
}

/// Returns the kernel's names of the RDMA devices that a GPU's name refers to, from the hook's arguments.
fn nearest_rdma_names(name: &str, specs: &OnloadSpecs) -> Vec<String> {
    let Some(resolved) = specs.find(Class::Rdma, name) else {
        return Vec::new();
    };
    resolved
        .device
        .container_edits
        .hooks
        .iter()
        .filter_map(|hook| HookArguments::from_command(&hook.args))
        .flat_map(|(_, arguments)| rdma_in_arguments(&arguments))
        .collect()
}

/// The RDMA devices whose nodes a hook expects, or that it moves, by the kernel's names.
pub(crate) fn rdma_in_arguments(arguments: &HookArguments) -> Vec<String> {
    let mut names = Vec::new();
    for expect in &arguments.expect {
        if let ExpectedDevice::Rdma { ibdev, .. } = &expect.device
            && expect.node_name().starts_with("uverbs")
        {
            names.push(ibdev.clone());
        }
    }
    names.extend(arguments.rdma_netns.iter().map(|rdma| rdma.ibdev.clone()));
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use onload_cdi::SpecSource;
    use onload_core::config::HookConfig;

    const BUNDLES: &str = "[bundles.far]\ndevices = [\"vfio=fast*2\", \"hugepages=2Mi\"]\ncpus = \"numa\"\n\
                           [bundles.all]\ndevices = [\"nic=all\"]\nmems = \"numa\"\n\
                           [bundles.none]\ndevices = [\"nic=loopback\"]\ncpus = \"0\"\n\
                           [bundles.plain]\ndevices = [\"nic=ens1\"]\n";
    const NIC: &str = r#"{"cdiVersion":"0.6.0","kind":"onload.dev/nic","devices":[
        {"name":"all","containerEdits":{"env":["A=1"]}},
        {"name":"loopback","containerEdits":{"env":["A=1"]}},
        {"name":"ens1","containerEdits":{"env":["A=1"]}},
        {"name":"ens2","containerEdits":{"env":["A=1"]}},
        {"name":"any","annotations":{"onload.dev/pool-members":"ens1"},"containerEdits":{"env":["A=1"]}}]}"#;

    fn nodes_of(bundle: &str, given: &MembersByPool) -> Vec<(String, Vec<u32>)> {
        let annotations = BTreeMap::from([("onload.dev/bundle".to_owned(), bundle.to_owned())]);
        let mut request = Request::parse(&annotations).unwrap().unwrap();
        let config = HookConfig::parse(BUNDLES).unwrap();
        request.expand_bundles(&config.bundles).unwrap();
        let specs = OnloadSpecs::from_sources(vec![SpecSource {
            path: "/etc/cdi/onload.dev-nic.json".into(),
            priority: 0,
            content: onload_cdi::from_json(NIC.as_bytes()).map_err(Into::into),
        }]);
        let captured = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../tests/hosts/debian13-2numa-onload-rxe-vfio/sys"
        );
        let placed = read_placements(&request, given, &specs, &Sysfs::at_root(captured));
        let placed = placed.into_iter();
        placed.map(|one| (one.bundle, one.nodes.into_iter().collect())).collect()
    }

    #[test]
    fn a_gpu_s_name_stands_for_the_devices_that_its_hook_names() {
        const RDMA: &str = r#"{"cdiVersion":"0.5.0","kind":"onload.dev/rdma","devices":[
            {"name":"gpu0","containerEdits":{"hooks":[{"hookName":"createRuntime","path":"/usr/bin/onload-hook","args":[
                "onload-hook","createRuntime","--expect","/dev/infiniband/uverbs0=rdma:mlx5_0@0000:14:00.0",
                "--expect","/dev/infiniband/rdma_cm=misc:rdma_cm"]}]}},
            {"name":"gpu1","containerEdits":{"env":["A=1"]}}]}"#;
        let specs = OnloadSpecs::from_sources(vec![SpecSource {
            path: "/etc/cdi/onload.dev-rdma.json".into(),
            priority: 0,
            content: onload_cdi::from_json(RDMA.as_bytes()).map_err(Into::into),
        }]);
        let names = |name| resolve_names(Class::Rdma, name, &MembersByPool::new(), &specs);
        assert_eq!(names("gpu0"), ["mlx5_0"]);
        for other in ["gpu1", "gpu2"] {
            assert!(names(other).is_empty(), "{other}");
        }
        assert_eq!(names("mlx5_1"), ["mlx5_1"]);
    }

    #[test]
    fn the_nodes_of_a_bundle_are_those_of_its_devices_and_of_the_members_that_it_got() {
        let members = |names: &[&str]| {
            let names = names.iter().map(ToString::to_string).collect();
            MembersByPool::from([((Class::Vfio, "fast".to_owned()), names)])
        };
        let far = |given: &MembersByPool| nodes_of("far", given);
        assert_eq!(far(&members(&["0000:81:10.0"])), [("far".to_owned(), vec![1])]);
        let both = members(&["0000:81:10.0", "0000:41:10.0"]);
        assert_eq!(far(&both), [("far".to_owned(), vec![0, 1])]);
        let none = MembersByPool::new();
        assert_eq!(nodes_of("all", &none), [("all".to_owned(), vec![0, 1])]);
        assert_eq!(nodes_of("none", &none), [("none".to_owned(), vec![])]);
        // Devices without CPUs and memory nodes are ignored.
        assert_eq!(nodes_of("plain", &none), []);
    }
}
