//! The daemon beside the sockets of a kubelet in Go: grpc-go and the kubelet's own messages, as Debian packages them
//! (`go-kubelet/main.go`). It dials, empties its directory and dies as kubelet does.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;

use crate::support::{AgentHost, Daemon, GoKubelet};
use serde_json::{Value, json};

const CAPTURED: &str = "debian13-2numa-onload-rxe-vfio";
const X2: &str = "x2-2port-sriov";
const VFIO: &str = "onload.dev/vfio";
const NIC: &str = "onload.dev/nic";
const FUNCTIONS: [&str; 2] = ["0000:81:10.0", "0000:81:10.2"];

fn is_whole(list: &Value) -> bool {
    list["unhealthy"] == json!([]) && list["healthy"] != json!({})
}

#[test]
fn a_kubelet_in_go_reads_the_devices_and_gets_what_it_asks_for() {
    let host = AgentHost::captured(CAPTURED);
    let Some(mut kubelet) = GoKubelet::find(&host.plugin_dir()) else {
        return;
    };
    kubelet.start();
    let _daemon = Daemon::start(&host);
    let vfio = kubelet.registers(VFIO);
    assert_eq!(vfio["version"], "v1beta1");
    assert_eq!(vfio["preferred"], true);
    assert_eq!(vfio["preStart"], false);
    let list = kubelet.lists(VFIO, is_whole);
    assert_eq!(list["healthy"], json!({FUNCTIONS[0]: [1], FUNCTIONS[1]: [1]}));
    let asked = format!("allocate {VFIO} {} {}", FUNCTIONS[1], FUNCTIONS[0]);
    let answer = kubelet.does(&asked, "allocated");
    for (container, function) in [(0, FUNCTIONS[1]), (1, FUNCTIONS[0])] {
        let given = &answer["containers"][container];
        assert_eq!(given["cdi"], json!([format!("onload.dev/vfio={function}")]));
        assert_eq!(given["env"]["PCIDEVICE_ONLOAD_DEV_VFIO"], function);
        assert_eq!((&given["mounts"], &given["nodes"]), (&json!(0), &json!(0)));
    }
    let both = FUNCTIONS.join(",");
    let answer = kubelet.does(&format!("preferred {VFIO} 1 {both} {}", FUNCTIONS[1]), "preferred");
    assert_eq!(answer["ids"], json!([FUNCTIONS[1]]));
    kubelet.registers(NIC);
    let answer = kubelet.does(&format!("allocate {NIC} ens1-3,ens1-1"), "allocated");
    assert_eq!(answer["containers"][0]["cdi"], json!(["onload.dev/nic=ens1"]));
}

#[test]
fn a_kubelet_in_go_is_told_why_it_gets_nothing() {
    let host = AgentHost::captured(X2);
    let Some(mut kubelet) = GoKubelet::find(&host.plugin_dir()) else {
        return;
    };
    kubelet.start();
    let _daemon = Daemon::start(&host);
    kubelet.registers(VFIO);
    for (ids, code, says) in [
        ("0000:65:00.7", "FailedPrecondition", "is not offered: bound to no driver"),
        ("0000:ff:1f.7", "NotFound", "0000:ff:1f.7"),
        ("../../../etc/passwd", "NotFound", "../../../etc/passwd"),
        ("-", "InvalidArgument", "onload.dev/vfio: "),
        ("0000:65:00.6,0000:65:00.6", "InvalidArgument", "0000:65:00.6"),
    ] {
        let answer = kubelet.does(&format!("allocate {VFIO} {ids}"), "allocated");
        assert_eq!(answer["code"], code, "{ids}: {answer}");
        assert!(answer["error"].as_str().unwrap().contains(says), "{answer}");
    }
    let answer = kubelet.does(&format!("preferred {VFIO} 9 0000:65:00.6 -"), "preferred");
    assert_eq!(answer["code"], "InvalidArgument", "{answer}");
    let answer = kubelet.does(&format!("allocate {VFIO} 0000:65:00.6"), "allocated");
    assert_eq!(answer["error"], Value::Null, "it still answers: {answer}");
}

#[test]
fn every_resource_registers_anew_with_each_kubelet_in_go() {
    let host = AgentHost::captured(CAPTURED);
    let Some(mut kubelet) = GoKubelet::find(&host.plugin_dir()) else {
        return;
    };
    let mut daemon = Daemon::start(&host);
    // The first comes later than the daemon; the others take the place of one that was killed.
    for _ in 0..3 {
        kubelet.start();
        for resource in [VFIO, NIC, "onload.dev/rdma"] {
            kubelet.registers(resource);
            kubelet.lists(resource, is_whole);
        }
        let asked = format!("allocate {VFIO} {}", FUNCTIONS[0]);
        let answer = kubelet.does(&asked, "allocated");
        assert_eq!(answer["error"], Value::Null);
        kubelet.does("kill", "killed");
    }
    assert!(daemon.terminate().success());
    let left: Vec<_> =
        fs::read_dir(host.plugin_dir()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["kubelet.sock"], "that is the killed kubelet's own");
}

#[test]
fn a_kubelet_in_go_that_refuses_is_asked_again() {
    let host = AgentHost::captured(CAPTURED);
    let Some(mut kubelet) = GoKubelet::find(&host.plugin_dir()) else {
        return;
    };
    kubelet.does("refuse 3", "refusing");
    kubelet.start();
    let mut daemon = Daemon::start(&host);
    for _ in 0..3 {
        kubelet.tells("refused", |_| true);
    }
    daemon.logged(&["no room for"]);
    kubelet.registers(VFIO);
    kubelet.lists(VFIO, is_whole);
}

#[test]
fn a_kubelet_in_go_sees_a_device_go_and_a_daemon_end() {
    let host = AgentHost::captured(CAPTURED);
    let Some(mut kubelet) = GoKubelet::find(&host.plugin_dir()) else {
        return;
    };
    kubelet.start();
    let mut daemon = Daemon::start(&host);
    kubelet.registers(VFIO);
    kubelet.lists(VFIO, is_whole);
    host.remove_from_spec("vfio", FUNCTIONS[0]);
    let list = kubelet.lists(VFIO, |list| list["unhealthy"] == json!([FUNCTIONS[0]]));
    assert_eq!(list["healthy"], json!({FUNCTIONS[1]: [1]}));
    let answer = kubelet.does(&format!("allocate {VFIO} {}", FUNCTIONS[0]), "allocated");
    assert_eq!(answer["code"], "FailedPrecondition", "{answer}");
    assert!(daemon.terminate().success());
    let ended = kubelet.tells("ended", |event| event["resource"] == VFIO);
    assert!(ended["code"].is_string(), "{ended}");
}

#[test]
fn a_kubelet_in_go_takes_the_longest_list_that_may_be_configured() {
    let host = AgentHost::captured(CAPTURED);
    let Some(mut kubelet) = GoKubelet::find(&host.plugin_dir()) else {
        return;
    };
    host.config("[kubernetes]\nslots = 32768\n");
    kubelet.start();
    let _daemon = Daemon::start(&host);
    kubelet.registers(NIC);
    let list = kubelet.lists(NIC, is_whole);
    assert_eq!(list["healthy"].as_object().unwrap().len(), 32_768);
}
