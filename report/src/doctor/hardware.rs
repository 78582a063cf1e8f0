//! Hardware and its resources: CPUs, huge pages on the NUMA node of the device that uses them, locked memory, PCIe links.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use onload_core::config::Memlock;
use onload_core::host_settings::{NumaNodeId, PageSize};
use onload_core::policy::MIN_MEMLOCK;
use onload_host::discover::hugepages::NODES;
use onload_host::discover::nic::Nic;
use onload_host::discover::pci::DEVICES;
use onload_host::discover::pcie_link;
use onload_host::generate::{InstalledFiles, generate};
use onload_sys::cpu_list;
use onload_sys::pci::PciAddress;
use onload_sys::text::{format_count, join_first};

use super::check::{Finding, Remedy};
use super::context::{CheckContext, Findings, HostResult};
use super::kernel_line;

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
pub(super) fn check_isolation(context: &CheckContext<'_>) -> Findings {
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

/// 2 MiB.
const MIN_KIB: u64 = 2048;
/// Pages that the line to write sets aside: room for one stack, or for a small DPDK program.
const PAGES: u64 = 64;

pub(super) fn check_hugepages(context: &CheckContext<'_>) -> Findings {
    let mut names_by_node: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    let inventory = context.inventory;
    let nics = hugepage_nics(context).map(|nic| (nic.numa_node, nic.device.clone()));
    let vfio = inventory
        .vfio
        .iter()
        .filter(|device| device.viable)
        .map(|device| (device.numa_node, device.pci_address.to_string()));
    for (node, name) in nics.chain(vfio) {
        if let Some(node) = node {
            names_by_node.entry(node).or_default().push(name);
        }
    }
    // The finding is for the first of these nodes.
    let mut line = Some(config_remedy(
        context,
        names_by_node
            .keys()
            .filter(|node| usable_pages(context, **node) == 0 && !is_configured(context, **node)),
    ));
    let findings = names_by_node.iter().map(|(node, devices)| {
        let node = *node;
        let pages = usable_pages(context, node);
        // Only one name is shown, since a host may have thousands.
        let device = join_first(devices, 1);
        let finding = match pages {
            0 => {
                let more = if is_usable_size(context, node, u64::MAX) { " or more" } else { "" };
                let text = format!("node {node} has no huge pages of 2 MiB{more} for {device}");
                if is_configured(context, node) {
                    Finding::warn(text, Remedy::run("onload-ctk host apply"))
                } else {
                    let finding = Finding::warn(
                        text,
                        Remedy::run(format!(
                            "echo {PAGES} > {NODES}/node{node}/hugepages/hugepages-2048kB/nr_hugepages"
                        )),
                    );
                    line.take().into_iter().fold(finding, Finding::with_remedy)
                }
            }
            pages => {
                let pages = format_count(pages, "huge page", "huge pages");
                Finding::pass(format!("node {node} has {pages} for {device}"))
            }
        };
        let finding = finding.with_path(format!("{NODES}/node{node}/hugepages"));
        finding.with_subject(format!("node {node}"))
    });
    Ok(findings.collect())
}

/// The interfaces whose programs take huge pages.
fn hugepage_nics<'e>(context: &'e CheckContext<'_>) -> impl Iterator<Item = &'e Nic> {
    let inventory = context.inventory;
    let has_tcpdirect = inventory.tcpdirect.is_some();
    inventory.nics.iter().filter(move |nic| nic.datapath.takes_huge_pages(has_tcpdirect))
}

/// Whether pages of that size are of use on a node. Pages larger than 2 MiB are only for vfio.
fn is_usable_size(context: &CheckContext<'_>, node: u32, kib: u64) -> bool {
    kib == MIN_KIB
        || kib > MIN_KIB && !hugepage_nics(context).any(|nic| nic.numa_node == Some(node))
}

/// Whether the configuration sets aside such pages there.
fn is_configured(context: &CheckContext<'_>, node: u32) -> bool {
    context
        .config
        .host
        .hugepages
        .iter()
        .filter(|(size, _)| is_usable_size(context, node, size.kib()))
        .flat_map(|(_, nodes)| nodes.keys())
        .any(|id| id.0 == node)
}

/// The one line that sets aside pages on these nodes too: TOML takes no second one of its name.
fn config_remedy<'n>(context: &CheckContext<'_>, nodes: impl Iterator<Item = &'n u32>) -> Remedy {
    let mut pages = context.config.host.hugepages.clone();
    let size = pages.entry(PageSize::from_kib(MIN_KIB)).or_default();
    size.extend(nodes.map(|node| (NumaNodeId(*node), PAGES)));
    let sizes = pages.iter().map(|(size, nodes)| {
        let nodes = nodes.iter().map(|(node, count)| format!("{} = {count}", node.0));
        format!("{size} = {{ {} }}", nodes.collect::<Vec<_>>().join(", "))
    });
    let line = format!("hugepages = {{ {} }}", sizes.collect::<Vec<_>>().join(", "));
    Remedy::write_under(context.config_file, "[host]", line)
}

/// Pages on a node that are of use there.
fn usable_pages(context: &CheckContext<'_>, node: u32) -> u64 {
    context
        .inventory
        .hugepages
        .iter()
        .filter(|size| is_usable_size(context, node, size.size_kib))
        .flat_map(|size| &size.nodes)
        .filter(|pages| pages.node == node)
        .map(|pages| pages.total)
        .sum()
}

/// Whether memory is pinned: RDMA and vfio do, and engines start containers with a limit of 8 MiB by default.
fn pins_memory(context: &CheckContext<'_>) -> bool {
    let inventory = context.inventory;
    let vfio = inventory.vfio.iter().any(|device| device.viable);
    vfio || !inventory.rdma.is_empty()
}

pub(super) fn check_hook(context: &CheckContext<'_>) -> Findings {
    if !pins_memory(context) && !is_hook_named(context)? {
        return Ok(Vec::new());
    }
    let path = &context.config.cdi.hook_path;
    let finding = if context.is_file(path)? {
        Finding::pass(format!("{} is there", path.display()))
    } else {
        Finding::fail(
            format!(
                "{} does not exist: device nodes are not verified, pools and devices that move have \
                 no specification, and containers keep the engine's memory lock limit",
                path.display()
            ),
            match find_hook(context)? {
                Some(hook) => Remedy::write_under(
                    context.config_file,
                    "[cdi]",
                    format!("hook-path = {:?}", hook.display().to_string()),
                ),
                None => context.reinstall_remedy(),
            },
        )
    };
    Ok(vec![finding.with_path(path)])
}

/// Returns whether a specification names the hook once it is installed.
fn is_hook_named(context: &CheckContext<'_>) -> HostResult<bool> {
    let found = InstalledFiles::read(context.host, context.config)?;
    let installed = InstalledFiles { hook: true, preload_file: true, ..found };
    let specs = generate(context.inventory, &context.pools.offered, context.config, installed);
    Ok(specs.unwrap_or_default().values().any(|spec| {
        let devices = spec.devices.iter().map(|device| &device.container_edits);
        devices.chain([&spec.container_edits]).any(|edits| !edits.hooks.is_empty())
    }))
}

fn find_hook(context: &CheckContext<'_>) -> HostResult<Option<PathBuf>> {
    for directory in ["/usr/bin", "/usr/local/bin", "/opt/onload-ctk/bin"] {
        let path = PathBuf::from(directory).join("onload-hook");
        if context.is_file(&path)? {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

pub(super) fn check_limit(context: &CheckContext<'_>) -> Findings {
    if !pins_memory(context) {
        return Ok(Vec::new());
    }
    let finding = match context.config.cdi.memlock {
        Memlock::Unlimited => Finding::pass("memlock is unlimited"),
        Memlock::Bytes(bytes) if bytes >= MIN_MEMLOCK => {
            Finding::pass(format!("memlock is {} MiB", bytes / 1024 / 1024))
        }
        Memlock::Bytes(bytes) => Finding::warn(
            format!("memlock is {bytes} bytes: too few to register buffers"),
            Remedy::write_under(context.config_file, "[cdi]", "memlock = \"unlimited\""),
        ),
    };
    Ok(vec![finding.with_path(context.config_file)])
}

/// Compares the PCIe link of each card with the maximum of the card and its slot
/// (`Documentation/ABI/testing/sysfs-bus-pci`, `current_link_speed` and the following attributes).
pub(super) fn check_pcie_links(context: &CheckContext<'_>) -> Findings {
    let mut findings = Vec::new();
    for address in offered_cards(context) {
        let directory = Path::new(DEVICES).join(address.to_string());
        let Some(now) = pcie_link::read(context.host, &directory, "current")? else { continue };
        let Some(card) = pcie_link::read(context.host, &directory, "max")? else { continue };
        let real_path = context.host.resolve(&directory)?;
        let slot = match real_path.as_deref().and_then(Path::parent) {
            Some(parent) => pcie_link::read(context.host, parent, "max")?,
            None => None,
        };
        let best = slot.map_or(card, |slot| card.combine(slot));
        let finding = if now.is_slower_than(best) {
            Finding::warn(
                format!(
                    "the link runs at {now}, but card and slot support {best}: reseat the card"
                ),
                Remedy::run(format!("lspci -vv -s {address} | grep -E \"LnkCap|LnkSta\"")),
            )
            .with_first_remedy(context.install_remedy("lspci")?)
        } else {
            Finding::pass(format!("the link runs at {now}"))
        };
        let finding = finding.with_path(directory.join("current_link_speed"));
        findings.push(finding.with_subject(address.to_string()));
    }
    Ok(findings)
}

/// Returns the physical functions of offered devices, since virtual functions have no link.
fn offered_cards(context: &CheckContext<'_>) -> BTreeSet<PciAddress> {
    let inventory = context.inventory;
    let nics = inventory.nics.iter().filter_map(|nic| nic.pci_address);
    let rdma = inventory.rdma.iter().filter_map(|device| device.pci_address);
    let vfio = inventory.vfio.iter().map(|device| device.pci_address);
    let physical = |address: PciAddress| {
        let function = inventory.functions.get(address);
        let parent = function.and_then(|function| function.physical_function);
        parent.unwrap_or(address)
    };
    nics.chain(rdma).chain(vfio).map(physical).collect()
}
