//! How each engine takes an image, starts a container of it, and forgets both.

use std::path::Path;

use onload_report::doctor::{Check, Verdict};

use super::super::engine_checks::{obstacle, of};
use super::asked::Asked;
pub(crate) use crate::cli::TryEngine as Engine;

/// containerd's own client knows no CDI names, so that there the runtime is asked by annotation.
pub(super) const WRAPPER: &str = "/usr/bin/onload-container-runtime";
const ALL: [Engine; 3] = [Engine::Docker, Engine::Podman, Engine::Containerd];

/// One run: both names are its own, so that nothing of another one is taken away.
#[derive(Debug)]
pub(super) struct Names {
    pub container: String,
    pub image: String,
}

impl Names {
    pub(super) fn of_process(pid: u32) -> Names {
        Names {
            container: format!("onload-ctk-try-{pid}"),
            image: format!("localhost/onload-ctk-probe:{pid}"),
        }
    }
}

impl Engine {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Engine::Docker => "docker",
            Engine::Podman => "podman",
            Engine::Containerd => "containerd",
        }
    }

    /// Those that are installed and can give devices, by what doctor found.
    pub(crate) fn usable(checks: &[Check]) -> impl Iterator<Item = Engine> {
        ALL.into_iter()
            .filter(|engine| matches!(engine.check(checks), Some((_, None))))
    }

    /// That it is installed, and what stands in its way.
    pub(super) fn check(self, checks: &[Check]) -> Option<(&Check, Option<&Check>)> {
        let mut engines = of(checks, "engine");
        let own = engines.find(|check| check.finding.subject.as_deref() == Some(self.name()))?;
        let by_cdi = match self {
            Engine::Docker | Engine::Podman => obstacle(checks, own),
            Engine::Containerd => None,
        };
        let broken = (own.finding.verdict != Verdict::Pass).then_some(own);
        Some((own, broken.or(by_cdi)))
    }

    /// What is missing for it on the host, where only the package brings it.
    pub(super) fn lacks(self) -> Option<&'static str> {
        (self == Engine::Containerd && !Path::new(WRAPPER).exists()).then_some(WRAPPER)
    }

    fn client(self) -> &'static str {
        match self {
            Engine::Containerd => "ctr",
            Engine::Docker | Engine::Podman => self.name(),
        }
    }

    /// Reads the image from stdin.
    pub(super) fn load(self) -> Vec<String> {
        match self {
            Engine::Containerd => words(&[self.client(), "images", "import", "-"]),
            Engine::Docker | Engine::Podman => words(&[self.client(), "load"]),
        }
    }

    pub(super) fn start(self, names: &Names, asked: &Asked, program: &[String]) -> Vec<String> {
        let device = asked.device();
        let mut line = match self {
            Engine::Containerd => {
                let annotation = format!("{}={}", asked.class.kind(), asked.name);
                let mut line = words(&["ctr", "run", "--rm", "--runc-binary", WRAPPER]);
                line.extend(words(&["--annotation", &annotation]));
                if asked.needs_host_network() {
                    line.push("--net-host".to_owned());
                }
                line.extend(words(&[&names.image, &names.container]));
                line
            }
            Engine::Docker | Engine::Podman => {
                let network = if asked.needs_host_network() {
                    "host"
                } else {
                    "none"
                };
                let client = self.client();
                let mut line = words(&[client, "run", "--rm", "--interactive"]);
                line.extend(words(&["--pull", "never", "--name", &names.container]));
                line.extend(words(&["--network", network, "--device", &device]));
                line.push(names.image.clone());
                line
            }
        };
        line.extend_from_slice(program);
        line
    }

    /// Each takes away what is there; what is gone already is no failure of it.
    pub(super) fn forget(self, names: &Names) -> Vec<Vec<String>> {
        let (container, image) = (names.container.as_str(), names.image.as_str());
        match self {
            Engine::Docker => vec![
                words(&["docker", "rm", "--force", container]),
                words(&["docker", "rmi", "--force", image]),
            ],
            Engine::Podman => vec![
                words(&["podman", "rm", "--force", "--time", "0", container]),
                words(&["podman", "rmi", "--force", image]),
            ],
            Engine::Containerd => vec![
                words(&["ctr", "tasks", "rm", "--force", container]),
                words(&["ctr", "containers", "rm", container]),
                words(&["ctr", "snapshots", "rm", container]),
                words(&["ctr", "images", "rm", image]),
            ],
        }
    }

    /// They print what is left.
    pub(super) fn left(self, names: &Names) -> Vec<Vec<String>> {
        let (container, image) = (names.container.as_str(), names.image.as_str());
        let by_name = format!("name={container}");
        match self {
            Engine::Docker | Engine::Podman => vec![
                words(&[
                    self.client(),
                    "ps",
                    "--all",
                    "--quiet",
                    "--filter",
                    &by_name,
                ]),
                words(&[self.client(), "images", "--quiet", image]),
            ],
            Engine::Containerd => vec![
                words(&[
                    "ctr",
                    "containers",
                    "list",
                    "--quiet",
                    &format!("id=={container}"),
                ]),
                words(&[
                    "ctr",
                    "images",
                    "list",
                    "--quiet",
                    &format!("name=={image}"),
                ]),
            ],
        }
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use onload_core::class::Class;

    use super::*;

    fn line(engine: Engine, class: Class, name: &str) -> String {
        let asked = Asked {
            class,
            name: name.to_owned(),
        };
        let program = words(&["/onload-ctk", "probe"]);
        engine
            .start(&Names::of_process(7), &asked, &program)
            .join(" ")
    }

    #[test]
    fn docker_and_podman_are_asked_by_cdi_name() {
        assert_eq!(
            line(Engine::Podman, Class::Hugepages, "2Mi"),
            "podman run --rm --interactive --pull never --name onload-ctk-try-7 --network none \
             --device onload.dev/hugepages=2Mi localhost/onload-ctk-probe:7 /onload-ctk probe"
        );
        assert!(line(Engine::Docker, Class::Nic, "ens1").contains(" --network host "));
    }

    #[test]
    fn containerd_is_asked_by_annotation() {
        assert_eq!(
            line(Engine::Containerd, Class::Nic, "ens1"),
            "ctr run --rm --runc-binary /usr/bin/onload-container-runtime --annotation \
             onload.dev/nic=ens1 --net-host localhost/onload-ctk-probe:7 onload-ctk-try-7 /onload-ctk probe"
        );
        assert!(!line(Engine::Containerd, Class::Vfio, "0000:01:00.0").contains("--net-host"));
    }

    #[test]
    fn each_engine_forgets_the_container_before_its_image() {
        for engine in ALL {
            let lines = engine.forget(&Names::of_process(7));
            let at = |name: &str| {
                lines
                    .iter()
                    .position(|line| line.iter().any(|word| word == name))
            };
            assert!(at("onload-ctk-try-7").is_some(), "{engine:?}");
            assert!(
                at("onload-ctk-try-7") < at("localhost/onload-ctk-probe:7"),
                "{engine:?}"
            );
        }
    }
}
