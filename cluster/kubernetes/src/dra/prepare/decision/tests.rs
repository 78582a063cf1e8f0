use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Instant;

use onload_cdi::Hook;
use onload_core::config::Config;
use onload_host::discover::exclusion::Exclusion;
use onload_host::offers::{Attribute, Sharing};
use onload_test_tree::case::{self, Case};
use serde_json::{Value, json};

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
    node.config = Config::parse(CONFIG).unwrap();
    node
}

fn allocated(request: &str, pool: &str, device: &str, parameters: &Value) -> AllocatedDevice {
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

fn decided_on(
    snapshot: &KubernetesSnapshot,
    devices: Vec<AllocatedDevice>,
) -> Result<PrepareDecision, String> {
    let node = "n1".parse().unwrap();
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
        snapshot,
        specs: &specs.map(str::to_owned).into_iter().collect(),
    };
    let decided = decide(devices, &UID.parse().unwrap(), around);
    decided.map_err(|error| format!("{error:#}"))
}

fn of_request(request: &str) -> String {
    format!("onload.dev/claim={UID}.request.{request}")
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

/// Of the node of the cases: a plugin moves the members of the pool `sriov`.
const CONFIG: &str = "[pools.sriov]
class = \"netdev\"
move = \"cni\"
[kubernetes]
addresses = [\"192.0.2.0/24\", \"2001:db8::/64\"]
routes = [\"198.51.100.0/24\"]
";

#[test]
fn cases_of_decisions_print_what_their_files_say() {
    case::check(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/decision"), |case: &Case| {
        let mut node = node_with_interfaces();
        for (_, config) in case.files() {
            node.config = Config::parse(&config).unwrap();
        }
        Some(move |command: &str| run(&mut node, command))
    });
}

/// Runs a command of a case. `decide DEVICE…` decides for allocated devices: arrays of request, pool, device and parameters of the
/// claim, and an object with `class` for parameters of the class, `admin`, `chosen` and `share`. `vf DEVICE TABLE` sets a
/// virtual function's table, `unhook CLASS` removes the hook that leases a class, and `found NAME` makes a device healthy.
fn run(node: &mut KubernetesSnapshot, command: &str) -> String {
    let (word, rest) = command.split_once(' ').unwrap();
    match word {
        "vf" => {
            let (device, table) = rest.split_once(' ').unwrap();
            node.vf.insert(device.parse().unwrap(), table.parse().unwrap());
        }
        "unhook" => drop(node.lease_hooks.remove(&rest.parse().unwrap())),
        "found" => {
            let mut devices = node.devices.iter_mut();
            devices.find(|device| device.name.as_str() == rest).unwrap().health = Health::Healthy;
        }
        "#" => {}
        "daemon-writes" => node.written_by = SpecAuthor::Daemon,
        _ => {
            let devices = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
            let devices = devices
                .map(Result::unwrap)
                .filter(|words| *words != json!([]))
                .map(|words| device_from(&words))
                .collect();
            return match decided_on(node, devices) {
                Ok(decision) => describe(&decision),
                Err(line) => {
                    assert!(!line.contains('\n'), "{line}");
                    format!("error: {line}\n")
                }
            };
        }
    }
    String::new()
}

fn device_from(words: &Value) -> AllocatedDevice {
    let text = |at: usize| words[at].as_str().unwrap();
    let more = &words[4];
    let mut device = allocated(text(0), text(1), text(2), words.get(3).unwrap_or(&json!({})));
    if more["class"].is_object() {
        let chosen = Parameters::parse(&more["class"], Author::Class).unwrap();
        device.parameters.override_with(&chosen, device.request != "any");
    }
    device.is_admin = more["admin"] == true;
    device.share_id = more["share"].as_str().map(str::to_owned);
    device.chosen = more["chosen"].as_str().unwrap_or(&device.request).to_owned();
    device
}

/// A decision: CDI devices, leases with the claim's settings, and what metadata says beyond the request's name.
fn describe(decision: &PrepareDecision) -> String {
    let mut out = String::new();
    for device in &decision.devices {
        let ids = device.cdi_device_ids.join(" ").replace(UID, "UID");
        let share =
            device.share_id.as_ref().map(|share| format!(" share {share}")).unwrap_or_default();
        let names = device.request_names.join(" ");
        writeln!(out, "{names}: {} {}{share}: {ids}", device.pool_name, device.device_name)
            .unwrap();
    }
    for leased in &decision.leased {
        let mut words =
            vec![format!("lease {}: {} max {}", leased.request, leased.device, leased.max_holders)];
        if let Some(interface) = &leased.interface {
            words.extend(interface.netdev.iter().map(ToString::to_string));
            words.extend(interface.rename.iter().map(|name| format!("name {}", name.value)));
            words.extend(interface.mtu.iter().map(|mtu| format!("mtu {}", mtu.value)));
            words.extend(interface.address.iter().map(|address| address.value.to_string()));
            words.extend(interface.route.iter().map(|route| route.value.to_string()));
        }
        words.extend(leased.vf.iter().map(ToString::to_string));
        writeln!(out, "{}", words.join(", ")).unwrap();
    }
    for described in &decision.metadata {
        if let Some(slot) =
            described.attributes.get("slot").and_then(|slot| slot.int).filter(|slot| *slot > 0)
        {
            writeln!(out, "metadata {} {}: slot {slot}", described.request, described.chosen)
                .unwrap();
        }
        if let Some(network) = &described.prepared.network {
            writeln!(out, "metadata {}: {}", described.request, json!(network)).unwrap();
        }
    }
    if out.is_empty() { "nothing\n".to_owned() } else { out }
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
        snapshot: &snapshot,
        specs: &["onload.dev/vfio=0000:81:00.0".to_owned()].into_iter().collect(),
    };
    let pf = allocated("pf", "n1/vfio", "0000-81-00-0", &json!({}));
    let devices = vec![pf];
    let of_pf = decide(devices, &UID.parse().unwrap(), around).unwrap();
    assert_eq!(names(&of_pf), ["vfio:0000:81:10.0", "vfio:0000:81:10.2"]);
}
