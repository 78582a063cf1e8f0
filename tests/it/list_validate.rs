//! `cdi list` and `cdi validate`: specifications of whoever wrote them.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::hosts::{vfio, x3};
use crate::common::{Commands, Run, Tree, each, on, run, text};
use serde_json::json;

fn spec(kind: &str, devices: &[&str]) -> String {
    let devices: Vec<_> = devices
        .iter()
        .map(|name| json!({"name": name, "containerEdits": {"env": ["A=b"]}}))
        .collect();
    json!({"cdiVersion": "0.5.0", "kind": kind, "devices": devices}).to_string()
}

#[test]
fn every_device_that_an_engine_sees_is_listed_by_file() {
    let tree = x3();
    tree.generate();
    tree.file("/etc/cdi/nvidia.com-gpu.json", spec("nvidia.com/gpu", &["0", "1"]));
    let table = tree.run(&["cdi", "list"]).done().stdout;
    let gpu = tree.path("/etc/cdi/nvidia.com-gpu.json");
    assert!(table.contains(&format!("{}\n  nvidia.com/gpu=0\n", gpu.display())), "{table}");
    assert!(table.contains("  onload.dev/nic=all\n"), "{table}");
    let listing = tree.run(&["cdi", "list", "--format", "json"]).done().json();
    let names = each(&listing["devices"], "name");
    assert!(names.contains(&"nvidia.com/gpu=1".to_owned()), "{names:?}");
    assert!(names.contains(&"onload.dev/profile=cloud".to_owned()), "{names:?}");
    for list in ["shadowed", "conflicts", "errors"] {
        assert_eq!(listing[list], json!([]), "{list}");
    }
}

#[test]
fn nothing_to_list_is_said_so() {
    let run = Tree::new().run(&["cdi", "list"]).done();
    assert_eq!(run.stdout, "");
    assert!(run.stderr.starts_with("no CDI devices in "), "{}", run.stderr);
    assert!(run.stderr.contains("/var/run/cdi; \"onload-ctk cdi generate\""), "{}", run.stderr);
}

#[test]
fn a_directory_that_is_named_and_not_there_is_an_error() {
    for command in
        [&["cdi", "list"][..], &["cdi", "show", "a.com/b=c"], &["cdi", "inject", "a.com/b=c"]]
    {
        let args = [command, &["--spec-dir", "/nonexistent"]].concat();
        let message = Tree::new().run(&args).refused();
        assert!(message.contains("/nonexistent is no directory"), "{command:?}: {message}");
    }
}

#[test]
fn what_a_container_gets_is_shown_with_the_file_that_it_comes_from() {
    let tree = x3();
    tree.generate();
    let shown = tree.run(&["cdi", "show", "onload.dev/nic=all", "onload.dev/profile=cloud"]).done();
    let file = tree.path("/var/run/cdi/onload.dev-nic.json");
    let start = format!("{}\n  onload.dev/nic=all\n", file.display());
    assert!(shown.stdout.starts_with(&start), "{}", shown.stdout);
    for line in [
        "device nodes\n  /dev/onload        rw\n",
        "\n  LD_PRELOAD=libonload.so\n",
        "  onload.dev/profile=cloud\n",
    ] {
        assert!(shown.stdout.contains(line), "{line:?} in {}", shown.stdout);
    }
    let library =
        shown.stdout.lines().find(|line| line.contains("/usr/lib64/ ")).unwrap_or_default();
    assert!(library.contains("ro,nosuid,nodev,bind: "), "{library:?}");
    assert!(library.contains(" libonload.so"), "{library:?}");
    let mut hooks = shown.stdout.lines().skip_while(|line| *line != "hooks");
    let hook = hooks.nth(1).unwrap_or_default();
    assert!(hook.ends_with("  stage createRuntime"), "{hook:?}");
}

#[test]
fn a_file_that_is_mounted_from_another_directory_is_shown_with_its_whole_path_there() {
    let tree = Tree::new();
    let mount = |host: &str, container: &str| serde_json::json!({"hostPath": host, "containerPath": container, "options": ["ro"]});
    let mounts = [
        mount("/opt/a/one.so", "/usr/lib/one.so"),
        mount("/opt/b/two.so", "/usr/lib/two.so"),
        mount("/opt/b/three.so", "/usr/lib/three.so"),
        mount("/opt/b/two.so", "/usr/lib/two.so"),
        mount("/opt/c/four", "/usr/bin/4"),
    ];
    let spec = serde_json::json!({
        "cdiVersion": "0.6.0",
        "kind": "a.com/b",
        "devices": [{"name": "c", "containerEdits": {"mounts": mounts}}],
    });
    tree.file("/etc/cdi/a.json", spec.to_string());
    let shown = tree.run(&["cdi", "show", "a.com/b=c"]).done().stdout;
    let lines: Vec<String> = shown
        .lines()
        .skip_while(|line| *line != "mounts")
        .skip(1)
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let expected = [
        "/usr/lib/one.so from /opt/a/one.so ro",
        "/usr/lib/ from /opt/b ro: three.so two.so",
        "/usr/bin/4 from /opt/c/four ro",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn what_is_shown_as_json_is_a_specification_of_these_devices_alone() {
    let tree = x3();
    tree.generate();
    let args =
        ["cdi", "show", "onload.dev/nic=loopback", "onload.dev/nic=loopback", "--format", "json"];
    let shown = tree.run(&args).done().stdout;
    let written: serde_json::Value =
        serde_json::from_slice(&fs::read(tree.path("/var/run/cdi/onload.dev-nic.json")).unwrap())
            .unwrap();
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(each(&shown["devices"], "name"), ["loopback"]);
    for key in ["cdiVersion", "kind", "containerEdits"] {
        assert_eq!(shown[key], written[key], "{key}");
    }
}

#[test]
fn a_name_that_is_misspelled_is_answered_with_the_nearest_one_and_where_it_was_looked_for() {
    let tree = x3();
    tree.generate();
    for command in [["cdi", "show"], ["cdi", "inject"]] {
        let message = tree.run(&[command[0], command[1], "onload.dev/nic=lopback"]).refused();
        assert!(message.contains("did you mean onload.dev/nic=loopback?"), "{message}");
        assert!(message.contains("/var/run/cdi)"), "{message}");
        let message = tree.run(&[command[0], command[1], "onload.dev/nik=all"]).refused();
        assert!(message.contains("did you mean onload.dev/nic=all?"), "{message}");
        // Another kind is another product, not another spelling.
        for name in ["vendor.com/gpu=0", "onload.dev/vfio=all"] {
            let message = tree.run(&[command[0], command[1], name]).refused();
            assert!(!message.contains("did you mean"), "{message}");
        }
    }
}

#[test]
fn a_later_directory_shadows_and_two_files_of_one_directory_conflict() {
    let tree = Tree::new();
    tree.file("/etc/cdi/a.json", spec("a.com/b", &["low", "both"]));
    tree.file("/var/run/cdi/a.json", spec("a.com/b", &["both", "twice"]));
    tree.file("/var/run/cdi/b.yaml", spec("a.com/b", &["twice", "high"]));
    let listing = tree.run(&["cdi", "list", "--format", "json"]).done().json();
    let mut names = each(&listing["devices"], "name");
    names.sort();
    assert_eq!(names, ["a.com/b=both", "a.com/b=high", "a.com/b=low"]);
    assert_eq!(each(&listing["shadowed"], "name"), ["a.com/b=both"]);
    assert!(text(&listing["shadowed"][0]["by"]).ends_with("/var/run/cdi/a.json"));
    assert_eq!(each(&listing["conflicts"], "name"), ["a.com/b=twice"]);
    assert_eq!(listing["conflicts"][0]["files"].as_array().unwrap().len(), 2);
    let table = tree.run(&["cdi", "list"]).done().stdout;
    assert!(table.contains("a.com/b=both of "), "{table}");
    assert!(table.contains("a.com/b=twice is not offered, because it is in "), "{table}");
}

#[test]
fn one_bad_file_hurts_nobody_else() {
    let tree = Tree::new();
    tree.file("/etc/cdi/good.json", spec("a.com/b", &["x"]));
    tree.file("/etc/cdi/bad.json", "{");
    tree.file("/etc/cdi/ignored.yml", "{");
    tree.file("/etc/cdi/below/deep.json", spec("a.com/deep", &["x"]));
    tree.link("/etc/cdi/dangling.json", "nowhere.json");
    tree.link("/etc/cdi/loop.json", "loop.json");
    let listed = tree.run(&["cdi", "list", "--format", "json"]).done();
    let listing = listed.json();
    assert_eq!(each(&listing["devices"], "name"), ["a.com/b=x"]);
    let files = each(&listing["errors"], "file");
    let named: Vec<&str> = files.iter().map(|path| path.rsplit('/').next().unwrap()).collect();
    assert_eq!(named, ["bad.json", "dangling.json", "loop.json"]);
    assert_eq!(listed.warnings().len(), 3, "{}", listed.stderr);
}

#[test]
fn directories_that_are_named_are_taken_as_given_and_in_their_order() {
    let tree = x3();
    tree.generate();
    let dirs = tempfile::tempdir().unwrap();
    let dir = |name: &str| {
        let dir = dirs.path().join(name);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("s.json"), spec("a.com/b", &["x"])).unwrap();
        dir.display().to_string()
    };
    let (one, other) = (dir("one"), dir("other"));
    let args = ["cdi", "list", "--format", "json", "--spec-dir", &one, "--spec-dir", &other];
    let listing = tree.run(&args).done().json();
    assert_eq!(each(&listing["devices"], "file"), [format!("{other}/s.json")]);
    let both = format!("{other},{one}");
    let listing = tree.run(&["cdi", "list", "--format", "json", "--spec-dir", &both]).done().json();
    assert_eq!(each(&listing["devices"], "file"), [format!("{one}/s.json")]);
}

#[test]
fn a_usual_specification_directory_that_is_missing_or_a_file_costs_at_most_a_warning() {
    let tree = Tree::new();
    tree.file("/etc/cdi/a.json", spec("a.com/b", &["x"]));
    tree.file("/var/run/cdi", "a file");
    let listed = tree.run(&["cdi", "list"]).done();
    assert!(listed.stdout.contains("a.com/b=x"), "{}", listed.stdout);
    assert!(listed.stderr.contains("/var/run/cdi: "), "{}", listed.stderr);
}

/// Validates texts, each in a file of that name.
fn validate(files: &[(&str, &str)]) -> (tempfile::TempDir, Run) {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = files
        .iter()
        .map(|(name, text)| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            path
        })
        .collect();
    let nowhere = Tree::new();
    let run = run(on(nowhere.root(), &["cdi", "validate"]).args(paths));
    (dir, run)
}

#[test]
fn what_we_write_is_valid_in_both_formats() {
    for tree in [x3(), vfio()] {
        for format in ["json", "yaml"] {
            tree.run(&["cdi", "generate", "--format", format]).done();
            let run = tree.run(&["cdi", "validate"]).done();
            assert_eq!(run.stdout, "");
            assert!(run.stderr.contains(" is valid\n"), "{}", run.stderr);
            assert_eq!(run.warnings(), [""; 0]);
        }
    }
}

#[test]
fn each_problem_of_each_file_has_a_line_on_stdout() {
    let cases = [
        ("{", "line 1"),
        ("[]", ""),
        (r#"{"cdiVersion": "0.5.0", "kind": "a.com/b", "devises": []}"#, "devises"),
        (r#"{"cdiVersion": "9.9.9", "kind": "a.com/b", "devices": []}"#, "9.9.9"),
        (r#"{"cdiVersion": "0.5.0", "kind": "a", "devices": []}"#, "kind"),
        (
            r#"{"cdiVersion": "0.5.0", "kind": "a.com/b", "devices": [{"name": "b_", "containerEdits": {"env": ["A=b"]}}]}"#,
            "b_",
        ),
        (
            r#"{"cdiVersion": "0.3.0", "kind": "a.com/b", "devices": [{"name": "0", "containerEdits": {"env": ["A=b"]}}]}"#,
            "0.5.0",
        ),
    ];
    for (spec, named) in cases {
        let (dir, run) = validate(&[("bad.json", spec)]);
        let run = run.answered_no();
        let path = dir.path().join("bad.json").display().to_string();
        assert!(run.stdout.starts_with(&format!("{path}: ")), "{}", run.stdout);
        assert!(run.stdout.contains(named), "{spec}: {}", run.stdout);
    }
}

#[test]
fn a_bad_file_among_good_ones_makes_the_answer_no() {
    let good = spec("a.com/b", &["x"]);
    let (dir, run) = validate(&[("a.json", &good), ("b.json", "{"), ("c.yaml", &good)]);
    let run = run.answered_no();
    assert_eq!(run.stdout.lines().count(), 1, "{}", run.stdout);
    for name in ["a.json", "c.yaml"] {
        let valid = format!("{} is valid", dir.path().join(name).display());
        assert!(run.stderr.contains(&valid), "{}", run.stderr);
    }
    validate(&[("a.json", &good)]).1.done();
}

#[test]
fn a_file_that_engines_pass_by_costs_a_warning() {
    let (_dir, run) = validate(&[("a.yml", &spec("acme.com/card", &["x"]))]);
    let run = run.done();
    assert!(run.warnings()[0].contains("only files that end in .json or .yaml"), "{}", run.stderr);
}

#[test]
fn what_is_valid_and_some_readers_trip_over_costs_a_warning() {
    let (_dir, run) = validate(&[("a.json", &spec("a.com/b", &["x"]))]);
    let run = run.done();
    assert!(run.warnings()[0].contains("class of one character"), "{}", run.stderr);
}

#[test]
fn a_file_that_cannot_be_read_is_no_answer() {
    let tree = Tree::new();
    let missing = tree.run(&["cdi", "validate", "/nonexistent/a.json"]).refused();
    assert!(missing.contains("/nonexistent/a.json: No such file"), "{missing}");
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).display().to_string();
    let refusal = tree.run(&["cdi", "validate", &directory]).refused();
    let wanted = format!("reading {directory}: it is a directory, not a regular file");
    assert_eq!(refusal, wanted);
}

#[test]
fn without_a_file_the_hosts_own_directories_are_read() {
    let tree = Tree::new();
    let none = tree.run(&["cdi", "validate"]).done();
    assert!(none.stderr.contains("no CDI specifications"), "{}", none.stderr);
    tree.file("/etc/cdi/bad.json", "{");
    let run = tree.run(&["cdi", "validate"]).answered_no();
    let path = tree.path("/etc/cdi/bad.json").display().to_string();
    assert!(run.stdout.starts_with(&path), "{}", run.stdout);
}

#[test]
fn bytes_that_are_no_text_are_a_problem_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = Tree::new();
    for name in ["a.json", "a.yaml"] {
        let path = dir.path().join(name);
        fs::write(&path, [0xff, 0xfe, 0x00]).unwrap();
        let run = run(on(nowhere.root(), &["cdi", "validate"]).arg(&path)).answered_no();
        assert!(run.stdout.contains(name), "{}", run.stdout);
    }
}
