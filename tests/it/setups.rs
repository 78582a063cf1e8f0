//! `runtime configure` beside the usual: engines that are not installed, files at other places, the
//! default runtime, drop-ins of containerd 2.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::engine_host::EngineHost;
use crate::common::{names_in, run, skipped};
use onload_test_tree::copy_program;

const WRAPPER: &str = "usr/bin/onload-container-runtime";
const CONTAINERD: &str = "etc/containerd/config.toml";
const CONF_D: &str = "etc/containerd/conf.d/99-onload-ctk.toml";
const DOCKER: &str = "etc/docker/daemon.json";
const K3S: &str = "var/lib/rancher/k3s/agent/etc/containerd";
const CONTAINER: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
/// Engine, its program, the file that is written.
const ENGINES: [(&str, &str, &str); 5] = [
    ("docker", "dockerd", DOCKER),
    ("containerd", "containerd", CONTAINERD),
    ("crio", "crio", "etc/crio/crio.conf.d/99-onload-ctk.conf"),
    (
        "podman",
        "podman",
        "etc/containers/containers.conf.d/99-onload-ctk.conf",
    ),
    ("nomad", "nomad", "etc/nomad.d/onload-ctk.hcl"),
];
/// As "containerd config default" of 2.2 begins.
const MAIN: &str = "version = 3\nimports = ['/etc/containerd/conf.d/*.toml']\n\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n  runtime_type = 'io.containerd.runc.v2'\n  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\n    SystemdCgroup = true\n";

/// A host with the wrapper and those files, and no engine.
fn host_with(files: &[(&str, &str)]) -> EngineHost {
    let host = EngineHost::with(&[(WRAPPER, "")]);
    for (path, text) in files {
        host.file(path, text);
    }
    host
}

#[test]
fn an_engine_that_is_not_installed_is_told_of_and_gets_no_file() {
    for (engine, program, file) in ENGINES {
        let host = host_with(&[]);
        let before = host.files();
        let message = run(&mut host.configure(engine, &["--allow", "nic"])).refused();
        assert!(
            message.contains(&format!("{engine} is not installed")),
            "{message}"
        );
        assert!(
            message.contains(&format!("{program} not found in")),
            "{message}"
        );
        assert!(message.contains(&format!("--file /{file}")), "{message}");
        assert_eq!(host.files(), before, "{engine}");
        assert!(!host.path("etc").exists(), "{engine}");

        let shown = run(&mut host.configure(engine, &["--dry-run"])).done();
        assert!(shown.stdout.contains("onload"), "{}", shown.stdout);
        let warnings = shown.warnings().join("\n");
        assert!(warnings.contains("is not installed"), "{warnings}");
        assert_eq!(host.files(), before, "{engine}");
    }
}

#[test]
fn an_engine_counts_as_installed_by_its_program_wherever_that_is() {
    for directory in [
        "usr/bin",
        "usr/sbin",
        "usr/local/bin",
        "usr/local/sbin",
        "opt/bin",
    ] {
        for (engine, program, file) in ENGINES {
            let host = host_with(&[(&format!("{directory}/{program}"), "")]);
            let done = run(&mut host.configure(engine, &[])).done();
            let warnings = done.warnings().join("\n");
            assert!(!warnings.contains("not installed"), "{warnings}");
            assert!(host.path(file).exists(), "{engine}");
        }
    }
}

#[test]
fn a_file_is_written_ahead_of_its_engine_where_it_is_named() {
    for (engine, _, file) in ENGINES {
        let host = host_with(&[]);
        let before = host.files();
        let named = format!("/{file}");
        run(&mut host.configure(engine, &["--file", &named])).done();
        assert!(host.read(file).contains("onload"), "{engine}");
        // It is the usual one, so nothing has to be named to undo it.
        run(&mut host.configure(engine, &["--remove"])).done();
        assert_eq!(host.files(), before, "{engine}");
    }
}

#[test]
fn a_file_of_an_engine_that_is_gone_is_edited_with_a_warning() {
    let host = host_with(&[(DOCKER, "{}\n")]);
    let done = run(&mut host.configure("docker", &[])).done();
    let warnings = done.warnings().join("\n");
    assert!(warnings.contains("docker is not installed"), "{warnings}");
    assert!(host.read(DOCKER).contains("onload"));
    // A removal asks for no engine.
    let removed = run(&mut host.configure("docker", &["--remove"])).done();
    assert_eq!(removed.warnings(), [""; 0]);
    assert_eq!(host.read(DOCKER), "{}\n");
}

/// Engine, the file that is named, what stands in it, what stands in it afterwards, how its engine is
/// restarted.
const ELSEWHERE: [(&str, &str, Option<&str>, &str, &str); 6] = [
    (
        "containerd",
        "var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.tmpl",
        None,
        "[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.onload]",
        "systemctl restart k3s (on an agent: k3s-agent)",
    ),
    (
        "containerd",
        "var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl",
        Some("{{ template \"base\" . }}\n# mine"),
        "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.onload]",
        "systemctl restart k3s (on an agent: k3s-agent)",
    ),
    (
        "containerd",
        "srv/rke2/agent/etc/containerd/config.toml.tmpl",
        None,
        "SystemdCgroup = {{ .SystemdCgroup }}",
        "systemctl restart rke2-server (on an agent: rke2-agent)",
    ),
    (
        "containerd",
        "var/snap/microk8s/current/args/containerd-template.toml",
        Some(
            "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  snapshotter = \"${SNAPSHOTTER}\"\n",
        ),
        "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.onload]",
        "snap restart microk8s.daemon-containerd",
    ),
    (
        "docker",
        "home/user/.config/docker/daemon.json",
        None,
        "\"path\": \"/usr/bin/onload-container-runtime\"",
        "systemctl --user restart docker",
    ),
    (
        "docker",
        "srv/docker.json",
        Some("{ \"debug\" : false }"),
        "\"path\": \"/usr/bin/onload-container-runtime\"",
        "systemctl restart docker",
    ),
];

#[test]
fn a_file_elsewhere_is_set_up_once_and_given_back_to_the_byte() {
    for (engine, file, text, expected, how) in ELSEWHERE {
        let text = text.map(|text| (file, text));
        let host = host_with(text.as_slice());
        let before = host.files();
        let named = format!("/{file}");
        let done = run(&mut host.configure(engine, &["--file", &named])).done();
        assert!(done.stderr.contains(how), "{file}: {}", done.stderr);
        let now = host.read(file);
        assert!(now.contains(expected), "{file}: {now}");
        let inode = fs::metadata(host.path(file)).unwrap().ino();
        run(&mut host.configure(engine, &["--file", &named])).done();
        assert_eq!(fs::metadata(host.path(file)).unwrap().ino(), inode);
        run(&mut host.configure(engine, &["--file", &named, "--remove"])).done();
        assert_eq!(host.files(), before, "{file}");
    }
}

#[test]
fn a_file_elsewhere_leaves_the_usual_one_alone() {
    let host = host_with(&[(DOCKER, "{}")]);
    let named = ["--file", "/srv/daemon.json"];
    run(&mut host.configure("docker", &named)).done();
    assert_eq!(host.read(DOCKER), "{}");
    assert!(host.read("srv/daemon.json").contains("onload"));
    run(&mut host.configure("docker", &["--remove"])).done();
    assert!(host.read("srv/daemon.json").contains("onload"));
}

#[test]
fn a_drop_in_of_k3s_wants_the_file_that_k3s_wrote_to_import_it() {
    let drop_in = format!("{K3S}/config-v3.toml.d/99-onload-ctk.toml");
    let named = format!("/{drop_in}");
    let main = format!("{K3S}/config.toml");
    let imports = format!(
        "# File generated by k3s. DO NOT EDIT.\nversion = 3\nimports = [\"/{K3S}/config-v3.toml.d/*.toml\"]\nstate = \"/run/k3s/containerd\"\n"
    );
    let refusals = [
        (None, "config.toml is not there"),
        (
            Some("version = 3\n"),
            "containerd/config-v3.toml.tmpl with --file",
        ),
        (
            Some("version = 2\n"),
            "containerd/config.toml.tmpl with --file",
        ),
    ];
    for (text, reason) in refusals {
        let host = host_with(text.map(|text| (main.as_str(), text)).as_slice());
        let before = host.files();
        let message = run(&mut host.configure("containerd", &["--file", &named])).refused();
        assert!(message.contains(reason), "{message}");
        assert_eq!(host.files(), before);
    }
    let host = host_with(&[(&main, &imports)]);
    let before = host.files();
    run(&mut host.configure("containerd", &["--file", &named, "--set-default"])).done();
    let text = host.read(&drop_in);
    assert!(text.contains("default_runtime_name = \"onload\""), "{text}");
    assert_eq!(host.read(&main), imports);

    // Its containers are where the main file says.
    let task = format!("run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/{CONTAINER}");
    host.file(
        &format!("{task}/options.json"),
        "{\"binary_name\":\"/usr/bin/onload-container-runtime\"}",
    );
    let removal = ["--file", &named, "--remove"];
    let kept = run(&mut host.configure("containerd", &removal)).answered_no();
    assert!(kept.stdout.contains("0123456789ab"), "{}", kept.stdout);
    assert!(
        kept.stdout
            .contains(&format!("--runtime containerd --file {named} --remove\"")),
        "{}",
        kept.stdout
    );
    let text = host.read(&drop_in);
    assert!(!text.contains("default_runtime_name"), "{text}");
    assert!(text.contains("onload-container-runtime"), "{text}");
    fs::remove_dir_all(host.path("run/k3s")).unwrap();
    run(&mut host.configure("containerd", &removal)).done();
    assert_eq!(host.files(), before);
}

#[test]
fn what_k3s_writes_itself_is_not_edited() {
    let main = format!("{K3S}/config.toml");
    let host = host_with(&[(&main, "version = 3\n")]);
    let named = format!("/{main}");
    let message = run(&mut host.configure("containerd", &["--file", &named])).refused();
    assert!(
        message.contains("rewrites it at each start") && message.contains("config-v3.toml.tmpl"),
        "{message}"
    );
    assert_eq!(host.read(&main), "version = 3\n");
}

#[test]
fn a_named_file_that_others_could_exchange_is_left_alone() {
    let refusal = |host: &EngineHost| {
        let before = host.files();
        let named = ["--file", "/srv/d/daemon.json"];
        let message = run(&mut host.configure("docker", &named)).refused();
        assert_eq!(host.files(), before);
        message
    };
    let mode = |path: PathBuf, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let host = host_with(&[("srv/d/daemon.json", "{}")]);
    mode(host.path("srv/d"), 0o775);
    let message = refusal(&host);
    assert!(
        message.contains("/srv/d\" has mode 0775") && message.contains("chmod go-w"),
        "{message}"
    );
    mode(host.path("srv/d"), 0o755);
    mode(host.path("srv"), 0o777);
    assert!(refusal(&host).contains("/srv\" has mode 0777"));
    // Nothing is made below such a directory either.
    fs::remove_dir_all(host.path("srv/d")).unwrap();
    assert!(refusal(&host).contains("/srv\" has mode 0777"));
    assert!(!host.path("srv/d").exists());

    let host = host_with(&[("srv/d/real.json", "{}")]);
    symlink("real.json", host.path("srv/d/daemon.json")).unwrap();
    assert!(refusal(&host).contains("it is a symbolic link"));
    let host = host_with(&[("srv/d/daemon.json", "{}")]);
    fs::hard_link(host.path("srv/d/daemon.json"), host.path("srv/second")).unwrap();
    assert!(refusal(&host).contains("hard links"));

    if !crate::common::is_root() {
        skipped("only root can give a directory away");
        return;
    }
    let host = host_with(&[("srv/d/daemon.json", "{}")]);
    chown(host.path("srv/d"), Some(1234), None).unwrap();
    let message = refusal(&host);
    assert!(
        message.contains("srv/d belongs to user 1234") && message.contains("run this as that user"),
        "{message}"
    );
}

#[test]
fn a_user_sets_up_an_engine_of_their_own() {
    if !crate::common::is_root() {
        skipped("only root can become another user");
        return;
    }
    // The lock is in the user's directory at run time, which a user of a test has not.
    let home = tempfile::Builder::new().tempdir_in("/var/tmp").unwrap();
    let path = home.path().join("home");
    fs::create_dir_all(path.join(".config")).unwrap();
    for path in [home.path().to_owned(), path.clone(), path.join(".config")] {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        chown(&path, Some(64_321), Some(64_321)).unwrap();
    }
    let program = home.path().join("onload-ctk");
    copy_program(env!("CARGO_BIN_EXE_onload-ctk"), &program);
    let root = home.path().join("host");
    fs::create_dir_all(root.join("usr/bin")).unwrap();
    fs::write(root.join("usr/bin/onload-container-runtime"), "").unwrap();
    let host_home = root.join("home/u");
    fs::create_dir_all(&host_home).unwrap();
    chown(&host_home, Some(64_321), Some(64_321)).unwrap();
    fs::create_dir_all(root.join("run/onload-ctk")).unwrap();
    for directory in ["run", "run/onload-ctk"] {
        chown(root.join(directory), Some(64_321), Some(64_321)).unwrap();
    }
    let configure = |more: &[&str]| {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(&program);
        command.env_clear().uid(64_321).gid(64_321);
        command.arg("--host-root").arg(&root);
        command.args(["runtime", "configure", "--runtime", "docker", "--file"]);
        command.arg("/home/u/.config/docker/daemon.json").args(more);
        run(&mut command)
    };
    configure(&[]).done();
    let file = host_home.join(".config/docker/daemon.json");
    let facts = fs::metadata(&file).unwrap();
    assert_eq!((facts.uid(), facts.mode() & 0o777), (64_321, 0o644));
    configure(&["--remove"]).done();
    assert!(!file.exists());
    // Not what belongs to root alone.
    let refusal = configure(&["--allow", "nic"]).refused();
    assert!(refusal.contains("ermission denied"), "{refusal}");
    assert!(!file.exists());
}

#[test]
fn words_that_do_not_go_with_a_named_file_are_refused() {
    let host = host_with(&[]);
    let before = host.files();
    let cases: [(&[&str], &str); 3] = [
        (&["--file", "daemon.json"], "by its whole path"),
        (&["--file", "/"], "by its whole path"),
        (&["--file", "/a/b", "--remove", "--set-default"], ""),
    ];
    for (words, reason) in cases {
        let ended = run(&mut host.configure("docker", words));
        assert_eq!(ended.code, Some(2), "{words:?}");
        assert!(ended.stderr.contains(reason), "{}", ended.stderr);
    }
    // On the running host, where a restart is no matter of another root: nothing is restarted.
    let mut command = crate::common::program();
    command.args(["runtime", "configure", "--runtime", "docker"]);
    command.args(["--file", "/nowhere/at/all/daemon.json", "--restart"]);
    let message = run(&mut command).refused();
    assert!(
        message.contains("leave --restart out") && message.contains("systemctl restart docker"),
        "{message}"
    );
    assert_eq!(host.files(), before);
}

#[test]
fn the_default_runtime_is_set_in_each_engine_and_given_back_to_the_byte() {
    let cases = [
        (
            "docker",
            DOCKER,
            Some("{\n  \"default-runtime\": \"crun\"\n}\n"),
            "\"default-runtime\": \"onload\"",
        ),
        ("docker", DOCKER, None, "\"default-runtime\": \"onload\""),
        (
            "containerd",
            CONTAINERD,
            Some("version = 2\n"),
            "default_runtime_name = \"onload\"",
        ),
        (
            "crio",
            "etc/crio/crio.conf.d/99-onload-ctk.conf",
            None,
            "default_runtime = \"onload\"",
        ),
        (
            "podman",
            "etc/containers/containers.conf.d/99-onload-ctk.conf",
            None,
            "\nruntime = \"onload\"\n",
        ),
    ];
    for (engine, file, text, expected) in cases {
        let host = host_with(text.map(|text| (file, text)).as_slice());
        for (_, program, _) in ENGINES {
            host.file(&format!("usr/bin/{program}"), "");
        }
        let before = host.files();
        run(&mut host.configure(engine, &[])).done();
        assert!(!host.read(file).contains(expected), "{engine}");
        run(&mut host.configure(engine, &["--set-default"])).done();
        let now = host.read(file);
        assert!(now.contains(expected), "{engine}: {now}");
        run(&mut host.configure(engine, &["--set-default"])).done();
        run(&mut host.configure(engine, &[])).done();
        assert_eq!(host.read(file), now, "{engine}");
        run(&mut host.configure(engine, &["--remove"])).done();
        assert_eq!(host.files(), before, "{engine}");
    }
}

#[test]
fn a_runtime_that_is_not_there_does_not_become_the_default() {
    let with_default = ENGINES.iter().filter(|(engine, ..)| *engine != "nomad");
    for (engine, program, _) in with_default {
        let host = host_with(&[(&format!("usr/bin/{program}"), "")]);
        fs::remove_file(host.path(WRAPPER)).unwrap();
        let before = host.files();
        for more in [&["--set-default"][..], &["--set-default", "--dry-run"]] {
            let message = run(&mut host.configure(engine, more)).refused();
            assert!(
                message.contains("onload-container-runtime is not there"),
                "{message}"
            );
            assert_eq!(host.files(), before, "{engine}");
        }
    }
}

#[test]
fn an_engine_without_a_default_runtime_says_where_to_write_it() {
    // Whether there is a wrapper says nothing of it.
    let host = EngineHost::with(&[("usr/bin/nomad", "")]);
    let before = host.files();
    let message = run(&mut host.configure("nomad", &["--set-default", "--allow", "nic"])).refused();
    assert!(
        message.contains("--runtime docker") && message.contains("left as it is"),
        "{message}"
    );
    assert_eq!(host.files(), before);
    host.file(WRAPPER, "");
    let before = host.files();
    let template = format!("/{K3S}/config-v3.toml.tmpl");
    let words = ["--file", &template, "--set-default"];
    let message = run(&mut host.configure("containerd", &words)).refused();
    assert!(message.contains("default-runtime: onload"), "{message}");
    assert_eq!(host.files(), before);
}

#[test]
fn containerd_2_is_set_up_by_a_drop_in_where_its_file_imports_them() {
    let host = host_with(&[(CONTAINERD, MAIN), ("usr/bin/containerd", "")]);
    let before = host.files();
    let shown = run(&mut host.configure("containerd", &["--dry-run"])).done();
    let header = format!("+++ {}\n", host.path(CONF_D).display());
    assert!(shown.stdout.contains(&header), "{}", shown.stdout);
    run(&mut host.configure("containerd", &["--set-default"])).done();
    let text = host.read(CONF_D);
    for part in [
        "version = 3\n",
        "BinaryName = \"/usr/bin/onload-container-runtime\"",
        "SystemdCgroup = true",
        "default_runtime_name = \"onload\"",
    ] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    assert_eq!(host.read(CONTAINERD), MAIN);
    assert_eq!(
        names_in(&host.path("etc/containerd")),
        ["conf.d", "config.toml"]
    );
    assert_eq!(
        names_in(&host.path("etc/containerd/conf.d")),
        ["99-onload-ctk.toml"]
    );
    let again = run(&mut host.configure("containerd", &[])).done();
    assert!(
        again.stderr.contains("nothing to change"),
        "{}",
        again.stderr
    );
    let state = format!("run/containerd/io.containerd.runtime.v2.task/k8s.io/{CONTAINER}");
    host.file(
        &format!("{state}/options.json"),
        "{\"binary_name\":\"/usr/bin/onload-container-runtime\"}",
    );
    run(&mut host.configure("containerd", &["--remove"])).answered_no();
    assert!(host.read(CONF_D).contains("onload-container-runtime"));
    fs::remove_dir_all(host.path("run/containerd")).unwrap();
    run(&mut host.configure("containerd", &["--remove"])).done();
    assert_eq!(host.files(), before);
}

#[test]
fn what_an_earlier_version_wrote_into_the_main_file_stays_there_and_goes_from_there() {
    let host = host_with(&[(CONTAINERD, "version = 3\n"), ("usr/bin/containerd", "")]);
    run(&mut host.configure("containerd", &[])).done();
    assert!(!host.path(CONF_D).exists());
    let imports = "version = 3\nimports = ['/etc/containerd/conf.d/*.toml']\n";
    let text = host.read(CONTAINERD);
    host.file(CONTAINERD, text.replacen("version = 3\n", imports, 1));
    let again = run(&mut host.configure("containerd", &[])).done();
    assert!(
        again.stderr.contains("nothing to change"),
        "{}",
        again.stderr
    );
    assert!(!host.path(CONF_D).exists());
    run(&mut host.configure("containerd", &["--remove"])).done();
    assert_eq!(host.read(CONTAINERD), imports);
}

#[test]
fn a_removal_takes_away_what_is_in_the_drop_in_and_in_the_main_file() {
    let host = host_with(&[(CONTAINERD, "version = 3\n"), ("usr/bin/containerd", "")]);
    run(&mut host.configure("containerd", &[])).done();
    let both = host.read(CONTAINERD);
    host.file(CONTAINERD, MAIN);
    run(&mut host.configure("containerd", &[])).done();
    assert!(host.path(CONF_D).exists());
    host.file(CONTAINERD, &both);
    run(&mut host.configure("containerd", &["--remove"])).done();
    assert!(!host.path(CONF_D).exists());
    assert_eq!(host.read(CONTAINERD), "version = 3\n");
}

#[test]
fn an_engine_that_is_too_old_for_cdi_is_told_of_with_and_without_a_dry_run() {
    let package = "Package: docker.io\nVersion: 20.10.24+dfsg1-1+deb12u1+b2\n";
    let host = host_with(&[("usr/sbin/dockerd", ""), ("var/lib/dpkg/status", package)]);
    for more in [&["--dry-run"][..], &[]] {
        let done = run(&mut host.configure("docker", more)).done();
        let warnings = done.warnings().join("\n");
        assert!(
            warnings.contains("docker 20.10.24 is too old: CDI needs 25.0.0"),
            "{warnings}"
        );
    }
    let removed = run(&mut host.configure("docker", &["--remove"])).done();
    assert_eq!(removed.warnings(), [""; 0]);
    let newer = package.replace("20.10.24", "26.1.5");
    host.file("var/lib/dpkg/status", newer);
    let done = run(&mut host.configure("docker", &[])).done();
    assert_eq!(done.warnings(), [""; 0]);
}

#[test]
fn docker_is_restarted_for_the_switch_of_cdi_and_reloaded_for_all_else() {
    const RESTART: &str =
        "which stops its containers unless live-restore is on: systemctl restart docker\n";
    const RELOAD: &str = ": systemctl reload docker\n";
    let cases = [
        ("26.1.5", "{}", RESTART),
        ("26.1.5", "{\"features\": {\"cdi\": true}}", RELOAD),
        ("28.2.0", "{}", RELOAD),
        // It knows no CDI that could be turned on.
        ("20.10.24", "{}", RELOAD),
        ("28.2.0", "{\"features\": {\"cdi\": false}}", RESTART),
    ];
    for (version, text, how) in cases {
        let package = format!("Package: docker-ce\nVersion: 5:{version}-1~debian.12~bookworm\n");
        let host = host_with(&[
            ("usr/bin/dockerd", ""),
            ("var/lib/dpkg/status", &package),
            (DOCKER, text),
        ]);
        let said = run(&mut host.configure("docker", &[])).done().stderr;
        assert!(said.ends_with(how), "{version} {text}: {said}");
        for more in ["--set-default", "--remove"] {
            let said = run(&mut host.configure("docker", &[more])).done().stderr;
            assert!(said.ends_with(RELOAD), "{version} {text} {more}: {said}");
        }
    }
}

#[test]
fn an_engine_of_openrc_is_told_by_its_own_command() {
    let k3s = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl";
    for (file, engine, systemd, openrc) in [
        (
            None,
            "docker",
            "systemctl reload docker",
            "rc-service docker reload",
        ),
        (
            None,
            "crio",
            "systemctl restart crio",
            "rc-service crio restart",
        ),
        (
            Some(k3s),
            "containerd",
            "systemctl restart k3s (on an agent: k3s-agent)",
            "rc-service k3s restart (on an agent: k3s-agent)",
        ),
        (
            Some("/home/a/.config/docker/daemon.json"),
            "docker",
            "systemctl --user restart docker",
            "systemctl --user restart docker",
        ),
    ] {
        for (programs, told) in [
            (&[][..], systemd),
            (&[("sbin/rc-service", "")], openrc),
            (
                &[("sbin/rc-service", ""), ("usr/bin/systemctl", "")],
                systemd,
            ),
        ] {
            let host = EngineHost::with_engines(programs);
            let package = "Package: docker-ce\nVersion: 5:28.2.0-1~debian.12~bookworm\n";
            host.file("var/lib/dpkg/status", package);
            if let Some(file) = file {
                let directory = Path::new(file).parent().unwrap();
                host.directory(directory.to_str().unwrap());
            }
            let mut configure = host.configure(engine, &[]);
            configure.args(file.map(|file| ["--file", file]).iter().flatten());
            let said = run(&mut configure).done().stderr;
            assert!(said.ends_with(&format!(": {told}\n")), "{told}: {said}");
        }
    }
}
