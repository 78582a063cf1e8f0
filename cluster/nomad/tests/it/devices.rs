//! The devices of captured hosts, and what tasks get of them, as an agent sees both.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fs;

use crate::support::{Agent, AgentHost, X2, parse, sources};
use onload_nomad::wire::device::{ContainerReservation, DeviceGroup, ReserveRequest};
use onload_nomad::wire::structs::Attribute;
use onload_nomad::wire::structs::attribute::Value;
use serde_json::json;

const NIC: &str = "enp101s0f0np0";
const VF: &str = "0000:65:00.3";
const ONLOAD: &str = "amd/onload/enp101s0f0np0";
/// The group of the virtual functions of that port.
const VFIO: &str = "onload.dev/vfio/1924:1b03-0000:65:00.0";

type Groups = BTreeMap<String, DeviceGroup>;

fn ids(group: &DeviceGroup) -> Vec<&str> {
    group.devices.iter().map(|device| device.id.as_str()).collect()
}

fn value<'g>(group: &'g DeviceGroup, attribute: &str) -> &'g Attribute {
    group.attributes.get(attribute).unwrap_or_else(|| panic!("no {attribute}: {group:?}"))
}

fn text(group: &DeviceGroup, attribute: &str) -> String {
    match &value(group, attribute).value {
        Some(Value::StringVal(text)) => text.clone(),
        other => panic!("{attribute}: {other:?}"),
    }
}

fn health(group: &DeviceGroup) -> Option<&str> {
    let device = &group.devices[0];
    (!device.healthy).then_some(device.health_description.as_str())
}

fn nodes(given: &ContainerReservation) -> Vec<(&str, &str)> {
    given.devices.iter().map(|node| (node.task_path.as_str(), node.permissions.as_str())).collect()
}

fn names(groups: &Groups) -> Vec<&str> {
    groups.keys().map(String::as_str).collect()
}

#[tokio::test]
async fn a_host_is_published_interface_by_interface() {
    let host = AgentHost::captured(X2);
    let agent = Agent::configured(&host, &json!({})).await;
    let groups = agent.published().await;
    let wanted = [
        "amd/onload/any",
        "amd/onload/enp101s0f0np0",
        "amd/onload/enp101s0f0v0",
        "amd/onloadzf/any",
        "amd/onloadzf/enp101s0f0np0",
        "amd/onloadzf/enp101s0f0v0",
        "amd/zf/any",
        "amd/zf/enp101s0f0np0",
        "amd/zf/enp101s0f0v0",
        "none/pps/pps0",
        "none/ptp/ptp0",
        "none/ptp/ptp1",
    ];
    let found: Vec<&str> =
        names(&groups).into_iter().filter(|name| !name.contains("/profile/")).collect();
    assert_eq!(found, wanted);
    assert!(names(&groups).contains(&"onload.dev/profile/latency"));
    let group = &groups["amd/onload/enp101s0f0np0"];
    assert_eq!(ids(group).len(), 10);
    assert_eq!(ids(group)[..2], ["onload-enp101s0f0np0-0", "onload-enp101s0f0np0-1"]);
    for device in &group.devices {
        assert!(device.healthy && device.health_description.is_empty());
        assert_eq!(device.hw_locality.as_ref().unwrap().pci_bus_id, "0000:65:00.0");
    }
}

#[tokio::test]
async fn attributes_have_the_units_that_nomad_knows() {
    let host = AgentHost::captured(X2);
    let agent = Agent::configured(&host, &json!({})).await;
    let groups = agent.published().await;
    let group = &groups["amd/onload/enp101s0f0np0"];
    let speed = value(group, "speed");
    assert_eq!((speed.value.clone(), speed.unit.as_str()), (Some(Value::IntVal(3125)), "MB/s"));
    assert_eq!(text(group, "driver"), "sfc");
    assert_eq!(text(group, "datapath"), "ef10");
    assert_eq!(text(group, "link_state"), "up");
    assert_eq!(text(group, "pci_address"), "0000:65:00.0");
    assert_eq!(text(group, "onload_version"), "v9.0.2.140");
    assert_eq!(text(group, "pci_vendor"), "0x1924");
    assert!(matches!(value(group, "numa_node").value, Some(Value::IntVal(_))));
    assert_eq!(
        value(&groups["amd/onload/enp101s0f0v0"], "virtual_function").value,
        Some(Value::BoolVal(true))
    );
    // Nomad ends a plugin for a unit that it does not know, a value that is none, or an empty name.
    for (name, group) in &groups {
        assert!(!name.split('/').any(str::is_empty), "{name}");
        for (key, attribute) in &group.attributes {
            assert!(attribute.value.is_some(), "{name} {key}");
            assert!(["", "MB/s"].contains(&attribute.unit.as_str()), "{name} {key}");
        }
    }
}

/// Where the server takes the value in a job for a number, no text is ever equal to it.
#[tokio::test]
async fn no_text_looks_like_a_number_to_nomad() {
    let mut texts = 0;
    for name in [
        "x2-2port-sriov",
        "debian12-stand-ins",
        "debian13-2numa-onload-rxe-vfio",
        "debian13-4numa-21vfs",
        "iommu-groups",
        "rdma-hcas",
        "vmd-numa-gaps",
    ] {
        let host = AgentHost::captured(name);
        for settings in [json!({}), json!({"runtime": "onload"})] {
            let agent = Agent::configured(&host, &settings).await;
            for (group, published) in agent.published().await {
                for (attribute, value) in published.attributes {
                    if let Some(Value::StringVal(text)) = value.value {
                        let read = parse(&text).value;
                        assert_eq!(
                            read,
                            Some(Value::StringVal(text)),
                            "{name}: {group} {attribute}"
                        );
                        texts += 1;
                    }
                }
            }
        }
    }
    assert!(texts > 100, "{texts}");
}

/// What the tests take for Nomad's rules, against what Nomad's own code printed (`recorded/README.md`).
#[test]
fn texts_are_read_as_nomad_reads_them() {
    let path = sources().join("cluster/nomad/tests/recorded/parsed-1.10.5.txt");
    let recorded = fs::read_to_string(path).unwrap();
    assert_eq!(recorded.lines().count(), 35);
    for line in recorded.lines() {
        let (text, read) = line.trim_start_matches('"').split_once('"').unwrap();
        let (kind, value) = read.trim_start().split_once(' ').unwrap();
        let ours = parse(text);
        let is_same = match ours.value.unwrap() {
            Value::IntVal(number) => kind == "int" && value == format!("{number} [{}]", ours.unit),
            Value::FloatVal(_) => kind == "float",
            Value::BoolVal(is) => kind == "bool" && value == is.to_string(),
            Value::StringVal(text) => kind == "text" && value == text,
        };
        assert!(is_same, "{line}");
    }
}

#[tokio::test]
async fn what_only_one_client_has_does_not_make_a_class_of_its_own() {
    for (host, group, unique) in [
        ("x2-2port-sriov", "none/ptp/ptp0", "unique.clock_name"),
        ("rdma-hcas", "onload.dev/rdma/mlx5_0", "unique.node_guid"),
    ] {
        let host = AgentHost::captured(host);
        let agent = Agent::configured(&host, &json!({})).await;
        let groups = agent.published().await;
        text(&groups[group], unique);
        let plain = unique.strip_prefix("unique.").unwrap();
        assert!(!groups[group].attributes.contains_key(plain));
    }
}

#[tokio::test]
async fn functions_of_which_a_task_may_have_any_are_one_group_and_each_is_in_one() {
    let host = AgentHost::captured("debian13-4numa-21vfs");
    let agent = Agent::configured(&host, &json!({"runtime": "onload"})).await;
    let groups = agent.published().await;
    let vfio = groups.iter().filter(|(name, _)| name.contains("/vfio/"));
    let numbers: Vec<(&str, usize)> =
        vfio.clone().map(|(name, group)| (name.as_str(), group.devices.len())).collect();
    let of_81 = "onload.dev/vfio/8086:10ca-0000:81:00.0";
    assert_eq!(
        numbers,
        [
            ("onload.dev/vfio/8086:10ca-0000:41:00.0", 4),
            (of_81, 7),
            ("onload.dev/vfio/8086:10ca-0000:c1:00.0", 4),
        ]
    );
    let all: Vec<&str> = vfio.flat_map(|(_, group)| ids(group)).collect();
    let once: std::collections::BTreeSet<&&str> = all.iter().collect();
    assert_eq!((all.len(), once.len()), (15, 15));
    let group = &groups[of_81];
    assert_eq!(text(group, "pci_vendor"), "0x8086");
    assert_eq!(text(group, "physical_function"), "0000:81:00.0");
    for own in ["pci_address", "iommu_group", "vf_index"] {
        assert!(!group.attributes.contains_key(own), "{own}");
    }
    let places = group.devices.iter().map(|device| {
        let place = device.hw_locality.as_ref().unwrap();
        format!("vfio-{}-0", place.pci_bus_id)
    });
    assert!(places.eq(ids(group)));
    let given = agent.reserve(&["vfio-0000:81:10.2-0", "vfio-0000:81:11.4-0"]).await.unwrap();
    let ticket = ticket_of(&host, &given).unwrap();
    assert_eq!(ticket["request"], "vfio=0000:81:10.2,0000:81:11.4");
    assert_eq!(ticket["exclusive"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn two_slots_of_any_are_two_interfaces_with_what_they_share_once() {
    let host = AgentHost::captured(X2);
    let agent = Agent::configured(&host, &json!({})).await;
    let groups = agent.published().await;
    let group = &groups["amd/onload/any"];
    assert_eq!(group.devices.len(), 20);
    assert_eq!(text(group, "pci_vendor"), "0x1924");
    assert!(!group.attributes.contains_key("interface"));
    let both = ["ONLOAD_CTK_NIC_ENP101S0F0NP0", "ONLOAD_CTK_NIC_ENP101S0F0V0"];
    for slots in [
        &["onload-any:enp101s0f0np0-0", "onload-any:enp101s0f0v0-0"][..],
        &["onload-any:enp101s0f0np0-0", "onload-any:enp101s0f0np0-7"],
        &["onload-any:enp101s0f0v0-1", "onload-any:enp101s0f0v0-2", "onload-any:enp101s0f0v0-3"],
    ] {
        let given = agent.reserve(slots).await.unwrap();
        assert!(both.iter().all(|name| given.envs.contains_key(*name)), "{given:?}");
        let mut paths: Vec<&String> = given.mounts.iter().map(|mount| &mount.task_path).collect();
        paths.dedup();
        assert_eq!(paths.len(), given.mounts.len());
    }
    let one = Agent::configured(&host, &json!({"num_nic": 1})).await;
    assert!(!one.published().await.contains_key("amd/onload/any"), "it would be a second slot");
}

#[tokio::test]
async fn with_our_runtime_reserve_sets_nothing_that_a_task_may_set_itself() {
    let host = AgentHost::captured(X2);
    let agent = Agent::configured(&host, &json!({"runtime": "onload"})).await;
    for (id, request) in [
        ("onload-enp101s0f0np0-0", "nic=enp101s0f0np0"),
        ("onloadzf-enp101s0f0np0-0", "nic=enp101s0f0np0;zf=enp101s0f0np0"),
        ("profile-latency-0", "profile=latency"),
        ("ptp-ptp0-0", "ptp=ptp0"),
    ] {
        let given = agent.reserve(&[id]).await.unwrap();
        assert_eq!(given.envs.len(), 1, "{given:?}");
        assert!(given.mounts.is_empty() && given.devices.is_empty(), "{given:?}");
        let ticket = ticket_of(&host, &given).unwrap();
        assert_eq!((&ticket["request"], &ticket["exclusive"]), (&json!(request), &json!([])));
    }
    // What the plugin's own paths make stands in no specification, so the runtime cannot give it.
    let own = json!({"runtime": "onload", "task_onload_lib_path": "/opt/onload"});
    let agent = Agent::configured(&host, &own).await;
    let given = agent.reserve(&["onload-enp101s0f0np0-0"]).await.unwrap();
    assert_eq!(given.envs["LD_PRELOAD"], "/opt/onload/libonload.so");
}

#[tokio::test]
async fn no_two_devices_have_one_id() {
    let host = AgentHost::captured(X2);
    let agent = Agent::configured(&host, &json!({"runtime": "onload"})).await;
    let groups = agent.published().await;
    let all: Vec<&str> = groups.values().flat_map(ids).collect();
    let once: std::collections::BTreeSet<&&str> = all.iter().collect();
    assert_eq!(all.len(), once.len());
}

#[tokio::test]
async fn each_type_gives_what_it_is() {
    let host = AgentHost::captured(X2);
    let agent = Agent::configured(&host, &json!({})).await;
    let onload = agent.reserve(&["onload-enp101s0f0np0-0"]).await.unwrap();
    assert_eq!(nodes(&onload), [("/dev/onload", "rw"), ("/dev/onload_epoll", "rw")]);
    assert_eq!(onload.envs["LD_PRELOAD"], "libonload.so");
    assert_eq!(onload.envs["ONLOAD_CTK_NIC_ENP101S0F0NP0"], NIC, "a task learns which it got");
    let zf = agent.reserve(&["zf-enp101s0f0np0-9"]).await.unwrap();
    assert_eq!(nodes(&zf), [("/dev/onload", "rw"), ("/dev/sfc_char", "rw")]);
    assert!(!zf.envs.contains_key("LD_PRELOAD"));
    let both = agent.reserve(&["onloadzf-enp101s0f0np0-3"]).await.unwrap();
    assert_eq!(
        nodes(&both),
        [("/dev/onload", "rw"), ("/dev/onload_epoll", "rw"), ("/dev/sfc_char", "rw")]
    );
    assert_eq!(both.envs["LD_PRELOAD"], "libonload.so");
    let paths = |given: &ContainerReservation| -> Vec<String> {
        given.mounts.iter().map(|mount| mount.task_path.clone()).collect()
    };
    // Docker refuses a second mount at one place.
    let mut each = paths(&both);
    each.dedup();
    assert_eq!(each.len(), both.mounts.len());
    for path in paths(&onload).iter().chain(&paths(&zf)) {
        assert!(each.contains(path), "{path}");
    }
    assert!(both.mounts.iter().all(|mount| mount.read_only));
    let clock = agent.reserve(&["ptp-ptp1-0"]).await.unwrap();
    assert_eq!(nodes(&clock), [("/dev/ptp1", "r")]);
    assert_eq!(clock.envs["ONLOAD_CTK_PTP_PTP1"], "ptp1");
    let profile = agent.reserve(&["profile-latency-0"]).await.unwrap();
    assert_eq!(profile.envs["EF_POLL_USEC"], "100000");
    assert!(profile.mounts.is_empty() && profile.devices.is_empty());
    assert_eq!(agent.reserve(&[]).await.unwrap(), ContainerReservation::default());
}

#[tokio::test]
async fn several_slots_of_a_device_are_the_device_once() {
    let host = AgentHost::captured(X2);
    let agent = Agent::configured(&host, &json!({})).await;
    let one = agent.reserve(&["onload-enp101s0f0np0-0"]).await.unwrap();
    let two = agent.reserve(&["onload-enp101s0f0np0-0", "onload-enp101s0f0np0-7"]).await.unwrap();
    assert_eq!(one, two);
}

#[tokio::test]
async fn a_device_that_is_gone_is_refused_by_name() {
    let host = AgentHost::captured(X2);
    let mut agent = Agent::configured(&host, &json!({"num_nic": 1})).await;
    for (id, error_text) in [
        (
            "onload-enp101s0f0np0-1",
            "reserving onload-enp101s0f0np0-1: this host no longer has this device; let Nomad \
             place the task again",
        ),
        (
            "eth0-0",
            "reserving eth0-0: it is not a device of this plugin; let Nomad place the task again",
        ),
    ] {
        let status = agent.reserve(&["onload-enp101s0f0np0-0", id]).await.unwrap_err();
        assert_eq!(status.message(), error_text);
    }
    let vfio = agent.reserve(&["vfio-0000:65:00.3-0"]).await.unwrap_err();
    assert!(vfio.message().contains("only one task may have it at a time, by a lease"), "{vfio}");
    assert_eq!(agent.logged(&["reserving eth0-0"])["@level"], "error");
}

#[tokio::test]
async fn a_device_without_a_specification_is_unhealthy_with_the_remedy() {
    let host = AgentHost::captured(X2);
    let agent = Agent::configured(&host, &json!({})).await;
    let mut devices = agent.fingerprint().await;
    assert_eq!(health(&devices.next().await["amd/zf/enp101s0f0np0"]), None);
    host.remove_from_spec("zf", NIC);
    let is_told = |groups: &Groups| health(&groups["amd/zf/enp101s0f0np0"]).is_some();
    let groups = devices.until(is_told).await;
    let error_text = health(&groups["amd/zf/enp101s0f0np0"]).unwrap();
    assert!(error_text.contains("run \"onload-ctk cdi generate\""), "{error_text}");
    assert_eq!(health(&groups["amd/onloadzf/enp101s0f0np0"]), Some(error_text), "it needs both");
    assert_eq!(health(&groups["amd/onload/enp101s0f0np0"]), None);
    let status = agent.reserve(&["onloadzf-enp101s0f0np0-0"]).await.unwrap_err();
    assert_eq!(status.message(), format!("reserving onloadzf-enp101s0f0np0-0: {error_text}"));
}

#[tokio::test]
async fn a_link_that_goes_down_is_told_with_its_remedy() {
    let host = AgentHost::captured(X2);
    let agent = Agent::configured(&host, &json!({"fingerprint_period": "1s"})).await;
    let mut devices = agent.fingerprint().await;
    let before = devices.next().await;
    assert_eq!(health(&before["amd/onload/enp101s0f0np0"]), None);
    let net = host.root().join("sys/class/net").join(NIC);
    fs::write(fs::canonicalize(net).unwrap().join("operstate"), "down\n").unwrap();
    let groups = devices.next().await;
    let message = health(&groups["amd/onload/enp101s0f0np0"]).unwrap();
    assert!(message.starts_with("its link is down (operstate down); "), "{message}");
    assert_eq!(health(&groups["amd/onload/enp101s0f0v0"]), None);
}

#[tokio::test]
async fn nothing_is_sent_where_nothing_changes() {
    let host = AgentHost::captured(X2);
    let agent = Agent::configured(&host, &json!({"fingerprint_period": "1s"})).await;
    let mut devices = agent.fingerprint().await;
    let before = devices.next().await;
    // A lease does not change what is published, but is looked at.
    host.file("run/onload-ctk/@leases/.lock", "");
    host.change_spec("zf", |spec| spec["containerEdits"]["env"] = json!(["A=1"]));
    host.remove_from_spec("pps", "pps0");
    let groups = devices.next().await;
    let changed: Vec<&str> = groups
        .keys()
        .filter(|name| before.get(*name) != groups.get(*name))
        .map(String::as_str)
        .collect();
    assert_eq!(changed, ["none/pps/pps0"], "the first thing that is sent is what differs");
}

#[tokio::test]
async fn what_nomad_cannot_carry_is_published_only_by_the_operators_word() {
    let host = AgentHost::captured(X2);
    let mut without = Agent::configured(&host, &json!({})).await;
    let groups = without.published().await;
    assert!(!groups.keys().any(|name| name.contains("/vfio/") || name.contains("/hugepages/")));
    let error_text = without.logged(&["hugepages 2Mi is not published"]);
    assert!(
        error_text["@message"].as_str().unwrap().contains("set runtime = \"onload\""),
        "{error_text}"
    );
    let with = Agent::configured(&host, &json!({"runtime": "onload"})).await;
    let groups = with.published().await;
    assert_eq!(ids(&groups[VFIO]), ["vfio-0000:65:00.3-0"]);
    assert_eq!(groups["onload.dev/hugepages/2Mi"].devices.len(), 10);
}

#[tokio::test]
async fn a_device_of_one_task_comes_by_a_ticket() {
    let host = AgentHost::captured(X2);
    host.lease_in_spec("vfio");
    let agent = Agent::configured(&host, &json!({"runtime": "onload"})).await;
    let first = agent.reserve(&["vfio-0000:65:00.3-0"]).await.unwrap();
    assert!(first.devices.is_empty() && first.mounts.is_empty(), "the runtime gives all of it");
    let digits = ticket_id(&first)[..8].to_ascii_uppercase();
    let names: Vec<&str> = first.envs.keys().map(String::as_str).collect();
    assert_eq!(names, [format!("ONLOAD_CTK_REQUEST_{digits}")]);
    let ticket = ticket_of(&host, &first).expect("a ticket");
    assert_eq!(ticket["request"], format!("vfio={VF}"));
    assert_eq!(ticket["exclusive"], json!([format!("vfio:{VF}")]));
    assert_eq!(ticket["engine"], "nomad");
    assert_eq!(ticket["description"], "vfio-0000:65:00.3-0");
    let second = agent.reserve(&["vfio-0000:65:00.3-0"]).await.unwrap();
    assert_ne!(first.envs, second.envs);
    assert_eq!(ticket_of(&host, &first), None, "an earlier ticket is good no longer");
    assert!(ticket_of(&host, &second).is_some());
    let huge = agent.reserve(&["hugepages-2Mi-0"]).await.unwrap();
    assert_eq!(ticket_of(&host, &huge).unwrap()["request"], "hugepages=2Mi");
}

/// The ticket that a task is given.
fn ticket_id(given: &ContainerReservation) -> &str {
    let mut tickets = given.envs.iter();
    let is_ticket = |(name, _): &(&String, &String)| name.starts_with("ONLOAD_CTK_REQUEST_");
    let (_, value) = tickets.find(is_ticket).unwrap();
    value.strip_prefix("ticket:").unwrap()
}

fn ticket_of(host: &AgentHost, given: &ContainerReservation) -> Option<serde_json::Value> {
    let id = ticket_id(given);
    let path = host.root().join("run/onload-ctk/@requests").join(id);
    Some(serde_json::from_str(&fs::read_to_string(path).ok()?).unwrap())
}

/// Nomad merges the answers of all device blocks of a task, and of one name one value stays.
#[tokio::test]
async fn the_tickets_of_several_blocks_of_one_task_stay_together() {
    let host = AgentHost::captured(X2);
    let agent = Agent::configured(&host, &json!({"runtime": "onload"})).await;
    let mut merged = BTreeMap::new();
    for id in
        ["vfio-0000:65:00.3-0", "hugepages-2Mi-0", "hugepages-2Mi-1", "onload-enp101s0f0np0-0"]
    {
        merged.extend(agent.reserve(&[id]).await.unwrap().envs);
    }
    let mut requests: Vec<String> = merged
        .iter()
        .filter(|(_, value)| value.starts_with("ticket:"))
        .map(|(name, value)| {
            assert!(name.starts_with("ONLOAD_CTK_REQUEST_"), "{name}");
            let id = value.strip_prefix("ticket:").unwrap();
            let path = host.root().join("run/onload-ctk/@requests").join(id);
            let text = fs::read_to_string(path).unwrap();
            let ticket: serde_json::Value = serde_json::from_str(&text).unwrap();
            ticket["request"].as_str().unwrap().to_owned()
        })
        .collect();
    requests.sort();
    assert_eq!(
        requests,
        ["hugepages=2Mi", "hugepages=2Mi", &format!("nic={NIC}"), &format!("vfio={VF}")]
    );
}

#[tokio::test]
async fn what_others_could_have_written_is_unhealthy_as_the_runtime_refuses_it() {
    let host = AgentHost::captured(X2);
    let cdi = host.root().join("etc/cdi");
    fs::create_dir_all(cdi.parent().unwrap()).unwrap();
    fs::rename(host.spec_dir(), &cdi).unwrap();
    for path in [host.root(), &host.path("etc"), &cdi] {
        mode(path, 0o755);
    }
    for entry in fs::read_dir(&cdi).unwrap() {
        mode(&entry.unwrap().path(), 0o644);
    }
    let settings = json!({"runtime": "onload"});
    let agent = Agent::of_the_engines(&host, &settings).await;
    assert_eq!(health(&agent.published().await[VFIO]), None);
    mode(&cdi, 0o1777);
    let status = agent.reserve(&["vfio-0000:65:00.3-0"]).await.unwrap_err();
    assert!(status.message().contains("has mode 1777"), "{status}");
    let agent = Agent::of_the_engines(&host, &settings).await;
    let groups = agent.published().await;
    assert_eq!(
        health(&groups[VFIO]),
        Some("\"/etc/cdi\" has mode 1777, so others can change it; `chmod go-w` it")
    );
    assert!(groups.values().all(|group| health(group).is_some()));
}

fn mode(path: &std::path::Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn what_a_task_can_bear_to_be_without_is_said_to_it() {
    let host = AgentHost::captured("debian12-stand-ins");
    host.change_spec("rdma", |spec| {
        let args = ["onload-hook", "createRuntime", "--memlock", "unlimited"];
        spec["containerEdits"]["hooks"] = json!([
            {"hookName": "createRuntime", "path": "/usr/bin/onload-hook", "args": args}
        ]);
    });
    let without = Agent::configured(&host, &json!({})).await;
    let groups = without.published().await;
    assert_eq!(groups["onload.dev/rdma/rxe0"].devices.len(), 10);
    let given = without.reserve(&["rdma-rxe0-0"]).await.unwrap();
    assert_eq!(given.envs["ONLOAD_CTK_NOT_GIVEN"], "memlock");
    assert!(nodes(&given).contains(&("/dev/infiniband/rdma_cm", "rw")), "{given:?}");
    let with = Agent::configured(&host, &json!({"runtime": "onload", "num_rdma": 3})).await;
    assert_eq!(with.published().await["onload.dev/rdma/rxe0"].devices.len(), 3);
    let given = with.reserve(&["rdma-rxe0-0"]).await.unwrap();
    let ticket = ticket_of(&host, &given).unwrap();
    assert_eq!((&ticket["request"], &ticket["exclusive"]), (&json!("rdma=rxe0"), &json!([])));
    assert!(!given.envs.contains_key("ONLOAD_CTK_NOT_GIVEN"));
}

#[tokio::test]
async fn a_device_that_another_container_holds_is_unhealthy_with_its_holder_and_a_task_of_ours_is_not_another()
 {
    let host = AgentHost::captured(X2);
    let agent = Agent::configured(&host, &json!({"runtime": "onload"})).await;
    let mut devices = agent.fingerprint().await;
    let before = devices.next().await;
    assert_eq!(health(&before[VFIO]), None);
    let given = agent.reserve(&["vfio-0000:65:00.3-0"]).await.unwrap();
    lease_elsewhere(&host);
    let held = devices.until(|groups| health(&groups[VFIO]).is_some()).await;
    let error_text = health(&held[VFIO]).unwrap();
    assert!(error_text.contains("in use by"), "{error_text}");
    // A job that waits is looked at again for an attribute alone.
    assert_ne!(held[VFIO].attributes, before[VFIO].attributes);
    let status = agent.reserve(&["vfio-0000:65:00.3-0"]).await.unwrap_err();
    assert!(status.message().contains("in use by"), "{status}");
    // The container that was started with the ticket holds it: that is a task of ours.
    lease_of_task(&host, &given);
    let ours = devices.until(|groups| health(&groups[VFIO]).is_none()).await;
    assert_eq!(ours, before, "nothing changes for a task of Nomad's");
}

/// Of what a task has, the agent's first Reserve is the last word to a batch job (facts of 1.10.5): the task before may
/// be ending.
#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_waits_for_a_task_of_this_client_and_holds_nobody_up() {
    let host = AgentHost::captured(X2);
    let mut agent = Agent::configured(&host, &json!({"runtime": "onload"})).await;
    held_by_own_task(&host, &agent).await;
    let mut client = agent.devices();
    let request = ReserveRequest { device_ids: vec!["vfio-0000:65:00.3-0".to_owned()] };
    let successor = tokio::spawn(async move { client.reserve(request).await });
    let line = agent.logged(&["waiting for a task of this client"]);
    assert!(line["@message"].as_str().unwrap().contains("redis-1"), "{line}");
    // Others are answered, and what changes is published.
    agent.reserve(&["ptp-ptp0-0"]).await.unwrap();
    let mut devices = agent.fingerprint().await;
    devices.next().await;
    host.remove_from_spec("pps", "pps0");
    devices.next().await;
    assert!(!successor.is_finished());
    fs::remove_file(host.root().join(LEASE)).unwrap();
    let answer = successor.await.unwrap().unwrap().into_inner();
    let given = answer.container_res.unwrap();
    assert!(ticket_of(&host, &given).is_some());
}

#[tokio::test]
async fn a_reservation_waits_no_longer_than_is_set() {
    let host = AgentHost::captured(X2);
    let settings = json!({"runtime": "onload", "reserve_wait": "600ms"});
    let agent = Agent::configured(&host, &settings).await;
    held_by_own_task(&host, &agent).await;
    let begin = std::time::Instant::now();
    // The runtime refuses the task where the one before still has the device: that is no error here.
    agent.reserve(&["vfio-0000:65:00.3-0"]).await.unwrap();
    assert!(begin.elapsed().as_millis() >= 600);
    let host = AgentHost::captured(X2);
    let settings = json!({"runtime": "onload", "reserve_wait": "0s"});
    let mut agent = Agent::configured(&host, &settings).await;
    held_by_own_task(&host, &agent).await;
    agent.reserve(&["vfio-0000:65:00.3-0"]).await.unwrap();
    agent.signal(rustix::process::Signal::TERM);
    assert!(!agent.ended().2.contains("waiting for a task"));
}

const LEASE: &str = "run/onload-ctk/@leases/vfio=0000:65:00.3#0";

/// What cannot be understood counts as held: a lease of a newer version.
fn lease_elsewhere(host: &AgentHost) {
    let leases = host.root().join("run/onload-ctk/@leases");
    fs::create_dir_all(&leases).unwrap();
    private(&leases);
    host.replace(LEASE, "{\"version\":99}\n", 0o644);
}

/// A task has the function, and the plugin knows it.
async fn held_by_own_task(host: &AgentHost, agent: &Agent) {
    let mut devices = agent.fingerprint().await;
    devices.next().await;
    let given = agent.reserve(&["vfio-0000:65:00.3-0"]).await.unwrap();
    lease_elsewhere(host);
    devices.until(|groups| health(&groups[VFIO]).is_some()).await;
    lease_of_task(host, &given);
    devices.until(|groups| health(&groups[VFIO]).is_none()).await;
}

#[tokio::test]
async fn an_interface_that_one_container_has_at_a_time_needs_our_runtime_too() {
    let host = AgentHost::captured(X2);
    host.config("[leases]\nshare = { nic = 1 }\n");
    let mut without = Agent::configured(&host, &json!({})).await;
    let groups = without.published().await;
    let found: Vec<&str> =
        names(&groups).into_iter().filter(|name| name.ends_with("np0")).collect();
    assert_eq!(found, ["amd/zf/enp101s0f0np0"]);
    without.logged(&["onloadzf enp101s0f0np0 is not published"]);
    let with = Agent::configured(&host, &json!({"runtime": "onload"})).await;
    assert_eq!(ids(&with.published().await["amd/onload/enp101s0f0np0"]).len(), 1);
    let given = with.reserve(&["onload-enp101s0f0np0-0"]).await.unwrap();
    let ticket = ticket_of(&host, &given).unwrap();
    assert_eq!(ticket["request"], "nic=enp101s0f0np0");
    assert_eq!(ticket["exclusive"], json!(["nic:enp101s0f0np0"]));
}

#[tokio::test]
async fn what_a_pool_shares_has_as_many_slots() {
    let host = AgentHost::captured(X2);
    host.config("[leases]\nshare = { ptp = 3 }\n");
    let agent = Agent::configured(&host, &json!({"num_ptp": 7})).await;
    let groups = agent.published().await;
    assert_eq!(ids(&groups["none/ptp/ptp0"]).len(), 3);
}

/// Their leases name no ticket, since several tasks may have the device.
#[tokio::test]
async fn tasks_that_share_a_counted_device_are_no_others_and_a_reservation_waits_where_they_have_all_of_it()
 {
    let host = AgentHost::captured(X2);
    host.config("[leases]\nshare = { nic = 2 }\n");
    let settings = json!({"runtime": "onload", "reserve_wait": "3s"});
    let mut agent = Agent::configured(&host, &settings).await;
    let mut devices = agent.fingerprint().await;
    let before = devices.next().await;
    assert_eq!(ids(&before[ONLOAD]).len(), 2);
    for slot in 0..2 {
        let id = format!("onload-{NIC}-{slot}");
        let given = agent.reserve(&[&id]).await.unwrap();
        started(&host, &given, &format!("redis-{slot}"));
        shared_lease(&host, slot, "elsewhere");
    }
    let held = devices.until(|groups| health(&groups[ONLOAD]).is_some()).await;
    let message = health(&held[ONLOAD]).unwrap();
    assert!(message.contains("elsewhere"), "{message}");
    for slot in 0..2 {
        shared_lease(&host, slot, &format!("redis-{slot}"));
    }
    let ours = devices.until(|groups| health(&groups[ONLOAD]).is_none()).await;
    assert_eq!(ours[ONLOAD], before[ONLOAD]);
    let first = format!("onload-{NIC}-0");
    let begin = std::time::Instant::now();
    agent.reserve(&[&first]).await.unwrap();
    assert!(begin.elapsed().as_secs() >= 3);
    agent.logged(&["waiting for a task of this client"]);
    fs::remove_file(host.root().join(shared_slot(1))).unwrap();
    let begin = std::time::Instant::now();
    agent.reserve(&[&first]).await.unwrap();
    assert!(begin.elapsed().as_secs() < 3, "one has ended");
    shared_lease(&host, 1, "elsewhere");
    let partly = devices.until(|groups| groups[ONLOAD] != before[ONLOAD]).await;
    let [first, last] = &*partly[ONLOAD].devices else {
        panic!("{partly:?}");
    };
    assert!(first.healthy && !last.healthy);
    assert!(last.health_description.contains("elsewhere"), "{last:?}");
    let unhealthy = &value(&partly[ONLOAD], "unhealthy").value;
    assert_eq!(unhealthy, &Some(Value::IntVal(1)));
}

fn shared_slot(slot: u32) -> String {
    format!("run/onload-ctk/@leases/nic={NIC}#{slot}")
}

/// Writes down that a container was started with the ticket.
fn started(host: &AgentHost, given: &ContainerReservation, container: &str) {
    let mut ticket = ticket_of(host, given).unwrap();
    let maker = json!({"pid": 1, "startTime": 1, "pidNamespace": 1});
    ticket["user"] = json!({
        "container": container, "bundle": "/bundles/redis", "maker": maker, "state": [],
    });
    let path = format!("run/onload-ctk/@requests/{}", ticket_id(given));
    host.replace(&path, &format!("{ticket}\n"), 0o600);
}

/// The lease that a container has of a slot of the interface.
fn shared_lease(host: &AgentHost, slot: u32, container: &str) {
    let leases = host.root().join("run/onload-ctk/@leases");
    fs::create_dir_all(&leases).unwrap();
    private(&leases);
    let lease = json!({
        "version": 1, "boot": "a-boot", "container": container, "bundle": "/bundles/redis",
        "holder": {"init": {"process": {"pid": 1, "startTime": 1, "pidNamespace": 1}, "cgroup": null}},
        "entryPoint": "createRuntime", "since": 1_700_000_000,
    });
    host.replace(&shared_slot(slot), &format!("{lease}\n"), 0o600);
}

fn private(dir: &std::path::Path) {
    mode(dir, 0o700);
}

/// Writes what the runtime writes: the lease of a container that was started with a ticket. Its first process is
/// in a namespace that nobody can look into.
fn lease_of_task(host: &AgentHost, given: &ContainerReservation) {
    let ticket = ticket_id(given);
    let process = json!({"pid": 1, "startTime": 1, "pidNamespace": 1});
    let lease = json!({
        "version": 1, "boot": "a-boot", "container": "redis-1", "bundle": "/bundles/redis",
        "holder": {"init": {"process": process, "cgroup": null}},
        "entryPoint": "createRuntime", "since": 1_700_000_000, "ticket": ticket,
    });
    host.replace(LEASE, &format!("{lease}\n"), 0o600);
}

#[tokio::test]
async fn statistics_have_the_counters_of_the_interface_and_onloads_stacks() {
    let host = AgentHost::captured(X2);
    let counters = format!("sys/class/net/{NIC}");
    let real = fs::canonicalize(host.root().join(counters)).unwrap();
    fs::create_dir_all(real.join("statistics")).unwrap();
    for (name, number) in [("rx_bytes", 1000), ("tx_bytes", 24), ("rx_dropped", 7)] {
        fs::write(real.join("statistics").join(name), format!("{number}\n")).unwrap();
    }
    host.file("proc/driver/onload/stacks", "0: 17 0 1\n3: 21 0 1\n");
    let agent = Agent::configured(&host, &json!({"num_nic": 2})).await;
    agent.published().await;
    let stats = agent.stats().await;
    let group = stats.iter().find(|group| group.name == NIC && group.r#type == "onload").unwrap();
    assert_eq!(group.vendor, "amd");
    let ids: Vec<&str> = group.instance_stats.keys().map(String::as_str).collect();
    assert_eq!(ids, ["onload-enp101s0f0np0-0", "onload-enp101s0f0np0-1"]);
    let of_slot = &group.instance_stats[ids[0]];
    assert_eq!(of_slot.summary.as_ref().unwrap().int_numerator_val, Some(1024));
    let stats = of_slot.stats.as_ref().unwrap();
    assert_eq!(stats.attributes["onload_stacks"].int_numerator_val, Some(2));
    assert_eq!(stats.nested["interface"].attributes["rx_dropped"].int_numerator_val, Some(7));
    assert!(of_slot.timestamp.unwrap().seconds > 0);
}
