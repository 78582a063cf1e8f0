//! Access Control Services (ACS) of the ports between a GPU and its NIC: one that redirects sends what goes between
//! them up to the CPU, where GPUDirect RDMA is slow or fails. The expected settings of a port are those of `rdma_topo`
//! in rdma-core.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use onload_host::devices::gpu_nics::GpuNicMap;
use onload_host::discover::gpu::bridges_between;
use onload_host::discover::pci::DEVICES;
use onload_sys::pci::PciAddress;
use onload_sys::text::{ShortList, format_count};

use super::check::{Finding, Remedy};
use super::context::{CheckContext, Findings, HostResult};
use super::kernel_line;

/// All of a function's configuration space; users other than root are shown its first 64 bytes.
const CONFIG_SPACE: u64 = 4096;
/// The extended capabilities, and the least that one takes (PCI Express Base Specification, 7.6.3).
const EXTENDED: usize = 0x100;
const MIN_CAPABILITY: usize = 4;
const ACS: u16 = 0x0d;
const ATS: u16 = 0x0f;
/// A bit of its control.
const ATS_ENABLE: u16 = 1 << 15;

/// Bits of ACS control (include/uapi/linux/pci_regs.h, `PCI_ACS_CTRL`).
const VALIDATION: u16 = 0x01;
const REQUEST_REDIRECT: u16 = 0x04;
const COMPLETION_REDIRECT: u16 = 0x08;
const UPSTREAM_FORWARDING: u16 = 0x10;
const EGRESS_CONTROL: u16 = 0x20;
const DIRECT_TRANSLATED: u16 = 0x40;
/// The first kernel with `pci=config_acs=`.
const FIRST_CONFIG_ACS: (u32, u32) = (6, 11);
/// The bits that `pci=disable_acs_redir=` clears (drivers/pci/pci.c).
const REDIRECTS: u16 = REQUEST_REDIRECT | COMPLETION_REDIRECT | EGRESS_CONTROL;

/// The expected behaviour of a port between a GPU and its NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PortNeed {
    NoRedirect,
    /// Requests translated by the NIC (ATS) may pass, while the port redirects others.
    Translated,
    /// These bits are on, and those off.
    DataDirect(u16, u16),
}

/// Towards the Data Direct function: its requests go to the GPU at once.
const FUNCTION_NEED: PortNeed =
    PortNeed::DataDirect(UPSTREAM_FORWARDING | COMPLETION_REDIRECT | VALIDATION, REQUEST_REDIRECT);
/// Towards the GPU: its answers do.
const GPU_NEED: PortNeed =
    PortNeed::DataDirect(UPSTREAM_FORWARDING | REQUEST_REDIRECT | VALIDATION, COMPLETION_REDIRECT);
/// The root port: so that the kernel makes one IOMMU group of all that is below.
const ROOT_PORT: PortNeed =
    PortNeed::DataDirect(UPSTREAM_FORWARDING | COMPLETION_REDIRECT | REQUEST_REDIRECT, VALIDATION);

impl PortNeed {
    /// Returns the expected control register of a port for its present value.
    fn required_control(self, now: u16) -> u16 {
        match self {
            PortNeed::NoRedirect if now & REDIRECTS != 0 => {
                now & !(REDIRECTS | UPSTREAM_FORWARDING)
            }
            PortNeed::Translated if now & REDIRECTS != 0 => now | DIRECT_TRANSLATED,
            PortNeed::DataDirect(on, off) => now & !off | on,
            PortNeed::NoRedirect | PortNeed::Translated => now,
        }
    }

    /// As `pci=config_acs=` has it: the highest bit first.
    fn mask(self) -> String {
        let (on, off) = match self {
            PortNeed::DataDirect(on, off) => (on, off),
            PortNeed::Translated => (DIRECT_TRANSLATED, 0),
            PortNeed::NoRedirect => (0, REDIRECTS),
        };
        (0..7)
            .rev()
            .map(|bit| 1 << bit)
            .map(|bit| match (on & bit != 0, off & bit != 0) {
                (true, _) => '1',
                (_, true) => '0',
                _ => 'x',
            })
            .collect()
    }
}

#[derive(Clone, Copy, Debug)]
struct AcsPort {
    address: PciAddress,
    need: PortNeed,
    now: u16,
}

pub(super) fn check_ports(context: &CheckContext<'_>) -> Findings {
    let gpu_nics = GpuNicMap::from_inventory(context.inventory);
    let ports = match find_ports(context, &gpu_nics)? {
        Ok(ports) => ports,
        Err(HiddenConfig(address)) => {
            let path = config_path(address);
            let text = format!(
                "could not determine what the ports between GPUs and their NICs redirect: only root \
                 can read all of {}",
                path.display()
            );
            return Ok(vec![Finding::unknown(text, as_root()).with_path(path)]);
        }
    };
    if gpu_nics.pairs().next().is_none() {
        return Ok(Vec::new());
    }
    judge(context, &ports)
}

fn as_root() -> Remedy {
    Remedy::run("sudo onload-ctk doctor")
}

/// A function whose configuration is not all shown.
struct HiddenConfig(PciAddress);

/// Finds the ports with ACS between GPUs and their NICs.
fn find_ports(
    context: &CheckContext<'_>,
    gpu_nics: &GpuNicMap<'_>,
) -> HostResult<Result<Vec<AcsPort>, HiddenConfig>> {
    let mut needs: BTreeMap<PciAddress, PortNeed> = BTreeMap::new();
    for (gpu, nic) in gpu_nics.pairs() {
        let config = read_config_space(context, nic)?;
        let has_ats = config.as_deref().is_some_and(has_ats);
        let port_needs = ports_between(gpu_nics, context, (gpu, nic), has_ats);
        if config.is_none() && !port_needs.is_empty() {
            return Ok(Err(HiddenConfig(nic)));
        }
        needs.extend(port_needs);
    }
    let mut ports = Vec::new();
    for (address, need) in needs {
        let Some(config) = read_config_space(context, address)? else {
            return Ok(Err(HiddenConfig(address)));
        };
        let now = find_control(&config, ACS);
        ports.extend(now.map(|now| AcsPort { address, need, now }));
    }
    Ok(Ok(ports))
}

/// The ports that decide where data goes between a GPU and its NIC. `None` if all paths pass the CPU.
fn ports_between(
    gpu_nics: &GpuNicMap<'_>,
    context: &CheckContext<'_>,
    (gpu, nic): (PciAddress, PciAddress),
    has_ats: bool,
) -> Vec<(PciAddress, PortNeed)> {
    let functions = &context.inventory.functions;
    let [_, end] = gpu_nics.data_functions(gpu, nic);
    let [above_gpu, above_nic] = bridges_between(functions, gpu, end);
    let above_both = functions.bridges(gpu).len() - above_gpu.len();
    if above_both == 0 {
        return Vec::new();
    }
    let ports = if end != nic {
        vec![
            (above_nic.first(), FUNCTION_NEED),
            (above_gpu.first(), GPU_NEED),
            (functions.bridges(gpu).first(), ROOT_PORT),
        ]
    } else if has_ats {
        vec![(above_nic.first(), PortNeed::Translated)]
    } else {
        above_gpu.iter().chain(above_nic).map(|port| (Some(port), PortNeed::NoRedirect)).collect()
    };
    ports.into_iter().filter_map(|(port, need)| Some((*port?, need))).collect()
}

fn judge(context: &CheckContext<'_>, ports: &[AcsPort]) -> Findings {
    let wrong: Vec<&AcsPort> =
        ports.iter().filter(|port| port.need.required_control(port.now) != port.now).collect();
    let Some(need) = wrong.iter().map(|port| port.need).max() else {
        let text = match ports.len() {
            0 => "no port between a GPU and its NIC has ACS".to_owned(),
            count => {
                let singular = "port between GPUs and their NICs does";
                let ports = format_count(count, singular, "ports between GPUs and their NICs do");
                format!("{ports} with ACS as GPUDirect RDMA requires")
            }
        };
        return Ok(vec![Finding::pass(text).with_path(DEVICES)]);
    };
    let names: Vec<String> = wrong.iter().map(|port| port.address.to_string()).collect();
    let text = format!(
        "ACS redirects traffic between a GPU and its NIC to the CPU, at {}: GPUDirect RDMA is slow \
         or fails",
        ShortList(&names)
    );
    let words = kernel_words(ports, need);
    let is_too_old = need != PortNeed::NoRedirect && has_no_config_acs(context)?;
    let finding = if matches!(need, PortNeed::DataDirect(..)) || !context.inventory.vfio.is_empty()
    {
        // Changing it at runtime would not change the IOMMU groups, by which vfio devices are assigned.
        if is_too_old {
            Finding::warn(text, newer_kernel_remedy())
        } else {
            let finding = Finding::warn(text, kernel_line::write(context, &words)?);
            kernel_line::with_reboot(context, finding)?
        }
    } else {
        let mut commands = wrong.iter().map(|port| Remedy::run(set(port)));
        let Some(first) = commands.next() else { return Ok(Vec::new()) };
        let finding = commands
            .fold(Finding::warn(text, first), Finding::with_remedy)
            .with_first_remedy(context.install_remedy("setpci")?);
        if is_too_old {
            finding.with_remedy(newer_kernel_remedy())
        } else {
            kernel_line::with_kernel_line(context, finding, &words)?
        }
    };
    let paths = wrong.iter().map(|port| config_path(port.address));
    Ok(vec![paths.fold(finding, Finding::with_path)])
}

/// Older kernels pass over `pci=config_acs=` without a word.
fn has_no_config_acs(context: &CheckContext<'_>) -> HostResult<bool> {
    let kernel = context.kernel_version()?;
    Ok(kernel.is_some_and(|kernel| kernel < FIRST_CONFIG_ACS))
}

fn newer_kernel_remedy() -> Remedy {
    let (major, minor) = FIRST_CONFIG_ACS;
    let kernel = format!("Linux {major}.{minor} or newer, which supports pci=config_acs");
    Remedy::install(kernel, "the distribution, or https://www.kernel.org")
}

/// At once, and until the next boot.
fn set(port: &AcsPort) -> String {
    let (address, required) = (port.address, port.need.required_control(port.now));
    format!("setpci -s {address} ECAP_ACS+0x6.w={required:04x}")
}

/// The words of the kernel's line that do it at boot, for all ports: a second one of a kind replaces the first. Their
/// quotes keep the boot loader from taking the semicolons for its own.
fn kernel_words(ports: &[AcsPort], need: PortNeed) -> String {
    // Ports that must keep redirecting are left out of the kernel parameter.
    let all: Vec<String> = ports
        .iter()
        .filter(|port| need != PortNeed::NoRedirect || port.need == need)
        .map(|port| match need {
            PortNeed::NoRedirect => port.address.to_string(),
            _ => format!("{}@{}", port.need.mask(), port.address),
        })
        .collect();
    let word = match need {
        PortNeed::NoRedirect => "disable_acs_redir",
        _ => "config_acs",
    };
    format!("pci={word}=\\\"{}\\\"", all.join(";"))
}

/// A finding whose remedy puts the IOMMU groups of Data Direct right at the next boot, by the words that [`check_ports()`] has.
pub(super) fn group_finding(
    context: &CheckContext<'_>,
    gpu_nics: &GpuNicMap<'_>,
    text: String,
) -> HostResult<Finding> {
    if has_no_config_acs(context)? {
        return Ok(Finding::warn(text, newer_kernel_remedy()));
    }
    let Ok(ports) = find_ports(context, gpu_nics)? else {
        return Ok(Finding::warn(text, as_root()));
    };
    let words = kernel_words(&ports, ROOT_PORT);
    let finding = Finding::warn(text, kernel_line::write(context, &words)?);
    kernel_line::with_reboot(context, finding)
}

fn config_path(address: PciAddress) -> PathBuf {
    Path::new(DEVICES).join(address.to_string()).join("config")
}

/// `None` if a part of the path is not visible.
fn read_config_space(
    context: &CheckContext<'_>,
    address: PciAddress,
) -> HostResult<Option<Vec<u8>>> {
    let bytes = context.host.bytes(&config_path(address), CONFIG_SPACE)?;
    Ok(bytes.filter(|bytes| bytes.len() >= EXTENDED))
}

/// Whether a NIC translates addresses itself, now.
pub(super) fn has_ats_enabled(context: &CheckContext<'_>, nic: PciAddress) -> HostResult<bool> {
    Ok(read_config_space(context, nic)?.is_some_and(|config| has_ats(&config)))
}

fn has_ats(config: &[u8]) -> bool {
    find_control(config, ATS).is_some_and(|control| control & ATS_ENABLE != 0)
}

/// Offset of the control registers of ACS and ATS, in bytes from the start of each capability.
fn find_control(config: &[u8], id: u16) -> Option<u16> {
    let bytes = find_capability(config, id)?.get(6..8)?;
    Some(u16::from_le_bytes(bytes.try_into().ok()?))
}

/// The configuration space from an extended capability on.
fn find_capability(config: &[u8], id: u16) -> Option<&[u8]> {
    let mut offset = EXTENDED;
    // As many as there can be: a list may lead back.
    for _ in 0..config.len() / MIN_CAPABILITY {
        let header = config.get(offset..offset + MIN_CAPABILITY)?;
        let header = u32::from_le_bytes(header.try_into().ok()?);
        if header == 0 || header == u32::MAX {
            return None;
        }
        if header & 0xffff == u32::from(id) {
            return config.get(offset..);
        }
        offset = usize::try_from(header >> 20 & 0xffc).ok()?;
        if offset < EXTENDED {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration space with these capabilities, at their places, each with two words of 16 bits.
    fn space(capabilities: &[(usize, u16, usize, [u16; 2])]) -> Vec<u8> {
        let mut config = vec![0; 4096];
        for (offset, id, next, words) in capabilities {
            let next = u32::try_from(*next).unwrap();
            let header = u32::from(*id) | 1 << 16 | next << 20;
            config[*offset..offset + 4].copy_from_slice(&header.to_le_bytes());
            for (word, index) in words.iter().zip([offset + 4, offset + 6]) {
                config[index..index + 2].copy_from_slice(&word.to_le_bytes());
            }
        }
        config
    }

    #[test]
    fn acs_control_is_found_behind_other_capabilities() {
        let config = space(&[
            (0x100, 0x01, 0x148, [0, 0]),
            (0x148, ATS, 0x200, [0, 0x8000]),
            (0x200, ACS, 0, [0x5f, 0x1d]),
        ]);
        assert_eq!(find_control(&config, ACS), Some(0x1d));
        assert!(has_ats(&config));
        assert_eq!(find_control(&space(&[(0x100, 0x01, 0, [0, 0])]), ACS), None);
    }

    #[test]
    fn a_list_that_leads_nowhere_or_back_ends() {
        for config in [
            vec![],
            vec![0; 64],
            vec![0xff; 4096],
            space(&[(0x100, 0x01, 0x100, [0, 0])]),
            space(&[(0x100, 0x01, 0x200, [0, 0]), (0x200, 0x02, 0x100, [0, 0])]),
            space(&[(0x100, 0x01, 0xffc, [0, 0])]),
            space(&[(0x100, 0x01, 0x40, [0, 0])]),
        ] {
            assert_eq!(find_control(&config, ACS), None);
        }
    }

    #[test]
    fn a_port_is_set_as_its_place_needs() {
        let as_linux_sets_it = 0x1d;
        assert_eq!(PortNeed::NoRedirect.required_control(as_linux_sets_it), 0x01);
        // Forwarding alone redirects nothing.
        assert_eq!(PortNeed::NoRedirect.required_control(0x11), 0x11);
        assert_eq!(PortNeed::Translated.required_control(as_linux_sets_it), 0x5d);
        assert_eq!(PortNeed::Translated.required_control(0), 0);
        assert_eq!(FUNCTION_NEED.required_control(as_linux_sets_it), 0x19);
        assert_eq!(GPU_NEED.required_control(as_linux_sets_it), 0x15);
        assert_eq!(ROOT_PORT.required_control(as_linux_sets_it), 0x1c);
        let masks = [PortNeed::Translated, FUNCTION_NEED, GPU_NEED, ROOT_PORT].map(PortNeed::mask);
        assert_eq!(masks, ["1xxxxxx", "xx110x1", "xx101x1", "xx111x0"]);
    }
}
