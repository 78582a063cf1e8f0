//! Obstacles to GPUDirect RDMA other than ACS: registration of GPU memory, the IOMMU, a distant
//! NIC, and Data Direct.

use onload_host::devices::gpu_nics::GpuNicMap;
use onload_host::discover::gpu::{self, Distance};
use onload_host::discover::pci::DEVICES;
use onload_sys::pci::PciAddress;
use onload_sys::text::{ShortList, format_count, quote_for_shell};

use super::acs;
use super::check::{Finding, Remedy};
use super::context::{CheckContext, Findings, HostResult, RELEASE};
use super::kernel_line;

const PEERMEM: &str = "/sys/module/nvidia_peermem";
/// Its predecessor, which Mellanox published.
const NV_PEER_MEM: &str = "/sys/module/nv_peer_mem";
const NVIDIA_VERSION: &str = "/proc/driver/nvidia/version";
const SYMBOLS: &str = "/proc/kallsyms";
/// The symbol that nvidia_peermem requires; the kernel's own `ib_core` lacks it.
const PEER_MEMORY: &[u8] = b"ib_register_peer_memory_client";
/// The first open modules that give memory as dma-buf, and the first kernel whose RDMA takes it.
const FIRST_OPEN: u32 = 515;
const FIRST_KERNEL: (u32, u32) = (5, 12);
/// As RCCL looks for them (src/misc/rocmwrap.cc and src/transport/net_ib).
const AMD_PEERS: [&str; 2] =
    ["/sys/kernel/mm/memory_peers/amdkfd/version", "/sys/memory_peers/amdkfd/version"];
const AMD_OPTIONS: [&str; 2] = ["CONFIG_PCI_P2PDMA", "CONFIG_DMABUF_MOVE_NOTIFY"];
const GROUPS: &str = "/sys/kernel/iommu_groups";

/// Whether the drivers let RDMA register memory of the GPUs.
pub(super) fn check_peer_memory(context: &CheckContext<'_>) -> Findings {
    if context.inventory.rdma.is_empty() {
        return Ok(Vec::new());
    }
    let has =
        |vendor: &str| gpu::gpus(&context.inventory.functions).any(|(_, name)| name == vendor);
    let mut findings = Vec::new();
    if has("NVIDIA") && context.exists("/sys/module/nvidia")? {
        findings.push(nvidia_finding(context)?);
    }
    if has("AMD") && context.exists("/sys/module/amdgpu")? {
        findings.push(amd_finding(context)?);
    }
    Ok(findings)
}

fn nvidia_finding(context: &CheckContext<'_>) -> HostResult<Finding> {
    if context.exists(PEERMEM)? {
        return Ok(Finding::pass("nvidia_peermem is loaded").with_path(PEERMEM));
    }
    if context.exists(NV_PEER_MEM)? {
        let text = "nv_peer_mem is loaded, the predecessor of nvidia_peermem";
        return Ok(Finding::pass(text).with_path(NV_PEER_MEM));
    }
    let finding = if has_dma_buf(context)? {
        Finding::pass(
            "NVIDIA's open modules export GPU memory as dma-buf, so nvidia_peermem is not needed",
        )
    } else {
        let text = "nvidia_peermem is not loaded, and the driver does not export GPU memory as \
            dma-buf: transfers from GPUs are copied by the CPU";
        if can_load_peermem(context)? {
            let finding = Finding::warn(text, Remedy::run("modprobe nvidia-peermem"));
            let keep = context.module_remedy("nvidia-peermem")?;
            keep.into_iter().fold(finding, Finding::with_remedy)
        } else {
            let text =
                format!("{text}; nvidia_peermem does not load with the ib_core of this kernel");
            Finding::warn(text, open_modules()).with_path(SYMBOLS)
        }
    };
    Ok(finding.with_path(PEERMEM).with_path(NVIDIA_VERSION).with_path(RELEASE))
}

fn open_modules() -> Remedy {
    Remedy::install(
        format!("NVIDIA's open kernel modules, {FIRST_OPEN} or newer"),
        "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/",
    )
}

fn has_dma_buf(context: &CheckContext<'_>) -> HostResult<bool> {
    let version = context.attribute(NVIDIA_VERSION)?.unwrap_or_default();
    let is_new = open_version(&version).is_some_and(|version| version >= FIRST_OPEN);
    Ok(is_new && context.kernel_version()? >= Some(FIRST_KERNEL))
}

/// Returns the first number of a version such as `NVRM version: NVIDIA UNIX Open Kernel Module for
/// x86_64 570.86.15 Release Build`, or `None` for the closed modules.
fn open_version(text: &str) -> Option<u32> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    let (_, version) = line.split_once(" Open Kernel Module ")?;
    let mut words = version.split_whitespace();
    words.find_map(|word| word.split_once('.')?.0.parse().ok())
}

/// Whether `ib_core` has what it loads with; so it is taken to be where nothing says it.
fn can_load_peermem(context: &CheckContext<'_>) -> HostResult<bool> {
    let matches = context.host.lines(SYMBOLS.as_ref(), &|line| {
        line.split(|byte| *byte == b' ' || *byte == b'\t').any(|word| word == PEER_MEMORY)
    })?;
    Ok(matches.is_none_or(|lines| !lines.is_empty()))
}

fn amd_finding(context: &CheckContext<'_>) -> HostResult<Finding> {
    for peers in AMD_PEERS {
        if context.exists(peers)? {
            return Ok(Finding::pass("amdgpu exports GPU memory to RDMA").with_path(peers));
        }
    }
    let release = context.attribute(RELEASE)?.unwrap_or_default();
    for file in [format!("/boot/config-{release}"), format!("/lib/modules/{release}/config")] {
        let Some(text) = context.host.text(file.as_ref())? else { continue };
        let mut off = Vec::new();
        for option in AMD_OPTIONS {
            let on = format!("{option}=y");
            if !text.lines().any(|line| line == on) {
                off.push(option.to_owned());
            }
        }
        let finding = if off.is_empty() {
            Finding::pass("the kernel exports AMD GPU memory as dma-buf")
        } else {
            let text = format!(
                "the kernel is built without {}: transfers from AMD GPUs are copied by the CPU",
                ShortList(&off)
            );
            let kernel = format!(
                "a kernel with {}",
                AMD_OPTIONS.map(|option| format!("{option}=y")).join(" and ")
            );
            Finding::warn(
                text,
                Remedy::install(kernel, "the distribution, or https://www.kernel.org"),
            )
        };
        return Ok(finding.with_path(file));
    }
    let text = "could not determine whether the kernel exports AMD GPU memory as dma-buf: its \
        configuration is not in /boot";
    let command = format!("zgrep -E '{}' /proc/config.gz", AMD_OPTIONS.join("|"));
    Ok(Finding::unknown(text, Remedy::run(command)).with_path("/boot"))
}

/// Whether the IOMMU translates what GPUs and their NICs do: then what goes between them passes the CPU. A NIC that
/// translates itself, and Data Direct, are made for that.
pub(super) fn check_iommu(context: &CheckContext<'_>) -> Findings {
    let gpu_nics = GpuNicMap::from_inventory(context.inventory);
    let mut translated: Vec<(PciAddress, u32, String)> = Vec::new();
    let mut has_pair = false;
    for (gpu, nic) in gpu_nics.pairs() {
        if gpu_nics.data_functions(gpu, nic)[1] != nic || acs::has_ats_enabled(context, nic)? {
            continue;
        }
        has_pair = true;
        for address in [gpu, nic] {
            let function = context.inventory.functions.get(address);
            let Some(group) = function.and_then(|function| function.iommu_group) else { continue };
            let kind = context
                .attribute(format!("{GROUPS}/{group}/type"))?
                .filter(|kind| kind.starts_with("DMA"));
            translated.extend(kind.map(|kind| (address, group, kind)));
        }
    }
    translated.sort();
    translated.dedup();
    let Some((_, group, kind)) = translated.first() else {
        let text = "the IOMMU does not translate between GPUs and their NICs";
        return Ok(has_pair.then(|| Finding::pass(text).with_path(GROUPS)).into_iter().collect());
    };
    let names: Vec<String> = translated.iter().map(|(address, ..)| address.to_string()).collect();
    let text = format!(
        "the IOMMU translates ({kind}) what {} {}: traffic between a GPU and its NIC passes the \
         CPU",
        ShortList(&names),
        if names.len() == 1 { "does" } else { "do" }
    );
    let words = if context.is_arm()? { "iommu.passthrough=1" } else { "iommu=pt" };
    let finding = if kernel_line::find_word(context, words)?.is_some() {
        // The type was changed after the boot, or firmware calls the device untrusted.
        let text = format!("{text}, though {words} is on the kernel command line");
        Finding::warn(text, Remedy::run(format!("echo identity > {GROUPS}/{group}/type")))
            .with_path(kernel_line::CMDLINE_PATH)
    } else {
        let finding = Finding::warn(text, kernel_line::write(context, words)?);
        kernel_line::with_reboot(context, finding)?
    };
    Ok(vec![finding.with_path(format!("{GROUPS}/{group}/type"))])
}

/// Whether the nearest RDMA device of a GPU is on its NUMA node.
pub(super) fn check_numa_node(context: &CheckContext<'_>) -> Findings {
    let gpu_nics = GpuNicMap::from_inventory(context.inventory);
    let (mut pair_count, mut findings) = (0, Vec::new());
    for (gpu, nic) in gpu_nics.pairs() {
        pair_count += 1;
        if gpu_nics.distance(gpu, nic) != Some(Distance::Sys) {
            continue;
        }
        let node_nics: Vec<&str> = gpu_nics
            .nics
            .iter()
            .filter(|nic| {
                let distance = gpu_nics.distance(gpu, nic.address);
                nic.is_rdma && distance.is_some_and(|distance| distance < Distance::Sys)
            })
            .map(|nic| nic.name.as_str())
            .collect();
        let reason = match node_nics.as_slice() {
            [] => "no RDMA device is on its NUMA node".to_owned(),
            names => format!("{} on its NUMA node cannot be used now", names.join(", ")),
        };
        let name = match gpu_nics.nics.iter().find(|candidate| candidate.address == nic) {
            Some(known) => known.name.clone(),
            None => nic.to_string(),
        };
        let text = format!("{reason}: traffic of {name} crosses the nodes");
        let remedy = match node_nics.as_slice() {
            [] => "onload-ctk topology --matrix".to_owned(),
            names => link_up_command(context, names),
        };
        let finding = Finding::warn(text, Remedy::run(remedy)).with_subject(gpu.to_string());
        findings.push(finding.with_path(format!("{DEVICES}/{gpu}/numa_node")));
    }
    if findings.is_empty() && pair_count > 0 {
        findings
            .push(Finding::pass("each GPU has an RDMA device on its NUMA node").with_path(DEVICES));
    }
    Ok(findings)
}

/// The link of the first of these devices that has one to bring up; a subnet manager does it on InfiniBand.
fn link_up_command(context: &CheckContext<'_>, names: &[&str]) -> String {
    let mut rdma =
        context.inventory.rdma.iter().filter(|device| names.contains(&device.name.as_str()));
    let interface = rdma.find_map(|device| device.netdevs.first());
    match interface {
        Some(name) => format!("ip link set dev {} up", quote_for_shell(name)),
        None => "onload-ctk discover --explain".to_owned(),
    }
}

/// Whether NICs reach their GPUs by Data Direct where they have it.
pub(super) fn check_data_direct(context: &CheckContext<'_>) -> Findings {
    let inventory = context.inventory;
    let gpu_nics = GpuNicMap::from_inventory(inventory);
    if gpu_nics.gpus.is_empty() {
        return Ok(Vec::new());
    }
    if let Some(obstacle) = inventory.data_direct.obstacle() {
        let text =
            format!("could not determine which NIC has which Data Direct function: {obstacle}");
        let explain = Remedy::run("onload-ctk discover --explain");
        let finding = if inventory.unread.iter().any(|unread| obstacle.contains(&unread.reason)) {
            Finding::unknown(text, Remedy::for_unread())
        } else {
            Finding::warn(text, explain)
        };
        return Ok(vec![finding.with_path(DEVICES)]);
    }
    let mut findings = Vec::new();
    for (nic, function) in inventory.data_direct.iter() {
        let driver =
            inventory.functions.get(function).and_then(|function| function.driver.as_deref());
        if driver.is_none() {
            let text = format!(
                "the Data Direct function {function} of the NIC {nic} has no driver: the NIC \
                 reaches GPUs by its own path"
            );
            let finding = Finding::warn(text, Remedy::run("modprobe mlx5_ib"))
                .with_remedy(Remedy::run(format!("echo {function} > /sys/bus/pci/drivers_probe")));
            findings.push(
                finding
                    .with_subject(function.to_string())
                    .with_path(format!("{DEVICES}/{function}/driver")),
            );
        }
    }
    findings.extend(separate_group_findings(context, &gpu_nics)?);
    let has_nvidia = context.exists("/sys/module/nvidia")?;
    let count = inventory.data_direct.iter().count();
    if count > 0 && has_nvidia && !has_dma_buf(context)? {
        let text = "Data Direct needs GPU memory as dma-buf, which the driver does not export";
        findings
            .push(Finding::warn(text, open_modules()).with_path(NVIDIA_VERSION).with_path(RELEASE));
    }
    if findings.is_empty() && count > 0 {
        let text = format_count(count, "NIC reaches", "NICs reach");
        findings.push(Finding::pass(format!("{text} GPUs by Data Direct")).with_path(DEVICES));
    }
    Ok(findings)
}

/// A GPU and its Data Direct function must be in the same IOMMU group, or NVIDIA's driver rejects it (`check` of
/// rdma_topo).
fn separate_group_findings(context: &CheckContext<'_>, gpu_nics: &GpuNicMap<'_>) -> Findings {
    let functions = &context.inventory.functions;
    let group = |address| functions.get(address).and_then(|function| function.iommu_group);
    let mut findings = Vec::new();
    for (gpu, nic) in gpu_nics.pairs() {
        let [_, function] = gpu_nics.data_functions(gpu, nic);
        let is_one = group(gpu).is_some() && group(gpu) == group(function);
        if function == nic || is_one || gpu_nics.distance(gpu, nic) > Some(Distance::Pxb) {
            continue;
        }
        let text = format!(
            "it and the Data Direct function {function} are not in one IOMMU group: NVIDIA's driver refuses GPUDirect RDMA"
        );
        let finding = acs::group_finding(context, gpu_nics, text)?;
        findings.push(finding.with_subject(gpu.to_string()).with_path(GROUPS));
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_modules_say_so_and_their_version() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U16)\nGCC version:  gcc version 13\n";
        assert_eq!(open_version(open), Some(570));
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n";
        assert_eq!(open_version(closed), None);
        assert_eq!(open_version(""), None);
    }
}
