//! What the daemon finds of a kubelet beside its API: who listens at its socket, the arguments of that process, and its
//! files. The test's own process listens. The checkpoint is as kubelet's own package writes it.

use std::fs;
use std::path::{Path, PathBuf};

use onload_kubernetes::dra::kubelet::KubeletFiles;
use tempfile::TempDir;
use tokio::net::UnixListener;

pub(crate) struct ListeningKubelet {
    dir: TempDir,
    _listener: UnixListener,
}

impl ListeningKubelet {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        runs_with(dir.path(), arguments);
        let listener = UnixListener::bind(dir.path().join("kubelet.sock")).unwrap();
        ListeningKubelet { dir, _listener: listener }
    }

    pub(crate) fn files(&self) -> KubeletFiles {
        KubeletFiles {
            host_root: self.dir.path().to_owned(),
            device_plugins: self.dir.path().to_owned(),
        }
    }

    /// A pod has, or had, a device of each of these resources.
    pub(crate) fn allocated(&self, resources: &[&str]) {
        let new = self.dir.path().join(".new");
        fs::write(&new, checkpoint(resources)).unwrap();
        fs::rename(new, self.checkpoint()).unwrap();
    }

    pub(crate) fn checkpoint(&self) -> PathBuf {
        self.dir.path().join("kubelet_internal_checkpoint")
    }
}

/// On this host kubelet is the process of the test, with these arguments.
pub(crate) fn runs_with(host_root: &Path, arguments: &[&str]) {
    let process = host_root.join(format!("proc/{}", std::process::id()));
    fs::create_dir_all(&process).unwrap();
    let arguments = [&["/usr/bin/kubelet"], arguments].concat();
    fs::write(process.join("cmdline"), arguments.join("\0") + "\0").unwrap();
}

fn checkpoint(resources: &[&str]) -> String {
    let recorded = include_str!("../../recorded/kubelet-1.36.2/checkpoint.json");
    let mut checkpoint: serde_json::Value = serde_json::from_str(recorded).unwrap();
    let entry = checkpoint["Data"]["PodDeviceEntries"][0].take();
    let entries = resources.iter().map(|resource| {
        let mut entry = entry.clone();
        entry["ResourceName"] = (*resource).into();
        entry
    });
    checkpoint["Data"]["PodDeviceEntries"] = entries.collect();
    checkpoint.to_string()
}
