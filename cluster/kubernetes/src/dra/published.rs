//! Records the classes that this node has published by DRA: an empty file for each, written before its first
//! ResourceSlice and removed after the last one is gone. A class without a file never waits for the API server.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use onload_core::class::Class;

use super::DRIVER;
use super::sockets::driver_dir;
use crate::names::NodeName;

/// Returns the command that deletes the slices of a node.
pub(super) fn delete_command(node: &str) -> String {
    format!(
        "kubectl delete resourceslices --field-selector=spec.nodeName={node},spec.driver={DRIVER}"
    )
}

#[derive(Clone, Debug)]
pub struct PublishedClasses {
    directory: PathBuf,
}

impl PublishedClasses {
    pub fn for_kubelet(kubelet_dir: &Path) -> PublishedClasses {
        PublishedClasses { directory: driver_dir(kubelet_dir) }
    }

    fn path(&self, class: Class) -> PathBuf {
        self.directory.join(format!("published-{class}"))
    }

    pub(crate) fn contains(&self, class: Class) -> bool {
        // A file that cannot be examined may exist.
        self.path(class).try_exists().unwrap_or(true)
    }

    /// Logs each class that waits, since its slices may remain and the API server cannot be asked for them.
    pub(crate) fn log_waiting(&self, node: Option<&NodeName>) {
        for class in Class::ALL.into_iter().filter(|class| self.contains(*class)) {
            let remedy = self.remedy(class, node.map_or("NODE", NodeName::as_str));
            let reason = format!(
                "this node has offered it by DRA, but the API server is not reachable to check for \
                 its ResourceSlices: {remedy}"
            );
            tracing::warn!(%class, %reason, "class waits");
        }
    }

    /// Returns what to do if the API server cannot be asked for the slices of a class.
    pub(super) fn remedy(&self, class: Class, node: &str) -> String {
        let (delete, record) = (delete_command(node), self.path(class));
        format!("{delete}, then remove {} and start the daemon again", record.display())
    }

    pub(crate) fn is_empty(&self) -> bool {
        !Class::ALL.into_iter().any(|class| self.contains(class))
    }

    pub(super) fn add(&self, class: Class) -> Result<()> {
        let path = self.path(class);
        let created = File::options().write(true).create(true).truncate(false).open(&path);
        created
            .and_then(|file| file.sync_all())
            .with_context(|| format!("recording in {} that DRA offers the class", path.display()))
    }

    pub(super) fn remove(&self, class: Class) -> Result<()> {
        let path = self.path(class);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("removing {}", path.display()))
            }
            _ => Ok(()),
        }
    }
}
