//! `--verbose`: each file and directory that a command reads is told of on stderr, and nothing on stdout.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{Tree, captured, on, run, run_with_stdin};
use tempfile::TempDir;

/// A copy of what is needed of a host: the captured one is only read.
fn specifications() -> TempDir {
    let directory = TempDir::new().unwrap();
    let path = directory.path().to_str().unwrap();
    let words = ["cdi", "generate", "--output-dir", path];
    run(&mut on(&captured(), &words)).done();
    directory
}

fn verbose_output(command: &mut Command) -> (Vec<String>, String) {
    let ran = run(command);
    let quiet: Vec<String> = ran.stderr.lines().map(str::to_owned).collect();
    (quiet, ran.stdout)
}

/// What a command says more with `--verbose`, which has to leave its stdout as it is.
fn more(root: &Path, words: &[&str]) -> Vec<String> {
    let (quiet, plain) = verbose_output(&mut on(root, words));
    let (loud, same) = verbose_output(on(root, words).arg("--verbose"));
    assert_eq!(plain, same, "{words:?}");
    let added = loud.into_iter().filter(|line| !quiet.contains(line));
    added.collect()
}

#[track_caller]
fn holds(lines: &[String], line: &str) {
    assert!(lines.iter().any(|lines| lines == line), "no {line} in {lines:#?}");
}

#[test]
fn discovery_tells_what_it_reads_of_the_host() {
    let root = captured();
    let shown = |path: &str| root.join(path).display().to_string();
    let net = format!("listed {}", shown("sys/class/net"));
    let config = format!("read {}", shown("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"));
    let specs = specifications();
    let specs = specs.path().to_str().unwrap();
    for words in [
        &["discover"][..],
        &["cdi", "generate", "--output", "-"],
        &["cdi", "check", "--output-dir", specs],
    ] {
        let lines = more(&root, words);
        holds(&lines, &net);
        holds(&lines, &config);
        let is_short = |line: &String| {
            ["read ", "listed ", "no directory "].iter().any(|word| line.starts_with(word))
        };
        assert!(lines.iter().all(is_short), "{words:?}: {lines:#?}");
    }
}

#[test]
fn commands_on_specifications_tell_the_directories_and_the_files() {
    let root = captured();
    let specs = specifications();
    let dir = specs.path();
    let shown = dir.to_str().unwrap();
    let file = format!("read {}", dir.join("onload.dev-nic.json").display());
    let listed = format!("listed {shown}");
    for words in [
        &["cdi", "list", "--spec-dir", shown][..],
        &["cdi", "show", "onload.dev/nic=all", "--spec-dir", shown],
        &["cdi", "check", "--output-dir", shown],
        &["cdi", "generate", "--dry-run", "--output-dir", shown],
    ] {
        let lines = more(&root, words);
        holds(&lines, &listed);
        holds(&lines, &file);
    }
    // One that is broken was read, too.
    fs::write(dir.join("broken.json"), "{").unwrap();
    let lines = more(&root, &["cdi", "list", "--spec-dir", shown]);
    holds(&lines, &format!("read {}", dir.join("broken.json").display()));
}

#[test]
fn inject_tells_the_files_and_keeps_stdout_for_the_configuration() {
    let specs = specifications();
    let shown = specs.path().to_str().unwrap();
    let words = ["cdi", "inject", "onload.dev/hugepages=2Mi", "--spec-dir", shown];
    let config =
        br#"{"ociVersion":"1.0.2","process":{"cwd":"/","user":{"uid":0,"gid":0}},"linux":{}}"#;
    let plain = run_with_stdin(&mut on(&captured(), &words), config).done();
    let loud = run_with_stdin(on(&captured(), &words).arg("-v"), config).done();
    assert_eq!(plain.stdout, loud.stdout);
    let lines: Vec<String> = loud.stderr.lines().map(str::to_owned).collect();
    holds(&lines, &format!("listed {shown}"));
    let file = specs.path().join("onload.dev-hugepages.json");
    holds(&lines, &format!("read {}", file.display()));
}

#[test]
fn validate_tells_the_directories_and_the_files() {
    let host = Tree::with(&[("etc/cdi/a.json", "{}")]);
    host.remove("/var");
    let etc = host.path("etc/cdi");
    let lines = more(host.root(), &["cdi", "validate"]);
    holds(&lines, &format!("listed {}", etc.display()));
    holds(&lines, &format!("read {}", etc.join("a.json").display()));
    let var = host.path("var/run/cdi");
    holds(&lines, &format!("no directory {}", var.display()));
    let file = etc.join("a.json");
    let lines = more(host.root(), &["cdi", "validate", file.to_str().unwrap()]);
    holds(&lines, &format!("read {}", file.display()));
}

#[test]
fn configure_tells_the_engines_files_and_those_beside_them() {
    let host = Tree::with(&[
        ("usr/bin/podman", ""),
        ("etc/containers/containers.conf", "[engine]\n"),
        ("etc/onload-ctk/config.toml", ""),
        ("etc/containers/containers.conf.d/99-onload-ctk.conf", ""),
    ]);
    let words = ["runtime", "configure", "--runtime", "podman", "--dry-run", "--allow", "nic"];
    let lines = more(host.root(), &words);
    let shown = |path: &str| host.path(path).display().to_string();
    for line in [
        format!("read {}", shown("etc/containers/containers.conf")),
        format!("listed {}", shown("etc/containers/containers.conf.d")),
        format!("read {}", shown("etc/containers/containers.conf.d/99-onload-ctk.conf")),
        format!("read {}", shown("etc/onload-ctk/config.toml")),
    ] {
        holds(&lines, &line);
    }
}

#[test]
fn a_configuration_that_is_named_is_told_of_and_so_is_the_hosts() {
    let host = Tree::with(&[("etc/onload-ctk/config.toml", ""), ("c.toml", "")]);
    let own = host.path("etc/onload-ctk/config.toml");
    let lines = more(host.root(), &["discover"]);
    holds(&lines, &format!("read {}", own.display()));
    let named = host.path("c.toml");
    let lines = more(host.root(), &["discover", "--config", named.to_str().unwrap()]);
    holds(&lines, &format!("read {}", named.display()));
}

#[test]
fn what_was_read_before_a_failure_is_told() {
    let host = Tree::with(&[("etc/onload-ctk/config.toml", "[broken")]);
    let own = host.path("etc/onload-ctk/config.toml");
    let ran = run(on(host.root(), &["discover"]).arg("-v"));
    assert!(ran.stderr.contains(&format!("read {}", own.display())));
    ran.refused();
}

#[test]
fn a_name_with_control_characters_is_written_out() {
    let host = TempDir::new().unwrap();
    let etc = host.path().join("etc/cdi");
    fs::create_dir_all(&etc).unwrap();
    fs::write(etc.join("a\u{1b}[2J.json"), "{}").unwrap();
    let lines = more(host.path(), &["cdi", "list"]);
    assert!(lines.iter().any(|line| line.contains("\\u{1b}")), "{lines:?}");
    assert!(lines.iter().all(|line| !line.contains('\u{1b}')), "{lines:?}");
}
