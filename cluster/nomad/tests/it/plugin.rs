//! The real program, as Nomad's agent starts it: what it says, when it ends, and what it never does.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test")]

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::support::{Agent, AgentHost, X2, config, start};
use onload_nomad::settings::table::TABLE;
use onload_nomad::wire::base::SetConfigRequest;
use onload_nomad::wire::go_plugin::grpc_stdio_client::GrpcStdioClient;
use onload_nomad::wire::hclspec::spec::Block;
use onload_nomad::wire::hclspec::{Attr, Literal};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use serde_json::json;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

#[tokio::test]
async fn it_says_one_line_and_what_it_is() {
    let host = AgentHost::captured(X2);
    let mut agent = Agent::start(&host).await;
    let fields: Vec<&str> = agent.line.iter().map(String::as_str).collect();
    assert_eq!(fields[..3], ["1", "2", "unix"]);
    assert_eq!(fields[4..], ["grpc", ""]);
    assert!(agent.socket().starts_with(host.sockets()));
    let info = agent.info().await;
    assert_eq!((info.r#type, info.name.as_str()), (3, "onload"));
    assert_eq!(info.plugin_api_versions, ["v0.1.0"]);
    assert_eq!(info.plugin_version, format!("v{}", env!("CARGO_PKG_VERSION")));
    agent.shutdown().await;
    let (status, rest, _) = agent.ended();
    assert!(status.success());
    assert_eq!(rest, "", "standard output is for one line");
}

#[tokio::test]
async fn the_schema_has_every_setting_with_its_type_and_default() {
    let host = AgentHost::empty();
    let agent = Agent::start(&host).await;
    let Some(Block::Object(object)) = agent.schema().await.block else {
        panic!("no object");
    };
    assert_eq!(object.attributes.len(), TABLE.len());
    for setting in TABLE {
        let attr = |block: &Block| match block {
            Block::Attr(attr) => attr.clone(),
            other => panic!("{other:?}"),
        };
        let block = object.attributes[setting.name].block.as_ref().unwrap();
        let (found, default) = match block {
            Block::Default(default) => {
                let literal = default.default.as_ref().unwrap().block.clone().unwrap();
                let Block::Literal(Literal { value }) = literal else {
                    panic!("{literal:?}");
                };
                (attr(default.primary.as_ref().unwrap().block.as_ref().unwrap()), Some(value))
            }
            block => (attr(block), None),
        };
        let wanted = Attr {
            name: setting.name.to_owned(),
            r#type: setting.kind.to_owned(),
            required: false,
        };
        assert_eq!(found, wanted);
        assert_eq!(default.as_deref(), setting.default, "{}", setting.name);
    }
}

#[tokio::test]
async fn a_plugin_that_is_only_asked_what_it_is_touches_nothing() {
    // There is nothing that it could touch without an error.
    let host = AgentHost::empty();
    let mut command = start(&host);
    command.env("ONLOAD_NOMAD_HOST_ROOT", host.root().join("absent"));
    let mut agent = Agent::run(command).await;
    agent.info().await;
    agent.schema().await;
    agent.set(&json!({})).await.unwrap();
    agent.set(&json!({"num_nic": 3})).await.unwrap();
    agent.shutdown().await;
    let (status, _, log) = agent.ended();
    assert!(status.success());
    assert_eq!(log, "");
    assert_eq!(fs::read_dir(host.sockets()).unwrap().count(), 0, "the socket is gone");
    assert_eq!(fs::read_dir(host.root()).unwrap().count(), 0);
}

#[tokio::test]
async fn the_services_of_go_plugin_answer() {
    let host = AgentHost::empty();
    let agent = Agent::start(&host).await;
    let mut health = HealthClient::new(agent.channel.clone());
    let check = |service: &str| HealthCheckRequest { service: service.to_owned() };
    let answer = health.check(check("plugin")).await.unwrap().into_inner();
    assert_eq!(answer.status(), ServingStatus::Serving);
    assert_eq!(health.check(check("other")).await.unwrap_err().code(), tonic::Code::NotFound);
    let mut stdio =
        GrpcStdioClient::new(agent.channel.clone()).stream_stdio(()).await.unwrap().into_inner();
    agent.shutdown().await;
    assert!(!matches!(stdio.message().await, Ok(Some(_))));
}

/// The agent shows lines that are not of its own form at DEBUG.
#[test]
fn arguments_that_mean_nothing_are_an_error_in_the_agents_log() {
    let host = AgentHost::empty();
    let run = |cookie: bool| {
        let mut command = start(&host);
        command.arg("--host-rot=/");
        if !cookie {
            command.env_remove("NOMAD_PLUGIN_MAGIC_COOKIE");
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    };
    let error_text = run(true);
    assert_eq!(error_text.lines().count(), 1, "{error_text}");
    let line: serde_json::Value = serde_json::from_str(&error_text).unwrap();
    assert_eq!(line["@level"], "error");
    assert_eq!(
        line["@message"],
        "unexpected argument '--host-rot' found; correct args in the block of this plugin in the agent's configuration"
    );
    assert!(run(false).contains("Usage: onload-nomad-device"));
}

#[tokio::test]
async fn the_socket_of_a_killed_plugin_goes_when_the_next_one_starts() {
    let host = AgentHost::empty();
    let mut killed = Agent::start(&host).await;
    killed.signal(Signal::KILL);
    killed.ended();
    assert!(killed.socket().exists());
    let next = Agent::start(&host).await;
    assert!(!killed.socket().parent().unwrap().exists());
    assert!(next.socket().exists());
}

/// poll(2) fails for more descriptors than a process may have.
#[tokio::test]
async fn changes_are_told_again_after_waiting_for_them_failed() {
    const TROUBLE: &str = "waiting for changes of the host: ";
    let host = AgentHost::captured(X2);
    let mut agent = Agent::configured(&host, &json!({"fingerprint_period": "1s"})).await;
    let mut devices = agent.fingerprint().await;
    devices.next().await;
    let pid = Pid::from_raw(i32::try_from(agent.pid()).unwrap());
    let usual = getrlimit(Resource::Nofile);
    for times in 1..=2 {
        let few = Rlimit { current: Some(1), maximum: usual.maximum };
        prlimit(pid, Resource::Nofile, few).unwrap();
        agent.logged_times(times, TROUBLE);
        prlimit(pid, Resource::Nofile, usual).unwrap();
        // The first change is seen by a look, and the second is waited for.
        for change in ["a", "b"] {
            host.change_spec("pps", |spec| {
                spec["devices"][0]["name"] = json!(format!("{change}{times}"));
            });
            devices.next().await;
        }
    }
    agent.signal(Signal::TERM);
    let (_, _, log) = agent.ended();
    assert_eq!(log.matches(TROUBLE).count(), 2, "{log}");
}

#[tokio::test]
async fn interrupts_are_the_agents_and_term_ends_it_with_its_socket() {
    let host = AgentHost::empty();
    let mut agent = Agent::start(&host).await;
    agent.signal(Signal::INT);
    agent.signal(Signal::INT);
    agent.info().await;
    assert!(agent.is_running());
    agent.signal(Signal::TERM);
    let (status, ..) = agent.ended();
    assert!(status.success());
    assert_eq!(fs::read_dir(host.sockets()).unwrap().count(), 0);
}

#[tokio::test]
async fn the_stream_of_devices_of_a_killed_plugin_breaks_and_the_next_one_says_the_same() {
    let host = AgentHost::captured(X2);
    let mut agent = Agent::configured(&host, &json!({})).await;
    let mut devices = agent.fingerprint().await;
    let before = devices.next().await;
    agent.signal(Signal::KILL);
    agent.ended();
    assert!(devices.broken().await.is_some(), "an end without an error would be the last word");
    let again = Agent::configured(&host, &json!({})).await;
    assert_eq!(again.published().await, before, "ids are the same after each start");
}

#[tokio::test]
async fn the_stream_of_devices_never_ends_while_the_plugin_lives() {
    let host = AgentHost::empty();
    let mut agent = Agent::configured(&host, &json!({})).await;
    let mut devices = agent.fingerprint().await;
    assert!(devices.next().await.is_empty(), "a host without hardware says so at once");
    agent.shutdown().await;
    assert!(devices.broken().await.is_some());
    let (status, ..) = agent.ended();
    assert!(status.success());
}

#[tokio::test]
async fn a_plugin_whose_configuration_was_refused_ends_with_its_agent() {
    let host = AgentHost::empty();
    let mut agent = Agent::below_another(&host).await;
    agent.set(&json!({})).await.unwrap();
    agent.set(&json!({"runtime": "runc"})).await.unwrap_err();
    agent.info().await;
    agent.signal(Signal::KILL);
    // Both have its standard output: this returns when the second has ended.
    let (_, rest, log) = agent.ended();
    assert_eq!(rest, "");
    assert!(log.contains("the agent has exited; exiting"), "{log}");
    assert_eq!(fs::read_dir(host.sockets()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_plugin_that_was_only_asked_what_it_is_ends_with_its_agent() {
    let host = AgentHost::empty();
    let mut agent = Agent::below_another(&host).await;
    agent.info().await;
    agent.signal(Signal::KILL);
    agent.ended();
    assert_eq!(fs::read_dir(host.sockets()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_plugin_that_works_outlives_its_agent_until_another_refuses_its_configuration() {
    let host = AgentHost::captured(X2);
    let mut agent = Agent::below_another(&host).await;
    agent.set(&json!({"num_nic": 2})).await.unwrap();
    let before = agent.published().await;
    agent.signal(Signal::KILL);
    agent.reap();
    agent.dial_again().await;
    agent.set(&json!({"num_nic": 2})).await.unwrap();
    assert_eq!(agent.published().await, before, "the next agent finds it");
    agent.set(&json!({"num_nic": 1.5})).await.unwrap_err();
    agent.ended();
    assert_eq!(fs::read_dir(host.sockets()).unwrap().count(), 0);
}

#[tokio::test]
async fn an_agent_that_was_started_again_finds_the_plugin_as_it_was() {
    let host = AgentHost::captured(X2);
    let mut agent = Agent::configured(&host, &json!({"num_nic": 2})).await;
    let before = agent.published().await;
    agent.dial_again().await;
    assert_eq!(agent.published().await, before);
    assert_eq!(before["amd/onload/enp101s0f0np0"].devices.len(), 2);
}

#[tokio::test]
async fn settings_that_come_later_count_from_then_on() {
    let host = AgentHost::captured(X2);
    let agent = Agent::configured(&host, &json!({"fingerprint_period": "1h"})).await;
    let mut devices = agent.fingerprint().await;
    devices.next().await;
    let later = json!({"fingerprint_period": "1h", "probe_nic": false});
    agent.set(&later).await.unwrap();
    let groups = devices.next().await;
    assert!(!groups.contains_key("amd/onload/enp101s0f0np0"));
}

#[tokio::test]
async fn settings_that_mean_nothing_are_refused_with_their_name() {
    let host = AgentHost::empty();
    let agent = Agent::start(&host).await;
    for (settings, error_text) in [
        (
            json!({"fingerprint_period": "soon"}),
            "setting fingerprint_period of the plugin is \"soon\"; write a time such as \"1m\" or \"30s\"",
        ),
        (
            json!({"set_preload": 1}),
            "setting set_preload of the plugin is 1; give it true or false",
        ),
        (
            json!({"host_zf_lib_path": "lib"}),
            "setting host_zf_lib_path of the plugin is \"lib\"; write an absolute path without \
             \"..\", or \"\" to omit it",
        ),
    ] {
        let status = agent.set(&settings).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (tonic::Code::InvalidArgument, error_text));
    }
    let mut other = config(&json!({}));
    "v0.2.0".clone_into(&mut other.plugin_api_version);
    let status = agent.base().set_config(other).await.unwrap_err();
    assert!(status.message().contains("v0.1.0"), "{status}");
    agent.base().set_config(SetConfigRequest::default()).await.unwrap();
}

#[test]
fn started_by_hand_or_by_a_host_of_another_kind_it_says_what_it_is() {
    let host = AgentHost::empty();
    let end = |change: &dyn Fn(&mut Command)| {
        let mut command = start(&host);
        change(&mut command);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    };
    let by_hand = end(&|command| {
        command.env_remove("NOMAD_PLUGIN_MAGIC_COOKIE");
    });
    assert!(
        by_hand.starts_with("onload-nomad-device: this is a plugin that Nomad starts"),
        "{by_hand}"
    );
    let encrypted = end(&|command| {
        command.env("PLUGIN_CLIENT_CERT", "-----BEGIN");
    });
    assert!(encrypted.contains("PLUGIN_CLIENT_CERT"), "{encrypted}");
    let version = end(&|command| {
        command.env("PLUGIN_PROTOCOL_VERSIONS", "1");
    });
    assert!(version.contains("version 1"), "{version}");
    let nowhere = end(&|command| {
        command.env("TMPDIR", host.root().join("absent"));
    });
    assert!(nowhere.contains("making a socket in "), "{nowhere}");
    assert!(
        [&by_hand, &encrypted, &version, &nowhere]
            .iter()
            .all(|message| message.lines().count() == 1)
    );
    assert_eq!(fs::read_dir(host.sockets()).unwrap().count(), 0);
}

#[tokio::test]
async fn the_log_is_lines_of_json_with_a_level() {
    let host = AgentHost::captured(X2);
    let mut agent = Agent::configured(&host, &json!({})).await;
    agent.published().await;
    let line = agent.logged(&["vfio 0000:65:00.3 is not published"]);
    let keys: BTreeSet<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, BTreeSet::from(["@level", "@message", "@module", "@timestamp"]));
    assert_eq!(line["@level"], "info");
}

#[tokio::test]
async fn a_host_that_cannot_be_looked_at_has_no_devices_and_says_why() {
    let host = AgentHost::captured(X2);
    host.config("[cdi]\nkindz = []\n");
    let mut agent = Agent::configured(&host, &json!({"fingerprint_period": "1h"})).await;
    let mut devices = agent.fingerprint().await;
    assert!(devices.next().await.is_empty());
    let line = agent.logged(&["kindz"]);
    assert_eq!(line["@level"], "error");
    host.config("");
    assert!(devices.next().await.contains_key("amd/onload/enp101s0f0np0"));
}
