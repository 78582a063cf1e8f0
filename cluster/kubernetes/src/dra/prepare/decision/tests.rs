use std::collections::BTreeMap;
use std::time::Instant;

use onload_cdi::Hook;
use onload_core::config::Config;
use onload_core::vf_config::VfConfig;
use onload_host::discover::exclusion::Exclusion;
use onload_host::offers::{Attribute, Sharing};
use serde_json::json;

use super::super::claim_spec::PodInterface;
use super::super::parameters::{Author, Parameters};
use super::*;
use crate::dra::test_offers::offer;
use crate::resources::{ResourcePlan, SpecAuthor};

const UID: &str = "0d7e3c1a-5c0f-4c57-9a4e-2b1f8f0f8f11";

/// A node with an interface, a function that is leased, an RDMA device and a profile.
fn node() -> KubernetesSnapshot {
    let vfio = HostDevice { sharing: Sharing::Exclusive, ..offer(Class::Vfio, "0000:81:10.0") };
    let gone = HostDevice {
        cdi: Vec::new(),
        health: Health::Unhealthy("its specification has it no longer".to_owned()),
        ..offer(Class::Nic, "ens9")
    };
    let reason = "bound to igbvf; bind it to vfio-pci".to_owned();
    KubernetesSnapshot {
        plan: ResourcePlan::default(),
        names: DeviceNames::default(),
        devices: vec![
            offer(Class::Nic, "ens1"),
            gone,
            offer(Class::NicPlain, "ens1"),
            offer(Class::Rdma, "mlx5_0"),
            vfio,
        ],
        config: Config::default(),
        written_by: SpecAuthor::Operator,
        lease_hooks: BTreeMap::from([(Class::Vfio, vec![Hook::default()])]),
        nodes: BTreeMap::new(),
        vf: BTreeMap::new(),
        exclusions: vec![
            Exclusion::new(Class::Nic, "0000:81:10.7", "no"),
            Exclusion::new(Class::Vfio, "0000:81:10.7", reason),
        ],
        taken: Instant::now(),
    }
}

fn allocated(
    request: &str,
    pool: &str,
    device: &str,
    parameters: &serde_json::Value,
) -> AllocatedDevice {
    let mut merged = Parameters::default();
    merged.override_with(&Parameters::parse(parameters, Author::Claim).unwrap(), request != "any");
    AllocatedDevice {
        request: request.to_owned(),
        chosen: request.to_owned(),
        pool: pool.to_owned(),
        device: device.to_owned(),
        resource: None,
        share_id: None,
        is_admin: false,
        parameters: merged,
    }
}

fn decided(devices: Vec<AllocatedDevice>) -> Result<PrepareDecision, String> {
    decided_on(&node(), devices)
}

fn decided_on(
    snapshot: &KubernetesSnapshot,
    devices: Vec<AllocatedDevice>,
) -> Result<PrepareDecision, String> {
    let (node, names) = ("n1".parse().unwrap(), DeviceNames::new(&snapshot.devices));
    let specs = [
        "onload.dev/nic=ens1",
        "onload.dev/nic-plain=ens1",
        "onload.dev/rdma=mlx5_0",
        "onload.dev/vfio=0000:81:10.0",
        "onload.dev/profile=latency",
        "onload.dev/netdev=ens1v0",
        "onload.dev/netdev=ens1v1",
        "onload.dev/netdev=ens2v0",
    ];
    let around = PrepareContext {
        node: &node,
        names: &names,
        snapshot,
        specs: &specs.map(str::to_owned).into_iter().collect(),
    };
    let decided = decide(devices, &UID.parse().unwrap(), around);
    decided.map_err(|error| format!("{error:#}"))
}

fn ids(device: AllocatedDevice) -> Result<Vec<String>, String> {
    Ok(of_first(decided(vec![device])?))
}

/// The CDI devices of the first device, without that of its request, which is the last.
fn of_first(decision: PrepareDecision) -> Vec<String> {
    let Device { request_names, mut cdi_device_ids, .. } =
        decision.devices.into_iter().next().unwrap();
    let last = cdi_device_ids.pop().unwrap();
    assert_eq!(last, of_request(&request_names[0]));
    cdi_device_ids
}

fn of_request(request: &str) -> String {
    format!("onload.dev/claim={UID}.request.{request}")
}

#[test]
fn a_function_is_given_beside_nobody_who_has_its_family() {
    let mut snapshot = node();
    let function = |name: &str, pf: &str| HostDevice {
        pci: name.parse().ok(),
        sharing: Sharing::Exclusive,
        attributes: [("pf", Attribute::Text(pf.to_owned()))].into_iter().collect(),
        ..offer(Class::Vfio, name)
    };
    snapshot.devices.truncate(4);
    snapshot.devices.extend([
        function("0000:81:00.0", ""),
        function("0000:81:10.0", "0000:81:00.0"),
        function("0000:81:10.2", "0000:81:00.0"),
        function("0000:82:00.0", ""),
    ]);
    let vf = allocated("vf", "n1/vfio", "0000-81-10-0", &json!({}));
    let names = |decision: &PrepareDecision| -> Vec<String> {
        decision.other_functions.iter().map(|leased| leased.device.to_string()).collect()
    };
    let of_vf = decided_on(&snapshot, vec![vf]).unwrap();
    assert_eq!(names(&of_vf), ["vfio:0000:81:00.0"]);
    let around = PrepareContext {
        node: &"n1".parse().unwrap(),
        names: &DeviceNames::new(&snapshot.devices),
        snapshot: &snapshot,
        specs: &["onload.dev/vfio=0000:81:00.0".to_owned()].into_iter().collect(),
    };
    let pf = allocated("pf", "n1/vfio", "0000-81-00-0", &json!({}));
    let devices = vec![pf];
    let of_pf = decide(devices, &UID.parse().unwrap(), around).unwrap();
    assert_eq!(names(&of_pf), ["vfio:0000:81:10.0", "vfio:0000:81:10.2"]);
}

#[test]
fn a_shared_device_gives_its_own_cdi_device() {
    let none = json!({});
    let nic = ids(allocated("nic", "n1/nic", "ens1", &none)).unwrap();
    assert_eq!(nic, ["onload.dev/nic=ens1"]);
    let slot = ids(allocated("nic", "n1/nic", "ens1-slot-3", &none)).unwrap();
    assert_eq!(slot, nic);
    let rdma = ids(allocated("r", "n1/rdma", "mlx5-0", &none)).unwrap();
    assert_eq!(rdma, ["onload.dev/rdma=mlx5_0"]);
}

#[test]
fn the_answer_names_request_pool_device_and_share_as_the_allocation_does() {
    let mut shared = allocated("nic", "n1/nic", "ens1", &json!({}));
    shared.share_id = Some("s".to_owned());
    let decision = decided(vec![shared]).unwrap();
    let device = &decision.devices[0];
    assert_eq!(device.request_names, ["nic"]);
    assert_eq!((device.pool_name.as_str(), device.device_name.as_str()), ("n1/nic", "ens1"));
    assert_eq!(device.share_id.as_deref(), Some("s"));
    assert!(decision.leased.is_empty());
}

#[test]
fn a_device_that_is_leased_is_leased_for_the_claim_before_its_own_hook_comes() {
    let vfio = allocated("vf", "n1/vfio", "0000-81-10-0", &json!({}));
    let decision = decided(vec![vfio]).unwrap();
    let of_claim = format!("onload.dev/claim={UID}.vfio.0000:81:10.0");
    let ids = [of_claim.as_str(), "onload.dev/vfio=0000:81:10.0"];
    let leased = ClaimDevice {
        request: "vf".to_owned(),
        device: "vfio:0000:81:10.0".parse().unwrap(),
        max_holders: 1,
        interface: None,
        vf: None,
    };
    assert_eq!(decision.leased, [leased]);
    assert_eq!(of_first(decision), ids);
}

#[test]
fn who_only_watches_takes_nothing_away() {
    let admin = |pool, device| AllocatedDevice {
        is_admin: true,
        ..allocated("w", pool, device, &json!({}))
    };
    let decision = decided(vec![admin("n1/vfio", "0000-81-10-0")]).unwrap();
    assert!(decision.leased.is_empty());
    assert_eq!(of_first(decision), [""; 0]);
    assert_eq!(ids(admin("n1/nic", "ens1")).unwrap(), ["onload.dev/nic=ens1"]);
}

#[test]
fn who_only_watches_takes_nothing_away_where_no_hook_leases_it_either() {
    let mut node = node();
    node.lease_hooks.clear();
    let admin =
        AllocatedDevice { is_admin: true, ..allocated("w", "n1/vfio", "0000-81-10-0", &json!({})) };
    let decision = decided_on(&node, vec![admin]).unwrap();
    assert_eq!(of_first(decision), [""; 0]);
}

#[test]
fn a_request_for_a_resource_has_the_variables_of_all_its_functions() {
    let mut node = node();
    for (at, host_device) in node.devices.iter_mut().enumerate() {
        host_device.pci = format!("0000:81:10.{at}").parse().ok();
    }
    let key = |name: &str| (Class::Vfio, DeviceName::try_from(name).unwrap());
    let nodes = vec!["/dev/vfio/15".to_owned(), "/dev/vfio/vfio".to_owned()];
    node.nodes.insert(key("0000:81:10.0"), nodes);
    let device_of = |request: &str, pool: &str, device: &str, resource: &str| AllocatedDevice {
        resource: Some(resource.to_owned().try_into().unwrap()),
        ..allocated(request, pool, device, &json!({}))
    };
    let devices = vec![
        device_of("r-0", "n1/nic", "ens1", "amd.com/onload"),
        device_of("r-1", "n1/vfio", "0000-81-10-0", "onload.dev/vfio"),
        device_of("r-0", "n1/rdma", "mlx5-0", "amd.com/onload"),
        allocated("claimed", "n1/nic", "ens1", &json!({})),
    ];
    let decision = decided_on(&node, devices).unwrap();
    let requests: Vec<&str> = decision.variables.keys().map(String::as_str).collect();
    assert_eq!(requests, ["r-0", "r-1"]);
    let of_nic = &decision.variables["r-0"]["PCIDEVICE_AMD_COM_ONLOAD"];
    assert_eq!(of_nic, "0000:81:10.0,0000:81:10.3");
    let info = &decision.variables["r-1"]["PCIDEVICE_ONLOAD_DEV_VFIO_INFO"];
    assert!(info.contains(r#""dev-mount":"/dev/vfio/15""#), "{info}");
    let last: Vec<Option<&String>> =
        decision.devices.iter().map(|device| device.cdi_device_ids.last()).collect();
    assert_eq!(last[0], Some(&of_request("r-0")));
    assert_eq!(last[1], Some(&of_request("r-1")));
    assert_eq!(last[2], Some(&of_request("r-0")));
    assert_eq!(last[3], Some(&of_request("claimed")));
}

#[test]
fn without_the_preload_a_container_gets_the_plain_class() {
    let off = json!({"preload": "off"});
    let nic = ids(allocated("nic", "n1/nic", "ens1", &off)).unwrap();
    assert_eq!(nic, ["onload.dev/nic-plain=ens1"]);
    let plain = ids(allocated("nic", "n1/nic-plain", "ens1", &off)).unwrap();
    assert_eq!(plain, nic);
    let on = json!({"preload": "on"});
    let nic = ids(allocated("nic", "n1/nic", "ens1", &on)).unwrap();
    assert_eq!(nic, ["onload.dev/nic=ens1"]);
}

#[test]
fn a_profile_is_one_more_cdi_device() {
    let profile = json!({"profile": "latency"});
    let nic = ids(allocated("nic", "n1/nic", "ens1", &profile)).unwrap();
    assert_eq!(nic, ["onload.dev/nic=ens1", "onload.dev/profile=latency"]);
}

#[test]
fn a_profile_that_is_not_there_is_refused_with_those_that_are() {
    let profile = json!({"profile": "latencies"});
    let line = ids(allocated("nic", "n1/nic", "ens1", &profile)).unwrap_err();
    assert_eq!(
        line,
        "request \"nic\": no CDI specification has onload.dev/profile=latencies; this node has the profiles latency"
    );
}

#[test]
fn a_specification_that_is_missing_is_asked_of_who_writes_it() {
    let mut snapshot = node();
    let gone = snapshot.devices.iter_mut().find(|device| device.name.as_str() == "ens9");
    gone.unwrap().health = Health::Healthy;
    for (written_by, says) in [
        (SpecAuthor::Operator, "\"systemctl restart onload-cdi.service\""),
        (SpecAuthor::Daemon, "onload-kubernetes on the node writes it"),
    ] {
        snapshot.written_by = written_by;
        let nic = allocated("nic", "n1/nic", "ens9", &json!({}));
        let line = decided_on(&snapshot, vec![nic]).unwrap_err();
        let message = format!("no CDI specification has onload.dev/nic=ens9; {says}");
        assert!(line.contains(&message), "{line}");
    }
}

#[test]
fn a_parameter_of_a_request_is_for_the_class_that_has_a_use_for_it() {
    for (pool, device, parameters, says) in [
        (
            "n1/rdma",
            "mlx5-0",
            json!({"preload": "off"}),
            "parameter preload is for devices of class nic, and mlx5_0 is of class rdma",
        ),
        (
            "n1/nic-plain",
            "ens1",
            json!({"preload": "on"}),
            "parameter preload is for devices of class nic, and ens1 is of class nic-plain",
        ),
        (
            "n1/vfio",
            "0000-81-10-0",
            json!({"profile": "latency"}),
            "parameter profile is for devices of class nic, nic-plain or nic-nodes, and 0000:81:10.0 is of class vfio",
        ),
    ] {
        let line = ids(allocated("a", pool, device, &parameters)).unwrap_err();
        assert_eq!(line, format!("request \"a\": {says}"));
        // Said of all devices of a claim, it is for those that have a use for it.
        ids(allocated("any", pool, device, &parameters)).unwrap();
    }
}

/// The same node with two interfaces that may move, of which a plugin moves the second.
fn node_with_interfaces() -> KubernetesSnapshot {
    let mut node = node();
    let interface = |name: &str, pci: &str, pool: &str| HostDevice {
        sharing: Sharing::Exclusive,
        pci: pci.parse().ok(),
        pools: vec![pool.to_owned()],
        attributes: [("interface", Attribute::Text(name.to_owned()))].into(),
        ..offer(Class::Netdev, name)
    };
    node.devices.extend([
        interface("ens1v0", "0000:81:11.0", "fast"),
        interface("ens1v1", "0000:81:11.1", "fast"),
        interface("ens2v0", "0000:82:11.0", "sriov"),
    ]);
    node.devices.sort_by(|one, other| (one.class, &one.name).cmp(&(other.class, &other.name)));
    node.lease_hooks.insert(Class::Netdev, vec![Hook::default()]);
    let of_cni = "[pools.sriov]\nclass = \"netdev\"\nmove = \"cni\"\n";
    node.config = Config::parse(of_cni).unwrap();
    node.config.kubernetes.addresses =
        ["192.0.2.0/24", "2001:db8::/64"].map(|network| network.parse().unwrap()).to_vec();
    node.config.kubernetes.routes = vec!["198.51.100.0/24".parse().unwrap()];
    node
}

/// As the operator's configuration says of a virtual function.
fn set_up(node: &mut KubernetesSnapshot, device: &str, vf: &str) {
    let device = device.parse().unwrap();
    node.vf.insert(device, vf.parse().unwrap());
}

fn moved(request: &str, device: &str, parameters: &serde_json::Value) -> AllocatedDevice {
    allocated(request, "n1/netdev", device, parameters)
}

fn addressed(request: &str, device: &str, address: &str) -> AllocatedDevice {
    moved(request, device, &json!({"address": address}))
}

#[test]
fn the_hook_of_a_claim_moves_an_interface_as_the_claim_wants_it() {
    let node = node_with_interfaces();
    let all = json!({"name": "net1", "mtu": 1400, "address": "192.0.2.10/24",
        "routes": "198.51.100.0/25 via 192.0.2.1"});
    let decision = decided_on(&node, vec![moved("fast", "ens1v0", &all)]).unwrap();
    let ids = of_first(decision.clone());
    let of_claim = format!("onload.dev/claim={UID}.netdev.ens1v0");
    assert_eq!(ids, [of_claim.as_str(), "onload.dev/netdev=ens1v0"]);
    let whole = PodInterface {
        netdev: "ens1v0@0000:81:11.0".parse().unwrap(),
        name: Some("net1".parse().unwrap()),
        mtu: Some("1400".parse().unwrap()),
        addresses: vec!["192.0.2.10/24".parse().unwrap()],
        routes: vec!["198.51.100.0/25 via 192.0.2.1".parse().unwrap()],
    };
    assert_eq!(decision.leased[0].interface.as_ref(), Some(&whole));
    let named = moved("fast", "ens1v0", &json!({"name": "net1"}));
    let decision = decided_on(&node, vec![named]).unwrap();
    let interface = decision.leased[0].interface.as_ref().unwrap();
    assert_eq!((&interface.name, interface.mtu), (&whole.name, None));
    let decision = decided_on(&node, vec![moved("fast", "ens1v0", &json!({}))]).unwrap();
    assert_eq!(decision.leased[0].interface, None);
}

#[test]
fn an_interface_is_described_as_it_will_be_in_the_pod() {
    let mut node = node_with_interfaces();
    let configured = ["198.51.100.7/24", "2001:db8::7/64"].map(|address| address.parse().unwrap());
    let settings = node.config.netdev.entry("ens1v0".to_owned());
    settings.or_default().addresses = configured.to_vec();
    let of_function =
        VfConfig { mac: Some("02:00:00:00:77:01".parse().unwrap()), ..VfConfig::default() };
    node.vf.insert("netdev:ens1v1".parse().unwrap(), of_function);
    let network = |device| {
        let decision = decided_on(&node, vec![device]).unwrap();
        decision.metadata[0].prepared.network.clone()
    };
    let is = |device, ips: Option<&[&str]>| {
        let network = network(device).unwrap();
        assert_eq!(network.interface_name.as_deref(), Some("ens1v0"));
        let ips = ips.map(|ips| ips.iter().map(|ip| (*ip).to_owned()).collect());
        assert_eq!(network.ips, ips);
    };
    is(addressed("fast", "ens1v0", "192.0.2.10/24"), Some(&["192.0.2.10/24"]));
    let plain = |device| allocated("fast", "n1/netdev", device, &json!({}));
    is(plain("ens1v0"), Some(&["198.51.100.7/24", "2001:db8::7/64"]));
    let unset = network(plain("ens1v1")).unwrap();
    assert_eq!(unset.ips, None);
    assert_eq!(unset.hardware_address.as_deref(), Some("02:00:00:00:77:01"));
    let many: Vec<String> = (1..=17).map(|n| format!("192.0.2.{n}/24")).collect();
    let many = network(moved("fast", "ens1v0", &json!({"address": many})));
    assert_eq!(many.unwrap().ips.unwrap().len(), 16);
    // A CNI plugin does as it likes, and what does not move has no network of the pod's.
    assert_eq!(network(plain("ens2v0")), None);
    assert_eq!(network(allocated("n", "n1/nic", "ens1", &json!({}))), None);
}

#[test]
fn what_describes_a_device_says_which_alternative_and_slot_it_is() {
    let mut slot = allocated("nic", "n1/nic", "ens1-slot-3", &json!({}));
    slot.chosen = "nic/fast".to_owned();
    let decision = decided(vec![slot]).unwrap();
    let described = &decision.metadata[0];
    assert_eq!((described.request.as_str(), described.chosen.as_str()), ("nic", "nic/fast"));
    assert_eq!(described.attributes["slot"].int, Some(3));
}

#[test]
fn a_claim_sets_what_the_operator_allows_and_a_class_anything() {
    let node = node_with_interfaces();
    for (parameters, says) in [
        (
            json!({"address": "203.0.113.1/24"}),
            "parameter address sets 203.0.113.1/24, which is in none of the networks that this node allows to claims (192.0.2.0/24, 2001:db8::/64); ask its operator for addresses under [kubernetes], or for a DeviceClass with it",
        ),
        (
            json!({"routes": ["198.51.100.0/24", "198.51.0.0/16 via 192.0.2.1"]}),
            "parameter routes sets 198.51.0.0/16 via 192.0.2.1, which is in none of the networks that this node allows to claims (198.51.100.0/24); ask its operator for routes under [kubernetes], or for a DeviceClass with it",
        ),
        (
            json!({"mtu": 1501}),
            "parameter mtu is 1501, but this node allows claims at most 1500; ask its operator for \
             mtu under [kubernetes], or for a DeviceClass with it",
        ),
    ] {
        let mut foreign = moved("fast", "ens1v0", &parameters);
        let refused = decided_on(&node, vec![foreign.clone()]).unwrap_err();
        assert_eq!(refused, format!("request \"fast\": {says}"));
        let chosen = Parameters::parse(&parameters, Author::Class).unwrap();
        foreign.parameters.override_with(&chosen, true);
        decided_on(&node, vec![foreign]).unwrap();
    }
    let mut wide = node_with_interfaces();
    wide.config.kubernetes.mtu = "9000".parse().unwrap();
    let large = |mtu: u32| decided_on(&wide, vec![moved("fast", "ens1v0", &json!({"mtu": mtu}))]);
    large(9000).unwrap();
    assert!(large(9001).unwrap_err().contains("at most 9000"));
    wide.config.kubernetes.addresses.clear();
    let refused = decided_on(&wide, vec![addressed("fast", "ens1v0", "192.0.2.10/24")]);
    assert!(refused.unwrap_err().contains("allows to claims (none)"));
}

#[test]
fn a_claim_chooses_from_the_vlans_of_the_device_and_a_class_any() {
    let mut node = node_with_interfaces();
    let vf = |text: &str| Some(text.parse().unwrap());
    set_up(&mut node, "netdev:ens1v0", "vlans=100-199;trust=false");
    let decided = |vlan: u16| decided_on(&node, vec![moved("a", "ens1v0", &json!({"vlan": vlan}))]);
    let decision = decided(150).unwrap();
    assert_eq!(decision.leased[0].vf, vf("vlan=150;vlans=100-199;trust=false"));
    // The device's own hook would want another VLAN, or none.
    let of_claim = format!("onload.dev/claim={UID}.netdev.ens1v0");
    assert_eq!(of_first(decision), [of_claim]);
    let beginning = |device: &str| {
        format!(
            "request \"a\": parameter vlan: netdev:{device}, which \"vlans\" in the table vf of its pool or device says on this node: "
        )
    };
    let end = "; ask its operator for vlans there, or for a DeviceClass with it";
    assert_eq!(
        decided(300).unwrap_err(),
        format!("{}VLAN 300 is not allowed; choose from 100-199{end}", beginning("ens1v0"))
    );
    let mut unlisted = moved("a", "ens1v1", &json!({"vlan": 300}));
    assert_eq!(
        decided_on(&node, vec![unlisted.clone()]).unwrap_err(),
        format!("{}it may not choose a VLAN{end}", beginning("ens1v1"))
    );
    let chosen = Parameters::parse(&json!({"vlan": 300}), Author::Class).unwrap();
    unlisted.parameters.override_with(&chosen, true);
    let decision = decided_on(&node, vec![unlisted]).unwrap();
    assert_eq!(decision.leased[0].vf, vf("vlan=300"));
}

#[test]
fn a_claim_without_a_vlan_has_the_operator_s_or_is_refused_where_it_has_to_choose() {
    let mut node = node_with_interfaces();
    set_up(&mut node, "netdev:ens1v0", "vlans=100-199");
    set_up(&mut node, "netdev:ens1v1", "vlan=100;vlans=100-199");
    for parameters in [json!({}), json!({"mtu": 1400})] {
        let refused = decided_on(&node, vec![moved("a", "ens1v0", &parameters)]).unwrap_err();
        let says = "request \"a\": netdev:ens1v0: choose a VLAN from 100-199: ";
        assert!(refused.starts_with(says), "{refused}");
    }
    let watching = AllocatedDevice { is_admin: true, ..moved("a", "ens1v0", &json!({})) };
    decided_on(&node, vec![watching]).unwrap();
    let of_claim = format!("onload.dev/claim={UID}.netdev.ens1v1");
    let decision = decided_on(&node, vec![moved("a", "ens1v1", &json!({}))]).unwrap();
    let leased = &decision.leased[0];
    assert_eq!((&leased.interface, &leased.vf), (&None, &None));
    assert_eq!(of_first(decision), [of_claim.as_str(), "onload.dev/netdev=ens1v1"]);
    let decision = decided_on(&node, vec![moved("a", "ens1v1", &json!({"mtu": 1400}))]).unwrap();
    assert_eq!(decision.leased[0].vf, Some("vlan=100;vlans=100-199".parse().unwrap()));
    assert_eq!(of_first(decision), [of_claim]);
}

#[test]
fn a_claim_chooses_for_a_function_whose_own_hook_brings_its_nodes() {
    let mut node = node_with_interfaces();
    let vf = |vlan: u16| allocated("vf", "n1/vfio", "0000-81-10-0", &json!({"vlan": vlan}));
    // An interface of the same name says nothing of it.
    set_up(&mut node, "netdev:0000:81:10.0", "vlans=1-4000");
    let beginning = "request \"vf\": parameter vlan: vfio:0000:81:10.0, which \"vlans\" in the table vf of its pool or device says on this node: ";
    let end = "; ask its operator for vlans there, or for a DeviceClass with it";
    for (table, says) in [
        (None, "it may not choose a VLAN"),
        (Some("vlan=100"), "it may not choose a VLAN"),
        (Some("vlan=100;vlans=100-149"), "VLAN 150 is not allowed; choose from 100-149"),
    ] {
        if let Some(table) = table {
            set_up(&mut node, "vfio:0000:81:10.0", table);
        }
        let refused = decided_on(&node, vec![vf(150)]).unwrap_err();
        assert_eq!(refused, format!("{beginning}{says}{end}"));
    }
    set_up(&mut node, "vfio:0000:81:10.0", "vlans=100-199;trust=false");
    let decision = decided_on(&node, vec![vf(150)]).unwrap();
    let chosen = "vlan=150;vlans=100-199;trust=false".parse().unwrap();
    assert_eq!(decision.leased[0].vf, Some(chosen));
    let of_claim = format!("onload.dev/claim={UID}.vfio.0000:81:10.0");
    let ids = [of_claim.as_str(), "onload.dev/vfio=0000:81:10.0"];
    assert_eq!(of_first(decision), ids);
    // It has to choose, and a class may say anything.
    let mut unsaid = allocated("vf", "n1/vfio", "0000-81-10-0", &json!({}));
    let refused = decided_on(&node, vec![unsaid.clone()]).unwrap_err();
    let says = "request \"vf\": vfio:0000:81:10.0: choose a VLAN from 100-199: ";
    assert!(refused.starts_with(says), "{refused}");
    let parameters_chosen = Parameters::parse(&json!({"vlan": 300}), Author::Class).unwrap();
    unsaid.parameters.override_with(&parameters_chosen, false);
    let decision = decided_on(&node, vec![unsaid.clone()]).unwrap();
    let set = "vlan=300;vlans=100-199;trust=false".parse().unwrap();
    assert_eq!(decision.leased[0].vf, Some(set));
    // What nobody would set is not given.
    node.lease_hooks.remove(&Class::Vfio);
    let refused = decided_on(&node, vec![unsaid]).unwrap_err();
    let says = "request \"vf\": parameter vlan: the specification of vfio:0000:81:10.0 on this node has no hook";
    assert!(refused.starts_with(says), "{refused}");
}

#[test]
fn what_is_said_of_all_devices_of_a_claim_is_for_its_interfaces_and_functions() {
    let mut node = node_with_interfaces();
    set_up(&mut node, "netdev:ens1v0", "vlans=100-199");
    set_up(&mut node, "vfio:0000:81:10.0", "vlans=150");
    let both = |vlan: u16| {
        let chosen = json!({"vlan": vlan, "mtu": 1400});
        let function = allocated("any", "n1/vfio", "0000-81-10-0", &chosen);
        let nic = allocated("any", "n1/nic", "ens1", &chosen);
        decided_on(&node, vec![nic, moved("any", "ens1v0", &chosen), function])
    };
    let leased = both(150).unwrap().leased;
    let vlans = leased.iter().map(|leased| leased.vf.as_ref().unwrap().vlan);
    assert!(vlans.eq([Some(150.try_into().unwrap()); 2]));
    let refused = both(160).unwrap_err();
    assert!(refused.contains("vfio:0000:81:10.0"), "{refused}");
}

#[test]
fn an_interface_with_an_ipv6_address_has_the_mtu_of_ipv6() {
    let node = node_with_interfaces();
    let with = |mtu: u32, address| {
        let parameters = json!({"mtu": mtu, "address": address});
        decided_on(&node, vec![moved("fast", "ens1v0", &parameters)])
    };
    with(1280, "2001:db8::10/64").unwrap();
    with(1000, "192.0.2.10/24").unwrap();
    let refused = with(1279, "2001:db8::10/64").unwrap_err();
    let says = "parameter mtu is 1279, but an interface with an IPv6 address such as \
        2001:db8::10/64 needs at least 1280";
    assert!(refused.contains(says), "{refused}");
}

#[test]
fn a_name_and_an_address_are_for_one_interface() {
    let node = node_with_interfaces();
    for (parameters, says) in [
        (json!({"address": "192.0.2.10/24"}), "address sets 192.0.2.10"),
        (json!({"name": "net1"}), "name sets net1"),
    ] {
        let same = ["ens1v0", "ens1v1"].map(|device| moved("any", device, &parameters));
        let refused = decided_on(&node, same.to_vec()).unwrap_err();
        let says = format!("parameter {says} for two devices of the claim");
        assert!(refused.contains(&says), "{refused}");
    }
    let names = ["net1", "net2"].map(|name| json!({"name": name, "mtu": 1400}));
    let [one, two] = &names;
    let both = vec![moved("a", "ens1v0", one), moved("b", "ens1v1", two)];
    assert_eq!(decided_on(&node, both).unwrap().leased.len(), 2);
}

#[test]
fn what_is_said_of_an_interface_is_for_one_that_the_hook_moves() {
    let mut node = node_with_interfaces();
    set_up(&mut node, "netdev:ens1v0", "vlan=100");
    for parameter in [
        json!({"address": "192.0.2.10/24"}),
        json!({"name": "net1"}),
        json!({"mtu": 1400}),
        json!({"vlan": 100}),
        json!({"routes": "198.51.100.0/24"}),
    ] {
        let key = parameter.as_object().unwrap().keys().next().unwrap();
        let refused = decided_on(&node, vec![moved("a", "ens2v0", &parameter)]).unwrap_err();
        let says = format!("parameter {key}: a CNI plugin moves ens2v0");
        assert!(refused.contains(&says), "{refused}");
        let of_nic = |request| allocated(request, "n1/nic", "ens1", &parameter);
        let refused = decided_on(&node, vec![of_nic("nic")]).unwrap_err();
        let says = format!("parameter {key} is for devices of class netdev");
        assert!(refused.contains(&says), "{refused}");
        let function = allocated("vf", "n1/vfio", "0000-81-10-0", &parameter);
        let refused = decided_on(&node, vec![function]).unwrap_err();
        let says = match key.as_str() {
            "vlan" => "parameter vlan: vfio:0000:81:10.0, which".to_owned(),
            _ => says,
        };
        assert!(refused.contains(&says), "{refused}");
        // Said of all devices of a claim, it is for those that have a use for it.
        let both = vec![of_nic("any"), moved("any", "ens1v0", &parameter)];
        assert_eq!(decided_on(&node, both).unwrap().leased.len(), 1);
    }
}

#[test]
fn a_device_of_another_node_or_of_nobody_is_refused() {
    for (pool, device) in
        [("n2/nic", "ens1"), ("n1/nic", "ens2"), ("n1/zf", "ens1"), ("", ""), ("../..", "a\nb")]
    {
        let line = ids(allocated("a", pool, device, &json!({}))).unwrap_err();
        assert!(line.starts_with("request \"a\": this node has no device \""), "{line}");
        assert!(!line.contains('\n'));
    }
}

#[test]
fn a_device_that_is_not_offered_any_more_is_refused_with_the_words_of_discovery() {
    let line = ids(allocated("a", "n1/vfio", "0000-81-10-7", &json!({}))).unwrap_err();
    assert_eq!(
        line,
        "request \"a\": device \"0000-81-10-7\" is not offered: bound to igbvf; bind it to vfio-pci"
    );
}

#[test]
fn a_device_without_a_specification_is_refused_with_the_words_of_discovery() {
    let line = ids(allocated("a", "n1/nic", "ens9", &json!({}))).unwrap_err();
    assert_eq!(line, "request \"a\": onload.dev/nic=ens9: its specification has it no longer");
}

#[test]
fn one_device_that_cannot_be_given_refuses_the_claim() {
    let good = allocated("a", "n1/nic", "ens1", &json!({}));
    let bad = allocated("b", "n1/nic", "ens2", &json!({}));
    assert!(decided(vec![good, bad]).unwrap_err().starts_with("request \"b\": "));
    assert_eq!(decided(Vec::new()), Ok(PrepareDecision::default()));
}
