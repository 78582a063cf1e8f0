//! Installed files that specifications depend on.

use std::path::Path;

use onload_core::config::Config;
use onload_core::onload::PRELOAD_FILE;

use crate::host::{EntryKind, Host, HostError};

pub const ONLOAD_SOCKET_DIR: &str = "/run/onload";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstalledFiles {
    pub hook: bool,
    pub preload_file: bool,
    pub onload_socket: bool,
}

impl InstalledFiles {
    pub fn read(host: &Host, config: &Config) -> Result<Self, HostError> {
        let is_file = |path: &Path| Ok(matches!(host.entry(path)?, Some(EntryKind::File { .. })));
        let socket = host.entry(Path::new(ONLOAD_SOCKET_DIR))?;
        Ok(InstalledFiles {
            hook: is_file(&config.cdi.hook_path)?,
            preload_file: is_file(Path::new(PRELOAD_FILE))?,
            onload_socket: socket == Some(EntryKind::Directory),
        })
    }
}
