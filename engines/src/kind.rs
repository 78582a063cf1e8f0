//! The engines, and where each keeps its program, package and service.

use onload_cdi::CdiVersion;
use strum::{IntoStaticStr, VariantArray};

use crate::version::{self, CdiReaders, EngineVersion};

#[derive(Clone, Copy, Debug, IntoStaticStr, PartialEq, Eq, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum EngineKind {
    Docker,
    Containerd,
    Crio,
    Podman,
    Nomad,
    K3s,
    Rke2,
    K0s,
    MicroK8s,
    Kubelet,
}

impl EngineKind {
    /// Kubernetes distributions that include their own containerd.
    pub const WITH_CONTAINERD: [EngineKind; 4] =
        [EngineKind::K3s, EngineKind::Rke2, EngineKind::K0s, EngineKind::MicroK8s];

    pub fn brings_containerd(self) -> bool {
        EngineKind::WITH_CONTAINERD.contains(&self)
    }

    pub fn name(self) -> &'static str {
        self.into()
    }

    pub fn program(self) -> &'static str {
        match self {
            EngineKind::Docker => "dockerd",
            _ => self.name(),
        }
    }

    pub(crate) fn packages(self) -> &'static [&'static str] {
        match self {
            EngineKind::Docker => &["docker.io", "docker-ce", "moby-engine"],
            EngineKind::Containerd => &["containerd", "containerd.io"],
            EngineKind::Crio => &["cri-o"],
            EngineKind::Podman => &["podman"],
            EngineKind::Nomad => &["nomad"],
            EngineKind::K3s | EngineKind::K0s | EngineKind::MicroK8s => &[],
            EngineKind::Rke2 => &["rke2-server", "rke2-agent"],
            EngineKind::Kubelet => &["kubelet"],
        }
    }

    /// The vendor's installation page.
    pub fn release_page(self) -> &'static str {
        match self {
            EngineKind::Docker => "https://docs.docker.com/engine/install/",
            EngineKind::Containerd => {
                "https://github.com/containerd/containerd/blob/main/docs/getting-started.md"
            }
            EngineKind::Crio => "https://github.com/cri-o/packaging",
            EngineKind::Podman => "https://podman.io/docs/installation",
            EngineKind::Nomad => "https://developer.hashicorp.com/nomad/install",
            EngineKind::K3s => "https://get.k3s.io",
            EngineKind::Rke2 => "https://docs.rke2.io/install/quickstart",
            EngineKind::K0s => "https://docs.k0sproject.io/stable/install/",
            EngineKind::MicroK8s => "https://microk8s.io/docs/getting-started",
            EngineKind::Kubelet => {
                "https://kubernetes.io/docs/setup/production-environment/tools/kubeadm/install-kubeadm/"
            }
        }
    }

    pub fn services(self) -> &'static [&'static str] {
        match self {
            EngineKind::Podman => &[],
            EngineKind::K3s => &["k3s", "k3s-agent"],
            EngineKind::Rke2 => &["rke2-server", "rke2-agent"],
            EngineKind::K0s => &["k0sworker", "k0scontroller"],
            EngineKind::MicroK8s => &["snap.microk8s.daemon-containerd"],
            EngineKind::Docker => &["docker", "snap.docker.dockerd"],
            EngineKind::Containerd => &["containerd"],
            EngineKind::Crio => &["crio"],
            EngineKind::Nomad => &["nomad"],
            EngineKind::Kubelet => &["kubelet"],
        }
    }

    pub fn process_names(self) -> &'static [&'static str] {
        match self {
            EngineKind::Docker => &["dockerd"],
            EngineKind::K3s => &["k3s-server", "k3s-agent"],
            EngineKind::Rke2 => &["rke2"],
            EngineKind::K0s => &["k0s"],
            EngineKind::MicroK8s => &["containerd"],
            _ => self.services(),
        }
    }

    pub fn oldest_supported(self) -> Option<(EngineVersion, &'static str)> {
        match self {
            EngineKind::K3s | EngineKind::Rke2 | EngineKind::Kubelet => {
                Some((EngineVersion(1, 28, 0), "CDI in device plugins"))
            }
            kind => kind.cdi_readers().first().map(|(oldest, _)| (*oldest, "CDI")),
        }
    }

    pub fn too_old_reason(self, version: EngineVersion) -> Option<String> {
        let (oldest, what) = self.oldest_supported().filter(|(oldest, _)| version < *oldest)?;
        Some(format!("{version} is too old: {what} needs {oldest}"))
    }

    /// Returns the newest CDI version that an engine's version supports, or `None` without support.
    pub fn newest_cdi(self, version: EngineVersion) -> Option<CdiVersion> {
        let mut known = self.cdi_readers().iter().rev().filter(|(from, _)| *from <= version);
        known.next().map(|(_, cdi)| *cdi)
    }

    /// MicroK8s is asked for its containerd's version; k0s does not know --version.
    fn cdi_readers(self) -> CdiReaders {
        match self {
            EngineKind::Docker => version::DOCKER,
            EngineKind::Containerd | EngineKind::MicroK8s => version::CONTAINERD,
            EngineKind::Crio => version::CRIO,
            EngineKind::Podman => version::PODMAN,
            // They have another engine read.
            EngineKind::Nomad
            | EngineKind::K3s
            | EngineKind::Rke2
            | EngineKind::K0s
            | EngineKind::Kubelet => &[],
        }
    }

    /// The command that validates its configuration or, if it has none, shows its journal.
    pub fn validate(self) -> String {
        match self {
            EngineKind::Docker => "dockerd --validate".to_owned(),
            EngineKind::Containerd => "containerd config dump".to_owned(),
            EngineKind::Crio => "crio config".to_owned(),
            EngineKind::Podman => "podman info".to_owned(),
            EngineKind::Nomad => "nomad config validate /etc/nomad.d".to_owned(),
            _ => format!("journalctl -u {}", self.services().join(" -u ")),
        }
    }
}
