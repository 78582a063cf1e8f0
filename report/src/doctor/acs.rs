//! Access Control Services (ACS) of the ports between a GPU and its NIC: one that redirects sends what goes between them up to
//! the CPU, where GPUDirect RDMA is slow or fails. What a port is to do is what `rdma_topo` of rdma-core asks for.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use onload_host::devices::near::GpuNicMap;
use onload_host::discover::gpu::bridges_between;
use onload_host::discover::pci::DEVICES;
use onload_host::host::HostError;
use onload_sys::pci::PciAddress;
use onload_sys::text::{ShortList, format_count};

use super::check::{Finding, Remedy};
use super::examined::{Examined, Findings};
use super::kernel_line;

/// All of a function's configuration space; users other than root are shown its first 64 bytes.
const CONFIG_SPACE: u64 = 4096;
/// The extended capabilities, and the least that one takes (PCI Express Base Specification, 7.6.3).
const EXTENDED: usize = 0x100;
const LEAST_CAPABILITY: usize = 4;
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
/// What `pci=disable_acs_redir=` switches off (drivers/pci/pci.c).
const REDIRECTS: u16 = REQUEST_REDIRECT | COMPLETION_REDIRECT | EGRESS_CONTROL;

/// What a port between a GPU and its NIC has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    NoRedirect,
    /// What the NIC has translated itself (ATS) may pass a port that redirects the rest.
    Translated,
    /// These bits are on, and those off.
    DataDirect(u16, u16),
}

/// Towards the Data Direct function: its requests go to the GPU at once.
const TO_FUNCTION: Need =
    Need::DataDirect(UPSTREAM_FORWARDING | COMPLETION_REDIRECT | VALIDATION, REQUEST_REDIRECT);
/// Towards the GPU: its answers do.
const TO_GPU: Need =
    Need::DataDirect(UPSTREAM_FORWARDING | REQUEST_REDIRECT | VALIDATION, COMPLETION_REDIRECT);
/// The root port: so that the kernel makes one IOMMU group of all that is below.
const ROOT_PORT: Need =
    Need::DataDirect(UPSTREAM_FORWARDING | COMPLETION_REDIRECT | REQUEST_REDIRECT, VALIDATION);

impl Need {
    /// What the port's control has to be, by what it is.
    fn wanted(self, now: u16) -> u16 {
        match self {
            Need::NoRedirect if now & REDIRECTS != 0 => now & !(REDIRECTS | UPSTREAM_FORWARDING),
            Need::Translated if now & REDIRECTS != 0 => now | DIRECT_TRANSLATED,
            Need::DataDirect(on, off) => now & !off | on,
            Need::NoRedirect | Need::Translated => now,
        }
    }

    /// As `pci=config_acs=` has it: the highest bit first.
    fn mask(self) -> String {
        let (on, off) = match self {
            Need::DataDirect(on, off) => (on, off),
            Need::Translated => (DIRECT_TRANSLATED, 0),
            Need::NoRedirect => (0, REDIRECTS),
        };
        let bits = (0..7).rev().map(|bit| 1 << bit);
        bits.map(|bit| match (on & bit != 0, off & bit != 0) {
            (true, _) => '1',
            (_, true) => '0',
            _ => 'x',
        })
        .collect()
    }
}

#[derive(Clone, Copy, Debug)]
struct Port {
    address: PciAddress,
    need: Need,
    now: u16,
}

pub(super) fn ports(examined: &Examined<'_>) -> Findings {
    let near = GpuNicMap::from_inventory(examined.inventory);
    let Found { ports, hidden } = Found::of(examined, &near)?;
    if let Some(first) = hidden.first() {
        let text = format!(
            "what the ports between GPUs and their NICs redirect is not known: only root reads all of {}",
            config_path(*first).display()
        );
        let finding = Finding::unknown(text, as_root());
        return Ok(vec![finding.at(config_path(*first))]);
    }
    if near.pairs().next().is_none() {
        return Ok(Vec::new());
    }
    judge(examined, &ports)
}

fn as_root() -> Remedy {
    Remedy::run("sudo onload-ctk doctor")
}

/// The ports with ACS between GPUs and their NICs, and the functions whose configuration is not all shown.
struct Found {
    ports: Vec<Port>,
    hidden: Vec<PciAddress>,
}

impl Found {
    fn of(examined: &Examined<'_>, near: &GpuNicMap<'_>) -> Result<Found, HostError> {
        let mut needs: BTreeMap<PciAddress, Need> = BTreeMap::new();
        let mut hidden = Vec::new();
        for (gpu, nic) in near.pairs() {
            let config = config_space(examined, nic)?;
            let has_ats = config.as_deref().is_some_and(has_ats);
            let between = between(near, examined, (gpu, nic), has_ats);
            match config {
                None if !between.is_empty() => hidden.push(nic),
                _ => needs.extend(between),
            }
        }
        let mut ports = Vec::new();
        for (address, need) in needs {
            match config_space(examined, address)? {
                Some(config) => {
                    let now = control(&config, ACS);
                    ports.extend(now.map(|now| Port { address, need, now }));
                }
                None => hidden.push(address),
            }
        }
        Ok(Found { ports, hidden })
    }
}

/// The ports that decide where data goes between a GPU and its NIC. None where that passes the CPU in any case.
fn between(
    near: &GpuNicMap<'_>,
    examined: &Examined<'_>,
    (gpu, nic): (PciAddress, PciAddress),
    has_ats: bool,
) -> Vec<(PciAddress, Need)> {
    let functions = &examined.inventory.functions;
    let [_, end] = near.data_functions(gpu, nic);
    let [above_gpu, above_nic] = bridges_between(functions, gpu, end);
    let above_both = functions.bridges(gpu).len() - above_gpu.len();
    if above_both == 0 {
        return Vec::new();
    }
    let ports = if end != nic {
        vec![
            (above_nic.first(), TO_FUNCTION),
            (above_gpu.first(), TO_GPU),
            (functions.bridges(gpu).first(), ROOT_PORT),
        ]
    } else if has_ats {
        vec![(above_nic.first(), Need::Translated)]
    } else {
        let ports = above_gpu.iter().chain(above_nic);
        ports.map(|port| (Some(port), Need::NoRedirect)).collect()
    };
    let ports = ports.into_iter();
    ports.filter_map(|(port, need)| Some((*port?, need))).collect()
}

fn judge(examined: &Examined<'_>, ports: &[Port]) -> Findings {
    let is_wrong = |port: &&Port| port.need.wanted(port.now) != port.now;
    let wrong: Vec<&Port> = ports.iter().filter(is_wrong).collect();
    let Some(need) = wrong.iter().map(|port| port.need).max() else {
        let text = match ports.len() {
            0 => "no port between a GPU and its NIC has ACS".to_owned(),
            count => {
                let one = "port between GPUs and their NICs does";
                let ports = format_count(count, one, "ports between GPUs and their NICs do");
                format!("{ports} with ACS what GPUDirect RDMA needs")
            }
        };
        return Ok(vec![Finding::pass(text).at(DEVICES)]);
    };
    let names: Vec<String> = wrong.iter().map(|port| port.address.to_string()).collect();
    let text = format!(
        "ACS sends what goes between a GPU and its NIC up to the CPU, at {}: GPUDirect RDMA is slow or fails",
        ShortList(&names)
    );
    let words = words(ports, need);
    let is_too_old = need != Need::NoRedirect && has_no_config_acs(examined)?;
    let finding = if matches!(need, Need::DataDirect(..)) || !examined.inventory.vfio.is_empty() {
        // At once it would leave the IOMMU groups as they are, by which vfio devices are given away.
        if is_too_old {
            Finding::warn(text, newer_kernel())
        } else {
            let finding = Finding::warn(text, kernel_line::write(examined, &words)?);
            kernel_line::then_reboot(examined, finding)?
        }
    } else {
        let mut commands = wrong.iter().map(|port| Remedy::run(set(port)));
        let Some(first) = commands.next() else {
            return Ok(Vec::new());
        };
        let finding = commands.fold(Finding::warn(text, first), Finding::then);
        let finding = finding.after(examined.program("setpci")?);
        if is_too_old {
            finding.then(newer_kernel())
        } else {
            kernel_line::then_write(examined, finding, &words)?
        }
    };
    let at = wrong.iter().map(|port| config_path(port.address));
    Ok(vec![at.fold(finding, Finding::at)])
}

/// Older kernels pass over `pci=config_acs=` without a word.
fn has_no_config_acs(examined: &Examined<'_>) -> Result<bool, HostError> {
    let kernel = examined.kernel()?;
    Ok(kernel.is_some_and(|kernel| kernel < FIRST_CONFIG_ACS))
}

fn newer_kernel() -> Remedy {
    let (major, minor) = FIRST_CONFIG_ACS;
    let kernel = format!("Linux {major}.{minor} or newer, which knows pci=config_acs");
    Remedy::install(kernel, "the distribution, or https://www.kernel.org")
}

/// At once, and until the next boot.
fn set(port: &Port) -> String {
    let (address, wanted) = (port.address, port.need.wanted(port.now));
    format!("setpci -s {address} ECAP_ACS+0x6.w={wanted:04x}")
}

/// The words of the kernel's line that do it at boot, for all ports: a second one of a kind replaces the first. Their
/// quotes keep the boot loader from taking the semicolons for its own.
fn words(ports: &[Port], need: Need) -> String {
    // Those that have to go on redirecting stay out of the word that stops it.
    let of_word = |port: &&Port| need != Need::NoRedirect || port.need == need;
    let all: Vec<String> = ports
        .iter()
        .filter(of_word)
        .map(|port| match need {
            Need::NoRedirect => port.address.to_string(),
            _ => format!("{}@{}", port.need.mask(), port.address),
        })
        .collect();
    let word = match need {
        Need::NoRedirect => "disable_acs_redir",
        _ => "config_acs",
    };
    format!("pci={word}=\\\"{}\\\"", all.join(";"))
}

/// A finding whose remedy puts the IOMMU groups of Data Direct right at the next boot, by the words that [`ports()`] has.
pub(super) fn for_groups(
    examined: &Examined<'_>,
    near: &GpuNicMap<'_>,
    text: String,
) -> Result<Finding, HostError> {
    if has_no_config_acs(examined)? {
        return Ok(Finding::warn(text, newer_kernel()));
    }
    let Found { ports, hidden } = Found::of(examined, near)?;
    if !hidden.is_empty() {
        return Ok(Finding::warn(text, as_root()));
    }
    let words = words(&ports, ROOT_PORT);
    let finding = Finding::warn(text, kernel_line::write(examined, &words)?);
    kernel_line::then_reboot(examined, finding)
}

fn config_path(address: PciAddress) -> PathBuf {
    Path::new(DEVICES).join(address.to_string()).join("config")
}

/// None where not all of it is shown.
fn config_space(
    examined: &Examined<'_>,
    address: PciAddress,
) -> Result<Option<Vec<u8>>, HostError> {
    let bytes = examined.host.bytes(&config_path(address), CONFIG_SPACE)?;
    Ok(bytes.filter(|bytes| bytes.len() >= EXTENDED))
}

/// Whether a NIC translates addresses itself, now.
pub(super) fn translates(examined: &Examined<'_>, nic: PciAddress) -> Result<bool, HostError> {
    Ok(config_space(examined, nic)?.is_some_and(|config| has_ats(&config)))
}

fn has_ats(config: &[u8]) -> bool {
    control(config, ATS).is_some_and(|control| control & ATS_ENABLE != 0)
}

/// What controls ACS and ATS, 6 bytes into the capability of each.
fn control(config: &[u8], id: u16) -> Option<u16> {
    let bytes = capability(config, id)?.get(6..8)?;
    Some(u16::from_le_bytes(bytes.try_into().ok()?))
}

/// The configuration space from an extended capability on.
fn capability(config: &[u8], id: u16) -> Option<&[u8]> {
    let mut at = EXTENDED;
    // As many as there can be: a list may lead back.
    for _ in 0..config.len() / LEAST_CAPABILITY {
        let header = config.get(at..at + LEAST_CAPABILITY)?;
        let header = u32::from_le_bytes(header.try_into().ok()?);
        if header == 0 || header == u32::MAX {
            return None;
        }
        if header & 0xffff == u32::from(id) {
            return config.get(at..);
        }
        at = usize::try_from(header >> 20 & 0xffc).ok()?;
        if at < EXTENDED {
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
        for (at, id, next, words) in capabilities {
            let next = u32::try_from(*next).unwrap();
            let header = u32::from(*id) | 1 << 16 | next << 20;
            config[*at..at + 4].copy_from_slice(&header.to_le_bytes());
            for (word, place) in words.iter().zip([at + 4, at + 6]) {
                config[place..place + 2].copy_from_slice(&word.to_le_bytes());
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
        assert_eq!(control(&config, ACS), Some(0x1d));
        assert!(has_ats(&config));
        assert_eq!(control(&space(&[(0x100, 0x01, 0, [0, 0])]), ACS), None);
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
            assert_eq!(control(&config, ACS), None);
        }
    }

    #[test]
    fn a_port_is_set_as_its_place_needs() {
        let as_linux_sets_it = 0x1d;
        assert_eq!(Need::NoRedirect.wanted(as_linux_sets_it), 0x01);
        // Forwarding alone redirects nothing.
        assert_eq!(Need::NoRedirect.wanted(0x11), 0x11);
        assert_eq!(Need::Translated.wanted(as_linux_sets_it), 0x5d);
        assert_eq!(Need::Translated.wanted(0), 0);
        assert_eq!(TO_FUNCTION.wanted(as_linux_sets_it), 0x19);
        assert_eq!(TO_GPU.wanted(as_linux_sets_it), 0x15);
        assert_eq!(ROOT_PORT.wanted(as_linux_sets_it), 0x1c);
        let masks = [Need::Translated, TO_FUNCTION, TO_GPU, ROOT_PORT].map(Need::mask);
        assert_eq!(masks, ["1xxxxxx", "xx110x1", "xx101x1", "xx111x0"]);
    }
}
