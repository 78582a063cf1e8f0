//! What makes a specification valid beyond its form: the rules that the engines' library checks
//! when it loads a file. [`lint`] finds what loads but is unwise.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Deref;

use thiserror::Error;

use crate::name::NameError;
use crate::spec::{ContainerEdits, DeviceNode, IntelRdt, NetDevice, Spec};
use crate::version::{UnknownVersion, Version, minimum_version};

/// Bytes of one object's annotations that the specification's schema allows.
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

/// One thing that is wrong or unwise, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The location, such as `devices[0].containerEdits.env[1]`.
    pub location: String,
    /// What is wrong with it.
    pub fault: Fault,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.location, self.fault)
    }
}

/// What can be wrong or unwise at a location in a specification.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Not a released version.
    #[error(transparent)]
    Version(#[from] UnknownVersion),
    /// The version is lower than that of a field in use.
    #[error("{declared} is too low, want {needed} {}", because(.field.as_deref()))]
    LowVersion {
        /// The version of the file.
        declared: Version,
        /// The version that it needs.
        needed: Version,
        /// The first field that needs it; `None` if readers know no version as low as `declared`.
        field: Option<String>,
    },
    /// The kind, a device's name or a hook's stage is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// There are no devices.
    #[error("there is none, want at least one")]
    NoDevices,
    /// A name that must be unique is not.
    #[error("{0:?} is there twice")]
    Twice(String),
    /// A device changes nothing.
    #[error("a device without edits gives nothing")]
    NoEdits,
    /// A text is missing.
    #[error("it is empty")]
    Empty,
    /// An entry of an environment is not `NAME=value`.
    #[error("want NAME=value, found {0:?}")]
    Variable(String),
    /// A device node's type is invalid.
    #[error("want b, c, u or p, found {0:?}")]
    NodeType(String),
    /// A device node's number is negative.
    #[error("{0} is negative")]
    Negative(i64),
    /// A device node's permissions are invalid.
    #[error("want a subset of rwm, found {0:?}")]
    Permissions(String),
    /// Not a possible name of a resctrl class.
    #[error("want a file name or / for the root class")]
    ClosId,
    /// A vendor or class of one character.
    #[error("readers before July 2026 crash on a vendor or class of one character")]
    ShortName,
    /// The path on the host equals that in the container.
    #[error("it equals path, and asks for version 0.5.0 alone")]
    SamePath,
    /// A path that does not begin with `/`.
    #[error("it is not absolute")]
    Relative,
    /// A bind mount without a bind option.
    #[error("neither bind nor rbind: runc will not bind it")]
    Unbound,
    /// A hook has no environment.
    #[error("empty: a runtime may hand on the container's own (CVE-2025-23266)")]
    InheritedEnvironment,
    /// A hook has no timeout.
    #[error("none: a hook that hangs hangs the container")]
    NoTimeout,
    /// The part of an annotation's key before the slash is not valid in Kubernetes.
    #[error("the key's prefix is no DNS name of at most 253 bytes")]
    AnnotationPrefix,
    /// The key of an annotation is not valid in Kubernetes.
    #[error(
        "the key's name is not 1 to 63 letters, digits, '-', '_' and '.', a letter or digit at both ends"
    )]
    AnnotationName,
    /// More bytes of annotations than the specification's schema allows.
    #[error("{0} bytes in all, want at most {MAX_ANNOTATION_BYTES}")]
    AnnotationBytes(usize),
}

fn because(field: Option<&str>) -> String {
    match field {
        Some(field) => format!("because of {field}"),
        None => "the first that readers accept".to_owned(),
    }
}

/// Everything that makes a specification or edits invalid; at least one problem.
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

/// The problems found so far.
#[derive(Default)]
struct ProblemList(Vec<Problem>);

impl ProblemList {
    fn add(&mut self, location: impl Into<String>, fault: impl Into<Fault>) {
        self.0.push(Problem {
            location: location.into(),
            fault: fault.into(),
        });
    }

    fn done(self) -> Result<(), Problems> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Problems(self.0))
        }
    }
}

/// Checks `spec` as an engine does when it loads the file.
///
/// # Errors
/// Everything that is wrong, in the order of the file.
pub fn validate(spec: &Spec) -> Result<(), Problems> {
    let mut problems = ProblemList::default();
    check_version(spec, &mut problems);
    if let Err(error) = spec.kind.check() {
        problems.add("kind", error.clone());
    }
    check_edits(&spec.container_edits, "containerEdits", &mut problems);
    if spec.devices.is_empty() {
        problems.add("devices", Fault::NoDevices);
    }
    let mut seen = BTreeSet::new();
    for (index, device) in spec.devices.iter().enumerate() {
        let at = format!("devices[{index}]");
        if let Err(error) = device.name.check() {
            problems.add(format!("{at}.name"), error.clone());
        }
        let name = device.name.as_str();
        if !seen.insert(name) {
            problems.add(format!("{at}.name"), Fault::Twice(name.to_owned()));
        }
        let edits_at = format!("{at}.containerEdits");
        if device.container_edits.is_empty() {
            problems.add(&edits_at, Fault::NoEdits);
        }
        check_edits(&device.container_edits, &edits_at, &mut problems);
    }
    problems.done()
}

/// Checks `edits` alone, as an engine does before it applies them.
///
/// # Errors
/// Everything that is wrong, in the order of the fields.
pub fn validate_edits(edits: &ContainerEdits) -> Result<(), Problems> {
    let mut problems = ProblemList::default();
    check_edits(edits, "containerEdits", &mut problems);
    problems.done()
}

fn check_version(spec: &Spec, problems: &mut ProblemList) {
    let declared = match spec.cdi_version.parse::<Version>() {
        Ok(declared) => declared,
        Err(error) => return problems.add("cdiVersion", error),
    };
    let needed = minimum_version(spec);
    if declared < needed.version {
        let fault = Fault::LowVersion {
            declared,
            needed: needed.version,
            field: needed.fields.into_iter().next(),
        };
        problems.add("cdiVersion", fault);
    }
}

fn check_edits(edits: &ContainerEdits, at: &str, problems: &mut ProblemList) {
    check_env(&edits.env, &format!("{at}.env"), problems);
    for (index, node) in edits.device_nodes.iter().enumerate() {
        check_node(node, &format!("{at}.deviceNodes[{index}]"), problems);
    }
    check_net_devices(&edits.net_devices, &format!("{at}.netDevices"), problems);
    for (index, mount) in edits.mounts.iter().enumerate() {
        let at = format!("{at}.mounts[{index}]");
        if mount.host_path.is_empty() {
            problems.add(format!("{at}.hostPath"), Fault::Empty);
        }
        if mount.container_path.is_empty() {
            problems.add(format!("{at}.containerPath"), Fault::Empty);
        }
    }
    for (index, hook) in edits.hooks.iter().enumerate() {
        let at = format!("{at}.hooks[{index}]");
        if let Err(error) = hook.hook_name.check() {
            problems.add(format!("{at}.hookName"), error.clone());
        }
        if hook.path.is_empty() {
            problems.add(format!("{at}.path"), Fault::Empty);
        }
        check_env(&hook.env, &format!("{at}.env"), problems);
    }
    if let Some(rdt) = &edits.intel_rdt {
        check_rdt(rdt, &format!("{at}.intelRdt"), problems);
    }
}

fn check_env(env: &[String], at: &str, problems: &mut ProblemList) {
    for (index, entry) in env.iter().enumerate() {
        if entry.find('=').is_none_or(|position| position == 0) {
            problems.add(format!("{at}[{index}]"), Fault::Variable(entry.clone()));
        }
    }
}

fn check_node(node: &DeviceNode, at: &str, problems: &mut ProblemList) {
    if node.path.is_empty() {
        problems.add(format!("{at}.path"), Fault::Empty);
    }
    if let Some(kind) = node.type_.as_deref()
        && !["", "b", "c", "u", "p"].contains(&kind)
    {
        problems.add(format!("{at}.type"), Fault::NodeType(kind.to_owned()));
    }
    for (field, number) in [("major", node.major), ("minor", node.minor)] {
        if let Some(number) = number.filter(|number| *number < 0) {
            problems.add(format!("{at}.{field}"), Fault::Negative(number));
        }
    }
    if let Some(permissions) = node.permissions.as_deref()
        && permissions.contains(|c| !"rwm".contains(c))
    {
        let fault = Fault::Permissions(permissions.to_owned());
        problems.add(format!("{at}.permissions"), fault);
    }
}

fn check_net_devices(devices: &[NetDevice], at: &str, problems: &mut ProblemList) {
    let mut hosts = BTreeSet::new();
    let mut names = BTreeSet::new();
    for (index, device) in devices.iter().enumerate() {
        for (field, value, seen) in [
            ("hostInterfaceName", &device.host_interface_name, &mut hosts),
            ("name", &device.name, &mut names),
        ] {
            let at = format!("{at}[{index}].{field}");
            if value.is_empty() {
                problems.add(at, Fault::Empty);
            } else if !seen.insert(value.as_str()) {
                problems.add(at, Fault::Twice(value.clone()));
            }
        }
    }
}

/// A class is a directory of resctrl, so its name must be a valid file name.
fn check_rdt(rdt: &IntelRdt, at: &str, problems: &mut ProblemList) {
    let Some(id) = rdt.clos_id.as_deref() else {
        return;
    };
    let odd = id.len() >= 4096 || id == "." || id == ".." || id.contains(['/', '\n']);
    if id != "/" && odd {
        problems.add(format!("{at}.closID"), Fault::ClosId);
    }
}

/// What engines accept but may not do what the author meant.
#[must_use]
pub fn lint(spec: &Spec) -> Vec<Problem> {
    let mut problems = ProblemList::default();
    if let Some(kind) = spec.kind.valid()
        && (kind.vendor().len() == 1 || kind.class().len() == 1)
    {
        problems.add("kind", Fault::ShortName);
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

fn lint_edits(edits: &ContainerEdits, at: &str, problems: &mut ProblemList) {
    for (index, node) in edits.device_nodes.iter().enumerate() {
        let at = format!("{at}.deviceNodes[{index}]");
        if node.host_path.as_ref() == Some(&node.path) {
            problems.add(format!("{at}.hostPath"), Fault::SamePath);
        }
        if !node.path.starts_with('/') {
            problems.add(format!("{at}.path"), Fault::Relative);
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
            problems.add(format!("{at}.options"), Fault::Unbound);
        }
        if !mount.container_path.starts_with('/') {
            problems.add(format!("{at}.containerPath"), Fault::Relative);
        }
    }
    for (index, hook) in edits.hooks.iter().enumerate() {
        let at = format!("{at}.hooks[{index}]");
        if hook.env.is_empty() {
            problems.add(format!("{at}.env"), Fault::InheritedEnvironment);
        }
        if !hook.path.starts_with('/') {
            problems.add(format!("{at}.path"), Fault::Relative);
        }
        if hook.timeout.is_none() {
            problems.add(format!("{at}.timeout"), Fault::NoTimeout);
        }
    }
}

/// The specification requires annotation keys to be Kubernetes' qualified names. The library's
/// check does nothing; only its schema enforces that, so this is advice.
fn lint_annotations(annotations: &BTreeMap<String, String>, at: &str, problems: &mut ProblemList) {
    let mut size = 0;
    for (key, value) in annotations {
        size += key.len() + value.len();
        if let Err(fault) = annotation_key(key) {
            problems.add(format!("{at}[{key:?}]"), fault);
        }
    }
    if size > MAX_ANNOTATION_BYTES {
        problems.add(at, Fault::AnnotationBytes(size));
    }
}

fn annotation_key(key: &str) -> Result<(), Fault> {
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
        return Err(Fault::AnnotationPrefix);
    }
    if name.len() > 63 || !edge(name) || !inside(name, "-_.") {
        return Err(Fault::AnnotationName);
    }
    Ok(())
}
