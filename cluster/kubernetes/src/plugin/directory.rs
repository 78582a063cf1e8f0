//! kubelet's directory for device plugin sockets. kubelet empties it when it starts, and then creates its own socket.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::watch::Sender;
use tokio::time::sleep;

use crate::socket::{ChangeTime, FileIdentity, identity};
use crate::wire::KUBELET_SOCKET;

/// Interval for reading the directory. After kubelet has started again it has no devices for at most this long.
const INTERVAL: Duration = Duration::from_secs(1);

/// kubelet's state according to the directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KubeletState {
    /// kubelet's socket. A new one may have the inode of the old, but not its time.
    pub socket: Option<(FileIdentity, ChangeTime)>,
    /// The number of kubelet sockets seen so far.
    pub starts: u64,
}

/// Publishes kubelet's state every second, even if it has not changed, since our own sockets may be gone. Waits for a
/// missing directory. Never returns without an error.
pub async fn watch(path: PathBuf, kubelet: Sender<KubeletState>) -> Result<Infallible> {
    let mut is_logged = false;
    loop {
        let context = || format!("watching {}", path.display());
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => is_logged = false,
            Ok(_) => {
                return Err(io::Error::from(io::ErrorKind::NotADirectory)).with_context(context);
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(context);
            }
            Err(_) if is_logged => {}
            Err(_) => {
                let path = path.display();
                tracing::info!(%path, "waiting for the directory of the device plugins");
                is_logged = true;
            }
        }
        let socket = identity(&path.join(KUBELET_SOCKET));
        kubelet.send_modify(|kubelet| {
            if socket.is_some() && kubelet.socket != socket {
                kubelet.starts += 1;
            }
            kubelet.socket = socket;
        });
        sleep(INTERVAL).await;
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
    async fn what_is_no_directory_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (sender, _kubelet) = channel(KubeletState::default());
        let Err(error) = watch(file.path().to_owned(), sender).await;
        assert_eq!(error.to_string(), format!("watching {}", file.path().display()));
    }
}
