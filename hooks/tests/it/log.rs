//! The operator's log: what hook and wrapper write to the file of `[log]`, and that no container fails
//! for it.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::unix::fs::{MetadataExt, symlink};
use std::process::Output;

use crate::common::{
    HOOK_THERE, Sandbox, WRAPPER_THERE, config, has_runc, is_root, stderr, stdout, unique,
};
use serde_json::{Value, json};

const LOG: &str = "/var/log/onload-ctk.log";

/// A host with a runtime that only says that it was reached, and a log.
fn host(level: &str, file: &str) -> Option<Sandbox> {
    if !is_root() {
        return None;
    }
    let sandbox = Sandbox::new();
    sandbox.mkdir("/var/log");
    sandbox.file("/opt/onload/runtime", "#!/bin/sh\necho reached\n");
    sandbox.chmod("/opt/onload/runtime", 0o755);
    let more = format!(
        "root-with-onload = \"allow\"\n[log]\nlevel = \"{level}\"\nfile = {file:?}\n\
         [runtime]\npath = \"/opt/onload/runtime\""
    );
    sandbox.allow(&["nic", "rdma"], &more);
    Some(sandbox)
}

fn asks(annotations: &Value) -> Value {
    config(annotations, "echo started")
}

fn create(sandbox: &Sandbox) -> Output {
    let script = format!("exec timeout 120 {WRAPPER_THERE} create -b /bundle c1");
    sandbox.script(&script, b"")
}

/// The lines of the log, without the time and the process id, which are checked.
#[track_caller]
fn lines(sandbox: &Sandbox) -> Vec<String> {
    if !sandbox.path(LOG).exists() {
        return Vec::new();
    }
    let text = sandbox.read(LOG);
    assert!(text.ends_with('\n'), "{text}");
    let line = |line: &str| {
        let (time, rest) = line.split_once(' ').unwrap();
        assert_eq!((time.len(), &time[4..5], &time[19..]), (20, "-", "Z"), "{line}");
        let (program, rest) = rest.split_once('[').unwrap();
        let (pid, rest) = rest.split_once("]: ").unwrap();
        assert!(pid.parse::<u32>().is_ok(), "{line}");
        format!("{program}: {rest}")
    };
    text.lines().map(line).collect()
}

#[test]
fn what_a_container_was_given_is_logged_as_far_as_the_level_says() {
    let given = "onload-container-runtime: info: container c1: given nic=all";
    for (level, has_given, has_reasons) in [
        ("error", false, false),
        ("warning", false, false),
        ("info", true, false),
        ("debug", true, true),
    ] {
        let Some(sandbox) = host(level, LOG) else {
            return;
        };
        sandbox.bundle(&asks(&json!({"onload.dev/nic": "all"})));
        let output = create(&sandbox);
        assert_eq!(stdout(&output), "reached\n", "{}", stderr(&output));
        assert_eq!(stderr(&output), "", "{level}");
        let lines = lines(&sandbox);
        assert_eq!(lines.iter().any(|line| line == given), has_given, "{lines:?}");
        let is_reason = |line: &String| {
            line.starts_with(
                "onload-container-runtime: debug: container c1: device node /dev/onload ",
            )
        };
        assert_eq!(lines.iter().any(is_reason), has_reasons, "{lines:?}");
        assert_eq!(lines.len() > 1, has_reasons, "{lines:?}");
    }
}

#[test]
fn the_file_is_root_s_alone_and_appended_to() {
    let Some(sandbox) = host("info", LOG) else {
        return;
    };
    for _ in 0..2 {
        sandbox.bundle(&asks(&json!({"onload.dev/nic": "all"})));
        assert!(create(&sandbox).status.success());
    }
    let meta = sandbox.path(LOG).metadata().unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.uid()), (0o600, 0));
    assert_eq!(lines(&sandbox).len(), 2);
}

#[test]
fn why_a_container_did_not_start_is_logged_at_every_level_and_at_every_entry_point() {
    for level in ["error", "debug"] {
        let Some(sandbox) = host(level, LOG) else {
            return;
        };
        let vfio = asks(&json!({"onload.dev/vfio": "0000:81:10.0"}));
        sandbox.bundle(&vfio);
        let output = create(&sandbox);
        assert_eq!(output.status.code(), Some(1));
        let message = stderr(&output);
        let message = message.trim_end().strip_prefix("onload-container-runtime: ");
        assert_eq!(
            lines(&sandbox),
            [format!("onload-container-runtime: error: {}", message.unwrap())]
        );
        let output = sandbox.precreate(&serde_json::to_vec(&vfio).unwrap());
        assert_eq!(output.status.code(), Some(1));
        let message = stderr(&output);
        let message = message.trim_end().strip_prefix("onload-hook ").unwrap();
        assert_eq!(lines(&sandbox)[1], format!("onload-hook: error: {message}"));
        let state = br#"{"id":"c1","bundle":"/bundle","pid":1}"#;
        let arguments = "createRuntime --expect /dev/onload=nic:onload";
        let output = sandbox.script(&format!("exec {HOOK_THERE} {arguments}"), state);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        let lines = lines(&sandbox);
        assert!(
            lines[2].starts_with("onload-hook: error: createRuntime: container c1: /dev/onload"),
            "{lines:?}"
        );
        assert_eq!(lines.len(), 3);
    }
}

#[test]
fn what_strangers_write_makes_no_line_of_its_own() {
    let Some(sandbox) = host("debug", LOG) else {
        return;
    };
    let forged = "x\n2026-01-01T00:00:00Z onload-hook[1]: info: forged\u{1b}[2J";
    for annotations in [
        json!({"onload.dev/nic": forged}),
        json!({format!("onload.dev/{forged}"): "all"}),
        json!({"onload.dev/preload": forged}),
    ] {
        sandbox.bundle(&asks(&annotations));
        assert_eq!(create(&sandbox).status.code(), Some(1));
    }
    let lines = lines(&sandbox);
    assert_eq!(lines.len(), 3, "{lines:?}");
    for line in &lines {
        assert!(line.starts_with("onload-container-runtime: error: "), "{line}");
        assert!(!line.contains('\u{1b}') && line.contains("\\n"), "{line}");
    }
}

#[test]
fn a_container_that_asks_for_nothing_has_no_line_and_makes_no_file() {
    let Some(sandbox) = host("debug", LOG) else {
        return;
    };
    let nothing = asks(&json!({"example.com/nic": "all"}));
    sandbox.bundle(&nothing);
    assert_eq!(stdout(&create(&sandbox)), "reached\n");
    assert!(sandbox.precreate(&serde_json::to_vec(&nothing).unwrap()).status.success());
    let state = br#"{"id":"c","bundle":"/nowhere","pid":7,"annotations":{"example.com/x":"y"}}"#;
    let output = sandbox.script(&format!("exec {HOOK_THERE} createRuntime"), state);
    assert!(output.status.success());
    assert!(!sandbox.path(LOG).exists());
}

/// Makes something in the place of the log, or on the way to it.
type Trap = fn(&Sandbox);

#[test]
fn a_log_that_cannot_be_written_stops_no_container_and_is_said_once() {
    let traps: [(&str, &str, Trap); 9] = [
        (LOG, "not a regular file", |sandbox| {
            symlink("/etc/passwd", sandbox.path(LOG)).unwrap();
        }),
        (LOG, "not a regular file", |sandbox| sandbox.mkdir(LOG)),
        (LOG, "not a regular file", |sandbox| {
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            let kind = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, sandbox.path(LOG), kind, mode, 0).unwrap();
        }),
        (LOG, "several hard links", |sandbox| {
            sandbox.file(LOG, "");
            std::fs::hard_link(sandbox.path(LOG), sandbox.path("/var/log/other")).unwrap();
        }),
        (LOG, "others can change it", |sandbox| {
            sandbox.file(LOG, "");
            sandbox.chmod(LOG, 0o666);
        }),
        (LOG, "others can change it", |sandbox| {
            sandbox.chmod("/var/log", 0o1777);
        }),
        (LOG, "belongs to user 1000", |sandbox| {
            std::os::unix::fs::chown(sandbox.path("/var/log"), Some(1000), None).unwrap();
        }),
        ("/var/log/none/log", "No such file", |_| {}),
        ("/dev/full", "not a regular file", |_| {}),
    ];
    for (file, says, trap) in traps {
        let Some(sandbox) = host("info", file) else {
            return;
        };
        trap(&sandbox);
        sandbox.bundle(&asks(&json!({"onload.dev/nic": "all"})));
        let output = create(&sandbox);
        assert_eq!(stdout(&output), "reached\n", "{says}: {}", stderr(&output));
        let message = stderr(&output);
        assert_eq!(message.lines().count(), 1, "{message}");
        let wanted = "warning: onload-container-runtime: the log of config.toml: ";
        assert!(message.starts_with(wanted) && message.contains(says), "{says}: {message}");
        // The line of a refusal is still the last.
        sandbox.bundle(&asks(&json!({"onload.dev/vfio": "x"})));
        let output = create(&sandbox);
        let message = stderr(&output);
        assert_eq!((output.status.code(), message.lines().count()), (Some(1), 2), "{message}");
        assert!(message.lines().last().unwrap().contains("onload.dev/vfio"), "{message}");
    }
}

#[test]
fn a_limit_on_the_size_of_files_stops_no_container() {
    let Some(sandbox) = host("info", LOG) else {
        return;
    };
    sandbox.file(LOG, vec![b'\n'; 8192]);
    sandbox.bundle(&asks(&json!({"onload.dev/nic": "all"})));
    let limited = format!("ulimit -f 16; exec timeout 120 {WRAPPER_THERE} create -b /bundle c1");
    let output = sandbox.script(&limited, b"");
    assert_eq!(stdout(&output), "reached\n", "{}", stderr(&output));
    assert!(stderr(&output).contains("RLIMIT_FSIZE"), "{}", stderr(&output));
    assert_eq!(sandbox.read(LOG).len(), 8192);
}

#[test]
fn a_log_that_is_not_understood_is_none() {
    for log in ["level = \"loud\"", "file = 7", "file = \"var/log/x\"", "level = \"info\""] {
        let Some(sandbox) = host("info", LOG) else {
            return;
        };
        let more = format!(
            "root-with-onload = \"allow\"\n[log]\n{log}\n[runtime]\npath = \"/opt/onload/runtime\""
        );
        sandbox.allow(&["nic"], &more);
        sandbox.bundle(&asks(&json!({"onload.dev/nic": "all"})));
        let output = create(&sandbox);
        assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("reached\n", ""));
    }
}

#[test]
fn another_user_than_root_writes_nothing_and_is_not_told_of_it() {
    let Some(sandbox) = host("debug", LOG) else {
        return;
    };
    // Root's file could not be opened; one that everybody may write to is not asked for either.
    sandbox.chmod("/var/log", 0o777);
    let script = format!(
        "cd /tmp; exec setpriv --reuid 1000 --regid 1000 --clear-groups {HOOK_THERE} precreate"
    );
    let vfio = asks(&json!({"onload.dev/vfio": "x"}));
    let output = sandbox.script(&script, &serde_json::to_vec(&vfio).unwrap());
    let message = stderr(&output);
    assert_eq!((output.status.code(), message.lines().count()), (Some(1), 1), "{message}");
    assert!(message.contains("onload.dev/vfio"), "{message}");
    assert!(!sandbox.path(LOG).exists());
}

#[test]
fn an_annotation_without_a_class_stops_the_container_at_every_entry_point() {
    let Some(sandbox) = host("info", "") else {
        return;
    };
    for key in ["onload.dev", "onload.dev/"] {
        let annotations = json!({key: "all"});
        let says = format!("annotation \"{key}\" names no class; write onload.dev/nic or another");
        let bundle = asks(&annotations);
        sandbox.bundle(&bundle);
        let state = json!({"id": "c1", "bundle": "/bundle", "pid": 1, "annotations": annotations});
        let state = serde_json::to_vec(&state).unwrap();
        for output in [
            create(&sandbox),
            sandbox.precreate(&serde_json::to_vec(&bundle).unwrap()),
            sandbox.script(&format!("exec {HOOK_THERE} createRuntime"), &state),
        ] {
            assert_eq!(output.status.code(), Some(1), "{key}");
            assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
            assert!(stderr(&output).contains(&says), "{}", stderr(&output));
        }
    }
    // Where somebody else says the word, nothing is asked for.
    let mut foreign = asks(&json!({"example.com/x": "onload.dev", "onload.development": "x"}));
    foreign["process"]["env"] = json!(["URL=https://onload.dev"]);
    sandbox.bundle(&foreign);
    assert_eq!(stdout(&create(&sandbox)), "reached\n");
}

#[test]
fn the_hook_of_a_living_container_logs_what_it_gave() {
    if !has_runc() || !onload_test_needs::no_chroot("logging by a hook") {
        return;
    }
    let sandbox = host("debug", LOG).unwrap();
    let mut config = asks(&json!({"onload.dev/nic": "all"}));
    config["process"]["rlimits"] = json!([{"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 4096}]);
    config["hooks"] = json!({"createRuntime": [{"path": HOOK_THERE, "args": ["onload-hook", "createRuntime"],
        "env": ["PATH=/usr/sbin:/usr/bin"], "timeout": 10}]});
    sandbox.bundle(&config);
    let id = unique("c");
    let script = format!("exec timeout 60 runc --root /run/runc run -b /bundle {id}");
    let output = sandbox.script(&script, b"");
    assert_eq!(stdout(&output), "started\n", "{}", stderr(&output));
    let lines = lines(&sandbox);
    let subject = format!("createRuntime: container {id}: ");
    assert!(lines.contains(&format!("onload-hook: info: {subject}given nic=all")), "{lines:?}");
    let is_mount = |line: &&String| {
        line.starts_with(&format!("onload-hook: debug: {subject}mount /dev/onload from "))
    };
    assert_eq!(lines.iter().filter(is_mount).count(), 1, "{lines:?}");
}

#[test]
fn a_runtime_of_the_wrong_type_is_named_with_its_line_and_key() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.file("/etc/onload-ctk/config.toml", "[runtime]\npath = 7\n");
    let output = create(&sandbox);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        stderr(&output),
        "onload-container-runtime: \"/etc/onload-ctk/config.toml\": line 2: runtime.path: expected a string, found integer `7`\n"
    );
}
