//! What a program of the running host says its version is.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use onload_core::fs::trust::{Owners, Trusted};
use rustix::process::geteuid;
use std::io::Read;

/// Bytes of an answer that are read.
const LIMIT: u64 = 4096;
/// How long a program may take; they only print.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Runs `PROGRAM --version` without anything of our environment; none where it does not answer, or where
/// somebody else than root and the caller could have put it there: it would be run with the caller's rights.
pub(super) fn of(program: &Path) -> Option<String> {
    let owners = Owners::of(&[0, geteuid().as_raw()]);
    let trusted = Trusted::host(owners).ok()?;
    trusted.check(program).ok()?;
    let mut command = Command::new(program);
    command.arg("--version").env_clear().current_dir("/");
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).spawn().ok()?;
    let stdout = child.stdout.take()?;
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let read = stdout.take(LIMIT).read_to_string(&mut text);
        // Nobody listens any more after the deadline.
        let _ = sender.send(read.map(|_| text));
    });
    let answer = receiver.recv_timeout(PATIENCE);
    // It may have ended, or may be unable to end: neither is waited for.
    let _ = child.kill();
    let _ = child.try_wait();
    answer.ok()?.ok()
}
