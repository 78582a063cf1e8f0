//! The extra cost of a captured host: each `Host` reads and keeps the list of its device nodes.

use std::fs;
use std::path::Path;
use std::time::Instant;

use onload_host::host::Host;

const HOSTS: u32 = 10;

pub(crate) fn print_node_list_cost(root: &Path) {
    let before = resident_kb();
    let begin = Instant::now();
    let hosts: Vec<Host> = (0..HOSTS).map(|_| Host::open(root).unwrap()).collect();
    let time = begin.elapsed() / HOSTS;
    let memory = (resident_kb() - before) / HOSTS;
    println!("the list of device nodes, which only a captured host has: {time:?}, {memory} kB");
    drop(hosts);
}

fn resident_kb() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim_end_matches("kB").trim().parse().unwrap()
}
