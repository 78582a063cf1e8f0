//! `runtime configure` by other users, and what the engines' own readers print of our files. Everything else that it does
//! to files is in `tests/cases`.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Tree, needs, on, run};
use crate::doctor::dockerd_says;
use onload_test_tree::copy_program;

const DOCKER: &str = "/etc/docker/daemon.json";
const CONTAINERD: &str = "/etc/containerd/config.toml";
const PODMAN: &str = "/etc/containers/containers.conf.d/99-onload-ctk.conf";
const USER: u32 = 64_321;

/// A host with these files, the engines and our runtime.
fn host(files: &[(&str, &str)]) -> Tree {
    let host = Tree::with(files);
    for program in ["dockerd", "containerd", "podman", "onload-container-runtime", "runc"] {
        host.file(&format!("/usr/bin/{program}"), "");
    }
    host
}

fn configure(host: &Tree, words: &[&str]) -> Command {
    on(host.root(), &[&["runtime", "configure", "--runtime"], words].concat())
}

#[test]
fn keeps_the_owner_and_mode_of_a_file_and_its_backup() {
    let host = host(&[(DOCKER, "{}")]);
    host.chmod(DOCKER, 0o640);
    if needs::is_root() {
        chown(host.path(DOCKER), Some(1234), Some(4321)).unwrap();
    }
    let owner_and_mode = |path: &str| {
        let metadata = fs::metadata(host.path(path)).unwrap();
        (metadata.uid(), metadata.gid(), metadata.mode())
    };
    let before = owner_and_mode(DOCKER);
    run(&mut configure(&host, &["docker"])).done();
    assert_eq!(owner_and_mode(DOCKER), before);
    let backup = format!("{DOCKER}.onload-ctk-backup");
    assert_eq!(owner_and_mode(&backup), before);
    run(&mut configure(&host, &["docker", "--remove"])).done();
    assert_eq!(owner_and_mode(DOCKER), before);
}

#[test]
fn refuses_a_named_file_in_a_directory_of_another_user() {
    if !needs::root("giving a directory to another user") {
        return;
    }
    let host = host(&[("/srv/d/daemon.json", "{}")]);
    chown(host.path("/srv/d"), Some(1234), None).unwrap();
    let named = ["docker", "--file", "/srv/d/daemon.json"];
    let message = run(&mut configure(&host, &named)).refused();
    assert!(message.contains("srv/d belongs to user 1234"), "{message}");
    assert!(message.contains("run this as that user"), "{message}");
    assert_eq!(host.read("/srv/d/daemon.json"), "{}");
}

#[test]
fn lets_a_user_configure_an_engine_of_their_own() {
    const FILE: &str = "/home/u/.config/docker/daemon.json";
    if !needs::root("becoming another user") {
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    let program = directory.path().join("onload-ctk");
    copy_program(env!("CARGO_BIN_EXE_onload-ctk"), &program);
    let host = Tree::at(&directory.path().join("host"));
    host.file("/usr/bin/onload-container-runtime", "");
    for owned in ["/home/u", "/run", "/run/onload-ctk"] {
        host.directory(owned);
        chown(host.path(owned), Some(USER), Some(USER)).unwrap();
    }
    let configure = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.env_clear().uid(USER).gid(USER);
        command.arg("--host-root").arg(host.root());
        command.args(["runtime", "configure", "--runtime", "docker", "--file", FILE]);
        run(command.args(words))
    };
    configure(&[]).done();
    let metadata = fs::metadata(host.path(FILE)).unwrap();
    assert_eq!((metadata.uid(), metadata.mode() & 0o777), (USER, 0o644));
    configure(&["--remove"]).done();
    // The policy belongs to root.
    let message = configure(&["--allow", "nic"]).refused();
    assert!(message.contains("ermission denied"), "{message}");
    assert!(!host.path(FILE).exists());
}

/// What an engine prints of a file; `None` if the engine is missing or too old to check it.
fn read_by(program: &str, arguments: &[&str], variables: &[(&str, &Path)]) -> Option<String> {
    let is_installed = needs::runs(program);
    let missing = format!("{program} is not installed");
    let is_usable = match program {
        // Docker before 23, as in Debian 12, cannot check a file.
        "dockerd" => needs::on_this_machine(is_installed, &missing),
        _ => needs::that(is_installed, &missing),
    };
    if !is_usable {
        return None;
    }
    let mut command = Command::new(program);
    let output = command.args(arguments).envs(variables.iter().copied()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let can_validate = !stderr.contains("unknown flag: --validate");
    if !needs::on_this_machine(can_validate, &format!("{program} is older than --validate")) {
        return None;
    }
    assert!(output.status.success(), "{program} {arguments:?}: {stderr}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    Some(format!("{stdout}{stderr}").replace('\'', "\""))
}

#[test]
fn dockerd_accepts_our_file() {
    let other = "{\"features\": {\"buildkit\": true}, \"runtimes\": {\"other\": {\"path\": \"/usr/bin/other\"}}}";
    let host = host(&[(DOCKER, other)]);
    run(&mut configure(&host, &["docker"])).done();
    let file = host.path(DOCKER);
    let arguments = ["--validate", "--config-file", file.to_str().unwrap()];
    if let Some(printed) = read_by("dockerd", &arguments, &[]) {
        assert!(printed.contains("configuration OK"), "{printed}");
    }
}

#[test]
fn containerd_reads_our_runtime_and_default_and_those_of_others() {
    let runtime = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.other";
    let other = format!(
        "version = 2\n{runtime}]\nruntime_type = \"io.containerd.runc.v2\"\n{runtime}.options]\nBinaryName = \"/usr/bin/other\"\n"
    );
    let host = host(&[(CONTAINERD, &other)]);
    run(&mut configure(&host, &["containerd", "--set-default"])).done();
    let file = host.path(CONTAINERD);
    let arguments = ["--config", file.to_str().unwrap(), "config", "dump"];
    let Some(dump) = read_by("containerd", &arguments, &[]) else {
        return;
    };
    for line in [
        "containerd.runtimes.other]",
        "BinaryName = \"/usr/bin/other\"",
        "containerd.runtimes.onload]",
        "BinaryName = \"/usr/bin/onload-container-runtime\"",
        "pod_annotations = [\"onload.dev/*\"]",
        "default_runtime_name = \"onload\"",
    ] {
        assert!(dump.contains(line), "no {line} in {dump}");
    }
}

#[test]
fn containerd_2_and_crio_read_the_drop_ins_of_packaging() {
    let shipped = |name: &str| {
        fs::read_to_string(crate::common::package().join("packaging").join(name)).unwrap()
    };
    let host = Tree::with(&[
        ("/conf.d/99-onload-ctk.toml", &shipped("containerd/99-onload-ctk.toml")),
        ("/crio.conf.d/99-onload-ctk.conf", &shipped("crio/99-onload-ctk.conf")),
    ]);
    let drop_ins = host.path("/conf.d").display().to_string();
    host.file("/config.toml", format!("version = 3\nimports = ['{drop_ins}/*.toml']\n"));
    let [config, crio] =
        ["/config.toml", "/crio.conf.d"].map(|path| host.path(path).display().to_string());
    for (program, arguments) in [
        ("containerd", ["--config", &config, "config", "dump"]),
        ("crio", ["--config=", "--config-dir", &crio, "config"]),
    ] {
        let version = Command::new(program)
            .arg("--version")
            .output()
            .map(|output| output.stdout)
            .unwrap_or_default();
        let version = String::from_utf8_lossy(&version);
        let is_usable = !version.is_empty() && !version.contains("containerd/containerd 1.");
        if !needs::on_this_machine(
            is_usable,
            &format!("{program} is missing or older than its drop-in"),
        ) {
            continue;
        }
        let printed = read_by(program, &arguments, &[]).unwrap();
        for line in ["runtimes.onload]", "\"/usr/bin/onload-container-runtime\""] {
            assert!(printed.contains(line), "no {line} in {printed}");
        }
    }
}

#[test]
fn podman_reads_our_runtime_as_its_default_and_still_knows_crun() {
    if !needs::root("podman without subordinate user ids") {
        return;
    }
    let host = host(&[]);
    run(&mut configure(&host, &["podman", "--set-default"])).done();
    // podman names no runtime that it cannot run.
    let runtime = host.path("/runtime");
    host.program("/runtime", "#!/bin/sh\nexec echo runtime version 1\n");
    let text =
        host.read(PODMAN).replace("/usr/bin/onload-container-runtime", runtime.to_str().unwrap());
    host.file("/containers.conf", text);
    let [root, runroot] = ["/storage", "/run"].map(|path| host.path(path).display().to_string());
    for (option, name, path) in [
        (&[][..], "onload", runtime),
        (&["--runtime", "crun"], "crun", PathBuf::from("/usr/bin/crun")),
    ] {
        if !needs::that(path.exists(), &format!("{} is not installed", path.display())) {
            continue;
        }
        let storage = ["--root", &root, "--runroot", &runroot, "--storage-driver", "vfs"];
        let format = "{{.Host.OCIRuntime.Name}} {{.Host.OCIRuntime.Path}}";
        let arguments = [&storage, option, &["info", "--format", format]].concat();
        let config = host.path("/containers.conf");
        let Some(printed) = read_by("podman", &arguments, &[("CONTAINERS_CONF", &config)]) else {
            return;
        };
        assert!(printed.contains(&format!("{name} {}", path.display())), "{printed}");
    }
}

#[test]
fn no_restart_is_asked_for_if_the_running_docker_has_cdi() {
    let printed = |info| {
        let host = host(&[]);
        let dockerd = dockerd_says(&host, info);
        let run = run(&mut configure(&host, &["docker"])).done();
        dockerd.join().unwrap();
        run.stdout + &run.stderr
    };
    let on = printed(r#"{"CDISpecDirs":["/etc/cdi"]}"#);
    assert!(on.contains("docker reads it on reload: systemctl reload docker"), "{on}");
    let off = printed(r#"{"CDISpecDirs":[]}"#);
    assert!(off.contains("docker enables CDI when it starts"), "{off}");
}
