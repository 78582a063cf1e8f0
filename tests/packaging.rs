//! The files of the packages: units, rules, scripts, lists.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use common::{names_in, skipped};

const UNITS: [&str; 3] = ["onload-cdi.service", "onload-cdi.path", "onload-cdi.timer"];

fn packaging(path: &str) -> PathBuf {
    common::package().join("packaging").join(path)
}

fn read(path: &str) -> String {
    let path = packaging(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The values of a setting of a unit, in their order.
fn settings(unit: &str, key: &str) -> Vec<String> {
    let text = read(&format!("systemd/{unit}"));
    let values = text
        .lines()
        .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    values.map(str::to_owned).collect()
}

#[test]
fn engines_start_when_the_specifications_are_written() {
    let before = settings("onload-cdi.service", "Before").join(" ");
    for engine in ["docker", "containerd", "podman", "crio", "nomad"] {
        let unit = format!("{engine}.service");
        assert!(
            before.split(' ').any(|word| word == unit),
            "{unit}: {before}"
        );
    }
}

#[test]
fn an_event_during_a_run_is_followed_by_one_more_run() {
    let stale = "/run/onload-cdi/stale";
    // The rule makes the file, a run removes it before it looks, the path unit looks when it ends.
    assert!(read("udev/90-onload-ctk.rules").contains(&format!("RUN+=\"/bin/touch {stale}\"")));
    let first = settings("onload-cdi.service", "ExecStartPre");
    assert_eq!(first.last(), Some(&format!("/bin/rm -f {stale}")));
    assert_eq!(settings("onload-cdi.path", "PathExists"), [stale]);
    assert_eq!(settings("onload-cdi.service", "Type"), ["oneshot"]);
    let directories = settings("onload-cdi.service", "RuntimeDirectory");
    assert_eq!(directories, ["onload-cdi cdi"]);
    assert_eq!(
        settings("onload-cdi.service", "RuntimeDirectoryPreserve"),
        ["yes"]
    );
}

#[test]
fn a_storm_neither_fails_the_service_nor_runs_it_for_each_event() {
    assert_eq!(
        settings("onload-cdi.service", "StartLimitIntervalSec"),
        ["0"]
    );
    let first = settings("onload-cdi.service", "ExecStartPre");
    assert_eq!(first.first().unwrap(), "-+/bin/udevadm settle --timeout=10");
    // Engines make a pair of interfaces for each container.
    let rules = read("udev/90-onload-ctk.rules");
    let net = rules
        .lines()
        .find(|line| line.starts_with("SUBSYSTEM==\"net\""));
    assert!(net.unwrap().contains("DEVPATH==\"*/pci*\""));
}

#[test]
fn units_are_what_systemd_takes() {
    if !common::has("systemd-analyze") {
        skipped("systemd-analyze is not installed");
        return;
    }
    // As installed, but for the programs and pages that are not.
    let directory = tempfile::tempdir().unwrap();
    for unit in UNITS {
        let text = read(&format!("systemd/{unit}"));
        let text = text.replace("/usr/bin/onload-ctk", "/bin/true");
        let lines = text
            .lines()
            .filter(|line| !line.starts_with("Documentation="));
        let text: String = lines.map(|line| format!("{line}\n")).collect();
        fs::write(directory.path().join(unit), text).unwrap();
    }
    let mut verify = Command::new("systemd-analyze");
    verify.arg("verify");
    verify.args(UNITS.map(|unit| directory.path().join(unit)));
    let output = verify.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let ours: Vec<&str> = stderr
        .lines()
        .filter(|line| line.contains("onload"))
        .collect();
    assert_eq!(ours, Vec::<&str>::new(), "{stderr}");
}

#[test]
fn scripts_are_what_a_shell_takes() {
    let common_part = read("scripts/common.sh");
    let mut scripts = 0;
    for (directory, shell) in [
        ("deb", "sh"),
        ("rpm", "sh"),
        ("tarball", "sh"),
        (".", "bash"),
    ] {
        for name in names_in(&packaging(directory)) {
            let path = packaging(directory).join(&name);
            let Ok(text) = fs::read_to_string(&path) else {
                continue;
            };
            if !text.starts_with("#!") && !name.ends_with(".sh") {
                continue;
            }
            let lines = text.lines().map(|line| match line {
                "#COMMON#" => common_part.as_str(),
                line => line,
            });
            let text: String = lines.map(|line| format!("{line}\n")).collect();
            let checked = Command::new(shell)
                .args(["-n", "-c", &text])
                .output()
                .unwrap();
            let stderr = String::from_utf8_lossy(&checked.stderr);
            assert!(checked.status.success(), "{}: {stderr}", path.display());
            scripts += 1;
        }
    }
    assert_eq!(scripts, 3 + 3 + 1 + 3);
}

/// What a package puts where, but for names that differ between distributions.
fn destinations(manifest: &toml_edit::DocumentMut, kind: &str) -> BTreeSet<String> {
    let assets = manifest["package"]["metadata"][kind]["assets"]
        .as_array()
        .unwrap();
    let assets = assets.iter().map(|asset| match asset.as_array() {
        Some(asset) => (asset.get(0).unwrap(), asset.get(1).unwrap()),
        None => {
            let asset = asset.as_inline_table().unwrap();
            (asset.get("source").unwrap(), asset.get("dest").unwrap())
        }
    });
    let paths = assets.map(|(source, to)| {
        let (source, to) = (source.as_str().unwrap(), to.as_str().unwrap());
        let to = to
            .trim_start_matches('/')
            .replace("vendor-completions", "site-functions");
        let last = source.rsplit('/').next().unwrap();
        if to.ends_with('/') {
            format!("{to}{last}")
        } else {
            to
        }
    });
    let own = ["usr/share/doc/", "usr/share/lintian/"];
    paths
        .filter(|path| !own.iter().any(|own| path.starts_with(own)))
        .collect()
}

#[test]
fn both_packages_hold_the_same_files_and_no_directory_of_an_engine() {
    let text = fs::read_to_string(common::package().join("Cargo.toml")).unwrap();
    let manifest: toml_edit::DocumentMut = text.parse().unwrap();
    let (deb, rpm) = (
        destinations(&manifest, "deb"),
        destinations(&manifest, "generate-rpm"),
    );
    assert_eq!(deb, rpm);
    for path in &deb {
        for directory in [
            "containers",
            "docker",
            "containerd",
            "crio",
            "cni",
            "nomad",
            "etc/cdi",
        ] {
            assert!(
                !path.contains(directory) || path.contains("onload-container"),
                "{path}"
            );
        }
    }
    for kind in names_in(&packaging("hooks.d")) {
        let path = format!("usr/share/onload-ctk/hooks.d/{kind}/*");
        assert!(deb.contains(&path), "no package holds {path}");
    }
}

#[test]
fn the_environment_of_the_service_names_variables_that_there_are() {
    use clap::CommandFactory;
    let mut command = onload_ctk::cli::Cli::command();
    let generate = command.find_subcommand_mut("cdi").unwrap();
    let generate = generate.find_subcommand_mut("generate").unwrap().clone();
    let known = |name: &str| {
        let flags = generate.get_arguments().chain(command.get_arguments());
        flags
            .into_iter()
            .any(|flag| flag.get_env().is_some_and(|env| env == name))
    };
    let mut variables = 0;
    for line in read("default").lines() {
        let Some((name, _)) = line.trim_start_matches('#').split_once('=') else {
            continue;
        };
        assert!(known(name), "{name}");
        variables += 1;
    }
    assert_eq!(variables, 3);
}

#[test]
fn the_preload_file_is_one_line() {
    assert_eq!(read("ld.so.preload"), "libonload.so\n");
}

#[test]
fn manual_pages_are_what_man_takes() {
    if !common::has("man") {
        skipped("man is not installed");
        return;
    }
    let generated = tempfile::tempdir().unwrap();
    common::run(common::program().arg("man").arg(generated.path())).done();
    for directory in [packaging("man"), generated.path().to_owned()] {
        for name in names_in(&directory) {
            let mut man = Command::new("man");
            man.args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"]);
            let output = man
                .arg(directory.join(&name))
                .env("MANWIDTH", "100")
                .output()
                .unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(stderr, "", "{name}");
        }
    }
}
