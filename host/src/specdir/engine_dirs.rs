//! Where engines read specifications.

use std::path::{Path, PathBuf};

use onload_cdi::DEFAULT_DIRS;

use crate::host::{Host, HostError};

/// The directories of specifications that the engines of a host read, links in them followed inside it, each
/// of a higher priority than the one before.
///
/// # Errors
/// A link cannot be followed.
pub fn engine_dirs(host: &Host) -> Result<Vec<PathBuf>, HostError> {
    let dirs = DEFAULT_DIRS.into_iter().map(|dir| {
        let dir = Path::new(dir);
        Ok(match host.resolve(dir)? {
            Some(place) if !host.is_running() => host.outside_path(&place),
            _ => host.outside_path(dir),
        })
    });
    dirs.collect()
}
