//! What tests need of a machine beside Rust: root, programs, features of its kernel.
//!
//! Rust's test harness cannot skip a test while it runs: a test that returns early counts as passed. So
//! a test asks here for what it needs, and returns when it gets `false`. By then a line on standard error
//! names the test and the reason. With [`REQUIRE`]`=1`, as `.ci/run` sets it, the test fails instead.
//!
//! `onload-cdi` is published on its own and has the same for its oracles: `CDI_REQUIRE_ORACLES=1`.

#![allow(clippy::panic)]

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

/// The variable that makes a missing need a failure: with the value `1`, a test without root or without
/// a program fails.
pub const REQUIRE: &str = "ONLOAD_CTK_REQUIRE_ROOT";

/// Whether this process is root, which `purpose` needs.
#[must_use]
#[track_caller]
pub fn root(purpose: &str) -> bool {
    that(is_root(), &format!("{purpose} needs root"))
}

/// Whether all of these programs run here.
#[must_use]
#[track_caller]
pub fn programs(names: &[&str]) -> bool {
    match names.iter().find(|name| !runs(name)) {
        None => true,
        Some(name) => that(false, &format!("{name} is not installed")),
    }
}

/// Returns whether this process may create a mount namespace and mount into it, which `purpose` requires. Most
/// containers forbid it, and it fails in a chroot whose root is not a mount point.
#[must_use]
#[track_caller]
pub fn mount_namespace(purpose: &str) -> bool {
    let mount = ["--mount", "--propagation", "private", "mount", "-t", "tmpfs", "none", "/tmp"];
    root(purpose)
        && programs(&["unshare", "mount"])
        && that(can_unshare(&mount), &format!("{purpose} needs a mount namespace"))
}

/// Returns whether this user may create user namespaces.
#[must_use]
#[track_caller]
pub fn user_namespace() -> bool {
    programs(&["unshare"])
        && that(can_unshare(&["--user", "--map-root-user", "true"]), "user namespaces are off")
}

/// Returns whether the root directory is that of the mount namespace, which `purpose` requires. In a chroot, a process
/// that joins a container's mount namespace sees the root outside of the chroot.
#[must_use]
#[track_caller]
pub fn no_chroot(purpose: &str) -> bool {
    root(purpose)
        && programs(&["nsenter"])
        && that(!is_chroot(), &format!("{purpose} does not work in a chroot"))
}

fn is_chroot() -> bool {
    let mut joined = Command::new("nsenter");
    joined.args(["--mount=/proc/self/ns/mnt", "stat", "--format=%d:%i", "/"]);
    let own = std::fs::metadata("/").map(|root| format!("{}:{}\n", root.dev(), root.ino()));
    match (own, joined.output()) {
        (Ok(own), Ok(joined)) => joined.stdout != own.as_bytes(),
        _ => true,
    }
}

fn can_unshare(arguments: &[&str]) -> bool {
    let output = Command::new("unshare").args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}

/// Whether something is there that root or a Debian package brings; `missing` says what a test lacks
/// without it.
#[must_use]
#[track_caller]
pub fn that(is_there: bool, missing: &str) -> bool {
    assert!(is_there || !is_required(), "{missing}, and {REQUIRE}=1 asks for every test");
    on_this_machine(is_there, missing)
}

/// As [`that`], for what depends on the machine's kernel or on the release of its distribution. No
/// package brings it, so it is never required.
#[must_use]
pub fn on_this_machine(is_there: bool, missing: &str) -> bool {
    if !is_there {
        // Not `eprintln`, whose text a passing test does not show.
        let _ = writeln!(std::io::stderr(), "skipped: {}{missing}", test_name());
    }
    is_there
}

/// Whether this process is root, for a test that has something to check either way.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether a program tells its version here.
#[must_use]
pub fn runs(program: impl AsRef<OsStr>) -> bool {
    let mut command = Command::new(program);
    command.arg("--version");
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// What a program says of a text on its standard input, and whether it likes it.
#[must_use]
pub fn asked(command: &mut Command, text: &str) -> (bool, String) {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    if let Some(mut stdin) = child.stdin.take() {
        let written = stdin.write_all(text.as_bytes());
        written.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    }
    let output = child.wait_with_output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let message = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&message).into_owned())
}

fn is_required() -> bool {
    std::env::var_os(REQUIRE).is_some_and(|value| value == "1")
}

/// The harness names a test's thread after it, unless all tests run one after another in the main one.
fn test_name() -> String {
    match std::thread::current().name() {
        None | Some("main") => String::new(),
        Some(name) => format!("{name}: "),
    }
}
