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
fn a_file_that_cannot_be_written_where_it_was_named_is_told_why() {
    let tree = x3();
    let generate = |output: &str| {
        let args = ["cdi", "generate", "--kind", "nic", "--output", output];
        tree.run(&args).refused()
    };
    assert_eq!(
        generate("/nonexistent/nic.json"),
        "writing /nonexistent/nic.json: there is no directory /nonexistent; make it first"
    );
    let file = tree.path("/etc/passwd").display().to_string();
    tree.file("/etc/passwd", "");
    let below = format!("{file}/nic.json");
    let refusal = generate(&below);
    assert_eq!(refusal, format!("writing {below}: Not a directory (os error 20)"));
}

#[test]
fn what_is_no_directory_and_no_bundle_is_told() {
    let tree = x3();
    tree.file("/file", "{}").directory("/empty");
    let path = |name: &str| tree.path(name).display().to_string();
    let file = path("/file");
    for (args, doing) in [
        (&["cdi", "generate", "--output-dir", &file][..], "making the directory"),
        (&["man", &file], "writing manual pages to"),
    ] {
        let refusal = tree.run(args).refused();
        assert_eq!(refusal, format!("{doing} {file}: something else has this name"));
    }
    for bundle in ["/file", "/empty", "/absent"] {
        let refusal = tree.run(&["container", "explain", &path(bundle)]).refused();
        let wanted = "; a bundle is the directory that holds the config.json of a container";
        assert!(refusal.ends_with(wanted), "{refusal}");
        assert!(refusal.contains(&path(bundle)), "{refusal}");
    }
}

#[test]
fn a_refusal_names_the_configuration_of_the_host_that_was_looked_at() {
    let tree = x3();
    tree.generate();
    let config = r#"{"annotations": {"onload.dev/nic": "all"}}"#;
    tree.file("/bundle/config.json", config);
    let bundle = tree.path("/bundle").display().to_string();
    let explained = tree.run(&["container", "explain", &bundle]).answered_no();
    let path = tree.path("/etc/onload-ctk/config.toml");
    let wanted = format!("under [annotations] in {}", path.display());
    assert!(explained.stderr.contains(&wanted), "{}", explained.stderr);
}

#[test]
fn a_configuration_on_stdin_is_told_without_a_name_that_it_does_not_have() {
    let tree = x3();
    tree.generate();
    for (config, wanted) in [
        ("", "there is nothing; give it a config.json: < config.json"),
        ("{", "EOF while parsing an object at line 1 column 1"),
        (
            r#"{"process": 1}"#,
            "process: invalid type: integer `1`, expected an object at line 1 column 1",
        ),
    ] {
        let mut inject = crate::common::on(tree.root(), &["cdi", "inject", "onload.dev/zf=all"]);
        let refusal = crate::common::run_with_stdin(&mut inject, config.as_bytes()).refused();
        let wanted = format!("reading the OCI configuration on stdin: {wanted}");
        assert_eq!(refusal, wanted);
    }
}

#[test]
fn options_that_exclude_each_other_are_refused_with_the_usage() {
    let mut command = program();
    command.args(["cdi", "generate", "--output=a", "--output-dir=b"]);
    let message = run(&mut command).stderr;
    assert!(message.contains("; usage: onload-ctk cdi generate"), "{message}");
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

/// What people wrote, and the line that they read.
#[test]
fn a_mistake_that_is_often_made_is_told_with_what_to_write() {
    let tree = x3();
    tree.generate();
    let config = |text: &str| {
        tree.config(text);
        tree.run(&["cdi", "generate"]).refused()
    };
    let path = tree.path("/etc/onload-ctk/config.toml");
    let in_config = |message: &str| format!("reading configuration {}: {message}", path.display());
    for (text, message) in [
        (
            "[annotations]\nallow = [nic]\n",
            "line 2: nic is no number, and neither true nor false; a string wants quotes: \"nic\"",
        ),
        (
            "annotations:\n  allow: [nic]\n",
            "line 1: this is YAML, and the file is TOML: write [section], and key = value",
        ),
        (
            "[annotations]\nallow = [\"onload.dev/nic\"]\n",
            "line 2: annotations.allow: unknown class \"onload.dev/nic\"; write nic",
        ),
    ] {
        assert_eq!(config(text), in_config(message));
    }
    tree.config("[environment]\nallow = [\"nic\", \"hugepages\"]\n");
    let args = ["cdi", "generate", "--kind", "onload.dev/nic"];
    let expected = "reading --kind: unknown class \"onload.dev/nic\"; write nic";
    assert_eq!(tree.run(&args).refused(), expected);
    tree.boot("this boot");
    for more in [&[][..], &["--force"]] {
        let args = [&["lease", "release", "vfio=0000:81:10.0"], more].concat();
        let message = tree.run(&args).done().stderr;
        let wanted = "vfio=0000:81:10.0 is not leased, so there is nothing to release; \"onload-ctk lease list\" shows what is\n";
        assert_eq!(message, wanted);
    }
    let asks = r#"{"process": {"env": ["ONLOAD_CTK_REQUEST=nic=all,hugepages=2Mi"]}}"#;
    tree.file("/bundle/config.json", asks);
    let bundle = tree.path("/bundle").display().to_string();
    let explained = tree.run(&["container", "explain", &bundle]).answered_no();
    let wanted = "error: the container would not start: \"nic\" of ONLOAD_CTK_REQUEST: \"hugepages=2Mi\" is a separate request; put \";\" before it instead of \",\"\n";
    assert_eq!(explained.stderr, wanted);
}

#[test]
fn metrics_of_a_host_without_specifications_say_why_nothing_is_well() {
    let tree = x3();
    let before = tree.run(&["metrics"]).done();
    let warning = "no specification is written yet, so every device counts as unhealthy; run \"onload-ctk cdi generate\"";
    assert_eq!(before.warnings(), [warning]);
    tree.generate();
    assert_eq!(tree.run(&["metrics"]).done().stderr, "");
}
