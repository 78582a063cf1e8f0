//! The engines, and where each keeps its program, package and service.

use onload_cdi::Version as Cdi;

use crate::version::{self, Readers, Version};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Docker,
    Containerd,
    Crio,
    Podman,
    Nomad,
    K3s,
    Kubelet,
}

impl Kind {
    pub const ALL: [Kind; 7] = [
        Kind::Docker,
        Kind::Containerd,
        Kind::Crio,
        Kind::Podman,
        Kind::Nomad,
        Kind::K3s,
        Kind::Kubelet,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Docker => "docker",
            Kind::Containerd => "containerd",
            Kind::Crio => "crio",
            Kind::Podman => "podman",
            Kind::Nomad => "nomad",
            Kind::K3s => "k3s",
            Kind::Kubelet => "kubelet",
        }
    }

    pub fn program(self) -> &'static str {
        match self {
            Kind::Docker => "dockerd",
            _ => self.name(),
        }
    }

    pub(crate) fn packages(self) -> &'static [&'static str] {
        match self {
            Kind::Docker => &["docker.io", "docker-ce", "moby-engine"],
            Kind::Containerd => &["containerd", "containerd.io"],
            Kind::Crio => &["cri-o"],
            Kind::Podman => &["podman"],
            Kind::Nomad => &["nomad"],
            Kind::K3s => &[],
            Kind::Kubelet => &["kubelet"],
        }
    }

    /// Where those who make it say how each version is installed.
    pub fn published(self) -> &'static str {
        match self {
            Kind::Docker => "https://docs.docker.com/engine/install/",
            Kind::Containerd => {
                "https://github.com/containerd/containerd/blob/main/docs/getting-started.md"
            }
            Kind::Crio => "https://github.com/cri-o/packaging",
            Kind::Podman => "https://podman.io/docs/installation",
            Kind::Nomad => "https://developer.hashicorp.com/nomad/install",
            Kind::K3s => "https://get.k3s.io",
            Kind::Kubelet => {
                "https://kubernetes.io/docs/setup/production-environment/tools/kubeadm/install-kubeadm/"
            }
        }
    }

    pub fn services(self) -> &'static [&'static str] {
        match self {
            Kind::Podman => &[],
            Kind::K3s => &["k3s", "k3s-agent"],
            Kind::Docker => &["docker"],
            Kind::Containerd => &["containerd"],
            Kind::Crio => &["crio"],
            Kind::Nomad => &["nomad"],
            Kind::Kubelet => &["kubelet"],
        }
    }

    pub fn process_names(self) -> &'static [&'static str] {
        match self {
            Kind::Docker => &["dockerd"],
            Kind::K3s => &["k3s-server", "k3s-agent"],
            _ => self.services(),
        }
    }

    pub fn least(self) -> Option<(Version, &'static str)> {
        match self {
            Kind::Docker => Some((Version(25, 0, 0), "CDI")),
            Kind::Containerd => Some((Version(1, 7, 0), "CDI")),
            Kind::Crio => Some((Version(1, 24, 0), "CDI")),
            Kind::Podman => Some((Version(4, 1, 0), "CDI")),
            Kind::K3s | Kind::Kubelet => Some((Version(1, 28, 0), "CDI in device plugins")),
            Kind::Nomad => None,
        }
    }

    pub fn too_old(self, version: Version) -> Option<String> {
        let (least, what) = self.least().filter(|(least, _)| version < *least)?;
        Some(format!("{version} is too old: {what} needs {least}"))
    }

    /// The newest CDI that a version reads; none if it reads none.
    pub fn newest_cdi(self, version: Version) -> Option<Cdi> {
        let readers: Readers = match self {
            Kind::Docker => version::DOCKER,
            Kind::Containerd => version::CONTAINERD,
            Kind::Crio => version::CRIO,
            Kind::Podman => version::PODMAN,
            // They have another engine read.
            Kind::Nomad | Kind::K3s | Kind::Kubelet => &[],
        };
        let mut known = readers.iter().rev().filter(|(from, _)| *from <= version);
        known.next().map(|(_, cdi)| *cdi)
    }

    pub fn validate(self) -> &'static str {
        match self {
            Kind::Docker => "dockerd --validate",
            Kind::Containerd => "containerd config dump",
            Kind::Crio => "crio config",
            Kind::Podman => "podman info",
            Kind::Nomad => "nomad config validate /etc/nomad.d",
            Kind::K3s => "journalctl -u k3s -u k3s-agent",
            Kind::Kubelet => "journalctl -u kubelet",
        }
    }
}
