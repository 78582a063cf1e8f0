//! CPUs: their frequency governor, and where the isolated ones are.

use std::collections::BTreeSet;

use onload_host::discover::hugepages::NODES;

use super::check::{Finding, Remedy};
use super::context::{CheckContext, Findings, HostResult};
use super::kernel_line;
use onload_sys::cpu_list;
use onload_sys::text::format_count;

const POLICIES: &str = "/sys/devices/system/cpu/cpufreq";
const ISOLATED: &str = "/sys/devices/system/cpu/isolated";
/// Prefix of the kernel parameter that isolates CPUs.
const ISOLATE: &str = "isolcpus=";
const FASTEST: &str = "performance";

/// Whether CPUs keep their frequency: one that has to come up first adds tens of microseconds.
pub(super) fn check_governor(context: &CheckContext<'_>) -> Findings {
    let (mut count, mut slow) = (0, BTreeSet::new());
    for policy in context.host.list(POLICIES.as_ref())?.names {
        if !policy.starts_with("policy") {
            continue;
        }
        let path = format!("{POLICIES}/{policy}/scaling_governor");
        let Some(governor) = context.attribute(path)? else { continue };
        count += 1;
        if governor != FASTEST {
            slow.insert(governor);
        }
    }
    if count == 0 || device_numa_nodes(context).is_empty() {
        return Ok(Vec::new());
    }
    let finding = if slow.is_empty() {
        Finding::pass(format!(
            "{} set to {FASTEST}",
            format_count(count, "policy of CPUs is", "policies of CPUs are")
        ))
    } else {
        let slow: Vec<String> = slow.into_iter().collect();
        let text = format!(
            "the governor of CPUs is {}: their frequency follows the load, and latency with it",
            slow.join(", ")
        );
        let set = format!("cpupower frequency-set --governor {FASTEST}");
        Finding::warn(text, Remedy::run(set)).with_first_remedy(context.install_remedy("cpupower")?)
    };
    Ok(vec![finding.with_path(POLICIES)])
}

/// A host that isolates none is not asked for more.
pub(super) fn check_isolated_cpus(context: &CheckContext<'_>) -> Findings {
    let isolated = match read_cpus(context, ISOLATED)? {
        Ok(isolated) => isolated,
        Err(unknown) => return Ok(vec![unknown]),
    };
    let nodes = device_numa_nodes(context);
    if isolated.is_empty() || nodes.is_empty() {
        return Ok(Vec::new());
    }
    let mut has_cpus = false;
    let mut candidate: Option<(u32, BTreeSet<u32>)> = None;
    for node in &nodes {
        let mut cpus = match read_cpus(context, &format!("{NODES}/node{node}/cpulist"))? {
            Ok(cpus) => cpus,
            Err(unknown) => return Ok(vec![unknown]),
        };
        if !cpus.is_disjoint(&isolated) {
            let text = format!("isolated CPUs are on node {node}, which has a device");
            return Ok(vec![Finding::pass(text).with_path(ISOLATED)]);
        }
        // The first CPU of a node is left to interrupts and the kernel.
        has_cpus |= cpus.pop_first().is_some();
        if !cpus.is_empty() {
            candidate = candidate.or(Some((*node, cpus)));
        }
    }
    let Some((node, cpus)) = candidate else {
        if !has_cpus {
            return Ok(Vec::new());
        }
        let text = "no node with a device has more than one CPU";
        return Ok(vec![Finding::pass(text).with_path(ISOLATED)]);
    };
    let finding = isolate_finding(context, node, &cpus)?.with_path(ISOLATED);
    Ok(vec![finding.with_path(format!("{NODES}/node{node}/cpulist"))])
}

/// The CPUs that a file lists, or that they are unknown: advice by a part of a list would be wrong.
fn read_cpus(context: &CheckContext<'_>, path: &str) -> HostResult<Result<BTreeSet<u32>, Finding>> {
    let list = context.attribute(path)?.unwrap_or_default();
    Ok(cpu_list::parse_kernel_list(&list).map_err(|error| {
        let text = format!("could not determine which CPUs are isolated near a device: {error}");
        Finding::unknown(text, Remedy::run(format!("od -c {path}"))).with_path(path)
    }))
}

/// How CPUs of a node become the isolated ones. The kernel takes the first `isolcpus=` of its line and ignores
/// those after it (kernel/sched/isolation.c), so that one is changed and none is added.
fn isolate_finding(
    context: &CheckContext<'_>,
    node: u32,
    cpus: &BTreeSet<u32>,
) -> HostResult<Finding> {
    let text = format!(
        "no isolated CPU is on a node with a device: programs on them reach node {node} across the sockets"
    );
    let cpus = cpu_list::format_list(cpus);
    let finding = match kernel_line::find_word(context, ISOLATE)? {
        Some(word) => {
            let flags = isolation_flags(&word);
            let change = kernel_line::replace(context, &word, &format!("{ISOLATE}{flags}{cpus}"))?;
            Finding::warn(text, change).with_path(kernel_line::CMDLINE_PATH)
        }
        // They are isolated by a cpuset.
        None => Finding::warn(text, kernel_line::write(context, &format!("{ISOLATE}{cpus}"))?),
    };
    kernel_line::with_reboot(context, finding)
}

/// The flags before the CPUs in the parameter, with the final comma.
fn isolation_flags(word: &str) -> &str {
    let value = word.strip_prefix(ISOLATE).unwrap_or_default();
    let cpus = value.find(|c: char| c.is_ascii_digit()).unwrap_or_default();
    value.get(..cpus).unwrap_or_default()
}

fn device_numa_nodes(context: &CheckContext<'_>) -> BTreeSet<u32> {
    let inventory = context.inventory;
    let nics = inventory.nics.iter().filter_map(|nic| nic.numa_node);
    let rdma = inventory.rdma.iter().filter_map(|device| device.numa_node);
    let vfio = inventory.vfio.iter().filter_map(|device| device.numa_node);
    nics.chain(rdma).chain(vfio).collect()
}
