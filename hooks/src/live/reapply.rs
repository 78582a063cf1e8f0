//! `reapply ID`: opens the devices of a running container again. Some engines rewrite the rules of
//! its cgroup when its limits change (podman update with crun), and the added rules are lost.

use std::path::{Path, PathBuf};

use onload_core::container_id::ContainerId;
use onload_core::fs::trust::TrustError;
use onload_core::run_dir::RUN_DIR;
use rustix::fs::{FileType, major, minor, stat};

use super::devices::{self, DevicesError};
use super::error::CgroupError;
use super::inspect::own_device_cgroup;
use crate::host::sysfs::Numbers;
use crate::host::{HostFilesError, HostView, ThisHost};
use crate::process::init::{Init, InitError};
use crate::run::record::{self, Live, RecordError};

/// Why nothing was opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReapplyError {
    /// The files of the host cannot be used.
    #[error(transparent)]
    Host(#[from] HostFilesError),
    /// The record cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(
        "{0:?} has no state.json: no devices were opened to that container while it ran; is this its full id?"
    )]
    Unknown(PathBuf),
    /// The operator has disabled this entry point since.
    #[error("live-devices = false in {0}, so no device is opened to a running container")]
    Closed(String),
    /// The process cannot be examined.
    #[error(transparent)]
    Init(#[from] InitError),
    /// Another process now has its number.
    #[error(
        "process {pid} started at {now} and the container's init at {then}, so that is another process; start the container again"
    )]
    Other {
        pid: u32,
        /// When the container's init started, in clock ticks since boot.
        then: u64,
        now: u64,
    },
    /// Another device now has the numbers, or none has.
    #[error(
        "device node {node:?} is no longer character device {was}, so the node in the container is not that device; start the container again"
    )]
    Renumbered {
        /// The node on this host.
        node: PathBuf,
        /// Its numbers when the container started.
        was: Numbers,
    },
    /// Its cgroup cannot be used.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The devices were not opened.
    #[error(transparent)]
    Devices(#[from] DevicesError),
}

impl onload_core::error::Typed for ReapplyError {}

/// Opens the devices of a container again. Returns warnings.
///
/// # Errors
/// [`ReapplyError`].
pub(crate) fn run(id: &ContainerId, config: &Path) -> Result<Vec<String>, ReapplyError> {
    let host = ThisHost::with_config(config)?;
    let settings = host.settings()?;
    let path = Path::new(RUN_DIR).join(id.as_str());
    let dir = match host.trusted().open_dir(&path) {
        Ok(dir) => dir,
        Err(error @ TrustError::Open { .. }) if error.is_absent() => {
            return Err(ReapplyError::Unknown(path));
        }
        Err(error) => return Err(HostFilesError::from(error).into()),
    };
    let live: Live = record::read(&dir, record::STATE)?.ok_or(ReapplyError::Unknown(path))?;
    if live.rules.is_empty() {
        return Ok(Vec::new());
    }
    if !settings.config.annotations.live_devices {
        return Err(ReapplyError::Closed(settings.file.display().to_string()));
    }
    let init = Init::open(Some(live.pid))?;
    let now = init.start_time()?;
    if now != live.start_time {
        return Err(ReapplyError::Other {
            pid: live.pid,
            then: live.start_time,
            now,
        });
    }
    for (rule, node) in live.rules.iter().zip(&live.nodes) {
        check_node(node, rule.numbers())?;
    }
    let Some(device_cgroup) = own_device_cgroup(&init)? else {
        return Ok(Vec::new());
    };
    Ok(devices::allow(&device_cgroup, id, &live.rules)?.warnings)
}

/// Checks that a node of this host still has its numbers. A reloaded driver gets others, and the
/// old ones may be assigned to another device.
fn check_node(node: &Path, was: Numbers) -> Result<(), ReapplyError> {
    let now = stat(node).ok().filter(|stat| {
        let is_character = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
        is_character && (major(stat.st_rdev), minor(stat.st_rdev)) == (was.major, was.minor)
    });
    let gone = || ReapplyError::Renumbered {
        node: node.to_owned(),
        was,
    };
    now.map(drop).ok_or_else(gone)
}
