//! What can be asked for beside the usual: the default runtime, drop-ins of containerd, templates of
//! k3s, files at other places. Whole files, before and after, and the way back.

use std::path::Path;

use super::{Form, Setup};
use crate::engine::Engine;
use crate::file::{Action, Files, Keep};
use crate::ours::RUNTIME_PATH;
use crate::tests::{CONTAINERD_2, DAEMON, after, difference, files, other, usual};

const CONF_D: &str = "/etc/containerd/conf.d/99-onload-ctk.toml";
const MAIN: &str = "/etc/containerd/config.toml";
const K3S: &str = "/var/lib/rancher/k3s/agent/etc/containerd";

/// As "containerd config default" of 2.2 begins, with the cgroup driver of Kubernetes.
const CONTAINERD_3: &str = r#"version = 3
imports = ['/etc/containerd/conf.d/*.toml']

[plugins]
  [plugins.'io.containerd.cri.v1.runtime']
    enable_cdi = true

    [plugins.'io.containerd.cri.v1.runtime'.containerd]
      default_runtime_name = 'runc'

      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes]
        [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
          runtime_type = 'io.containerd.runc.v2'
          sandboxer = 'podsandbox'

          [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
            BinaryName = ''
            SystemdCgroup = true
"#;

fn with_default(setup: Setup) -> Setup {
    setup.with_default(true)
}

fn named(file: &str) -> Setup {
    Setup::named(Engine::Containerd, file.into())
}

fn drop_in() -> Setup {
    Setup::usual_drop_in(Engine::Containerd).unwrap()
}

fn configured(setup: &Setup, files: Files) -> Files {
    let decision = setup.configure(&files).unwrap();
    after(files, decision)
}

fn removed(setup: &Setup, files: Files, keep: Keep) -> Files {
    // --remove knows nothing of the flags before it.
    let setup = setup.clone().with_default(false);
    let decision = setup.remove(&files, keep).unwrap();
    after(files, decision)
}

fn refusal(setup: &Setup, files: &Files) -> String {
    format!("{:#}", setup.configure(files).unwrap_err())
}

/// Files beside a main file of containerd.
fn beside(main: &str) -> Files {
    Files {
        others: vec![other(MAIN, main)],
        ..Files::default()
    }
}

#[test]
fn each_engine_has_its_own_key_for_the_default_runtime() {
    let expected = [
        (
            Engine::Docker,
            "{\n  \"features\": {\n    \"cdi\": true\n  },\n  \"runtimes\": {\n    \"onload\": {\n      \"path\": \"/usr/bin/onload-container-runtime\"\n    }\n  },\n  \"default-runtime\": \"onload\"\n}\n",
        ),
        (
            Engine::Containerd,
            "version = 2\n\n[plugins.\"io.containerd.grpc.v1.cri\"]\nenable_cdi = true\n\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"onload\"\n\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.onload]\nruntime_type = \"io.containerd.runc.v2\"\npod_annotations = [\"onload.dev/*\"]\ncontainer_annotations = [\"onload.dev/*\"]\n\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.onload.options]\nBinaryName = \"/usr/bin/onload-container-runtime\"\n",
        ),
        (
            Engine::Crio,
            "# Written by \"onload-ctk runtime configure --runtime crio\"; --remove takes it away.\n# A RuntimeClass with the handler \"onload\" gives its pods what their annotations ask for.\n[crio.runtime]\ndefault_runtime = \"onload\"\n\n[crio.runtime.runtimes.onload]\nruntime_path = \"/usr/bin/onload-container-runtime\"\nruntime_type = \"oci\"\n",
        ),
        (
            Engine::Podman,
            "# Written by \"onload-ctk runtime configure --runtime podman\"; --remove takes it away.\n[engine]\nhooks_dir = [\"/usr/share/containers/oci/hooks.d\", \"/usr/share/onload-ctk/hooks.d/podman\"]\nruntime = \"onload\"\n\n[engine.runtimes]\nonload = [\"/usr/bin/onload-container-runtime\"]\n",
        ),
    ];
    for (engine, text) in expected {
        let setup = with_default(usual(engine));
        let first = configured(&setup, files(None));
        assert_eq!(first.now.as_deref(), Some(text), "{engine:?}");
        let second = setup.configure(&first).unwrap();
        assert_eq!(second.file, Action::Keep, "{engine:?}");
        assert_eq!(second.backup, Action::Keep, "{engine:?}");
        // Without the flag, what is set stays.
        assert_eq!(
            usual(engine).configure(&first).unwrap().file,
            Action::Keep,
            "{engine:?}"
        );
        let back = removed(&setup, first, Keep::Nothing);
        assert_eq!((back.now, back.before), (None, None), "{engine:?}");
    }
}

#[test]
fn another_default_runtime_is_replaced_in_place_and_given_back_to_the_byte() {
    let docker = DAEMON.replacen("{\n", "{\n    \"default-runtime\" : \"nvidia\",\n", 1);
    let texts = [
        (
            Engine::Docker,
            docker.as_str(),
            "    \"default-runtime\" : \"nvidia\",",
            "    \"default-runtime\" : \"onload\",",
        ),
        (
            Engine::Containerd,
            CONTAINERD_2,
            "      default_runtime_name = \"nvidia\"",
            "      default_runtime_name = \"onload\"",
        ),
        (
            Engine::Containerd,
            CONTAINERD_3,
            "      default_runtime_name = 'runc'",
            "      default_runtime_name = \"onload\"",
        ),
    ];
    for (engine, text, old, new) in texts {
        let setup = with_default(usual(engine));
        let first = configured(&setup, files(Some(text)));
        let (gone, added) = difference(text, first.now.as_deref().unwrap());
        assert!(gone.contains(&old.to_owned()), "{engine:?}: {gone:?}");
        assert!(added.contains(&new.to_owned()), "{engine:?}: {added:?}");
        let back = removed(&setup, first.clone(), Keep::Nothing);
        assert_eq!(back.now.as_deref(), Some(text), "{engine:?}");
        assert_eq!(back.before, None, "{engine:?}");

        // In two steps, with the first one's backup.
        let plain = configured(&usual(engine), files(Some(text)));
        let both = configured(&setup, plain);
        assert_eq!(both, first, "{engine:?}");

        // Changed by somebody since, elsewhere.
        let mut changed = first;
        changed.now = changed.now.map(|now| match engine {
            Engine::Docker => now.replace("\"journald\"", "\"local\""),
            _ => format!("# mine\n{now}"),
        });
        let back = removed(&setup, changed, Keep::Nothing).now.unwrap();
        let expected = match engine {
            Engine::Docker => text.replace("\"journald\"", "\"local\""),
            _ => format!("# mine\n{text}"),
        };
        assert_eq!(back, expected, "{engine:?}");
    }
}

#[test]
fn a_section_that_was_opened_for_the_default_goes_with_it() {
    let text = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.other]\nruntime_type = \"x\"\n";
    let setup = with_default(usual(Engine::Containerd));
    let mut first = configured(&setup, files(Some(text)));
    first.now = first.now.map(|now| format!("# mine\n{now}"));
    let back = removed(&setup, first, Keep::Nothing);
    assert_eq!(back.now.unwrap(), format!("# mine\n{text}"));
}

#[test]
fn a_default_that_was_changed_after_the_first_run_is_the_one_that_comes_back() {
    let text = "{\"default-runtime\":\"runc\",\"debug\":false}";
    let plain = configured(&usual(Engine::Docker), files(Some(text)));
    assert_eq!(plain.before.as_deref(), Some(text));
    let mut changed = plain;
    changed.now = changed.now.map(|now| now.replace("\"runc\"", "\"crun\""));
    let setup = with_default(usual(Engine::Docker));
    let second = configured(&setup, changed);
    let crun = text.replace("\"runc\"", "\"crun\"");
    assert_eq!(second.before.as_deref(), Some(crun.as_str()));
    let back = removed(&setup, second, Keep::Nothing);
    assert_eq!(back.now.as_deref(), Some(crun.as_str()));
}

#[test]
fn while_there_are_containers_the_default_goes_and_the_runtime_stays() {
    let texts = [
        (Engine::Docker, None),
        (Engine::Docker, Some("{\"default-runtime\": \"crun\"}")),
        (Engine::Containerd, Some(CONTAINERD_2)),
        (Engine::Containerd, None),
        (Engine::Crio, None),
        (Engine::Podman, None),
    ];
    for (engine, text) in texts {
        let setup = with_default(usual(engine));
        let first = configured(&setup, files(text));
        assert!(setup.is_default(first.now.as_deref().unwrap()).unwrap());
        assert_eq!(setup.default_setting(&first), None, "{engine:?}");
        let kept = removed(&setup, first, Keep::Runtime);
        let now = kept.now.as_deref().unwrap();
        assert!(!setup.is_default(now).unwrap(), "{engine:?}: {now}");
        assert!(now.contains(RUNTIME_PATH), "{engine:?}: {now}");
        let back = removed(&setup, kept, Keep::Nothing);
        assert_eq!(back.now.as_deref(), text, "{engine:?}");
        assert_eq!(back.before, None, "{engine:?}");
    }
}

#[test]
fn a_default_that_somebody_else_set_is_theirs() {
    let docker = usual(Engine::Docker);
    let theirs = configured(&docker, files(Some("{\"default-runtime\": \"onload\"}")));
    assert_eq!(docker.default_setting(&theirs), Some("default-runtime"));
    // Without a backup nobody knows who did it.
    let unknown = Files {
        before: None,
        ..theirs
    };
    assert_eq!(docker.default_setting(&unknown), Some("default-runtime"));
    let podman = usual(Engine::Podman);
    let mut files = configured(&podman, files(None));
    let path = "/etc/containers/containers.conf";
    files.others = vec![other(path, "[engine]\nruntime = \"onload\"\n")];
    assert_eq!(podman.default_setting(&files), Some("runtime"));
}

#[test]
fn a_default_that_cannot_be_set_is_refused_with_the_reason() {
    let cases = [
        (
            usual(Engine::Nomad),
            None,
            "Nomad has no default runtime, its docker driver takes docker's",
        ),
        (
            named(&format!("{K3S}/config-v3.toml.tmpl")),
            None,
            "write \"default-runtime: onload\" in config.yaml",
        ),
        (
            usual(Engine::Docker),
            Some("{\"default-runtime\": 1}"),
            "default-runtime is not text",
        ),
        (
            usual(Engine::Docker),
            Some("{\"Default-Runtime\": \"runc\"}"),
            "\"Default-Runtime\"",
        ),
        (
            usual(Engine::Containerd),
            Some("version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\ncontainerd = 1\n"),
            "containerd is not a section",
        ),
        (
            usual(Engine::Crio),
            Some("[crio.runtime]\ndefault_runtime = \"crun\"\n"),
            "it sets another default runtime, \"crun\"",
        ),
        (
            usual(Engine::Podman),
            Some("[engine]\nruntime = \"crun\"\n"),
            "it sets another default runtime, \"crun\"",
        ),
    ];
    for (setup, text, reason) in cases {
        let setup = with_default(setup);
        let message = refusal(&setup, &files(text));
        assert!(message.contains(reason), "{setup:?}: {message}");
    }
}

#[test]
fn a_later_file_with_another_default_is_told_of() {
    let cases = [
        (
            usual(Engine::Crio),
            files(None),
            "/etc/crio/crio.conf.d/99-z.conf",
            "[crio.runtime]\ndefault_runtime = \"crun\"\n",
        ),
        (
            usual(Engine::Podman),
            files(None),
            "/etc/containers/containers.conf.d/99-z.conf",
            "[engine]\nruntime = \"crun\"\n",
        ),
        (
            usual(Engine::Containerd),
            files(Some(
                "version = 3\nimports = [\"/etc/containerd/more.toml\"]\n",
            )),
            "/etc/containerd/more.toml",
            "[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = 'crun'\nruntimes.crun.runtime_type = 'x'\n",
        ),
        (
            drop_in(),
            beside(CONTAINERD_3),
            "/etc/containerd/conf.d/99-z.toml",
            "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = 'crun'\nruntimes.crun.runtime_type = 'x'\n",
        ),
    ];
    for (setup, mut files, path, text) in cases {
        let setup = with_default(setup);
        files.others.push(other(path, text));
        let warnings = setup.configure(&files).unwrap().warnings;
        assert_eq!(warnings.len(), 1, "{setup:?}: {warnings:?}");
        assert!(warnings[0].starts_with(path), "{warnings:?}");
        // An earlier file, or one that agrees, decides nothing.
        let last = files.others.len() - 1;
        files.others[last].path = path.replace("99-z", "10-a").into();
        files.others[last].text = text
            .replace("= 'crun'", "= 'onload'")
            .replace("= \"crun\"", "= \"onload\"");
        assert_eq!(setup.configure(&files).unwrap().warnings, [""; 0]);
    }
}

#[test]
fn containerd_2_gets_a_drop_in_like_runc_where_its_file_imports_one() {
    let setup = drop_in();
    assert!(setup.is_read_by(CONTAINERD_3));
    let expected = r#"# Written by "onload-ctk runtime configure --runtime containerd"; --remove takes it away.
version = 3

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.onload]
runtime_type = "io.containerd.runc.v2"
sandboxer = 'podsandbox'
pod_annotations = ["onload.dev/*"]
container_annotations = ["onload.dev/*"]

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.onload.options]
BinaryName = "/usr/bin/onload-container-runtime"
SystemdCgroup = true
"#;
    let first = configured(&setup, beside(CONTAINERD_3));
    assert_eq!(first.now.as_deref(), Some(expected));
    assert_eq!(first.before, None);
    let second = setup.configure(&first).unwrap();
    assert_eq!(
        (second.file, second.backup),
        (Action::Keep, Action::Keep),
        "a second run"
    );
    assert!(setup.registers(first.now.as_deref()).unwrap());
    let kept = removed(&setup, first.clone(), Keep::Runtime);
    assert_eq!(kept.now, first.now);
    assert_eq!(removed(&setup, first, Keep::Nothing).now, None);
}

#[test]
fn ours_has_the_cgroup_driver_that_containerd_merges_for_runc() {
    let runtimes = "plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes";
    let says = |value| format!("version = 3\n[{runtimes}.runc.options]\nSystemdCgroup = {value}\n");
    let kata = format!(
        "version = 3\n[{runtimes}.runc]\nruntime_type = 'io.containerd.kata.v2'\n[{runtimes}.runc.options]\nSystemdCgroup = true\n"
    );
    let off = CONTAINERD_3.replace("SystemdCgroup = true", "SystemdCgroup = false");
    let alone = says("true").replace("3\n", "3\nimports = ['/etc/containerd/conf.d/*.toml']\n");
    for (main, more, driver) in [
        (off.as_str(), [Some(says("true")), None], Some("true")),
        (
            &off,
            [Some(says("true")), Some(says("false"))],
            Some("false"),
        ),
        (
            &off,
            [Some("version = 3\n".to_owned()), None],
            Some("false"),
        ),
        (CONTAINERD_3, [Some(says("false")), None], Some("false")),
        (&alone, [None, None], Some("true")),
        (
            &alone,
            [Some(says("false")), Some(says("true"))],
            Some("true"),
        ),
        (&off, [Some(says("true")), Some(kata)], None),
    ] {
        let more = [
            "/etc/containerd/conf.d/1.toml",
            "/etc/containerd/conf.d/2.toml",
        ]
        .into_iter()
        .zip(more)
        .filter_map(|(path, text)| Some(other(path, &text?)));
        let more: Vec<_> = more.collect();
        let mut by_drop_in = beside(main);
        by_drop_in.others.extend(more.clone());
        let in_place = Files {
            now: Some(main.replace("conf.d/*", "*/x")),
            others: more,
            ..Files::default()
        };
        for (setup, files) in [(drop_in(), by_drop_in), (named(MAIN), in_place)] {
            let text = configured(&setup, files).now.unwrap();
            let ours = text.split("runtimes.onload.options]").nth(1).unwrap();
            let found = ours.split("SystemdCgroup = ").nth(1).map(str::trim);
            assert_eq!(found, driver, "{setup:?} of {main}: {text}");
            let is_like_runc = main.contains("sandboxer") && driver.is_some();
            let ours = text.split("runtimes.onload]").nth(1).unwrap();
            assert_eq!(ours.contains("sandboxer"), is_like_runc, "{text}");
        }
    }
}

#[test]
fn a_drop_in_of_containerd_sets_the_default_and_cdi_where_it_is_off() {
    let main = CONTAINERD_3.replace("enable_cdi = true", "enable_cdi = false");
    let setup = with_default(drop_in());
    let first = configured(&setup, beside(&main));
    let text = first.now.clone().unwrap();
    let plugin = "[plugins.\"io.containerd.cri.v1.runtime\"";
    for part in [
        format!("{plugin}]\nenable_cdi = true\n"),
        format!("{plugin}.containerd]\ndefault_runtime_name = \"onload\"\n"),
        "SystemdCgroup = true".to_owned(),
    ] {
        assert!(text.contains(&part), "no {part} in {text}");
    }
    assert_eq!(setup.configure(&first).unwrap().file, Action::Keep);
    let kept = removed(&setup, first.clone(), Keep::Runtime).now.unwrap();
    assert!(!kept.contains("default_runtime_name"), "{kept}");
    assert!(kept.contains(RUNTIME_PATH), "{kept}");
    assert_eq!(removed(&setup, first.clone(), Keep::Nothing).now, None);

    let mut changed = first;
    changed.now = changed.now.map(|now| now + "\n[debug]\nlevel = \"info\"\n");
    let back = removed(&setup, changed, Keep::Nothing).now.unwrap();
    assert!(back.contains("level = \"info\""), "{back}");
    for ours in ["onload", "enable_cdi", "default_runtime_name"] {
        assert!(!back.contains(ours), "{ours} in {back}");
    }
}

#[test]
fn a_file_of_containerd_that_merges_no_drop_in_is_edited_in_place() {
    let ours = format!(
        "{CONTAINERD_3}\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.onload]\n"
    );
    for main in [
        "version = 2\nimports = ['/etc/containerd/conf.d/*.toml']\n",
        "version = 3\n",
        "version = 3\nimports = ['/etc/containerd/conf.d/*.conf']\n",
        "version = 3\nimports = ['/etc/containerd/other.d/*.toml']\n",
        "version = 9\nimports = ['/etc/containerd/conf.d/*.toml']\n",
        "version = 3\nimports = [\n",
        "",
        &ours,
    ] {
        assert!(!drop_in().is_read_by(main), "{main}");
    }
    for main in [
        "version = 4\nimports = ['conf.d/*.toml']\n",
        "version = 3\nimports = ['/etc/containerd/conf.d/99-onload-ctk.toml']\n",
    ] {
        assert!(drop_in().is_read_by(main), "{main}");
        assert!(!usual(Engine::Containerd).is_read_by(main));
    }
}

#[test]
fn a_drop_in_that_nothing_would_read_or_merge_is_refused() {
    let cri = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.onload]\nruntime_type = 'x'\n";
    let mut decided = beside(CONTAINERD_3);
    decided
        .others
        .push(other("/etc/containerd/conf.d/10-x.toml", cri));
    let mut broken = beside(CONTAINERD_3);
    broken
        .others
        .push(other("/etc/containerd/conf.d/10-x.toml", "[a\n"));
    let mut foreign = beside(CONTAINERD_3);
    foreign.now = Some(format!(
        "{cri}[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.onload.options]\nBinaryName = '/opt/x'\n"
    ));
    let cases = [
        (files(None), format!("{MAIN} is not there")),
        (
            beside("version = 3\n"),
            format!("{MAIN} beside it: its \"imports\" does not name the drop-in"),
        ),
        (
            beside("version = 2\nimports = ['conf.d/*.toml']\n"),
            format!("{MAIN} beside it: it is of format version 2"),
        ),
        (
            beside(
                "version = 3\nimports = ['conf.d/*.toml']\ndisabled_plugins = ['io.containerd.cri.v1.runtime']\n",
            ),
            "turns the CRI plugin off".to_owned(),
        ),
        (beside("version = 9\n"), "format version 9".to_owned()),
        (
            decided,
            "/etc/containerd/conf.d/10-x.toml decides".to_owned(),
        ),
        (
            broken,
            "/etc/containerd/conf.d/10-x.toml beside it".to_owned(),
        ),
        (
            foreign,
            "not as /usr/bin/onload-container-runtime but as '/opt/x'".to_owned(),
        ),
    ];
    for (files, reason) in cases {
        let message = refusal(&drop_in(), &files);
        assert!(message.contains(&reason), "{reason}: {message}");
    }
}

#[test]
fn the_name_of_a_file_says_what_it_is_to_containerd() {
    let forms = [
        (MAIN, Form::Whole),
        (CONF_D, Form::DropIn),
        (
            "/var/snap/microk8s/current/args/containerd-template.toml",
            Form::Whole,
        ),
        (
            "/var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.d/99-onload-ctk.toml",
            Form::DropIn,
        ),
        (
            "/var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.tmpl",
            Form::Template,
        ),
    ];
    for (file, form) in forms {
        assert_eq!(named(file).form, form, "{file}");
    }
    let docker = Setup::named(Engine::Docker, "/etc/x.d/daemon.json".into());
    assert_eq!(docker.form, Form::Whole);
}

#[test]
fn a_template_of_k3s_is_all_that_k3s_writes_and_our_runtime_behind_it() {
    let cases = [
        ("config-v3.toml.tmpl", "io.containerd.cri.v1.runtime"),
        ("config.toml.tmpl", "io.containerd.grpc.v1.cri"),
    ];
    for (name, plugin) in cases {
        let setup = named(&format!("{K3S}/{name}"));
        let expected = format!(
            r#"{{{{ template "base" . }}}}

# onload-ctk: begin; "runtime configure --remove" takes it away
[plugins."{plugin}".containerd.runtimes.onload]
  runtime_type = "io.containerd.runc.v2"
  pod_annotations = ["onload.dev/*"]
  container_annotations = ["onload.dev/*"]

[plugins."{plugin}".containerd.runtimes.onload.options]
  BinaryName = "/usr/bin/onload-container-runtime"
  SystemdCgroup = {{{{ .SystemdCgroup }}}}
# onload-ctk: end
"#
        );
        let first = configured(&setup, files(None));
        assert_eq!(first.now.as_deref(), Some(expected.as_str()));
        let second = setup.configure(&first).unwrap();
        assert_eq!((second.file, second.backup), (Action::Keep, Action::Keep));
        assert!(setup.registers(first.now.as_deref()).unwrap());
        let back = removed(&setup, first, Keep::Nothing);
        assert_eq!((back.now, back.before), (None, None));
    }
}

#[test]
fn a_template_of_the_operator_is_kept_and_given_back_to_the_byte() {
    let setup = named(&format!("{K3S}/config-v3.toml.tmpl"));
    let texts = [
        "{{ template \"base\" . }}\n",
        "{{ template \"base\" . }}\n\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata]\n  runtime_type = \"io.containerd.kata.v2\"",
        "{{- /* all of it */ -}}\nversion = 3\n{{ if .IsRunningInUserNS }}disabled_plugins = []{{end}}\n",
        "",
    ];
    for text in texts {
        let first = configured(&setup, files(Some(text)));
        let now = first.now.clone().unwrap();
        assert!(now.starts_with(text), "{now}");
        assert!(now.ends_with("# onload-ctk: end\n"), "{now}");
        let kept = removed(&setup, first.clone(), Keep::Runtime);
        assert_eq!(kept.now, first.now);
        let back = removed(&setup, first.clone(), Keep::Nothing);
        assert_eq!(back.now.as_deref(), Some(text));
        assert_eq!(back.before, None);
        // Changed since.
        let mut changed = first;
        changed.now = changed.now.map(|now| format!("{now}\n# mine\n"));
        let back = removed(&setup, changed, Keep::Nothing).now.unwrap();
        assert!(back.starts_with(text) && back.ends_with("\n# mine\n"));
        assert!(!back.contains("onload-ctk"), "{back}");
    }
}

#[test]
fn a_template_with_a_runtime_of_our_name_or_half_a_block_is_left_alone() {
    let setup = named(&format!("{K3S}/config.toml.tmpl"));
    let cases = [
        (
            "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.onload]\n",
            "not as /usr/bin/onload-container-runtime",
        ),
        (
            "  [ plugins.'x'.containerd.runtimes.'onload'.options ]\n",
            "not as /usr/bin/onload-container-runtime",
        ),
        (
            "# onload-ctk: begin; \"runtime configure --remove\" takes it away\n",
            "it was edited",
        ),
    ];
    for (text, reason) in cases {
        let message = refusal(&setup, &files(Some(text)));
        assert!(message.contains(reason), "{text}: {message}");
    }
    // A runtime whose name begins as ours does is another one.
    let other = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.onload-2]\n";
    assert!(setup.configure(&files(Some(other))).is_ok());
}

#[test]
fn a_file_that_is_written_anew_at_each_start_is_refused_with_the_one_to_name() {
    let cases = [
        (format!("{K3S}/config.toml"), "config-v3.toml.tmpl"),
        (
            "/var/snap/microk8s/current/args/containerd.toml".to_owned(),
            "containerd-template.toml",
        ),
    ];
    for (file, instead) in cases {
        let message = refusal(&named(&file), &files(Some("version = 2\n")));
        assert!(message.contains(instead), "{message}");
    }
}

#[test]
fn containers_are_looked_for_where_the_program_of_a_named_file_keeps_them() {
    let dir = |setup: &Setup, files: &Files| setup.state_dir(files).unwrap();
    let k3s = named(&format!("{K3S}/config-v3.toml.tmpl"));
    assert_eq!(
        dir(&k3s, &files(Some("{{ template \"base\" . }}\n"))),
        Path::new("/run/k3s/containerd")
    );
    let docker = Setup::named(Engine::Docker, "/home/u/.config/docker/daemon.json".into());
    assert_eq!(
        dir(&docker, &files(None)),
        Path::new("/home/u/.local/share/docker")
    );
    let moved = files(Some("{\"data-root\": \"/srv/d\"}"));
    assert_eq!(dir(&docker, &moved), Path::new("/srv/d"));
    let main = "version = 3\nstate = \"/run/other\"\n";
    assert_eq!(dir(&drop_in(), &beside(main)), Path::new("/run/other"));
    assert_eq!(
        dir(&drop_in(), &beside(CONTAINERD_3)),
        Path::new("/run/containerd")
    );
}

#[test]
fn each_file_says_how_its_engine_is_restarted() {
    let cases = [
        (usual(Engine::Docker), Some("systemctl restart docker")),
        (usual(Engine::Podman), None),
        (drop_in(), Some("systemctl restart containerd")),
        (
            named(&format!("{K3S}/config-v3.toml.tmpl")),
            Some("systemctl restart k3s (on an agent: k3s-agent)"),
        ),
        (
            Setup::named(Engine::Docker, "/home/u/.config/docker/daemon.json".into()),
            Some("systemctl --user restart docker"),
        ),
        (
            named("/var/snap/microk8s/current/args/containerd-template.toml"),
            Some("snap restart microk8s.daemon-containerd"),
        ),
    ];
    for (setup, how) in cases {
        assert_eq!(setup.restart().as_deref(), how, "{setup:?}");
    }
}

fn with_nri(setup: Setup) -> Setup {
    setup.with_nri(true)
}

#[test]
fn nri_is_turned_on_where_it_is_off_and_given_back_to_the_byte() {
    let section = "\n[plugins.\"io.containerd.nri.v1.nri\"]\n";
    let off = format!("{CONTAINERD_2}{section}# not yet\ndisable = true # off\n");
    for before in [CONTAINERD_2, off.as_str()] {
        let setup = with_nri(usual(Engine::Containerd));
        let first = configured(&setup, files(Some(before)));
        let text = first.now.clone().unwrap();
        assert!(
            text.contains("disable = false") && !text.contains("disable = true"),
            "{text}"
        );
        assert_eq!(setup.configure(&first).unwrap().file, Action::Keep);
        // Without the flag, what is set stays.
        let plain = usual(Engine::Containerd);
        assert_eq!(plain.configure(&first).unwrap().file, Action::Keep);
        let back = setup
            .clone()
            .with_nri(false)
            .remove(&first, Keep::Nothing)
            .unwrap();
        assert_eq!(back.file, Action::Write(before.to_owned()));
        // Somebody else's line does not keep ours in the file.
        let changed = Files {
            now: Some(format!("{text}\n[metrics]\naddress = \"127.0.0.1:1338\"\n")),
            ..first
        };
        let back = plain.remove(&changed, Keep::Nothing).unwrap();
        let Action::Write(back) = back.file else {
            panic!("{back:?}");
        };
        assert!(
            !back.contains("disable = false") && back.contains("[metrics]"),
            "{back}"
        );
        assert_eq!(back.contains("disable = true"), before == off, "{back}");
    }
}

/// As `containerd config default` of 2.2 and later prints it.
#[test]
fn a_file_that_names_the_validator_has_it_turned_on_too() {
    let section = "[plugins.'io.containerd.nri.v1.nri']\ndisable = false\n";
    let validator = "[plugins.'io.containerd.nri.v1.nri'.default_validator]\nenable = false\nrequired_plugins = []\n";
    let before = format!("{CONTAINERD_3}\n{section}\n{validator}");
    let setup = with_nri(usual(Engine::Containerd));
    let first = configured(&setup, files(Some(&before)));
    let text = first.now.clone().unwrap();
    let on = validator.replace("false", "true");
    assert!(text.contains(&on), "{text}");
    assert_eq!(setup.configure(&first).unwrap().file, Action::Keep);
    assert_eq!(
        removed(&usual(Engine::Containerd), first, Keep::Nothing).now,
        Some(before)
    );
}

#[test]
fn a_drop_in_turns_nri_on_and_lets_pods_name_plugins_that_they_need() {
    let off = format!("{CONTAINERD_3}\n[plugins.'io.containerd.nri.v1.nri']\ndisable = true\n");
    let on = off.replace("disable = true", "disable = false");
    let validator = "[plugins.\"io.containerd.nri.v1.nri\".default_validator]\nenable = true\n";
    for (main, is_repeated) in [(CONTAINERD_3, true), (&off, true), (&on, false)] {
        let setup = with_nri(drop_in());
        let first = configured(&setup, beside(main));
        let text = first.now.clone().unwrap();
        assert!(text.contains(validator), "{text}");
        assert_eq!(text.contains("disable = false"), is_repeated, "{text}");
        assert_eq!(setup.configure(&first).unwrap().file, Action::Keep);
        let back = removed(&drop_in(), first, Keep::Nothing);
        assert_eq!(back.now, None);
    }
}

#[test]
fn nri_that_containerd_does_not_load_is_refused_with_the_line_that_says_so() {
    let disabled = |text| format!("disabled_plugins = [\"io.containerd.nri.v1.nri\"]\n{text}");
    let setup = with_nri(usual(Engine::Containerd));
    let refused = refusal(&setup, &files(Some(&disabled(CONTAINERD_2))));
    assert!(
        refused.contains("take \"io.containerd.nri.v1.nri\" out of it"),
        "{refused}"
    );
    let refused = refusal(&with_nri(drop_in()), &beside(&disabled(CONTAINERD_3)));
    assert!(
        refused.contains("disabled_plugins turns NRI off"),
        "{refused}"
    );
}

#[test]
fn cri_o_is_told_to_have_nri_on() {
    let setup = with_nri(usual(Engine::Crio));
    let first = configured(&setup, files(None));
    let text = first.now.clone().unwrap();
    assert!(text.ends_with("[crio.nri]\nenable_nri = true\n"), "{text}");
    let back = removed(&usual(Engine::Crio), first, Keep::Nothing);
    assert_eq!(back.now, None);
    let held = configured(&setup, files(None));
    let left = removed(&usual(Engine::Crio), held, Keep::Runtime)
        .now
        .unwrap();
    assert!(
        !left.contains("nri") && left.contains("runtimes.onload"),
        "{left}"
    );
}

#[test]
fn an_engine_without_nri_in_its_file_is_refused() {
    let template = with_nri(named(
        "/var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl",
    ));
    for setup in [
        template,
        with_nri(usual(Engine::Podman)),
        with_nri(usual(Engine::Docker)),
    ] {
        let refused = refusal(&setup, &files(None));
        assert!(refused.contains("no setting of NRI"), "{refused}");
    }
}
