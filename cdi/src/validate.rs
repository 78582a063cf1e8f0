//! What makes a specification valid, beyond its shape: the rules that the engines' library checks
//! when it loads a file. [`lint`] finds what loads but is unwise.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::name::{DeviceName, Kind};
use crate::spec::{ContainerEdits, DeviceNode, IntelRdt, NetDevice, Spec};
use crate::version::{self, Version};

/// One thing that is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The place, such as `devices[0].containerEdits.env[1]`.
    pub location: String,
    /// What is wrong with it.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.location, self.message)
    }
}

/// The stages of which a hook may be.
pub const HOOK_NAMES: [&str; 6] = [
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
];

#[derive(Default)]
struct Problems(Vec<Problem>);

impl Problems {
    fn add(&mut self, location: impl Into<String>, message: impl Into<String>) {
        self.0.push(Problem {
            location: location.into(),
            message: message.into(),
        });
    }

    fn done(self) -> Result<(), Vec<Problem>> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(self.0)
        }
    }
}

/// Checks `spec` as an engine does when it loads the file.
///
/// # Errors
/// Everything that is wrong, in the order of the file.
pub fn validate(spec: &Spec) -> Result<(), Vec<Problem>> {
    let mut problems = Problems::default();
    check_version(spec, &mut problems);
    if let Err(error) = spec.kind.parse::<Kind>() {
        problems.add("kind", error.to_string());
    }
    check_edits(&spec.container_edits, "containerEdits", &mut problems);
    if spec.devices.is_empty() {
        problems.add("devices", "there is none, want at least one");
    }
    let mut seen = BTreeSet::new();
    for (index, device) in spec.devices.iter().enumerate() {
        let at = format!("devices[{index}]");
        if let Err(error) = device.name.parse::<DeviceName>() {
            problems.add(format!("{at}.name"), error.to_string());
        }
        if !seen.insert(device.name.as_str()) {
            problems.add(
                format!("{at}.name"),
                format!("{:?} is there twice", device.name),
            );
        }
        let edits_at = format!("{at}.containerEdits");
        if device.container_edits.is_empty() {
            problems.add(&edits_at, "a device without edits gives nothing");
        }
        check_edits(&device.container_edits, &edits_at, &mut problems);
    }
    problems.done()
}

/// Checks `edits` alone, as an engine does before it applies them.
///
/// # Errors
/// Everything that is wrong, in the order of the fields.
pub fn validate_edits(edits: &ContainerEdits) -> Result<(), Vec<Problem>> {
    let mut problems = Problems::default();
    check_edits(edits, "containerEdits", &mut problems);
    problems.done()
}

fn check_version(spec: &Spec, problems: &mut Problems) {
    let declared = match spec.cdi_version.parse::<Version>() {
        Ok(declared) => declared,
        Err(error) => return problems.add("cdiVersion", error.to_string()),
    };
    let needed = version::minimum(spec);
    if declared < needed.version {
        let because = match needed.fields.first() {
            Some(field) => format!("because of {field}"),
            None => "the first that readers accept".to_owned(),
        };
        let message = format!("{declared} is too low, want {} {because}", needed.version);
        problems.add("cdiVersion", message);
    }
}

fn check_edits(edits: &ContainerEdits, at: &str, problems: &mut Problems) {
    check_env(&edits.env, &format!("{at}.env"), problems);
    for (index, node) in edits.device_nodes.iter().enumerate() {
        check_node(node, &format!("{at}.deviceNodes[{index}]"), problems);
    }
    check_net_devices(&edits.net_devices, &format!("{at}.netDevices"), problems);
    for (index, mount) in edits.mounts.iter().enumerate() {
        let at = format!("{at}.mounts[{index}]");
        if mount.host_path.is_empty() {
            problems.add(format!("{at}.hostPath"), "it is empty");
        }
        if mount.container_path.is_empty() {
            problems.add(format!("{at}.containerPath"), "it is empty");
        }
    }
    for (index, hook) in edits.hooks.iter().enumerate() {
        let at = format!("{at}.hooks[{index}]");
        if !HOOK_NAMES.contains(&hook.hook_name.as_str()) {
            let message = format!(
                "no stage is called {:?}: want one of {}",
                hook.hook_name,
                HOOK_NAMES.join(", ")
            );
            problems.add(format!("{at}.hookName"), message);
        }
        if hook.path.is_empty() {
            problems.add(format!("{at}.path"), "it is empty");
        }
        check_env(&hook.env, &format!("{at}.env"), problems);
    }
    if let Some(rdt) = &edits.intel_rdt {
        check_rdt(rdt, &format!("{at}.intelRdt"), problems);
    }
}

fn check_env(env: &[String], at: &str, problems: &mut Problems) {
    for (index, entry) in env.iter().enumerate() {
        if entry.find('=').is_none_or(|position| position == 0) {
            problems.add(
                format!("{at}[{index}]"),
                format!("want NAME=value, found {entry:?}"),
            );
        }
    }
}

fn check_node(node: &DeviceNode, at: &str, problems: &mut Problems) {
    if node.path.is_empty() {
        problems.add(format!("{at}.path"), "it is empty");
    }
    if let Some(kind) = node.type_.as_deref()
        && !["", "b", "c", "u", "p"].contains(&kind)
    {
        problems.add(
            format!("{at}.type"),
            format!("want b, c, u or p, found {kind:?}"),
        );
    }
    for (field, number) in [("major", node.major), ("minor", node.minor)] {
        if let Some(number) = number.filter(|number| *number < 0) {
            problems.add(format!("{at}.{field}"), format!("{number} is negative"));
        }
    }
    if let Some(permissions) = node.permissions.as_deref()
        && permissions.contains(|c| !"rwm".contains(c))
    {
        let message = format!("want a subset of rwm, found {permissions:?}");
        problems.add(format!("{at}.permissions"), message);
    }
}

fn check_net_devices(devices: &[NetDevice], at: &str, problems: &mut Problems) {
    let mut hosts = BTreeSet::new();
    let mut names = BTreeSet::new();
    for (index, device) in devices.iter().enumerate() {
        for (field, value, seen) in [
            ("hostInterfaceName", &device.host_interface_name, &mut hosts),
            ("name", &device.name, &mut names),
        ] {
            let at = format!("{at}[{index}].{field}");
            if value.is_empty() {
                problems.add(at, "it is empty");
            } else if !seen.insert(value.as_str()) {
                problems.add(at, format!("{value:?} is there twice"));
            }
        }
    }
}

/// A class is a directory of resctrl, so its name is a file's name.
fn check_rdt(rdt: &IntelRdt, at: &str, problems: &mut Problems) {
    let Some(id) = rdt.clos_id.as_deref() else {
        return;
    };
    let odd = id.len() >= 4096 || id == "." || id == ".." || id.contains(['/', '\n']);
    if id != "/" && odd {
        problems.add(
            format!("{at}.closID"),
            "want a file name or / for the root class",
        );
    }
}

/// What engines load but may not do what its author meant.
#[must_use]
pub fn lint(spec: &Spec) -> Vec<Problem> {
    let mut problems = Problems::default();
    if let Ok(kind) = spec.kind.parse::<Kind>()
        && (kind.vendor().len() == 1 || kind.class().len() == 1)
    {
        problems.add(
            "kind",
            "readers before July 2026 crash on a vendor or class of one character",
        );
    }
    lint_annotations(&spec.annotations, "annotations", &mut problems);
    lint_edits(&spec.container_edits, "containerEdits", &mut problems);
    for (index, device) in spec.devices.iter().enumerate() {
        let at = format!("devices[{index}]");
        lint_annotations(
            &device.annotations,
            &format!("{at}.annotations"),
            &mut problems,
        );
        lint_edits(
            &device.container_edits,
            &format!("{at}.containerEdits"),
            &mut problems,
        );
    }
    problems.0
}

fn lint_edits(edits: &ContainerEdits, at: &str, problems: &mut Problems) {
    for (index, node) in edits.device_nodes.iter().enumerate() {
        let at = format!("{at}.deviceNodes[{index}]");
        if node.host_path.as_ref() == Some(&node.path) {
            problems.add(
                format!("{at}.hostPath"),
                "it equals path, and asks for version 0.5.0 alone",
            );
        }
        if !node.path.starts_with('/') {
            problems.add(format!("{at}.path"), "it is not absolute");
        }
    }
    for (index, mount) in edits.mounts.iter().enumerate() {
        let at = format!("{at}.mounts[{index}]");
        let binds = mount
            .options
            .iter()
            .any(|option| option == "bind" || option == "rbind");
        if !binds
            && mount
                .type_
                .as_deref()
                .is_none_or(|kind| kind.is_empty() || kind == "bind")
        {
            problems.add(
                format!("{at}.options"),
                "neither bind nor rbind: runc will not bind it",
            );
        }
        if !mount.container_path.starts_with('/') {
            problems.add(format!("{at}.containerPath"), "it is not absolute");
        }
    }
    for (index, hook) in edits.hooks.iter().enumerate() {
        let at = format!("{at}.hooks[{index}]");
        if hook.env.is_empty() {
            let message = "empty: a runtime may hand on the container's own (CVE-2025-23266)";
            problems.add(format!("{at}.env"), message);
        }
        if !hook.path.starts_with('/') {
            problems.add(format!("{at}.path"), "it is not absolute");
        }
        if hook.timeout.is_none() {
            problems.add(
                format!("{at}.timeout"),
                "none: a hook that hangs hangs the container",
            );
        }
    }
}

/// The specification wants annotation keys to be Kubernetes' qualified names; the library's check
/// of it does nothing, only its schema does, so this is advice.
fn lint_annotations(annotations: &BTreeMap<String, String>, at: &str, problems: &mut Problems) {
    const MAX_BYTES: usize = 256 * 1024;
    let mut size = 0;
    for (key, value) in annotations {
        size += key.len() + value.len();
        if let Err(message) = annotation_key(key) {
            problems.add(format!("{at}[{key:?}]"), message);
        }
    }
    if size > MAX_BYTES {
        problems.add(at, format!("{size} bytes in all, want at most {MAX_BYTES}"));
    }
}

fn annotation_key(key: &str) -> Result<(), &'static str> {
    let key = key.to_ascii_lowercase();
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key.as_str()),
    };
    let edge = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    let inside = |text: &str, more: &str| {
        text.chars()
            .all(|c| c.is_ascii_alphanumeric() || more.contains(c))
    };
    if let Some(prefix) = prefix
        && !(prefix.len() <= 253
            && prefix
                .split('.')
                .all(|label| edge(label) && inside(label, "-")))
    {
        return Err("the key's prefix is no DNS name of at most 253 bytes");
    }
    if name.len() > 63 || !edge(name) || !inside(name, "-_.") {
        return Err(
            "the key's name is not 1 to 63 letters, digits, '-', '_' and '.', a letter or digit at both ends",
        );
    }
    Ok(())
}
