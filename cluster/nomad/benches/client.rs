//! A client with 64 virtual functions, and one with 4096: the memory of the plugin, and the time of its answers.
//!
//! `cargo bench -p onload-nomad` prints what docs/performance.md shows. The agent is that of the tests; the plugin
//! is the program, as a process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

#[path = "../../../benches/support/captured.rs"]
mod captured;
#[path = "../tests/it/support/mod.rs"]
mod support;
#[path = "../../../benches/support/synthetic.rs"]
mod synthetic;

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use onload_cdi::to_json;
use onload_core::config::Config;
use onload_host::generate::{InstalledFiles, generate};
use onload_host::host::Host;
use onload_host::pools;
use serde_json::json;
use support::{Agent, AgentHost};

const FUNCTIONS: [usize; 2] = [64, 4096];
const ANSWERS: usize = 500;

fn host(functions: usize) -> AgentHost {
    let built = AgentHost::empty();
    synthetic::build(&built, functions);
    built.boot("a-boot");
    let (host, config) = (Host::open(built.root()).unwrap(), Config::default());
    let (inventory, pools) = pools::discover_with_pools(&host, &config);
    let surroundings = InstalledFiles { hook: true, ..InstalledFiles::default() };
    let specs = generate(&inventory, &pools.offered, &config, surroundings).unwrap();
    for (name, spec) in specs {
        let path = built.spec_dir().join(format!("onload.dev-{name}.json"));
        fs::write(path, to_json(&spec)).unwrap();
    }
    built
}

fn memory(agent: &Agent) {
    let status = fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    for key in ["VmRSS", "VmHWM", "Threads"] {
        let line = status.lines().find(|line| line.starts_with(key)).unwrap();
        println!("{line}");
    }
}

fn each(all: Duration) -> Duration {
    all / u32::try_from(ANSWERS).unwrap()
}

async fn reserve(agent: &Agent, what: &str, ids: &[String]) {
    let begin = Instant::now();
    for answer in 0..ANSWERS {
        let id = ids[answer % ids.len()].as_str();
        let given = agent.reserve(&[id]).await.unwrap();
        assert!(!given.envs.is_empty());
    }
    println!("Reserve of {what}: {:?} with the messages, mean of {ANSWERS}", each(begin.elapsed()));
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    for functions in FUNCTIONS {
        println!("{functions} functions");
        let host = host(functions);
        captured::print_node_list_cost(host.root());
        client(&host).await;
    }
}

async fn client(host: &AgentHost) {
    let begin = Instant::now();
    let agent = Agent::configured(host, &json!({"runtime": "onload"})).await;
    println!("configured after {:?}", begin.elapsed());
    let begin = Instant::now();
    let published = agent.published().await;
    let devices: usize = published.values().map(|group| group.devices.len()).sum();
    println!(
        "Fingerprint: {} groups with {devices} devices after {:?}",
        published.len(),
        begin.elapsed()
    );
    memory(&agent);
    let ids_by_type = |kind: &str| {
        let ids: BTreeSet<String> = published
            .values()
            .filter(|group| group.device_type == kind)
            .map(|group| group.devices[0].id.clone())
            .collect();
        ids.into_iter().collect::<Vec<String>>()
    };
    reserve(&agent, "a function by a ticket", &ids_by_type("vfio")).await;
    reserve(&agent, "an RDMA device", &ids_by_type("rdma")).await;
    println!("after {} answers:", 2 * ANSWERS);
    memory(&agent);
    let begin = Instant::now();
    let groups = agent.stats().await;
    println!("Stats: {} groups after {:?}", groups.len(), begin.elapsed());
    memory(&agent);
}
