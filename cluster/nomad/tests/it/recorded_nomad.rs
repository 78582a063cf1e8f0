//! The plugin is asked what a real agent of Nomad asked, and answers as it did then; what tasks of the docker driver
//! were seen to have is what it reserves (`recorded/README.md`).

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test")]

use std::fs;

use crate::support::{Agent, AgentHost, as_recorded, sources};
use onload_nomad::wire::base::{
    ConfigSchemaResponse, PluginInfoResponse, SetConfigRequest, SetConfigResponse,
};
use onload_nomad::wire::device::{
    ContainerReservation, DetectedDevice, DeviceGroup, FingerprintResponse, ReserveRequest,
    ReserveResponse,
};
use onload_nomad::wire::hclspec::spec::Block;
use onload_nomad::wire::structs::Attribute;
use onload_nomad::wire::structs::attribute::Value;
use prost::Message;
use serde_json::json;

const CAPTURED: &str = "debian13-2numa-onload-rxe-vfio";
const REQUEST: &str = "ONLOAD_CTK_REQUEST";

fn recorded(name: &str) -> String {
    let dir = sources().join("cluster/nomad/tests/recorded/nomad-1.0.18-docker");
    fs::read_to_string(dir.join(name)).unwrap()
}

struct Call(serde_json::Value);

impl Call {
    fn by_process() -> Vec<Vec<Call>> {
        let mut processes: Vec<Vec<Call>> = Vec::new();
        for line in recorded("calls.jsonl").lines() {
            let call = Call(serde_json::from_str(line).unwrap());
            let process = usize::try_from(call.0["process"].as_u64().unwrap()).unwrap();
            processes.resize_with(processes.len().max(process), Vec::new);
            processes[process - 1].push(call);
        }
        processes
    }

    fn name(&self) -> &str {
        self.0["call"].as_str().unwrap()
    }

    /// The message of a member, whose bytes stand in hexadecimal.
    fn message<M: Message + Default>(&self, key: &str) -> M {
        let digits = self.0[key].as_str().unwrap().as_bytes();
        let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
        let bytes: Vec<u8> = digits.chunks(2).map(byte).collect();
        M::decode(&bytes[..]).unwrap()
    }

    async fn replay(&self, host: &AgentHost, agent: &mut Agent) {
        match self.name() {
            "PluginInfo" => {
                let answer: PluginInfoResponse = self.message("answer");
                assert_eq!(agent.info().await, answer);
            }
            "ConfigSchema" => {
                let answer: ConfigSchemaResponse = self.message("answer");
                let (mut now, then) = (agent.schema().await, answer.spec.unwrap());
                let Some(Block::Object(settings)) = &mut now.block else { panic!("{now:?}") };
                // Interfaces that move came later, and reservations that wait.
                for later in ["probe_netdev", "reserve_wait"] {
                    assert!(settings.attributes.remove(later).is_some());
                }
                assert_eq!(now, then);
            }
            "SetConfig" => {
                let request: SetConfigRequest = self.message("request");
                assert!(!request.msgpack_config.is_empty());
                let answer = agent.base().set_config(request).await;
                assert_eq!(answer.unwrap().into_inner(), SetConfigResponse {});
            }
            "Fingerprint" => {
                let answer: FingerprintResponse = self.message("answer");
                let groups = agent.published().await;
                let is_function = |group: &DeviceGroup| group.device_type == "vfio";
                let (functions, groups): (Vec<_>, Vec<_>) = groups
                    .into_iter()
                    // Several devices by one block came later.
                    .filter(|(name, _)| !name.ends_with("/any"))
                    .map(|(_, group)| group)
                    .partition(is_function);
                let then = answer.device_group.into_iter().map(as_now);
                let (functions_then, mut then): (Vec<_>, Vec<_>) = then.partition(is_function);
                then.sort_by_key(|group| {
                    let (vendor, kind, name) =
                        (&group.vendor, &group.device_type, &group.device_name);
                    format!("{vendor}/{kind}/{name}")
                });
                assert_eq!(groups, then);
                // Each function was a group of its own.
                let devices = |groups: Vec<DeviceGroup>| -> Vec<DetectedDevice> {
                    groups.into_iter().flat_map(|group| group.devices).collect()
                };
                assert_eq!(devices(functions), devices(functions_then));
            }
            "Reserve" => self.reserve(host, agent).await,
            "Shutdown" => {
                agent.shutdown().await;
                assert!(agent.ended().0.success());
            }
            other => panic!("{other} was not recorded"),
        }
    }

    async fn reserve(&self, host: &AgentHost, agent: &Agent) {
        let request: ReserveRequest = self.message("request");
        let ids: Vec<&str> = request.device_ids.iter().map(String::as_str).collect();
        let mut now = agent.reserve(&ids).await.unwrap();
        let answer: ReserveResponse = self.message("answer");
        let mut then = answer.container_res.unwrap();
        // A ticket has random digits. What it asks for stands in its file.
        let earlier = then.envs.remove(REQUEST);
        // It has a variable of its own since then.
        let name =
            now.envs.keys().find(|name| name.starts_with(REQUEST)).cloned().unwrap_or_default();
        let ticket = now.envs.remove(&name);
        assert_eq!(now, then, "{ids:?}");
        assert_eq!(ticket.is_some(), earlier.is_some(), "{ids:?}");
        if let (Some(ticket), Some(earlier)) = (ticket, earlier) {
            let digits = ticket.strip_prefix("ticket:").unwrap();
            assert_eq!(ticket.len(), earlier.len());
            assert_ne!(ticket, earlier);
            let path = host.root().join("run/onload-ctk/@requests").join(digits);
            let ticket: serde_json::Value =
                serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
            assert_eq!(ticket["description"], ids.join(", "));
        }
    }
}

/// A group as it was published, with what is otherwise since then.
fn as_now(mut group: DeviceGroup) -> DeviceGroup {
    let attributes = &mut group.attributes;
    // What is no virtual function has no index of one.
    let is_virtual = attributes.get("virtual_function");
    if is_virtual.and_then(|is| is.value.clone()) != Some(Value::BoolVal(true)) {
        attributes.remove("vf_index");
    }
    // Ids look like no number. The version of this host does not, as it is.
    for name in ["pci_vendor", "pci_device"] {
        if let Some(Value::StringVal(text)) =
            attributes.get_mut(name).and_then(|is| is.value.as_mut())
        {
            text.insert_str(0, "0x");
        }
    }
    if let Some(Value::StringVal(text)) =
        attributes.get_mut("clock_name").and_then(|is| is.value.as_mut())
    {
        assert_eq!(text.len(), 12);
        for place in [10, 8, 6, 4, 2] {
            text.insert(place, ':');
        }
    }
    // What only one client has makes no class of its own.
    for name in ["clock_name", "node_guid"] {
        let value = attributes.remove(name);
        attributes.extend(value.map(|value| (format!("unique.{name}"), value)));
    }
    let healthy = Attribute { value: Some(Value::IntVal(0)), unit: String::new() };
    attributes.insert("unhealthy".to_owned(), healthy);
    group
}

#[tokio::test]
async fn a_real_agent_is_answered_as_it_was() {
    let host = as_recorded(CAPTURED);
    let processes = Call::by_process();
    let names: Vec<Vec<&str>> =
        processes.iter().map(|calls| calls.iter().map(Call::name).collect()).collect();
    // The agent starts the plugin three times; only the last one is to look at the host.
    assert_eq!(names[0], ["PluginInfo", "ConfigSchema", "Shutdown"]);
    assert_eq!(names[1], ["SetConfig", "SetConfig", "Shutdown"]);
    assert_eq!(names[2][..2], ["SetConfig", "Fingerprint"]);
    assert_eq!(names[2][2..], ["Reserve"; 4]);
    for calls in &processes {
        let mut agent = Agent::start(&host).await;
        for call in calls {
            call.replay(&host, &mut agent).await;
        }
    }
}

fn has_line(text: &str, is: impl Fn(&str) -> bool) -> bool {
    text.lines().any(is)
}

/// What the shell in a task showed, against what is reserved for it.
fn was_given(transcript: &str, given: &ContainerReservation) {
    for (name, value) in &given.envs {
        let line = format!("{name}={value}");
        assert!(has_line(transcript, |shown| shown == line), "{line}");
    }
    for mount in &given.mounts {
        let path = format!(" {} ", mount.task_path);
        let is = |shown: &str| shown.contains(&path) && shown.contains(" ro,");
        assert!(mount.read_only && has_line(transcript, is), "{path}");
    }
    for device in &given.devices {
        let name = device.task_path.rsplit('/').next().unwrap();
        let is = |shown: &str| shown.starts_with('c') && shown.ends_with(&format!(" {name}"));
        assert!(has_line(transcript, is), "{name}");
    }
}

#[tokio::test]
async fn redis_in_docker_had_all_that_is_reserved() {
    let host = as_recorded(CAPTURED);
    let agent = Agent::configured(&host, &json!({"mount_onload": true})).await;
    agent.published().await;
    let given = agent.reserve(&["onload-ens1-4"]).await.unwrap();
    let transcript = recorded("redis.txt");
    assert!(transcript.contains("xdp/onload/ens1[onload-ens1-4]"));
    assert_eq!((given.envs.len(), given.devices.len()), (3, 2));
    assert!(!given.mounts.is_empty());
    was_given(&transcript, &given);
    assert!(transcript.contains("Ready to accept connections"));
}

/// The schema's own refusals are Nomad's; these are the plugin's.
#[tokio::test]
async fn settings_are_refused_in_the_words_that_the_agent_showed() {
    let host = as_recorded(CAPTURED);
    let agent = Agent::start(&host).await;
    let transcript = recorded("settings.txt");
    for settings in [
        json!({"runtime": "runc"}),
        json!({"fingerprint_period": "soon"}),
        json!({"num_nic": 1.5}),
        json!({"num_nic": 1001}),
    ] {
        let refused = agent.set(&settings).await.unwrap_err();
        let line = format!("code = InvalidArgument desc = {}", refused.message());
        let is = |shown: &str| shown.ends_with(&line);
        assert!(has_line(&transcript, is), "{line}");
    }
}

#[tokio::test]
async fn a_device_without_a_specification_is_unhealthy_in_the_words_that_the_agent_kept() {
    let host = as_recorded(CAPTURED);
    fs::remove_file(host.spec_dir().join("onload.dev-rdma.json")).unwrap();
    let agent = Agent::configured(&host, &json!({})).await;
    let groups = agent.published().await;
    let instances: Vec<serde_json::Value> =
        recorded("health.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for instance in instances.iter().filter(|one| one["Type"] == "rdma") {
        let group = &groups[&format!("onload.dev/rdma/{}", instance["Name"].as_str().unwrap())];
        let device = &group.devices[0];
        assert_eq!(instance["ID"], device.id);
        assert_eq!(instance["Healthy"], device.healthy);
        assert_eq!(instance["HealthDescription"], device.health_description);
    }
    assert_eq!(instances.len(), 3);
}
