//! The settings in an engine's files. The last file with a setting takes precedence, and values of an unexpected type
//! are ignored.

use std::path::{Path, PathBuf};

use toml_edit::Table;

use crate::daemon::Flag;
use crate::our_runtime::RUNTIME_NAME;
use crate::toml::{get, list, strings};

/// The state directories of containerd (`state` in its config.toml), which contain its tasks: the
/// default, and those of k3s and RKE2 (k3s, `pkg/agent/config/config.go`), k0s, and MicroK8s
/// (`microk8s-resources/default-args/containerd`).
pub const CONTAINERD_STATES: [&str; 4] = [
    "/run/containerd",
    "/run/k3s/containerd",
    "/run/k0s/containerd",
    "/var/snap/microk8s/common/run/containerd",
];
/// The format of containerd's file since containerd 2.
pub const CONTAINERD_2: i64 = 3;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineSettings {
    pub files: Vec<PathBuf>,
    /// `None` if no file sets it.
    pub cdi: Option<bool>,
    pub spec_dirs: Option<EngineSpecDirs>,
    pub has_runtime: bool,
    pub hook_dirs: Vec<String>,
    /// The format version of containerd's file; `None` for others, and without a file.
    pub format: Option<i64>,
    pub is_off: bool,
    pub nri: Option<bool>,
    pub runtimes: Vec<RuntimeNames>,
    pub is_default: bool,
    /// Flags of dockerd, each with the key of its file that sets the same: dockerd does not start then.
    pub collisions: Vec<(Flag, String)>,
    /// The keys of docker's file.
    pub(crate) keys: Vec<String>,
    /// The persistent directory: docker's `data-root`, CRI-O's `root`.
    pub(crate) data_dir: Option<PathBuf>,
    /// The directory that a reboot clears: docker's `exec-root`, containerd's `state`, CRI-O's `runroot`.
    pub(crate) state_dir: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeNames {
    pub file: PathBuf,
    /// The plugin's name in the file.
    pub plugin: &'static str,
    /// The names that it registers; `None` if it does not set the list.
    pub names: Option<Vec<String>>,
    pub default: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineSpecDirs {
    pub dirs: Vec<String>,
    /// The file that says so, which is the one to change: of a flag, the unit or file that has it.
    pub file: PathBuf,
    /// The flag that sets them; `None` if a key of the file does.
    pub flag: Option<&'static str>,
    /// Its section; `None` for files without sections.
    pub section: Option<String>,
}

/// The templates from which k3s generates containerd's file, in the same directory: for containerd 2's format and the
/// earlier one.
pub(crate) const K3S_TEMPLATES: [&str; 2] = ["config-v3.toml.tmpl", "config.toml.tmpl"];

pub(crate) fn k3s_templates(written: &Path) -> [PathBuf; 2] {
    K3S_TEMPLATES.map(|name| written.with_file_name(name))
}

impl EngineSettings {
    /// The template of the format that k3s writes.
    pub fn k3s_template(&self) -> PathBuf {
        let [of_containerd_2, of_containerd_1] = k3s_templates(self.first_file());
        match self.format {
            Some(CONTAINERD_2..) => of_containerd_2,
            _ => of_containerd_1,
        }
    }

    /// The first file that was read, or `/` if there is none.
    pub fn first_file(&self) -> &Path {
        self.files.first().map(PathBuf::as_path).unwrap_or(Path::new("/"))
    }

    pub(crate) fn set_spec_dirs(
        &mut self,
        dirs: Option<Vec<String>>,
        file: &Path,
        section: Option<String>,
    ) {
        let spec_dirs =
            dirs.map(|dirs| EngineSpecDirs { dirs, file: file.to_owned(), flag: None, section });
        self.spec_dirs = spec_dirs.or(self.spec_dirs.take());
    }

    /// Keys that CRI-O and podman share.
    pub(crate) fn read_section(&mut self, document: &Table, section: &[&str], file: &Path) {
        let item_at = |key: &[&str]| get(document, &[section, key].concat());
        let name = format!("[{}]", section.join("."));
        self.set_spec_dirs(list(item_at(&["cdi_spec_dirs"])), file, Some(name));
        self.hook_dirs.extend(strings(item_at(&["hooks_dir"])).map(str::to_owned));
        self.has_runtime |= item_at(&["runtimes", RUNTIME_NAME]).is_some();
    }
}
