//! Containers of this machine's runc that nothing of ours changed before they were made: the hook
//! puts into them what they ask for.

mod common;

use std::process::Output;

use common::{HOOK_THERE, Sandbox, config, has_runc, stderr, stdout};
use serde_json::{Value, json};

const MAPPED: &str = "while read -r line; do case $line in *libonload.so*) echo mapped; break;; esac; done < /proc/self/maps";

/// A configuration whose hooks are ours.
fn live(annotations: Value, command: &str) -> Value {
    let mut config = config(annotations, command);
    config["process"]["rlimits"] = json!([{"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 4096}]);
    let hook = |stage: &str| {
        json!([{"path": HOOK_THERE, "args": ["onload-hook", stage],
                "env": ["PATH=/usr/sbin:/usr/bin"], "timeout": 10}])
    };
    config["hooks"] = json!({"createRuntime": hook("createRuntime"), "poststop": hook("poststop")});
    config
}

fn run(sandbox: &Sandbox, id: &str) -> Output {
    sandbox.script(
        &format!("exec runc --root /run/runc run -b /bundle {id}"),
        b"",
    )
}

fn unique(name: &str) -> String {
    format!("onload-ctk-live-{name}-{}", std::process::id())
}

/// Every file of the container's root, with its size: what a container leaves in its image.
fn root_files(sandbox: &Sandbox) -> Vec<String> {
    let output = sandbox.script(
        "cd /bundle/rootfs && find . -printf '%p %y %s\\n' | sort",
        b"",
    );
    stdout(&output).lines().map(str::to_owned).collect()
}

fn mounts() -> usize {
    std::fs::read_to_string("/proc/self/mountinfo")
        .unwrap()
        .lines()
        .count()
}

#[test]
fn a_container_can_open_the_nodes_and_has_the_library_and_the_preload() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    let command = format!(
        "exec 3<>/dev/onload && echo opened; {MAPPED}; echo ${{LD_PRELOAD:-no variable}}; \
         /bin/sh -c '{MAPPED}'; read -r line < /etc/ld.so.preload; echo $line"
    );
    sandbox.bundle(&live(json!({"onload.dev/nic": "all"}), &command));
    let (before, files) = (sandbox.snapshot(), root_files(&sandbox));
    let mounts_before = mounts();
    let output = run(&sandbox, &unique("nic"));
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(
        stdout(&output),
        "opened\nmapped\nno variable\nmapped\nlibonload.so\n",
        "{}",
        stderr(&output)
    );
    let left: Vec<_> = sandbox
        .snapshot()
        .into_iter()
        .filter(|entry| {
            !before.contains(entry) && entry.0 != std::path::Path::new("run/onload-ctk")
        })
        .collect();
    assert_eq!(left, Vec::new(), "left on the host");
    assert_eq!(root_files(&sandbox), files, "left in the image");
    assert_eq!(mounts(), mounts_before);
}
