//! The list of drained devices, readable for all users.

use std::path::Path;

use onload_lease::drain::{DRAIN_PATH, DrainList, MAX_BYTES};
use onload_sys::error::Context;
use onload_sys::fs::atomic;
use onload_sys::processes::Processes;

use crate::host::Host;

/// World-readable, so that users who request a device learn why it is drained.
const MODE: u32 = 0o644;

/// Reads the list.
pub fn read(host: &Host) -> anyhow::Result<DrainList> {
    let path = Path::new(DRAIN_PATH);
    let Some(bytes) = host.bytes(path, MAX_BYTES)? else {
        return Ok(DrainList::default());
    };
    let drain = DrainList::parse(&bytes)
        .with_context(|| format!("reading {}", host.outside_path(path).display()))?;
    Ok(drain.without_expired(|| boot_id(host).ok()))
}

pub fn boot_id(host: &Host) -> onload_sys::error::Result<String> {
    let root = host.outside_path(Path::new("/"));
    let boot = Processes::at_root(&root).boot_id();
    boot.context("reading the boot id")
}

/// Replaces the file, or removes it if no device is drained.
pub fn write(host: &Host, drain: &DrainList) -> anyhow::Result<()> {
    let path = Path::new(DRAIN_PATH);
    let write_context = || format!("writing {}", host.outside_path(path).display());
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(());
    };
    let directory = host.create_directory(parent)?;
    let result = if drain.is_empty() {
        atomic::remove(&directory, name).map(drop)
    } else {
        let bytes = drain.to_bytes().with_context(write_context)?;
        atomic::write_atomic(&directory, name, &bytes, MODE)
    };
    Ok(result.map_err(|error| error.source).with_context(write_context)?)
}
