//! The directory where kubelet and device plugins meet. Kubelet empties it when it starts, and then makes its
//! own socket.

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

/// How soon a directory that was not there is looked for again.
const ABSENT: Duration = Duration::from_secs(1);
/// How often the directory is looked at although nothing was told of it, while kubelet's socket is there.
const CHECK: Duration = Duration::from_secs(10);

/// Kubelet, as the directory shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KubeletState {
    pub socket: Option<FileIdentity>,
    /// How many sockets of its were seen; a new one may have the numbers of the old.
    pub starts: u64,
}

/// A directory that is watched.
#[derive(Debug)]
struct WatchedDirectory {
    /// What tells of changes; `None` where the kernel gives nothing that does, and the directory is looked at often.
    events: Option<AsyncFd<OwnedFd>>,
    directory: MountedDirectory,
}

/// Tells of kubelet's coming and going, for ever, and of each change of the directory: a socket of ours may be gone. A
/// directory that is not there is waited for.
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

/// Until the directory is gone.
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
            // Its making may be told of after it was seen.
            let is_made = is_told && changed != time;
            if socket.is_some() && (is_made || kubelet.socket != socket) {
                kubelet.starts += 1;
            }
            kubelet.socket = socket;
        });
        changed = time;
        // inotify tells of the end of a directory when nobody has it open any more, and we have.
        let is_quiet = socket.is_some() && watched.events.is_some();
        let wait = if is_quiet { CHECK } else { ABSENT };
        is_told = match timeout(wait, watched.next()).await {
            Ok(result) => result.with_context(|| watch_context(path))?,
            // Without events each change of the socket counts: a new one may have the numbers of the old.
            Err(_) => watched.events.is_none(),
        };
        if !watched.directory.is_still_at(path) {
            kubelet.send_modify(|kubelet| kubelet.socket = None);
            return Ok(());
        }
        watched.directory.check_mount(path)?;
    }
}

fn watch_context(path: &Path) -> String {
    format!("watching {}", path.display())
}

impl WatchedDirectory {
    fn open(path: &Path) -> Result<Option<Self>> {
        let Some(directory) = MountedDirectory::open(path)? else {
            return Ok(None);
        };
        let events = open_inotify(path);
        if let Err(error) = &events {
            let path = path.display();
            tracing::warn!(%path, %error, "kubelet's directory is looked at every second: the kernel does not tell of its changes; raise the sysctls fs.inotify.max_user_instances and fs.inotify.max_user_watches");
        }
        Ok(Some(WatchedDirectory { events: events.ok(), directory }))
    }

    /// Waits for changes; whether a socket of kubelet's was made.
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

/// What tells of changes in a directory. A user has few instances of inotify(7), and all containers of root share
/// them.
fn open_inotify(path: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let flags = WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    inotify::add_watch(&events, path, flags)?;
    // tokio's safe constructor is deprecated for types whose descriptor may change while it is registered. That of an
    // `OwnedFd` cannot.
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
        assert_eq!(error.to_string(), watch_context(file.path()));
    }
}
