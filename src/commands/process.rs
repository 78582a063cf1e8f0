//! What other programs say: their versions, and the arguments of processes. A process can keep its arguments from being
//! read: the kernel takes them from the process's own memory (fs/proc/base.c, `get_mm_cmdline`), and a page of a FUSE file
//! that is mapped there arrives only when its owner likes. The kernel waits for such a page without reacting to signals.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, bail};
use onload_engines::daemon::UNIT_PROPERTIES;
use onload_host::host::Host;
use onload_sys::fs::trust::{TrustedOwners, TrustedTree};
use rustix::process::geteuid;

/// Where systemd's command is; PATH is the caller's.
pub(super) const SYSTEMCTL: [&str; 2] = ["/usr/bin/systemctl", "/bin/systemctl"];
/// This directory exists if systemd is running: sd_booted(3).
pub(super) const BOOTED: &str = "/run/systemd/system";
const CAT: &str = "/bin/cat";
/// Bytes of a name, which the kernel truncates at 15, and of its newline.
const MAX_NAME_BYTES: u64 = 64;
const MAX_BYTES: u64 = 16 * 1024 * 1024;
const MAX_VERSION_BYTES: u64 = 4096;
/// How long a program may take to print its version.
const VERSION_TIMEOUT: Duration = Duration::from_millis(1500);

/// The name comes from the kernel, and is read first. The owner is not checked: a container's process may be root's.
pub(super) fn read_arguments(
    host: &Host,
    proc: &Path,
    name: &str,
    limit: Duration,
) -> anyhow::Result<Vec<Vec<u8>>> {
    let is_pid = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
    let mut all_arguments = Vec::new();
    for pid in host.list(proc)?.names.into_iter().filter(is_pid) {
        let dir = proc.join(&pid);
        // A process that ends meanwhile holds nothing.
        let Ok(Some(comm)) = host.bytes(&dir.join("comm"), MAX_NAME_BYTES) else {
            continue;
        };
        if comm.trim_ascii_end() == name.as_bytes() {
            let path = host.outside_path(&dir.join("cmdline"));
            let arguments = read(&path, MAX_BYTES, limit)
                .with_context(|| format!("reading the arguments of process {pid} ({name})"))?;
            all_arguments.push(arguments);
        }
    }
    Ok(all_arguments)
}

/// Reads a file in a separate process: if it waits forever, it is left behind, whereas a thread
/// would keep this program from ending.
pub(super) fn read(path: &Path, bytes: u64, limit: Duration) -> anyhow::Result<Vec<u8>> {
    let mut command = Command::new(CAT);
    command.arg("--").arg(path);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let child = command.stdout(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("running {CAT}"))?;
    let Some(answer) = read_answer(&mut child, bytes, limit) else {
        bail!("it did not give them within {} s; end it", limit.as_secs_f32());
    };
    answer.context("reading its answer")
}

/// What `PROGRAM --version` of the running host prints, without anything of our environment; none where it does not
/// answer, or where somebody else than root and the caller could have put it there: it would be run with the caller's
/// rights.
pub(super) fn read_version(host: &Host, program: &Path) -> Option<String> {
    // A captured tree is of another host: the program at the same path here is not the one it tells of.
    if !host.is_running() {
        return None;
    }
    let owners = TrustedOwners::from_users(&[0, geteuid().as_raw()]);
    let trusted = TrustedTree::for_host(owners).ok()?;
    trusted.check(program).ok()?;
    let mut command = Command::new(program);
    command.arg("--version").env_clear().current_dir("/");
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).spawn().ok()?;
    let answer = read_answer(&mut child, MAX_VERSION_BYTES, VERSION_TIMEOUT)?.ok()?;
    String::from_utf8(answer).ok()
}

/// What systemd says about how a unit of the running host starts; `None` if it does not answer.
pub(super) fn show_unit(host: &Host, unit: &str) -> Option<String> {
    if !host.is_running() || !Path::new(BOOTED).is_dir() {
        return None;
    }
    let program = SYSTEMCTL.iter().find(|program| Path::new(program).exists())?;
    let mut command = Command::new(program);
    command.args(["show", "--property", UNIT_PROPERTIES, unit]).env_clear().current_dir("/");
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).spawn().ok()?;
    let answer = read_answer(&mut child, MAX_BYTES, VERSION_TIMEOUT)?.ok()?;
    // Without a property there is no answer: systemd prints the properties of a unit that it does not know, too.
    String::from_utf8(answer).ok().filter(|answer| !answer.is_empty())
}

/// What a program prints, as far as so many bytes of it; none where it does not end its answer in time.
pub(super) fn read_answer(
    child: &mut Child,
    max: u64,
    limit: Duration,
) -> Option<io::Result<Vec<u8>>> {
    let stdout = child.stdout.take()?;
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let result = stdout.take(max).read_to_end(&mut bytes);
        // Nobody listens any more after the deadline.
        let _ = sender.send(result.map(|_| bytes));
    });
    let answer = receiver.recv_timeout(limit);
    // It may have ended, or may be unable to end: neither is waited for.
    let _ = child.kill();
    let _ = child.try_wait();
    answer.ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A directory like /proc; a process without arguments never returns them.
    fn proc_with(processes: &[(&str, &str, Option<&str>)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (pid, name, arguments) in processes {
            let dir = root.path().join("proc").join(pid);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("comm"), format!("{name}\n")).unwrap();
            match arguments {
                Some(arguments) => fs::write(dir.join("cmdline"), arguments).unwrap(),
                None => {
                    let made = Command::new("mkfifo").arg(dir.join("cmdline")).status();
                    assert!(made.unwrap().success());
                }
            }
        }
        root
    }

    fn asked(root: &tempfile::TempDir, limit: Duration) -> anyhow::Result<Vec<Vec<u8>>> {
        let host = Host::open(root.path()).unwrap();
        read_arguments(&host, Path::new("/proc"), "conmon", limit)
    }

    #[test]
    fn processes_of_the_name_alone_are_asked_for_their_arguments() {
        let root = proc_with(&[
            ("10", "bash", None),
            ("11", "conmon2", None),
            ("12", "conmon", Some("conmon\0-r\0/x\0")),
            ("13", "conmon", Some("")),
            ("self", "conmon", None),
        ]);
        let found = asked(&root, Duration::from_secs(600)).unwrap();
        assert_eq!(found, [&b"conmon\0-r\0/x\0"[..], b""]);
    }

    #[test]
    fn of_a_captured_tree_no_program_of_this_host_is_run() {
        let root = tempfile::tempdir().unwrap();
        let version = |root: &Path| read_version(&Host::open(root).unwrap(), Path::new(CAT));
        assert!(version(Path::new("/")).is_some());
        assert_eq!(version(root.path()), None);
    }

    #[test]
    fn a_process_that_never_gives_its_arguments_is_named() {
        let root = proc_with(&[("10", "bash", Some("bash\0")), ("11", "conmon", None)]);
        let error = asked(&root, Duration::from_millis(10)).unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "reading the arguments of process 11 (conmon): it did not give them within 0.01 s; end it"
        );
    }
}
