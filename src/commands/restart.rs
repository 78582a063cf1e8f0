//! `runtime configure --restart`: an engine reads its file again, and does as well as before or gets the old file back.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use onload_engines::engine::Engine;

use super::process::run_command;

/// The path of systemctl, since PATH is the caller's.
const SYSTEMCTL: [&str; 2] = ["/usr/bin/systemctl", "/bin/systemctl"];
/// This directory exists if systemd is running: sd_booted(3).
const BOOTED: &str = "/run/systemd/system";
const CTR: [&str; 2] = ["/usr/bin/ctr", "/usr/local/bin/ctr"];
const TIMEOUT: Duration = Duration::from_secs(15);
/// How long it has to do so until it counts: a service may end a moment after its start.
const SETTLE_TIME: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(250);
const INSPECT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReloadMethod {
    Reload,
    Restart,
}

impl ReloadMethod {
    pub(super) fn verb(self) -> &'static str {
        match self {
            ReloadMethod::Reload => "reload",
            ReloadMethod::Restart => "restart",
        }
    }
}

pub(super) struct EngineService {
    pub(super) name: &'static str,
    systemctl: &'static str,
    pub(super) before: ServiceState,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServiceState {
    pub(super) is_active: bool,
    plugins: BTreeSet<String>,
}

impl EngineService {
    pub(super) fn open(engine: Engine) -> Result<Option<EngineService>> {
        let Some(name) = engine.service() else { return Ok(None) };
        let systemctl = systemctl(&SYSTEMCTL, Path::new(BOOTED), name)?;
        let mut service = EngineService { name, systemctl, before: ServiceState::default() };
        service.before = service.read_state();
        Ok(Some(service))
    }

    /// Why it does worse than before, where it does. It is an error if it did not do well before either.
    pub(super) fn reload(&self, method: ReloadMethod) -> Result<Option<String>> {
        let (program, name, word) = (self.systemctl, self.name, method.verb());
        let status = Command::new(program)
            .args([word, name])
            .status()
            .with_context(|| format!("{word}ing {name} with {program}"))?;
        if let Some(loss) = self.wait() {
            return Ok(Some(loss));
        }
        if !status.success() {
            bail!("{word}ing {name}: {program} ended with {status}; see \"journalctl -u {name}\"");
        }
        Ok(None)
    }

    /// As [`EngineService::reload`], after that did worse: systemd starts a service that failed a few times in a row no more
    /// for a while, docker after three times in a minute.
    pub(super) fn retry_reload(&self, method: ReloadMethod) -> Result<Option<String>> {
        // A failure shows up in the state of the service below.
        let _ = Command::new(self.systemctl).args(["reset-failed", self.name]).status();
        self.reload(method)
    }

    /// Waits until the service works as well as before. Returns what it lost if it does not.
    fn wait(&self) -> Option<String> {
        let deadline = Instant::now() + TIMEOUT;
        let mut well_since = None;
        loop {
            let now = Instant::now();
            match self.find_loss(&self.read_state()) {
                None if now >= *well_since.get_or_insert(now) + SETTLE_TIME => return None,
                None => {}
                Some(loss) if now > deadline => return Some(loss),
                Some(_) => well_since = None,
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn read_state(&self) -> ServiceState {
        let result =
            Command::new(self.systemctl).args(["--quiet", "is-active", self.name]).status();
        let is_containerd = self.name == Engine::Containerd.name();
        let plugins = is_containerd.then(list_plugins).flatten().unwrap_or_default();
        ServiceState {
            is_active: result.is_ok_and(|status| status.success()),
            plugins: parse_working(&plugins),
        }
    }

    /// Returns what this service lost since it was opened.
    fn find_loss(&self, now: &ServiceState) -> Option<String> {
        let name = self.name;
        if self.before.is_active && !now.is_active {
            return Some(format!("{name} does not run; see \"journalctl -u {name}\""));
        }
        let plugin = self.before.plugins.difference(&now.plugins).next()?;
        Some(format!("{name} cannot load its plugin {plugin}; see \"ctr plugins ls --detailed\""))
    }
}

/// A minimal system or a container may have systemctl installed without a running systemd.
fn systemctl(paths: &[&'static str], booted: &Path, service: &str) -> Result<&'static str> {
    paths.iter().find(|path| booted.is_dir() && Path::new(path).exists()).copied().with_context(|| {
        format!(
            "--restart: systemd is not running on this host; omit --restart, and restart {service} \
             with the host's init system"
        )
    })
}

fn list_plugins() -> Option<String> {
    let program = CTR.into_iter().find(|path| Path::new(path).exists())?;
    let mut command = Command::new(program);
    run_command(command.args(["plugins", "ls"]), Instant::now() + INSPECT_TIMEOUT).ok()
}

/// The plugins that work, of what "ctr plugins ls" prints: type, id, platforms, status.
fn parse_working(printed: &str) -> BTreeSet<String> {
    let lines = printed.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (kind, id) = (words.next()?, words.next()?);
        (words.last() == Some("ok")).then(|| format!("{kind}.{id}"))
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What 1.7.24 printed, shortened.
    const LISTED: &str = "\
TYPE                                   ID                       PLATFORMS      STATUS
io.containerd.snapshotter.v1           devmapper                linux/amd64    error
io.containerd.event.v1                 exchange                 -              ok
io.containerd.grpc.v1                  cri                      linux/amd64    ok
";
    fn state(is_active: bool, printed: &str) -> ServiceState {
        ServiceState { is_active, plugins: parse_working(printed) }
    }

    fn find_loss(before: &ServiceState, now: &ServiceState) -> Option<String> {
        let before = before.clone();
        EngineService { name: "containerd", systemctl: "", before }.find_loss(now)
    }

    #[test]
    fn a_plugin_that_worked_and_does_not_is_lost_and_one_that_never_did_is_not() {
        let before = state(true, LISTED);
        assert_eq!(before.plugins.len(), 2);
        assert_eq!(find_loss(&before, &before), None);
        let broken = LISTED.replace("linux/amd64    ok", "linux/amd64    error");
        let loss = find_loss(&before, &state(true, &broken)).unwrap();
        assert!(loss.starts_with("containerd cannot load its plugin io.containerd.grpc.v1.cri;"));
        assert_eq!(find_loss(&state(true, &broken), &before), None);
    }

    #[test]
    fn a_service_that_ran_and_does_not_is_lost() {
        let (up, down) = (state(true, ""), state(false, ""));
        let loss = find_loss(&up, &down).unwrap();
        assert_eq!(loss, "containerd does not run; see \"journalctl -u containerd\"");
        assert_eq!(find_loss(&down, &down), None);
        assert_eq!(find_loss(&down, &up), None);
    }

    #[test]
    fn a_service_that_systemd_starts_no_more_is_started_with_its_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let systemctl = dir.path().join("systemctl");
        // As docker is after three starts that failed.
        let stand_in = "#!/bin/sh\ncd ${0%/*} || exit 1\ncase $* in\n'reset-failed docker') >reset ;;\n\
             'restart docker') test -e reset && >up ;;\n*is-active*) test -e up ;;\nesac\n";
        // A child writes it: what another test starts meanwhile would keep a file of ours open (ETXTBSY).
        let write = "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\"";
        let mut sh = Command::new("sh");
        let written = sh.args(["-c", write]).arg(&systemctl).arg(stand_in).status();
        assert!(written.unwrap().success());
        let service = EngineService {
            name: "docker",
            systemctl: systemctl.to_str().unwrap().to_owned().leak(),
            before: state(true, ""),
        };
        assert_eq!(service.retry_reload(ReloadMethod::Restart).unwrap(), None);
        assert!(dir.path().join("up").exists());
    }

    #[test]
    fn a_host_without_systemd_is_told_what_to_leave_out() {
        // Neither an installed systemctl nor a running systemd is enough.
        for (program, booted) in [("/nowhere/systemctl", "/"), ("/", "/nowhere/system")] {
            let refusal = systemctl(&[program], Path::new(booted), "docker").unwrap_err();
            let line = refusal.to_string();
            assert!(line.contains("--restart: systemd is not running on this host"), "{line}");
            assert!(line.contains("restart docker with the host's init system"), "{line}");
        }
        assert_eq!(systemctl(&["/nowhere", "/"], Path::new("/"), "docker").unwrap(), "/");
    }
}
