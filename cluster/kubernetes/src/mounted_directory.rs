//! A directory of kubelet's that stays open. If it is replaced on the host, a container's mount still shows the old one, where
//! kubelet does not find what is made there.

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use rustix::fs::{Mode, OFlags, fstat, open, stat};
use tokio::time::sleep;

/// How often [`watch`] examines a directory.
const INTERVAL: Duration = Duration::from_secs(10);

/// Fails if a mount shows a directory that was removed on the host. Waits for a directory that cannot be opened.
pub async fn watch(path: PathBuf) -> Result<Infallible> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut opened: Option<OwnedFd> = None;
    loop {
        match &opened {
            Some(directory) if is_at(directory, &path) => {
                if fstat(directory).is_ok_and(|stat| stat.st_nlink == 0) {
                    bail!(
                        "{} was replaced on the host, but this mount shows the old directory; \
                         restart the container",
                        path.display()
                    );
                }
            }
            _ => opened = open(&path, flags, Mode::empty()).ok(),
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
