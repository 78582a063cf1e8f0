//! Our program under strace, which reports its system calls or makes them fail.

use std::fmt::Display;
use std::path::Path;
use std::process::{Command, Stdio};

use onload_test_needs as needs;

/// A system call fails or kills the program: `what` is `error=EIO` or `signal=KILL`, `when` says at which
/// call of that name.
pub(crate) fn fault(call: &str, what: &str, when: impl Display) -> String {
    format!("inject={call}:{what}:when={when}")
}

/// Our program, still without arguments; strace takes these expressions and writes its report to a file.
pub(crate) fn traced(report: &Path, expressions: &[&str]) -> Command {
    let mut strace = strace(report, expressions);
    strace.arg(env!("CARGO_BIN_EXE_onload-ctk"));
    strace
}

/// Our program on a host, with faults.
pub(crate) fn with_faults(host_root: &Path, expressions: &[&str], args: &[&str]) -> Command {
    let mut command = traced(Path::new("/dev/null"), expressions);
    command.arg("--host-root").arg(host_root).args(args);
    command
}

fn strace(report: &Path, expressions: &[&str]) -> Command {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-y", "-o"]).arg(report);
    for expression in expressions {
        strace.args(["-e", expression]);
    }
    strace
}

/// Whether strace can trace here, and inject faults.
#[track_caller]
pub(crate) fn can_trace() -> bool {
    let fault = fault("fsync", "error=EIO", 1);
    let mut strace = strace(Path::new("/dev/null"), &[&fault]);
    let status = strace.arg("true").stderr(Stdio::null()).status();
    needs::that(
        status.is_ok_and(|status| status.success()),
        "strace is not installed or may not trace",
    )
}
