//! Unix sockets of this program in shared directories.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::geteuid;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

/// Time limit for connecting: a running process accepts at once, or its queue is full.
const CONNECT: Duration = Duration::from_secs(1);

/// Identifies a file among existing ones: its device and inode.
pub type FileIdentity = (u64, u64);

/// The time of a file's last attribute change, in seconds and nanoseconds.
pub type ChangeTime = (i64, i64);

/// Returns the identity and change time of the file at a path. A replacement may have the inode of the removed file,
/// but not its time.
pub fn identity(path: &Path) -> Option<(FileIdentity, ChangeTime)> {
    let metadata = fs::symlink_metadata(path).ok()?;
    let time = (metadata.ctime(), metadata.ctime_nsec());
    Some(((metadata.dev(), metadata.ino()), time))
}

/// The path of a socket. Dropping this removes the socket, if it is still the same.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: Option<FileIdentity>,
}

impl SocketFile {
    /// Returns whether the socket still exists: kubelet removes all sockets when it starts.
    pub fn exists(&self) -> bool {
        self.identity
            .is_some_and(|own| identity(&self.path).is_some_and(|(current, _)| current == own))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.exists() {
            // The next start removes a leftover socket.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Creates a socket to which only its owner can connect. Replaces a socket that a killed process of this user left; any
/// other file is kept.
pub fn bind(path: &Path) -> Result<(UnixListener, SocketFile)> {
    let shown = path.display();
    let making = || format!("making socket {shown}");
    match fs::symlink_metadata(path) {
        Ok(metadata) => {
            if !is_own_socket(&metadata) {
                bail!(
                    "making socket {shown}: another file or another user's socket has this name; \
                     move it away"
                );
            }
            fs::remove_file(path).with_context(making)?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(making),
    }
    let listener = UnixListener::bind(path).with_context(making)?;
    fs::set_permissions(path, Permissions::from_mode(0o600)).with_context(making)?;
    let socket_file =
        SocketFile { path: path.to_owned(), identity: identity(path).map(|(own, _)| own) };
    Ok((listener, socket_file))
}

/// Returns whether the file is this user's socket without a listener, left by a killed process.
pub async fn is_left_over(path: &Path) -> bool {
    if !fs::symlink_metadata(path).is_ok_and(|metadata| is_own_socket(&metadata)) {
        return false;
    }
    match timeout(CONNECT, UnixStream::connect(path)).await {
        Ok(Err(error)) => error.kind() == io::ErrorKind::ConnectionRefused,
        Ok(Ok(_)) | Err(_) => false,
    }
}

/// Returns whether this program may remove a file.
fn is_own_socket(metadata: &Metadata) -> bool {
    metadata.file_type().is_socket() && metadata.uid() == geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[tokio::test]
    async fn a_socket_is_for_its_owner_and_goes_with_its_program() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let (_listener, place) = bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(place.exists());
        drop(place);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn what_a_killed_process_left_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        bind(&path).unwrap();
    }

    #[tokio::test]
    async fn a_socket_is_left_over_when_nobody_listens_at_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        assert!(!is_left_over(&path).await, "there is none");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(!is_left_over(&path).await);
        drop(listener);
        assert!(is_left_over(&path).await);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert!(!is_left_over(&path).await, "it is a file of somebody's");
    }

    #[tokio::test]
    async fn what_is_no_socket_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("file"), "x").unwrap();
        fs::create_dir(path("dir")).unwrap();
        symlink(path("elsewhere"), path("link")).unwrap();
        for name in ["file", "dir", "link"] {
            let error = bind(&path(name)).unwrap_err().to_string();
            assert!(error.contains("another file ") && error.contains(name), "{error}");
            assert!(fs::symlink_metadata(path(name)).is_ok());
        }
        let error = bind(&path("absent/a.sock")).unwrap_err();
        let line = format!("making socket {}", path("absent/a.sock").display());
        assert_eq!(error.to_string(), line);
    }

    #[tokio::test]
    async fn another_users_socket_stays() {
        if !onload_test_needs::root("giving a file to another user") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
        let error = bind(&path).unwrap_err().to_string();
        assert!(error.ends_with("another user's socket has this name; move it away"), "{error}");
        assert!(path.exists());
    }

    #[tokio::test]
    async fn a_socket_that_took_the_place_of_ours_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let (_listener, place) = bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(!place.exists());
        drop(place);
        assert!(path.exists());
    }
}
