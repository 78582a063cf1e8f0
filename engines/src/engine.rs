//! The engines that can be set up, with the usual names and places of each.

use std::path::Path;

use crate::kind::EngineKind;
use crate::{containerd, crio, docker, nomad, podman};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Docker,
    Containerd,
    Crio,
    Podman,
    Nomad,
}

impl Engine {
    pub const ALL: [Engine; 5] =
        [Engine::Docker, Engine::Containerd, Engine::Crio, Engine::Podman, Engine::Nomad];

    pub fn kind(self) -> EngineKind {
        match self {
            Engine::Docker => EngineKind::Docker,
            Engine::Containerd => EngineKind::Containerd,
            Engine::Crio => EngineKind::Crio,
            Engine::Podman => EngineKind::Podman,
            Engine::Nomad => EngineKind::Nomad,
        }
    }

    pub fn name(self) -> &'static str {
        self.kind().name()
    }

    pub fn file(self) -> &'static Path {
        Path::new(match self {
            Engine::Docker => docker::FILE,
            Engine::Containerd => containerd::FILE,
            Engine::Crio => crio::FILE,
            Engine::Podman => podman::FILE,
            Engine::Nomad => nomad::FILE,
        })
    }

    /// The service that reads its file at the start; `None` if every command reads it.
    pub fn service(self) -> Option<&'static str> {
        self.kind().services().first().copied()
    }
}
