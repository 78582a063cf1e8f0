//! What a program of the running host says its version is.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use onload_sys::fs::trust::{Owners, Trusted};
use rustix::process::geteuid;

use super::process;

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
    let answer = process::answer(&mut child, LIMIT, PATIENCE)?.ok()?;
    String::from_utf8(answer).ok()
}
