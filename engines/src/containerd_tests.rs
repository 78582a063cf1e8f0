//! containerd's own files, and the check by which its CRI plugin refuses one: the default runtime has to be
//! registered. What each file is stands in `tests/containerd/README.md`.

use crate::containerd::{DEFAULT, Layout};
use crate::engine::Engine;
use crate::file::{Action, Files, Keep};
use crate::setup::Setup;
use crate::tests::{after, files, other};
use crate::toml::{get, parse};

const DEBIAN: &str = include_str!("../../tests/containerd/debian.toml");
const FILES: [Option<&str>; 7] = [
    Some(DEBIAN),
    Some(include_str!("../../tests/containerd/default-1.6.toml")),
    Some(include_str!("../../tests/containerd/default-1.7.toml")),
    Some(include_str!("../../tests/containerd/default-2.0.toml")),
    Some(include_str!("../../tests/containerd/default-2.1.toml")),
    Some("version = 3\n"),
    None,
];
const CRI: &str = "plugins.\"io.containerd.grpc.v1.cri\"";

fn setup() -> Setup {
    Setup::usual(Engine::Containerd)
}

fn configured(setup: &Setup, files: Files) -> Files {
    let decision = setup.configure(&files).unwrap();
    after(files, decision)
}

fn removed(files: Files, keep: Keep) -> Files {
    let decision = setup().remove(&files, keep).unwrap();
    after(files, decision)
}

/// A file of Debian that was configured, and to which somebody added something since.
fn debian_with(more: &str) -> Files {
    let mut files = configured(&setup(), files(Some(DEBIAN)));
    files.now = files.now.map(|now| format!("{now}{more}"));
    files
}

/// Whether containerd takes a text, as `ValidatePluginConfig` says it: to containerd 1 a list of runtimes
/// replaces the one that it has by itself.
fn is_taken(text: &str) -> bool {
    let document = parse(text).unwrap();
    let layout = Layout::of(&document).unwrap();
    let default = get(&document, &layout.default_name());
    let default = default.map_or("runc", |name| name.as_str().unwrap());
    let [.., runtimes, _] = layout.runtime("");
    let list = get(
        &document,
        &[&layout.cri()[..], &["containerd", runtimes]].concat(),
    );
    let is_built_in = list.is_none() || layout.version > 2;
    default == "runc" && is_built_in || get(&document, &layout.runtime(default)).is_some()
}

#[test]
fn containerd_takes_what_is_made_of_every_file_and_of_none() {
    for text in FILES {
        for set_default in [false, true] {
            let setup = setup().with_default(set_default);
            let first = configured(&setup, files(text));
            let now = first.now.as_deref().unwrap();
            assert!(is_taken(now), "{now}");
            assert_eq!(setup.configure(&first).unwrap().file, Action::Keep);
            let kept = removed(first.clone(), Keep::Runtime);
            assert!(is_taken(kept.now.as_deref().unwrap()), "{kept:?}");
            for files in [first, kept] {
                let back = removed(files, Keep::Nothing);
                assert_eq!((back.now.as_deref(), back.before), (text, None));
            }
        }
    }
}

#[test]
fn what_somebody_adds_meanwhile_is_all_that_a_removal_leaves() {
    let more = "\n[debug]\nlevel = \"info\"\n";
    for text in FILES.into_iter().flatten() {
        for set_default in [false, true] {
            let mut files = configured(&setup().with_default(set_default), files(Some(text)));
            files.now = files.now.map(|now| format!("# mine\n{now}"));
            let back = removed(files.clone(), Keep::Nothing);
            assert_eq!(back.now.unwrap(), format!("# mine\n{text}"));
            files.now = files
                .now
                .map(|now| now + &more.replace("debug", "plugins.'x'"));
            assert!(
                removed(files, Keep::Nothing)
                    .now
                    .unwrap()
                    .ends_with("level = \"info\"\n")
            );
        }
    }
    let mut files = configured(&setup(), files(None));
    files.now = files.now.map(|now| now + more);
    let back = removed(files, Keep::Nothing).now.unwrap();
    assert_eq!(back, format!("version = 2\n{more}"));
}

#[test]
fn containerds_own_runtime_is_written_with_nothing_that_differs_from_it() {
    let now = configured(&setup(), files(Some(DEBIAN))).now.unwrap();
    let document = parse(&now).unwrap();
    let layout = Layout::of(&document).unwrap();
    let runc = get(&document, &layout.runtime("runc")).unwrap();
    assert_eq!(runc.as_table_like().unwrap().len(), 1, "{now}");
}

#[test]
fn a_list_of_runtimes_without_the_default_one_gets_it() {
    let kata =
        format!("[{CRI}.containerd.runtimes.kata]\nruntime_type = \"io.containerd.kata.v2\"\n");
    let text = format!("version = 2\n{kata}");
    let now = configured(&setup(), files(Some(&text))).now.unwrap();
    assert!(is_taken(&now), "{now}");
    // Its own default does without runc.
    let text = format!("version = 2\n[{CRI}.containerd]\n{DEFAULT} = \"kata\"\n{kata}");
    let now = configured(&setup(), files(Some(&text))).now.unwrap();
    assert!(is_taken(&now) && !now.contains("runtimes.runc"), "{now}");
}

#[test]
fn what_others_add_to_tables_that_we_made_survives_a_removal() {
    let runtimes = format!("{CRI}.containerd.runtimes");
    let kata = format!("\n[{runtimes}.kata]\nruntime_type = \"io.containerd.kata.v2\"\n");
    let systemd = format!("\n[{runtimes}.runc.options]\nSystemdCgroup = true\n");
    for more in [&kata, &systemd] {
        let back = removed(debian_with(more), Keep::Nothing).now.unwrap();
        assert!(is_taken(&back), "{back}");
        assert!(back.contains(more.trim_start()), "{back}");
        assert!(back.contains(&format!("[{runtimes}.runc]")), "{back}");
        assert!(!back.contains("onload"), "{back}");
    }
    let mut files = configured(&setup(), files(None));
    let image = "enable_cdi = true\nsandbox_image = \"x\"";
    files.now = files.now.map(|now| now.replace("enable_cdi = true", image));
    let back = removed(files, Keep::Nothing).now.unwrap();
    assert_eq!(
        back,
        format!("version = 2\n\n[{CRI}]\nsandbox_image = \"x\"\n")
    );
}

#[test]
fn the_default_of_before_that_is_gone_meanwhile_does_not_come_back() {
    let nvidia =
        format!("\n[{CRI}.containerd.runtimes.nvidia]\nruntime_type = \"io.containerd.runc.v2\"\n");
    let text = format!("version = 2\n\n[{CRI}.containerd]\n{DEFAULT} = \"nvidia\"\n{nvidia}");
    for instead in ["", &nvidia.replace("nvidia", "kata")] {
        let setup = setup().with_default(true);
        let mut files = configured(&setup, files(Some(&text)));
        files.now = files.now.map(|now| now.replace(&nvidia, instead));
        let back = removed(files, Keep::Nothing).now.unwrap();
        assert!(is_taken(&back) && !back.contains("nvidia"), "{back}");
        assert!(back.contains(instead), "{back}");
    }
}

#[test]
fn a_default_that_no_file_registers_is_refused() {
    let text = |version, plugin: &str| {
        format!("version = {version}\n[plugins.'{plugin}'.containerd]\n{DEFAULT} = 'gone'\n")
    };
    let [second, third] = [
        text(2, "io.containerd.grpc.v1.cri"),
        text(3, "io.containerd.cri.v1.runtime"),
    ];
    let main = format!("imports = ['/etc/containerd/conf.d/*.toml']\n{third}");
    let drop_in = Setup::usual_drop_in(Engine::Containerd).unwrap();
    let beside = Files {
        others: vec![other("/etc/containerd/config.toml", &main)],
        ..Files::default()
    };
    for (setup, files) in [
        (setup(), files(Some(&second))),
        (setup(), files(Some(&third))),
        (drop_in.clone(), beside.clone()),
        (drop_in.clone().with_default(true), beside.clone()),
    ] {
        let refusal = setup.configure(&files).unwrap_err().to_string();
        assert!(
            refusal.contains("\"gone\", and no runtime of that name"),
            "{refusal}"
        );
    }
    // Ours takes its place in the file itself, and another file may register it.
    assert!(
        setup()
            .with_default(true)
            .configure(&files(Some(&third)))
            .is_ok()
    );
    let mut registered = beside;
    let gone = third.replace(".containerd]", ".containerd.runtimes.gone]");
    let gone = gone.replace(&format!("{DEFAULT} = 'gone'"), "runtime_type = 'x'");
    registered
        .others
        .push(other("/etc/containerd/conf.d/1.toml", &gone));
    assert!(drop_in.configure(&registered).is_ok());
}
