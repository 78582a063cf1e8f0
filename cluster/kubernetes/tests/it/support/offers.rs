//! Offers, made or of a captured host.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use onload_cdi::DeviceName;
use onload_core::class::Class;
use onload_core::config::Config;
use onload_host::host::Host;
use onload_host::offers::{
    Attribute, Attributes, DeviceLease, Health, HostDevice, Sharing, Survey,
};
use onload_kubernetes::resources::{ResourcePlan, SpecAuthor};
use onload_kubernetes::snapshot::KubernetesSnapshot;
use onload_lease::{Holder, Lease};
use onload_sys::processes::{Cgroup, ProcessId};
use onload_test_tree::Tree;

use super::sources;

pub(crate) fn offer(class: Class, name: &str) -> HostDevice {
    let attributes = Attributes::from([
        ("kind", Attribute::Text(class.to_string())),
        ("name", Attribute::Text(name.to_owned())),
        ("pf", Attribute::Text(String::new())),
        ("linkMbps", Attribute::Int(25_000)),
        ("virtualFunction", Attribute::Bool(false)),
        ("onloadVersion", Attribute::Version("9.1.0".to_owned())),
        ("onload", Attribute::Text("9.1.0.86".to_owned())),
    ]);
    let is_vfio = class == Class::Vfio;
    HostDevice {
        cdi: vec![format!("{}={name}", class.cdi_kind())],
        pci: name.parse().ok(),
        pcie_root: is_vfio.then(|| "pci0000:80".to_owned()),
        numa_node: is_vfio.then_some(1),
        attributes,
        sharing: match is_vfio {
            true => Sharing::Exclusive,
            false => Sharing::Shared,
        },
        ..HostDevice::new(class, name).unwrap()
    }
}

pub(crate) fn vf(name: &str, pf: &str) -> HostDevice {
    let mut device = offer(Class::Vfio, name);
    let pf = Attribute::Text(pf.to_owned());
    device.attributes.insert("pf", pf);
    device
}

pub(crate) fn vfs(number: u32) -> Vec<HostDevice> {
    let vf = |at: u32| {
        let (bus, device, function) = (at / 256, at / 8 % 32, at % 8);
        offer(Class::Vfio, &format!("0000:{bus:02x}:{device:02x}.{function}"))
    };
    (0..number).map(vf).collect()
}

pub(crate) fn unhealthy(mut device: HostDevice) -> HostDevice {
    device.health = Health::Unhealthy("its link is down".to_owned());
    device
}

pub(crate) fn held(mut device: HostDevice) -> HostDevice {
    device.leases.push(DeviceLease { slot: 0, lease: None, text: "container 3f2a".to_owned() });
    device
}

/// One that a container of a pod has, for a claim or without.
pub(crate) fn held_by_pod(mut device: HostDevice, claim: Option<&str>) -> HostDevice {
    let process = ProcessId { pid: 7, start_time: 1, pid_namespace: 1 };
    let cgroup = Some(Cgroup { path: "/sys/fs/cgroup/kubepods/pod1/3f2a".into(), inode: 1 });
    let lease = Lease {
        claim: claim.map(|uid| uid.parse().unwrap()),
        boot: "this".to_owned(),
        container: "3f2a".parse().unwrap(),
        bundle: "/run/bundle".into(),
        holder: Holder::Init { process, cgroup },
        entry_point: "onload-hook createRuntime".to_owned(),
        since: 0,
        facts: BTreeMap::new(),
        ticket: None,
        moved: None,
    };
    device.leases.push(DeviceLease {
        slot: 0,
        lease: Some(lease),
        text: "container 3f2a".to_owned(),
    });
    device
}

pub(crate) fn captured(host: &str) -> Vec<HostDevice> {
    let tree = Tree::sample(host);
    let root = Host::open(tree.root()).unwrap();
    let specs = sources().join("tests/golden").join(host);
    let survey = Survey::read(&root, &Config::default(), &[specs]).unwrap();
    survey.offers()
}

pub(crate) fn snapshot(mut devices: Vec<HostDevice>, config: &str) -> Arc<KubernetesSnapshot> {
    devices.sort_by(|one, other| (one.class, &one.name).cmp(&(other.class, &other.name)));
    Arc::new(KubernetesSnapshot {
        plan: ResourcePlan::default(),
        devices,
        config: Config::parse(config).unwrap(),
        written_by: SpecAuthor::Operator,
        lease_hooks: BTreeMap::new(),
        nodes: BTreeMap::new(),
        vf: BTreeMap::new(),
        exclusions: Vec::new(),
        taken: Instant::now(),
    })
}
