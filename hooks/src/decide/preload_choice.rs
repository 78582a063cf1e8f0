//! Whether and how libonload.so is preloaded: as the annotation says, or else as the specifications
//! do.

use onload_cdi::{ContainerEdits, Mount};
use onload_core::class::Class;
use onload_core::config::Preload;
use onload_core::onload::LIBRARY;
use onload_core::request::Request;

/// The file that the dynamic loader reads (ld.so(8)).
pub(crate) const LD_SO_PRELOAD: &str = "/etc/ld.so.preload";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PreloadChoice {
    pub mode: Preload,
    pub is_asked: bool,
    /// The place of the request, for messages; all places if no single one is responsible.
    pub key: String,
    /// The libraries that the specifications name in LD_PRELOAD, each once, in order.
    pub libraries: Vec<String>,
    /// The list that the specifications mount.
    pub mount: Option<Mount>,
    /// The library on the host, if the specifications provide it.
    pub source: Option<String>,
    /// Its paths in the container, sorted.
    pub targets: Vec<String>,
}

impl PreloadChoice {
    pub(super) fn take_from(edits: &mut ContainerEdits, request: &Request, keys: &str) -> Self {
        let libraries = remove_ld_preload(edits);
        let mount = edits
            .mounts
            .iter()
            .position(|mount| mount.container_path == LD_SO_PRELOAD)
            .map(|index| edits.mounts.remove(index));
        let entry = request.preload.as_ref();
        let mode = match entry {
            Some(entry) => entry.value,
            None if !libraries.is_empty() => Preload::Env,
            None if mount.is_some() => Preload::File,
            None => Preload::Off,
        };
        let origin = entry
            .map(|entry| &entry.origin)
            .or_else(|| request.devices.get(&Class::Nic).map(|entry| &entry.origin));
        let library_mounts: Vec<&Mount> = edits
            .mounts
            .iter()
            .filter(|mount| mount.container_path.ends_with(&format!("/{LIBRARY}")))
            .collect();
        let mut targets: Vec<String> =
            library_mounts.iter().map(|mount| mount.container_path.clone()).collect();
        targets.sort();
        PreloadChoice {
            mode,
            is_asked: entry.is_some(),
            key: origin.map_or_else(|| keys.to_owned(), ToString::to_string),
            source: library_mounts.first().map(|mount| mount.host_path.clone()),
            targets,
            libraries,
            mount,
        }
    }
}

/// Removes every LD_PRELOAD from the edits and returns its libraries, each once, in order.
fn remove_ld_preload(edits: &mut ContainerEdits) -> Vec<String> {
    let mut libraries: Vec<String> = Vec::new();
    edits.env.retain(|entry| {
        let Some(list) = entry.strip_prefix("LD_PRELOAD=") else {
            return true;
        };
        for library in split(list) {
            if !libraries.iter().any(|held| held == library) {
                libraries.push(library.to_owned());
            }
        }
        false
    });
    libraries
}

/// The libraries of a list; the loader separates them at colons and white space (ld.so(8)).
pub(crate) fn split(list: &str) -> impl Iterator<Item = &str> {
    list.split(|c: char| c == ':' || c.is_ascii_whitespace()).filter(|library| !library.is_empty())
}
