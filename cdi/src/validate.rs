//! Checks a specification by the rules of the engines' library. [`lint`] reports valid but unwise
//! content.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Deref;

use crate::name::{DeviceName, HookName, Kind};
use crate::spec::{ContainerEdits, DeviceNode, IntelRdt, NetDevice, Spec};
use crate::version::{CdiVersion, Requirement, minimum_version};

/// Maximum total size of the annotations of a specification or device in bytes, as in the Go package
/// `schema` of CDI.
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

const EMPTY: &str = "it is empty";
const RELATIVE: &str = "it is not absolute";

/// An invalid or unwise part of a specification.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The location, such as `devices[0].containerEdits.env[1]`.
    pub location: String,
    /// Why this part is invalid or unwise.
    pub fault: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.location, self.fault)
    }
}

/// All problems that make a specification or edits invalid. Never empty when returned as an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            let separator = if index > 0 { "; " } else { "" };
            write!(formatter, "{separator}{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

impl Deref for Problems {
    type Target = [Problem];

    fn deref(&self) -> &[Problem] {
        &self.0
    }
}

impl From<Problems> for Vec<Problem> {
    fn from(problems: Problems) -> Self {
        problems.0
    }
}

impl Problems {
    fn new() -> Self {
        Self(Vec::new())
    }

    fn add(&mut self, location: impl Into<String>, fault: impl fmt::Display) {
        self.0.push(Problem { location: location.into(), fault: fault.to_string() });
    }

    fn into_result(self) -> Result<(), Self> {
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }
}

/// Checks `spec` as an engine does when it loads the file.
///
/// # Errors
/// All problems: those of the version, the kind and the edits of the file, then those of its devices.
pub fn validate(spec: &Spec) -> Result<(), Problems> {
    let mut problems = Problems::new();
    check_version(spec, &mut problems);
    if let Err(error) = spec.kind.parse::<Kind>() {
        problems.add("kind", error);
    }
    check_edits(&spec.container_edits, "containerEdits", &mut problems);
    if spec.devices.is_empty() {
        problems.add("devices", "none found, expected at least one");
    }
    let mut seen = BTreeSet::new();
    for (index, device) in spec.devices.iter().enumerate() {
        let location = format!("devices[{index}]");
        if let Err(error) = device.name.parse::<DeviceName>() {
            problems.add(format!("{location}.name"), error);
        }
        let name = device.name.as_str();
        if !seen.insert(name) {
            problems.add(format!("{location}.name"), format_args!("{name:?} appears twice"));
        }
        let edits_location = format!("{location}.containerEdits");
        if device.container_edits.is_empty() {
            problems.add(&edits_location, "a device without edits gives nothing");
        }
        check_edits(&device.container_edits, &edits_location, &mut problems);
    }
    problems.into_result()
}

/// Checks edits as an engine does before it applies them.
///
/// # Errors
/// All problems, in the order of the fields.
pub fn validate_edits(edits: &ContainerEdits) -> Result<(), Problems> {
    let mut problems = Problems::new();
    check_edits(edits, "containerEdits", &mut problems);
    problems.into_result()
}

fn check_version(spec: &Spec, problems: &mut Problems) {
    let declared = match spec.cdi_version.parse::<CdiVersion>() {
        Ok(declared) => declared,
        Err(error) => return problems.add("cdiVersion", error),
    };
    let Requirement { version, fields } = minimum_version(spec);
    if declared < version {
        let because = match fields.first() {
            Some(field) => format!("because of {field}"),
            None => "the first that readers accept".to_owned(),
        };
        problems
            .add("cdiVersion", format_args!("{declared} is too low, expected {version} {because}"));
    }
}

fn check_edits(edits: &ContainerEdits, location: &str, problems: &mut Problems) {
    check_env(&edits.env, &format!("{location}.env"), problems);
    for (index, node) in edits.device_nodes.iter().enumerate() {
        check_node(node, &format!("{location}.deviceNodes[{index}]"), problems);
    }
    check_net_devices(&edits.net_devices, &format!("{location}.netDevices"), problems);
    for (index, mount) in edits.mounts.iter().enumerate() {
        let location = format!("{location}.mounts[{index}]");
        if mount.host_path.is_empty() {
            problems.add(format!("{location}.hostPath"), EMPTY);
        }
        if mount.container_path.is_empty() {
            problems.add(format!("{location}.containerPath"), EMPTY);
        }
    }
    for (index, hook) in edits.hooks.iter().enumerate() {
        let location = format!("{location}.hooks[{index}]");
        if let Err(error) = hook.hook_name.parse::<HookName>() {
            problems.add(format!("{location}.hookName"), error);
        }
        if hook.path.is_empty() {
            problems.add(format!("{location}.path"), EMPTY);
        }
        check_env(&hook.env, &format!("{location}.env"), problems);
    }
    if let Some(rdt) = &edits.intel_rdt {
        check_rdt(rdt, &format!("{location}.intelRdt"), problems);
    }
}

fn check_env(env: &[String], location: &str, problems: &mut Problems) {
    for (index, entry) in env.iter().enumerate() {
        if entry.find('=').is_none_or(|position| position == 0) {
            problems.add(
                format!("{location}[{index}]"),
                format_args!("expected NAME=value, found {entry:?}"),
            );
        }
    }
}

fn check_node(node: &DeviceNode, location: &str, problems: &mut Problems) {
    if node.path.is_empty() {
        problems.add(format!("{location}.path"), EMPTY);
    }
    if let Some(kind) = node.type_.as_deref()
        && !["", "b", "c", "u", "p"].contains(&kind)
    {
        problems
            .add(format!("{location}.type"), format_args!("expected b, c, u or p, found {kind:?}"));
    }
    for (field, number) in [("major", node.major), ("minor", node.minor)] {
        if let Some(number) = number.filter(|number| *number < 0) {
            problems.add(format!("{location}.{field}"), format_args!("{number} is negative"));
        }
    }
    if let Some(permissions) = node.permissions.as_deref()
        && permissions.contains(|c| !"rwm".contains(c))
    {
        problems.add(
            format!("{location}.permissions"),
            format_args!("expected a subset of rwm, found {permissions:?}"),
        );
    }
}

fn check_net_devices(devices: &[NetDevice], location: &str, problems: &mut Problems) {
    let mut hosts = BTreeSet::new();
    let mut names = BTreeSet::new();
    for (index, device) in devices.iter().enumerate() {
        for (field, value, seen) in [
            ("hostInterfaceName", &device.host_interface_name, &mut hosts),
            ("name", &device.name, &mut names),
        ] {
            let location = format!("{location}[{index}].{field}");
            if value.is_empty() {
                problems.add(location, EMPTY);
            } else if !seen.insert(value.as_str()) {
                problems.add(location, format_args!("{value:?} appears twice"));
            }
        }
    }
}

/// Checks the name of a class of service, which is also the name of its directory in resctrl.
fn check_rdt(rdt: &IntelRdt, location: &str, problems: &mut Problems) {
    let Some(id) = rdt.clos_id.as_deref() else {
        return;
    };
    let is_file_name = id.len() < 4096 && id != "." && id != ".." && !id.contains(['/', '\n']);
    if id != "/" && !is_file_name {
        problems.add(format!("{location}.closID"), "expected a file name or / for the root class");
    }
}

/// Reports parts that engines accept, but that may not do what the author intended.
#[must_use]
pub fn lint(spec: &Spec) -> Vec<Problem> {
    let mut problems = Problems::new();
    if let Ok(kind) = spec.kind.parse::<Kind>()
        && (kind.vendor().len() == 1 || kind.class().len() == 1)
    {
        problems
            .add("kind", "readers before July 2026 crash on a vendor or class of one character");
    }
    lint_annotations(&spec.annotations, "annotations", &mut problems);
    lint_edits(&spec.container_edits, "containerEdits", &mut problems);
    for (index, device) in spec.devices.iter().enumerate() {
        let location = format!("devices[{index}]");
        lint_annotations(&device.annotations, &format!("{location}.annotations"), &mut problems);
        lint_edits(&device.container_edits, &format!("{location}.containerEdits"), &mut problems);
    }
    problems.0
}

fn lint_edits(edits: &ContainerEdits, location: &str, problems: &mut Problems) {
    for (index, node) in edits.device_nodes.iter().enumerate() {
        let location = format!("{location}.deviceNodes[{index}]");
        if node.host_path.as_ref() == Some(&node.path) {
            problems.add(
                format!("{location}.hostPath"),
                "it equals path; it only raises the required version to 0.5.0",
            );
        }
        if !node.path.starts_with('/') {
            problems.add(format!("{location}.path"), RELATIVE);
        }
    }
    for (index, mount) in edits.mounts.iter().enumerate() {
        let location = format!("{location}.mounts[{index}]");
        let binds = mount.options.iter().any(|option| option == "bind" || option == "rbind");
        if !binds && mount.type_.as_deref().is_none_or(|kind| kind.is_empty() || kind == "bind") {
            problems.add(
                format!("{location}.options"),
                "neither bind nor rbind: runc will not bind it",
            );
        }
        if !mount.container_path.starts_with('/') {
            problems.add(format!("{location}.containerPath"), RELATIVE);
        }
    }
    for (index, hook) in edits.hooks.iter().enumerate() {
        let location = format!("{location}.hooks[{index}]");
        if hook.env.is_empty() {
            problems.add(
                format!("{location}.env"),
                "empty: a runtime may hand on the container's own (CVE-2025-23266)",
            );
        }
        if !hook.path.starts_with('/') {
            problems.add(format!("{location}.path"), RELATIVE);
        }
        if hook.timeout.is_none() {
            problems
                .add(format!("{location}.timeout"), "none: a hook that hangs hangs the container");
        }
    }
}

/// Checks the keys and the size of annotations. The specification requires that keys are qualified
/// names, as in Kubernetes, but only the Go package `schema` enforces this: the check in the engines'
/// library has no effect.
fn lint_annotations(
    annotations: &BTreeMap<String, String>,
    location: &str,
    problems: &mut Problems,
) {
    let mut size = 0;
    for (key, value) in annotations {
        size += key.len() + value.len();
        if let Err(fault) = check_annotation_key(key) {
            problems.add(format!("{location}[{key:?}]"), fault);
        }
    }
    if size > MAX_ANNOTATION_BYTES {
        problems.add(
            location,
            format_args!("{size} bytes in all, expected at most {MAX_ANNOTATION_BYTES}"),
        );
    }
}

fn check_annotation_key(key: &str) -> Result<(), &'static str> {
    let key = key.to_ascii_lowercase();
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key.as_str()),
    };
    let is_valid = |text: &str, punctuation: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.ends_with(|c: char| c.is_ascii_alphanumeric())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || punctuation.contains(c))
    };
    if let Some(prefix) = prefix
        && (prefix.len() > 253 || !prefix.split('.').all(|label| is_valid(label, "-")))
    {
        return Err("the key's prefix is no DNS name of at most 253 bytes");
    }
    if name.len() > 63 || !is_valid(name, "-_.") {
        return Err(
            "the key's name is not 1 to 63 letters, digits, '-', '_' and '.', a letter or digit at both ends",
        );
    }
    Ok(())
}
