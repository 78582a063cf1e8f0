//! What people read who typed something wrong, may not do it, or named the wrong thing.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common::hosts::x3;
use crate::common::strace::with_faults;
use crate::common::{
    Commands, Run, Tree, is_root, names_in, program, run, run_unprivileged, skipped,
};

const CONFIGURE: [&str; 4] = ["runtime", "configure", "--runtime", "docker"];

/// A host of which others may read everything and write nothing.
fn closed() -> Tree {
    let tree = x3();
    tree.generate();
    tree.config("");
    tree.file("/etc/docker/daemon.json", "{}\n");
    tree.directory("/run");
    for path in ["/var/run/cdi", "/var/run", "/run", "/etc/docker", "/etc"] {
        tree.chmod(path, 0o755);
    }
    tree
}

/// Whether there is somebody with fewer rights to be: who is not root owns every tree that tests make.
fn is_alone() -> bool {
    let is_alone = !is_root();
    if is_alone {
        skipped("not root, so there is nobody with fewer rights to be");
    }
    is_alone
}

/// Asserts that a command that root could run says so to others, and nothing of how we work.
#[track_caller]
fn assert_for_root(tree: &Tree, args: &[&str], wanted: &str) {
    let refusal = run_unprivileged(tree, args).refused();
    let wanted = wanted.replace("ROOT", tree.root().to_str().unwrap());
    assert_eq!(refusal, format!("{wanted}: Permission denied (os error 13); run as root"));
}

#[test]
fn who_may_not_write_is_told_to_be_root_and_not_the_names_of_our_files() {
    if is_alone() {
        return;
    }
    let tree = closed();
    let host = |path: &str| tree.path(path).display().to_string();
    // As a boot, or root's own run, left it.
    assert!(tree.path("/var/run/cdi/.onload-ctk-lock").exists());
    assert_for_root(
        &tree,
        &["cdi", "generate"],
        "writing to the directory of CDI specifications ROOT/var/run/cdi",
    );
    let file = host("/etc/nic.json");
    let args = ["cdi", "generate", "--kind", "nic", "--output", &file];
    assert_for_root(&tree, &args, "writing ROOT/etc/nic.json");
    let args = ["discover", "--capture", &host("/etc/host.tar.zst")];
    assert_for_root(&tree, &args, "writing ROOT/etc/host.tar.zst");
    let args = ["man", &host("/etc/man")];
    assert_for_root(&tree, &args, "writing manual pages to ROOT/etc/man");
    let args = ["cdi", "generate", "--output-dir", &host("/etc/cdi")];
    assert_for_root(&tree, &args, "making the directory ROOT/etc/cdi");
    tree.remove("/var/run/cdi");
    assert_for_root(&tree, &["cdi", "generate"], "making directory ROOT/var/run/cdi");
    for more in [&[][..], &["--allow", "nic"]] {
        let args = [&CONFIGURE, more].concat();
        assert_for_root(&tree, &args, "making directory ROOT/run/onload-ctk");
    }
}

#[test]
fn who_may_not_configure_an_engine_is_told_to_be_root() {
    if is_alone() {
        return;
    }
    let tree = closed();
    tree.run(&CONFIGURE).done();
    tree.chmod("/run/onload-ctk", 0o711);
    for more in [&["--remove"][..], &["--allow", "nic"]] {
        let refusal = run_unprivileged(&tree, &[&CONFIGURE, more].concat()).refused();
        assert!(refusal.ends_with("Permission denied (os error 13); run as root"), "{refusal}");
        assert!(refusal.contains(tree.root().to_str().unwrap()), "{refusal}");
    }
}

#[test]
fn who_may_not_read_is_told_to_be_root() {
    if is_alone() {
        return;
    }
    let tree = closed();
    let nic = tree.path("/var/run/cdi/onload.dev-nic.json");
    let config = tree.path("/etc/onload-ctk/config.toml");
    tree.chmod("/var/run/cdi/onload.dev-nic.json", 0o000);
    let path = nic.to_str().unwrap();
    for args in [
        &["cdi", "check"][..],
        &["cdi", "generate", "--diff"],
        &["cdi", "validate"],
        &["cdi", "validate", path],
    ] {
        let refusal = run_unprivileged(&tree, args).refused();
        let wanted = format!("reading {path}: Permission denied (os error 13); run as root");
        assert_eq!(refusal, wanted, "{args:?}");
    }
    let listed = run_unprivileged(&tree, &["cdi", "list"]).done();
    let wanted = format!("{path}: reading the file: Permission denied (os error 13); run as root");
    assert_eq!(listed.warnings(), [wanted]);
    assert!(listed.stdout.contains("onload.dev/zf=all"), "{}", listed.stdout);
    tree.file("/bundle/config.json", "{}");
    tree.chmod("/bundle", 0o000);
    let bundle = tree.path("/bundle").display().to_string();
    let refusal = run_unprivileged(&tree, &["container", "explain", &bundle]).refused();
    assert!(refusal.ends_with("Permission denied (os error 13); run as root"), "{refusal}");
    tree.chmod("/bundle", 0o700);
    tree.chmod("/etc/onload-ctk/config.toml", 0o000);
    for args in [
        &["discover"][..],
        &["cdi", "generate"],
        &["cdi", "check"],
        &["cdi", "list"],
        &["runtime", "behind"],
    ] {
        let refusal = run_unprivileged(&tree, args).refused();
        assert!(refusal.ends_with("Permission denied (os error 13); run as root"), "{refusal}");
        assert!(refusal.contains(config.to_str().unwrap()), "{refusal}");
    }
}

#[test]
fn root_is_not_told_to_be_root() {
    if !is_root() || !crate::common::has("strace") {
        return skipped("not root, or strace is not installed");
    }
    let tree = x3();
    let faults = ["inject=fchmod:error=EPERM"];
    let mut strace = with_faults(tree.root(), &faults, &["cdi", "generate"]);
    let refusal = run(&mut strace).refused();
    assert!(refusal.ends_with("Operation not permitted (os error 1)"), "{refusal}");
}

#[test]
fn a_disk_without_room_is_told_by_the_file() {
    if !crate::common::has("strace") {
        return skipped("strace is not installed");
    }
    let tree = x3();
    tree.file("/usr/bin/dockerd", "");
    let file = tree.path("/nic.json").display().to_string();
    let output = ["cdi", "generate", "--kind", "nic", "--output", &file];
    let capture = ["discover", "-q", "--capture", &file];
    for (args, wanted) in [
        (&["cdi", "generate"][..], "writing to the directory of CDI specifications "),
        (&output, "writing "),
        (&capture, "writing "),
        (&CONFIGURE, "writing "),
    ] {
        let mut strace = with_faults(tree.root(), &["inject=fsync:error=ENOSPC"], args);
        let refusal = run(&mut strace).refused();
        let rest = refusal.strip_prefix(wanted).unwrap_or_default();
        assert!(rest.starts_with(tree.root().to_str().unwrap()), "{refusal}");
        assert!(refusal.ends_with(": No space left on device (os error 28)"), "{refusal}");
        assert!(!refusal.contains("temporary"), "{refusal}");
    }
}

/// Things that are no files, each with its name for people.
struct Odd(tempfile::TempDir, #[expect(dead_code, reason = "it has to stay")] UnixListener);

impl Odd {
    fn new() -> Odd {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("dir.json")).unwrap();
        let made = Command::new("mkfifo").arg(path("pipe.json")).status();
        assert!(made.unwrap().success());
        symlink("/dev/zero", path("device.json")).unwrap();
        let socket = UnixListener::bind(path("socket.json")).unwrap();
        Odd(directory, socket)
    }

    fn each(&self) -> [(PathBuf, &'static str); 5] {
        let path = |name: &str| self.0.path().join(name);
        [
            (path("dir.json"), "a directory"),
            (path("pipe.json"), "a pipe"),
            (path("socket.json"), "a socket"),
            (path("device.json"), "a device"),
            (PathBuf::from("/dev/null"), "a device"),
        ]
    }
}

/// Runs what might wait for good.
fn run_in_time(args: &[&str]) -> Run {
    let mut command = Command::new("timeout");
    command.args(["60", env!("CARGO_BIN_EXE_onload-ctk")]).args(args);
    run(command.env_clear().stdin(Stdio::null()))
}

#[test]
fn what_is_no_file_is_refused_wherever_a_file_is_named() {
    let (odd, tree) = (Odd::new(), x3());
    let root = tree.root().to_str().unwrap();
    for (path, what) in odd.each() {
        let path = path.to_str().unwrap();
        for (args, doing) in [
            (&["cdi", "validate", path][..], "reading"),
            (&["--config", path, "discover"], "reading configuration"),
            (&["--config", path, "cdi", "list"], "reading configuration"),
            (&["--config", path, "runtime", "behind"], "reading configuration"),
            (&["cdi", "generate", "--kind", "nic", "--output", path], "reading"),
            (&["discover", "--capture", path], "writing"),
        ] {
            let args = [&["--host-root", root], args].concat();
            let refusal = run_in_time(&args).refused();
            let wanted = format!("{doing} {path}: it is {what}, not a regular file");
            assert_eq!(refusal, wanted, "{args:?}");
        }
    }
    // Nothing was put in the place of any of them.
    let kind = |name: &str| fs::symlink_metadata(odd.0.path().join(name)).unwrap().file_type();
    assert!(kind("pipe.json").is_fifo() && kind("socket.json").is_socket());
    assert!(kind("dir.json").is_dir() && kind("device.json").is_symlink());
    assert_eq!(names_in(odd.0.path()).len(), 4);
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
}

#[test]
fn what_is_no_file_is_refused_in_a_bundle_and_for_a_directory() {
    let (odd, tree) = (Odd::new(), x3());
    let root = tree.root().to_str().unwrap();
    for (path, what) in odd.each() {
        if what == "a directory" {
            continue;
        }
        let path = path.to_str().unwrap();
        for args in [
            &["cdi", "list", "--spec-dir", path][..],
            &["cdi", "check", "--output-dir", path],
            &["container", "explain", path],
            &["man", path],
            &["runtime", "behind", "--host-root", path],
        ] {
            let args = [&["--host-root", root], args].concat();
            let args = if args.contains(&"behind") { &args[2..] } else { &args };
            let refusal = run_in_time(args).refused();
            assert!(refusal.contains(path), "{refusal}");
        }
        let bundle = tempfile::tempdir().unwrap();
        let config = bundle.path().join("config.json");
        if path != "/dev/null" {
            fs::rename(path, &config).unwrap();
            let args = ["--host-root", root, "container", "explain"];
            let args = [&args[..], &[bundle.path().to_str().unwrap()]].concat();
            let refusal = run_in_time(&args).refused();
            assert!(refusal.contains("config.json"), "{refusal}");
        }
    }
}

#[test]
fn what_never_ends_is_refused_by_its_length() {
    let tree = x3();
    tree.generate();
    let zero = || fs::File::open("/dev/zero").unwrap();
    let mut inject = crate::common::on(tree.root(), &["cdi", "inject", "onload.dev/zf=all"]);
    let refusal = run(inject.stdin(zero())).refused();
    assert_eq!(refusal, "reading the OCI configuration on stdin: longer than 64 MiB");
    let long = tree.path("/long.json");
    fs::File::create(&long).unwrap().set_len((16 << 20) + 1).unwrap();
    let refusal = tree.run(&["cdi", "validate", long.to_str().unwrap()]).refused();
    assert_eq!(refusal, format!("reading {}: longer than 16 MiB", long.display()));
}

#[test]
fn names_of_files_that_are_no_text_are_taken_and_told() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(OsStr::from_bytes(b"a\xff.json"));
    let spec = r#"{"cdiVersion": "0.5.0", "kind": "acme.com/card", "devices": [{"name": "x", "containerEdits": {"env": ["A=b"]}}]}"#;
    let validate = || run(program().args(["cdi", "validate"]).arg(&file));
    assert!(validate().refused().contains("a\u{fffd}.json: No such file"));
    fs::write(&file, spec).unwrap();
    validate().done();
    let dir = directory.path();
    let listed = run(program().args(["cdi", "list", "--spec-dir"]).arg(dir)).done();
    assert!(listed.stdout.contains("acme.com/card=x"), "{}", listed.stdout);
}
