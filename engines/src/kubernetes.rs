//! The containerd that k3s, RKE2, k0s and MicroK8s bring with them: which file it reads, and which file the operator
//! edits instead, since all four write that file themselves.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use onload_host::host::{Host, HostError};
use toml_edit::Item;

use crate::daemon::DaemonFlags;
use crate::files::RelatedFiles;
use crate::installed::find_program;
use crate::kind::EngineKind;
use crate::settings::{CONTAINERD_2, k3s_templates};
use crate::toml::{get, read};

/// Below the data directory, the file that k3s and RKE2 write for their containerd at each start (k3s,
/// `pkg/agent/config/config.go`).
const RANCHER_FILE: &str = "agent/etc/containerd/config.toml";
const DATA_DIR: &str = "data-dir";
const K0S_FILE: &str = "/etc/k0s/containerd.toml";
pub(crate) const K0S_DROP_IN: &str = "/etc/k0s/containerd.d/99-onload-ctk.toml";
const K0S_DATA_DIR: &str = "/var/lib/k0s";
/// The first line of a file that k0s writes at each start; without that line it is the operator's (k0s,
/// `pkg/component/worker/containerd/component.go`).
const K0S_MANAGED: &str = "# k0s_managed=true";
const MICROK8S_FILE: &str = "/var/snap/microk8s/current/args/containerd.toml";
pub(crate) const MICROK8S_TEMPLATE: &str = "containerd-template.toml";
const MICROK8S_RUNC: &str = "/snap/microk8s/current/bin/runc";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundledContainerd {
    pub kind: EngineKind,
    /// The file that its containerd reads.
    config_file: PathBuf,
    /// The runc that it brings.
    pub runc: PathBuf,
}

/// Finds the distributions of Kubernetes on a host that bring a containerd.
pub fn find_bundled(host: &Host) -> Result<Vec<BundledContainerd>, HostError> {
    let mut found = Vec::new();
    for kind in EngineKind::WITH_CONTAINERD {
        if find_program(host, kind)?.is_some() {
            let flags = DaemonFlags::read(host, kind)?;
            let (config_file, runc) = find_paths(host, kind, &flags)?;
            found.push(BundledContainerd { kind, config_file, runc });
        }
    }
    Ok(found)
}

impl BundledContainerd {
    /// The file to edit. Fails if the distribution has to start once before that is known.
    pub fn editable_file(&self, host: &Host) -> Result<PathBuf> {
        let text = host.text(&self.config_file)?;
        let is_k0s_managed = text.as_deref().is_none_or(is_k0s_managed);
        let format = text.as_deref().map(read_format);
        let mut files = self.editable_files();
        let index = match (self.kind, format) {
            (EngineKind::K0s, _) => usize::from(!is_k0s_managed),
            (EngineKind::MicroK8s, _) | (_, Some(CONTAINERD_2..)) => 0,
            (_, Some(_)) => 1,
            (kind, None) => files
                .iter()
                .position(|file| host.entry(file).is_ok_and(|entry| entry.is_some()))
                .with_context(|| {
                    anyhow!(
                        "{} has not written {} yet, so the format of its template is unknown; \
                         start it once, or set the template with --file",
                        kind.name(),
                        self.config_file.display()
                    )
                })?,
        };
        Ok(files.swap_remove(index))
    }

    pub fn editable_files(&self) -> Vec<PathBuf> {
        editable_files(self.kind, &self.config_file)
    }

    /// Whether a file is below the directories of this distribution's containerd.
    pub fn owns(&self, file: &Path) -> bool {
        self.config_file.parent().is_some_and(|directory| file.starts_with(directory))
    }
}

/// The files of which one is edited instead of the file that containerd reads.
pub fn editable_files(kind: EngineKind, config_file: &Path) -> Vec<PathBuf> {
    match kind {
        EngineKind::K0s => vec![K0S_DROP_IN.into(), K0S_FILE.into()],
        EngineKind::MicroK8s => vec![config_file.with_file_name(MICROK8S_TEMPLATE)],
        _ => k3s_templates(config_file).to_vec(),
    }
}

/// Whether k0s writes its containerd's file, and so merges drop-ins into it.
pub(crate) fn is_k0s_managed(text: &str) -> bool {
    text.lines().next() == Some(K0S_MANAGED)
}

/// Format 2 if it is not understood.
pub(crate) fn read_format(text: &str) -> i64 {
    let document = read(text).unwrap_or_default();
    get(&document, &["version"]).and_then(Item::as_integer).unwrap_or(CONTAINERD_2 - 1)
}

/// The file that the containerd of a distribution reads, and the runc that it brings.
pub(crate) fn find_paths(
    host: &Host,
    kind: EngineKind,
    flags: &DaemonFlags,
) -> Result<(PathBuf, PathBuf), HostError> {
    Ok(match kind {
        EngineKind::K0s => {
            let data_dir = flags.path(&[DATA_DIR]).unwrap_or(K0S_DATA_DIR.into());
            (K0S_FILE.into(), data_dir.join("bin/runc"))
        }
        EngineKind::MicroK8s => (MICROK8S_FILE.into(), MICROK8S_RUNC.into()),
        _ => {
            let data_dir = data_dir(host, kind, flags)?;
            let runc = if kind == EngineKind::Rke2 { "bin/runc" } else { "data/current/bin/runc" };
            (data_dir.join(RANCHER_FILE), data_dir.join(runc))
        }
    })
}

/// The data directory of k3s or RKE2: a flag takes precedence over their own files, and these over the environment
/// (k3s, `pkg/configfilearg/parser.go`).
fn data_dir(host: &Host, kind: EngineKind, flags: &DaemonFlags) -> Result<PathBuf, HostError> {
    let name = kind.name();
    let variable = |suffix: &str| {
        let value = flags.variable(&format!("{}_{suffix}", name.to_uppercase()));
        value.map(|value| Path::new("/").join(value))
    };
    if let Some(dir) = flags.path(&[DATA_DIR, "d"]) {
        return Ok(dir);
    }
    let named = variable("CONFIG_FILE").or_else(|| flags.path(&["config", "c"]));
    let file = named.unwrap_or_else(|| format!("/etc/rancher/{name}/config.yaml").into());
    let dir = match read_yaml_value(host, &file, DATA_DIR)? {
        Some(dir) => Some(Path::new("/").join(dir)),
        None => variable("DATA_DIR"),
    };
    Ok(dir.unwrap_or_else(|| format!("/var/lib/rancher/{name}").into()))
}

/// The value of a key in the first level of `config.yaml` or of a file in `config.yaml.d`; the last one takes
/// precedence.
fn read_yaml_value(host: &Host, file: &Path, key: &str) -> Result<Option<String>, HostError> {
    let mut drop_ins = file.as_os_str().to_owned();
    drop_ins.push(".d");
    let drop_ins = RelatedFiles::Directories(vec![drop_ins.into()], "*.y*ml".to_owned());
    let mut last = None;
    for file in [vec![file.to_owned()], drop_ins.paths(host)?].concat() {
        let text = host.text(&file)?.unwrap_or_default();
        let mut values = text.lines().filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            let value = value.split(" #").next().unwrap_or_default();
            let unquoted = |text: &str| text.trim_matches(['"', '\'']).to_owned();
            (unquoted(name.trim_end()) == key).then(|| unquoted(value.trim()))
        });
        last = values.next_back().or(last);
    }
    Ok(last.filter(|value| !value.is_empty()))
}

#[cfg(test)]
mod tests {
    use onload_test_tree::Tree;

    use super::*;

    fn find(tree: &Tree) -> Vec<BundledContainerd> {
        find_bundled(&Host::open(tree.root()).unwrap()).unwrap()
    }

    fn config_files(tree: &Tree) -> Vec<String> {
        find(tree).iter().map(|bundled| bundled.config_file.display().to_string()).collect()
    }

    #[test]
    fn the_data_directory_is_the_one_of_flag_file_or_environment() {
        let tree = Tree::new();
        assert_eq!(find(&tree), []);
        tree.file("/usr/local/bin/k3s", "");
        let file = |dir: &str| vec![format!("{dir}/agent/etc/containerd/config.toml")];
        assert_eq!(config_files(&tree), file("/var/lib/rancher/k3s"));
        // As the install script writes it.
        let unit = "[Service]\nEnvironmentFile=-/etc/systemd/system/%N.service.env\n\
             ExecStart=/usr/local/bin/k3s \\\n    agent \\\n";
        tree.file("/etc/systemd/system/k3s-agent.service", unit);
        tree.file("/etc/systemd/system/k3s-agent.service.env", "K3S_DATA_DIR='/srv/env'\n");
        assert_eq!(config_files(&tree), file("/srv/env"));
        tree.file(
            "/etc/rancher/k3s/config.yaml",
            "write-kubeconfig-mode: \"0644\"\ndata-dir: /srv/a\n",
        );
        assert_eq!(config_files(&tree), file("/srv/a"));
        tree.file("/etc/rancher/k3s/config.yaml.d/10.yaml", "\"data-dir\": '/srv/b' # fast\n");
        tree.file(
            "/etc/rancher/k3s/config.yaml.d/20.yml",
            "kubelet-arg:\n  - root-dir: /x\n  data-dir: /y\n",
        );
        tree.file("/etc/rancher/k3s/config.yaml.d/30.txt", "data-dir: /srv/c\n");
        assert_eq!(config_files(&tree), file("/srv/b"));
        let flag = format!("{unit}        '--data-dir' \\\n        '/srv/flag' \\\n");
        tree.file("/etc/systemd/system/k3s-agent.service", flag);
        assert_eq!(config_files(&tree), file("/srv/flag"));
    }

    #[test]
    fn another_file_of_rke2_is_read_if_its_unit_says_so() {
        let tree = Tree::new();
        tree.file("/opt/rke2/bin/rke2", "");
        let unit =
            "[Service]\nEnvironmentFile=-/etc/default/%N\nExecStart=/opt/rke2/bin/rke2 server\n";
        tree.file("/usr/local/lib/systemd/system/rke2-server.service", unit);
        tree.file("/etc/default/rke2-server", "RKE2_CONFIG_FILE=/srv/rke2.yaml\n");
        tree.file("/etc/rancher/rke2/config.yaml", "data-dir: /unread\n");
        tree.file("/srv/rke2.yaml", "data-dir: /srv/data\n");
        let [rke2] = &find(&tree)[..] else { panic!("{:?}", find(&tree)) };
        assert_eq!(rke2.kind, EngineKind::Rke2);
        assert_eq!(rke2.runc, Path::new("/srv/data/bin/runc"));
        assert!(rke2.owns(Path::new("/srv/data/agent/etc/containerd/config.toml.tmpl")));
        assert!(!rke2.owns(Path::new("/var/lib/rancher/rke2/agent/etc/containerd/config.toml")));
    }
}
