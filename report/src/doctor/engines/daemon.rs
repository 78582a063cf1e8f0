//! Processes of services: which run, and when an engine's daemon was started.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, SystemTime};

use onload_engines::daemon::{find_processes, find_service};
use onload_engines::kind::EngineKind;
use onload_engines::our_runtime::RUNTIME_NAME;
use onload_engines::settings::EngineSettings;
use onload_host::host::Host;
use onload_sys::processes::start_time;

use crate::doctor::context::{CheckContext, HostResult};
use crate::status::boot_time;

const SYSTEMD_DIR: &str = "/etc/systemd/system";
/// The sockets that have a name (net/unix/af_unix.c, `unix_seq_show`).
const UNIX_SOCKETS: &str = "/proc/net/unix";
const MAX_SOCKET_BYTES: u64 = 16 * 1024 * 1024;
const DOCKER_SOCKET: &str = "/run/docker.sock";
/// How long it may take to answer, and bytes of the answer.
const TIMEOUT: Duration = Duration::from_secs(2);
const MAX_BYTES: u64 = 1024 * 1024;
/// Clock ticks of a second in what the kernel tells users (include/asm-generic/param.h, USER_HZ).
const TICKS: u64 = 100;

/// Returns when the engine's running daemon was started, and its service. `None` if none runs. A process's name is its
/// own choice, and its cgroup is not.
pub(super) fn daemon_start(
    context: &CheckContext<'_>,
    kind: EngineKind,
) -> HostResult<Option<(SystemTime, &'static str)>> {
    if kind.services().is_empty() {
        return Ok(None);
    }
    let Some(boot) = boot_time(context.host)? else { return Ok(None) };
    for process in find_processes(context.host, kind.process_names())? {
        let Some(service) = find_service(kind.services(), &process.cgroup) else { continue };
        if let Some(since_boot) = process_start(context.host, &process.directory) {
            let start = boot + since_boot;
            // Of another host, boot is known to the second.
            let second = Duration::from_secs(u64::from(!context.host.is_running()));
            return Ok(Some((start + second, service)));
        }
    }
    Ok(None)
}

/// How long after boot a process began: the end of the tick in which it did.
fn process_start(host: &Host, directory: &Path) -> Option<Duration> {
    let stat = host.bytes(&directory.join("stat"), 4096).ok()??;
    let ticks = start_time(&stat)?.saturating_add(1);
    Some(Duration::from_millis(ticks.saturating_mul(1000) / TICKS))
}

/// Returns whether the daemon runs or starts at boot, and the service that starts at boot but does not run now, unless a
/// request to its socket would start it. An engine without a daemon, and one of a captured host, counts as used.
pub(super) fn find_use(
    context: &CheckContext<'_>,
    kind: EngineKind,
) -> HostResult<(bool, Option<&'static str>)> {
    if kind.services().is_empty()
        || !is_running(context)?
        || !find_processes(context.host, kind.process_names())?.is_empty()
    {
        return Ok((true, None));
    }
    let Some(service) = find_enabled(context, kind)? else { return Ok((false, None)) };
    let sockets = context.host.bytes(Path::new(UNIX_SOCKETS), MAX_SOCKET_BYTES)?;
    let is_listening = sockets.is_none_or(|sockets| {
        let name = format!("/{service}.sock");
        String::from_utf8_lossy(&sockets).lines().any(|line| line.ends_with(&name))
    });
    Ok((true, (!is_listening).then_some(service)))
}

fn find_enabled(context: &CheckContext<'_>, kind: EngineKind) -> HostResult<Option<&'static str>> {
    for service in kind.services() {
        for unit in [
            format!("multi-user.target.wants/{service}.service"),
            format!("sockets.target.wants/{service}.socket"),
        ] {
            if context.host.link(&Path::new(SYSTEMD_DIR).join(unit))?.is_some() {
                return Ok(Some(service));
            }
        }
    }
    Ok(None)
}

/// Whether the host runs: a tree that is unpacked or mounted has no processes.
pub(super) fn is_running(context: &CheckContext<'_>) -> HostResult<bool> {
    Ok(boot_time(context.host)?.is_some())
}

/// Returns whether the running dockerd must reload its file, by its own information. `None` if it does not answer or
/// must be restarted, since it enables CDI only at its start.
pub(super) fn needs_docker_reload(
    context: &CheckContext<'_>,
    settings: &EngineSettings,
) -> Option<bool> {
    let info = read_docker_info(context.host).ok()?;
    if settings.cdi == Some(true) && !reports_cdi(&info) {
        return None;
    }
    // A runtime that its file no longer names stays until it starts again, and does no harm.
    let lacks_runtime = settings.has_runtime && info.get("Runtimes")?.get(RUNTIME_NAME).is_none();
    let is_default = info.get("DefaultRuntime")? == RUNTIME_NAME;
    Some(lacks_runtime || is_default != settings.is_default)
}

/// Returns whether CDI is enabled in the running dockerd, whatever its file says now. `None` if it does not answer.
pub fn is_cdi_on_in_docker(host: &Host) -> Option<bool> {
    Some(reports_cdi(&read_docker_info(host).ok()?))
}

fn reports_cdi(info: &serde_json::Value) -> bool {
    let dirs = info.get("CDISpecDirs").and_then(serde_json::Value::as_array);
    dirs.is_some_and(|dirs| !dirs.is_empty())
}

fn read_docker_info(host: &Host) -> io::Result<serde_json::Value> {
    let mut stream = UnixStream::connect(host.outside_path(Path::new(DOCKER_SOCKET)))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(b"GET /info HTTP/1.0\r\nHost: docker\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(MAX_BYTES).read_to_end(&mut answer)?;
    let body = memchr::memmem::find(&answer, b"\r\n\r\n").and_then(|end| answer.get(end + 4..));
    Ok(serde_json::from_slice(body.unwrap_or_default())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A daemon is often started right after its file was written: what is cut to seconds says of a third of them that
    /// they are older.
    #[test]
    fn what_is_written_a_tenth_of_a_second_before_a_process_begins_is_older() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::open(Path::new("/")).unwrap();
        let file = dir.path().join("daemon.json");
        let pause = || std::thread::sleep(Duration::from_millis(100));
        let written = || {
            std::fs::write(&file, "{}").unwrap();
            host.modified(&file).unwrap().unwrap()
        };
        // Begun at all parts of a second.
        for _ in 0..8 {
            let before = written();
            pause();
            let mut child = std::process::Command::new("sleep").arg("10").spawn().unwrap();
            pause();
            let after = written();
            let directory = Path::new("/proc").join(child.id().to_string());
            let began =
                boot_time(&host).unwrap().unwrap() + process_start(&host, &directory).unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(before < began && began < after, "{before:?} {began:?} {after:?}");
        }
    }

    #[test]
    fn a_process_in_a_container_is_no_daemon_whatever_its_name() {
        let service = |text: &str| find_service(&["docker"], text);
        assert_eq!(service("0::/system.slice/docker.service\n"), Some("docker"));
        assert_eq!(service("0::/system.slice/docker.service/child\n"), None);
        assert_eq!(service("0::/system.slice/docker-1234.scope\n"), None);
        assert_eq!(service("4:devices:/system.slice/docker.service\n"), Some("docker"));
        let rootless = "user.slice/user-1000.slice/user@1000.service/app.slice/docker.service";
        assert_eq!(service(&format!("0::/{rootless}\n")), None);
        assert_eq!(service("0::/kubepods.slice/a.scope/system.slice/docker.service\n"), None);
    }
}
