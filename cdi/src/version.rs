//! Versions of the CDI specification, and the minimum version of a file.

use std::str::FromStr;

use thiserror::Error;

use crate::name::text_enum;
use crate::spec::{ContainerEdits, Spec};

text_enum! {
    /// A released version of the CDI specification, ordered by release.
    #[expect(missing_docs, reason = "the names are the numbers")]
    #[non_exhaustive]
    pub enum CdiVersion {
        V0_1_0 = "0.1.0",
        V0_2_0 = "0.2.0",
        V0_3_0 = "0.3.0",
        V0_4_0 = "0.4.0",
        V0_5_0 = "0.5.0",
        V0_6_0 = "0.6.0",
        V0_7_0 = "0.7.0",
        V0_8_0 = "0.8.0",
        V1_0_0 = "1.0.0",
        V1_1_0 = "1.1.0",
    }
}

impl CdiVersion {
    /// The first version that readers accept.
    pub const EARLIEST: Self = Self::V0_3_0;
    /// The latest version that this crate supports.
    pub const CURRENT: Self = Self::V1_1_0;
}

/// The error for a text that is not a released version. Readers reject it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("unknown CDI version {0:?}: known are 0.1.0 to 1.1.0, as released")]
pub struct UnknownVersion(pub String);

impl FromStr for CdiVersion {
    type Err = UnknownVersion;

    /// Accepts one leading `v`, as readers do.
    fn from_str(text: &str) -> Result<Self, UnknownVersion> {
        let number = text.strip_prefix('v').unwrap_or(text);
        Self::ALL
            .into_iter()
            .find(|version| version.as_str() == number)
            .ok_or_else(|| UnknownVersion(text.to_owned()))
    }
}

/// The minimum version of a specification, and the fields that require it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Requirement {
    /// The minimum version.
    pub version: CdiVersion,
    /// The fields that require this version, such as `devices[2].containerEdits.mounts[0].type`.
    /// Empty for [`CdiVersion::EARLIEST`].
    pub fields: Vec<String>,
}

/// Returns the minimum version of `spec`.
#[must_use]
pub fn minimum_version(spec: &Spec) -> Requirement {
    let requirements = list_requirements(spec);
    let version =
        requirements.iter().map(|requirement| requirement.0).max().unwrap_or(CdiVersion::EARLIEST);
    let fields = requirements
        .into_iter()
        .filter(|requirement| requirement.0 == version)
        .map(|requirement| requirement.1)
        .collect();
    Requirement { version, fields }
}

/// Lists the fields of `spec` that are newer than [`CdiVersion::EARLIEST`], with the version that
/// introduced each, in file order.
fn list_requirements(spec: &Spec) -> Vec<(CdiVersion, String)> {
    let mut requirements = Vec::new();
    if spec
        .kind
        .as_str()
        .split_once('/')
        .is_some_and(|(vendor, class)| !vendor.is_empty() && class.contains('.'))
    {
        requirements.push((CdiVersion::V0_6_0, "kind".to_owned()));
    }
    if !spec.annotations.is_empty() {
        requirements.push((CdiVersion::V0_6_0, "annotations".to_owned()));
    }
    add_edit_requirements(&spec.container_edits, "containerEdits", &mut requirements);
    for (index, device) in spec.devices.iter().enumerate() {
        let location = format!("devices[{index}]");
        let name = device.name.as_str();
        if name.starts_with(|c: char| !c.is_ascii_alphabetic()) {
            requirements.push((CdiVersion::V0_5_0, format!("{location}.name")));
        }
        if !device.annotations.is_empty() {
            requirements.push((CdiVersion::V0_6_0, format!("{location}.annotations")));
        }
        add_edit_requirements(
            &device.container_edits,
            &format!("{location}.containerEdits"),
            &mut requirements,
        );
    }
    requirements
}

fn add_edit_requirements(
    edits: &ContainerEdits,
    location: &str,
    requirements: &mut Vec<(CdiVersion, String)>,
) {
    for (index, node) in edits.device_nodes.iter().enumerate() {
        if node.host_path.as_ref().is_some_and(|path| !path.is_empty()) {
            requirements
                .push((CdiVersion::V0_5_0, format!("{location}.deviceNodes[{index}].hostPath")));
        }
    }
    if !edits.net_devices.is_empty() {
        requirements.push((CdiVersion::V1_1_0, format!("{location}.netDevices")));
    }
    for (index, mount) in edits.mounts.iter().enumerate() {
        if mount.type_.as_ref().is_some_and(|kind| !kind.is_empty()) {
            requirements.push((CdiVersion::V0_4_0, format!("{location}.mounts[{index}].type")));
        }
    }
    if let Some(rdt) = &edits.intel_rdt {
        requirements.push((CdiVersion::V0_7_0, format!("{location}.intelRdt")));
        if !rdt.schemata.is_empty() {
            requirements.push((CdiVersion::V1_1_0, format!("{location}.intelRdt.schemata")));
        }
        if rdt.enable_monitoring {
            requirements
                .push((CdiVersion::V1_1_0, format!("{location}.intelRdt.enableMonitoring")));
        }
    }
    if !edits.additional_gids.is_empty() {
        requirements.push((CdiVersion::V0_7_0, format!("{location}.additionalGids")));
    }
}
