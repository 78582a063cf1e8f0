//! Plans the resources: those that the operator named, one for each pool, and one for each class.
//!
//! An exclusive device, or one with a limit of containers, is in one resource only, so that it is never promised twice:
//! in the operator's, or else in that of its first pool, or else in that of its class. Onload interfaces and RDMA
//! devices without a limit can be in several.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use onload_cdi::{QualifiedName, Registry};
use onload_core::class::Class;
use onload_core::config::Config;
use onload_core::kubernetes_settings::{MAX_IDS, ResourceName, ResourceSource, SlotCount};
use onload_host::offers::HostDevice;
use onload_lease::{Holder, Lease};

use super::folded_names::find_conflicts;
use super::id::assign_ids;
use super::resource::{PluginDevice, Resource};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourcePlan {
    pub resources: BTreeMap<ResourceName, Arc<Resource>>,
    /// Devices that are left out with the reason, as lines for the operator.
    pub left_out: BTreeSet<String>,
    /// Resources that are not offered, since a name that follows from theirs is another one's.
    pub conflicting: BTreeSet<ResourceName>,
}

/// A resource before its devices are known.
#[derive(Debug)]
struct ResourceDraft<'c> {
    name: ResourceName,
    source: ResourceSource<'c>,
    slots: Option<u32>,
}

/// Plans the resources of a host from its offers, specifications and configuration.
pub fn plan(host_devices: &[HostDevice], specs: &Registry, config: &Config) -> ResourcePlan {
    let mut plan = ResourcePlan::default();
    let mut drafts = draft_resources(config, &mut plan.left_out);
    let conflicts = find_conflicts(drafts.iter().map(|draft| &draft.name));
    drafts.retain(|draft| !conflicts.contains_key(&draft.name));
    plan.conflicting = conflicts.keys().cloned().collect();
    plan.left_out.extend(conflicts.into_values());
    // The first resource of each device, and whether its containers are limited.
    let mut assigned: BTreeMap<(Class, &str), (ResourceName, bool)> = BTreeMap::new();
    for draft in drafts {
        let mut devices = Vec::new();
        for host_device in
            host_devices.iter().filter(|host_device| matches_source(host_device, draft.source))
        {
            let device = plugin_device(host_device, &draft, specs, config);
            let is_counted = host_device.max_holders().is_some() || device.slots.is_none();
            let key = (host_device.class, host_device.name.as_str());
            match assigned.get(&key) {
                Some((other, was_counted)) if *was_counted || is_counted => {
                    plan.left_out.extend(overlap_reason(host_device, &draft, other));
                    continue;
                }
                Some(_) => {}
                None => drop(assigned.insert(key, (draft.name.clone(), is_counted))),
            }
            devices.push(device);
        }
        let name = draft.name;
        let resource = build_resource(name.clone(), devices, &mut plan.left_out);
        plan.resources.insert(name, Arc::new(resource));
    }
    plan.resources.retain(|_, resource| !resource.devices.is_empty());
    plan
}

/// Returns the operator's resources, those of pools, and those of classes, in order of precedence.
fn draft_resources<'c>(
    config: &'c Config,
    left_out: &mut BTreeSet<String>,
) -> Vec<ResourceDraft<'c>> {
    let settings = &config.kubernetes;
    let named = settings.resources.iter().filter_map(|(name, resource)| {
        Some(ResourceDraft {
            name: name.clone(),
            source: resource.source()?,
            slots: resource.slots.map(SlotCount::get),
        })
    });
    let mut drafts: Vec<ResourceDraft<'c>> = named.collect();
    for pool in config.pools.keys() {
        if drafts.iter().any(|draft| draft.source == ResourceSource::Pool(pool)) {
            continue;
        }
        let problem = match ResourceName::onload_dev(pool) {
            Err(error) => error.to_string(),
            Ok(name) if Class::from_name(pool).is_some() => {
                format!("{name} is the resource of a class")
            }
            Ok(name) if drafts.iter().any(|draft| draft.name == name) => {
                format!("[kubernetes.resources] has {name} too")
            }
            Ok(name) => {
                let source = ResourceSource::Pool(pool);
                drafts.push(ResourceDraft { name, source, slots: None });
                continue;
            }
        };
        left_out.insert(format!(
            "pool {pool} is not a resource: {problem}; choose another name in \
             [kubernetes.resources], as \"onload.dev/x\" = {{ pool = {pool:?} }}"
        ));
    }
    for class in settings.classes.as_slice() {
        let Ok(name) = ResourceName::onload_dev(class.as_str()) else {
            continue;
        };
        if drafts.iter().all(|draft| draft.name != name) {
            let source = ResourceSource::Class(*class);
            drafts.push(ResourceDraft { name, source, slots: None });
        }
    }
    drafts
}

/// Returns whether a source includes a device. Onload without an interface is excluded, since it cannot be counted.
pub(crate) fn matches_source(device: &HostDevice, source: ResourceSource<'_>) -> bool {
    match source {
        ResourceSource::Class(class) => device.class == class && !device.is_loopback(),
        ResourceSource::Pool(pool) => device.pools.iter().any(|other| other == pool),
    }
}

/// Returns the warning for a device that another resource has. Devices of pools are expected to be missing from the
/// resource of their class.
fn overlap_reason(
    device: &HostDevice,
    draft: &ResourceDraft<'_>,
    other: &ResourceName,
) -> Option<String> {
    let is_named = draft.name.as_str() != format!("onload.dev/{}", device.class);
    is_named.then(|| {
        format!(
            "{} {} is not in {}: the number of its containers is limited, and {other} already \
             contains it",
            device.class, device.name, draft.name
        )
    })
}

fn plugin_device(
    device: &HostDevice,
    draft: &ResourceDraft<'_>,
    specs: &Registry,
    config: &Config,
) -> PluginDevice {
    let slots = match device.max_holders() {
        Some(max) => draft.slots.map_or(max, |slots| slots.min(max)),
        None => draft.slots.unwrap_or(config.kubernetes.slots.get()),
    };
    PluginDevice {
        class: device.class,
        name: device.name.to_string(),
        cdi: device.cdi.clone(),
        pci: device.pci,
        pcie_root: device.pcie_root.clone(),
        numa_node: device.numa_node,
        nodes: container_nodes(device, specs),
        slots: (slots > 1).then_some(slots),
        health: device.health_excluding(is_pod_lease),
        remaining: device.free_slots_excluding(is_pod_lease),
    }
}

/// Returns the paths of the device nodes in a container.
pub(crate) fn container_nodes(device: &HostDevice, specs: &Registry) -> Vec<String> {
    // Only these classes report their nodes.
    if !device.class.pins_memory() {
        return Vec::new();
    }
    let mut nodes = BTreeSet::new();
    for name in &device.cdi {
        let parsed = name.parse::<QualifiedName>();
        let edits = parsed.ok().and_then(|name| specs.edits_for(&[name]).ok());
        let of_device = edits.into_iter().flat_map(|edits| edits.device_nodes);
        nodes.extend(of_device.map(|node| node.path));
    }
    nodes.into_iter().collect()
}

/// Returns whether the holder is a container of a pod. kubelet puts all pods below one cgroup
/// (`defaultNodeAllocatableCgroupName` in pkg/kubelet/cm): `kubepods`, or `kubepods.slice` with systemd. If kubelet has a
/// root cgroup, as in kind, systemd's name begins with it.
pub fn is_pod_lease(lease: &Lease) -> bool {
    let Holder::Init { cgroup: Some(cgroup), .. } = &lease.holder else {
        return false;
    };
    cgroup.path.iter().filter_map(|name| name.to_str()).into_iter().any(|name| {
        let name = name.strip_suffix(".slice").unwrap_or(name);
        name == "kubepods" || name.ends_with("-kubepods")
    })
}

/// Builds a resource of these devices. The slots of each are reduced if kubelet could not receive all in one message.
fn build_resource(
    name: ResourceName,
    mut devices: Vec<PluginDevice>,
    left_out: &mut BTreeSet<String>,
) -> Resource {
    let all: u64 = devices.iter().map(|device| u64::from(device.slots.unwrap_or(1))).sum();
    if all > u64::from(MAX_IDS) {
        let number = u32::try_from(devices.len()).unwrap_or(u32::MAX);
        let max = (MAX_IDS / number.max(1)).max(1);
        left_out.insert(format!(
            "{name} would have {all} slots, but kubelet allows {MAX_IDS}: each of its {number} \
             devices has at most {max}"
        ));
        for slots in devices.iter_mut().filter_map(|device| device.slots.as_mut()) {
            *slots = max.min(*slots);
        }
        devices.truncate(usize::try_from(MAX_IDS).unwrap_or(usize::MAX));
    }
    let (ids, without) = assign_ids(&devices);
    for device in without.into_iter().filter_map(|index| devices.get(index)) {
        left_out.insert(format!(
            "{} {} is not in {name}: it has the id of another device; put one of them into a \
             separate pool",
            device.class, device.name
        ));
    }
    Resource { name, devices, ids }
}

#[cfg(test)]
mod tests {
    use onload_core::device_id::DeviceId;
    use onload_host::host::Host;
    use onload_host::offers::{Health, Survey};
    use onload_lease::{HolderState, LeaseEntry};
    use onload_sys::processes::{Cgroup, ProcessId};
    use onload_test_tree::Tree;
    use onload_test_tree::sample::sources;

    use super::*;

    const CAPTURED: &str = "debian13-2numa-onload-rxe-vfio";
    const X2: &str = "x2-2port-sriov";

    fn survey(host: &str, config: &Config) -> Survey {
        let tree = Tree::sample(host);
        let root = Host::open(tree.root()).unwrap();
        let specs = sources().join("tests/golden").join(host);
        Survey::read(&root, config, &[specs]).unwrap()
    }

    fn planned(host: &str, config: &str) -> ResourcePlan {
        let config = Config::parse(config).unwrap();
        let survey = survey(host, &config);
        plan(&survey.offers(), &survey.specs, &config)
    }

    fn names(plan: &ResourcePlan) -> Vec<&str> {
        plan.resources.keys().map(ResourceName::as_str).collect()
    }

    fn resource<'p>(plan: &'p ResourcePlan, name: &str) -> &'p Resource {
        &plan.resources[&ResourceName::try_from(name.to_owned()).unwrap()]
    }

    fn devices<'p>(plan: &'p ResourcePlan, name: &str) -> Vec<&'p str> {
        resource(plan, name).devices.iter().map(|device| device.name.as_str()).collect()
    }

    #[test]
    fn each_class_with_devices_is_a_resource_and_nothing_else_is() {
        let plan = planned(CAPTURED, "");
        let all: Vec<String> = ["nic", "nic-nodes", "nic-plain", "ptp", "rdma", "vfio"]
            .iter()
            .map(|class| format!("onload.dev/{class}"))
            .collect();
        assert_eq!(names(&plan), all);
        assert!(plan.left_out.is_empty(), "{:?}", plan.left_out);
        // Onload without an interface is none of them.
        assert_eq!(devices(&plan, "onload.dev/nic"), ["ens1"]);
        let every = plan.resources.values().flat_map(|resource| &resource.devices);
        for device in every {
            assert_eq!(device.health, Health::Healthy, "{device:?}");
        }
        assert_eq!(
            names(&planned(CAPTURED, "[kubernetes]\nclasses = [\"vfio\"]\n")),
            ["onload.dev/vfio"]
        );
        assert!(planned("debian13-no-hardware", "").resources.is_empty());
    }

    #[test]
    fn a_device_is_where_the_host_has_it() {
        let plan = planned(CAPTURED, "");
        let vfio = resource(&plan, "onload.dev/vfio").device("0000:81:10.0").unwrap();
        assert_eq!((vfio.numa_node, vfio.slots), (Some(1), None));
        assert_eq!(vfio.cdi, ["onload.dev/vfio=0000:81:10.0"]);
        assert!(vfio.nodes.contains(&"/dev/vfio/15".to_owned()), "{:?}", vfio.nodes);
        let nic = resource(&plan, "onload.dev/nic").device("ens1-9").unwrap();
        assert_eq!((nic.numa_node, nic.slots), (Some(0), Some(10)));
        assert_eq!(resource(&plan, "onload.dev/nic").count(), (10, 0));
    }

    #[test]
    fn a_pool_has_its_devices_and_the_class_the_rest() {
        let plan = planned(
            X2,
            "[pools.fast]\nclass = \"vfio\"\nselect = { addresses = [\"0000:65:00.6\"] }\n",
        );
        assert_eq!(devices(&plan, "onload.dev/fast"), ["0000:65:00.6"]);
        assert_eq!(devices(&plan, "onload.dev/vfio"), ["0000:65:00.3"]);
        assert!(plan.left_out.is_empty(), "{:?}", plan.left_out);
    }

    #[test]
    fn a_shared_device_is_in_each_resource_that_it_matches() {
        let plan = planned(
            X2,
            "[pools.front]\nclass = \"nic\"\nselect = { interfaces = [\"enp101s0f0np0\"] }\n[kubernetes.resources]\n\"amd.com/onload\" = { class = \"nic\", slots = 3 }\n",
        );
        assert_eq!(devices(&plan, "onload.dev/nic").len(), 2);
        assert_eq!(devices(&plan, "onload.dev/front"), ["enp101s0f0np0"]);
        assert_eq!(resource(&plan, "amd.com/onload").count(), (6, 0));
        assert_eq!(resource(&plan, "onload.dev/front").count(), (10, 0));
    }

    #[test]
    fn the_number_that_leases_count_is_the_number_of_slots_and_bounds_it() {
        let slots = |config: &str, name: &str| {
            let plan = planned("rdma-hcas", config);
            let device = resource(&plan, name).devices[0].clone();
            (device.slots, devices(&plan, name).len())
        };
        let shared = "[leases]\nshare = { rdma = 500 }\n";
        assert_eq!(slots(shared, "onload.dev/rdma").0, Some(500));
        let fewer = format!(
            "{shared}[kubernetes.resources]\n\"rdma/a\" = {{ class = \"rdma\", slots = 20 }}\n"
        );
        assert_eq!(slots(&fewer, "rdma/a").0, Some(20));
        let more = fewer.replace("20", "900");
        assert_eq!(slots(&more, "rdma/a").0, Some(500));
        // As the shared device plugin for RDMA with rdmaHcaMax 1000 and one device of a vendor.
        let pool = "[pools.hca]\nclass = \"rdma\"\nselect = { interfaces = \"ibp177s0\" }\n[kubernetes.resources]\n\"rdma/hca_shared_devices_a\" = { pool = \"hca\", slots = 1000 }\n";
        assert_eq!(slots(pool, "rdma/hca_shared_devices_a"), (Some(1000), 1));
        // The pool has this name and no other.
        assert!(!names(&planned("rdma-hcas", pool)).contains(&"onload.dev/hca"));
    }

    #[test]
    fn a_device_with_one_slot_is_one_container_s_and_goes_by_its_address() {
        let config = "[pools.hca]\nclass = \"rdma\"\nselect = { interfaces = \"ibp177s0\" }\n[kubernetes.resources]\n\"a.io/hca\" = { pool = \"hca\", slots = 1 }\n";
        let plan = planned("rdma-hcas", config);
        let [device] = resource(&plan, "a.io/hca").devices.as_slice() else {
            panic!("{:?}", resource(&plan, "a.io/hca").devices);
        };
        let address = device.pci.unwrap().to_string();
        let ids: Vec<&String> = resource(&plan, "a.io/hca").ids.keys().collect();
        assert_eq!(ids, [&address]);
        let others = devices(&plan, "onload.dev/rdma");
        assert!(!others.is_empty() && !others.contains(&device.name.as_str()));
        // With another one that several may have, no limit of one could be kept.
        let both = format!("{config}\"a.io/before\" = {{ class = \"rdma\" }}\n");
        let plan = planned("rdma-hcas", &both);
        assert!(!names(&plan).contains(&"a.io/hca"));
        let line = format!("rdma {} is not in a.io/hca: ", device.name);
        let reason = plan.left_out.iter().any(|reason| reason.starts_with(&line));
        assert!(reason, "{:?}", plan.left_out);
        // And the same for the whole class.
        let plan = planned("rdma-hcas", "[kubernetes]\nslots = 1\n");
        assert!(resource(&plan, "onload.dev/rdma").ids.contains_key(&address));
    }

    #[test]
    fn an_exclusive_device_that_two_of_the_operators_resources_want_is_in_the_first() {
        let plan = planned(
            X2,
            "[kubernetes.resources]\n\"a.io/one\" = { class = \"vfio\" }\n\"a.io/two\" = { class = \"vfio\" }\n",
        );
        assert_eq!(devices(&plan, "a.io/one").len(), 2);
        let others = names(&plan);
        assert!(
            !others.contains(&"a.io/two") && !others.contains(&"onload.dev/vfio"),
            "{others:?}"
        );
        let reasons: Vec<&String> = plan.left_out.iter().collect();
        assert_eq!(reasons.len(), 2, "{reasons:?}");
        assert!(reasons[0].starts_with("vfio 0000:65:00.3 is not in a.io/two: "), "{reasons:?}");
        assert!(reasons[0].ends_with("a.io/one already contains it"), "{reasons:?}");
    }

    #[test]
    fn a_pool_that_cannot_be_a_resource_is_left_out_with_the_remedy() {
        let pool = |name: &str| format!("[pools.\"{name}\"]\nclass = \"vfio\"\n");
        for (name, why) in [
            ("nic", "onload.dev/nic is the resource of a class"),
            ("a:b", "not an extended resource name"),
        ] {
            let plan = planned(X2, &pool(name));
            let reasons: Vec<&String> = plan.left_out.iter().collect();
            assert!(
                reasons[0].contains(why) && reasons[0].contains("[kubernetes.resources]"),
                "{reasons:?}"
            );
            assert_eq!(devices(&plan, "onload.dev/vfio").len(), 2);
        }
        let taken = format!(
            "{}[kubernetes.resources]\n\"onload.dev/fast\" = {{ class = \"nic\" }}\n",
            pool("fast")
        );
        let plan = planned(X2, &taken);
        assert!(plan.left_out.iter().any(|reasons| reasons.contains("has onload.dev/fast too")));
        let named =
            format!("{}[kubernetes.resources]\n\"a.io/b\" = {{ pool = \"nic\" }}\n", pool("nic"));
        assert_eq!(devices(&planned(X2, &named), "a.io/b").len(), 2);
    }

    #[test]
    fn a_resource_has_no_more_ids_than_kubelet_receives() {
        let plan = planned(X2, "[kubernetes]\nslots = 32768\n");
        assert_eq!(resource(&plan, "onload.dev/nic").count(), (32_768, 0));
        assert!(
            plan.left_out
                .iter()
                .any(|reason| reason.contains("onload.dev/nic would have 65536 slots"))
        );
    }

    fn held(cgroup: Option<&str>) -> LeaseEntry {
        let process = ProcessId { pid: 7, start_time: 1, pid_namespace: 1 };
        let cgroup = cgroup.map(|path| Cgroup { path: path.into(), inode: 1 });
        LeaseEntry {
            device: DeviceId { class: Class::Vfio, name: "0000:65:00.3".try_into().unwrap() },
            number: 0,
            state: HolderState::Alive,
            lease: Ok(Lease {
                claim: None,
                boot: "this".to_owned(),
                container: "3f2a".parse().unwrap(),
                bundle: "/run/bundle".into(),
                holder: Holder::Init { process, cgroup },
                entry_point: "onload-hook createRuntime".to_owned(),
                since: 0,
                facts: BTreeMap::new(),
                ticket: None,
                moved: None,
            }),
        }
    }

    fn health_with(lease: LeaseEntry) -> Health {
        let config = Config::default();
        let mut survey = survey(X2, &config);
        survey.leases = vec![lease];
        let plan = plan(&survey.offers(), &survey.specs, &config);
        let vfio = resource(&plan, "onload.dev/vfio");
        assert_eq!(vfio.device("0000:65:00.6").unwrap().health, Health::Healthy);
        vfio.device("0000:65:00.3").unwrap().health.clone()
    }

    #[test]
    fn a_device_of_a_pod_stays_healthy() {
        for cgroup in [
            "/sys/fs/cgroup/kubepods.slice/kubepods-pod1.slice/cri-containerd-3f2a.scope",
            "/sys/fs/cgroup/memory/kubepods/besteffort/pod1/3f2a",
            "/sys/fs/cgroup/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod1.slice/x.scope",
        ] {
            assert_eq!(health_with(held(Some(cgroup))), Health::Healthy, "{cgroup}");
        }
    }

    #[test]
    fn a_device_that_another_engines_container_holds_is_unhealthy_with_the_holder() {
        for cgroup in [
            Some("/sys/fs/cgroup/system.slice/docker-3f2a.scope"),
            Some("/sys/fs/cgroup/machine.slice/libpod-3f2a.scope"),
            Some("/sys/fs/cgroup/user.slice/not-kubepods-at-all"),
            None,
        ] {
            let Health::Unhealthy(reason) = health_with(held(cgroup)) else {
                panic!("{cgroup:?}");
            };
            assert!(reason.contains("in use by") && reason.contains("3f2a"), "{reason}");
        }
    }

    #[test]
    fn a_lease_that_is_not_understood_is_somebody_elses() {
        let mut lease = held(Some("/sys/fs/cgroup/kubepods/pod1/3f2a"));
        lease.lease = Err("it is of version 9".to_owned());
        assert!(matches!(health_with(lease), Health::Unhealthy(_)));
    }

    #[test]
    fn each_slot_that_another_engines_container_has_is_one_less() {
        let config = "[leases]\nshare = { vfio = 4 }\n";
        let healthy = |config: &str, others: u32, pods: u32| {
            let config = Config::parse(config).unwrap();
            let mut survey = survey(X2, &config);
            let lease = |(number, cgroup)| LeaseEntry { number, ..held(Some(cgroup)) };
            let others =
                (0..others).map(|slot| (slot, "/sys/fs/cgroup/system.slice/docker-3f2a.scope"));
            let pods = (0..pods).map(|slot| (3 - slot, "/sys/fs/cgroup/kubepods/pod1/3f2a"));
            survey.leases = others.chain(pods).map(lease).collect();
            let plan = plan(&survey.offers(), &survey.specs, &config);
            let vfio = resource(&plan, "onload.dev/vfio");
            vfio.ids
                .keys()
                .filter(|id| id.starts_with("0000:65:00.3"))
                .filter(|id| vfio.unhealthy_reason(id).is_none())
                .cloned()
                .collect::<Vec<String>>()
        };
        assert_eq!(healthy(config, 3, 0), ["0000:65:00.3-0"]);
        assert_eq!(healthy(config, 1, 2).len(), 3, "kubelet counts its own");
        assert_eq!(healthy(config, 0, 4).len(), 4);
        assert_eq!(healthy(config, 4, 0), [""; 0]);
        let fewer = format!(
            "{config}[kubernetes.resources]\n\"onload.dev/vfio\" = {{ class = \"vfio\", slots = 2 }}\n"
        );
        assert_eq!(healthy(&fewer, 2, 0).len(), 2, "two of four are left");
        assert_eq!(healthy(&fewer, 3, 0), ["0000:65:00.3-0"]);
    }

    #[test]
    fn a_lease_that_is_over_holds_nothing() {
        let mut lease = held(None);
        lease.state = HolderState::Ended;
        assert_eq!(health_with(lease), Health::Healthy);
    }
}
