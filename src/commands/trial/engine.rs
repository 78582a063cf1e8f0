//! How each engine takes an image, starts a container of it, and forgets both.

use std::path::Path;

use anyhow::{Context, Result};
use onload_report::doctor::Check;
use onload_sys::processes::Processes;

use super::device::TrialDevice;
use crate::cli::TryEngine;
use crate::commands::doctor::{checks_named, find_obstacle};

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

const CONTAINER: &str = "onload-ctk-try-";
const IMAGE: &str = "localhost/onload-ctk-probe:";

/// Names of a run's container and image. They contain its PID, so that a later run can tell whether it has ended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TrialNames {
    pid: u32,
    /// In clock ticks after boot: another process may get the number.
    start_time: u64,
}

impl TrialNames {
    pub(super) fn for_this_process() -> Result<TrialNames> {
        let pid = std::process::id();
        let process = Processes::default().find(pid)?;
        let start_time = process
            .context("looking for this process: /proc does not show it; mount the host's /proc")?
            .start_time;
        Ok(TrialNames { pid, start_time })
    }

    /// Parses the name of a container or image. `None` for others.
    pub(super) fn read(name: &str) -> Option<TrialNames> {
        let name = name.trim();
        let suffix = name.strip_prefix(CONTAINER).or_else(|| name.strip_prefix(IMAGE))?;
        let (pid, start_time) = suffix.split_once('-')?;
        Some(TrialNames { pid: pid.parse().ok()?, start_time: start_time.parse().ok()? })
    }

    pub(super) fn container(&self) -> String {
        format!("{CONTAINER}{}-{}", self.pid, self.start_time)
    }

    pub(super) fn image(&self) -> String {
        format!("{IMAGE}{}-{}", self.pid, self.start_time)
    }

    /// A process that cannot be looked at counts as running.
    pub(super) fn has_ended(&self) -> bool {
        match Processes::default().find(self.pid) {
            Ok(Some(now)) => now.start_time != self.start_time,
            Ok(None) => true,
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onload_core::class::Class;

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

    #[test]
    fn names_are_read_back_and_those_of_others_are_not() {
        let own = TrialNames::for_this_process().unwrap();
        assert_eq!(TrialNames::read(&own.container()), Some(own.clone()));
        assert_eq!(TrialNames::read(&own.image()), Some(own));
        for name in [
            "",
            "redis",
            "onload-ctk-try-",
            "onload-ctk-try-7",
            "onload-ctk-try-mine-7",
            "my-onload-ctk-try-7-8",
            "localhost/onload-ctk-probe:latest",
            "example.com/localhost/onload-ctk-probe:7-8",
        ] {
            assert_eq!(TrialNames::read(name), None, "{name}");
        }
    }

    #[test]
    fn a_run_has_ended_when_another_process_has_its_number_or_none_has() {
        let own = TrialNames::for_this_process().unwrap();
        assert!(!own.has_ended());
        let start_time = own.start_time + 1;
        assert!(TrialNames { start_time, ..own }.has_ended());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let pid = child.id();
        assert!(TrialNames { pid, ..own }.has_ended());
    }
}
