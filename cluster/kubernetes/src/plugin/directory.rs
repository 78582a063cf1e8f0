//! kubelet's directory for device plugin sockets. kubelet empties it when it starts, and then creates its own socket.

use std::convert::Infallible;
use std::ffi::CStr;
use std::future::pending;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch::Sender;
use tokio::time::{sleep, timeout};

use crate::mounted_directory::MountedDirectory;
use crate::socket::{FileIdentity, identity};
use crate::wire::KUBELET_SOCKET;

/// Interval for checking whether a missing directory exists.
const ABSENT: Duration = Duration::from_secs(1);
/// Interval for checking the directory without an event while kubelet's socket exists.
const CHECK: Duration = Duration::from_secs(10);

/// kubelet's state according to the directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KubeletState {
    pub socket: Option<FileIdentity>,
    /// The number of kubelet sockets seen so far; a new one may have the inode of the old.
    pub starts: u64,
}

/// A watched directory.
#[derive(Debug)]
struct WatchedDirectory {
    /// The inotify descriptor. `None` if it could not be created, in which case the directory is checked often.
    events: Option<AsyncFd<OwnedFd>>,
    directory: MountedDirectory,
}

/// Publishes kubelet's state, and each change of the directory, since our sockets may be gone. Waits for a missing
/// directory. Never returns without an error.
pub async fn watch(path: PathBuf, kubelet: Sender<KubeletState>) -> Result<Infallible> {
    let mut is_logged = false;
    loop {
        if let Some(watched) = WatchedDirectory::open(&path)? {
            is_logged = false;
            watch_until_removed(&path, &watched, &kubelet).await?;
        } else if !is_logged {
            tracing::info!(path = %path.display(), "waiting for the directory of the device plugins");
            is_logged = true;
        }
        sleep(ABSENT).await;
    }
}

/// Watches until the directory is gone.
async fn watch_until_removed(
    path: &Path,
    watched: &WatchedDirectory,
    kubelet: &Sender<KubeletState>,
) -> Result<()> {
    let mut is_told = false;
    let mut changed = None;
    loop {
        let (socket, time) = identity(&path.join(KUBELET_SOCKET)).unzip();
        kubelet.send_modify(|kubelet| {
            // The event of its creation may arrive after it was seen.
            let is_made = is_told && changed != time;
            if socket.is_some() && (is_made || kubelet.socket != socket) {
                kubelet.starts += 1;
            }
            kubelet.socket = socket;
        });
        changed = time;
        // inotify reports the deletion of a directory only after all descriptors are closed, and this program has one.
        let is_quiet = socket.is_some() && watched.events.is_some();
        let wait = if is_quiet { CHECK } else { ABSENT };
        is_told = match timeout(wait, watched.next()).await {
            Ok(result) => result.with_context(|| format!("watching {}", path.display()))?,
            // Without events each change of the socket counts, since a new one may have the inode of the old.
            Err(_) => watched.events.is_none(),
        };
        if !watched.directory.is_still_at(path) {
            kubelet.send_modify(|kubelet| kubelet.socket = None);
            return Ok(());
        }
        watched.directory.check_mount(path)?;
    }
}

impl WatchedDirectory {
    fn open(path: &Path) -> Result<Option<Self>> {
        let Some(directory) = MountedDirectory::open(path)? else {
            return Ok(None);
        };
        let events = open_inotify(path);
        if let Err(error) = &events {
            let path = path.display();
            tracing::warn!(%path, %error, "kubelet's directory is read every second, because the \
                kernel cannot report its changes; raise the sysctls fs.inotify.max_user_instances \
                and fs.inotify.max_user_watches");
        }
        Ok(Some(WatchedDirectory { events: events.ok(), directory }))
    }

    /// Waits for changes. Returns whether kubelet created a socket.
    async fn next(&self) -> io::Result<bool> {
        let Some(events) = &self.events else {
            return pending().await;
        };
        loop {
            let mut ready = events.readable().await?;
            match read(events.get_ref()) {
                Ok(is_made) => return Ok(is_made),
                Err(Errno::WOULDBLOCK) => ready.clear_ready(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Opens inotify(7) for a directory. This can fail because a user has few instances, which all of root's containers
/// share.
fn open_inotify(path: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let flags = WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    inotify::add_watch(&events, path, flags)?;
    // tokio's safe constructor is deprecated for types whose descriptor may change while it is registered, which an
    // `OwnedFd` does not do.
    #[allow(deprecated)]
    let events = AsyncFd::new(events);
    events
}

fn read(events: &OwnedFd) -> Result<bool, Errno> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(events, &mut buffer);
    let mut is_made = false;
    let mut is_first = true;
    loop {
        let event = match reader.next() {
            Ok(event) => event,
            Err(Errno::WOULDBLOCK) if !is_first => return Ok(is_made),
            Err(error) => return Err(error),
        };
        is_first = false;
        let flags = event.events();
        let name = event.file_name().map(CStr::to_bytes);
        let is_kubelet = name == Some(KUBELET_SOCKET.as_bytes());
        let appeared = flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
        is_made |= is_kubelet && appeared;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tokio::sync::watch::{Receiver, channel};

    use super::*;

    async fn until(
        kubelet: &mut Receiver<KubeletState>,
        is: impl Fn(&KubeletState) -> bool,
    ) -> KubeletState {
        *kubelet.wait_for(is).await.unwrap()
    }

    #[tokio::test]
    async fn each_new_socket_of_kubelet_is_a_start() {
        let dir = tempfile::tempdir().unwrap();
        let (sender, mut kubelet) = channel(KubeletState::default());
        tokio::spawn(watch(dir.path().to_owned(), sender));
        kubelet.changed().await.unwrap();
        let path = dir.path().join(KUBELET_SOCKET);
        for start in 1..=3 {
            fs::write(&path, "").unwrap();
            let now = until(&mut kubelet, |kubelet| kubelet.starts == start).await;
            assert!(now.socket.is_some());
            fs::remove_file(&path).unwrap();
            until(&mut kubelet, |kubelet| kubelet.socket.is_none()).await;
        }
        // One that takes the place of another in a rename.
        fs::write(&path, "").unwrap();
        until(&mut kubelet, |kubelet| kubelet.starts == 4).await;
        fs::write(dir.path().join("other"), "").unwrap();
        fs::rename(dir.path().join("other"), &path).unwrap();
        until(&mut kubelet, |kubelet| kubelet.starts == 5).await;
    }

    #[tokio::test]
    async fn a_directory_that_comes_later_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("device-plugins");
        let (sender, mut kubelet) = channel(KubeletState::default());
        tokio::spawn(watch(path.clone(), sender));
        for start in 1..=2 {
            fs::create_dir(&path).unwrap();
            fs::write(path.join(KUBELET_SOCKET), "").unwrap();
            until(&mut kubelet, |kubelet| kubelet.starts == start).await;
            fs::remove_dir_all(&path).unwrap();
            until(&mut kubelet, |kubelet| kubelet.socket.is_none()).await;
        }
    }

    #[tokio::test]
    async fn without_events_each_new_socket_of_kubelet_is_found_too() {
        let dir = tempfile::tempdir().unwrap();
        let (sender, mut kubelet) = channel(KubeletState::default());
        let path = dir.path().join(KUBELET_SOCKET);
        fs::write(&path, "").unwrap();
        let mut watched = WatchedDirectory::open(dir.path()).unwrap().unwrap();
        watched.events = None;
        let directory = dir.path().to_owned();
        let followed =
            tokio::spawn(async move { watch_until_removed(&directory, &watched, &sender).await });
        until(&mut kubelet, |kubelet| kubelet.starts == 1).await;
        // Nobody sees that it was away for a moment.
        fs::write(dir.path().join("other"), "").unwrap();
        fs::rename(dir.path().join("other"), &path).unwrap();
        until(&mut kubelet, |kubelet| kubelet.starts == 2).await;
        fs::remove_file(&path).unwrap();
        until(&mut kubelet, |kubelet| kubelet.socket.is_none()).await;
        drop(dir);
        followed.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn what_is_no_directory_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (sender, _kubelet) = channel(KubeletState::default());
        let Err(error) = watch(file.path().to_owned(), sender).await;
        assert_eq!(error.to_string(), format!("watching {}", file.path().display()));
    }
}
