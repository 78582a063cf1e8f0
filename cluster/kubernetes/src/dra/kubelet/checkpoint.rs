//! The file in which kubelet keeps what it has allocated from device plugins
//! (`pkg/kubelet/cm/devicemanager/checkpoint` of Kubernetes 1.36).
//!
//! It forgets a pod that has ended when it next allocates from some device plugin. Until then, where the plugin has
//! been gone for five minutes, no pod starts that asks for the resource, by DRA neither: "endpoint not found in cache for
//! a registered resource" (kubernetes/kubernetes#141426). What stands under `RegisteredDevices` alone does no harm: it
//! goes with the plugin.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};
use onload_sys::fs::regular;
use serde::Deserialize;

/// `kubeletDeviceManagerCheckpoint` of kubelet.
const FILE: &str = "kubelet_internal_checkpoint";
/// The most bytes that are read: kubelet allows 110 pods by default, and an entry has the ids of a container's devices.
const MOST: u64 = 16 * 1024 * 1024;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Checkpoint {
    data: Data,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    /// `null` where there is none.
    pod_device_entries: Option<Vec<Entry>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    resource_name: String,
}

/// The resources that pods have or had, by the file in this directory; none without one.
pub(super) fn read(directory: &Path) -> Result<BTreeSet<String>> {
    let path = directory.join(FILE);
    let read = regular::read(&path, MOST).and_then(|bytes| Ok(resources(&bytes)?));
    match read {
        Err(source) if source.kind() == ErrorKind::NotFound => Ok(BTreeSet::new()),
        read => read.with_context(|| format!("reading {}", path.display())),
    }
}

fn resources(bytes: &[u8]) -> serde_json::Result<BTreeSet<String>> {
    let checkpoint: Checkpoint = serde_json::from_slice(bytes)?;
    let entries = checkpoint.data.pod_device_entries.unwrap_or_default();
    Ok(entries.into_iter().map(|entry| entry.resource_name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Printed by the package that writes it in kubelet.
    const OF_KUBELET: &str = include_str!("../../../tests/recorded/kubelet-1.36.2/checkpoint.json");

    fn of(text: &str) -> Result<Vec<String>, String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), text).unwrap();
        let read = read(dir.path()).map_err(|error| format!("{error:#}"));
        read.map(|resources| resources.into_iter().collect())
    }

    #[test]
    fn what_pods_have_or_had_is_named_and_what_is_only_registered_is_not() {
        assert!(OF_KUBELET.contains("onload.dev/rdma"));
        assert_eq!(of(OF_KUBELET).unwrap(), ["onload.dev/nic-nodes", "onload.dev/vfio"]);
    }

    #[test]
    fn a_kubelet_that_has_allocated_nothing_names_nothing() {
        let empty = r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}"#;
        assert_eq!(of(empty), Ok(Vec::new()));
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).unwrap().is_empty());
    }

    #[test]
    fn what_is_not_understood_is_an_error_with_the_path() {
        for text in ["", "{", "{}", r#"{"Data":{"PodDeviceEntries":[{}]}}"#] {
            let line = of(text).unwrap_err();
            assert!(line.contains(FILE), "{line}");
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(FILE)).unwrap();
        assert!(read(dir.path()).is_err());
    }
}
