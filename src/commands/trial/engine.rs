//! How each engine takes an image, starts a container of it, and forgets both.

use std::path::Path;

use onload_report::doctor::Check;

use super::super::doctor::{checks_named, find_obstacle};
use super::device::TrialDevice;
use super::names::TrialNames;
use crate::cli::TryEngine;

/// containerd's own client knows no CDI names, so that there the runtime is asked by annotation.
pub(super) const WRAPPER: &str = "/usr/bin/onload-container-runtime";
const ALL: [TryEngine; 3] = [TryEngine::Docker, TryEngine::Podman, TryEngine::Containerd];

impl TryEngine {
    pub(crate) fn name(self) -> &'static str {
        match self {
            TryEngine::Docker => "docker",
            TryEngine::Podman => "podman",
            TryEngine::Containerd => "containerd",
        }
    }

    /// Returns the installed engines that can provide devices, by doctor's findings.
    pub(crate) fn usable_engines(checks: &[Check]) -> impl Iterator<Item = TryEngine> {
        ALL.into_iter().filter(|engine| matches!(engine.check(checks), Some((_, None))))
    }

    /// Whether it is installed, and its obstacle.
    pub(super) fn check(self, checks: &[Check]) -> Option<(&Check, Option<&Check>)> {
        let mut engines = checks_named(checks, "engine");
        let engine_check =
            engines.find(|check| check.finding.subject.as_deref() == Some(self.name()))?;
        let obstacle = match self {
            TryEngine::Docker | TryEngine::Podman => find_obstacle(checks, engine_check),
            TryEngine::Containerd => None,
        };
        let broken = engine_check.finding.verdict.is_problem().then_some(engine_check);
        Some((engine_check, broken.or(obstacle)))
    }

    /// Returns what is missing for it on the host, if only the package provides it.
    pub(super) fn missing_part(self) -> Option<&'static str> {
        (self == TryEngine::Containerd && !Path::new(WRAPPER).exists()).then_some(WRAPPER)
    }

    fn client(self) -> &'static str {
        match self {
            TryEngine::Containerd => "ctr",
            TryEngine::Docker | TryEngine::Podman => self.name(),
        }
    }

    /// Reads the image from stdin.
    pub(super) fn load(self) -> Vec<String> {
        match self {
            TryEngine::Containerd => to_words(&[self.client(), "images", "import", "-"]),
            TryEngine::Docker | TryEngine::Podman => to_words(&[self.client(), "load"]),
        }
    }

    /// A container of the image, with that device or with none.
    pub(super) fn start(
        self,
        names: &TrialNames,
        device: Option<&TrialDevice>,
        program: &[String],
    ) -> Vec<String> {
        let on_host = device.is_some_and(TrialDevice::needs_host_network);
        let (container, image) = (names.container(), names.image());
        let mut line = match self {
            TryEngine::Containerd => {
                let mut line = to_words(&["ctr", "run", "--rm", "--runc-binary", WRAPPER]);
                if let Some(device) = device {
                    line.extend(to_words(&["--annotation", &device.device()]));
                }
                if on_host {
                    line.push("--net-host".to_owned());
                }
                line.extend([image, container]);
                line
            }
            TryEngine::Docker | TryEngine::Podman => {
                let network = if on_host { "host" } else { "none" };
                let mut line = to_words(&[self.client(), "run", "--rm", "--interactive"]);
                line.extend(to_words(&["--pull", "never", "--name", &container]));
                line.extend(to_words(&["--network", network]));
                if let Some(device) = device {
                    line.extend(to_words(&["--device", &device.device()]));
                }
                line.push(image);
                line
            }
        };
        line.extend_from_slice(program);
        line
    }

    /// Removes the container and image. Succeeds if they are already gone.
    pub(super) fn remove_container(self, names: &TrialNames) -> Vec<Vec<String>> {
        let container = &names.container();
        match self {
            TryEngine::Docker => vec![to_words(&["docker", "rm", "--force", container])],
            TryEngine::Podman => {
                vec![to_words(&["podman", "rm", "--force", "--time", "0", container])]
            }
            TryEngine::Containerd => vec![
                to_words(&["ctr", "tasks", "rm", "--force", container]),
                to_words(&["ctr", "containers", "rm", container]),
                to_words(&["ctr", "snapshots", "rm", container]),
            ],
        }
    }

    pub(super) fn remove_image(self, names: &TrialNames) -> Vec<String> {
        let image = names.image();
        match self {
            TryEngine::Containerd => to_words(&["ctr", "images", "rm", &image]),
            TryEngine::Docker | TryEngine::Podman => {
                to_words(&[self.client(), "rmi", "--force", &image])
            }
        }
    }

    /// They print the names of all containers and of all images, a line each.
    pub(super) fn list(self) -> [Vec<String>; 2] {
        let client = self.client();
        match self {
            TryEngine::Docker | TryEngine::Podman => [
                to_words(&[client, "ps", "--all", "--format", "{{.Names}}"]),
                to_words(&[client, "images", "--format", "{{.Repository}}:{{.Tag}}"]),
            ],
            TryEngine::Containerd => [
                to_words(&[client, "containers", "list", "--quiet"]),
                to_words(&[client, "images", "list", "--quiet"]),
            ],
        }
    }
}

fn to_words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use onload_core::class::Class;

    use super::*;

    fn names() -> TrialNames {
        TrialNames::read("onload-ctk-try-7-99").unwrap()
    }

    fn line(engine: TryEngine, class: Class, name: &str) -> String {
        let asked = TrialDevice { class, name: name.to_owned() };
        let program = to_words(&["/onload-ctk", "probe"]);
        engine.start(&names(), Some(&asked), &program).join(" ")
    }

    #[test]
    fn docker_and_podman_are_asked_by_cdi_name() {
        assert_eq!(
            line(TryEngine::Podman, Class::Hugepages, "2Mi"),
            "podman run --rm --interactive --pull never --name onload-ctk-try-7-99 --network none \
             --device onload.dev/hugepages=2Mi localhost/onload-ctk-probe:7-99 /onload-ctk probe"
        );
        assert!(line(TryEngine::Docker, Class::Nic, "ens1").contains(" --network host "));
    }

    #[test]
    fn containerd_is_asked_by_annotation() {
        assert_eq!(
            line(TryEngine::Containerd, Class::Nic, "ens1"),
            "ctr run --rm --runc-binary /usr/bin/onload-container-runtime --annotation \
             onload.dev/nic=ens1 --net-host localhost/onload-ctk-probe:7-99 onload-ctk-try-7-99 /onload-ctk probe"
        );
        assert!(!line(TryEngine::Containerd, Class::Vfio, "0000:01:00.0").contains("--net-host"));
    }

    #[test]
    fn a_container_without_a_device_asks_for_none() {
        for engine in ALL {
            let line = engine.start(&names(), None, &to_words(&["/onload-ctk"]));
            assert!(!line.iter().any(|word| word.contains("onload.dev")), "{line:?}");
        }
    }
}
