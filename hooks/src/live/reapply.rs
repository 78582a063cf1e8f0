//! `reapply ID`: opens the devices of a running container again. Some engines rewrite the rules of
//! its cgroup when its limits change (podman update with crun), and the added rules are lost.

use std::path::Path;

use onload_core::container_id::ContainerId;
use onload_lease::run_dir::RUN_DIR;
use onload_sys::error::{Result, bail};
use rustix::fs::stat;

use super::devices;
use super::inspect::own_device_cgroup;
use super::systemd::SOCKET;
use crate::decide::host_view::{HostView, LocalHost};
use crate::decide::sysfs::{DeviceNumber, device_number};
use crate::record::container_record;
use crate::record::init::InitProcess;

/// Opens the devices of a container again. Returns warnings.
pub(crate) fn run(id: &ContainerId, config: &Path) -> Result<Vec<String>> {
    let host = LocalHost::with_config(config)?;
    let settings = host.settings()?;
    let path = Path::new(RUN_DIR).join(id.as_str());
    let record = match host.trusted().open_dir(&path) {
        Ok(dir) => container_record::read(&dir)?,
        Err(error) if error.is_absent() => None,
        Err(error) => return Err(error.into()),
    };
    let Some(injection) = record.and_then(|record| record.live) else {
        bail!(
            "{path:?} has no record of a hook that finished: no devices were opened to that container while it ran; is this its full id?"
        );
    };
    if injection.rules.is_empty() {
        return Ok(Vec::new());
    }
    if !settings.config.annotations.live_devices {
        bail!(
            "live-devices = false in {}, so no device is opened to a running container",
            settings.file.display()
        );
    }
    let init = InitProcess::open(Some(injection.pid))?;
    let (now, then) = (init.start_time()?, injection.start_time);
    if now != then {
        bail!(
            "process {} started at {now} and the container's init at {then}, so that is another process; start the container again",
            injection.pid
        );
    }
    for (rule, node) in injection.rules.iter().zip(&injection.nodes) {
        check_node(node, rule.numbers())?;
    }
    match own_device_cgroup(&init)? {
        Some(own) => {
            Ok(devices::allow_devices(&own, id, &injection.rules, Path::new(SOCKET))?.warnings)
        }
        None => Ok(Vec::new()),
    }
}

/// Checks that a node of this host still has its numbers. A reloaded driver gets others, and the
/// old ones may be assigned to another device.
fn check_node(node: &Path, was: DeviceNumber) -> Result<()> {
    if !stat(node).is_ok_and(|stat| device_number(&stat) == Some(was)) {
        bail!(
            "device node {node:?} is no longer character device {was}, so the node in the container is not that device; start the container again"
        );
    }
    Ok(())
}
