//! CPUs: their frequency governor, and where the isolated ones are.

use std::collections::BTreeSet;

use super::check::{Finding, Remedy};
use super::examined::{Examined, Findings};
use super::kernel_line;
use crate::discover::hugepages::NODES;
use onload_core::cpu_list;

const POLICIES: &str = "/sys/devices/system/cpu/cpufreq";
const ISOLATED: &str = "/sys/devices/system/cpu/isolated";
const FASTEST: &str = "performance";

/// Whether CPUs keep their frequency: one that has to come up first adds tens of microseconds.
pub(super) fn governor(examined: &Examined<'_>) -> Findings {
    let policies = examined.host.list(POLICIES.as_ref())?.names;
    let policies = policies.iter().filter(|name| name.starts_with("policy"));
    let (mut seen, mut slow) = (0, BTreeSet::new());
    for policy in policies {
        let path = format!("{POLICIES}/{policy}/scaling_governor");
        let Some(governor) = examined.attribute(path)? else {
            continue;
        };
        seen += 1;
        if governor != FASTEST {
            slow.insert(governor);
        }
    }
    if seen == 0 || devices_by_node(examined).is_empty() {
        return Ok(Vec::new());
    }
    let finding = match slow.is_empty() {
        true => Finding::pass(format!("{seen} policies of CPUs are set to {FASTEST}")),
        false => {
            let slow: Vec<String> = slow.into_iter().collect();
            let text = format!(
                "the governor of CPUs is {}: their frequency follows the load, and latency with it",
                slow.join(", ")
            );
            let set = format!("cpupower frequency-set --governor {FASTEST}");
            Finding::warn(text, Remedy::run(set))
        }
    };
    Ok(vec![finding.at(POLICIES)])
}

/// Whether isolated CPUs are on a node with a device.
pub(super) fn isolated(examined: &Examined<'_>) -> Findings {
    let isolated = examined.attribute(ISOLATED)?.unwrap_or_default();
    let isolated = cpu_list::parse(&isolated);
    let nodes = devices_by_node(examined);
    if isolated.is_empty() || nodes.is_empty() {
        return Ok(Vec::new());
    }
    let mut elsewhere: Option<(u32, BTreeSet<u32>)> = None;
    for node in &nodes {
        let list = examined.attribute(format!("{NODES}/node{node}/cpulist"))?;
        let cpus = cpu_list::parse(&list.unwrap_or_default());
        if cpus.is_disjoint(&isolated) && !cpus.is_empty() {
            elsewhere = elsewhere.or(Some((*node, cpus)));
        } else if !cpus.is_empty() {
            let text = format!("isolated CPUs are on node {node}, where a device is");
            return Ok(vec![Finding::pass(text).at(ISOLATED)]);
        }
    }
    let Some((node, cpus)) = elsewhere else {
        return Ok(Vec::new());
    };
    // The first CPU of a node is left to interrupts and the kernel.
    let cpus: Vec<String> = cpus.iter().skip(1).map(ToString::to_string).collect();
    let text = format!(
        "no isolated CPU is on a node with a device: programs on them reach node {node} across the sockets"
    );
    let words = format!("isolcpus={}", cpus.join(","));
    let finding = Finding::warn(text, kernel_line::write(examined, &words)?);
    let finding = kernel_line::then_reboot(examined, finding)?;
    Ok(vec![
        finding
            .at(ISOLATED)
            .at(format!("{NODES}/node{node}/cpulist")),
    ])
}

/// The NUMA nodes of what is offered.
fn devices_by_node(examined: &Examined<'_>) -> BTreeSet<u32> {
    let inventory = examined.inventory;
    let nics = inventory.nics.iter().filter_map(|nic| nic.numa_node);
    let rdma = inventory.rdma.iter().filter_map(|device| device.numa_node);
    let vfio = inventory.vfio.iter().filter_map(|device| device.numa_node);
    nics.chain(rdma).chain(vfio).collect()
}
