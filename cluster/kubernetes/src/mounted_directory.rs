//! A directory of kubelet's that stays open. If it is replaced on the host, a container's mount still shows the old one, where
//! kubelet does not find what is made there.

use std::convert::Infallible;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use onload_sys::mountinfo;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, fstat, open, stat, statx};
use rustix::io::Errno;
use tokio::time::sleep;

/// How often [`watch`] examines a directory.
const INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct MountedDirectory {
    directory: OwnedFd,
    /// [`mount_root`] of the directory when it was opened.
    mount_root: Option<Vec<u8>>,
}

impl MountedDirectory {
    /// Returns `None` if there is no such directory.
    pub fn open(path: &Path) -> Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match open(path, flags, Mode::empty()) {
            Ok(directory) => {
                let mount_root = mount_root(&directory);
                Ok(Some(MountedDirectory { directory, mount_root }))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("watching {}", path.display())),
        }
    }

    /// Whether the path still leads to this directory.
    pub fn is_still_at(&self, path: &Path) -> bool {
        let current = stat(path).map(|stat| (stat.st_dev, stat.st_ino));
        let opened = fstat(&self.directory).map(|stat| (stat.st_dev, stat.st_ino));
        current.is_ok() && current == opened
    }

    /// Fails if the directory was removed or renamed behind the mount at `path`.
    pub fn check_mount(&self, path: &Path) -> Result<()> {
        let is_removed = fstat(&self.directory).is_ok_and(|stat| stat.st_nlink == 0);
        let root = mount_root(&self.directory);
        let is_renamed = root.is_some() && self.mount_root.is_some() && root != self.mount_root;
        if is_removed || is_renamed {
            bail!(
                "{} was replaced on the host, but this mount shows the old directory; restart the \
                 container",
                path.display()
            );
        }
        Ok(())
    }
}

/// Fails if a mount does not show the directory of the host any more. Waits for a directory that cannot be opened.
pub async fn watch(path: PathBuf) -> Result<Infallible> {
    let mut opened: Option<MountedDirectory> = None;
    loop {
        match &opened {
            Some(directory) if directory.is_still_at(&path) => directory.check_mount(&path)?,
            _ => opened = MountedDirectory::open(&path).ok().flatten(),
        }
        sleep(INTERVAL).await;
    }
}

/// The path, in its file system, of the directory that a mount shows; `None` before Linux 5.8, where statx(2) does not return
/// the mount of a file.
fn mount_root(directory: &OwnedFd) -> Option<Vec<u8>> {
    let id = statx(directory, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?.stx_mnt_id;
    let table = File::open("/proc/self/mountinfo").ok()?;
    let lines = mountinfo::filter_lines(table, &|mount| mount.id == id).ok()?;
    mountinfo::parse(&lines).next().map(|mount| mount.root.to_vec())
}
