//! Whole files, before and after: what every engine is told, what is refused, and the way back.

use std::path::Path;

use crate::engine::Engine;
use crate::file::{Action, Beside, Decision, Files, Keep, Other};
use crate::ours::RUNTIME_PATH;
use crate::setup::{NO_FILE, Setup};
use onload_core::onload::RUNTIMES;

/// A file that somebody keeps for Docker, with things that we know nothing of.
pub(crate) const DAEMON: &str = r#"{
    "log-driver": "journald",
    "features": { "buildkit": true, "containerd-snapshotter": false },
    "runtimes": {
        "nvidia": {
            "args": [],
            "path": "nvidia-container-runtime"
        }
    },
    "max-download-attempts": 1.0e1
}
"#;

/// As "containerd config default" of 1.7 lays a file out, with a runtime of somebody else.
pub(crate) const CONTAINERD_2: &str = r#"# kept by hand
version = 2
root = "/var/lib/containerd" # fast disk

[plugins]

  [plugins."io.containerd.grpc.v1.cri"]
    cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
    enable_cdi = false # not yet
    sandbox_image = "registry.example/pause:3.9"

    [plugins."io.containerd.grpc.v1.cri".containerd]
      default_runtime_name = "nvidia"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes]

        # the GPU people's
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
          runtime_type = "io.containerd.runc.v2"

          [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
            BinaryName = "/usr/bin/nvidia-container-runtime"
            SystemdCgroup = true

        # everybody's
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
          base_runtime_spec = "/etc/containerd/base.json"
          pod_annotations = []
          runtime_type = "io.containerd.runc.v2"

          [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
            BinaryName = ""
            SystemdCgroup = true

  # unpacking
  [plugins."io.containerd.snapshotter.v1.overlayfs"]
    root_path = ""
"#;

pub(crate) const ENGINES: [Engine; 5] = [
    Engine::Docker,
    Engine::Containerd,
    Engine::Crio,
    Engine::Podman,
    Engine::Nomad,
];

pub(crate) fn usual(engine: Engine) -> Setup {
    Setup::usual(engine)
}

pub(crate) fn files(now: Option<&str>) -> Files {
    Files {
        now: now.map(str::to_owned),
        ..Files::default()
    }
}

pub(crate) fn other(path: &str, text: &str) -> Other {
    Other {
        path: path.into(),
        text: text.to_owned(),
    }
}

/// What a run makes of the files.
pub(crate) fn after(mut files: Files, decision: Decision) -> Files {
    for (place, action) in [
        (&mut files.now, decision.file),
        (&mut files.before, decision.backup),
    ] {
        match action {
            Action::Keep => {}
            Action::Write(text) => *place = Some(text),
            Action::Remove => *place = None,
        }
    }
    files
}

pub(crate) fn configured(engine: Engine, files: Files) -> Files {
    let decision = usual(engine).configure(&files).unwrap();
    after(files, decision)
}

pub(crate) fn removed(engine: Engine, files: Files) -> Files {
    let decision = usual(engine).remove(&files, Keep::Nothing).unwrap();
    after(files, decision)
}

fn text(engine: Engine, now: Option<&str>) -> String {
    configured(engine, files(now)).now.unwrap()
}

fn refusal(engine: Engine, files: &Files) -> String {
    format!("{:#}", usual(engine).configure(files).unwrap_err())
}

/// Lines that stand in one text and not in the other: removed and added ones.
pub(crate) fn difference(old: &str, new: &str) -> (Vec<String>, Vec<String>) {
    let diff = similar::TextDiff::from_lines(old, new);
    let lines = |tag| {
        let changes = diff.iter_all_changes().filter(move |c| c.tag() == tag);
        changes.map(|c| c.value().trim_end().to_owned()).collect()
    };
    (
        lines(similar::ChangeTag::Delete),
        lines(similar::ChangeTag::Insert),
    )
}

#[test]
fn docker_gets_cdi_and_the_runtime_and_keeps_the_rest() {
    let expected = DAEMON
        .replace("false }", "false, \"cdi\": true }")
        .replace(
            "        }\n    },\n    \"max",
            "        },\n        \"onload\": {\n            \"path\": \"/usr/bin/onload-container-runtime\"\n        }\n    },\n    \"max",
        );
    assert_eq!(text(Engine::Docker, Some(DAEMON)), expected);
}

#[test]
fn docker_gets_a_file_where_there_is_none() {
    let expected = "{\n  \"features\": {\n    \"cdi\": true\n  },\n  \"runtimes\": {\n    \"onload\": {\n      \"path\": \"/usr/bin/onload-container-runtime\"\n    }\n  }\n}\n";
    assert_eq!(text(Engine::Docker, None), expected);
    assert_eq!(text(Engine::Docker, Some("")), expected);
}

#[test]
fn containerd_gets_cdi_and_a_runtime_like_runc_and_keeps_the_rest() {
    let new = text(Engine::Containerd, Some(CONTAINERD_2));
    let (gone, added) = difference(CONTAINERD_2, &new);
    assert_eq!(gone, ["    enable_cdi = false # not yet"]);
    assert_eq!(
        added,
        [
            "    enable_cdi = true # not yet",
            "        [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.onload]",
            "          runtime_type = \"io.containerd.runc.v2\"",
            "          base_runtime_spec = \"/etc/containerd/base.json\"",
            "          pod_annotations = [\"onload.dev/*\"]",
            "          container_annotations = [\"onload.dev/*\"]",
            "",
            "          [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.onload.options]",
            "            BinaryName = \"/usr/bin/onload-container-runtime\"",
            "            SystemdCgroup = true",
            "",
        ]
    );
}

#[test]
fn containerd_gets_a_file_that_every_version_reads_where_there_is_none() {
    let expected = r#"version = 2

[plugins."io.containerd.grpc.v1.cri"]
enable_cdi = true

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.onload]
runtime_type = "io.containerd.runc.v2"
pod_annotations = ["onload.dev/*"]
container_annotations = ["onload.dev/*"]

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.onload.options]
BinaryName = "/usr/bin/onload-container-runtime"
"#;
    assert_eq!(text(Engine::Containerd, None), expected);
}

#[test]
fn containerd_2_has_cdi_on_and_names_its_plugin_differently() {
    for version in [3, 4] {
        let old = format!("version = {version}\n");
        let new = text(Engine::Containerd, Some(&old));
        assert!(new.starts_with(&old), "{new}");
        assert!(!new.contains("enable_cdi"), "{new}");
        let runtime = "\n[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.onload]\n";
        assert!(new.contains(runtime), "{new}");
    }
    let off = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n";
    assert!(text(Engine::Containerd, Some(off)).contains("\nenable_cdi = true\n"));
}

#[test]
fn containerd_2_merges_what_it_imports() {
    let mut files = files(Some(
        "version = 3\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n",
    ));
    let text = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = 'x'\nruntimes.x.runtime_type = 'x'\n";
    files.others = vec![other("/etc/containerd/conf.d/99-nvidia.toml", text)];
    assert!(usual(Engine::Containerd).configure(&files).is_ok());
}

#[test]
fn imports_are_looked_up_as_containerd_does() {
    let text = "version = 2\nimports = [\"conf.d/*.toml\", \"/a/b.toml\"]\n";
    let beside = usual(Engine::Containerd).beside(Some(text)).unwrap();
    let expected = [
        Beside::Directories(vec!["/etc/containerd/conf.d".into()], "*.toml".to_owned()),
        Beside::File("/a/b.toml".into()),
    ];
    assert_eq!(beside, expected);
}

/// The settings that CRI-O's own packages bring for every distribution (cri-o/packaging of 2026-08): the runtimes and their
/// monitor lie in a directory of CRI-O alone.
const CRIO_OF_PACKAGES: &str = r#"[crio.image]
signature_policy = "/etc/crio/policy.json"
[crio.runtime]
default_runtime = "crun"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/libexec/crio/crun"
runtime_root = "/run/crun"
monitor_path = "/usr/libexec/crio/conmon" # ours
allowed_annotations = [
  "io.containers.trace-syscall",
]
[crio.runtime.runtimes.runc]
runtime_path = "/usr/libexec/crio/runc"
runtime_root = "/run/runc"
monitor_path = "/usr/libexec/crio/conmon"
"#;

#[test]
fn the_runtimes_of_crio_s_packages_are_among_those_that_ours_looks_for() {
    for line in CRIO_OF_PACKAGES.lines() {
        if let Some(path) = line.strip_prefix("runtime_path = ") {
            assert!(RUNTIMES.contains(&path.trim_matches('"')), "{path}");
        }
    }
}

#[test]
fn crio_gets_a_handler_like_its_default_one() {
    let mut files = files(None);
    files.others = vec![
        other(
            "/etc/crio/crio.conf",
            "[crio.runtime.runtimes.runc]\nruntime_path = \"/usr/bin/runc\"\nmonitor_path = \"/usr/bin/old\"\n",
        ),
        other("/etc/crio/crio.conf.d/10-crio.conf", CRIO_OF_PACKAGES),
    ];
    let expected = r#"# Written by "onload-ctk runtime configure --runtime crio"; --remove takes it away.
# A RuntimeClass with the handler "onload" gives its pods what their annotations ask for.
[crio.runtime.runtimes.onload]
runtime_path = "/usr/bin/onload-container-runtime"
runtime_type = "oci"
monitor_path = "/usr/libexec/crio/conmon"
allowed_annotations = [
  "io.containers.trace-syscall",
]
"#;
    assert_eq!(configured(Engine::Crio, files).now.unwrap(), expected);
}

#[test]
fn podman_gets_the_runtime_and_the_hooks_behind_its_default_ones() {
    let expected = r#"# Written by "onload-ctk runtime configure --runtime podman"; --remove takes it away.
[engine]
hooks_dir = ["/usr/share/containers/oci/hooks.d", "/usr/share/onload-ctk/hooks.d/podman"]

[engine.runtimes]
onload = ["/usr/bin/onload-container-runtime"]
"#;
    assert_eq!(text(Engine::Podman, None), expected);
}

#[test]
fn podman_keeps_the_hook_directories_of_other_files() {
    let hooks = |others: &[(&str, &str)]| {
        let mut files = files(None);
        let others = others.iter().map(|(path, text)| other(path, text));
        files.others = others.collect();
        let text = configured(Engine::Podman, files).now.unwrap();
        text.lines().nth(2).unwrap().to_owned()
    };
    let usr = "/usr/share/containers/containers.conf";
    let etc = "/etc/containers/containers.conf";
    let ours = "\"/usr/share/onload-ctk/hooks.d/podman\"]";
    assert_eq!(
        hooks(&[
            (usr, "[engine]\nhooks_dir = [\"/a\"]\n"),
            (etc, "[engine]\nhooks_dir = [\"/b\", \"/c\"]\n")
        ]),
        format!("hooks_dir = [\"/b\", \"/c\", {ours}")
    );
    assert_eq!(
        hooks(&[
            (usr, "[engine]\nhooks_dir = [\"/a\"]\n"),
            (etc, "[engine]\nhooks_dir = [\"/b\", {append = true}]\n")
        ]),
        format!("hooks_dir = [\"/a\", \"/b\", {ours}")
    );
}

/// What podman 6 reads beside the usual directory.
const OF_PODMAN_6: [&str; 3] = [
    "/usr/share/containers/containers.conf.d",
    "/usr/share/containers/containers.rootful.conf.d",
    "/etc/containers/containers.rootful.conf.d",
];

#[test]
fn a_later_file_of_podman_that_hides_our_hooks_is_told_of() {
    let warnings = |path: &str| {
        let mut files = files(None);
        files.others = vec![other(path, "[engine]\nhooks_dir = [\"/b\"]\n")];
        let decision = usual(Engine::Podman).configure(&files).unwrap();
        decision.warnings
    };
    for directory in OF_PODMAN_6
        .into_iter()
        .chain(["/etc/containers/containers.conf.d"])
    {
        let path = format!("{directory}/99-z.conf");
        let said = warnings(&path);
        assert!(said.len() == 1 && said[0].starts_with(&path), "{said:?}");
        // Whatever its directory, it is read before ours.
        assert_eq!(warnings(&format!("{directory}/50-a.conf")), [""; 0]);
    }
    assert_eq!(warnings("/srv/99-z.conf"), [""; 0]);
}

#[test]
fn the_directories_of_podman_6_are_read_and_their_hooks_kept() {
    let beside = usual(Engine::Podman).beside(None).unwrap();
    for directory in OF_PODMAN_6 {
        let path = Path::new(directory).join("50-a.conf");
        assert!(
            beside.iter().any(|beside| beside.holds(&path)),
            "{directory}"
        );
        let mut files = files(None);
        let path = format!("{directory}/50-a.conf");
        files.others = vec![other(&path, "[engine]\nhooks_dir = [\"/a\"]\n")];
        let text = configured(Engine::Podman, files).now.unwrap();
        assert!(
            text.contains("hooks_dir = [\"/a\", \"/usr/share/onload-ctk"),
            "{text}"
        );
    }
}

/// What is set in the file of containers-common 0.67 and 0.69 (Debian; Red Hat's and Fedora's packages have their own in
/// the same place, and nothing in /etc): tables, and hardly a setting.
const CONTAINERS_COMMON: &str = "[containers]\ndefault_sysctls = [\n  \"net.ipv4.ping_group_range=0 0\",\n]\n[secrets]\n[secrets.opts]\n[network]\n[engine]\n[engine.runtimes]\n[engine.runtimes_flags]\n[engine.volume_plugins]\n[machine]\n[farms]\n[podmansh]\n";

#[test]
fn podman_s_file_of_the_distribution_changes_nothing_in_ours() {
    let mut with = files(None);
    with.others = vec![other(
        "/usr/share/containers/containers.conf",
        CONTAINERS_COMMON,
    )];
    let configured_with = configured(Engine::Podman, with);
    assert_eq!(
        configured_with.now,
        configured(Engine::Podman, files(None)).now
    );
    assert_eq!(removed(Engine::Podman, configured_with).now, None);
}

#[test]
fn nomad_lets_docker_use_the_runtime_beside_its_default_ones() {
    let mut files = files(None);
    files.others = vec![other(
        "/etc/nomad.d/nomad.hcl",
        "data_dir = \"/opt/nomad\"\n# plugin \"docker\" {}\nplugin \"raw_exec\" {\n  config { enabled = true }\n}\n",
    )];
    let text = configured(Engine::Nomad, files).now.unwrap();
    assert!(text.contains("allow_runtimes = [\"runc\", \"nvidia\", \"onload\"]"));
}

#[test]
fn nomad_needs_no_file_of_ours_where_the_operator_allows_the_runtime() {
    for (path, text) in [
        (
            "/etc/nomad.d/n.hcl",
            "plugin \"docker\" {\n config {\n allow_runtimes = [\"runc\", \"onload\"] } }",
        ),
        (
            "/etc/nomad.d/n.json",
            "{\"plugin\": [{\"docker\": [{\"config\": {\"allow_runtimes\": [\"onload\"]}}]}]}",
        ),
    ] {
        let mut files = files(None);
        files.others = vec![other(path, text)];
        let decision = usual(Engine::Nomad).configure(&files).unwrap();
        assert_eq!(decision.file, Action::Keep, "{path}");
    }
}

#[test]
fn a_second_run_changes_nothing() {
    let texts = [
        (Engine::Docker, Some(DAEMON)),
        (Engine::Docker, Some("{}")),
        (Engine::Containerd, Some(CONTAINERD_2)),
        (Engine::Containerd, Some("version = 3\n")),
        (Engine::Containerd, Some("# nothing yet\n")),
    ];
    let none = ENGINES.map(|engine| (engine, None));
    for (engine, now) in texts.into_iter().chain(none) {
        let first = configured(engine, files(now));
        let second = usual(engine).configure(&first).unwrap();
        assert_eq!(second.file, Action::Keep, "{engine:?} {now:?}");
        assert_eq!(second.backup, Action::Keep, "{engine:?} {now:?}");
    }
}

#[test]
fn what_was_there_is_given_back_to_the_byte() {
    let texts = [
        (Engine::Docker, Some(DAEMON)),
        (Engine::Docker, Some("")),
        (Engine::Docker, Some("{\"features\":{\"cdi\":false}}")),
        (Engine::Docker, Some("{\n\t\"runtimes\" : {}\n}")),
        (Engine::Containerd, Some(CONTAINERD_2)),
        (Engine::Containerd, Some("version = 3")),
        (Engine::Containerd, Some("# nothing yet\n")),
    ];
    let none = ENGINES.map(|engine| (engine, None));
    for (engine, now) in texts.into_iter().chain(none) {
        let first = configured(engine, files(now));
        assert_ne!(first.now.as_deref(), now, "{engine:?}");
        if !usual(engine).is_drop_in() {
            let kept = now.unwrap_or(NO_FILE);
            assert_eq!(first.before.as_deref(), Some(kept), "{engine:?}");
        }
        let back = removed(engine, first);
        assert_eq!(back.now.as_deref(), now, "{engine:?}");
        assert_eq!(back.before, None, "{engine:?}");
    }
}

/// What a removal leaves while containers have recorded the runtime.
pub(crate) fn kept(engine: Engine, files: Files) -> Files {
    let decision = usual(engine).remove(&files, Keep::Runtime).unwrap();
    after(files, decision)
}

#[test]
fn while_there_are_containers_the_runtime_alone_stays_and_the_rest_comes_back_later() {
    let texts = [
        (Engine::Docker, None),
        (Engine::Docker, Some(DAEMON)),
        (Engine::Docker, Some("{\"features\":{\"cdi\":false}}")),
        (Engine::Containerd, None),
        (Engine::Containerd, Some(CONTAINERD_2)),
        (Engine::Containerd, Some("version = 3")),
        (Engine::Crio, None),
        (Engine::Podman, None),
    ];
    for (engine, now) in texts {
        let first = configured(engine, files(now));
        let kept_once = kept(engine, first.clone());
        let text = kept_once.now.as_deref();
        assert!(
            usual(engine).registers(text).unwrap(),
            "{engine:?} {text:?}"
        );
        assert!(text.unwrap().contains(RUNTIME_PATH), "{engine:?} {text:?}");
        assert_eq!(kept_once.before, first.before, "{engine:?}");
        assert_eq!(kept(engine, kept_once.clone()).now, kept_once.now);

        let back = removed(engine, kept_once.clone());
        assert_eq!(back.now.as_deref(), now, "{engine:?}");
        assert_eq!(back.before, None, "{engine:?}");

        let again = configured(engine, kept_once);
        assert!(usual(engine).registers(again.now.as_deref()).unwrap());
        assert_eq!(again.before, first.before, "{engine:?}");
        assert_eq!(removed(engine, again).now.as_deref(), now, "{engine:?}");
    }
}

#[test]
fn what_is_kept_for_containers_is_the_runtime_and_no_device() {
    let docker = kept(Engine::Docker, configured(Engine::Docker, files(None)));
    assert_eq!(
        docker.now.unwrap(),
        format!(
            "{{\n  \"runtimes\": {{\n    \"onload\": {{\n      \"path\": \"{RUNTIME_PATH}\"\n    }}\n  }}\n}}\n"
        )
    );
    let podman = kept(Engine::Podman, configured(Engine::Podman, files(None)));
    let text = podman.now.unwrap();
    assert!(!text.contains("hooks_dir"), "{text}");
    let containerd = configured(Engine::Containerd, files(Some(CONTAINERD_2)));
    let text = kept(Engine::Containerd, containerd).now.unwrap();
    assert!(text.contains("enable_cdi = false # not yet"), "{text}");
}

#[test]
fn only_a_file_that_registers_the_runtime_has_containers_looked_for() {
    for engine in [
        Engine::Docker,
        Engine::Containerd,
        Engine::Crio,
        Engine::Podman,
    ] {
        let ours = configured(engine, files(None)).now;
        assert!(
            usual(engine).registers(ours.as_deref()).unwrap(),
            "{engine:?}"
        );
        assert!(!usual(engine).registers(None).unwrap(), "{engine:?}");
    }
    let hooks = "[engine]\nhooks_dir = [\"/usr/share/onload-ctk/hooks.d/podman\"]\n";
    assert!(!usual(Engine::Podman).registers(Some(hooks)).unwrap());
    assert!(!usual(Engine::Docker).registers(Some(DAEMON)).unwrap());
    assert!(!usual(Engine::Docker).registers(Some("{ broken")).unwrap());
    let nomad = configured(Engine::Nomad, files(None)).now;
    assert!(!usual(Engine::Nomad).registers(nomad.as_deref()).unwrap());
}

#[test]
fn containers_are_looked_for_where_the_engines_file_says() {
    let dir = |engine: Engine, text: Option<&str>| usual(engine).state_dir(&files(text)).unwrap();
    let docker = Some("{\"data-root\": \"/srv/docker\"}");
    assert_eq!(dir(Engine::Docker, docker), Path::new("/srv/docker"));
    assert_eq!(dir(Engine::Docker, None), Path::new("/var/lib/docker"));
    let containerd = Some("version = 2\nstate = \"/run/other\"\n");
    assert_eq!(dir(Engine::Containerd, containerd), Path::new("/run/other"));
    assert_eq!(dir(Engine::Containerd, None), Path::new("/run/containerd"));
}

#[test]
fn removing_what_was_never_there_changes_nothing() {
    for (engine, now) in [
        (Engine::Docker, DAEMON),
        (Engine::Docker, "{\"features\": {\"cdi\": true}}"),
        (Engine::Containerd, CONTAINERD_2),
        (Engine::Crio, "[crio]\n"),
        (Engine::Podman, "[engine]\n"),
    ] {
        let decision = usual(engine)
            .remove(&files(Some(now)), Keep::Nothing)
            .unwrap();
        assert_eq!(decision.file, Action::Keep, "{engine:?} {now}");
    }
    for engine in ENGINES {
        let decision = usual(engine).remove(&files(None), Keep::Nothing).unwrap();
        assert_eq!(decision.file, Action::Keep, "{engine:?}");
    }
}

#[test]
fn only_ours_is_taken_out_of_a_file_that_was_changed_since() {
    let mut docker = configured(Engine::Docker, files(Some(DAEMON)));
    docker.now = docker.now.map(|now| now.replace("journald", "local"));
    let back = removed(Engine::Docker, docker);
    assert_eq!(back.now.unwrap(), DAEMON.replace("journald", "local"));

    let mut containerd = configured(Engine::Containerd, files(Some(CONTAINERD_2)));
    containerd.now = containerd
        .now
        .map(|now| now.replace("pause:3.9", "pause:3.10") + "\n[metrics]\naddress = \"\" # off\n");
    let back = removed(Engine::Containerd, containerd);
    let expected =
        CONTAINERD_2.replace("pause:3.9", "pause:3.10") + "\n[metrics]\naddress = \"\" # off\n";
    assert_eq!(back.now.unwrap(), expected);
}

#[test]
fn comments_at_the_end_of_a_file_stay_with_what_they_are_about() {
    let old = "version = 2\n[grpc]\n  address = \"x\"\n  # uid = 0\n\n# the end";
    let new = text(Engine::Containerd, Some(old));
    assert!(new.starts_with(&format!("{old}\n")), "{new}");
    let mut files = configured(Engine::Containerd, files_of(old));
    files.now = files.now.map(|now| format!("# mine\n{now}"));
    let back = removed(Engine::Containerd, files).now.unwrap();
    assert_eq!(back, format!("# mine\n{old}\n"));
}

#[test]
fn what_somebody_else_added_to_a_file_that_we_made_stays() {
    let cases = [
        (
            Engine::Docker,
            "\"features\": {",
            "\"debug\": true,\n  \"features\": {",
        ),
        (
            Engine::Docker,
            "\"cdi\": true",
            "\"cdi\": true,\n    \"x\": true",
        ),
        (
            Engine::Containerd,
            "version = 2\n",
            "version = 2\nroot = \"/r\"\n",
        ),
        (
            Engine::Crio,
            "[crio.",
            "[crio.image]\npause_image = \"x\"\n[crio.",
        ),
        (
            Engine::Podman,
            "[engine]\n",
            "[engine]\nevents_logger = \"file\"\n",
        ),
        (Engine::Nomad, "plugin", "datacenter = \"x\"\nplugin"),
    ];
    let expected = [
        Some("{\n  \"debug\": true\n}\n"),
        Some("{\n  \"features\": {\n    \"x\": true\n  }\n}\n"),
        Some("version = 2\nroot = \"/r\"\n"),
        Some("[crio.image]\npause_image = \"x\"\n"),
        Some("[engine]\nevents_logger = \"file\"\n"),
        None,
    ];
    for ((engine, from, to), expected) in cases.into_iter().zip(expected) {
        let mut files = configured(engine, files(None));
        files.now = files.now.map(|now| now.replacen(from, to, 1));
        match expected {
            Some(expected) => {
                assert_eq!(
                    removed(engine, files).now.as_deref(),
                    Some(expected),
                    "{engine:?}"
                );
            }
            // What is not told from ours is left to people.
            None => assert!(
                usual(engine).remove(&files, Keep::Nothing).is_err(),
                "{engine:?}"
            ),
        }
    }
}

#[test]
fn a_file_that_was_there_without_a_backup_is_given_back_to_the_byte() {
    let texts = [
        "",
        "# nothing yet\n",
        "[crio.nri]\nenable_nri = false # for now\n",
        "[crio.nri]\nenable_nri = true\n",
        "[crio.image]\npause_image = \"x\"\n",
    ];
    for text in texts {
        let setup = Setup::named(Engine::Crio, "/etc/crio/crio.conf".into());
        let decision = setup
            .clone()
            .with_nri(true)
            .configure(&files_of(text))
            .unwrap();
        let first = after(files_of(text), decision);
        let now = first.now.clone().unwrap();
        assert!(now.contains("enable_nri = true"), "{now}");
        let again = setup.clone().with_nri(true).configure(&first).unwrap();
        assert_eq!(again.file, Action::Keep, "{now}");
        let decision = setup.remove(&first, Keep::Nothing).unwrap();
        assert_eq!(after(first, decision).now.as_deref(), Some(text));
    }
    let text = "version = 3\n";
    let file = "/srv/etc/containerd/config-v3.toml.d/1.toml";
    let setup = Setup::named(Engine::Containerd, file.into());
    let main = "version = 3\nimports = [\"/srv/etc/containerd/config-v3.toml.d/*.toml\"]\n";
    let mut files = files_of(text);
    files.others = vec![other("/srv/etc/containerd/config.toml", main)];
    let decision = setup.clone().with_nri(true).configure(&files).unwrap();
    let first = after(files, decision);
    let decision = setup.remove(&first, Keep::Nothing).unwrap();
    assert_eq!(after(first, decision).now.as_deref(), Some(text));
}

#[test]
fn a_file_of_nomad_that_somebody_else_wrote_is_left_with_a_word_on_it() {
    let text =
        "plugin \"docker\" {\n  config {\n    allow_runtimes = [\"runc\", \"onload\"]\n  }\n}\n";
    let setup = Setup::named(Engine::Nomad, "/etc/nomad.d/nomad.hcl".into());
    let decision = setup.remove(&files_of(text), Keep::Nothing).unwrap();
    assert_eq!(decision.file, Action::Keep);
    assert_eq!(decision.warnings.len(), 1);
    assert!(decision.warnings[0].contains("remove \"onload\" from allow_runtimes"));
    // One that does not name it is nobody's business.
    let other = text.replace(", \"onload\"", "");
    let decision = setup.remove(&files_of(&other), Keep::Nothing).unwrap();
    assert_eq!(
        (decision.file, decision.warnings),
        (Action::Keep, Vec::new())
    );
}

#[test]
fn a_setting_of_the_operator_is_given_back_and_not_taken_away() {
    let old = "{\"features\":{\"cdi\":true},\"x\":1}";
    let mut files = configured(Engine::Docker, files(Some(old)));
    files.now = files.now.map(|now| now.replace("\"x\":1", "\"x\":2"));
    let back = removed(Engine::Docker, files).now.unwrap();
    assert_eq!(back, "{\"features\":{\"cdi\":true},\"x\":2}");

    let old = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  enable_cdi = true\n";
    let mut files = configured(Engine::Containerd, files_of(old));
    files.now = files.now.map(|now| format!("# mine\n{now}"));
    let back = removed(Engine::Containerd, files).now.unwrap();
    assert_eq!(back, format!("# mine\n{old}"));
}

pub(crate) fn files_of(now: &str) -> Files {
    files(Some(now))
}

#[test]
fn the_backup_is_what_was_there_before_us_and_never_holds_ours() {
    let first = configured(Engine::Docker, files(Some("{}")));
    assert_eq!(first.before.as_deref(), Some("{}"));
    // Somebody takes CDI out and adds something; ours is put back, the backup stays.
    let mut changed = first.clone();
    changed.now = changed
        .now
        .map(|now| now.replace("\"cdi\": true", "\"x\": true"));
    let second = configured(Engine::Docker, changed);
    assert_eq!(second.before.as_deref(), Some("{}"));
    // Somebody replaces the file; that is what is kept now.
    let mut replaced = first.clone();
    replaced.now = Some("{\"new\":1}".to_owned());
    let third = configured(Engine::Docker, replaced);
    assert_eq!(third.before.as_deref(), Some("{\"new\":1}"));
    // Somebody removes it; the backup says that there was none.
    let gone = Files { now: None, ..first };
    assert_eq!(
        configured(Engine::Docker, gone).before.as_deref(),
        Some(NO_FILE)
    );
}

#[test]
fn without_a_backup_the_runtime_goes_and_cdi_stays_as_somebody_set_it() {
    let own = "{\n  \"features\": {\"cdi\": true},\n  \"runtimes\": {\"onload\": {\"path\": \"/usr/bin/onload-container-runtime\"}}\n}\n";
    let back = removed(Engine::Docker, files_of(own)).now.unwrap();
    assert_eq!(back, "{\n  \"features\": {\"cdi\": true}\n}\n");

    let cri =
        "version = 2\n\n[plugins.\"io.containerd.grpc.v1.cri\"]\nenable_cdi = true # for all\n";
    let own = format!(
        "{cri}\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.onload.options]\nBinaryName = \"/usr/bin/onload-container-runtime\"\n"
    );
    assert_eq!(
        removed(Engine::Containerd, files_of(&own)).now.unwrap(),
        cri
    );
}

#[test]
fn an_unusual_file_is_left_alone() {
    let cases: [(Engine, &str, &str); 20] = [
        (Engine::Docker, "[]", "expected an object"),
        (Engine::Docker, "{\"a\":1", "EOF"),
        (Engine::Docker, "{\"a\":1,\"a\":2}", "is there twice"),
        (
            Engine::Docker,
            "{\"features\":{\"cdi\":true,\"cdi\":false}}",
            "is there twice",
        ),
        (Engine::Docker, "{\"features\":[]}", "expected an object"),
        (
            Engine::Docker,
            "{\"features\":{\"cdi\":\"yes\"}}",
            "features.cdi is not true or false",
        ),
        (Engine::Docker, "{\"Features\":{}}", "\"Features\""),
        (Engine::Docker, "{\"runtimes\":null}", "expected an object"),
        (
            Engine::Docker,
            "{\"runtimes\":{\"onload\":{\"path\":\"/opt/x\"}}}",
            "\"/opt/x\"",
        ),
        (Engine::Containerd, "version = 2\nversion = 2\n", "line 2"),
        (Engine::Containerd, "version = 2\r\n", "line ends"),
        (
            Engine::Containerd,
            "disabled_plugins = [\"cri\"]\n",
            "for ctr alone only write allow = [\"CLASS\"] under [annotations]",
        ),
        (
            Engine::Containerd,
            "version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n",
            "\"io.containerd.grpc.v1.cri\"",
        ),
        (Engine::Containerd, "version = 1\n", "write it in version 2"),
        (Engine::Containerd, "version = 5\n", "format version 5"),
        (
            Engine::Containerd,
            "version = \"2\"\n",
            "version is not a number",
        ),
        (
            Engine::Containerd,
            "version = 2\nplugins = { \"io.containerd.grpc.v1.cri\" = { enable_cdi = false } }\n",
            "plugins is not a section",
        ),
        (
            Engine::Containerd,
            "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.onload.options]\nBinaryName = \"/opt/x\"\n",
            "\"/opt/x\"",
        ),
        (
            Engine::Podman,
            "[engine.runtimes]\nonload = [\"/opt/x\"]\n",
            "/opt/x",
        ),
        (
            Engine::Nomad,
            "plugin \"docker\" {}\n",
            "onload-ctk did not write it",
        ),
    ];
    for (engine, text, reason) in cases {
        let message = refusal(engine, &files_of(text));
        assert!(message.contains(reason), "{engine:?} {text}: {message}");
    }
}

#[test]
fn a_file_beside_ours_that_decides_is_named() {
    let cri = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\nenable_cdi = true\n";
    let onload = "[crio.runtime.runtimes.onload]\nruntime_path = \"/opt/x\"\n";
    let cases = [
        (
            Engine::Containerd,
            Some("version = 2\n"),
            "/etc/containerd/conf.d/9.toml",
            cri,
        ),
        (
            Engine::Containerd,
            None,
            "/etc/containerd/conf.d/9.toml",
            "version = 3\n",
        ),
        (Engine::Crio, None, "/etc/crio/crio.conf", onload),
        (Engine::Crio, None, "/etc/crio/crio.conf.d/1", "[crio\n"),
        (
            Engine::Podman,
            None,
            "/etc/containers/containers.conf",
            "[engine.runtimes]\nonload = [\"/opt/x\"]\n",
        ),
        (
            Engine::Podman,
            None,
            "/etc/containers/containers.conf",
            "[engine\n",
        ),
        (
            Engine::Nomad,
            None,
            "/etc/nomad.d/nomad.hcl",
            "plugin \"docker\" {\n  config {\n    allow_privileged = true\n  }\n}\n",
        ),
        (
            Engine::Nomad,
            None,
            "/etc/nomad.d/n.json",
            "{\"plugin\": {\"docker\": {}}}",
        ),
        (Engine::Nomad, None, "/etc/nomad.d/n.json", "{"),
    ];
    for (engine, now, path, text) in cases {
        let mut files = files(now);
        files.others = vec![other(path, text)];
        let message = refusal(engine, &files);
        assert!(message.starts_with(path), "{engine:?}: {message}");
    }
}

#[test]
fn an_engine_that_looks_for_specifications_elsewhere_is_told_of() {
    let docker = "{\"cdi-spec-dirs\": [\"/etc/cdi\"]}";
    let containerd =
        "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\ncdi_spec_dirs = [\"/etc/cdi\"]\n";
    for (engine, text) in [(Engine::Docker, docker), (Engine::Containerd, containerd)] {
        let warnings = usual(engine).configure(&files_of(text)).unwrap().warnings;
        assert_eq!(warnings.len(), 1, "{engine:?}");
    }
    let fine = "{\"cdi-spec-dirs\": [\"/etc/cdi\", \"/run/cdi/\"]}";
    let decision = usual(Engine::Docker).configure(&files_of(fine)).unwrap();
    assert_eq!(decision.warnings, Vec::<String>::new());
}
