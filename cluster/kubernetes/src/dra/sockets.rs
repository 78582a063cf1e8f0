//! The two sockets of an instance in kubelet's directory: for registration and for service. Two instances may run while
//! a DaemonSet is updated; kubelet then calls the one that registered last.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use onload_agent::random_id;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use tokio::net::UnixListener;
use tokio::time::sleep;

use super::DRIVER;
use crate::socket::{self, SocketFile, is_left_over};

/// The directory in which kubelet looks for sockets of plugins, relative to its root. kubelet creates it.
const REGISTRY: &str = "plugins_registry";
/// The parent of the plugins' own directories.
const PLUGINS: &str = "plugins";
/// The name of the first instance's registration socket.
///
/// It has an `@` for a reason. kubelet calls the path of that socket the authority of its requests, percent-escaped
/// (`%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2F…`; `encodeAuthority` of grpc-go), and in an authority the library
/// that we serve HTTP/2 with allows `%` only before an `@`. Without one each request of kubelet is answered with
/// RST_STREAM, and the driver never registers.
pub(super) const REGISTRATION_SOCKET: &str = "onload.dev@reg.sock";
/// Prefix and suffix of our sockets there. Later instances have an id in between.
const REGISTRATION: (&str, &str) = ("onload.dev@reg", ".sock");
/// Prefix and suffix of our sockets in our own directory.
const SERVICE: (&str, &str) = ("dra-", ".sock");
/// Only root may enter our directory.
const PRIVATE: u32 = 0o700;
/// Interval for checking whether another starting instance has finished.
const RETRY: Duration = Duration::from_millis(50);
const MAX_TRIES: u32 = 100;

pub(super) type ListeningSocket = (UnixListener, SocketFile);

#[derive(Debug)]
pub(super) struct DriverSockets {
    /// The registration socket.
    pub(super) registration: ListeningSocket,
    /// The service socket.
    pub(super) service: ListeningSocket,
    pub(super) endpoint: PathBuf,
}

/// Returns the remedy if kubelet has not created its directory.
pub(super) fn missing_registry_reason(kubelet: &Path) -> Option<String> {
    let registry = kubelet.join(REGISTRY);
    (!registry.is_dir()).then(|| {
        format!(
            "registering with kubelet: {} does not exist; start kubelet, or set --kubelet-dir to \
             its --root-dir and mount that in the pod",
            registry.display()
        )
    })
}

/// Returns the directories with sockets of the driver.
pub(crate) fn socket_dirs(kubelet: &Path) -> [PathBuf; 2] {
    [kubelet.join(REGISTRY), driver_dir(kubelet)]
}

/// Returns the directory of this driver.
pub(super) fn driver_dir(kubelet: &Path) -> PathBuf {
    kubelet.join(PLUGINS).join(DRIVER)
}

impl DriverSockets {
    /// Creates the sockets, and removes those of killed instances. Other files with these names are kept.
    pub(super) async fn bind(kubelet: &Path) -> Result<Self> {
        let registry = kubelet.join(REGISTRY);
        let dir = driver_dir(kubelet);
        let _lock = lock(&dir).await?;
        let was_killed = remove_stale_sockets(&registry, REGISTRATION).await;
        remove_stale_sockets(&dir, SERVICE).await;
        let instance = random_id().context("choosing the name of a socket")?;
        let endpoint = dir.join(format!("{}{instance}{}", SERVICE.0, SERVICE.1));
        let service = socket::bind(&endpoint)?;
        let first = registry.join(REGISTRATION_SOCKET);
        // kubelet backs off from a path without an answer, up to two minutes, and continues to wait if the socket is
        // created again. So after a leftover socket a new name is used.
        let registration = if was_killed || is_socket(&first) {
            registry.join(format!("{}-{instance}{}", REGISTRATION.0, REGISTRATION.1))
        } else {
            first
        };
        let registration = socket::bind(&registration)?;
        Ok(DriverSockets { registration, service, endpoint })
    }
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// Locks our directory against other starting instances until the result is dropped.
async fn lock(dir: &Path) -> Result<OwnedFd> {
    let making = || format!("making the directory {}", dir.display());
    // The parent directory is kubelet's and may not exist yet.
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(PRIVATE);
    builder.create(dir).with_context(making)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = rustix::fs::open(dir, flags, Mode::empty()).with_context(making)?;
    for _ in 0..MAX_TRIES {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(lock),
            Err(Errno::WOULDBLOCK) => sleep(RETRY).await,
            Err(error) => return Err(error).with_context(making),
        }
    }
    bail!("another onload-kubernetes uses {}; stop it", dir.display())
}

/// Removes our sockets without a listener. Returns whether there were any.
async fn remove_stale_sockets(directory: &Path, (begin, end): (&str, &str)) -> bool {
    let mut was_there = false;
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_ours = name.strip_prefix(begin).is_some_and(|rest| rest.ends_with(end));
        let path = entry.path();
        if !is_ours || !is_left_over(&path).await {
            continue;
        }
        was_there = true;
        match fs::remove_file(&path) {
            Ok(()) => {
                tracing::info!(path = %path.display(), "removed the socket of a killed instance");
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "could not remove the socket of a \
                    killed instance");
            }
        }
    }
    was_there
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::os::unix::net::UnixListener as StdListener;

    use http::uri::Authority;

    use super::*;
    use onload_test_tree::names_in;

    fn kubelet() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(REGISTRY)).unwrap();
        dir
    }

    /// The authority that grpc-go derives from a path (`encodeAuthority` in clientconn.go).
    fn authority(path: &str) -> String {
        path.replace('/', "%2F")
    }

    #[test]
    fn the_name_of_the_registration_socket_is_one_that_http_2_takes_as_authority() {
        let parsed = |path: &str| authority(path).parse::<Authority>();
        for name in [REGISTRATION_SOCKET, "onload.dev@reg-0a1b2c3d.sock"] {
            let path = format!("/var/lib/kubelet/plugins_registry/{name}");
            assert!(parsed(&path).is_ok(), "{path}");
        }
        assert!("%2F..%2Fonload.dev@reg.sock".parse::<Authority>().is_ok());
        for name in ["onload.dev-reg.sock", "onload.dev.sock"] {
            let path = format!("/var/lib/kubelet/plugins_registry/{name}");
            assert!(parsed(&path).is_err(), "{path}: the reason for the @ is gone");
        }
        assert!("%2F..%2Fonload.dev-reg.sock".parse::<Authority>().is_err());
    }

    #[tokio::test]
    async fn sockets_stand_where_kubelet_looks_and_go_with_the_instance() {
        let dir = kubelet();
        let sockets = DriverSockets::bind(dir.path()).await.unwrap();
        assert_eq!(names_in(&dir.path().join(REGISTRY)), ["onload.dev@reg.sock"]);
        let own = dir.path().join("plugins/onload.dev");
        assert_eq!(fs::metadata(&own).unwrap().mode() & 0o777, 0o700);
        assert_eq!(sockets.endpoint.parent(), Some(own.as_path()));
        drop(sockets);
        assert!(names_in(&dir.path().join(REGISTRY)).is_empty());
        assert!(names_in(&own).is_empty());
    }

    #[tokio::test]
    async fn two_instances_have_sockets_of_their_own() {
        let dir = kubelet();
        let registry = dir.path().join(REGISTRY);
        let first = DriverSockets::bind(dir.path()).await.unwrap();
        let second = DriverSockets::bind(dir.path()).await.unwrap();
        let both = names_in(&registry);
        assert_eq!((both.len(), both[1].as_str()), (2, REGISTRATION_SOCKET), "{both:?}");
        assert!(both[0].starts_with("onload.dev@reg-"), "{both:?}");
        assert_ne!(first.endpoint, second.endpoint);
        // The end of the first takes nothing of the second's, and gives its name to the third.
        drop(first);
        assert_eq!(names_in(&registry), both[..1]);
        let third = DriverSockets::bind(dir.path()).await.unwrap();
        assert_eq!(names_in(&registry), both);
        drop((second, third));
    }

    #[tokio::test]
    async fn what_killed_instances_left_is_swept() {
        let dir = kubelet();
        let registry = dir.path().join(REGISTRY);
        let own = dir.path().join("plugins/onload.dev");
        fs::create_dir_all(&own).unwrap();
        for path in [
            registry.join(REGISTRATION_SOCKET),
            registry.join("onload.dev@reg-0a1b2c3d.sock"),
            own.join("dra-0a1b2c3d.sock"),
            registry.join("dra.net.sock"),
        ] {
            drop(StdListener::bind(path).unwrap());
        }
        fs::write(own.join("dra-notes.sock"), "").unwrap();
        let sockets = DriverSockets::bind(dir.path()).await.unwrap();
        // kubelet may be waiting for long before it tries the old name again.
        let left = names_in(&registry);
        assert_eq!((left.len(), left[0].as_str()), (2, "dra.net.sock"));
        assert!(
            left[1].starts_with("onload.dev@reg-") && left[1] != "onload.dev@reg-0a1b2c3d.sock",
            "{left:?}"
        );
        let file = sockets.endpoint.file_name().unwrap().to_str().unwrap();
        let mut there = vec![file.to_owned(), "dra-notes.sock".to_owned()];
        there.sort();
        assert_eq!(names_in(&own), there);
    }

    #[tokio::test]
    async fn what_is_somebody_else_s_in_the_place_of_a_socket_stays() {
        let dir = kubelet();
        let place = dir.path().join(REGISTRY).join(REGISTRATION_SOCKET);
        fs::write(&place, "x").unwrap();
        let line = DriverSockets::bind(dir.path()).await.unwrap_err().to_string();
        assert!(
            line.ends_with(
                "onload.dev@reg.sock: another file or another user's socket has this name; move it away"
            ),
            "{line}"
        );
        fs::remove_file(&place).unwrap();
        symlink("/nowhere", &place).unwrap();
        assert!(DriverSockets::bind(dir.path()).await.is_err());
        assert!(fs::symlink_metadata(&place).is_ok());
    }

    #[tokio::test]
    async fn a_directory_that_is_not_kubelet_s_is_refused_with_the_flag() {
        let dir = tempfile::tempdir().unwrap();
        let line = missing_registry_reason(dir.path()).unwrap();
        assert!(
            line.contains(
                "start kubelet, or set --kubelet-dir to its --root-dir and mount that in the pod"
            ),
            "{line}"
        );
        let dir = kubelet();
        assert_eq!(missing_registry_reason(dir.path()), None);
        fs::write(dir.path().join(PLUGINS), "").unwrap();
        let line = DriverSockets::bind(dir.path()).await.unwrap_err().to_string();
        assert!(line.starts_with("making the directory "), "{line}");
    }

    #[tokio::test]
    async fn a_path_that_is_too_long_for_a_socket_is_refused() {
        let dir = kubelet();
        let long = dir.path().join("a".repeat(100));
        fs::create_dir_all(long.join(REGISTRY)).unwrap();
        let line = DriverSockets::bind(&long).await.unwrap_err().to_string();
        assert!(line.starts_with("making socket "), "{line}");
    }
}
