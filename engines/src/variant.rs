//! Engines whose files are in other directories than usual: how to restart each, and where its
//! containers are.
//!
//! k3s and RKE2 write containerd's `config.toml` again at each start, from a template in the same
//! directory if there is one (k3s, `pkg/agent/containerd/config.go`). MicroK8s does the same with
//! `containerd-template.toml` (`microk8s-resources/default-args`). Rootless docker keeps its files
//! in the user's home.

use std::path::{Path, PathBuf};

use crate::kind::EngineKind;
use crate::kubernetes::{MICROK8S_TEMPLATE, read_format};
use crate::settings::{CONTAINERD_2, CONTAINERD_STATES, K3S_TEMPLATES};

/// The directory of containerd's files below the data directory of k3s and RKE2, by default
/// `/var/lib/rancher/k3s` and `/var/lib/rancher/rke2`.
const RANCHER: &str = "agent/etc/containerd";
const MICROK8S: &str = "/var/snap/microk8s";
const K0S: &str = "/etc/k0s";
const DOCKER_SNAP: &str = "/var/snap/docker";
const DOCKER_SNAP_DATA: &str = "/var/snap/docker/common/var-lib-docker";
/// Below the home of a user of rootless docker.
const ROOTLESS: &str = ".config/docker/daemon.json";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineVariant {
    /// The containerd of a distribution of Kubernetes.
    Bundled(EngineKind),
    RootlessDocker,
    DockerSnap,
}

impl EngineVariant {
    /// None for a file of which nothing is known but its name.
    pub(crate) fn from_path(file: &Path) -> Option<EngineVariant> {
        let has_rancher = file.ancestors().any(|directory| directory.ends_with(RANCHER));
        if has_rancher {
            let is_rke2 = file.components().any(|part| part.as_os_str() == "rke2");
            let kind = if is_rke2 { EngineKind::Rke2 } else { EngineKind::K3s };
            return Some(EngineVariant::Bundled(kind));
        }
        if file.starts_with(K0S) {
            return Some(EngineVariant::Bundled(EngineKind::K0s));
        }
        if file.starts_with(MICROK8S) {
            return Some(EngineVariant::Bundled(EngineKind::MicroK8s));
        }
        if file.starts_with(DOCKER_SNAP) {
            return Some(EngineVariant::DockerSnap);
        }
        file.ends_with(ROOTLESS).then_some(EngineVariant::RootlessDocker)
    }

    pub(crate) fn restart_command(self) -> &'static str {
        match self {
            EngineVariant::Bundled(EngineKind::K3s) => {
                "systemctl restart k3s (on an agent: k3s-agent)"
            }
            EngineVariant::Bundled(EngineKind::Rke2) => {
                "systemctl restart rke2-server (on an agent: rke2-agent)"
            }
            EngineVariant::Bundled(EngineKind::K0s) => {
                "systemctl restart k0sworker (on a controller: k0scontroller)"
            }
            EngineVariant::Bundled(_) => "snap restart microk8s.daemon-containerd",
            EngineVariant::RootlessDocker => "systemctl --user restart docker",
            EngineVariant::DockerSnap => "snap restart docker",
        }
    }

    pub(crate) fn state_dir(self, file: &Path) -> PathBuf {
        let [_, rancher, k0s, microk8s] = CONTAINERD_STATES;
        match self {
            EngineVariant::Bundled(EngineKind::K0s) => PathBuf::from(k0s),
            EngineVariant::Bundled(EngineKind::MicroK8s) => PathBuf::from(microk8s),
            EngineVariant::Bundled(_) => PathBuf::from(rancher),
            EngineVariant::DockerSnap => PathBuf::from(DOCKER_SNAP_DATA),
            EngineVariant::RootlessDocker => file
                .ancestors()
                .nth(Path::new(ROOTLESS).iter().count())
                .unwrap_or(Path::new("/"))
                .join(".local/share/docker"),
        }
    }

    /// The template that a file with this text was made of.
    pub(crate) fn template_name(self, file: &Path, text: Option<&str>) -> Option<&'static str> {
        let name = file.file_name()?;
        match self {
            EngineVariant::Bundled(EngineKind::K3s | EngineKind::Rke2) if name == "config.toml" => {
                let is_old = text.is_some_and(|text| read_format(text) < CONTAINERD_2);
                let [newest, older] = K3S_TEMPLATES;
                Some(if is_old { older } else { newest })
            }
            EngineVariant::Bundled(EngineKind::MicroK8s) if name == "containerd.toml" => {
                Some(MICROK8S_TEMPLATE)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(file: &str) -> Option<EngineVariant> {
        EngineVariant::from_path(Path::new(file))
    }

    #[test]
    fn a_place_is_told_by_its_path() {
        let rancher = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl";
        assert_eq!(place(rancher), Some(EngineVariant::Bundled(EngineKind::K3s)));
        let drop_in = "/var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.d/9.toml";
        assert_eq!(place(drop_in), Some(EngineVariant::Bundled(EngineKind::Rke2)));
        let moved = "/srv/k3s/agent/etc/containerd/config-v3.toml.tmpl";
        assert_eq!(place(moved), Some(EngineVariant::Bundled(EngineKind::K3s)));
        let snap = "/var/snap/microk8s/current/args/containerd-template.toml";
        assert_eq!(place(snap), Some(EngineVariant::Bundled(EngineKind::MicroK8s)));
        let k0s = "/etc/k0s/containerd.d/99-onload-ctk.toml";
        assert_eq!(place(k0s), Some(EngineVariant::Bundled(EngineKind::K0s)));
        let user = "/home/u/.config/docker/daemon.json";
        assert_eq!(place(user), Some(EngineVariant::RootlessDocker));
        assert_eq!(place("/etc/docker/daemon.json"), None);
        assert_eq!(place("/etc/containerd/config.toml"), None);
    }

    #[test]
    fn containers_of_rootless_docker_are_in_the_home_of_the_user() {
        let file = Path::new("/home/u/.config/docker/daemon.json");
        let state = EngineVariant::RootlessDocker.state_dir(file);
        assert_eq!(state, Path::new("/home/u/.local/share/docker"));
    }

    #[test]
    fn a_file_that_is_written_anew_has_another_to_name() {
        let directory = Path::new("/var/lib/rancher/k3s/agent/etc/containerd");
        let instead = |name| {
            EngineVariant::Bundled(EngineKind::K3s).template_name(&directory.join(name), None)
        };
        assert_eq!(instead("config.toml"), Some("config-v3.toml.tmpl"));
        assert_eq!(instead("config.toml.tmpl"), None);
        assert_eq!(instead("config-v3.toml.d/99-onload-ctk.toml"), None);
    }
}
