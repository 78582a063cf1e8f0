//! The socket, in a private directory, since the parent directory is shared. The next plugin removes the socket of a
//! killed one.

use std::fs::{self, DirBuilder, DirEntry};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use onload_agent::random_id;
use rustix::process::geteuid;
use tokio::net::UnixListener;

const PREFIX: &str = "onload-nomad-";
/// The name of the socket once it accepts connections.
const SOCKET: &str = "plugin.sock";
/// Its name before that. Both names have the same length, which is limited (unix(7)).
const NEW: &str = "plugin.new~";

/// The directory of the socket, removed on drop.
#[derive(Debug)]
pub struct SocketDir {
    dir: PathBuf,
}

impl SocketDir {
    pub fn path(&self) -> PathBuf {
        self.dir.join(SOCKET)
    }
}

impl Drop for SocketDir {
    fn drop(&mut self) {
        // A failure here cannot be reported.
        let _ = fs::remove_file(self.path());
        let _ = fs::remove_dir(&self.dir);
    }
}

pub fn bind(above: &Path) -> Result<(UnixListener, SocketDir)> {
    remove_abandoned(above);
    bind_in(above).with_context(|| format!("making a socket in {}", above.display()))
}

fn bind_in(above: &Path) -> io::Result<(UnixListener, SocketDir)> {
    let socket_dir = make_dir(above)?;
    let new = socket_dir.dir.join(NEW);
    let listener = UnixListener::bind(&new)?;
    fs::rename(new, socket_dir.path())?;
    Ok((listener, socket_dir))
}

/// Removes the sockets of killed plugins. Failures are ignored, since a remaining one does no harm.
fn remove_abandoned(above: &Path) {
    for entry in fs::read_dir(above).into_iter().flatten().flatten() {
        if !is_own_dir(&entry) {
            continue;
        }
        let dir = entry.path();
        // A directory without the socket is being created.
        let error = UnixStream::connect(dir.join(SOCKET)).err().map(|error| error.kind());
        if error == Some(io::ErrorKind::ConnectionRefused) {
            drop(SocketDir { dir });
        }
    }
}

/// Returns whether a plugin of this user made the directory. Examines the entry itself, not the target of a link.
fn is_own_dir(entry: &DirEntry) -> bool {
    entry.file_name().to_string_lossy().starts_with(PREFIX)
        && entry.metadata().is_ok_and(|data| {
            data.is_dir() && data.uid() == geteuid().as_raw() && data.mode() & 0o077 == 0
        })
}

fn make_dir(above: &Path) -> io::Result<SocketDir> {
    let dir = above.join(format!("{PREFIX}{}", random_id()?));
    DirBuilder::new().mode(0o700).create(&dir)?;
    Ok(SocketDir { dir })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn nobody_else_can_reach_the_socket_and_it_goes_with_the_plugin() {
        let above = tempfile::tempdir().unwrap();
        let (_listener, place) = bind(above.path()).unwrap();
        let (_listener, other) = bind(above.path()).unwrap();
        assert_ne!(place.path(), other.path());
        let mode = fs::metadata(&place.dir).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert!(place.path().exists());
        drop((place, other));
        assert_eq!(fs::read_dir(above.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn the_socket_of_a_plugin_that_was_killed_goes_with_the_next_and_no_other() {
        let above = tempfile::tempdir().unwrap();
        let (listener, killed) = bind(above.path()).unwrap();
        let (_listening, living) = bind(above.path()).unwrap();
        drop(listener);
        let killed = std::mem::ManuallyDrop::new(killed);
        // Others may put anything beside them.
        let file = above.path().join("onload-nomad-file");
        fs::write(&file, "").unwrap();
        let link = above.path().join("onload-nomad-link");
        std::os::unix::fs::symlink(&killed.dir, &link).unwrap();
        let begun = make_dir(above.path()).unwrap();
        let (_next, next) = bind(above.path()).unwrap();
        assert!(!killed.dir.exists());
        let here = [&living.dir, &next.dir, &begun.dir, &file];
        assert!(here.iter().all(|path| path.exists()));
        assert!(link.is_symlink());
    }

    #[tokio::test]
    async fn a_directory_that_is_too_long_or_absent_is_named() {
        let above = tempfile::tempdir().unwrap();
        let long = above.path().join("a".repeat(100));
        fs::create_dir(&long).unwrap();
        for dir in [above.path().join("absent"), long] {
            let message = format!("{:#}", bind(&dir).unwrap_err());
            let begins = format!("making a socket in {}: ", dir.display());
            assert!(message.starts_with(&begins), "{message}");
        }
        assert_eq!(fs::read_dir(above.path().join("a".repeat(100))).unwrap().count(), 0);
    }
}
