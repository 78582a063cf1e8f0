//! The output of the program that started the hook, for failures that its user would not see otherwise.
//!
//! crun discards what hooks print (containers/crun, pull request 200), and podman what precreate hooks print. The
//! hook writes to the standard error of crun, which conmon reports to podman, or of podman itself. podman reads crun's
//! log instead if that is one JSON object (libpod/oci_conmon_common.go, `readConmonPipeData`), so the line is added there
//! too.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use onload_sys::text::to_one_line;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getppid, pidfd_getfd, pidfd_open};
use serde_json::json;

/// The name of the log that podman has crun write.
const LOG_NAME: &str = "oci-log";
const STDERR: i32 = 2;

/// Writes a line. Fails before Linux 5.6, or if this process may not use the descriptors of its parent.
pub(crate) fn write_line(line: &str) -> io::Result<()> {
    let Some(parent) = getppid().filter(|parent| !parent.is_init()) else {
        return Ok(());
    };
    let pidfd = pidfd_open(parent, PidfdFlags::empty())?;
    let open =
        |descriptor| pidfd_getfd(&pidfd, descriptor, PidfdGetfdFlags::empty()).map(File::from);
    let line = to_one_line(line);
    let descriptors = format!("/proc/{}/fd", parent.as_raw_pid());
    if let Some(log) = find_log(descriptors.as_ref())? {
        let entry = json!({"level": "error", "msg": line});
        open(log)?.write_all(format!("{entry}\n").as_bytes())?;
    }
    open(STDERR)?.write_all(format!("{line}\n").as_bytes())
}

fn find_log(descriptors: &Path) -> io::Result<Option<i32>> {
    for entry in fs::read_dir(descriptors)? {
        let entry = entry?;
        if fs::read_link(entry.path()).is_ok_and(|target| target.ends_with(LOG_NAME)) {
            return Ok(entry.file_name().to_str().and_then(|name| name.parse().ok()));
        }
    }
    Ok(None)
}
