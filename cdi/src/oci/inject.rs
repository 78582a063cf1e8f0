//! Applies container edits to a configuration.

use std::io;
use std::path::Path;

use rustix::fs::{FileType, lstat, major, minor};
use thiserror::Error;

use super::config::{DeviceRule, MountEntry, OciConfig, OciConfigError, OciDevice, OciHook};
use crate::spec::{ContainerEdits, DeviceNode, Hook, IntelRdt};
use crate::validate::{Problems, validate_edits};

/// Why edits could not be applied. The configuration may be partly changed and must be discarded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InjectError {
    /// The edits themselves are invalid.
    #[error("checking the edits")]
    Invalid(#[from] Problems),
    /// A device node of the host is missing, is not a device, or does not have the type in the edits.
    #[error("looking at the device node {path}")]
    Node {
        /// Path on the host.
        path: String,
        /// The kernel's error, or the reason.
        source: io::Error,
    },
    /// The configuration could not be read or changed.
    #[error(transparent)]
    Config(#[from] OciConfigError),
}

/// The type of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A character device.
    Char,
    /// A block device.
    Block,
    /// A named pipe.
    Fifo,
}

impl NodeKind {
    /// Returns the letter in an OCI configuration.
    #[must_use]
    pub const fn letter(self) -> &'static str {
        match self {
            Self::Char => "c",
            Self::Block => "b",
            Self::Fifo => "p",
        }
    }
}

/// A device node of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostNode {
    /// Type of the node.
    pub kind: NodeKind,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Permission bits, at most `0o7777`.
    pub mode: u32,
}

/// A source of device nodes.
pub trait NodeLookup {
    /// Reads the node at `host_path`, without following a symbolic link.
    ///
    /// # Errors
    /// The kernel's error, or `InvalidInput` if it is not a device node.
    fn node(&self, host_path: &str) -> io::Result<HostNode>;
}

/// The device nodes in the mount namespace of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostNodes;

impl NodeLookup for HostNodes {
    fn node(&self, host_path: &str) -> io::Result<HostNode> {
        let stat = lstat(Path::new(host_path))?;
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::CharacterDevice => NodeKind::Char,
            FileType::BlockDevice => NodeKind::Block,
            FileType::Fifo => NodeKind::Fifo,
            _ => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a device node"));
            }
        };
        let mode = stat.st_mode & 0o7777;
        Ok(HostNode { kind, major: major(stat.st_rdev), minor: minor(stat.st_rdev), mode })
    }
}

/// Applies `edits` to `config`.
///
/// A device replaces the first one at its path, and a mount the first one at its destination. Then all
/// mounts are sorted, stably, by the depth of their destinations. Hooks and cgroup rules are appended
/// on every call, even if they are already in the configuration.
///
/// # Errors
/// [`InjectError`]. The configuration must then be discarded.
pub fn apply(
    config: &mut OciConfig,
    edits: &ContainerEdits,
    lookup: &dyn NodeLookup,
) -> Result<(), InjectError> {
    validate_edits(edits)?;
    if !edits.env.is_empty() {
        config.append_env(&edits.env)?;
    }
    add_devices(config, &edits.device_nodes, lookup)?;
    for device in &edits.net_devices {
        config.set_net_device(&device.host_interface_name, &device.name)?;
    }
    add_mounts(config, edits)?;
    config.add_hooks(&edits.hooks)?;
    if let Some(rdt) = &edits.intel_rdt {
        set_rdt(config, rdt)?;
    }
    for gid in edits.additional_gids.iter().filter(|gid| **gid != 0) {
        config.add_additional_gid(*gid)?;
    }
    Ok(())
}

/// Adds the option `idmap` to each bind mount of the edits, and `ridmap` to each recursive one,
/// unless it already has one of the two. Meant for containers with a user namespace
/// ([`OciConfig::namespace_paths`]), in which the files then keep their owners. The engines' library
/// does so since its commit d4d5861 of 2026, which is in no release up to 1.1.0.
pub fn map_ids(edits: &mut ContainerEdits) {
    for mount in &mut edits.mounts {
        let has = |option: &str| mount.options.iter().any(|other| other == option);
        if has("idmap") || has("ridmap") {
            continue;
        }
        let bound = mount.options.iter().rev().find_map(|option| match &**option {
            "bind" => Some("idmap"),
            "rbind" => Some("ridmap"),
            _ => None,
        });
        let by_type = (mount.type_.as_deref() == Some("bind")).then_some("idmap");
        mount.options.extend(bound.or(by_type).map(str::to_owned));
    }
}

/// Adds devices and their cgroup rules in one pass each, since the existing lists may be long.
fn add_devices(
    config: &mut OciConfig,
    device_nodes: &[DeviceNode],
    lookup: &dyn NodeLookup,
) -> Result<(), InjectError> {
    if device_nodes.is_empty() {
        return Ok(());
    }
    let mut devices = Vec::with_capacity(device_nodes.len());
    let mut rules = Vec::with_capacity(device_nodes.len());
    for node in device_nodes {
        let device = resolve(node, lookup)?;
        rules.extend(cgroup_rule(&device, node));
        devices.push(device);
    }
    let user = config.user()?;
    for device in &mut devices {
        device.uid = device.uid.or((user.uid > 0).then_some(user.uid));
        device.gid = device.gid.or((user.gid > 0).then_some(user.gid));
    }
    config.set_devices(&devices)?;
    if !rules.is_empty() {
        config.add_device_rules(&rules)?;
    }
    Ok(())
}

/// Returns the cgroup rule for a device, or `None` for a pipe.
fn cgroup_rule(device: &OciDevice, node: &DeviceNode) -> Option<DeviceRule> {
    if device.type_ != "b" && device.type_ != "c" {
        return None;
    }
    let access = node.permissions.as_deref().filter(|access| !access.is_empty());
    Some(DeviceRule {
        allow: true,
        type_: Some(device.type_.clone()),
        major: Some(device.major),
        minor: Some(device.minor),
        access: Some(access.unwrap_or("rwm").to_owned()),
    })
}

/// Completes a device node from the host's node. If the edits have its type and major number, the
/// host's node may be missing; if it exists, its mode is used, since a rootless runtime bind-mounts
/// it.
fn resolve(node: &DeviceNode, lookup: &dyn NodeLookup) -> Result<OciDevice, InjectError> {
    let node_type = node.type_.as_deref().filter(|kind| !kind.is_empty());
    let major = node.major.unwrap_or_default();
    let mut device = OciDevice {
        path: node.path.clone(),
        type_: node_type.unwrap_or_default().to_owned(),
        major,
        minor: node.minor.unwrap_or_default(),
        file_mode: node.file_mode,
        uid: node.uid,
        gid: node.gid,
    };
    let is_complete = node_type.is_some_and(|kind| major != 0 || kind == "p");
    let path = node.source();
    let failed = |source| InjectError::Node { path: path.to_owned(), source };
    let host_node = match lookup.node(path) {
        Ok(host_node) => host_node,
        Err(_) if is_complete => return Ok(device),
        Err(source) => return Err(failed(source)),
    };
    device.file_mode = device.file_mode.or(Some(host_node.mode));
    if is_complete {
        return Ok(device);
    }
    let letter = host_node.kind.letter();
    if let Some(expected) = node_type.filter(|expected| *expected != letter) {
        let message = format!("it is of type {letter}, the edits say {expected}");
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, message)));
    }
    letter.clone_into(&mut device.type_);
    if device.major == 0 && device.type_ != "p" {
        device.major = host_node.major.into();
        device.minor = host_node.minor.into();
    }
    Ok(device)
}

fn add_mounts(config: &mut OciConfig, edits: &ContainerEdits) -> Result<(), OciConfigError> {
    if edits.mounts.is_empty() {
        return Ok(());
    }
    for mount in &edits.mounts {
        let kind = mount.type_.as_deref().unwrap_or_default();
        let entry = MountEntry::new(&mount.container_path, kind, &mount.host_path, &mount.options)?;
        let mounts = config.mounts_mut();
        if let Some(index) =
            mounts.iter().position(|other| other.has_destination(&mount.container_path))
        {
            mounts.remove(index);
        }
        mounts.push(entry);
    }
    config.mounts_mut().sort_by_cached_key(|mount| mount_depth(&mount.destination()));
    Ok(())
}

/// Returns the depth of a mount's destination, as engines count it to sort mounts: the number of
/// separators in the cleaned path, which is 1 for both `/` and `/a`, 2 for `/a/b`, and 0 for `a`.
#[must_use]
pub fn mount_depth(path: &str) -> usize {
    let absolute = path.starts_with('/');
    let mut components: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if components.last().is_some_and(|last| *last != "..") => {
                components.pop();
            }
            ".." if absolute => {}
            part => components.push(part),
        }
    }
    if absolute { components.len().max(1) } else { components.len().saturating_sub(1) }
}

impl From<&Hook> for OciHook {
    fn from(hook: &Hook) -> Self {
        let non_empty = |list: &[String]| (!list.is_empty()).then(|| list.to_vec());
        OciHook {
            path: hook.path.clone(),
            args: non_empty(&hook.args),
            env: non_empty(&hook.env),
            timeout: hook.timeout,
        }
    }
}

fn set_rdt(config: &mut OciConfig, rdt: &IntelRdt) -> Result<(), OciConfigError> {
    // The fields have the same names in both specifications.
    config
        .linux_mut()
        .write("intelRdt", rdt)
        .map_err(|error| OciConfigError::Change(error.with_key("linux")))
}
