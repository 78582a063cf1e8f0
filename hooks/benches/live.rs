//! The cost of injection into a living container: the hook's wall time and peak memory while runc
//! waits for it.
//!
//! `cargo bench -p onload-hooks --bench live`; the figures are in docs/performance.md.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement")]

#[path = "../tests/it/common/mod.rs"]
mod common;

use common::{HOOK_THERE, Sandbox, config, has_runc, stderr};
use serde_json::json;

const ROUNDS: usize = 50;

fn main() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    let annotations = json!({"onload.dev/nic": "all", "onload.dev/rdma": "rxe0"});
    let mut config = config(&annotations, ":");
    config["process"]["rlimits"] = json!([{"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 4096}]);
    config["hooks"] = json!({
        "createRuntime": [{"path": "/opt/onload/timed", "env": ["PATH=/usr/bin:/bin"]}],
        "poststop": [{"path": HOOK_THERE, "args": ["onload-hook", "poststop"], "env": ["PATH=/usr/bin"]}]
    });
    sandbox.bundle(&config);
    let times = measure(
        &sandbox,
        &format!(
            "TIMEFORMAT=%3R; exec 4>> /tmp/measured; {{ time {HOOK_THERE} createRuntime; }} 2>&4"
        ),
    );
    println!(
        "wall time: median {} s, highest {} s",
        times[times.len() / 2],
        times[times.len() - 1]
    );
    let sizes = measure(
        &sandbox,
        &format!("exec /usr/bin/time -a -o /tmp/measured -f %M {HOOK_THERE} createRuntime"),
    );
    println!("peak memory: highest {} KiB", sizes[sizes.len() - 1]);
}

/// The sorted lines that a script in place of the hook wrote.
fn measure(sandbox: &Sandbox, script: &str) -> Vec<f64> {
    sandbox.file("/opt/onload/timed", format!("#!/bin/bash\n{script}\n"));
    sandbox.chmod("/opt/onload/timed", 0o755);
    let id = std::process::id();
    // As on a host: a sync costs nothing there.
    let run = format!(
        "rm -rf /tmp/measured /tmp/run; cp -a /run /tmp/run; mount -t tmpfs -o mode=755 none /run; cp -a /tmp/run/. /run
         i=0; while test $i -lt {ROUNDS}; do i=$((i+1))
         runc --root /run/runc run -b /bundle onload-ctk-bench-{id} || exit 1; done"
    );
    let output = sandbox.script(&run, b"");
    assert!(output.status.success(), "{}", stderr(&output));
    let text = sandbox.read("/tmp/measured");
    // The hook's warnings may be among them.
    let mut values: Vec<f64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    assert_eq!(values.len(), ROUNDS, "{text}");
    values.sort_by(f64::total_cmp);
    values
}
