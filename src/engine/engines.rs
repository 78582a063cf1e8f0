//! The engines that can be set up, with the usual names and places of each.

use std::path::Path;

use clap::ValueEnum;

use super::{containerd, crio, docker, nomad, podman};

/// A container engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// Docker.
    Docker,
    /// containerd, for Kubernetes and other users of its CRI plugin.
    Containerd,
    /// CRI-O.
    Crio,
    /// Podman.
    Podman,
    /// Nomad, with its docker driver.
    Nomad,
}

impl Engine {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Engine::Docker => "docker",
            Engine::Containerd => "containerd",
            Engine::Crio => "crio",
            Engine::Podman => "podman",
            Engine::Nomad => "nomad",
        }
    }

    pub(crate) fn file(self) -> &'static Path {
        Path::new(match self {
            Engine::Docker => docker::FILE,
            Engine::Containerd => containerd::FILE,
            Engine::Crio => crio::FILE,
            Engine::Podman => podman::FILE,
            Engine::Nomad => nomad::FILE,
        })
    }

    pub(crate) fn program(self) -> &'static str {
        match self {
            Engine::Docker => "dockerd",
            Engine::Containerd | Engine::Crio | Engine::Podman | Engine::Nomad => self.name(),
        }
    }

    /// The service that reads its file when it starts; none where every command reads it.
    pub(crate) fn service(self) -> Option<&'static str> {
        match self {
            Engine::Podman => None,
            Engine::Docker | Engine::Containerd | Engine::Crio | Engine::Nomad => Some(self.name()),
        }
    }
}
