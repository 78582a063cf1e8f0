//! A node with 4096 virtual functions: the memory of the daemon, and the time of its answers.
//!
//! `cargo bench -p onload-kubernetes` prints what docs/performance.md shows. The kubelet is the mock of the
//! tests; the daemon is the program, as a process.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, missing_docs)]

#[path = "../tests/support/mod.rs"]
mod support;
#[path = "../../../benches/support/synthetic.rs"]
mod synthetic;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

use support::{Daemon, MockKubelet, TestHost, get};

const DEVICES: usize = 4096;
const ANSWERS: usize = 500;
const VFIO: &str = "onload.dev/vfio";

/// A node without specifications, and with the hook that they name.
fn host() -> TestHost {
    let host = TestHost::empty();
    synthetic::build(&host.root(), DEVICES).unwrap();
    let hook = host.root().join("usr/bin/onload-hook");
    fs::create_dir_all(hook.parent().unwrap()).unwrap();
    fs::write(&hook, "").unwrap();
    fs::set_permissions(hook, Permissions::from_mode(0o755)).unwrap();
    host
}

fn memory(daemon: &Daemon) {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    for key in ["VmRSS", "VmHWM", "Threads"] {
        let line = status.lines().find(|line| line.starts_with(key)).unwrap();
        println!("{line}");
    }
}

fn sum(metrics: &str, method: &str) -> f64 {
    let line = format!("onload_kubernetes_request_duration_seconds_sum{{method=\"{method}\"}} ");
    let value = metrics.lines().find_map(|other| other.strip_prefix(&line));
    value.unwrap().parse().unwrap()
}

fn microseconds(seconds: f64, answers: usize) -> f64 {
    seconds * 1e6 / f64::from(u32::try_from(answers).unwrap())
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let host = host();
    let kubelet = MockKubelet::start(&host.plugin_dir());
    let begin = Instant::now();
    let daemon = Daemon::that_writes(&host);
    let vfio = kubelet.registered(VFIO).await;
    let until = begin.elapsed();
    println!("{} devices of {VFIO} after {until:?}", vfio.ids().len());
    let ids = vfio.ids();
    println!("registered:");
    memory(&daemon);
    let begin = Instant::now();
    for answer in 0..ANSWERS {
        let ids = [0, 1, 2, 3].map(|more| ids[(answer * 4 + more) % ids.len()]);
        assert_eq!(vfio.cdi(&ids).await.len(), 4);
    }
    let round_trips = begin.elapsed();
    for _ in 0..ANSWERS {
        assert_eq!(vfio.preferred(&ids, 4).await.len(), 4);
    }
    let (_, metrics) = get(&daemon.http, "/metrics");
    for method in ["Allocate", "GetPreferredAllocation"] {
        let each = microseconds(sum(&metrics, method), ANSWERS);
        println!("{method}: {each:.0} µs of its own, mean of {ANSWERS}");
    }
    let each = microseconds(round_trips.as_secs_f64(), ANSWERS);
    println!("Allocate: {each:.0} µs with the messages");
    println!("after {} answers:", 2 * ANSWERS);
    memory(&daemon);
}
