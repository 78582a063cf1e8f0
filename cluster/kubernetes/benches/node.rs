//! A node with 4096 virtual functions: the memory of the daemon, and the time of its answers.
//!
//! `cargo bench -p onload-kubernetes` prints what docs/performance.md shows. The kubelet is the mock of the
//! tests; the daemon is the program, as a process. With `-- 10000` it prepares so many claims in a row and lets them
//! go, and prints by the tenth what the daemon holds.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

#[path = "../../../benches/support/captured.rs"]
mod captured;
#[path = "../tests/it/support/mod.rs"]
mod support;
#[path = "../../../benches/support/synthetic.rs"]
mod synthetic;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;
use support::claims::{claim_of, result};
use support::dra_kubelet::{Registered, claim};
use support::{AgentHost, ClaimServer, Daemon, KubeletDir, MockKubelet, get};

const DEVICES: usize = 4096;
const ANSWERS: usize = 500;
const VFIO: &str = "onload.dev/vfio";

/// A node without specifications, and with the hook that they name.
fn host() -> AgentHost {
    let host = AgentHost::empty();
    synthetic::build(&host, DEVICES);
    host.hook();
    host
}

fn of_process(daemon: &Daemon, file: &str) -> String {
    fs::read_to_string(format!("/proc/{}/{file}", daemon.pid())).unwrap()
}

fn memory(daemon: &Daemon) {
    let status = of_process(daemon, "status");
    for key in ["VmRSS", "VmHWM", "Threads"] {
        let line = status.lines().find(|line| line.starts_with(key)).unwrap();
        println!("{line}");
    }
}

fn sum(metrics: &str, method: &str) -> f64 {
    let line = format!("onload_kubernetes_request_duration_seconds_sum{{method=\"{method}\"}} ");
    metrics.lines().find_map(|other| other.strip_prefix(&line)).unwrap().parse().unwrap()
}

fn microseconds(seconds: f64, answers: usize) -> f64 {
    seconds * 1e6 / f64::from(u32::try_from(answers).unwrap())
}

/// A daemon that reads claims from this API server, and its driver.
async fn driver(host: &AgentHost, api: &ClaimServer) -> (Daemon, Registered) {
    host.config("[kubernetes]\noffer = \"dra\"\n");
    let kubelet = KubeletDir::make(&host.kubelet_dir());
    let kubeconfig = api.kubeconfig(&host.kubelet_dir());
    let daemon = Daemon::that_writes(host, |command| {
        command.arg("--kubelet-dir").arg(&kubelet.0);
        command.arg("--kubeconfig").arg(kubeconfig);
        command.arg("--node-name").arg("n1");
    });
    (daemon, kubelet.driver().await)
}

/// Claims of one function each, prepared and let go one after the other.
async fn in_a_row(host: &AgentHost, number: usize) {
    let api = ClaimServer::start().await;
    let (daemon, driver) = driver(host, &api).await;
    let functions = functions(host);
    println!(
        "claims | mean of prepare and unprepare | resident | files | threads | specifications"
    );
    let mut begin = Instant::now();
    for answer in 0..number {
        let (name, uid) = (format!("c{answer}"), format!("u{answer}"));
        let device = functions[answer % functions.len()].replace([':', '.'], "-");
        let results = json!([result("r", "n1/vfio", &device)]);
        api.put(claim_of(&name, &uid, results, json!([])));
        assert_eq!(driver.cdi(claim(&name, &uid)).await.unwrap().len(), 3);
        assert_eq!(driver.unprepare(claim(&name, &uid)).await, "");
        api.delete("default", &name);
        if (answer + 1) % (number / 10) == 0 {
            let each = begin.elapsed() / u32::try_from(number / 10).unwrap();
            let status = of_process(&daemon, "status");
            let resident = status
                .lines()
                .find(|line| line.starts_with("VmRSS"))
                .unwrap()
                .trim_start_matches("VmRSS:")
                .trim();
            let entries = |path: &Path| fs::read_dir(path).unwrap().count();
            let proc = PathBuf::from(format!("/proc/{}", daemon.pid()));
            let [files, threads] = ["fd", "task"].map(|name| entries(&proc.join(name)));
            let specs = entries(&host.root().join("var/run/cdi"));
            println!("{} | {each:?} | {resident} | {files} | {threads} | {specs}", answer + 1);
            begin = Instant::now();
        }
    }
}

/// Claims of one function each, one after the other: what the API server takes is in the second number.
async fn claims(host: &AgentHost) {
    let api = ClaimServer::start().await;
    let (daemon, driver) = driver(host, &api).await;
    let functions = functions(host);
    let mut round_trips = Duration::ZERO;
    for (answer, function) in functions.iter().take(ANSWERS).enumerate() {
        let (name, uid) = (format!("c{answer}"), format!("u{answer}"));
        let device = function.replace([':', '.'], "-");
        let results = json!([result("r", "n1/vfio", &device)]);
        api.put(claim_of(&name, &uid, results, json!([])));
        let begin = Instant::now();
        assert_eq!(driver.cdi(claim(&name, &uid)).await.unwrap().len(), 3);
        round_trips += begin.elapsed();
    }
    let (_, metrics) = get(&daemon.http, "/metrics");
    let each = microseconds(sum(&metrics, "NodePrepareResources"), ANSWERS);
    println!("Prepare: {each:.0} µs with the API server of this test, mean of {ANSWERS}");
    let each = microseconds(round_trips.as_secs_f64(), ANSWERS);
    println!("Prepare: {each:.0} µs with the messages");
    for answer in 0..ANSWERS {
        let (name, uid) = (format!("c{answer}"), format!("u{answer}"));
        assert_eq!(driver.unprepare(claim(&name, &uid)).await, "");
    }
    println!("after {ANSWERS} claims:");
    memory(&daemon);
}

/// The functions that stand in the specification, which the daemon has written.
fn functions(host: &AgentHost) -> Vec<String> {
    let bytes = fs::read(host.root().join("var/run/cdi/onload.dev-vfio.json")).unwrap();
    let spec: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    spec["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|device| device["name"].as_str().unwrap().to_owned())
        .filter(|name| name.contains(':'))
        .collect()
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let host = host();
    if let Some(number) = std::env::args().find_map(|word| word.parse().ok()) {
        return in_a_row(&host, number).await;
    }
    captured::print_node_list_cost(host.root());
    plugin(&host).await;
    claims(&host).await;
}

async fn plugin(host: &AgentHost) {
    let kubelet = MockKubelet::start(&host.plugin_dir());
    let begin = Instant::now();
    let daemon = Daemon::that_writes(host, |_| {});
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
