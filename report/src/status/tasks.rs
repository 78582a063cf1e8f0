//! The tasks of containerd, of which people choose the ids where no cluster does (`ctr run`).

use std::collections::BTreeMap;
use std::path::PathBuf;

use onload_host::bundles;
use onload_host::host::Host;

pub(super) struct Tasks<'h> {
    host: &'h Host,
    by_namespace: BTreeMap<String, Vec<PathBuf>>,
}

impl<'h> Tasks<'h> {
    pub(super) fn of(host: &'h Host) -> Self {
        // What cannot be read is not known.
        let directories =
            bundles::of_containerd(|path| bundles::list(host, path).unwrap_or_default());
        let mut by_namespace = BTreeMap::<String, Vec<PathBuf>>::new();
        for directory in directories {
            if let Some(name) = directory.file_name().and_then(|name| name.to_str()) {
                by_namespace
                    .entry(name.to_owned())
                    .or_default()
                    .push(directory);
            }
        }
        Tasks { host, by_namespace }
    }

    /// Whether a namespace has a task of that id. Both are parts of a cgroup's path, and neither is a path itself.
    pub(super) fn has(&self, namespace: &str, id: &str) -> bool {
        let directories = self.by_namespace.get(namespace).into_iter().flatten();
        let mut bundles = directories.map(|directory| directory.join(id));
        bundles.any(|bundle| matches!(self.host.entry(&bundle), Ok(Some(_))))
    }
}
