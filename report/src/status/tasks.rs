//! The tasks of containerd, of which people choose the ids where no cluster does (`ctr run`).

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use onload_host::bundles;
use onload_host::host::Host;

pub(super) struct Tasks<'h> {
    host: &'h Host,
    /// One for each namespace, which it is called after.
    directories: Vec<PathBuf>,
}

impl<'h> Tasks<'h> {
    pub(super) fn of(host: &'h Host) -> Self {
        // What cannot be read is not known.
        let list = |path: &Path| bundles::list(host, path).unwrap_or_default();
        Tasks {
            host,
            directories: bundles::of_containerd(list),
        }
    }

    /// Whether a namespace has a task of that id. Both are parts of a cgroup's path, and neither is a path itself.
    pub(super) fn has(&self, namespace: &str, id: &str) -> bool {
        let directories = self.directories.iter();
        let mut own = directories.filter(|one| one.file_name() == Some(OsStr::new(namespace)));
        own.any(|directory| matches!(self.host.entry(&directory.join(id)), Ok(Some(_))))
    }
}
