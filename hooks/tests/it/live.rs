//! Containers whose hook fails, is killed, or races with the image. The rest are cases in `tests/cases/live` and
//! `tests/cases/wrapper`.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{
    HOOK_THERE, Sandbox, WRAPPER_THERE, config, has_runc, is_root, stderr, stdout, unique,
};
use crate::session;
use onload_test_needs as needs;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};

const RUNC: &str = "timeout 60 runc --root /run/runc";

/// A host whose `/dev/onload` is a device that runc does not give by itself: the kernel's log, which
/// may be opened for writing without any capability. None where no container can be run.
#[track_caller]
fn host() -> Option<Sandbox> {
    if !has_runc() {
        return None;
    }
    let sandbox = Sandbox::new();
    fs::remove_file(sandbox.path("/dev/onload")).unwrap();
    sandbox.node("/dev/onload", 1, 11);
    Some(sandbox)
}

fn live(annotations: &Value, command: &str) -> Value {
    let mut config = config(annotations, command);
    session::add_hooks(&mut config);
    config
}

fn script_of(id: &str) -> String {
    format!("exec {RUNC} run -b /bundle {id}")
}

/// The host with everything that a container could leave on it.
fn traces(sandbox: &Sandbox) -> BTreeMap<String, String> {
    session::traces(sandbox, &unique("c"))
}

/// The one line that our hook says, out of what runc makes of it.
fn one_line(output: &Output, id: &str) -> String {
    let message = stderr(output);
    assert!(!output.status.success(), "{message}");
    assert!(!stdout(output).contains("started"), "{message}");
    let count = message.matches("onload-hook createRuntime: ").count();
    assert_eq!(count, 1, "{message}");
    assert!(message.contains(&format!("container {id}: ")), "{message}");
    // runc quotes what a hook said.
    message.replace("\\\"", "\"")
}

#[test]
fn a_directory_that_is_swapped_for_a_link_while_the_hook_looks_never_leads_out() {
    let Some(sandbox) = host() else { return };
    let mut config = live(&json!({"onload.dev/nic": "all", "onload.dev/preload": "off"}), ":");
    config["mounts"].as_array_mut().unwrap().push(
        json!({"destination": "/host", "type": "bind", "source": "/volume", "options": ["bind", "rw"]}),
    );
    sandbox.mkdir("/volume/lib64");
    sandbox.bundle(&config);
    sandbox.mkdir("/bundle/rootfs/host");
    let usr = |name: &str| sandbox.path(&format!("/bundle/rootfs/usr/{name}"));
    symlink("/host/lib64", usr("link")).unwrap();
    // What the image itself becomes is its own affair.
    let host_only = || -> BTreeMap<String, String> {
        traces(&sandbox).into_iter().filter(|(path, _)| !path.starts_with("/bundle")).collect()
    };
    let before = host_only();
    let id = unique("c");
    let script = format!(
        "i=0; while test $i -lt 20; do i=$((i+1)); {RUNC} run -b /bundle {id} && echo started; done"
    );
    let done = AtomicBool::new(false);
    let swap = || {
        while !done.load(Ordering::Relaxed) {
            let exchange = RenameFlags::EXCHANGE;
            renameat_with(CWD, usr("lib64"), CWD, usr("link"), exchange).unwrap();
        }
    };
    let output = std::thread::scope(|scope| {
        scope.spawn(swap);
        let output = sandbox.script(&script, b"");
        done.store(true, Ordering::Relaxed);
        output
    });
    println!("{} of 20 containers started", stdout(&output).lines().count());
    assert_eq!(host_only(), before, "{}", stderr(&output));
}

/// The system calls whose failure is tried, each with an error that it may have.
const CALLS: [(&str, &str); 16] = [
    ("openat", "EMFILE"),
    ("openat2", "EMFILE"),
    ("fstat", "EIO"),
    ("newfstatat", "EIO"),
    ("statx", "EIO"),
    ("read", "EIO"),
    ("write", "ENOSPC"),
    ("fsync", "EIO"),
    ("fchmod", "EROFS"),
    ("renameat", "EIO"),
    ("mkdirat", "ENOSPC"),
    ("open_tree", "ENOMEM"),
    ("mount_setattr", "ENOSYS"),
    ("setns", "EPERM"),
    ("move_mount", "EINVAL"),
    ("prlimit64", "EINVAL"),
];

/// A container whose hook runs under strace, and is called at the end or not.
#[track_caller]
fn traced_host(has_poststop: bool) -> Option<Sandbox> {
    let sandbox = host()?;
    if !needs::programs(&["strace"]) {
        return None;
    }
    sandbox.file(
        "/opt/onload/traced",
        format!("#!/bin/sh\nexec strace -qq -o /tmp/trace $(cat /tmp/options) {HOOK_THERE} createRuntime\n"),
    );
    sandbox.chmod("/opt/onload/traced", 0o755);
    let mut config =
        live(&json!({"onload.dev/nic": "all", "onload.dev/rdma": "rxe0"}), "echo started");
    config["hooks"]["createRuntime"] =
        json!([{"path": "/opt/onload/traced", "env": ["PATH=/usr/bin:/bin"]}]);
    config["hooks"]
        .as_object_mut()
        .unwrap()
        .retain(|stage, _| stage == "createRuntime" || has_poststop);
    sandbox.bundle(&config);
    Some(sandbox)
}

/// Runs it with these options of strace. A hook that hangs is a failure with a line; it takes
/// milliseconds, and runc is given up later.
fn traced(sandbox: &Sandbox, options: &str) -> Output {
    sandbox.file("/tmp/options", options);
    sandbox.script_within(Duration::from_secs(50), &script_of(&unique("c")))
}

/// The calls that a run made while it changed something, each with its number among its like.
fn changing_calls(sandbox: &Sandbox) -> Vec<(&'static str, &'static str, usize)> {
    let trace = sandbox.read("/tmp/trace");
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut found = Vec::new();
    let mut has_begun = false;
    for line in trace.lines() {
        let name = line.split('(').next().unwrap();
        let Some((call, error)) = CALLS.into_iter().find(|(call, _)| *call == name) else {
            continue;
        };
        let nth = seen.entry(call).or_default();
        *nth += 1;
        // The first thing that is made is the container's directory.
        has_begun |= call == "mkdirat";
        // A warning that cannot be said, or of which it cannot be told whether anybody hears it, and
        // a size that would have spared an allocation.
        let of_a_warning = line.starts_with("write(2,") || line.starts_with("fstat(2,");
        let is_idle = of_a_warning || line.contains("STATX_ALL");
        if has_begun && !is_idle {
            found.push((call, error, *nth));
        }
    }
    found
}

/// One call of that name, counted from 1, fails or kills the hook: `what` is `error=EIO` or `signal=KILL`.
fn fault(call: &str, what: &str, nth: usize) -> String {
    format!("-e inject={call}:{what}:when={nth}")
}

#[test]
fn whichever_system_call_fails_the_container_does_not_start_and_nothing_is_left() {
    let Some(sandbox) = traced_host(false) else {
        return;
    };
    let before = traces(&sandbox);
    // The first makes the directory of all containers.
    for _ in 0..2 {
        let output = traced(&sandbox, "");
        assert_eq!(stdout(&output), "started\n", "{}", stderr(&output));
        // Nobody cleans up here but the hook itself, where it fails.
        let id = unique("c");
        let state = format!("{{\"id\":\"{id}\",\"status\":\"stopped\"}}");
        let script = format!("exec {HOOK_THERE} poststop");
        assert!(sandbox.script(&script, state.as_bytes()).status.success());
        assert_eq!(traces(&sandbox), before);
    }
    let calls = changing_calls(&sandbox);
    for (call, error, nth) in &calls {
        let inject = fault(call, &format!("error={error}"), *nth);
        let output = traced(&sandbox, &inject);
        let injected = sandbox.read("/tmp/trace");
        let injected = injected.lines().find(|line| line.ends_with("(INJECTED)"));
        println!("{} {}", injected.unwrap(), stderr(&output));
        one_line(&output, &unique("c"));
        assert_eq!(traces(&sandbox), before, "{inject}");
    }
    println!("{} failures were tried", calls.len());
}

/// One makes a target and fails a moment later, when the other has mounted onto it.
#[test]
fn a_hook_that_fails_leaves_another_container_in_the_same_root_its_mounts() {
    let Some(sandbox) = traced_host(true) else {
        return;
    };
    let mut other = live(
        &json!({"onload.dev/nic": "all", "onload.dev/preload": "off"}),
        &format!(
            "while ! test -e /tmp/failed; do read -r x < /proc/loadavg; done; {}",
            "n=0; while read -r a b c d point rest; do test \"$point\" = /usr/lib64/libonload.so && n=$((n+1)); done < /proc/self/mountinfo; echo $n"
        ),
    );
    other["root"]["path"] = json!("/bundle/rootfs");
    sandbox.file("/other/config.json", serde_json::to_vec(&other).unwrap());
    let before = traces(&sandbox);
    let id = unique("c");
    // The fourth mount is the first whose target lasts: those before go into the container's own /dev.
    let fault = fault("move_mount", "error=EINVAL:delay_enter=5s", 4);
    sandbox.file("/tmp/options", format!("-e trace=move_mount {fault}"));
    let script = format!(
        "{RUNC} run -b /bundle {id} 2> /tmp/said & failing=$!
         while ! test -e /bundle/rootfs/usr/lib64/libonload.so; do :; done
         {RUNC} run -b /other {id}-other > /tmp/out & other=$!
         while ! grep -qs '\"live\":.\"pid\"' /run/onload-ctk/{id}-other/record.json && kill -0 $failing; do :; done
         wait $failing; : > /bundle/rootfs/tmp/failed; wait $other
         rm /bundle/rootfs/tmp/failed; cat /tmp/out /tmp/said"
    );
    let output = sandbox.script_within(Duration::from_secs(50), &script);
    let text = stdout(&output);
    assert!(text.starts_with("1\n"), "{text} {}", stderr(&output));
    assert!(text.contains("mounting onto"), "{text}");
    assert_eq!(traces(&sandbox), before);
}

#[test]
fn whenever_the_hook_is_killed_the_container_does_not_start_and_nothing_is_left() {
    let Some(sandbox) = traced_host(true) else {
        return;
    };
    let before = traces(&sandbox);
    // The first makes the directory of all containers.
    for _ in 0..2 {
        assert_eq!(stdout(&traced(&sandbox, "")), "started\n");
    }
    let calls = changing_calls(&sandbox);
    for (call, _, nth) in &calls {
        let inject = fault(call, "signal=KILL", *nth);
        let output = traced(&sandbox, &inject);
        assert!(!output.status.success(), "{inject}");
        assert_eq!(stdout(&output), "", "{inject}");
        assert_eq!(traces(&sandbox), before, "{inject}");
    }
    println!("it was killed {} times", calls.len());
}

/// This program's own test, run once more without a runtime in reach.
#[test]
fn without_runc_a_test_fails_where_it_is_required_and_says_elsewhere_that_it_checked_nothing() {
    let name = "live::a_directory_that_is_swapped_for_a_link_while_the_hook_looks_never_leads_out";
    let run = |require: &str| {
        let mut test = Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", name, "--test-threads=2"]);
        test.env("PATH", "/nonexistent").env(needs::REQUIRE, require);
        let output = test.output().unwrap();
        let message = stdout(&output) + &stderr(&output);
        assert!(message.contains("running 1 test"), "{message}");
        (output.status.success(), message)
    };
    let (passed, message) = run("1");
    assert!(!passed, "{message}");
    let asked = "ONLOAD_CTK_REQUIRE_ROOT=1 asks for every test";
    assert!(message.contains(asked), "{message}");
    let (passed, message) = run("");
    assert!(passed, "{message}");
    assert!(message.contains(&format!("skipped: {name}: ")), "{message}");
}

#[test]
fn a_start_with_a_request_asks_the_kernel_for_nothing_twice() {
    if !is_root() || !needs::programs(&["strace"]) {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.allow(&["nic"], "[runtime]\npath = \"/usr/bin/true\"");
    let node = json!({"deviceNodes": [{"path": "/dev/onload", "permissions": "rw"}]});
    let spec = json!({"cdiVersion": "0.3.0", "kind": "onload.dev/nic",
        "devices": [{"name": "all", "containerEdits": node}]});
    sandbox.file("/etc/cdi/onload.dev-nic.json", spec.to_string());
    sandbox.bundle(&config(&json!({"onload.dev/nic": "all"}), ":"));
    // The first makes the directory for what runtimes are remembered.
    let create = format!("{WRAPPER_THERE} create -b /bundle");
    let script = format!(
        "cp /bundle/config.json /asks && {create} before && cp /asks /bundle/config.json &&
         strace -qq -o /trace {create} new && cat /trace"
    );
    let output = sandbox.script(&script, b"");
    let trace = stdout(&output);
    assert!(output.status.success(), "{trace} {}", stderr(&output));
    let (calls, _) = trace.rsplit_once("execve(").unwrap();
    let count =
        |name: &str| calls.lines().filter(|line| line.starts_with(&format!("{name}("))).count();
    // The configuration and the record of its runtime.
    for (name, wanted) in [("renameat", 2), ("capget", 1), ("flock", 0), ("mmap", 0), ("munmap", 0)]
    {
        assert_eq!(count(name), wanted, "{name}: {calls}");
    }
    for limit in ["NOFILE", "MEMLOCK"] {
        let asked = calls.matches(&format!("RLIMIT_{limit}")).count();
        assert_eq!(asked, 1, "{limit}: {calls}");
    }
}
