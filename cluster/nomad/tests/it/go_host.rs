//! The real program under the go-plugin library that Nomad is built with.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test")]

use std::fs;

use crate::support::{AgentHost, GoHost, X2, config, go_program};
use onload_nomad::wire::base::{ConfigSchemaResponse, PluginInfoResponse, SetConfigResponse};
use onload_nomad::wire::device::{
    FingerprintResponse, ReserveRequest, ReserveResponse, StatsRequest, StatsResponse,
};
use onload_nomad::wire::hclspec::spec::Block;
use serde_json::{Value, json};

const BASE: &str = "/hashicorp.nomad.plugins.base.proto.BasePlugin";
const DEVICE: &str = "/hashicorp.nomad.plugins.device.DevicePlugin";
const NIC: &str = "enp101s0f0np0";

fn set(host: &mut GoHost, settings: &Value) -> Result<SetConfigResponse, String> {
    host.call("call", &format!("{BASE}/SetConfig"), &config(settings))
}

fn reserve(host: &mut GoHost, id: &str) -> Result<ReserveResponse, String> {
    let request = ReserveRequest { device_ids: vec![id.to_owned()] };
    host.call("call", &format!("{DEVICE}/Reserve"), &request)
}

fn fingerprint(host: &mut GoHost) -> FingerprintResponse {
    host.call("read", &format!("{DEVICE}/Fingerprint"), &()).unwrap()
}

#[test]
fn nomads_library_takes_it_through_all_of_its_lives() {
    let Some(program) = go_program() else { return };
    let host = AgentHost::captured(X2);
    // It is started to be asked what it is, then to be configured twice, then to stay.
    let mut first = GoHost::start(program, &host).unwrap();
    first.command("ping").unwrap();
    let info: PluginInfoResponse = first.call("call", &format!("{BASE}/PluginInfo"), &()).unwrap();
    assert_eq!((info.name.as_str(), info.r#type), ("onload", 3));
    let schema: ConfigSchemaResponse =
        first.call("call", &format!("{BASE}/ConfigSchema"), &()).unwrap();
    assert!(matches!(schema.spec.unwrap().block, Some(Block::Object(_))));
    first.command("end").unwrap();
    assert_eq!(fs::read_dir(host.sockets()).unwrap().count(), 0);
    let mut second = GoHost::start(program, &host).unwrap();
    set(&mut second, &json!({"num_nic": 2})).unwrap();
    set(&mut second, &json!({"num_nic": 2})).unwrap();
    second.command("end").unwrap();
    let mut third = GoHost::start(program, &host).unwrap();
    set(&mut third, &json!({"num_nic": 2})).unwrap();
    let published = fingerprint(&mut third);
    let ids: Vec<&str> = published
        .device_group
        .iter()
        .find(|group| group.device_type == "onload" && group.device_name == NIC)
        .unwrap()
        .devices
        .iter()
        .map(|device| device.id.as_str())
        .collect();
    assert_eq!(ids, ["onload-enp101s0f0np0-0", "onload-enp101s0f0np0-1"]);
    let given = reserve(&mut third, ids[1]).unwrap().container_res.unwrap();
    assert_eq!(given.envs["LD_PRELOAD"], "libonload.so");
    assert_eq!(given.devices[0].host_path, "/dev/onload");
    third.command("end").unwrap();
}

#[test]
fn changes_reach_nomads_library_by_the_open_stream() {
    let Some(program) = go_program() else { return };
    let host = AgentHost::captured(X2);
    let mut agent = GoHost::start(program, &host).unwrap();
    set(&mut agent, &json!({})).unwrap();
    let has_pps = |published: &FingerprintResponse| {
        published
            .device_group
            .iter()
            .filter(|group| group.device_type == "pps")
            .all(|group| group.devices[0].healthy)
    };
    assert!(has_pps(&fingerprint(&mut agent)));
    host.remove_from_spec("pps", "pps0");
    assert!(!has_pps(&agent.next().unwrap()));
    agent.command("ping").unwrap();
}

#[test]
fn statistics_reach_nomads_library() {
    let Some(program) = go_program() else { return };
    let host = AgentHost::captured(X2);
    host.file("proc/driver/onload/stacks", "0: 17 0 1\n");
    let mut agent = GoHost::start(program, &host).unwrap();
    set(&mut agent, &json!({"num_nic": 1})).unwrap();
    let stats: StatsResponse =
        agent.call("read", &format!("{DEVICE}/Stats"), &StatsRequest::default()).unwrap();
    let stats = stats
        .groups
        .iter()
        .find(|group| group.r#type == "onload" && group.name == NIC)
        .unwrap()
        .instance_stats["onload-enp101s0f0np0-0"]
        .stats
        .as_ref()
        .unwrap();
    assert_eq!(stats.attributes["onload_stacks"].int_numerator_val, Some(1));
}

#[test]
fn an_error_reaches_nomad_in_our_words() {
    let Some(program) = go_program() else { return };
    let host = AgentHost::empty();
    let mut agent = GoHost::start(program, &host).unwrap();
    let refused = set(&mut agent, &json!({"num_nic": "ten"})).unwrap_err();
    assert!(
        refused
            .ends_with("desc = setting num_nic of the plugin is \"ten\"; give it a whole number"),
        "{refused}"
    );
    let gone = reserve(&mut agent, "onload-ens1-0").unwrap_err();
    assert!(
        gone.ends_with(
            "desc = reserving onload-ens1-0: this host no longer has this device; let Nomad place \
             the task again"
        ),
        "{gone}"
    );
    assert!(fingerprint(&mut agent).device_group.is_empty());
}

#[test]
fn its_log_keeps_level_and_words_in_the_agents() {
    let Some(program) = go_program() else { return };
    let host = AgentHost::captured(X2);
    let mut agent = GoHost::start(program, &host).unwrap();
    set(&mut agent, &json!({})).unwrap();
    fingerprint(&mut agent);
    reserve(&mut agent, "a \"b\"").unwrap_err();
    let log = agent.ended();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let level = |words: &str| {
        lines
            .iter()
            .find(|line| line["@message"].as_str().unwrap().contains(words))
            .unwrap_or_else(|| panic!("{words}: {log}"))["@level"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(level("hugepages 2Mi is not published"), "info");
    assert_eq!(level("reserving a \"b\": it is not a device of this plugin"), "error");
}

#[test]
fn a_host_that_is_no_nomad_is_told_why() {
    let Some(program) = go_program() else { return };
    let host = AgentHost::empty();
    let start = |name: &str| {
        let started = GoHost::with(program, &host, |command| {
            command.env(name, "x");
        });
        assert!(started.is_err(), "{name}");
    };
    start("PLUGIN_CLIENT_CERT");
    start("PLUGIN_UNIX_SOCKET_GROUP");
}
