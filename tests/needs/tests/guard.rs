//! The guard against tests that pass without having run: each case is a test of this file, run as a process
//! of its own with another environment.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use onload_test_needs::{REQUIRE, on_this_machine, programs, root};

const REACHED: &str = "the test went on";
/// A PATH in which nothing is.
const NOTHING: &str = "/nonexistent";

#[test]
#[ignore = "a case, run by the tests below"]
fn needs_runc() {
    if programs(&["runc"]) {
        println!("{REACHED}");
    }
}

#[test]
#[ignore = "a case, run by the tests below"]
fn needs_root() {
    if root("mounting") {
        println!("{REACHED}");
    }
}

#[test]
#[ignore = "a case, run by the tests below"]
fn needs_another_kernel() {
    if on_this_machine(false, "the kernel has no such controller") {
        println!("{REACHED}");
    }
}

/// Runs a case by this program or a copy of it, with a PATH, and with the variable set to this or not at all.
fn run(
    program: &Path,
    name: &str,
    path: &str,
    require: Option<&str>,
    user: Option<u32>,
) -> (bool, String) {
    let mut test = Command::new(program);
    test.args(["--exact", name, "--ignored", "--nocapture", "--test-threads=2"]);
    test.env("PATH", path).env_remove(REQUIRE).current_dir("/");
    if let Some(require) = require {
        test.env(REQUIRE, require);
    }
    if let Some(user) = user {
        test.uid(user).gid(user);
    }
    let output = test.output().unwrap();
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("running 1 test"), "{text}");
    (output.status.success(), text)
}

fn case(name: &str, path: &str, require: Option<&str>) -> (bool, String) {
    run(&std::env::current_exe().unwrap(), name, path, require, None)
}

/// A directory in which the program of that name only succeeds.
fn with_program(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/bin/true", dir.path().join(name)).unwrap();
    dir
}

#[test]
fn without_a_program_a_test_fails_where_the_variable_is_set() {
    let (passed, text) = case("needs_runc", NOTHING, Some("1"));
    assert!(!passed, "{text}");
    let line = "runc is not installed, and ONLOAD_CTK_REQUIRE_ROOT=1 asks for every test";
    assert!(text.contains(line), "{text}");
    assert!(!text.contains(REACHED), "{text}");
}

#[test]
fn without_a_program_a_test_says_why_it_checked_nothing() {
    for unset in [None, Some(""), Some("0"), Some("yes")] {
        let (passed, text) = case("needs_runc", NOTHING, unset);
        assert!(passed, "{unset:?}: {text}");
        let line = "skipped: needs_runc: runc is not installed\n";
        assert!(text.contains(line), "{unset:?}: {text}");
        assert!(!text.contains(REACHED), "{unset:?}: {text}");
    }
}

#[test]
fn with_its_program_a_test_goes_on_and_nothing_is_said() {
    let dir = with_program("runc");
    for require in [None, Some("1")] {
        let (passed, text) = case("needs_runc", dir.path().to_str().unwrap(), require);
        assert!(passed, "{text}");
        assert!(text.contains(REACHED), "{text}");
        assert!(!text.contains("skipped:"), "{text}");
    }
}

#[test]
fn what_no_package_brings_is_said_and_never_required() {
    for require in [None, Some("1")] {
        let (passed, text) = case("needs_another_kernel", NOTHING, require);
        assert!(passed, "{text}");
        let line = "skipped: needs_another_kernel: the kernel has no such controller\n";
        assert!(text.contains(line), "{text}");
        assert!(!text.contains(REACHED), "{text}");
    }
}

#[test]
fn without_root_a_test_fails_where_the_variable_is_set_and_says_why_elsewhere() {
    if !root("becoming another user") {
        return;
    }
    // A copy, since this one may stand where only root may look.
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = dir.path().join("guard");
    let mut cp = Command::new("cp");
    cp.arg(std::env::current_exe().unwrap()).arg(&copy);
    assert!(cp.status().unwrap().success());

    let (passed, text) = run(&copy, "needs_root", NOTHING, Some("1"), Some(65534));
    assert!(!passed, "{text}");
    let line = "mounting needs root, and ONLOAD_CTK_REQUIRE_ROOT=1 asks for every test";
    assert!(text.contains(line), "{text}");
    let (passed, text) = run(&copy, "needs_root", NOTHING, None, Some(65534));
    assert!(passed, "{text}");
    assert!(text.contains("skipped: needs_root: mounting needs root\n"), "{text}");
    assert!(!text.contains(REACHED), "{text}");

    let (passed, text) = run(&copy, "needs_root", NOTHING, Some("1"), None);
    assert!(passed && text.contains(REACHED), "{text}");
}
