//! What specifications depend on besides a host's devices.

use std::path::Path;

use onload_core::config::Config;
use onload_core::onload::PRELOAD_FILE;

use crate::host::{EntryKind, Host, HostError};

/// The directory of the socket of Onload's controller of shared queues.
pub const ONLOAD_SOCKET_DIR: &str = "/run/onload";

/// What specifications depend on besides a host's devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// The hook's binary exists at the configured path.
    pub hook: bool,
    /// [`PRELOAD_FILE`] exists.
    pub preload_file: bool,
    /// [`ONLOAD_SOCKET_DIR`] exists.
    pub onload_socket: bool,
}

impl Surroundings {
    /// Those of a host.
    ///
    /// # Errors
    /// One of the places cannot be looked at.
    pub fn of(host: &Host, config: &Config) -> Result<Self, HostError> {
        let is_file = |path: &Path| Ok(matches!(host.entry(path)?, Some(EntryKind::File { .. })));
        let socket = host.entry(Path::new(ONLOAD_SOCKET_DIR))?;
        Ok(Surroundings {
            hook: is_file(&config.cdi.hook_path)?,
            preload_file: is_file(Path::new(PRELOAD_FILE))?,
            onload_socket: socket == Some(EntryKind::Directory),
        })
    }
}
