//! Accelerated network interfaces: those that Onload has attached to.
//!
//! An interface is attached if its auxiliary device is bound to a driver of sfc_resource (since
//! Onload 9), if its PCI function has the `sfc_resource` group (Onload 8), or if Onload's debugfs
//! lists it, as it does for interfaces registered for AF_XDP.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use onload_core::class::Class;
use onload_core::config::{Config, DiscoverConfig};
use onload_core::host_settings::InterfaceName;
use onload_core::onload::AF_XDP_FLOW_FILTERS;
use onload_sys::error::shown_as_serialized;
use onload_sys::pci::PciAddress;
use onload_sys::text::parse_digits;
use serde::Serialize;

use crate::discover::af_xdp::{AfXdpTrouble, Registration};
use crate::discover::exclusion::Exclusion;
use crate::discover::netdev::{self, Backing, NetworkInterface};
use crate::discover::pci::{PciFunction, PciFunctions, PciId};
use crate::discover::probe::Probe;
use crate::discover::taken_names::TakenNames;
use crate::discover::unread::NICS;
use crate::netlink::features::InterfaceFeatures;

const AUXILIARY_DEVICES: &str = "/sys/bus/auxiliary/devices";
pub(crate) const AF_XDP_REGISTER: &str = "/sys/module/sfc_resource/afxdp/register";
pub const RESOURCE_MODULE: &str = "/sys/module/sfc_resource";
pub const DEBUGFS_NICS: &str = "/sys/kernel/debug/sfc_resource/nics";

/// Why interfaces such as `lo` and `docker0` are not accelerated.
const NOTHING_BELOW: &str =
    "virtual interface without a physical device: Onload cannot accelerate it";

/// Why an interface of an InfiniBand port is not accelerated: AF_XDP supports Ethernet only.
const IPOIB: &str = "IP over InfiniBand, which Onload does not accelerate; use rdma instead";

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Nic {
    pub name: String,
    pub device: String,
    pub pci_address: Option<PciAddress>,
    pub numa_node: Option<u32>,
    pub driver: Option<String>,
    pub datapath: Datapath,
    /// The number of Onload stacks that it serves at once by AF_XDP: one for each channel. `None` for other datapaths
    /// and for unknown channels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stacks: Option<u32>,
    /// Mbit/s.
    pub speed_mbps: Option<u64>,
    pub state: Option<String>,
    pub virtual_functions: Vec<PciAddress>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Datapath {
    /// 8000 series, X2, and X4 with full features.
    Ef10,
    /// The low-latency datapath of X4.
    Ef10ct,
    /// X3.
    Efct,
    AfXdp,
}

shown_as_serialized!(Datapath);

impl Datapath {
    /// Whether TCPDirect works on it. With Onload of July 2026 on igb, every TCPDirect program dies
    /// of signal 11 on an AF_XDP interface, in a container and on the host.
    pub(crate) fn has_tcpdirect(self) -> bool {
        self != Datapath::AfXdp
    }

    /// Returns whether programs on it need huge pages of 2 MiB: TCPDirect maps them (`MAP_HUGE_2MB`), and Onload's
    /// shared receive queues consist of them (`lib/efthrm/tcp_helper_resource.c`).
    pub fn takes_huge_pages(self, tcpdirect: bool) -> bool {
        matches!(self, Datapath::Efct | Datapath::Ef10ct) || tcpdirect && self.has_tcpdirect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CardSupport {
    Capable(Datapath),
    Refused(&'static str),
}

pub fn is_supported(vendor: u16, device: u16) -> bool {
    matches!(card_support(PciId { vendor, device }), Some(CardSupport::Capable(_)))
}

/// Onload's support for a PCI function (Onload, `linux_net/.../efx.c` `efx_pci_table`, and
/// `lib/efhw/nic.c` `efhw_sfc_device_type_init`); `None` for other vendors' hardware.
fn card_support(id: PciId) -> Option<CardSupport> {
    let support = match (id.vendor, id.device) {
        (0x1924, 0x0703 | 0x0710 | 0x0803 | 0x0813 | 0x0903 | 0x1903 | 0x0923 | 0x1923) => {
            CardSupport::Refused("Onload does not support adapters before the 8000 series")
        }
        (0x1924, 0x0a03 | 0x1a03 | 0x0b03 | 0x1b03) => CardSupport::Capable(Datapath::Ef10),
        (0x1924, 0x0c03 | 0x1c03 | 0x2c03 | 0x3c03) => CardSupport::Capable(Datapath::Ef10),
        (0x1022, 0x1190) => CardSupport::Refused("Onload does not support this vendor"),
        (0x10ee, 0x0100 | 0x1100) => {
            CardSupport::Refused("Onload does not support EF100 since version 9")
        }
        (0x10ee, 0x5084) => CardSupport::Capable(Datapath::Efct),
        _ => return None,
    };
    Some(support)
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Attachment {
    datapath: Option<Datapath>,
    /// The path of its `enable` file, if it exists and is 0.
    off_switch: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AfXdpSupport {
    Registers,
    Absent,
    #[default]
    NotLoaded,
}

#[derive(Debug, Default)]
struct Attachments {
    functions: BTreeMap<PciAddress, Vec<Attachment>>,
    /// Auxiliary devices that are not bound to a driver of Onload.
    unbound: BTreeMap<PciAddress, String>,
    /// Whether interfaces of other drivers can be registered.
    af_xdp: AfXdpSupport,
    features: BTreeMap<String, InterfaceFeatures>,
    /// The interfaces that `[host] af-xdp` lists.
    configured: Vec<InterfaceName>,
    /// The interfaces in Onload's debugfs.
    debugfs_nics: Vec<DebugfsNic>,
    unread: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OnloadAvailability<'a> {
    pub onload: Option<&'a str>,
    pub tcpdirect: bool,
}

impl OnloadAvailability<'_> {
    fn check(self, datapath: Datapath) -> Result<Datapath, String> {
        match self.onload {
            Some(reason) if !(self.tcpdirect && datapath.has_tcpdirect()) => {
                Err(format!("Onload is not offered: {reason}"))
            }
            _ => Ok(datapath),
        }
    }
}

#[derive(Debug)]
pub(crate) struct DiscoveredNics {
    pub nics: Vec<Nic>,
    /// The interfaces that Onload has attached to, offered or not.
    pub names: Vec<String>,
    /// Interfaces in other network namespaces.
    pub other_netns_nics: OtherNetnsNics,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OtherNetnsNics {
    /// Datapaths of the interfaces in debugfs, by original name.
    pub(crate) names: BTreeMap<String, Datapath>,
    functions: BTreeMap<PciAddress, Datapath>,
}

impl OtherNetnsNics {
    pub(crate) fn datapath(&self, name: &str, pci: PciAddress) -> Option<Datapath> {
        let datapath = self.functions.get(&pci).or_else(|| self.names.get(name));
        datapath.copied()
    }
}

pub(crate) fn read(
    probe: &Probe<'_>,
    functions: &PciFunctions,
    interfaces: &[NetworkInterface],
    config: &Config,
    availability: OnloadAvailability<'_>,
) -> DiscoveredNics {
    let af_xdp = &config.host.af_xdp;
    let config = &config.discover;
    warn_of_absent(probe, interfaces, &config.ignored_interfaces);
    let mut attachments = read_attachments(probe, functions);
    attachments.configured.clone_from(af_xdp);
    if interfaces.iter().any(|interface| interface.driver().is_some()) {
        let features = probe
            .with_classes(&[], || probe.ok_or_warn(probe.host().interface_features().map(Some)));
        attachments.features = features.unwrap_or_default();
    }
    let mut taken_names = TakenNames::default();
    let mut nics = Vec::new();
    let mut attached_names = Vec::new();
    for interface in interfaces {
        let function = interface.pci().and_then(|address| functions.get(address));
        let datapath = find_datapath(interface, function, &attachments);
        attached_names.extend(datapath.is_ok().then(|| interface.name.clone()));
        let decided = require_not_ignored(interface, config).and(datapath);
        if matches!(decided, Err(NicRefusal::Unknown(_))) && availability.onload.is_none() {
            probe.mark_undecided(DEBUGFS_NICS, &NICS);
        }
        let decided = decided
            .map_err(NicRefusal::into_reason)
            .and_then(|datapath| availability.check(datapath))
            .and_then(|datapath| {
                Ok((datapath, taken_names.choose(&interface.name, interface.pci())?))
            });
        match decided {
            Ok((datapath, device)) => {
                let features = attachments.features.get(&interface.name);
                let channels = features.and_then(|features| features.channels);
                nics.push(Nic {
                    name: interface.name.clone(),
                    device,
                    pci_address: interface.pci(),
                    numa_node: function.and_then(|function| function.numa_node),
                    driver: interface.driver().map(str::to_owned),
                    datapath,
                    stacks: channels.filter(|_| datapath == Datapath::AfXdp),
                    speed_mbps: interface.speed_mbps,
                    state: interface.operstate.clone(),
                    virtual_functions: function.map(PciFunction::vf_addresses).unwrap_or_default(),
                });
            }
            Err(reason) => {
                probe.exclude(Exclusion::new(Class::Nic, interface.name.as_str(), reason));
            }
        }
    }
    refuse_without_interface(probe, functions, interfaces);
    warn_of_trouble(probe, &nics, &attachments.features);
    DiscoveredNics {
        nics,
        names: attached_names,
        other_netns_nics: find_in_other_netns(
            probe,
            &attachments,
            functions,
            interfaces,
            availability,
        ),
    }
}

fn find_in_other_netns(
    probe: &Probe<'_>,
    attachments: &Attachments,
    functions: &PciFunctions,
    interfaces: &[NetworkInterface],
    availability: OnloadAvailability<'_>,
) -> OtherNetnsNics {
    let mut other_netns_nics = OtherNetnsNics::default();
    for nic in &attachments.debugfs_nics {
        // Except for AF_XDP, the function identifies the interface even if a bond has changed its address.
        let has_function = nic.datapath.is_some_and(|datapath| datapath != Datapath::AfXdp);
        let interface = interfaces
            .iter()
            .find(|interface| nic.matches(interface) || has_function && interface.name == nic.name);
        let original_name = &nic.original_name;
        if interface.is_none() {
            let reason = "Onload is attached to it, but it is in another network namespace; move \
                it here to offer it";
            probe.exclude(Exclusion::new(Class::Nic, original_name.as_str(), reason));
        }
        // While it returns from a container it has another name.
        if interface.is_none_or(|interface| interface.name != *original_name) {
            let usable = availability
                .check(nic.datapath.unwrap_or(Datapath::AfXdp))
                .map(|datapath| (original_name.clone(), datapath));
            other_netns_nics.names.extend(usable.ok());
        }
    }
    for (pci, function_attachments) in &attachments.functions {
        if interfaces.iter().any(|interface| interface.pci() == Some(*pci)) {
            continue;
        }
        let support = functions.get(*pci).and_then(|function| card_support(function.id));
        let usable = attached_datapath(function_attachments, support)
            .and_then(|datapath| availability.check(datapath))
            .map(|datapath| (*pci, datapath));
        other_netns_nics.functions.extend(usable.ok());
    }
    other_netns_nics
}

/// Warns of ignored names without an interface: a misspelt name leaves its interface offered.
fn warn_of_absent(probe: &Probe<'_>, interfaces: &[NetworkInterface], ignored: &[String]) {
    if probe.unread_reason(netdev::SYS_CLASS_NET).is_some() {
        return;
    }
    for name in ignored.iter().filter(|name| netdev::find_by_name(interfaces, name).is_none()) {
        probe.warn(format!(
            "[discover] ignored-interfaces lists {name:?}, but interface not found: correct or \
             remove it"
        ));
    }
}

fn warn_of_trouble(
    probe: &Probe<'_>,
    nics: &[Nic],
    features: &BTreeMap<String, InterfaceFeatures>,
) {
    let known = nics
        .iter()
        .filter(|nic| nic.datapath == Datapath::AfXdp)
        .filter_map(|nic| Some((nic, features.get(&nic.name)?)));
    for (nic, features) in known {
        let parameter = probe.with_classes(&[], || probe.attribute(AF_XDP_FLOW_FILTERS));
        if let Some(trouble) = AfXdpTrouble::find(*features, parameter.as_deref()) {
            probe.warn(trouble.describe(&nic.name, Registration::Made));
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum NicRefusal {
    Certain(String),
    Unknown(String),
}

impl NicRefusal {
    fn into_reason(self) -> String {
        match self {
            NicRefusal::Certain(reason) | NicRefusal::Unknown(reason) => reason,
        }
    }
}

fn require_not_ignored(
    interface: &NetworkInterface,
    config: &DiscoverConfig,
) -> Result<(), NicRefusal> {
    if config.ignored_interfaces.contains(&interface.name) {
        let reason = "ignored: it is in [discover] ignored-interfaces; remove it there to offer it";
        return Err(NicRefusal::Certain(reason.to_owned()));
    }
    Ok(())
}

/// Determines the datapath by Onload's attachments.
fn find_datapath(
    interface: &NetworkInterface,
    function: Option<&PciFunction>,
    attachments: &Attachments,
) -> Result<Datapath, NicRefusal> {
    let support = function.and_then(|function| card_support(function.id));
    let function_attachments =
        function.and_then(|function| attachments.functions.get(&function.address));
    if let Some(CardSupport::Refused(reason)) = support {
        return Err(NicRefusal::Certain(reason.to_owned()));
    }
    if let Some(function_attachments) = function_attachments {
        return attached_datapath(function_attachments, support).map_err(NicRefusal::Certain);
    }
    if let Some(nic) = attachments.debugfs_nics.iter().find(|one| one.matches(interface)) {
        let hardware = match support {
            Some(CardSupport::Capable(datapath)) => Some(datapath),
            _ => None,
        };
        return Ok(nic.datapath.or(hardware).unwrap_or(Datapath::AfXdp));
    }
    if let Backing::Unknown(reason) = &interface.backing {
        return Err(NicRefusal::Unknown(reason.clone()));
    }
    if let (Some(_), Some(reason)) = (interface.driver(), &attachments.unread) {
        let reason = format!("could not determine whether Onload is attached to it: {reason}");
        return Err(NicRefusal::Unknown(reason));
    }
    let reason = not_attached_reason(interface, function, support, attachments);
    Err(NicRefusal::Certain(reason))
}

fn attached_datapath(
    attachments: &[Attachment],
    support: Option<CardSupport>,
) -> Result<Datapath, String> {
    let default = match support {
        Some(CardSupport::Capable(datapath)) => datapath,
        _ => Datapath::Ef10,
    };
    // X4 has a low-latency and a full-featured datapath. The first is preferred.
    let best = attachments
        .iter()
        .filter(|attachment| attachment.off_switch.is_none())
        .map(|attachment| attachment.datapath.unwrap_or(default))
        .max_by_key(|datapath| *datapath == Datapath::Ef10ct);
    best.ok_or_else(|| {
        let switch = attachments.iter().find_map(|attachment| attachment.off_switch.as_deref());
        format!("acceleration is disabled; write 1 to {}", switch.unwrap_or_default())
    })
}

fn not_attached_reason(
    interface: &NetworkInterface,
    function: Option<&PciFunction>,
    support: Option<CardSupport>,
    attachments: &Attachments,
) -> String {
    if let Some(lower_devices) = interface.lower_devices() {
        return if lower_devices.is_empty() {
            NOTHING_BELOW.to_owned()
        } else {
            format!(
                "virtual interface: Onload attaches to its lower interface; request {}",
                lower_devices.join(" or ")
            )
        };
    }
    let Some(driver) = interface.driver() else {
        let link = Path::new(netdev::SYS_CLASS_NET).join(&interface.name);
        return format!(
            "its device has no driver to which Onload could attach; check {}",
            link.join("device").display()
        );
    };
    if interface.is_ipoib() {
        return IPOIB.to_owned();
    }
    if support.is_none() {
        let features = attachments.features.get(&interface.name);
        let has_xdp = features.and_then(|features| features.xdp);
        let register = describe_registration(&interface.name, &attachments.configured);
        return other_driver_reason(driver, &register, attachments.af_xdp, has_xdp);
    }
    match function.and_then(|function| attachments.unbound.get(&function.address)) {
        Some(device) => {
            format!("its auxiliary device {device} has no driver; load sfc_resource")
        }
        None => format!(
            "driver {driver} has no auxiliary device for Onload; load the driver that comes with \
             Onload, and sfc_resource"
        ),
    }
}

/// Returns how to register an interface with Onload, given the interfaces that `[host] af-xdp` already lists.
/// `systemctl enable --now` would not apply a changed configuration, since the unit stays active.
fn describe_registration(interface: &str, configured: &[InterfaceName]) -> String {
    if configured.iter().any(|name| name.as_str() == interface) {
        return "run \"systemctl restart onload-host\"".to_owned();
    }
    let setting = if configured.is_empty() {
        format!("set af-xdp = [\"{interface}\"]")
    } else {
        format!("add \"{interface}\" to af-xdp")
    };
    format!(
        "{setting} under [host], and run \"systemctl enable onload-host && systemctl restart \
         onload-host\""
    )
}

/// Returns why an interface of another vendor is not accelerated; `register` is how to register it. Its driver needs
/// native XDP (Onload, `lib/efhw/af_xdp.c`), which kernels before 6.3 do not report.
fn other_driver_reason(
    driver: &str,
    register: &str,
    af_xdp: AfXdpSupport,
    has_xdp: Option<bool>,
) -> String {
    let condition = match has_xdp {
        Some(_) => String::new(),
        None => format!("if {driver} supports XDP, "),
    };
    let advice = match af_xdp {
        _ if has_xdp == Some(false) => {
            " and does not support XDP, which Onload needs for other vendors' interfaces".to_owned()
        }
        AfXdpSupport::Absent => {
            ", and the loaded sfc_resource does not support AF_XDP; install an Onload that does"
                .to_owned()
        }
        AfXdpSupport::Registers => {
            format!(", and it is not registered for AF_XDP; {condition}{register}")
        }
        AfXdpSupport::NotLoaded => {
            format!("; {condition}Onload accelerates it with AF_XDP: {register}")
        }
    };
    format!("driver {driver} is not one of Onload's{advice}")
}

fn read_attachments(probe: &Probe<'_>, functions: &PciFunctions) -> Attachments {
    let module = probe.entry(RESOURCE_MODULE);
    let mut attachments = Attachments {
        // It matters only for interfaces without other information.
        debugfs_nics: probe.with_classes(&[], || {
            let entries = probe.list(DEBUGFS_NICS).into_iter();
            entries
                .filter_map(|entry| DebugfsNic::read(&entry, |path| probe.attribute(path)))
                .collect()
        }),
        // Without the module, Onload is attached to no interface.
        unread: module.and_then(|_| probe.unread_reason(DEBUGFS_NICS)),
        af_xdp: match (module, probe.entry(AF_XDP_REGISTER)) {
            (_, Some(_)) => AfXdpSupport::Registers,
            (Some(_), None) => AfXdpSupport::Absent,
            (None, None) => AfXdpSupport::NotLoaded,
        },
        ..Attachments::default()
    };
    for name in probe.list(AUXILIARY_DEVICES) {
        if !is_onload_device(&name) {
            continue;
        }
        let directory = Path::new(AUXILIARY_DEVICES).join(&name);
        let Some(address) =
            probe.resolve(&directory).as_deref().and_then(PciFunctions::function_above)
        else {
            continue;
        };
        match read_auxiliary(probe, &directory) {
            Some(attachment) => attachments.functions.entry(address).or_default().push(attachment),
            None => drop(attachments.unbound.insert(address, name)),
        }
    }
    for function in functions.iter().filter(|function| function.has_entry("sfc_resource")) {
        let attachment = Attachment {
            datapath: None,
            off_switch: off_switch_path(probe, &function.directory()),
        };
        attachments.functions.entry(function.address).or_default().push(attachment);
    }
    attachments
}

fn is_onload_device(name: &str) -> bool {
    ["sfc.", "sfc_", "xilinx_efct."].iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the Onload driver of an auxiliary device, or `None`.
fn read_auxiliary(probe: &Probe<'_>, directory: &Path) -> Option<Attachment> {
    let driver = probe.link_name(directory.join("driver"));
    // Drivers on the auxiliary bus are named `module.name`.
    let datapath = driver.as_deref().and_then(|driver| parse_datapath(driver.rsplit('.').next()?));
    let has_switch = probe.entry(directory.join("sfc_resource")).is_some();
    (datapath.is_some() || has_switch)
        .then(|| Attachment { datapath, off_switch: off_switch_path(probe, directory) })
}

fn off_switch_path(probe: &Probe<'_>, directory: &Path) -> Option<String> {
    let switch = directory.join("sfc_resource/enable");
    let off = probe.attribute(&switch).as_deref() == Some("0");
    off.then(|| switch.display().to_string())
}

/// An interface in Onload's debugfs (Onload, `lib/efhw/debugfs_nic.c`), in any network namespace.
#[derive(Debug)]
pub struct DebugfsNic {
    /// Its name when Onload attached to it, which its directory `NNN_<interface>` keeps.
    original_name: String,
    pub name: String,
    /// The hardware address when Onload attached to it.
    pub address: Option<String>,
    datapath: Option<Datapath>,
}

impl DebugfsNic {
    pub fn read(entry: &str, attribute: impl Fn(&Path) -> Option<String>) -> Option<DebugfsNic> {
        let original_name = parse_interface(entry)?;
        let attribute = |name: &str| attribute(&Path::new(DEBUGFS_NICS).join(entry).join(name));
        let device_type = attribute("devtype");
        Some(DebugfsNic {
            original_name: original_name.to_owned(),
            name: attribute("net_dev").unwrap_or_else(|| original_name.to_owned()),
            address: attribute("mac_addr"),
            datapath: device_type.as_deref().and_then(parse_devtype),
        })
    }

    fn matches(&self, interface: &NetworkInterface) -> bool {
        self.matches_identity(&interface.name, interface.hardware_address.as_deref())
    }

    /// Returns whether this is the interface with that name and address in this namespace. A renamed interface must
    /// match by address, since another namespace may have the same name. A bond changes addresses but keeps names.
    pub(crate) fn matches_identity(&self, name: &str, address: Option<&str>) -> bool {
        let same_address = self.address.is_none() || self.address.as_deref() == address;
        self.name == name && (self.original_name == name || same_address)
    }
}

fn parse_interface(entry: &str) -> Option<&str> {
    let (number, interface) = entry.split_once('_')?;
    parse_digits::<u32>(number)?;
    (!interface.is_empty()).then_some(interface)
}

/// Parses `devtype`, which contains `architecture:variant:revision => NAME`, the first three as numbers.
fn parse_devtype(text: &str) -> Option<Datapath> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).find_map(parse_datapath)
}

fn parse_datapath(word: &str) -> Option<Datapath> {
    match word.to_ascii_lowercase().as_str() {
        "ef10" => Some(Datapath::Ef10),
        "ef10ct" => Some(Datapath::Ef10ct),
        "efct" | "xilinx_efct" => Some(Datapath::Efct),
        "af_xdp" | "afxdp" => Some(Datapath::AfXdp),
        _ => None,
    }
}

fn refuse_without_interface(
    probe: &Probe<'_>,
    functions: &PciFunctions,
    interfaces: &[NetworkInterface],
) {
    let with_interface: BTreeSet<PciAddress> =
        interfaces.iter().filter_map(NetworkInterface::pci).collect();
    for function in functions.iter().filter(|one| !with_interface.contains(&one.address)) {
        let advice = match card_support(function.id) {
            None => continue,
            Some(CardSupport::Capable(Datapath::Efct)) => "bind it to xilinx_efct to give it one",
            Some(CardSupport::Refused(reason)) => reason,
            Some(CardSupport::Capable(_)) => "bind it to sfc to give it one",
        };
        let reason = match &function.driver {
            Some(driver) => format!("it has no interface: its driver is {driver}; {advice}"),
            None => format!("it has no interface: it has no driver; {advice}"),
        };
        let name = function.address.to_string();
        probe.exclude(Exclusion::new(Class::Nic, name, reason));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(vendor: u16, device: u16) -> PciId {
        PciId { vendor, device }
    }

    #[test]
    fn adapters_that_the_driver_binds_but_onload_refuses_are_known() {
        for (vendor, device) in [
            (0x1924, 0x0903),
            (0x1924, 0x1923),
            (0x1924, 0x0813),
            (0x1022, 0x1190),
            (0x10ee, 0x0100),
        ] {
            let support = card_support(id(vendor, device));
            assert!(matches!(support, Some(CardSupport::Refused(_))), "{vendor:x}:{device:x}");
        }
        assert_eq!(card_support(id(0x8086, 0x10c9)), None);
        assert_eq!(card_support(id(0x1924, 0x0b03)), Some(CardSupport::Capable(Datapath::Ef10)));
        assert_eq!(card_support(id(0x10ee, 0x5084)), Some(CardSupport::Capable(Datapath::Efct)));
    }

    #[test]
    fn the_kernel_answers_whether_a_driver_has_xdp() {
        let reason =
            |has_xdp| other_driver_reason("bnx2", "REGISTER", AfXdpSupport::Registers, has_xdp);
        let unknown = reason(None);
        assert!(unknown.ends_with("; if bnx2 supports XDP, REGISTER"), "{unknown}");
        let has_it = reason(Some(true));
        assert!(has_it.ends_with("; REGISTER"), "{has_it}");
        assert_eq!(
            reason(Some(false)),
            "driver bnx2 is not one of Onload's and does not support XDP, which Onload needs for \
             other vendors' interfaces"
        );
    }

    #[test]
    fn a_registration_keeps_the_interfaces_that_are_configured() {
        let configured = ["ens1", "ens2"].map(|name| name.to_owned().try_into().unwrap());
        let run = "under [host], and run \"systemctl enable onload-host && systemctl restart \
            onload-host\"";
        assert_eq!(describe_registration("ens3", &[]), format!("set af-xdp = [\"ens3\"] {run}"));
        assert_eq!(
            describe_registration("ens3", &configured),
            format!("add \"ens3\" to af-xdp {run}")
        );
        assert_eq!(
            describe_registration("ens2", &configured),
            "run \"systemctl restart onload-host\""
        );
    }

    #[test]
    fn an_entry_of_debugfs_names_its_interface() {
        assert_eq!(parse_interface("000_ens1"), Some("ens1"));
        assert_eq!(parse_interface("1000_a_b"), Some("a_b"));
        assert_eq!(parse_interface("ens1"), None);
        assert_eq!(parse_interface("_ens1"), None);
        assert_eq!(parse_interface("000_"), None);
    }

    #[test]
    fn the_architecture_is_named_in_devtype() {
        let named = parse_devtype;
        assert_eq!(named("4:58:0 => AF_XDP"), Some(Datapath::AfXdp));
        assert_eq!(named("1:41:2 => EF10"), Some(Datapath::Ef10));
        assert_eq!(named("EF10CT"), Some(Datapath::Ef10ct));
        assert_eq!(named("1:41:2 => EF100"), None);
        assert_eq!(named(""), None);
    }

    #[test]
    fn the_low_latency_datapath_comes_first_and_a_switched_off_one_does_not_count() {
        let on = |datapath| Attachment { datapath: Some(datapath), off_switch: None };
        let off = |datapath| Attachment {
            datapath: Some(datapath),
            off_switch: Some("/sys/x/enable".to_owned()),
        };
        let both = [on(Datapath::Ef10), on(Datapath::Ef10ct)];
        assert_eq!(attached_datapath(&both, None), Ok(Datapath::Ef10ct));
        let full = [on(Datapath::Ef10), off(Datapath::Ef10ct)];
        assert_eq!(attached_datapath(&full, None), Ok(Datapath::Ef10));
        let error = attached_datapath(&[off(Datapath::Ef10)], None).unwrap_err();
        assert_eq!(error, "acceleration is disabled; write 1 to /sys/x/enable");
    }
}
