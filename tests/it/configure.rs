//! `runtime configure`: the files of engines on small hosts, and what the engines' own readers make of
//! them.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::engine_host::EngineHost;
use crate::common::{names_in, needs, on, program, run};

const DOCKER: &str = "etc/docker/daemon.json";
const CONTAINERD: &str = "etc/containerd/config.toml";
const CRIO: &str = "etc/crio/crio.conf.d/99-onload-ctk.conf";
const PODMAN: &str = "etc/containers/containers.conf.d/99-onload-ctk.conf";
const NOMAD: &str = "etc/nomad.d/onload-ctk.hcl";
const POLICY: &str = "etc/onload-ctk/config.toml";
const WRAPPER: &str = "usr/bin/onload-container-runtime";
const ENGINES: [(&str, &str); 5] = [
    ("docker", DOCKER),
    ("containerd", CONTAINERD),
    ("crio", CRIO),
    ("podman", PODMAN),
    ("nomad", NOMAD),
];

#[test]
fn every_engine_is_set_up_once_and_given_back() {
    for (engine, file) in ENGINES {
        let host = EngineHost::with_engines(&[(WRAPPER, "")]);
        let before = host.files();
        run(&mut host.configure(engine, &[])).done();
        let text = host.read(file);
        assert!(text.contains("onload"), "{engine}: {text}");
        let inode = fs::metadata(host.path(file)).unwrap().ino();
        let again = run(&mut host.configure(engine, &[])).done();
        assert!(
            again.stderr.contains("nothing to change"),
            "{}",
            again.stderr
        );
        assert_eq!(fs::metadata(host.path(file)).unwrap().ino(), inode);
        run(&mut host.configure(engine, &["--remove"])).done();
        assert_eq!(host.files(), before, "{engine}");
    }
}

#[test]
fn the_backup_stands_beside_the_file_and_goes_with_it() {
    let text = "{\n  \"debug\" : false }\n";
    let host = EngineHost::with_engines(&[(DOCKER, text)]);
    run(&mut host.configure("docker", &[])).done();
    let backup = format!("{DOCKER}.onload-ctk-backup");
    assert_eq!(host.read(&backup), text);
    assert_eq!(
        names_in(&host.path("etc/docker")),
        ["daemon.json", "daemon.json.onload-ctk-backup"]
    );
    run(&mut host.configure("docker", &["--remove"])).done();
    assert_eq!(host.read(DOCKER), text);
    assert_eq!(names_in(&host.path("etc/docker")), ["daemon.json"]);
}

#[test]
fn drop_ins_have_no_backup_since_engines_would_read_it() {
    for (engine, file) in [("crio", CRIO), ("podman", PODMAN), ("nomad", NOMAD)] {
        let host = EngineHost::with_engines(&[]);
        run(&mut host.configure(engine, &[])).done();
        let path = host.path(file);
        let name = path.file_name().unwrap().to_str().unwrap();
        assert_eq!(names_in(path.parent().unwrap()), [name]);
    }
}

#[test]
fn a_dry_run_shows_a_diff_and_writes_nothing() {
    let host = EngineHost::with_engines(&[(DOCKER, "{\"debug\": true}\n"), (WRAPPER, "")]);
    let before = host.files();
    let shown = run(&mut host.configure("docker", &["--dry-run", "--allow", "nic"])).done();
    let daemon = host.path(DOCKER);
    let lines: Vec<&str> = shown.stdout.lines().collect();
    assert_eq!(lines[0], format!("--- {}", daemon.display()));
    assert_eq!(lines[3], "-{\"debug\": true}");
    assert!(lines.contains(&"+allow = [\"nic\"]"), "{}", shown.stdout);
    assert_eq!(host.files(), before);
    assert!(!host.path("etc/onload-ctk").exists());

    run(&mut host.configure("docker", &[])).done();
    let before = host.files();
    let shown = run(&mut host.configure("docker", &["--dry-run", "--remove"])).done();
    assert!(
        shown.stdout.contains("\n+{\"debug\": true}\n"),
        "{}",
        shown.stdout
    );
    let nothing = run(&mut host.configure("docker", &["--dry-run"])).done();
    assert_eq!(nothing.stdout, "");
    let said = format!("nothing to change in {}\n", daemon.display());
    assert!(nothing.stderr.ends_with(&said), "{}", nothing.stderr);
    assert_eq!(host.files(), before);
}

#[test]
fn owner_and_mode_stay_as_they_are() {
    let host = EngineHost::with_engines(&[(DOCKER, "{}")]);
    fs::set_permissions(host.path(DOCKER), fs::Permissions::from_mode(0o640)).unwrap();
    if needs::is_root() {
        std::os::unix::fs::chown(host.path(DOCKER), Some(1234), Some(4321)).unwrap();
    }
    let facts = |path: PathBuf| {
        let facts = fs::metadata(path).unwrap();
        (facts.uid(), facts.gid(), facts.mode())
    };
    let before = facts(host.path(DOCKER));
    run(&mut host.configure("docker", &[])).done();
    assert_eq!(facts(host.path(DOCKER)), before);
    let backup = host.path(&format!("{DOCKER}.onload-ctk-backup"));
    assert_eq!(facts(backup), before);
    run(&mut host.configure("docker", &["--remove"])).done();
    assert_eq!(facts(host.path(DOCKER)), before);
}

#[test]
fn what_is_no_plain_file_of_text_is_left_alone() {
    let host = EngineHost::with_engines(&[("etc/real.json", "{}")]);
    fs::create_dir_all(host.path("etc/docker")).unwrap();
    symlink("../real.json", host.path(DOCKER)).unwrap();
    let message = run(&mut host.configure("docker", &[])).refused();
    assert!(
        message.contains("daemon.json: it is a symbolic link"),
        "{message}"
    );
    assert_eq!(host.read("etc/real.json"), "{}");

    let host = EngineHost::with_engines(&[(DOCKER, "{}")]);
    fs::hard_link(host.path(DOCKER), host.path("etc/second")).unwrap();
    let message = run(&mut host.configure("docker", &[])).refused();
    assert!(message.contains("hard links"), "{message}");

    let host = EngineHost::with_engines(&[]);
    fs::create_dir_all(host.path(DOCKER)).unwrap();
    let message = run(&mut host.configure("docker", &[])).refused();
    assert!(
        message.contains("it is a directory, not a regular file"),
        "{message}"
    );

    let host = EngineHost::with_engines(&[]);
    host.file(DOCKER, b"{\"a\": \"\xff\"}");
    let message = run(&mut host.configure("docker", &[])).refused();
    assert!(message.contains("not UTF-8 text"), "{message}");

    let host = EngineHost::with_engines(&[]);
    host.file(DOCKER, " ".repeat(5 * 1024 * 1024));
    let message = run(&mut host.configure("docker", &[])).refused();
    assert!(message.contains("longer than 4 MiB"), "{message}");
}

#[test]
fn a_refusal_names_the_file_and_leaves_the_policy_alone_too() {
    let cases = [
        ("docker", DOCKER, "{"),
        ("containerd", CONTAINERD, "disabled_plugins = [\"cri\"]\n"),
        ("podman", PODMAN, "[engine"),
        (
            "nomad",
            "etc/nomad.d/a.hcl",
            "plugin \"docker\" { config { } }",
        ),
    ];
    for (engine, file, text) in cases {
        let host = EngineHost::with_engines(&[(file, text)]);
        let before = host.files();
        let message = run(&mut host.configure(engine, &["--allow", "nic"])).refused();
        let path = host.path(file);
        let named =
            message.contains(path.to_str().unwrap()) || message.contains(&format!("/{file}"));
        assert!(named, "{engine}: {message}");
        assert!(message.contains("left as it is"), "{engine}: {message}");
        assert_eq!(host.files(), before, "{engine}");
    }
    let host = EngineHost::with_engines(&[(POLICY, "[annotations]\nalow = []\n")]);
    let before = host.files();
    let message = run(&mut host.configure("docker", &["--allow", "nic"])).refused();
    assert!(message.contains(POLICY), "{message}");
    assert_eq!(host.files(), before);
}

#[test]
fn removing_passes_by_a_file_that_is_not_ours_whatever_is_the_matter_with_it() {
    let cases = [
        ("docker", DOCKER, "{"),
        ("containerd", CONTAINERD, "disabled_plugins = [\"cri\"]\n"),
        ("containerd", CONTAINERD, "version = 9\nimports = [\n"),
        ("podman", PODMAN, "[engine"),
        ("nomad", NOMAD, "plugin \"docker\" { }"),
    ];
    for (engine, file, text) in cases {
        let host = EngineHost::with_engines(&[(file, text)]);
        let before = host.files();
        run(&mut host.configure(engine, &["--remove"])).done();
        assert_eq!(host.files(), before, "{engine}");
    }
}

#[test]
fn classes_are_allowed_in_the_policy_and_stay_when_an_engine_goes() {
    let packaged =
        fs::read_to_string(crate::common::package().join("packaging/config.toml")).unwrap();
    let host = EngineHost::with_engines(&[(POLICY, &packaged), (WRAPPER, "")]);
    run(&mut host.configure("docker", &["--allow", "nic,rdma"])).done();
    // The second list is what variables may ask for.
    let expected = packaged.replacen("#allow = []", "allow = [\"nic\", \"rdma\"]", 1);
    assert_eq!(host.read(POLICY), expected);
    run(&mut host.configure("podman", &["--allow", "rdma", "--allow", "vfio"])).done();
    let expected = packaged.replacen("#allow = []", "allow = [\"nic\", \"rdma\", \"vfio\"]", 1);
    assert_eq!(host.read(POLICY), expected);
    run(&mut host.configure("docker", &["--remove"])).done();
    assert_eq!(host.read(POLICY), expected);
}

#[test]
fn a_policy_that_is_not_there_is_written() {
    let host = EngineHost::with_engines(&[]);
    run(&mut host.configure("podman", &["--allow", "zf"])).done();
    assert_eq!(host.read(POLICY), "[annotations]\nallow = [\"zf\"]\n");
}

#[test]
fn a_policy_that_is_named_is_written_where_it_is() {
    let host = EngineHost::with_engines(&[("elsewhere/c.toml", "# mine\n")]);
    let named = host.path("elsewhere/c.toml");
    let mut command = host.configure("podman", &["--allow", "zf", "--config"]);
    run(command.arg(&named)).done();
    assert_eq!(
        host.read("elsewhere/c.toml"),
        "# mine\n[annotations]\nallow = [\"zf\"]\n"
    );
    assert!(!host.path(POLICY).exists());
}

#[test]
fn words_that_mean_nothing_are_refused() {
    let host = EngineHost::with_engines(&[]);
    for arguments in [
        &["--runtime", "rkt"][..],
        &["--runtime", "docker", "--allow", "nick"],
        &["--runtime", "docker", "--allow", "nic", "--remove"],
        &[],
    ] {
        let mut command = on(host.root(), &["runtime", "configure"]);
        command.args(arguments);
        let ended = run(&mut command);
        assert_eq!(ended.code, Some(2), "{arguments:?}: {}", ended.stderr);
    }
    assert_eq!(host.files(), []);
}

#[test]
fn every_flag_can_come_from_the_environment() {
    let host = EngineHost::with_engines(&[]);
    let mut command = program();
    command.args(["runtime", "configure"]);
    command.env("ONLOAD_CTK_HOST_ROOT", host.root());
    command.env("ONLOAD_CTK_RUNTIME_CONFIGURE_RUNTIME", "docker");
    command.env("ONLOAD_CTK_RUNTIME_CONFIGURE_ALLOW", "nic,zf");
    command.env("ONLOAD_CTK_RUNTIME_CONFIGURE_DRY_RUN", "true");
    let shown = run(&mut command).done();
    assert!(
        shown.stdout.contains("+allow = [\"nic\", \"zf\"]"),
        "{}",
        shown.stdout
    );
    assert_eq!(host.files(), []);
    command.env_remove("ONLOAD_CTK_RUNTIME_CONFIGURE_DRY_RUN");
    run(&mut command).done();
    command.env_remove("ONLOAD_CTK_RUNTIME_CONFIGURE_ALLOW");
    command.env("ONLOAD_CTK_RUNTIME_CONFIGURE_REMOVE", "1");
    run(&mut command).done();
    assert!(!host.path(DOCKER).exists());
}

#[test]
fn the_service_to_restart_is_named_and_never_restarted_for_another_host() {
    let host = EngineHost::with_engines(&[(WRAPPER, "")]);
    for (engine, _) in ENGINES {
        let said = run(&mut host.configure(engine, &[])).done().stderr;
        let expected = match engine {
            "podman" => "nothing to restart".to_owned(),
            _ => format!("systemctl restart {engine}\n"),
        };
        assert!(said.contains(&expected), "{engine}: {said}");
    }
    let host = EngineHost::with_engines(&[]);
    let message = run(&mut host.configure("docker", &["--restart"])).refused();
    assert!(message.contains("is not the running host"), "{message}");
    assert_eq!(host.files(), []);
}

#[test]
fn what_is_missing_on_the_host_is_told_and_does_not_stop_anything() {
    let host = EngineHost::with_engines(&[]);
    let warnings = |engine| {
        let ran = run(&mut host.configure(engine, &["--dry-run"])).done();
        ran.warnings().join("\n")
    };
    assert!(warnings("docker").contains("onload-container-runtime is not there"));
    assert!(warnings("nomad").contains("run this with --runtime docker too"));
}

#[test]
fn drop_ins_of_podman_6_are_read_in_its_order() {
    let of = |hooks: &str| format!("[engine]\nhooks_dir = [\"{hooks}\"]\n");
    let host = EngineHost::with_engines(&[
        (WRAPPER, ""),
        // Read after what /etc has, since its name is later.
        (
            "usr/share/containers/containers.conf.d/60.conf",
            &of("/packaged"),
        ),
        ("etc/containers/containers.conf.d/50.conf", &of("/own")),
        // Not read, since /etc has a file of that name.
        (
            "usr/share/containers/containers.conf.d/70.conf",
            &of("/hidden"),
        ),
        ("etc/containers/containers.conf.d/70.conf", "[engine]\n"),
    ]);
    run(&mut host.configure("podman", &[])).done();
    let text = host.read(PODMAN);
    assert!(
        text.contains("hooks_dir = [\"/packaged\", \"/usr/share/onload-ctk/"),
        "{text}"
    );
}

#[test]
fn files_beside_ours_are_read_where_the_engine_reads_them() {
    let host = EngineHost::with_engines(&[
        (WRAPPER, ""),
        (
            "etc/containers/containers.conf",
            "[engine]\nhooks_dir = [\"/a\"]\n",
        ),
        (
            "etc/containers/containers.conf.d/10.conf",
            "[engine]\nhooks_dir = [\"/b\"]\n",
        ),
        (
            "etc/containers/containers.conf.d/20.conf.off",
            "[engine]\nhooks_dir = [\"/c\"]\n",
        ),
        (CONTAINERD, "version = 2\nimports = [\"conf.d/*.toml\"]\n"),
        (
            "etc/containerd/conf.d/a.toml",
            "[plugins.\"io.containerd.grpc.v1.cri\"]\n",
        ),
    ]);
    run(&mut host.configure("podman", &[])).done();
    assert!(
        host.read(PODMAN)
            .contains("hooks_dir = [\"/b\", \"/usr/share/onload-ctk/")
    );
    let message = run(&mut host.configure("containerd", &[])).refused();
    assert!(
        message.contains("/etc/containerd/conf.d/a.toml"),
        "{message}"
    );
}

/// A host with the files that the readers below are asked about, ours among them.
fn set_up() -> EngineHost {
    let host = EngineHost::with_engines(&[
        (WRAPPER, ""),
        (
            DOCKER,
            "{\n  \"features\": {\"buildkit\": true},\n  \"runtimes\": {\"other\": {\"path\": \"/usr/bin/other\"}}\n}\n",
        ),
        (
            CONTAINERD,
            "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.other]\nruntime_type = \"io.containerd.runc.v2\"\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.other.options]\nBinaryName = \"/usr/bin/other\"\n",
        ),
    ]);
    for (engine, _) in ENGINES {
        run(&mut host.configure(engine, &[])).done();
    }
    host
}

/// The output of an engine's own reader; none where it is not installed.
fn reader(program: &str, arguments: &[&str], variables: &[(&str, &Path)]) -> Option<String> {
    // Docker before 23, as in Debian 12, has no command that reads its file.
    let is_there = needs::runs(program);
    let missing = format!("{program} is not installed");
    let goes_on = match program {
        "dockerd" => needs::on_this_machine(is_there, &missing),
        _ => needs::that(is_there, &missing),
    };
    if !goes_on {
        return None;
    }
    let mut command = Command::new(program);
    let output = command.args(arguments).envs(variables.iter().copied());
    let output = output.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let is_new = !stderr.contains("unknown flag: --validate");
    if !needs::on_this_machine(is_new, &format!("{program} is older than its --validate")) {
        return None;
    }
    assert!(output.status.success(), "{program} {arguments:?}: {stderr}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned() + &stderr)
}

#[test]
fn dockerd_takes_its_file() {
    let host = set_up();
    let file = host.path(DOCKER);
    let arguments = ["--validate", "--config-file", file.to_str().unwrap()];
    if let Some(said) = reader("dockerd", &arguments, &[]) {
        assert!(said.contains("configuration OK"), "{said}");
    }
}

#[test]
fn containerd_takes_its_file_and_keeps_the_runtime_of_others() {
    let host = set_up();
    let file = host.path(CONTAINERD);
    let arguments = ["--config", file.to_str().unwrap(), "config", "dump"];
    let Some(dump) = reader("containerd", &arguments, &[]) else {
        return;
    };
    for line in [
        "containerd.runtimes.other]",
        "BinaryName = \"/usr/bin/other\"",
        "containerd.runtimes.onload]",
        "BinaryName = \"/usr/bin/onload-container-runtime\"",
        "pod_annotations = [\"onload.dev/*\"]",
    ] {
        assert!(
            dump.replace('\'', "\"").contains(line),
            "no {line} in {dump}"
        );
    }
}

#[test]
fn containerd_takes_our_runtime_as_the_default_one() {
    let host = set_up();
    run(&mut host.configure("containerd", &["--set-default"])).done();
    let file = host.path(CONTAINERD);
    let arguments = ["--config", file.to_str().unwrap(), "config", "dump"];
    let Some(dump) = reader("containerd", &arguments, &[]) else {
        return;
    };
    let dump = dump.replace('\'', "\"");
    let names: Vec<&str> = dump.lines().map(str::trim).collect();
    assert!(
        names.contains(&"default_runtime_name = \"onload\""),
        "{dump}"
    );
}

#[test]
fn podman_takes_our_runtime_as_the_default_one() {
    if !crate::common::is_root() {
        crate::common::skipped("podman wants subordinate user ids where it is not root");
        return;
    }
    let host = set_up();
    run(&mut host.configure("podman", &["--set-default"])).done();
    let (config, stand_in) = podman_config(&host);
    let format = "{{.Host.OCIRuntime.Name}} {{.Host.OCIRuntime.Path}}";
    if let Some(said) = podman_info(&host, &config, &[], format) {
        let expected = format!("onload {}", stand_in.display());
        assert!(said.contains(&expected), "{said}");
    }
}

/// What podman says of itself with this configuration; none where it is not there to ask.
fn podman_info(host: &EngineHost, config: &Path, more: &[&str], format: &str) -> Option<String> {
    let (root, runroot) = (host.path("storage"), host.path("run"));
    let (root, runroot) = (root.to_str().unwrap(), runroot.to_str().unwrap());
    let storage = [
        "--root",
        root,
        "--runroot",
        runroot,
        "--storage-driver",
        "vfs",
    ];
    let asked = ["info", "--format", format];
    let arguments = [&storage, more, &asked].concat();
    reader("podman", &arguments, &[("CONTAINERS_CONF", config)])
}

/// podman's file with a runtime that is there, without which podman does not name it.
fn podman_config(host: &EngineHost) -> (PathBuf, PathBuf) {
    let stand_in = host.path("runtime");
    fs::write(&stand_in, "#!/bin/sh\nexec echo runtime version 1\n").unwrap();
    fs::set_permissions(&stand_in, fs::Permissions::from_mode(0o755)).unwrap();
    let text = host.read(PODMAN).replace(
        "/usr/bin/onload-container-runtime",
        stand_in.to_str().unwrap(),
    );
    let config = host.path("containers.conf");
    fs::write(&config, text).unwrap();
    (config, stand_in)
}

#[test]
fn podman_takes_its_file_and_still_knows_its_own_runtimes() {
    if !needs::root("podman without subordinate user ids") {
        return;
    }
    let host = set_up();
    let (config, stand_in) = podman_config(&host);
    for (name, path) in [
        ("onload", stand_in.as_path()),
        ("crun", Path::new("/usr/bin/crun")),
    ] {
        let missing = format!("{} is not installed", path.display());
        if !needs::that(path.exists(), &missing) {
            continue;
        }
        let more = ["--runtime", name];
        let Some(said) = podman_info(&host, &config, &more, "{{.Host.OCIRuntime.Path}}") else {
            return;
        };
        assert!(said.contains(path.to_str().unwrap()), "{said}");
    }
}

const CONTAINER: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// A container as docker keeps it on disk, running or not.
fn docker_container(host: &EngineHost, root: &str, id: &str, name: &str, runtime: &str) {
    let directory = format!("{root}/containers/{id}");
    host.file(
        &format!("{directory}/hostconfig.json"),
        format!("{{\"Runtime\":\"{runtime}\"}}"),
    );
    host.file(
        &format!("{directory}/config.v2.json"),
        format!("{{\"Name\":\"/{name}\",\"State\":{{\"Running\":false}}}}"),
    );
}

#[test]
fn while_docker_has_a_container_of_the_runtime_its_entry_stays() {
    let before = "{\n  \"debug\": false\n}\n";
    let host = EngineHost::with_engines(&[(DOCKER, before), (WRAPPER, "")]);
    run(&mut host.configure("docker", &[])).done();
    docker_container(&host, "var/lib/docker", CONTAINER, "redis", "onload");
    docker_container(&host, "var/lib/docker", "ff00", "web", "runc");
    let shown = run(&mut host.configure("docker", &["--remove", "--dry-run"]));
    assert_eq!(shown.code, Some(1), "{}", shown.stderr);
    assert!(
        shown.stderr.contains("redis (0123456789ab)"),
        "{}",
        shown.stderr
    );

    let kept = run(&mut host.configure("docker", &["--remove", "--quiet"]));
    assert_eq!(kept.code, Some(1), "{}", kept.stderr);
    let daemon = host.path(DOCKER);
    assert_eq!(
        kept.stdout,
        format!(
            "the runtime \"onload\" stays in {}: 1 container of it is left, to be removed first: redis (0123456789ab); then run \"onload-ctk runtime configure --runtime docker --remove\"\n",
            daemon.display()
        )
    );
    let text = host.read(DOCKER);
    assert!(
        text.contains("\"path\": \"/usr/bin/onload-container-runtime\""),
        "{text}"
    );
    assert!(!text.contains("cdi"), "{text}");

    fs::remove_dir_all(host.path(&format!("var/lib/docker/containers/{CONTAINER}"))).unwrap();
    let done = run(&mut host.configure("docker", &["--remove"])).done();
    assert_eq!(done.stdout, "");
    assert_eq!(host.read(DOCKER), before);
    assert_eq!(names_in(&host.path("etc/docker")), ["daemon.json"]);
}

#[test]
fn the_name_of_a_container_never_reaches_the_terminal_as_it_is() {
    let host = EngineHost::with_engines(&[(WRAPPER, "")]);
    run(&mut host.configure("docker", &[])).done();
    docker_container(&host, "var/lib/docker", CONTAINER, "\\u001b[2Jx", "onload");
    let kept = run(&mut host.configure("docker", &["--remove"]));
    assert!(kept.stdout.contains("[2Jx"), "{}", kept.stdout);
    assert!(!kept.stdout.contains('\u{1b}'), "{}", kept.stdout);
}

#[test]
fn containers_of_docker_are_found_below_its_own_root_and_with_user_namespaces() {
    for root in ["srv/docker", "srv/docker/100000.100000"] {
        let host = EngineHost::with_engines(&[
            (DOCKER, "{\"data-root\": \"/srv/docker\"}"),
            (WRAPPER, ""),
        ]);
        run(&mut host.configure("docker", &[])).done();
        docker_container(&host, root, CONTAINER, "redis", "onload");
        let kept = run(&mut host.configure("docker", &["--remove"]));
        assert_eq!(kept.code, Some(1), "{root}: {}", kept.stderr);
        assert!(host.read(DOCKER).contains("onload-container-runtime"));
    }
    let host =
        EngineHost::with_engines(&[(DOCKER, "{\"data-root\": \"/srv/docker\"}"), (WRAPPER, "")]);
    run(&mut host.configure("docker", &[])).done();
    docker_container(&host, "var/lib/docker", CONTAINER, "old", "onload");
    run(&mut host.configure("docker", &["--remove"])).done();
}

#[test]
fn while_a_pod_of_containerd_or_crio_has_the_handler_its_entry_stays() {
    let task = format!("run/containerd/io.containerd.runtime.v2.task/k8s.io/{CONTAINER}");
    let storage = format!("var/lib/containers/storage/overlay-containers/{CONTAINER}/userdata");
    let of_crio = format!(
        "{{\"annotations\":{{\"io.kubernetes.cri-o.RuntimeHandler\":\"onload\",\"io.kubernetes.cri-o.SandboxID\":\"{CONTAINER}\"}}}}"
    );
    let cases = [
        (
            "containerd",
            CONTAINERD,
            format!("{task}/options.json"),
            "{\"binary_name\":\"/usr/bin/onload-container-runtime\"}",
        ),
        ("crio", CRIO, format!("{storage}/config.json"), &of_crio),
    ];
    for (engine, file, state, content) in cases {
        let host = EngineHost::with_engines(&[(WRAPPER, "")]);
        let before = host.files();
        run(&mut host.configure(engine, &[])).done();
        host.file(&state, content);
        let kept = run(&mut host.configure(engine, &["--remove"]));
        assert_eq!(kept.code, Some(1), "{engine}: {}", kept.stderr);
        assert!(kept.stdout.contains("0123456789ab"), "{}", kept.stdout);
        assert!(
            host.read(file).contains("onload-container-runtime"),
            "{engine}"
        );
        fs::remove_file(host.path(&state)).unwrap();
        run(&mut host.configure(engine, &["--remove"])).done();
        assert_eq!(host.files(), before, "{engine}");
    }
}

#[test]
fn an_engine_whose_default_is_our_runtime_keeps_its_entry_and_starts() {
    let cases = [
        (
            "docker",
            DOCKER,
            DOCKER,
            "{\"default-runtime\": \"onload\"}",
        ),
        (
            "containerd",
            CONTAINERD,
            CONTAINERD,
            "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"onload\"\n",
        ),
        (
            "crio",
            CRIO,
            "etc/crio/crio.conf",
            "[crio.runtime]\ndefault_runtime = \"onload\"\n",
        ),
        (
            "podman",
            PODMAN,
            "etc/containers/containers.conf",
            "[engine]\nruntime = \"onload\"\n",
        ),
    ];
    for (engine, file, named_in, text) in cases {
        let host = EngineHost::with_engines(&[(named_in, text), (WRAPPER, "")]);
        run(&mut host.configure(engine, &[])).done();
        let kept = run(&mut host.configure(engine, &["--remove"]));
        assert_eq!(kept.code, Some(1), "{engine}: {}", kept.stderr);
        assert!(
            kept.stdout.contains("makes it the default; set another"),
            "{}",
            kept.stdout
        );
        assert!(
            host.read(file).contains("onload-container-runtime"),
            "{engine}"
        );
        let other = host.read(named_in).replacen("\"onload\"", "\"runc\"", 1);
        host.file(named_in, other);
        run(&mut host.configure(engine, &["--remove"])).done();
    }
}

#[test]
fn where_podmans_containers_cannot_be_told_its_entry_stays_with_the_reason() {
    let host = EngineHost::with_engines(&[(WRAPPER, "")]);
    run(&mut host.configure("podman", &[])).done();
    host.file("var/lib/containers/storage/db.sql", "");
    let kept = run(&mut host.configure("podman", &["--remove"]));
    assert_eq!(kept.code, Some(1), "{}", kept.stderr);
    assert!(
        kept.stdout
            .contains("which containers use it could not be determined"),
        "{}",
        kept.stdout
    );
    assert!(!host.read(PODMAN).contains("hooks_dir"));
    fs::remove_file(host.path("var/lib/containers/storage/db.sql")).unwrap();
    run(&mut host.configure("podman", &["--remove"])).done();
    assert!(!host.path(PODMAN).exists());
}

#[test]
fn the_runtime_behind_ours_is_the_configured_one_else_the_first_that_exists() {
    let host = EngineHost::with_engines(&[("usr/bin/crun", ""), ("opt/runc", "")]);
    let behind = || run(&mut on(host.root(), &["runtime", "behind"]));
    assert_eq!(behind().done().stdout, "/usr/bin/crun\n");
    host.file("usr/bin/runc", "");
    assert_eq!(behind().done().stdout, "/usr/bin/runc\n");
    host.file(POLICY, "[runtime]\npath = \"/opt/runc\"\n");
    assert_eq!(behind().done().stdout, "/opt/runc\n");
    fs::remove_file(host.path("opt/runc")).unwrap();
    assert!(behind().refused().contains("there is none"));
}

/// A record of `onload-container-runtime`: a link that leads nowhere.
fn record(host: &EngineHost, name: &str, target: &str) {
    let dir = host.path("run/onload-ctk/@runtimes");
    fs::create_dir_all(&dir).unwrap();
    symlink(target, dir.join(name)).unwrap();
}

#[test]
fn the_runtime_behind_ours_is_read_as_the_wrapper_reads_it_from_a_faulty_configuration() {
    let host = EngineHost::with_engines(&[("usr/bin/runc", ""), ("opt/crun", "")]);
    let behind = || run(&mut on(host.root(), &["runtime", "behind"]));
    let named = "[runtime]\npath = \"/opt/crun\"\n";
    for other in ["[cdi]\nxyzzy = 1\n", "[cdi\n", "# \u{e4}\n[later]\n"] {
        host.file(POLICY, format!("{named}{other}"));
        assert_eq!(behind().done().stdout, "/opt/crun\n", "{other}");
    }
    let latin1 = [named.as_bytes(), b"# \xe4\n"].concat();
    host.file(POLICY, latin1);
    assert_eq!(behind().done().stdout, "/opt/crun\n");
}

#[test]
fn a_runtime_behind_ours_that_is_not_clear_is_not_guessed() {
    let host = EngineHost::with_engines(&[("usr/bin/runc", ""), ("opt/crun", "")]);
    for text in [
        "[runtime]\npath = 1\n",
        "[runtime]\npath = \"/opt/crun\n",
        "[runtime]\npath = \"/opt/crun\"\n[runtime]\npath = \"/usr/bin/runc\"\n",
    ] {
        host.file(POLICY, text);
        let refusal = run(&mut on(host.root(), &["runtime", "behind"])).refused();
        assert!(refusal.contains("etc/onload-ctk/config.toml"), "{refusal}");
    }
}

#[test]
fn the_runtime_behind_ours_is_the_one_that_made_the_containers() {
    let host =
        EngineHost::with_engines(&[("usr/bin/runc", ""), ("opt/crun", ""), ("opt/runc", "")]);
    let behind = || run(&mut on(host.root(), &["runtime", "behind"])).done();
    host.file(POLICY, "[runtime]\npath = \"/opt/runc\"\n");
    record(&host, "b@1", "1:/opt/crun");
    record(&host, "c@1", "1:guarded:/opt/crun");
    assert_eq!(behind().stdout, "/opt/crun\n");
    assert_eq!(behind().stderr, "");
    // Neither the order of names nor that of paths decides, and a record of another version is none.
    record(&host, "a@1", "1:/usr/bin/runc");
    record(&host, "d@1", "2:/opt/runc");
    let found = behind();
    assert_eq!(found.stdout, "/opt/crun\n");
    assert_eq!(
        found.warnings(),
        [
            "1 container was made by /usr/bin/runc, and 2 by /opt/crun, which does not find it: end it first"
        ]
    );
}

#[test]
fn a_runtime_that_is_gone_is_not_the_one_behind_ours_though_it_made_containers() {
    let host = EngineHost::with_engines(&[("usr/bin/runc", ""), ("opt/crun", "")]);
    for name in ["a@1", "b@1"] {
        record(&host, name, "1:/opt/gone");
    }
    let behind = || run(&mut on(host.root(), &["runtime", "behind"])).done();
    let found = behind();
    assert_eq!(found.stdout, "/usr/bin/runc\n");
    assert_eq!(
        found.warnings(),
        ["2 containers were made by /opt/gone, which is not there: install it again to end them"]
    );
    record(&host, "c@1", "1:/opt/crun");
    assert_eq!(behind().stdout, "/opt/crun\n");
}
