//! A directory of kubelet's that stays open. If it is replaced on the host, a container's mount still shows the old one, where
//! kubelet does not find what is made there.

use std::convert::Infallible;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use onload_sys::mountinfo;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, fstat, open, stat, statx};
use tokio::time::sleep;

/// How often [`watch`] examines a directory.
const INTERVAL: Duration = Duration::from_secs(10);

/// Fails if a mount does not show the directory of the host any more. Waits for a directory that cannot be opened.
pub async fn watch(path: PathBuf) -> Result<Infallible> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // The directory, and its [`mount_root`] when it was opened.
    let mut opened: Option<(OwnedFd, Option<Vec<u8>>)> = None;
    loop {
        match &opened {
            Some((directory, root)) if is_at(directory, &path) => {
                check_mount(directory, root.as_deref(), &path)?;
            }
            _ => {
                let directory = open(&path, flags, Mode::empty()).ok();
                opened = directory.map(|directory| {
                    let root = mount_root(&directory);
                    (directory, root)
                });
            }
        }
        sleep(INTERVAL).await;
    }
}

/// Returns whether the path leads to this directory.
fn is_at(directory: &OwnedFd, path: &Path) -> bool {
    let current = stat(path).map(|stat| (stat.st_dev, stat.st_ino));
    let opened = fstat(directory).map(|stat| (stat.st_dev, stat.st_ino));
    current.is_ok() && current == opened
}

/// Fails if the directory was removed or renamed behind the mount at `path`.
fn check_mount(directory: &OwnedFd, root_before: Option<&[u8]>, path: &Path) -> Result<()> {
    let is_removed = fstat(directory).is_ok_and(|stat| stat.st_nlink == 0);
    let root = mount_root(directory);
    let is_renamed = root.is_some() && root_before.is_some() && root.as_deref() != root_before;
    if is_removed || is_renamed {
        bail!(
            "{} was replaced on the host, but this mount shows the old directory; restart the \
             container",
            path.display()
        );
    }
    Ok(())
}

/// The path, in its file system, of the directory that a mount shows; `None` before Linux 5.8, where statx(2) does not return
/// the mount of a file.
fn mount_root(directory: &OwnedFd) -> Option<Vec<u8>> {
    let id = statx(directory, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?.stx_mnt_id;
    let table = File::open("/proc/self/mountinfo").ok()?;
    let lines = mountinfo::filter_lines(table, &|mount| mount.id == id).ok()?;
    mountinfo::parse(&lines).next().map(|mount| mount.root.to_vec())
}
