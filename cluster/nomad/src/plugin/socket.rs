//! The socket, in a directory of its own that nobody else can enter: others use the one above it too.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::rand::{GetRandomFlags, getrandom};
use tokio::net::UnixListener;

/// How often a name is looked for that nobody has.
const ATTEMPTS: usize = 8;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
#[error("making a socket in {}", .dir.display())]
pub struct SocketError {
    dir: PathBuf,
    source: io::Error,
}

/// Where the socket is. It goes with this.
#[derive(Debug)]
pub struct Place {
    dir: PathBuf,
}

impl Place {
    /// The path of the socket.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.dir.join("plugin.sock")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Nobody is left to be told of what stays.
        let _ = fs::remove_file(self.path());
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Listens at a new socket.
///
/// # Errors
/// [`SocketError`].
pub fn bind(above: &Path) -> Result<(UnixListener, Place), SocketError> {
    let failed = |source| SocketError {
        dir: above.to_owned(),
        source,
    };
    let place = make_dir(above).map_err(failed)?;
    let listener = UnixListener::bind(place.path()).map_err(failed)?;
    Ok((listener, place))
}

fn make_dir(above: &Path) -> io::Result<Place> {
    let mut taken = io::Error::from(io::ErrorKind::AlreadyExists);
    for _ in 0..ATTEMPTS {
        let mut bytes = [0; 8];
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        let dir = above.join(format!("onload-nomad-{:016x}", u64::from_ne_bytes(bytes)));
        match DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => return Ok(Place { dir }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => taken = error,
            Err(error) => return Err(error),
        }
    }
    Err(taken)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use onload_core::text::Chain;

    use super::*;

    #[tokio::test]
    async fn nobody_else_can_reach_the_socket_and_it_goes_with_the_plugin() {
        let above = tempfile::tempdir().unwrap();
        let (_, place) = bind(above.path()).unwrap();
        let (_, other) = bind(above.path()).unwrap();
        assert_ne!(place.path(), other.path());
        let mode = fs::metadata(&place.dir).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert!(place.path().exists());
        drop((place, other));
        assert_eq!(fs::read_dir(above.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_directory_that_is_too_long_or_absent_is_named() {
        let above = tempfile::tempdir().unwrap();
        let long = above.path().join("a".repeat(100));
        fs::create_dir(&long).unwrap();
        for dir in [above.path().join("absent"), long] {
            let said = Chain(&bind(&dir).unwrap_err()).to_string();
            let begins = format!("making a socket in {}: ", dir.display());
            assert!(said.starts_with(&begins), "{said}");
        }
        assert_eq!(
            fs::read_dir(above.path().join("a".repeat(100)))
                .unwrap()
                .count(),
            0
        );
    }
}
