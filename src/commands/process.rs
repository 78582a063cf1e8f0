//! Runs and inspects other programs: versions, arguments of processes, and reports of containers. A process can keep
//! its arguments from being read: the kernel takes them from the process's own memory (fs/proc/base.c,
//! `get_mm_cmdline`), and a page of a FUSE file that is mapped there arrives only when its owner likes. The kernel
//! waits for such a page without reacting to signals.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use onload_host::host::Host;
use onload_report::status::{Examination, ExaminationDepth, ExaminedContainer};
use onload_sys::child::{list_older, run_in_child};
use onload_sys::fs::trust::{TrustedOwners, TrustedTree};
use rustix::process::geteuid;

use super::interrupt::Interrupt;

/// Bytes of a name, which the kernel truncates at 15, and of its newline.
const MAX_NAME_BYTES: u64 = 64;
const MAX_BYTES: u64 = 16 * 1024 * 1024;
/// How long a program may take to print its version.
const VERSION_TIMEOUT: Duration = Duration::from_millis(1500);
/// How the names of children begin that may be left behind.
const CHILD_PREFIX: &str = "octk";
/// Children of all runs that may be left behind, and how many of them for what users can make any number of.
const MAX_CHILDREN: usize = 16;
const MAX_USER_CHILDREN: usize = 8;
/// How long one container may take, and all of them together.
const EXAMINATION_TIMEOUT: Duration = Duration::from_secs(2);
const ALL_EXAMINATIONS_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_EXAMINATION_BYTES: usize = 16 * 1024 * 1024;

/// Examines containers, each in a child process. If a container never answers, its child is left behind, and later runs find it by
/// its name and start no other for that container.
pub(super) struct Examiner<'h> {
    host: &'h Host,
    left_behind: Vec<String>,
    deadline: Instant,
}

impl<'h> Examiner<'h> {
    pub(super) fn new(host: &'h Host) -> Self {
        // A younger process may belong to another running command.
        let left_behind = list_older(CHILD_PREFIX, EXAMINATION_TIMEOUT).unwrap_or_default();
        Examiner { host, left_behind, deadline: Instant::now() + ALL_EXAMINATIONS_TIMEOUT }
    }

    pub(super) fn run(
        &mut self,
        container: ExaminedContainer<'_>,
        examine: Examination<'_>,
    ) -> Vec<u8> {
        let (kind, max) = match container.is_of_root {
            true => ('+', MAX_CHILDREN),
            false => ('-', MAX_USER_CHILDREN),
        };
        let mut hasher = DefaultHasher::new();
        (self.host.outside_path(Path::new("/")), container.key).hash(&mut hasher);
        let name = format!("{CHILD_PREFIX}{kind}{:010x}", hasher.finish() >> 24);
        let deadline = Instant::now() + EXAMINATION_TIMEOUT;
        if deadline > self.deadline {
            return Vec::new();
        }
        let depth = if self.left_behind.contains(&name) || self.left_behind.len() >= max {
            ExaminationDepth::Processes
        } else {
            ExaminationDepth::Everything
        };
        let answer = run_in_child(
            &name,
            self.host.as_fd(),
            MAX_EXAMINATION_BYTES,
            deadline,
            |answer: &mut File| examine(depth, answer),
        );
        if Instant::now() >= deadline {
            self.left_behind.push(name);
        }
        answer.unwrap_or_default()
    }
}

/// The name comes from the kernel, and is read first. The owner is not checked: a container's process may be root's.
pub(super) fn read_arguments(
    host: &Host,
    proc: &Path,
    name: &str,
    limit: Duration,
) -> Result<Vec<Vec<u8>>> {
    let mut all_arguments = Vec::new();
    for pid in host.list(proc)?.names {
        if !pid.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let dir = proc.join(&pid);
        // A process that has exited since it was listed holds nothing.
        let Ok(Some(comm)) = host.bytes(&dir.join("comm"), MAX_NAME_BYTES) else { continue };
        if comm.trim_ascii_end() == name.as_bytes() {
            let path = host.outside_path(&dir.join("cmdline"));
            let arguments = read_in_child(host, &pid, &path, limit)
                .with_context(|| format!("reading the arguments of process {pid} ({name})"))?;
            all_arguments.push(arguments);
        }
    }
    Ok(all_arguments)
}

fn read_in_child(host: &Host, pid: &str, path: &Path, limit: Duration) -> Result<Vec<u8>> {
    const END: u8 = 0xff;
    let child = format!("{CHILD_PREFIX}.{pid}");
    let left_behind = list_older(CHILD_PREFIX, limit)?;
    if left_behind.contains(&child) || left_behind.len() >= MAX_USER_CHILDREN {
        bail!(
            "a child of an earlier run is still waiting (process name {child}); end process {pid}"
        );
    }
    let max = usize::try_from(MAX_BYTES)?;
    let read = |answer: &mut File| {
        let file = File::open(path).map(|file| file.take(MAX_BYTES - 1));
        if file.and_then(|mut file| io::copy(&mut file, answer)).is_ok() {
            let _ = answer.write_all(&[END]);
        }
    };
    let mut answer = run_in_child(&child, host.as_fd(), max, Instant::now() + limit, read)?;
    if answer.pop() != Some(END) {
        bail!("they could not be read within {} s; end it", limit.as_secs_f32());
    }
    Ok(answer)
}

/// Returns the output of `PROGRAM --version` on the running host, with an empty environment. `None` if it does not
/// answer, or if a user other than root and the caller could have changed the program, which runs with the caller's
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
    run_command(&mut command, Instant::now() + VERSION_TIMEOUT).ok()
}

pub(super) fn run_command(command: &mut Command, deadline: Instant) -> Result<String> {
    run_with_input(command, Vec::new(), deadline, &Interrupt::default())
}

/// Runs a program to its end, and returns its output; an error has the last line of its stderr. Kills it if it does not
/// end in time, or if the user interrupts.
pub(super) fn run_with_input(
    command: &mut Command,
    input: Vec<u8>,
    deadline: Instant,
    stop: &Interrupt,
) -> Result<String> {
    const PAUSE: Duration = Duration::from_millis(20);
    let program = command.get_program().display().to_string();
    let first_word = command.get_args().next().unwrap_or_default().display();
    let text = format!("{program} {first_word}");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("running {program}"))?;
    let stdin = child.stdin.take();
    // A program that ends early does not read it all.
    thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(&input)));
    let (stdout, stderr) = (spawn_reader(child.stdout.take()), spawn_reader(child.stderr.take()));
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let interrupted = stop.refuse();
        if interrupted.is_err() || Instant::now() > deadline {
            // It may be unable to end, so it is not waited for.
            let _ = child.kill();
            let _ = child.try_wait();
            interrupted?;
            bail!("{text}: it timed out");
        }
        thread::sleep(PAUSE);
    };
    let left = deadline.saturating_duration_since(Instant::now());
    if !status.success() {
        let stderr = stderr.recv_timeout(left).unwrap_or_default();
        bail!("{text}: {}", last_line(&stderr, &status.to_string()));
    }
    stdout.recv_timeout(left).with_context(|| format!("reading what {text} printed"))
}

pub(super) fn spawn_reader(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.map(|pipe| pipe.take(MAX_BYTES).read_to_end(&mut bytes));
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

/// The last line that says something; engines end with the reason, and docker points to its help after it. The hook's
/// message is a line; docker and containerd append ": unknown".
pub(super) fn last_line(stderr: &str, fallback: &str) -> String {
    let mut lines = stderr.lines().rev().map(str::trim);
    let last = lines
        .find(|line| !line.is_empty() && !line.starts_with(": ") && !line.contains(" --help'"));
    last.unwrap_or(fallback).to_owned()
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

    fn asked(root: &tempfile::TempDir, limit: Duration) -> Result<Vec<Vec<u8>>> {
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
        let version = |root: &Path| read_version(&Host::open(root).unwrap(), Path::new("/bin/cat"));
        assert!(version(Path::new("/")).is_some());
        assert_eq!(version(root.path()), None);
    }

    #[test]
    fn a_process_that_never_gives_its_arguments_is_named() {
        let root = proc_with(&[("10", "bash", Some("bash\0")), ("11", "conmon", None)]);
        let error = asked(&root, Duration::from_millis(10)).unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "reading the arguments of process 11 (conmon): they could not be read within 0.01 s; \
             end it"
        );
    }
}
