//! Hostile containers, images, callers and neighbours. Nothing on the host changes, memory stays
//! bounded, and the answer is one line.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Output;

use crate::common::{
    HOOK_THERE, Sandbox, WRAPPER_THERE, config, has_runc, is_root, oci, stderr, stdout, unique,
};
use rustix::fs::{FileType, Mode};
use serde_json::{Value, json};

/// Kibibytes of address space for the programs: the largest configuration that is parsed has 16
/// MiB, and one or two copies of it are in memory.
const ADDRESS_SPACE: u32 = 96 * 1024;

/// A runtime that only reports that it was reached, so that the wrapper's work can be seen in
/// isolation.
fn with_fake_runtime(sandbox: &Sandbox) {
    sandbox.file("/opt/onload/runtime", "#!/bin/sh\necho reached \"$@\"\n");
    sandbox.chmod("/opt/onload/runtime", 0o755);
    let text = sandbox.read("/etc/onload-ctk/config.toml");
    sandbox.file(
        "/etc/onload-ctk/config.toml",
        format!("{text}[runtime]\npath = \"/opt/onload/runtime\"\n"),
    );
}

/// Runs the wrapper on `/bundle`, with bounded memory, and with a time limit so that a hang is a
/// failure.
fn wrap(sandbox: &Sandbox) -> Output {
    let script =
        format!("ulimit -v {ADDRESS_SPACE}; exec timeout 120 {WRAPPER_THERE} create -b /bundle c1");
    sandbox.script(&script, b"")
}

fn precreate(sandbox: &Sandbox, json: &[u8]) -> Output {
    sandbox.mkdir("/bundle");
    let script =
        format!("cd /bundle; ulimit -v {ADDRESS_SPACE}; exec timeout 120 {HOOK_THERE} precreate");
    sandbox.script(&script, json)
}

/// The message of a refusal: one line, status 1, nothing on standard output, the host unchanged.
fn refused(sandbox: &Sandbox, before: &[(std::path::PathBuf, String)], output: &Output) -> String {
    let message = stderr(output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert_eq!(stdout(output), "", "{message}");
    assert_eq!(message.trim_end().lines().count(), 1, "{message}");
    assert!(message.len() < 4096, "{} bytes", message.len());
    assert_eq!(sandbox.snapshot(), before);
    message
}

fn asks() -> Value {
    config(&json!({"onload.dev/nic": "all", "onload.dev/preload": "file"}), "echo started")
}

#[test]
fn a_writable_bind_mount_of_the_host_over_a_target_is_refused() {
    if !has_runc() {
        return;
    }
    for (at, source) in [
        ("/etc", "/etc"),
        ("/usr", "/usr"),
        ("/dev", "/dev"),
        ("/", "/"),
        ("/usr/lib64", "/usr/lib64"),
    ] {
        let sandbox = Sandbox::new();
        let mut config = asks();
        config["mounts"].as_array_mut().unwrap().push(json!({"destination": at, "type": "bind", "source": source, "options": ["rbind", "rw"]}));
        sandbox.bundle(&config);
        let before = sandbox.snapshot();
        let script =
            format!("exec {WRAPPER_THERE} --root /run/runc run -b /bundle {}", unique("c"));
        let message = refused(&sandbox, &before, &sandbox.script(&script, b""));
        assert!(message.contains("is below the mount at"), "{at}: {message}");
    }
}

#[test]
fn links_of_the_image_that_lead_out_are_refused_or_stay_inside() {
    if !has_runc() {
        return;
    }
    for (link, target) in [
        ("usr/lib64", "/proc/self/root/etc"),
        ("etc", "/proc/self/root/etc"),
        ("etc", "../../../../../../../etc"),
        ("etc", "/host/etc"),
        ("usr/lib64", "/host/usr/lib64"),
        ("usr/lib", "usr/lib"),
    ] {
        let sandbox = Sandbox::new();
        let mut config = asks();
        config["mounts"].as_array_mut().unwrap().push(json!({"destination": "/host", "type": "bind", "source": "/", "options": ["rbind", "rw"]}));
        sandbox.bundle(&config);
        sandbox.mkdir("/bundle/rootfs/host");
        let place = sandbox.path(&format!("/bundle/rootfs/{link}"));
        fs::rename(&place, sandbox.path("/bundle/rootfs/moved")).unwrap();
        symlink(target, &place).unwrap();
        let before = sandbox.snapshot();
        let script =
            format!("exec {WRAPPER_THERE} --root /run/runc run -b /bundle {}", unique("c"));
        let output = sandbox.script(&script, b"");
        assert_eq!(sandbox.snapshot(), before, "{link} -> {target}: {}", stderr(&output));
        if target.contains("/host") || target.contains("/proc") {
            assert_eq!(output.status.code(), Some(1), "{link} -> {target}");
            assert!(stderr(&output).contains("is below the mount at"), "{}", stderr(&output));
        }
    }
}

#[test]
fn a_preload_list_of_the_image_that_is_no_file_is_refused() {
    if !is_root() {
        return;
    }
    let make = |sandbox: &Sandbox, kind: &str| {
        let path = sandbox.path("/bundle/rootfs/etc/ld.so.preload");
        match kind {
            "fifo" => {
                let mode = Mode::from_raw_mode(0o644);
                rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, mode, 0).unwrap();
            }
            "directory" => fs::create_dir(path).unwrap(),
            "sparse" => fs::File::create(path).unwrap().set_len(10 << 30).unwrap(),
            "loop" => symlink("ld.so.preload", path).unwrap(),
            "device" => sandbox.node("/bundle/rootfs/etc/ld.so.preload", 1, 5),
            _ => symlink("/proc/self/root/etc/ld.so.preload", path).unwrap(),
        }
    };
    for kind in ["fifo", "directory", "sparse", "loop", "device", "magic"] {
        let sandbox = Sandbox::new();
        with_fake_runtime(&sandbox);
        sandbox.bundle(&asks());
        make(&sandbox, kind);
        let before = sandbox.snapshot();
        let message = refused(&sandbox, &before, &wrap(&sandbox));
        assert!(message.contains("ld.so.preload"), "{kind}: {message}");
    }
}

#[test]
fn programs_loaders_and_libcs_that_are_traps_are_given_up() {
    if !is_root() {
        return;
    }
    for place in ["bin/sh", "usr/lib64/ld-linux-x86-64.so.2", "usr/lib/x86_64-linux-gnu/libc.so.6"]
    {
        for trap in ["fifo", "directory", "sparse", "loop", "proc", "up", "zero"] {
            let sandbox = Sandbox::new();
            with_fake_runtime(&sandbox);
            sandbox.bundle(&asks());
            let path = sandbox.path(&format!("/bundle/rootfs/{place}"));
            fs::remove_file(&path).unwrap();
            match trap {
                "fifo" => {
                    let mode = Mode::from_raw_mode(0o644);
                    rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, mode, 0).unwrap();
                }
                "directory" => fs::create_dir(&path).unwrap(),
                "sparse" => {
                    let header = fs::read("/bin/dash").unwrap();
                    fs::write(&path, &header[..512]).unwrap();
                    fs::OpenOptions::new()
                        .write(true)
                        .open(&path)
                        .unwrap()
                        .set_len(10 << 30)
                        .unwrap();
                }
                "loop" => symlink(path.file_name().unwrap(), &path).unwrap(),
                "proc" => symlink("/proc/self/exe", &path).unwrap(),
                "up" => symlink("../../../../../../../bin/dash", &path).unwrap(),
                _ => sandbox.node(&format!("/bundle/rootfs/{place}"), 1, 5),
            }
            let before = sandbox.snapshot();
            let output = wrap(&sandbox);
            if place != "bin/sh" && trap == "sparse" {
                // A library that defines no version of glibc.
                let message = refused(&sandbox, &before, &output);
                let reason = match place.ends_with("libc.so.6") {
                    true => "the image's glibc is of an unknown version",
                    false => "is not glibc's, which libonload.so needs",
                };
                assert!(message.contains(reason), "{message}");
                continue;
            }
            // Whether the library loads is unknown. That is a warning, and the runtime continues.
            assert_eq!(
                stdout(&output),
                "reached create -b /bundle c1\n",
                "{place} {trap}: {}",
                stderr(&output)
            );
            assert_eq!(sandbox.snapshot(), before, "{place} {trap}");
        }
    }
}

#[test]
fn annotations_beyond_every_bound_are_refused_and_those_of_others_left_alone() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    let many = |prefix: &str| -> Value {
        let all = (0..10_000).map(|n| (format!("{prefix}{n}"), Value::from("x")));
        config(&Value::Object(all.collect()), ":")
    };
    sandbox.mkdir("/bundle/rootfs");
    let before = sandbox.snapshot();
    let ours = serde_json::to_vec(&many("onload.dev/nic")).unwrap();
    let message = refused(&sandbox, &before, &precreate(&sandbox, &ours));
    assert!(message.contains("more than 64 annotations"), "{message}");
    let theirs = serde_json::to_vec(&many("example.com/nic")).unwrap();
    let output = precreate(&sandbox, &theirs);
    assert!(output.status.success() && output.stdout == theirs);
    let mut both = many("example.com/nic");
    both["annotations"]["onload.dev/nic"] = json!("all");
    sandbox.root_file_system("/bundle/rootfs");
    let output = precreate(&sandbox, &serde_json::to_vec(&both).unwrap());
    assert!(output.status.success(), "{}", stderr(&output));
    let annotations = oci(&output.stdout).annotations().clone().unwrap();
    assert_eq!(json!(annotations), both["annotations"]);
}

#[test]
fn an_annotation_of_100_megabytes_is_refused_if_ours_and_copied_if_not() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.mkdir("/bundle");
    let before = sandbox.snapshot();
    let long = "x".repeat(100_000_000);
    let json = |key: &str| format!("{{\"annotations\":{{\"{key}\":\"{long}\"}}}}").into_bytes();
    let message = refused_late(&precreate(&sandbox, &json("onload.dev/nic")));
    assert!(message.contains("larger than 16777216 bytes"), "{message}");
    let theirs = json("example.com/nic");
    let output = precreate(&sandbox, &theirs);
    assert!(output.status.success() && output.stdout == theirs, "{}", stderr(&output));
    assert_eq!(sandbox.snapshot(), before);
}

/// A refusal that comes after the beginning has been written: the status counts.
fn refused_late(output: &Output) -> String {
    let message = stderr(output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert_eq!(message.trim_end().lines().count(), 1, "{message}");
    message
}

#[test]
fn a_configuration_of_50_megabytes_passes_if_it_asks_for_nothing_and_is_refused_if_it_does() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    with_fake_runtime(&sandbox);
    let mut large = config(&json!({}), "x");
    large["filler"] = Value::from("y".repeat(50_000_000));
    sandbox.mkdir("/bundle/rootfs");
    sandbox.file("/bundle/config.json", serde_json::to_vec(&large).unwrap());
    assert_eq!(stdout(&wrap(&sandbox)), "reached create -b /bundle c1\n");
    let mut by_variable = large.clone();
    by_variable["process"]["env"] = json!(["ONLOAD_CTK_REQUEST=nic=all"]);
    large["annotations"] = json!({"onload.dev/nic": "all"});
    for config in [large, by_variable] {
        sandbox.file("/bundle/config.json", serde_json::to_vec(&config).unwrap());
        let before = sandbox.snapshot();
        let message = refused(&sandbox, &before, &wrap(&sandbox));
        assert!(
            message.contains(
                "container c1: config.json has onload.dev annotations, the variable ONLOAD_CTK_REQUEST or linux.netDevices, and is larger"
            ),
            "{message}"
        );
    }
}

#[test]
fn broken_configurations_are_refused_in_one_line() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.mkdir("/bundle/rootfs");
    let before = sandbox.snapshot();
    let whole = serde_json::to_string(&config(&json!({"onload.dev/nic": "all"}), ":")).unwrap();
    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    for json in [
        whole[..whole.len() / 2].to_owned() + "onload.dev/",
        whole.replacen('{', "{\"annotations\":{\"onload.dev/rdma\":\"rxe0\"},", 1),
        whole.replace("\"all\"", "\"all\",\"onload.dev/nic\":\"all\""),
        whole.replace("\"all\"", &deep),
        whole.replace(
            "\"annotations\":{",
            &format!("\"annotations\":{{\"x\":{deep},\"onload.dev/nic\":7,"),
        ),
        whole.replace("\"process\":{", "\"process\":[{").replace("\"root\":", "],\"root\":"),
    ] {
        refused(&sandbox, &before, &precreate(&sandbox, json.as_bytes()));
    }
}

#[test]
fn names_that_are_no_names_are_refused_in_one_line() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.mkdir("/bundle/rootfs");
    let before = sandbox.snapshot();
    for name in [
        "a\0b",
        "a\nb",
        "../../etc/passwd",
        "a=b",
        "/dev/sda",
        "\u{1b}[31m",
        "*",
        "$(id)",
        "none",
        "ALL",
    ] {
        let json = serde_json::to_vec(&config(&json!({"onload.dev/nic": name}), ":")).unwrap();
        let message = refused(&sandbox, &before, &precreate(&sandbox, &json));
        assert!(message.contains("onload.dev/nic"), "{message}");
        assert!(!message.contains(['\0', '\u{1b}']), "{message:?}");
    }
}

#[test]
fn a_configuration_that_is_a_link_or_somebody_else_s_is_not_replaced() {
    if !is_root() {
        return;
    }
    for case in ["symlink", "hardlink", "owner", "directory", "fifo"] {
        let sandbox = Sandbox::new();
        with_fake_runtime(&sandbox);
        sandbox.bundle(&asks());
        let path = sandbox.path("/bundle/config.json");
        let real = sandbox.path("/root/config.json");
        match case {
            "symlink" => {
                fs::rename(&path, &real).unwrap();
                symlink("../root/config.json", &path).unwrap();
            }
            "hardlink" => fs::hard_link(&path, &real).unwrap(),
            "owner" => std::os::unix::fs::chown(&path, Some(4242), None).unwrap(),
            "directory" => {
                fs::remove_file(&path).unwrap();
                fs::create_dir(&path).unwrap();
            }
            _ => {
                fs::remove_file(&path).unwrap();
                let mode = Mode::from_raw_mode(0o644);
                rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, mode, 0).unwrap();
            }
        }
        let before = sandbox.snapshot();
        let message = refused(&sandbox, &before, &wrap(&sandbox));
        assert!(message.contains("config.json"), "{case}: {message}");
    }
}

#[test]
fn files_that_others_can_write_are_not_believed_at_any_level() {
    if !is_root() {
        return;
    }
    for path in [
        "/",
        "/etc",
        "/etc/onload-ctk",
        "/etc/onload-ctk/config.toml",
        "/etc/cdi",
        "/etc/cdi/onload.dev-nic.json",
        "/run",
        "/run/cdi",
        "/run/cdi/onload.dev-rdma.json",
        "/opt",
        "/opt/onload",
        "/opt/onload/runtime",
        "/usr/share",
        "/usr/share/onload-ctk/ld.so.preload",
    ] {
        for change in ["mode", "owner"] {
            let sandbox = Sandbox::new();
            with_fake_runtime(&sandbox);
            sandbox.bundle(&asks());
            match change {
                "mode" => {
                    let mode = fs::metadata(sandbox.path(path)).unwrap().permissions().mode();
                    sandbox.chmod(path, mode & 0o7777 | 0o020);
                }
                _ => std::os::unix::fs::chown(sandbox.path(path), Some(1000), None).unwrap(),
            }
            let before = sandbox.snapshot();
            let message = refused(&sandbox, &before, &wrap(&sandbox));
            let reason =
                if change == "mode" { "others can change it" } else { "must belong to root" };
            assert!(
                message.contains(&format!("{path}\"")) && message.contains(reason),
                "{path}: {message}"
            );
        }
    }
}

#[test]
fn a_link_of_somebody_else_on_the_way_is_not_followed() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    with_fake_runtime(&sandbox);
    sandbox.bundle(&asks());
    rustix::fs::chownat(
        rustix::fs::CWD,
        sandbox.path("/var/run"),
        Some(rustix::fs::Uid::from_raw(1000)),
        None,
        rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
    )
    .unwrap();
    let before = sandbox.snapshot();
    let message = refused(&sandbox, &before, &wrap(&sandbox));
    assert!(message.contains("\"/var/run\" belongs to user 1000"), "{message}");
}

#[test]
fn the_caller_s_environment_has_no_effect() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.bundle(&config(&json!({}), ":"));
    // A runc of the caller, first in PATH, and a library that would kill any program that loads it.
    sandbox.file("/evil/runc", "#!/bin/sh\necho evil\n");
    sandbox.chmod("/evil/runc", 0o755);
    sandbox.file("/evil/evil.so", "no library");
    sandbox.file("/evil/config.toml", "[annotations]\nallow = [\"vfio\"]\n");
    let evil = "PATH=/evil LD_PRELOAD=/evil/evil.so LD_LIBRARY_PATH=/evil ONLOAD_CTK_CONFIG=/evil/config.toml RUST_BACKTRACE=full TMPDIR=/evil HOME=/evil";
    let output = sandbox.script(&format!("{evil} exec {HOOK_THERE} --version"), b"");
    assert!(
        stdout(&output).starts_with("onload-hook ") && stderr(&output).is_empty(),
        "{}",
        stderr(&output)
    );
    // The loader complains once for each dynamic program. The wrapper is not one.
    let output = sandbox.script(&format!("{evil} exec {WRAPPER_THERE} --version"), b"");
    assert!(!stdout(&output).contains("evil"), "{}", stdout(&output));
    with_fake_runtime(&sandbox);
    sandbox.file("/opt/onload/runtime", "#!/usr/bin/env -S -i /bin/sh\necho reached\n");
    sandbox.file("/opt/onload/env-runtime", "#!/bin/sh\necho $A-$PATH\n");
    sandbox.chmod("/opt/onload/env-runtime", 0o755);
    let text = sandbox
        .read("/etc/onload-ctk/config.toml")
        .replace("/opt/onload/runtime", "/opt/onload/env-runtime");
    sandbox.file("/etc/onload-ctk/config.toml", text);
    let output = sandbox.script(&format!("A=b PATH=/somewhere exec {WRAPPER_THERE} state c"), b"");
    assert_eq!(stdout(&output), "b-/somewhere\n", "the runtime has the engine's environment");
}

#[test]
fn the_runtime_that_names_the_wrapper_itself_is_refused() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.file("/etc/onload-ctk/config.toml", format!("[runtime]\npath = \"{WRAPPER_THERE}\"\n"));
    let output = sandbox.script(&format!("exec timeout 120 {WRAPPER_THERE} state c"), b"");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("is this program itself"), "{}", stderr(&output));
}

/// A mistake of the operator must not prevent containers from being stopped and deleted.
#[test]
fn a_broken_configuration_stops_containers_that_ask_and_nothing_else() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    with_fake_runtime(&sandbox);
    let text = sandbox.read("/etc/onload-ctk/config.toml");
    sandbox.file("/etc/onload-ctk/config.toml", format!("{text}[cdi\n"));
    let wrapper = |words: &str| {
        let script = format!("cd /; exec timeout 120 {WRAPPER_THERE} {words}");
        sandbox.script(&script, b"")
    };
    for verb in ["delete", "kill", "state", "start", "exec", "features"] {
        let output = wrapper(&format!("--root /r {verb} c1"));
        let message = stderr(&output);
        assert_eq!(
            (stdout(&output), message.as_str()),
            (format!("reached --root /r {verb} c1\n"), "")
        );
    }
    sandbox.bundle(&asks());
    for verb in ["create", "run", "restore"] {
        let output = wrapper(&format!("{verb} --bundle /bundle c1"));
        let message = stderr(&output);
        assert_eq!((output.status.code(), stdout(&output)), (Some(1), String::new()));
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.contains("/etc/onload-ctk/config.toml"), "{message}");
    }
    // It is unknown which runtime it was, and another one would report that there is no such
    // container.
    sandbox.file("/etc/onload-ctk/config.toml", "[runtime]\npath = \"/opt/onload\n");
    let output = wrapper("delete --force c1");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("config.toml"), "{}", stderr(&output));
}

#[test]
fn what_was_written_for_a_container_goes_when_the_runtime_cannot_be_executed() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.allow(&["nic"], "root-with-onload = \"allow\"");
    with_fake_runtime(&sandbox);
    sandbox.file("/opt/onload/runtime", "#!/nowhere\n");
    sandbox.chmod("/opt/onload/runtime", 0o755);
    sandbox.bundle(&asks());
    sandbox.file("/bundle/rootfs/etc/ld.so.preload", "libother.so\n");
    sandbox.mkdir("/run/onload-ctk");
    sandbox.chmod("/run/onload-ctk", 0o711);
    let before = sandbox.snapshot();
    let message = refused(&sandbox, &before, &wrap(&sandbox));
    assert!(message.contains("executing \"/opt/onload/runtime\""), "{message}");
}

#[test]
fn no_core_dump_is_left_and_no_process_started() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    // The files of a process that may not be dumped belong to root (proc(5)).
    let script = format!(
        "mkfifo /tmp/in; chmod 666 /tmp/in; setpriv --reuid 1000 --regid 1000 --clear-groups {HOOK_THERE} createRuntime < /tmp/in & pid=$!
         exec 9>/tmp/in; i=0; while test \"$(cat /proc/$pid/comm)\" != onload-hook && test $i -lt 50; do sleep 0.1; i=$((i+1)); done; sleep 0.3
         stat -c '%u %n' /proc/$pid/environ; cat /proc/$pid/task/$pid/children; grep Uid: /proc/$pid/status; exec 9>&-; wait $pid; echo $?"
    );
    let output = sandbox.script(&script, b"");
    let text = stdout(&output);
    assert!(text.starts_with("0 /proc/"), "{text} {}", stderr(&output));
    assert!(text.contains("Uid:\t1000"), "{text}");
    assert!(text.ends_with("0\n"), "{text} {}", stderr(&output));
}

#[test]
fn states_that_make_no_sense_stop_the_container_in_one_line() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    let before = sandbox.snapshot();
    let expect = "--expect /dev/infiniband/uverbs0=rdma:rxe0";
    let run = |args: &str, state: &str| {
        let script = format!(
            "ulimit -v {ADDRESS_SPACE}; exec timeout 120 {HOOK_THERE} createRuntime {args}"
        );
        refused(&sandbox, &before, &sandbox.script(&script, state.as_bytes()))
    };
    assert!(run("--memlock unlimited", "").contains("container's state"));
    assert!(
        run("--memlock unlimited", r#"{"id":"c","bundle":"/b","pid":null}"#).contains("has no pid")
    );
    assert!(
        run("--memlock unlimited", r#"{"id":"c","bundle":"/b","pid":0}"#).contains("has no pid")
    );
    assert!(
        run(expect, r#"{"id":"c","bundle":"/none","pid":1}"#)
            .contains("container c: reading \"/none/config.json\"")
    );
    assert!(run(expect, r#"{"id":"../c","bundle":"/","pid":1}"#).contains("not a container id"));
    assert!(run("--what", "{}").contains("unknown option"));
    let long = format!("{{\"id\":\"{}\"}}", "x".repeat(30_000_000));
    assert!(run("--memlock 1", &long).contains("not a container id"));
}

#[test]
fn an_annotation_of_100_megabytes_in_the_state_does_not_disturb_the_hook_of_a_specification() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.bundle(&json!({"linux": {"devices": [{"path": "/dev/infiniband/uverbs0", "type": "c", "major": 1, "minor": 7}]}}));
    let state = format!(
        "{{\"id\":\"c\",\"bundle\":\"/bundle\",\"annotations\":{{\"x\":\"{}\"}}}}",
        "y".repeat(100_000_000)
    );
    let script = format!(
        "ulimit -v 16384; exec timeout 120 {HOOK_THERE} createRuntime --expect /dev/infiniband/uverbs0=rdma:rxe0"
    );
    let output = sandbox.script(&script, state.as_bytes());
    assert!(output.status.success(), "{}", stderr(&output));
}

/// As crun 1.21 calls it for a container with devices in a user namespace.
#[test]
fn a_bundle_that_the_state_has_lost_is_the_one_on_the_runtime_s_command_line() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.bundle(&json!({"linux": {"devices": [{"path": "/dev/onload", "type": "c", "major": 1, "minor": 5}]}}));
    let state = br#"{"id":"c","bundle":"/"}"#;
    let call = |expect: &str, id: &str| {
        let hook = format!("{HOOK_THERE} createRuntime --expect {expect}; exit $?");
        let script = format!("exec sh -c '{hook}' create --bundle /bundle {id}");
        sandbox.script(&script, state)
    };
    let right = "/dev/onload=nic:onload#1:5";
    let output = call(right, "c");
    assert!(output.status.success(), "{}", stderr(&output));
    sandbox.driver("onload", "1:7");
    let output = call(right, "c");
    assert!(stderr(&output).contains("the node is 1:5 but the kernel's onload is 1:7"));
    // The root directory itself is a bundle like any other.
    sandbox.file("/config.json", "{}");
    let output = call(right, "c");
    assert!(stderr(&output).contains("config.json has no such node"));
}

#[test]
fn a_bundle_that_nothing_tells_is_asked_for_and_only_where_it_is_needed() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    let before = sandbox.snapshot();
    let call = |args: &str, state: &str, caller: &str| {
        let hook = format!("{HOOK_THERE} createRuntime {args}; exit $?");
        let script = format!("exec sh -c '{hook}' {caller}");
        let output = sandbox.script(&script, state.as_bytes());
        refused(&sandbox, &before, &output)
    };
    let plain = r#"{"id":"c","bundle":"/","pid":0}"#;
    let asking = r#"{"id":"c","bundle":"/","pid":0,"annotations":{"onload.dev/nic":"all"}}"#;
    let expect = "--expect /dev/onload=nic:onload#1:5";
    for (args, state) in [(expect, plain), ("", asking)] {
        for caller in ["create --bundle bundle c", "create --bundle /bundle other", "create c"] {
            let message = call(args, state, caller);
            assert_eq!(
                message.trim_end(),
                "onload-hook createRuntime: container c: crun did not report the container's \
                 bundle (its state says /, which has no config.json); call it with --bundle and an \
                 absolute path, and without --config",
                "{args} {caller}"
            );
        }
    }
    let message = call("--memlock unlimited", plain, "create --bundle bundle c");
    assert!(message.contains("has no pid"), "{message}");
}

#[test]
fn a_configuration_of_many_tiny_members_is_checked_in_little_memory() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    let node = r#"{"path":"/dev/onload","type":"c","major":1,"minor":5}"#;
    let many = |member: &str| vec![member; 16_000_000 / (member.len() + 1)].join(",");
    for json in [
        format!(r#"{{"linux":{{"devices":[{},{node}]}}}}"#, many(r#"{"path":""}"#)),
        format!(r#"{{"mounts":[{}],"linux":{{"devices":[{node}]}}}}"#, many("{}")),
        format!(
            r#"{{"mounts":[{}],"linux":{{"devices":[{node}]}}}}"#,
            many(r#"{"destination":"/"}"#)
        ),
        format!(
            r#"{{"mounts":[{{"options":[{}]}}],"linux":{{"devices":[{node}]}}}}"#,
            many("\"\"")
        ),
    ] {
        sandbox.file("/bundle/config.json", &json);
        let script = format!(
            "ulimit -v 16384; exec timeout 60 {HOOK_THERE} createRuntime --expect /dev/onload=nic:onload#1:5"
        );
        let output = sandbox.script(&script, br#"{"id":"c","bundle":"/bundle"}"#);
        assert!(output.status.success(), "{}", stderr(&output));
    }
}

#[test]
fn stages_that_are_not_served_warn_and_words_that_are_none_fail() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    for stage in ["createContainer", "startContainer", "poststart"] {
        let output = sandbox.script(&format!("exec {HOOK_THERE} {stage} --any thing"), b"garbage");
        assert_eq!(output.status.code(), Some(0));
        assert!(stderr(&output).contains(&format!("stage {stage} is not handled")));
        assert_eq!(stdout(&output), "");
    }
    for words in ["", "create", "CreateRuntime", "precreate extra"] {
        let output = sandbox.script(&format!("exec {HOOK_THERE} {words}"), b"");
        assert_eq!(output.status.code(), Some(2), "{words}");
    }
    // A specification's hook has arguments, and one that is not known might have meant something.
    let output = sandbox.script(&format!("exec {HOOK_THERE} poststop extra"), b"");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("unknown option \"extra\""));
}

#[test]
fn poststop_succeeds_when_there_is_nothing_left_and_removes_nothing_else() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    let stop = |id: &str| {
        sandbox.script(
            &format!("exec {HOOK_THERE} poststop"),
            format!("{{\"id\":\"{id}\",\"pid\":null,\"annotations\":null}}").as_bytes(),
        )
    };
    assert!(stop("c1").status.success());
    sandbox.file("/run/onload-ctk/c1/ld.so.preload", "x");
    sandbox.file("/run/onload-ctk/c2/ld.so.preload", "x");
    assert!(stop("c1").status.success());
    assert!(stop("c1").status.success());
    assert!(!sandbox.path("/run/onload-ctk/c1").exists());
    assert!(sandbox.path("/run/onload-ctk/c2/ld.so.preload").exists());
    let before = sandbox.snapshot();
    for id in ["..", ".", "../../etc", "c2/..", ""] {
        refused(&sandbox, &before, &stop(id));
    }
}

#[test]
fn the_hook_does_nothing_for_a_container_that_asks_for_nothing() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    // Even a broken configuration of this package does not matter to it.
    sandbox.file("/etc/onload-ctk/config.toml", "broken");
    for stage in ["createRuntime", "prestart"] {
        let state =
            br#"{"id":"c","bundle":"/nowhere","pid":7,"annotations":{"example.com/x":"y"}}"#;
        let output = sandbox.script(&format!("exec {HOOK_THERE} {stage}"), state);
        assert!(output.status.success() && output.stderr.is_empty() && output.stdout.is_empty());
    }
}

#[test]
fn the_hook_by_annotation_is_content_with_what_another_door_gave_and_names_it_otherwise() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    with_fake_runtime(&sandbox);
    sandbox.bundle(&asks());
    let state = br#"{"id":"c1","bundle":"/bundle","pid":7,"annotations":{"onload.dev/nic":"all"}}"#;
    let hook = || sandbox.script(&format!("exec {HOOK_THERE} createRuntime"), state);
    let before = sandbox.snapshot();
    let message = refused(&sandbox, &before, &hook());
    assert!(
        message.contains("container c1:") && message.contains("--ulimit nofile=524288:524288"),
        "{message}"
    );
    assert!(wrap(&sandbox).status.success());
    let output = hook();
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn one_command_line_serves_precreate_and_poststop_as_podman_calls_it() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    let state = |status: &str| {
        format!(
            "{{\"id\":\"c1\",\"status\":\"{status}\",\"bundle\":\"/bundle\",\"annotations\":{{\"onload.dev/nic\":\"all\"}}}}"
        )
    };
    for stage in ["precreate", "createRuntime"] {
        sandbox.file("/run/onload-ctk/c1/ld.so.preload", "x");
        let script = format!("exec {HOOK_THERE} {stage}");
        let output = sandbox.script(&script, state("stopped").as_bytes());
        assert!(output.status.success() && output.stdout.is_empty(), "{}", stderr(&output));
        assert!(!sandbox.path("/run/onload-ctk/c1").exists());
    }
}

#[test]
fn a_target_on_a_mount_that_stands_in_the_root_already_is_refused() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    with_fake_runtime(&sandbox);
    sandbox.bundle(&asks());
    sandbox.mkdir("/volume/lib64");
    // mount(8) has its own directory there.
    sandbox.mkdir("/run/mount");
    let before = sandbox.snapshot();
    let script = format!(
        "mount --bind /volume/lib64 /bundle/rootfs/usr/lib64 && exec {WRAPPER_THERE} create -b /bundle c1"
    );
    let message = refused(&sandbox, &before, &sandbox.script(&script, b""));
    assert!(message.contains("usr/lib64"), "{message}");
}

/// A link in a volume, or one of /proc, can move a mount at that path over /dev. The device nodes
/// would then be created in a directory of the host (compare CVE-2021-30465).
#[test]
fn a_mount_that_a_link_of_a_volume_carries_over_dev_is_refused() {
    if !has_runc() {
        return;
    }
    for (at, link) in
        [("/data/link", "/dev"), ("/data/link/dev", "/"), ("/proc/self/root/dev", "/none")]
    {
        let sandbox = Sandbox::new();
        let mut config = asks();
        let mounts = config["mounts"].as_array_mut().unwrap();
        mounts.push(json!({"destination": "/data", "type": "bind", "source": "/volume", "options": ["rbind", "rw"]}));
        mounts.push(json!({"destination": at, "type": "bind", "source": "/elsewhere", "options": ["rbind", "rw"]}));
        sandbox.bundle(&config);
        sandbox.mkdir("/volume");
        sandbox.mkdir("/elsewhere");
        symlink(link, sandbox.path("/volume/link")).unwrap();
        let before = sandbox.snapshot();
        let script =
            format!("exec {WRAPPER_THERE} --root /run/runc run -b /bundle {}", unique("c"));
        let message = refused(&sandbox, &before, &sandbox.script(&script, b""));
        assert!(message.contains("inside the mount at"), "{at}: {message}");
    }
}

#[test]
fn a_configuration_that_cannot_be_opened_is_not_passed_by() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    with_fake_runtime(&sandbox);
    sandbox.bundle(&asks());
    fs::remove_file(sandbox.path("/bundle/config.json")).unwrap();
    let output = wrap(&sandbox);
    assert!(
        stdout(&output).starts_with("reached"),
        "what is absent is the runtime's story: {}",
        stderr(&output)
    );
    symlink("config.json", sandbox.path("/bundle/config.json")).unwrap();
    let before = sandbox.snapshot();
    let message = refused(&sandbox, &before, &wrap(&sandbox));
    // ELOOP; each C library words it differently.
    assert!(message.contains("(os error 40)"), "{message}");
}
