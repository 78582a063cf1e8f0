//! What a real agent of Nomad showed of the plugin, against what the plugin says today (`recorded/README.md`).

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::support::{Agent, AgentHost, X2, as_recorded, sources};
use onload_nomad::wire::structs::Attribute;
use onload_nomad::wire::structs::attribute::Value;
use serde_json::json;

fn recorded(name: &str) -> String {
    let dir = sources().join("cluster/nomad/tests/recorded/nomad-1.0.18");
    fs::read_to_string(dir.join(name)).unwrap()
}

async fn agent(host: &AgentHost, runtime: &str) -> Agent {
    let settings = json!({
        "mount_onload": true,
        "num_nic": 3,
        "runtime": runtime,
        "ignored_interfaces": ["enp101s0f0v0"],
    });
    Agent::configured(host, &settings).await
}

fn shown(attribute: &Attribute) -> String {
    let value = match attribute.value.as_ref().unwrap() {
        Value::FloatVal(number) => number.to_string(),
        Value::IntVal(number) => number.to_string(),
        Value::StringVal(text) => text.clone(),
        Value::BoolVal(is) => is.to_string(),
    };
    format!("{value} {}", attribute.unit).trim_end().to_owned()
}

#[tokio::test]
async fn the_agent_had_every_device_that_is_published() {
    let host = as_recorded(X2);
    let published = agent(&host, "onload").await.published().await;
    let ids = published.iter().flat_map(|(name, group)| {
        let ids = group.devices.iter();
        ids.map(move |device| match device.id.strip_prefix("vfio-") {
            // Each function was a group of its own.
            Some(function) => {
                let function = function.strip_suffix("-0").unwrap();
                format!("onload.dev/vfio/{function}[{}]", device.id)
            }
            None => format!("{name}[{}]", device.id),
        })
    });
    let text = recorded("devices.txt");
    let shown: BTreeSet<String> = text
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect();
    assert_eq!(ids.collect::<BTreeSet<String>>(), shown);
}

#[tokio::test]
async fn the_agent_understood_every_attribute_and_its_unit() {
    let host = as_recorded(X2);
    let published = agent(&host, "onload").await.published().await;
    let units: BTreeMap<String, String> = published["amd/onload/enp101s0f0np0"]
        .attributes
        .iter()
        .map(|(name, value)| (name.clone(), shown(value)))
        .collect();
    let text = recorded("attributes.txt");
    let mut known: BTreeMap<String, String> = text
        .lines()
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
        .collect();
    let group = known.remove("Device Group");
    assert_eq!(group.as_deref(), Some("amd/onload/enp101s0f0np0"));
    // What is no virtual function has no index of one since then.
    assert_eq!(known.remove("vf_index").as_deref(), Some("0"));
    // Ids and versions look like no number since then.
    for (name, beginning) in [("pci_vendor", "0x"), ("pci_device", "0x"), ("onload_version", "v")] {
        known.get_mut(name).unwrap().insert_str(0, beginning);
    }
    known.insert("unhealthy".to_owned(), "0".to_owned());
    assert_eq!(units, known);
}

#[tokio::test]
async fn the_tasks_had_the_variables_that_are_reserved() {
    let host = as_recorded(X2);
    // With the operator's word all comes by ticket since then.
    for (id, file, runtime) in [
        ("onload-enp101s0f0np0-2", "onload.env", ""),
        ("vfio-0000:65:00.3-0", "vfio.env", "onload"),
    ] {
        let agent = agent(&host, runtime).await;
        let given = agent.reserve(&[id]).await.unwrap();
        let text = recorded(file);
        let lines = text.lines().filter_map(|line| line.split_once('='));
        // The job itself sets one.
        let had: BTreeMap<&str, &str> = lines.filter(|(name, _)| *name != "LD_BIND_NOW").collect();
        // Each ticket has a variable of its own since then.
        let now: BTreeMap<&str, &String> = given
            .envs
            .iter()
            .map(|(name, value)| match value {
                ticket if ticket.starts_with("ticket:") => ("ONLOAD_CTK_REQUEST", ticket),
                value => (name.as_str(), value),
            })
            .collect();
        assert!(had.keys().eq(now.keys()), "{file}: {:?}", given.envs);
        for (name, value) in &had {
            assert!(now[*name].starts_with(value.trim_end_matches("...")), "{file}: {name}");
        }
        let line = format!("reserved {id}: {} variables", given.envs.len());
        assert!(recorded("log.txt").contains(&line), "{line}");
    }
}

#[test]
fn the_tasks_were_started() {
    assert_eq!(recorded("version.txt").trim(), "Nomad v1.0.18");
    assert!(recorded("events.txt").lines().any(|line| line.ends_with("Task started by client")));
}
