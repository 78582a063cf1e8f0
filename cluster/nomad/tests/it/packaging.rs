//! The agent's configuration and the jobs of packaging/nomad, and the page about them, held against the program.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use crate::support::{Agent, AgentHost, X2, meets, sources};
use clap::CommandFactory;
use onload_nomad::cli::NomadCli;
use onload_nomad::settings::table::TABLE;
use onload_nomad::wire::device::DeviceGroup;
use serde_json::json;

fn packaging() -> PathBuf {
    sources().join("packaging/nomad")
}

fn jobs() -> Vec<(String, String)> {
    let entries = fs::read_dir(packaging().join("examples")).unwrap();
    let jobs = entries.map(|entry| {
        let path = entry.unwrap().path();
        (path.display().to_string(), fs::read_to_string(path).unwrap())
    });
    jobs.collect()
}

/// What stands between the quotes of the lines that begin with a word.
fn quoted<'t>(text: &'t str, word: &str) -> Vec<&'t str> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix(word))
        .filter_map(|line| line.split('"').nth(1))
        .collect()
}

/// Whether a group is what a `device` block names: a type, a vendor and a type, or these and a name.
fn is(group: &DeviceGroup, name: &str) -> bool {
    match name.splitn(3, '/').collect::<Vec<_>>()[..] {
        [kind] => group.device_type == kind,
        [vendor, kind] => group.vendor == vendor && group.device_type == kind,
        [vendor, kind, model] => {
            group.vendor == vendor && group.device_type == kind && group.device_name == model
        }
        _ => false,
    }
}

#[tokio::test]
async fn the_jobs_find_their_devices_and_attributes_on_a_captured_host() {
    let host = AgentHost::captured(X2);
    let agent = Agent::configured(&host, &json!({"runtime": "onload"})).await;
    let groups = agent.published().await;
    let jobs = jobs();
    assert_eq!(jobs.len(), 4);
    for (path, text) in jobs {
        let devices = quoted(&text, "device ");
        assert!(!devices.is_empty(), "{path}");
        for name in &devices {
            assert!(groups.values().any(|group| is(group, name)), "{path}: {name}");
        }
        for attribute in quoted(&text, "attribute") {
            let attribute =
                attribute.strip_prefix("${device.attr.").unwrap().strip_suffix('}').unwrap();
            let mut asked = groups.values().filter(|group| is(group, devices[0]));
            assert!(
                asked.any(|group| group.attributes.contains_key(attribute)),
                "{path}: {attribute}"
            );
        }
        assert_eq!(text.matches('{').count(), text.matches('}').count(), "{path}");
        assert!(text.contains(&format!(
            "job run packaging/nomad/examples/{}",
            path.rsplit('/').next().unwrap()
        )));
        // A task of a device that comes by ticket names the runtime.
        assert_eq!(
            devices.contains(&"vfio"),
            text.contains("runtime = \"onload\"\n        command"),
            "{path}"
        );
    }
}

/// The lines of each `constraint` block.
fn constraints(text: &str) -> Vec<String> {
    text.split("constraint {\n")
        .skip(1)
        .filter_map(|rest| rest.split_once("\n          }\n"))
        .map(|(block, _)| block.to_owned())
        .collect()
}

#[tokio::test]
async fn the_constraints_of_the_jobs_are_met_as_nomad_reads_them() {
    let host = AgentHost::captured(X2);
    let agent = Agent::configured(&host, &json!({"runtime": "onload"})).await;
    let groups = agent.published().await;
    let mut met = 0;
    for (path, text) in jobs() {
        let device = quoted(&text, "device ")[0];
        let constraints = constraints(&text);
        assert_eq!(constraints.len(), text.matches("constraint {").count());
        for constraint in constraints {
            let attribute = quoted(&constraint, "attribute")[0]
                .strip_prefix("${device.attr.")
                .unwrap()
                .strip_suffix('}')
                .unwrap();
            let operator = quoted(&constraint, "operator").first().copied();
            let value = quoted(&constraint, "value")[0];
            let mut asked = groups.values().filter(|group| is(group, device));
            assert!(
                asked.any(|group| {
                    let attribute = group.attributes.get(attribute);
                    attribute.is_some_and(|is| meets(is, operator.unwrap_or("="), value))
                }),
                "{path}: {constraint}"
            );
            met += 1;
        }
    }
    assert_eq!(met, 2);
}

#[test]
fn the_manual_page_has_every_option_with_its_variable() {
    let page =
        fs::read_to_string(packaging().join("onload-nomad-device.8")).unwrap().replace("\\-", "-");
    for argument in NomadCli::command().get_arguments() {
        let option = format!("--{}", argument.get_long().unwrap());
        assert!(page.contains(&option), "{option}");
        let variable = argument.get_env().unwrap().to_str().unwrap();
        assert!(page.contains(variable), "{variable}");
    }
}

#[test]
fn the_agents_configuration_names_settings_that_there_are() {
    let text = fs::read_to_string(packaging().join("agent.hcl")).unwrap();
    assert_eq!(quoted(&text, "plugin "), ["onload-nomad-device"]);
    let settings: BTreeSet<&str> = text
        .lines()
        .map(|line| line.trim().trim_start_matches("# "))
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, _)| name)
        .filter(|name| !name.contains(' '))
        .collect();
    assert_eq!(settings, BTreeSet::from(["mount_onload", "runtime"]));
    let known: Vec<&str> = TABLE.iter().map(|setting| setting.name).collect();
    assert!(["mount_onload", "runtime"].iter().all(|name| known.contains(name)));
}

#[test]
fn the_page_has_every_setting_with_its_type_and_default() {
    let page = fs::read_to_string(sources().join("docs/nomad.md")).unwrap();
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    for setting in TABLE {
        let name = format!("`{}`", setting.name);
        let row = rows
            .iter()
            .find(|row| row[1].split(", ").any(|each| each == name) && row.len() == 6)
            .unwrap_or_else(|| panic!("no row for {name}"));
        assert_eq!(row[2], setting.kind, "{name}");
        let default = setting.default.map(|literal| format!("`{literal}`"));
        assert_eq!(row[3], default.unwrap_or_default(), "{name}");
    }
}

#[tokio::test]
async fn the_page_has_every_attribute() {
    let page = fs::read_to_string(sources().join("docs/nomad.md")).unwrap();
    for name in ["x2-2port-sriov", "debian12-stand-ins"] {
        let host = AgentHost::captured(name);
        let agent = Agent::configured(&host, &json!({"runtime": "onload"})).await;
        let groups = agent.published().await;
        let attributes: BTreeSet<&String> =
            groups.values().flat_map(|group| group.attributes.keys()).collect();
        let is_missing = |attribute: &&&String| !page.contains(&format!("`{attribute}`"));
        let missing: Vec<&&String> = attributes.iter().filter(is_missing).collect();
        assert!(missing.is_empty(), "{name}: {missing:?}");
    }
}
