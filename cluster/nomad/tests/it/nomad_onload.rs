//! Configurations and jobs for nomad-onload 0.5.0: what it would have given, ours gives too, or docs/migrate.md
//! says what is different. What it gives is in the tables here, written down from its README and its behaviour.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::support::{Agent, AgentHost, X2, sources};
use onload_nomad::settings::table::TABLE;
use onload_nomad::wire::device::{ContainerReservation, DeviceGroup};
use onload_nomad::wire::structs::attribute::Value;
use serde_json::{Value as Json, json};

const NIC: &str = "enp101s0f0np0";
const LIB: &str = "/usr/lib/x86_64-linux-gnu";
const README: [&str; 23] = [
    "set_preload",
    "mount_onload",
    "probe_nic",
    "probe_xdp",
    "probe_pps",
    "probe_ptp",
    "ignored_interfaces",
    "num_nic",
    "num_pps",
    "num_ptp",
    "task_device_path",
    "host_device_path",
    "task_onload_lib_path",
    "host_onload_lib_path",
    "task_onload_bin_path",
    "host_onload_bin_path",
    "task_profile_dir_path",
    "host_profile_dir_path",
    "task_zf_bin_path",
    "host_zf_bin_path",
    "task_zf_lib_path",
    "host_zf_lib_path",
    "fingerprint_period",
];

/// The paths in a task of a device type, with its default configuration.
fn paths_of_nomad_onload(kind: &str) -> BTreeSet<String> {
    let mut paths: Vec<String> = match kind {
        "zf" => vec!["/dev/sfc_char".into()],
        _ => ["onload", "onload_epoll", "sfc_char"].map(|node| format!("/dev/{node}")).to_vec(),
    };
    let libraries = ["libonload.so", "libonload_ext.so", "libpcap.so.0.8", "libdbus-1.so.3"];
    paths.extend(libraries.map(|name| format!("{LIB}/{name}")));
    let more = [
        "/usr/bin/onload",
        "/usr/bin/onload_stackdump",
        "/sbin/lsmod",
        "/usr/libexec/onload/profiles",
    ];
    paths.extend(more.map(str::to_owned));
    if kind != "onload" {
        let more =
            [&format!("{LIB}/libonload_zf.so"), "/usr/bin/zf_stackdump", "/usr/bin/zf_debug"];
        paths.extend(more.map(str::to_owned));
    }
    paths.into_iter().collect()
}

/// What ours does not give of that, by type, and the words of docs/migrate.md about it.
const DIFFERENCES: [(&str, &str, &str); 9] = [
    ("onload", "/dev/sfc_char", "Only `zf` and `onloadzf` provide `/dev/sfc_char`"),
    ("", "/usr/lib/x86_64-linux-gnu/libpcap.so.0.8", "`tool-libraries = true`"),
    ("", "/usr/lib/x86_64-linux-gnu/libdbus-1.so.3", "`tool-libraries = true`"),
    ("", "/usr/bin/onload_stackdump", "`tool-libraries = true`"),
    ("", "/sbin/lsmod", "`/sbin/lsmod`"),
    ("zf", "/usr/lib/x86_64-linux-gnu/libonload.so", "`zf` provides TCPDirect without"),
    ("zf", "/usr/lib/x86_64-linux-gnu/libonload_ext.so", "`zf` provides TCPDirect without"),
    ("zf", "/usr/bin/onload", "`zf` provides TCPDirect without"),
    ("zf", "/usr/libexec/onload/profiles", "`zf` provides TCPDirect without"),
];

fn page() -> String {
    let page = fs::read_to_string(sources().join("docs/migrate.md")).unwrap();
    let begin = page.find("## nomad-onload").unwrap();
    let rest = &page[begin..];
    let end = rest.find("\n## kubernetes-onload").unwrap();
    rest[..end].to_owned()
}

fn paths(given: &ContainerReservation) -> BTreeSet<String> {
    given
        .devices
        .iter()
        .map(|node| node.task_path.clone())
        .chain(given.mounts.iter().map(|mount| mount.task_path.clone()))
        .collect()
}

fn source<'g>(given: &'g ContainerReservation, path: &str) -> Option<&'g str> {
    let mount = given.mounts.iter().find(|mount| mount.task_path == path)?;
    Some(&mount.host_path)
}

async fn given(host: &AgentHost, settings: Json, id: &str) -> ContainerReservation {
    let agent = Agent::configured(host, &settings).await;
    agent.reserve(&[id]).await.unwrap()
}

async fn published(host: &AgentHost, settings: Json) -> BTreeMap<String, DeviceGroup> {
    Agent::configured(host, &settings).await.published().await
}

fn of_types(groups: &BTreeMap<String, DeviceGroup>, types: &[&str]) -> Vec<String> {
    groups
        .iter()
        .filter(|(_, group)| types.contains(&group.device_type.as_str()))
        .map(|(name, _)| name.clone())
        .collect()
}

const ONLOAD: [&str; 3] = ["onload", "zf", "onloadzf"];

#[test]
fn every_setting_of_its_readme_is_one_of_ours() {
    let ours: Vec<&str> = TABLE.iter().map(|setting| setting.name).collect();
    for name in README {
        assert!(ours.contains(&name), "{name}");
        assert!(page().contains(&format!("`{name}`")), "{name} is not in docs/migrate.md");
    }
}

#[tokio::test]
async fn the_stanza_of_its_readme_gives_a_task_what_it_gave() {
    let host = AgentHost::captured(X2);
    let agent = Agent::configured(&host, &json!({"mount_onload": true})).await;
    let page = page();
    let mut differences: BTreeSet<String> = BTreeSet::new();
    for kind in ONLOAD {
        let given = agent.reserve(&[&format!("{kind}-{NIC}-0")]).await.unwrap();
        let ours = paths(&given);
        for missing in paths_of_nomad_onload(kind).difference(&ours) {
            let named = DIFFERENCES.iter().find(|(only_kind, path, _)| {
                (only_kind.is_empty() || *only_kind == kind) && path == missing
            });
            let (_, _, words) = named.unwrap_or_else(|| panic!("{kind} lacks {missing}"));
            assert!(page.contains(words), "docs/migrate.md does not say {words:?}");
            differences.insert(format!("{kind} {missing}"));
        }
        // Both set it for what is preloaded, and for nothing else.
        assert_eq!(given.envs.contains_key("LD_PRELOAD"), kind != "zf");
        assert!(given.mounts.iter().all(|mount| mount.read_only));
    }
    assert_eq!(differences.len(), 17, "{differences:#?}");
    // What its own code forgot: TCPDirect opens /dev/onload, and programs ask for the name with a version.
    let zf = paths(&agent.reserve(&[&format!("zf-{NIC}-0")]).await.unwrap());
    for more in ["/dev/onload", &format!("{LIB}/libonload_zf.so.1"), &format!("{LIB}/libefcp.so.1")]
    {
        assert!(zf.contains(more), "{more}");
    }
}

#[tokio::test]
async fn a_job_finds_the_devices_that_its_readme_names() {
    let host = AgentHost::captured(X2);
    let groups = published(&host, json!({})).await;
    let mut wanted = Vec::new();
    for kind in ["onload", "onloadzf", "zf"] {
        wanted.extend(["any", NIC, "enp101s0f0v0"].map(|name| format!("amd/{kind}/{name}")));
    }
    assert_eq!(of_types(&groups, &ONLOAD), wanted);
    assert!(groups.contains_key("none/ptp/ptp1") && groups.contains_key("none/pps/pps0"));
    for name in &wanted {
        assert!(
            matches!(&groups[name].attributes["onload_version"].value, Some(Value::StringVal(_))),
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_host_without_an_accelerated_interface_has_none() {
    // Its one interface is there by AF_XDP.
    let host = AgentHost::captured("debian13-2numa-onload-rxe-vfio");
    let with = published(&host, json!({})).await;
    assert_eq!(of_types(&with, &ONLOAD), ["xdp/onload/ens1"]);
    let without = published(&host, json!({"probe_xdp": false})).await;
    assert_eq!(of_types(&without, &ONLOAD), ["none/onload/none"]);
    let device = &without["none/onload/none"].devices[0];
    assert!(device.healthy && device.hw_locality.is_none());
    let given = given(&host, json!({"probe_xdp": false}), "onload-none-0").await;
    assert!(paths(&given).contains("/dev/onload"));
    assert_eq!(given.envs["ONLOAD_CTK_NIC_LOOPBACK"], "loopback");
    for settings in [
        json!({"probe_xdp": false, "ignored_interfaces": ["none"]}),
        json!({"probe_xdp": false, "need_nic": true}),
    ] {
        assert_eq!(of_types(&published(&host, settings).await, &ONLOAD), [""; 0]);
    }
}

#[tokio::test]
async fn an_ignored_interface_is_ignored() {
    let host = AgentHost::captured(X2);
    let groups = published(&host, json!({"ignored_interfaces": [NIC, "ptp0"]})).await;
    let left = ["amd/onload/enp101s0f0v0", "amd/onloadzf/enp101s0f0v0", "amd/zf/enp101s0f0v0"];
    assert_eq!(of_types(&groups, &ONLOAD), left);
    assert_eq!(of_types(&groups, &["ptp"]), ["none/ptp/ptp1"]);
}

#[tokio::test]
async fn what_is_not_probed_is_not_published() {
    let host = AgentHost::captured(X2);
    let types = |groups: BTreeMap<String, DeviceGroup>| -> BTreeSet<String> {
        groups.into_values().map(|group| group.device_type).collect()
    };
    let all = types(published(&host, json!({"runtime": "onload"})).await);
    let wanted = ["hugepages", "onload", "onloadzf", "pps", "profile", "ptp", "vfio", "zf"];
    assert!(all.iter().eq(&wanted));
    for (setting, gone) in [
        ("probe_ptp", vec!["ptp"]),
        ("probe_pps", vec!["pps"]),
        ("probe_vfio", vec!["vfio"]),
        ("probe_hugepages", vec!["hugepages"]),
        ("probe_profile", vec!["profile"]),
        // What is left is Onload without an interface.
        ("probe_nic", vec!["zf", "onloadzf"]),
    ] {
        let left = types(published(&host, json!({"runtime": "onload", setting: false})).await);
        let missing: BTreeSet<&str> = all.difference(&left).map(String::as_str).collect();
        assert_eq!(missing, gone.into_iter().collect(), "{setting}");
    }
    let groups = published(&host, json!({"probe_nic": false})).await;
    assert_eq!(of_types(&groups, &ONLOAD), ["none/onload/none"]);
}

#[tokio::test]
async fn rdma_devices_are_published_as_often_as_is_said() {
    let host = AgentHost::captured("debian12-stand-ins");
    let groups = published(&host, json!({"num_rdma": 4})).await;
    assert_eq!(groups["onload.dev/rdma/rxe0"].devices.len(), 4);
    let groups = published(&host, json!({"probe_rdma": false})).await;
    assert_eq!(of_types(&groups, &["rdma"]), [""; 0]);
}

#[tokio::test]
async fn numbers_of_tasks_are_by_kind_of_device() {
    let host = AgentHost::captured(X2);
    let settings = json!({"num_nic": 2, "num_ptp": 3, "num_pps": 4, "num_profile": 5, "num_hugepages": 6, "runtime": "onload"});
    let groups = published(&host, settings).await;
    let slots = |name: &str| groups[name].devices.len();
    assert_eq!(slots(&format!("amd/onload/{NIC}")), 2);
    assert_eq!(slots(&format!("amd/onloadzf/{NIC}")), 2);
    assert_eq!(slots("none/ptp/ptp0"), 3);
    assert_eq!(slots("none/pps/pps0"), 4);
    assert_eq!(slots("onload.dev/profile/latency"), 5);
    assert_eq!(slots("onload.dev/hugepages/2Mi"), 6);
    let none = published(&host, json!({"num_nic": 0, "num_ptp": -1})).await;
    assert_eq!(of_types(&none, &["onload", "ptp"]), [""; 0]);
}

#[tokio::test]
async fn without_the_preload_all_else_is_given() {
    let host = AgentHost::captured(X2);
    let id = format!("onload-{NIC}-0");
    let with = given(&host, json!({}), &id).await;
    let without = given(&host, json!({"set_preload": false}), &id).await;
    assert_eq!(paths(&with), paths(&without));
    assert!(!without.envs.contains_key("LD_PRELOAD"));
    assert!(without.envs.contains_key("EF_FDTABLE_SIZE"));
}

#[tokio::test]
async fn without_mount_onload_there_are_no_tools_and_no_profiles() {
    let host = AgentHost::captured(X2);
    for kind in ONLOAD {
        let given = given(&host, json!({"mount_onload": false}), &format!("{kind}-{NIC}-0")).await;
        assert!(given.mounts.iter().all(|mount| mount.task_path.contains(".so")), "{given:?}");
        assert!(!given.mounts.is_empty() && !given.devices.is_empty());
    }
}

#[tokio::test]
async fn the_paths_of_its_readme_are_where_the_task_has_things() {
    let host = AgentHost::captured(X2);
    let settings = json!({
        "task_onload_lib_path": "/opt/onload/usr/lib64",
        "host_onload_lib_path": "/usr/lib64",
        "task_onload_bin_path": "/opt/onload/usr/bin",
        "host_onload_bin_path": "/usr/bin",
        "task_profile_dir_path": " /opt/onload/profiles",
        "host_profile_dir_path": " /usr/libexec/onload/profiles",
        "task_zf_bin_path": "/opt/zf/bin/",
        "host_zf_bin_path": "/usr/bin",
        "task_zf_lib_path": "/opt/zf/lib",
        "host_zf_lib_path": "/usr/lib64",
    });
    let given = given(&host, settings, &format!("onloadzf-{NIC}-0")).await;
    for (path, wanted) in [
        ("/opt/onload/usr/lib64/libonload.so", "/usr/lib64/libonload.so"),
        ("/opt/onload/usr/bin/onload", "/usr/bin/onload"),
        ("/opt/onload/profiles", "/usr/libexec/onload/profiles"),
        ("/opt/zf/bin/zf_stackdump", "/usr/bin/zf_stackdump"),
        ("/opt/zf/lib/libonload_zf.so.1", "/usr/lib64/libonload_zf.so.1"),
        ("/opt/zf/lib/libefcp.so.1", "/usr/lib64/libefcp.so.1"),
    ] {
        assert_eq!(source(&given, path), Some(wanted), "{path}");
    }
    let is_elsewhere = |path: &String| path.starts_with("/opt/") || path.starts_with("/dev/");
    assert!(paths(&given).iter().all(is_elsewhere), "{:?}", paths(&given));
    assert_eq!(given.envs["LD_PRELOAD"], "/opt/onload/usr/lib64/libonload.so");
}

#[tokio::test]
async fn the_paths_of_its_example_are_where_the_host_has_things() {
    // Its example for Ubuntu, on a host that has all of it there.
    let host = AgentHost::captured(X2);
    let multiarch = host.root().join("usr/lib/x86_64-linux-gnu");
    fs::create_dir_all(multiarch.parent().unwrap()).unwrap();
    fs::rename(host.root().join("usr/lib64"), &multiarch).unwrap();
    let settings = json!({
        "host_onload_lib_path": "/usr/lib/x86_64-linux-gnu/",
        "host_onload_bin_path": "/usr/bin",
        "host_zf_lib_path": "/usr/lib/x86_64-linux-gnu/",
        "host_zf_bin_path": "/usr/bin",
        "mount_onload": true,
    });
    let given = given(&host, settings, &format!("onloadzf-{NIC}-0")).await;
    for name in ["libonload.so", "libonload_zf.so", "libefcp.so.1"] {
        let path = format!("{LIB}/{name}");
        assert_eq!(source(&given, &path), Some(path.as_str()));
    }
    assert!(source(&given, "/usr/bin/zf_debug").is_some());
    assert_eq!(given.envs["LD_PRELOAD"], "libonload.so");
}

#[tokio::test]
async fn a_directory_without_onload_is_named_in_the_log() {
    let host = AgentHost::captured(X2);
    let settings = json!({"host_onload_lib_path": "/opt/elsewhere"});
    let mut agent = Agent::configured(&host, &settings).await;
    let groups = agent.published().await;
    assert_eq!(of_types(&groups, &["onload", "onloadzf"]), [""; 0]);
    assert_eq!(of_types(&groups, &["zf"]).len(), 3);
    agent.logged(&["Onload is not offered: ", "libonload.so"]);
}

#[tokio::test]
async fn an_empty_path_gives_nothing_of_it() {
    let host = AgentHost::captured(X2);
    let id = format!("onloadzf-{NIC}-0");
    let all = given(&host, json!({}), &id).await;
    for (setting, is_gone) in [
        ("task_device_path", "/dev/"),
        ("host_device_path", "/dev/"),
        ("host_profile_dir_path", "/usr/libexec/onload/profiles"),
        ("task_profile_dir_path", "/usr/libexec/onload/profiles"),
        ("task_onload_bin_path", "/usr/bin/onload"),
        ("host_zf_bin_path", "/usr/bin/zf_"),
    ] {
        let given = given(&host, json!({ setting: "" }), &id).await;
        let gone: BTreeSet<String> =
            paths(&all).into_iter().filter(|path| path.starts_with(is_gone)).collect();
        assert!(!gone.is_empty());
        let missing: BTreeSet<String> = paths(&all).difference(&paths(&given)).cloned().collect();
        let more = setting == "task_onload_bin_path";
        assert!(
            if more { missing.is_superset(&gone) } else { missing == gone },
            "{setting}: {missing:?}"
        );
    }
    let without = given(&host, json!({"host_onload_lib_path": ""}), &id).await;
    assert!(!paths(&without).iter().any(|path| path.contains("libonload.so")), "{without:?}");
    assert!(paths(&without).contains(&format!("{LIB}/libonload_zf.so")));
    assert!(!without.envs.contains_key("LD_PRELOAD"), "what is not there is not preloaded");
}

#[tokio::test]
async fn device_nodes_are_where_the_task_wants_them() {
    let host = AgentHost::captured(X2);
    let settings = json!({"task_device_path": "/devices"});
    let given_onload = given(&host, settings.clone(), &format!("onload-{NIC}-0")).await;
    let nodes: Vec<(&str, &str)> = given_onload
        .devices
        .iter()
        .map(|node| (node.task_path.as_str(), node.host_path.as_str()))
        .collect();
    assert_eq!(
        nodes,
        [("/devices/onload", "/dev/onload"), ("/devices/onload_epoll", "/dev/onload_epoll")]
    );
    let clock = given(&host, settings, "ptp-ptp0-0").await;
    assert_eq!(clock.devices[0].task_path, "/devices/ptp0");
    let gone = given(&host, json!({"host_device_path": ""}), "pps-pps0-0").await;
    assert!(gone.devices.is_empty());
}

#[tokio::test]
async fn the_job_of_its_clock_example_learns_which_clock_it_got() {
    let host = AgentHost::captured(X2);
    let agent = Agent::configured(&host, &json!({})).await;
    let given = agent.reserve(&["ptp-ptp0-4"]).await.unwrap();
    assert_eq!(given.envs["ONLOAD_CTK_PTP_PTP0"], "ptp0", "its roadmap has no such variable yet");
    assert_eq!(given.devices[0].permissions, "r");
    assert!(page().contains("`[cdi] ptp-write = true`"));
}
