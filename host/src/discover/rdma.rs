//! RDMA devices: HCAs, RoCE and iWARP adapters and software devices
//! (`Documentation/ABI/stable/sysfs-class-infiniband`).

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onload_core::class::Class;
use onload_core::config::DiscoverConfig;
use onload_core::expectation::ExpectedDevice;
use onload_core::host_settings::RdmaNetns;
use onload_core::netdev::usage::{ExtraUses, NetworkState};
use onload_core::rdma_companion::CompanionNode;
use onload_sys::netlink::link::parse_hwaddr;
use onload_sys::pci::PciAddress;
use onload_sys::text::{Quoted, parse_digits};
use serde::Serialize;

use crate::discover::exclusion::Exclusion;
use crate::discover::netdev::{
    self, INFINIBAND_ALEN, NetworkInterface, group_without_representors,
};
use crate::discover::node::{NumberedNode, OfferedNode, serialize_paths};
use crate::discover::pci::PciFunctions;
use crate::discover::probe::Probe;
use crate::discover::taken_names::TakenNames;
use crate::netlink::rdma_ports::RdmaPortInterfaces;

const CLASS: &str = "infiniband";
/// Class directories of the character devices for user space: uverbs, and umad and issm.
const CHARACTER_CLASSES: [&str; 2] = ["infiniband_verbs", "infiniband_mad"];
const NODES: &str = "/dev/infiniband";
/// The connection manager, shared by all devices.
const CONNECTION_MANAGER: &str = "/dev/infiniband/rdma_cm";
/// The netns mode (`ib_devices_shared_netns` in `drivers/infiniband/core/device.c`), however it was set.
pub(crate) const NETNS_MODE: &str = "/sys/module/ib_core/parameters/netns_mode";
/// The problem of a device whose node GUID is zero.
pub const ZERO_GUID: &str = "its node GUID is zero: programs cannot connect with librdmacm, and on \
    InfiniBand the subnet manager does not bring up its port";
/// The udev rule that renames RDMA devices (rdma-core).
const NAMING_RULE: &str = "/etc/udev/rules.d/60-rdma-persistent-naming.rules";
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RdmaDevice {
    /// The kernel's name, for instance `mlx5_0`.
    pub name: String,
    pub pci_address: Option<PciAddress>,
    /// Whether it belongs to a subfunction.
    #[serde(skip)]
    pub(crate) is_subfunction: bool,
    /// Whether its port is down because no container has it: the interface of a virtual function or subfunction is set
    /// up in the container, and until then RoCE has no port (`mlx5_query_port_roce` in
    /// drivers/infiniband/hw/mlx5/main.c).
    #[serde(skip)]
    pub(crate) waits_for_container: bool,
    /// Why the container that should have it does not.
    #[serde(skip)]
    pub(crate) trouble: Option<String>,
    pub numa_node: Option<u32>,
    /// `node_guid` in the kernel's notation.
    pub node_guid: Option<String>,
    pub firmware: Option<String>,
    /// Its transport: `infiniband` (RoCE too), `iwarp`, `usnic`, `usnic_udp`, `unspecified`.
    pub transport: Option<&'static str>,
    pub netdevs: Vec<String>,
    pub ports: Vec<RdmaPort>,
    /// Its nodes, the connection manager's if it exists, and the offered management nodes of the device and of others
    /// on the same function that libibumad uses with it.
    #[serde(serialize_with = "serialize_paths")]
    pub nodes: Vec<Arc<OfferedNode>>,
    pub device: String,
}

impl RdmaDevice {
    /// Returns whether its node GUID is zero, as for a virtual function without an assigned one.
    pub fn has_zero_guid(&self) -> bool {
        let guid = self.node_guid.as_deref().unwrap_or_default();
        guid.contains('0') && guid.bytes().all(|byte| b"0:".contains(&byte))
    }

    /// Why nothing can be sent by it, unless it waits for a container to set it up or is in one.
    pub fn port_trouble(&self) -> Option<String> {
        describe_inactive_ports(&self.ports).filter(|_| !self.waits_for_container)
    }

    /// Returns whether librdmacm can connect through it.
    pub fn has_connection_manager(&self) -> bool {
        has_connection_manager(self.transport)
    }
}

/// Returns whether rdma_cm takes devices of this transport (`cma_supported` in drivers/infiniband/core/cma.c): not EFA,
/// which is `unspecified`, nor usNIC.
fn has_connection_manager(transport: Option<&str>) -> bool {
    !matches!(transport, Some("unspecified" | "usnic" | "usnic_udp"))
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RdmaPort {
    /// Port number, starting from 1.
    pub port: u32,
    /// `ACTIVE`, `DOWN`, `INIT`, `ARMED` and others (`enum ib_port_state`).
    pub state: Option<String>,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: Option<String>,
    /// The rate in the kernel's notation, for instance `100 Gb/sec (4X EDR)`.
    pub rate: Option<String>,
    pub netdevs: Vec<String>,
}

impl RdmaPort {
    /// `ACTIVE`, or `ACTIVE_DEFER` (`enum ib_port_state`, include/rdma/ib_verbs.h).
    pub(crate) fn is_active(&self) -> bool {
        self.state.as_deref().is_some_and(|state| state.starts_with("ACTIVE"))
    }
}

/// Why nothing can be sent: each port says that it is not active.
pub(crate) fn describe_inactive_ports(ports: &[RdmaPort]) -> Option<String> {
    if ports.is_empty() || ports.iter().any(RdmaPort::is_active) {
        return None;
    }
    let mut states = Vec::new();
    for port in ports {
        states.push(format!("port {} is {}", port.port, port.state.as_deref()?));
    }
    Some(format!(
        "none of its ports is active: {}; bring its link up (InfiniBand needs a subnet manager)",
        states.join(", ")
    ))
}

pub(crate) fn netns_mode(probe: &Probe<'_>) -> Option<RdmaNetns> {
    probe.read_parsed(NETNS_MODE, parse_netns_mode, "Y or N")
}

/// Returns the devices that are offered in mode exclusive: those that can move into a container's network namespace.
/// The move recreates their nodes, so a container gets them from the hook.
pub(crate) fn offer_movable(
    probe: &Probe<'_>,
    functions: &PciFunctions,
    devices: Vec<RdmaDevice>,
    live_devices: bool,
) -> Vec<RdmaDevice> {
    let mut offered = Vec::new();
    let network = probe.ok_or_warn(probe.host().network());
    for device in devices {
        let reason = fixed_reason(&device, functions, live_devices)
            .or_else(|| interface_use(&device, network.as_ref()?));
        match reason {
            None => offered.push(drop_management(probe, device)),
            Some(reason) => {
                let exclusion = Exclusion::new(Class::Rdma, device.name, reason);
                probe.exclude(exclusion.with_pci(device.pci_address));
            }
        }
    }
    offered
}

fn fixed_reason(
    device: &RdmaDevice,
    functions: &PciFunctions,
    live_devices: bool,
) -> Option<String> {
    let otherwise = "set RDMA's mode to shared (rdma-netns = \"shared\" under [host]) to offer it";
    if let Some(which) = driver_obstacle(device, functions) {
        return Some(format!(
            "in netns mode exclusive a device moves into the container's network namespace, but a \
             device {which} cannot (EOPNOTSUPP); {otherwise}"
        ));
    }
    (!live_devices).then(|| {
        format!(
            "in netns mode exclusive its nodes are known only after it has moved into the \
             container, but live-devices = false under [annotations] forbids adding them; allow \
             that, or {otherwise}"
        )
    })
}

/// Returns how the host uses an IPoIB interface that a move would delete.
fn interface_use(device: &RdmaDevice, network: &NetworkState) -> Option<String> {
    let mut links = device.netdevs.iter().filter_map(|name| network.link(name));
    links.find_map(|link| {
        let is_ipoib = link.kind == b"ipoib";
        let uses = is_ipoib.then(|| network.describe_uses(link, ExtraUses::default()));
        let first = uses?.into_iter().next()?;
        Some(format!(
            "in netns mode exclusive a device moves into the container's network namespace, which \
             would delete its interface {}, which the host uses: {first}",
            Quoted(&link.display_name())
        ))
    })
}

/// Returns the reason if the driver cannot move the device, for lack of `disassociate_ucontext`
/// (`ib_device_set_netns_put` in `drivers/infiniband/core/device.c`).
fn driver_obstacle(device: &RdmaDevice, functions: &PciFunctions) -> Option<String> {
    // PCI drivers of ocrdma, iw_cxgb4, efa, hfi1, mthca, qib, qedr, usnic and vmw_pvrdma. Devices of unknown drivers
    // are offered: if one cannot move, the kernel reports it when a container starts.
    const FIXED: [&str; 9] = [
        "be2net",
        "cxgb4",
        "efa",
        "hfi1",
        "ib_mthca",
        "ib_qib",
        "qede",
        "usnic_verbs",
        "vmw_pvrdma",
    ];
    let Some(pci) = device.pci_address else {
        let driver = match device.transport {
            Some("iwarp") => "soft-iWARP (siw)",
            _ => "soft-RoCE (rxe)",
        };
        return Some(format!("in software, as of {driver},"));
    };
    let driver = functions.get(pci)?.driver.as_deref()?;
    FIXED.contains(&driver).then(|| format!("of {driver}"))
}

fn drop_management(probe: &Probe<'_>, mut device: RdmaDevice) -> RdmaDevice {
    let reason = "for management, which is unsupported in netns mode exclusive";
    device.nodes.retain(|node| {
        let name = node.node.name();
        let is_kept = matches!(parse_role(name), Some(RdmaNodeRole::Verbs) | None);
        if !is_kept {
            probe.exclude(Exclusion::new(Class::Rdma, name, reason));
        }
        is_kept
    });
    device
}

pub(crate) fn read(
    probe: &Probe<'_>,
    functions: &PciFunctions,
    interfaces: &[NetworkInterface],
    config: &DiscoverConfig,
) -> Vec<RdmaDevice> {
    let device_dirs = find_devices(probe);
    if device_dirs.is_empty() {
        return Vec::new();
    }
    let characters = find_characters(probe);
    let companions = find_companions(&device_dirs, &characters);
    let port_interfaces = probe.with_classes(&[], || {
        probe.ok_or_warn(probe.host().rdma_port_interfaces()).unwrap_or_default()
    });
    let context = RdmaContext {
        probe,
        functions,
        interfaces,
        by_function: group_without_representors(interfaces),
        by_guid: by_guid(interfaces),
        uppers: netdev::uppers(interfaces),
        port_interfaces,
        config,
        connection_manager: OnceCell::new(),
    };
    let mut taken_names = TakenNames::default();
    let mut devices = Vec::new();
    for (name, device_dir) in device_dirs {
        let own_characters = characters.get(&name).map_or(&[][..], Vec::as_slice);
        let offer = offer_nodes(probe, own_characters).and_then(|verbs| {
            let device = taken_names.choose(&name, device_dir.pci)?;
            Ok((device, verbs))
        });
        match offer {
            Ok((device, verbs)) => {
                let mut read = context.read_device(&name, &device_dir, device, verbs);
                context.add_companion(&mut read);
                if read.has_zero_guid() {
                    probe.warn(format!("rdma {}: {ZERO_GUID}; see onload-ctk doctor", read.name));
                }
                if let Some(trouble) = read.port_trouble() {
                    probe.warn(format!("rdma {}: {trouble}; see onload-ctk doctor", read.name));
                }
                let function_companions = device_dir.pci.and_then(|pci| companions.get(&pci));
                for owner in iter::once(&name).chain(function_companions.into_iter().flatten()) {
                    let owner_characters = characters.get(owner).map_or(&[][..], Vec::as_slice);
                    context.add_management(&mut read, owner, owner_characters);
                }
                devices.push(read);
            }
            Err(reason) => {
                let exclusion = Exclusion::new(Class::Rdma, name, reason);
                probe.exclude(exclusion.with_pci(device_dir.pci));
            }
        }
    }
    devices
}

#[derive(Debug)]
struct DeviceDirectory {
    directory: PathBuf,
    pci: Option<PciAddress>,
    /// The auxiliary device between it and its PCI function, as for a subfunction. The function's interfaces do not
    /// belong to it.
    auxiliary: Option<PathBuf>,
}

impl DeviceDirectory {
    fn new(probe: &Probe<'_>, directory: PathBuf) -> DeviceDirectory {
        let mut parent = directory.parent().and_then(Path::parent);
        let linked;
        if parent.and_then(PciFunctions::function_above).is_none() {
            linked = probe.resolve(directory.join("device"));
            parent = linked.as_deref();
        }
        let pci = parent.and_then(PciFunctions::function_above);
        let name = parent.and_then(Path::file_name).and_then(|n| n.to_str());
        let on_function = name.is_some_and(|name| name.parse::<PciAddress>().is_ok());
        let auxiliary = parent.filter(|_| pci.is_some() && !on_function);
        DeviceDirectory { pci, auxiliary: auxiliary.map(Path::to_owned), directory }
    }

    /// Returns whether it is a subfunction by its name on the auxiliary bus, such as `mlx5_core.sf.4`
    /// (`MLX5_SF_DEV_ID_NAME` in drivers/net/ethernet/mellanox/mlx5/core/sf/dev/dev.h).
    fn is_subfunction(&self) -> bool {
        let name =
            self.auxiliary.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
        name.is_some_and(|name| name.rsplit('.').nth(1) == Some("sf"))
    }
}

/// Finds every device by name.
fn find_devices(probe: &Probe<'_>) -> BTreeMap<String, DeviceDirectory> {
    let class = Path::new("/sys/class").join(CLASS);
    let mut device_dirs = BTreeMap::new();
    for name in probe.list(&class) {
        let link = class.join(&name);
        match probe.resolve(&link) {
            Some(directory) => {
                device_dirs.insert(name, DeviceDirectory::new(probe, directory));
            }
            None => {
                probe.exclude(Exclusion::new(Class::Rdma, name, probe.dangling_reason(&link)));
            }
        }
    }
    device_dirs
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RdmaNodeRole {
    Verbs,
    /// Management datagrams of a port.
    Umad,
    /// The right to act as the subnet manager of a port.
    Issm,
}

/// A character device of an RDMA device. Its number is unrelated to the device's.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RdmaCharDevice {
    role: RdmaNodeRole,
    port: Option<u32>,
    name: String,
    directory: PathBuf,
}

fn parse_role(name: &str) -> Option<RdmaNodeRole> {
    let roles = [
        ("uverbs", RdmaNodeRole::Verbs),
        ("umad", RdmaNodeRole::Umad),
        ("issm", RdmaNodeRole::Issm),
    ];
    roles
        .into_iter()
        .find_map(|(prefix, role)| parse_digits::<u32>(name.strip_prefix(prefix)?).map(|_| role))
}

/// Finds the character devices of each RDMA device, by its name.
fn find_characters(probe: &Probe<'_>) -> BTreeMap<String, Vec<RdmaCharDevice>> {
    let mut by_owner: BTreeMap<String, Vec<RdmaCharDevice>> = BTreeMap::new();
    for class in CHARACTER_CLASSES {
        let class_dir = Path::new("/sys/class").join(class);
        for name in probe.list(&class_dir) {
            let Some(role) = parse_role(&name) else {
                continue;
            };
            let directory = class_dir.join(&name);
            let Some(owner) = probe.attribute(directory.join("ibdev")) else {
                continue;
            };
            let has_port = role != RdmaNodeRole::Verbs;
            let port = has_port.then(|| probe.number(directory.join("port"))).flatten();
            let character = RdmaCharDevice { role, port, name, directory };
            by_owner.entry(owner).or_default().push(character);
        }
    }
    for characters in by_owner.values_mut() {
        characters.sort();
    }
    by_owner
}

fn find_nodes(
    probe: &Probe<'_>,
    characters: &[RdmaCharDevice],
    role: RdmaNodeRole,
) -> impl Iterator<Item = Result<NumberedNode, String>> {
    characters.iter().filter(move |character| character.role == role).map(|character| {
        NumberedNode::find(probe, format!("{NODES}/{}", character.name), &character.directory)
    })
}

/// Returns the devices with umad but without uverbs, by function: libibumad opens the ports of an HCA with several
/// planes through them (`smi1` together with `mlx5_0`, libibumad's pairs of SMI and GSI).
fn find_companions(
    device_dirs: &BTreeMap<String, DeviceDirectory>,
    characters: &BTreeMap<String, Vec<RdmaCharDevice>>,
) -> BTreeMap<PciAddress, Vec<String>> {
    let mut companions: BTreeMap<PciAddress, Vec<String>> = BTreeMap::new();
    for (name, device_dir) in device_dirs {
        let own_characters = characters.get(name).map_or(&[][..], Vec::as_slice);
        let has = |role: RdmaNodeRole| own_characters.iter().any(|one| one.role == role);
        if let Some(pci) =
            device_dir.pci.filter(|_| has(RdmaNodeRole::Umad) && !has(RdmaNodeRole::Verbs))
        {
            companions.entry(pci).or_default().push(name.clone());
        }
    }
    companions
}

/// Returns the uverbs nodes, without which a device is useless. Fails with the reason why it is not offered.
fn offer_nodes(
    probe: &Probe<'_>,
    characters: &[RdmaCharDevice],
) -> Result<Vec<NumberedNode>, String> {
    let verbs: Vec<NumberedNode> =
        find_nodes(probe, characters, RdmaNodeRole::Verbs).collect::<Result<_, _>>()?;
    if !verbs.is_empty() {
        return Ok(verbs);
    }
    if characters.is_empty() {
        let class = Path::new("/sys/class").join(CHARACTER_CLASSES[0]);
        if let Some(reason) = probe.unread_reason(class) {
            return Err(format!("could not determine whether it has a uverbs device: {reason}"));
        }
        return Err("it has no uverbs device; load the module ib_uverbs".to_owned());
    }
    let management: Vec<&str> = characters.iter().map(|one| one.name.as_str()).collect();
    Err(format!(
        "it has no uverbs device, only {}: a device for the subnet manager, not for programs",
        management.join(", ")
    ))
}

fn offered_node(node: NumberedNode, ibdev: &str, pci: Option<PciAddress>) -> Arc<OfferedNode> {
    let ibdev = ibdev.to_owned();
    OfferedNode::exclusive(node, vec![ExpectedDevice::Rdma { ibdev, pci }])
}

fn find_connection_manager(probe: &Probe<'_>) -> Option<NumberedNode> {
    let device = Path::new("/sys/class/misc/rdma_cm");
    match NumberedNode::find(probe, CONNECTION_MANAGER, device) {
        Ok(node) => Some(node),
        Err(mut reason) => {
            if probe.entry(device).is_none() && probe.unread_reason(device).is_none() {
                reason = format!("{CONNECTION_MANAGER} does not exist; load the module rdma_ucm");
            }
            probe.warn(format!("programs that use librdmacm will not work: {reason}"));
            None
        }
    }
}

struct RdmaContext<'p, 'h, 'f> {
    probe: &'p Probe<'h>,
    functions: &'f PciFunctions,
    interfaces: &'f [NetworkInterface],
    by_function: BTreeMap<PciAddress, Vec<&'f NetworkInterface>>,
    by_guid: BTreeMap<u64, Vec<&'f str>>,
    /// The interfaces that are stacked on each interface.
    uppers: BTreeMap<&'f str, Vec<&'f str>>,
    /// The interfaces that the kernel reports by netlink.
    port_interfaces: RdmaPortInterfaces,
    config: &'f DiscoverConfig,
    /// Read, with its warning, once a device can use it.
    connection_manager: OnceCell<Option<Arc<OfferedNode>>>,
}

impl RdmaContext<'_, '_, '_> {
    fn read_device(
        &self,
        name: &str,
        device_dir: &DeviceDirectory,
        device: String,
        verbs: Vec<NumberedNode>,
    ) -> RdmaDevice {
        let probe = self.probe;
        let attribute = |name: &str| probe.attribute(device_dir.directory.join(name));
        let transport = probe.read_parsed(
            device_dir.directory.join("node_type"),
            parse_transport,
            "a node type such as \"1: CA\"",
        );
        let ports = self.read_ports(name, device_dir);
        let netdevs: BTreeSet<&String> = ports.iter().flat_map(|port| &port.netdevs).collect();
        let function = device_dir.pci.and_then(|pci| self.functions.get(pci));
        let is_virtual = function.is_some_and(|function| function.physical_function.is_some());
        let is_vf_or_subfunction = is_virtual || device_dir.is_subfunction();
        let verbs = verbs.into_iter().map(|node| offered_node(node, name, device_dir.pci));
        let connection_manager = has_connection_manager(transport).then(|| {
            self.connection_manager
                .get_or_init(|| find_connection_manager(probe).map(OfferedNode::shared))
                .clone()
        });
        let nodes = verbs.chain(connection_manager.flatten());
        RdmaDevice {
            pci_address: device_dir.pci,
            is_subfunction: device_dir.is_subfunction(),
            trouble: None,
            waits_for_container: is_vf_or_subfunction
                && !ports.is_empty()
                && ports.iter().all(|port| self.is_waiting(port)),
            numa_node: function.and_then(|function| function.numa_node),
            node_guid: attribute("node_guid"),
            firmware: attribute("fw_ver"),
            transport,
            netdevs: netdevs.into_iter().cloned().collect(),
            nodes: nodes.collect(),
            device,
            ports,
            name: name.to_owned(),
        }
    }

    /// Adds the node that the device's driver creates in addition to uverbs, if any.
    fn add_companion(&self, device: &mut RdmaDevice) {
        let function = device.pci_address.and_then(|pci| self.functions.get(pci));
        let driver = function.and_then(|function| function.driver.as_deref());
        let Some(companion) = driver.and_then(CompanionNode::find_by_driver) else {
            return;
        };
        let node = match companion.node_name(&device.name) {
            None => Err(format!(
                "its name was changed, and {} finds its node only by the kernel's name; run \
                 \"ln -s /dev/null {NAMING_RULE}\" and reboot",
                companion.library
            )),
            Some(name) => {
                let class = |class: &&str| Path::new("/sys/class").join(class).join(&name);
                let mut directories = companion.classes.iter().map(class);
                let present = directories.find(|path| self.probe.entry(path).is_some());
                let directory = present.unwrap_or_else(|| class(&companion.classes[0]));
                NumberedNode::find(self.probe, format!("/dev/{name}"), &directory)
            }
        };
        match node {
            Ok(node) => device.nodes.push(offered_node(node, &device.name, device.pci_address)),
            Err(reason) => self.probe.warn(format!(
                "rdma {}: programs that use {} will not work: {reason}",
                device.name, companion.library
            )),
        }
    }

    /// Returns whether a port is down and has no interface in this namespace that is set up.
    fn is_waiting(&self, port: &RdmaPort) -> bool {
        let is_down = port.state.as_deref() == Some("DOWN");
        let mut interfaces = port.netdevs.iter();
        is_down
            && port.link_layer.as_deref() == Some("Ethernet")
            && interfaces.all(|name| netdev::is_admin_down(self.probe, name))
    }

    /// Adds the offered management nodes of `owner`, the device itself or one on the same function. Excludes the
    /// device's other ones.
    fn add_management(&self, device: &mut RdmaDevice, owner: &str, characters: &[RdmaCharDevice]) {
        let roles = [
            (RdmaNodeRole::Umad, self.config.offer_umad, "offer-umad"),
            (RdmaNodeRole::Issm, self.config.offer_issm, "offer-issm"),
        ];
        for (role, is_offered, key) in roles {
            if is_offered {
                for node in find_nodes(self.probe, characters, role) {
                    match node {
                        Ok(node) => {
                            device.nodes.push(offered_node(node, owner, device.pci_address));
                        }
                        Err(reason) => self.probe.warn(format!("rdma {owner}: left out: {reason}")),
                    }
                }
            } else if owner == device.name {
                let reason = format!(
                    "for management, not for data; set {key} = true in [discover] to offer it"
                );
                for one in characters.iter().filter(|one| one.role == role) {
                    self.probe.exclude(Exclusion::new(Class::Rdma, &one.name, reason.as_str()));
                }
            }
        }
    }

    fn read_ports(&self, device: &str, device_dir: &DeviceDirectory) -> Vec<RdmaPort> {
        let directory = device_dir.directory.join("ports");
        let names = self.probe.list(&directory);
        let mut numbers: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
        numbers.sort_unstable();
        numbers.into_iter().map(|number| self.read_port(device, device_dir, number)).collect()
    }

    fn read_port(&self, device: &str, device_dir: &DeviceDirectory, port: u32) -> RdmaPort {
        let directory = device_dir.directory.join("ports").join(port.to_string());
        let attribute = |name: &str| self.probe.attribute(directory.join(name));
        let link_layer = attribute("link_layer");
        let netdevs = if link_layer.as_deref() == Some("InfiniBand") {
            self.ipoib_interfaces(&directory)
        } else {
            self.ethernet_interfaces(device, device_dir, port)
        };
        RdmaPort {
            port,
            state: attribute("state").map(|state| state_word(&state).to_owned()),
            link_layer,
            rate: attribute("rate"),
            netdevs: netdevs.into_iter().collect(),
        }
    }

    /// Finds IPoIB interfaces by the port's GUID, which their hardware address contains (RFC 4391 section 9.1.1).
    fn ipoib_interfaces(&self, port_dir: &Path) -> BTreeSet<String> {
        let gid = port_dir.join("gids/0");
        let guid = self.probe.read_parsed(gid, parse_port_guid, "a GID of eight groups");
        let names = guid.filter(|guid| *guid != 0).and_then(|guid| self.by_guid.get(&guid));
        names.into_iter().flatten().map(|name| (*name).to_owned()).collect()
    }

    /// Finds the interface that an Ethernet port sends through, the interfaces that are stacked on it, such as a bond
    /// or a VLAN, and those below it, if a software device is on a bond. The port's GID table is not used, since it also
    /// lists interfaces of other namespaces, such as a pod's macvlan, under names that the pod chose (`print_ndev` in
    /// drivers/infiniband/core/sysfs.c).
    fn ethernet_interfaces(
        &self,
        device: &str,
        device_dir: &DeviceDirectory,
        port: u32,
    ) -> BTreeSet<String> {
        let reported = self.port_interfaces.get(&(device.to_owned(), port));
        let parent = match reported {
            Some(interface) => interface.clone(),
            None if device_dir.pci.is_some() => self.interface_by_port(device, device_dir, port),
            None => self.probe.attribute(device_dir.directory.join("parent")),
        };
        let Some(parent) = parent else {
            return BTreeSet::new();
        };
        let interface = netdev::find_by_name(self.interfaces, &parent);
        if interface.is_some_and(NetworkInterface::is_representor) {
            return BTreeSet::new();
        }
        let mut names = BTreeSet::from([parent]);
        names.extend(
            interface.and_then(NetworkInterface::lower_devices).into_iter().flatten().cloned(),
        );
        let uppers = names.iter().filter_map(|name| self.uppers.get(name.as_str())).flatten();
        let uppers: Vec<String> = uppers.map(|name| (*name).to_owned()).collect();
        names.extend(uppers);
        names
    }

    /// Returns the interface of the device with the port's number, if the kernel reports none by netlink, as on a
    /// captured host.
    fn interface_by_port(
        &self,
        device: &str,
        device_dir: &DeviceDirectory,
        port: u32,
    ) -> Option<String> {
        if let Some(auxiliary) = &device_dir.auxiliary {
            return self.probe.list(auxiliary.join("net")).into_iter().next();
        }
        let function_interfaces = self.by_function.get(&device_dir.pci?)?;
        // Interfaces count their ports from 0, RDMA devices from 1.
        let names: Vec<&String> = function_interfaces
            .iter()
            .filter(|interface| Some(interface.port.unwrap_or(0)) == port.checked_sub(1))
            .map(|interface| &interface.name)
            .collect();
        if names.len() > 1 {
            self.probe.warn(format!(
                "rdma {device}: could not determine the interface of port {port}: several have its \
                 number, and the kernel reports none"
            ));
            return None;
        }
        names.first().copied().cloned()
    }
}

/// Returns IPoIB interfaces by the GUID of the port.
fn by_guid(interfaces: &[NetworkInterface]) -> BTreeMap<u64, Vec<&str>> {
    let mut all: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for interface in interfaces {
        if let Some(guid) = interface.hardware_address.as_deref().and_then(parse_ipoib_guid) {
            all.entry(guid).or_default().push(&interface.name);
        }
    }
    all
}

/// `ib_devices_shared_netns`, a boolean parameter.
pub(crate) fn parse_netns_mode(text: &str) -> Option<RdmaNetns> {
    match text {
        "Y" | "1" => Some(RdmaNetns::Shared),
        "N" | "0" => Some(RdmaNetns::Exclusive),
        _ => None,
    }
}

/// Derives the transport from `node_type` (`rdma_node_get_transport` in `drivers/infiniband/core/verbs.c`).
fn parse_transport(node_type: &str) -> Option<&'static str> {
    let number = node_type.split(':').next()?.trim();
    match number.parse::<u32>().ok()? {
        1..=3 => Some("infiniband"),
        4 => Some("iwarp"),
        5 => Some("usnic"),
        6 => Some("usnic_udp"),
        7 => Some("unspecified"),
        _ => None,
    }
}

fn state_word(text: &str) -> &str {
    text.split_once(':').map_or(text, |(_, word)| word.trim())
}

/// Parses the port's GUID at the end of a GID, which the kernel writes as an IPv6 address with all its digits.
fn parse_port_guid(gid: &str) -> Option<u64> {
    let address: Ipv6Addr = gid.parse().ok().filter(|_| gid.len() == 39)?;
    address.octets().last_chunk().copied().map(u64::from_be_bytes)
}

/// Parses the port's GUID at the end of an IPoIB hardware address.
fn parse_ipoib_guid(address: &str) -> Option<u64> {
    let address = parse_hwaddr(address).filter(|address| address.len() == INFINIBAND_ALEN)?;
    address.last_chunk().copied().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::test_tree::{AsHost, Discovered, Tree, discover, generous, sample};
    use crate::host::Host;

    fn discover_host(host: &Host, config: &DiscoverConfig) -> Discovered<RdmaDevice> {
        discover(host, |probe, functions, interfaces| read(probe, functions, interfaces, config))
    }

    fn look_at(tree: &Tree) -> Discovered<RdmaDevice> {
        discover_host(&tree.host(), &DiscoverConfig::default())
    }

    /// A host with the connection manager.
    fn tree() -> Tree {
        let tree = Tree::new();
        tree.file("/sys/class/misc/rdma_cm/dev", "10:260\n");
        tree.node(CONNECTION_MANAGER, 10, 260);
        tree
    }

    const HCA: [(&str, &str); 3] =
        [("node_type", "1: CA"), ("node_guid", "0002:c903:00f9:bfa0"), ("fw_ver", "2.42.5000")];

    fn port(tree: &Tree, device: &str, number: u32, link_layer: &str) -> String {
        let directory = format!("{device}/ports/{number}");
        let files =
            [("link_layer", link_layer), ("state", "4: ACTIVE"), ("rate", "100 Gb/sec (4X EDR)")];
        tree.attributes(&directory, &files);
        directory
    }

    fn paths_of(device: &RdmaDevice) -> Vec<&str> {
        device.nodes.iter().map(|node| node.node.path.as_str()).collect()
    }

    /// The devices behind the nodes for management.
    fn management_of(device: &RdmaDevice) -> Vec<String> {
        let expected = device
            .nodes
            .iter()
            .filter(|offered| offered.node.path.contains("mad"))
            .flat_map(|offered| &offered.expected);
        expected
            .filter_map(|expected| match expected {
                ExpectedDevice::Rdma { ibdev, .. } => Some(ibdev.clone()),
                _ => None,
            })
            .collect()
    }

    /// A device on a function, with one Ethernet port, and its uverbs.
    fn device(tree: &Tree, function: &str, name: &str, uverbs: u32) -> String {
        let device = tree.class_device("infiniband", function, name, &HCA);
        port(tree, &device, 1, "Ethernet");
        verbs(tree, function, name, uverbs);
        device
    }

    fn verbs(tree: &Tree, function: &str, owner: &str, number: u32) {
        let name = format!("uverbs{number}");
        let dev = format!("231:{}", 192 + number);
        let files = [("ibdev", owner), ("dev", dev.as_str())];
        tree.class_device("infiniband_verbs", function, &name, &files);
        tree.node(&format!("/dev/infiniband/{name}"), 231, 192 + number);
    }

    fn management(tree: &Tree, function: &str, owner: &str, number: u32, port: u32) {
        for (prefix, base) in [("umad", 0), ("issm", 64)] {
            let name = format!("{prefix}{number}");
            let dev = format!("231:{}", base + number);
            let port = port.to_string();
            let files = [("ibdev", owner), ("port", port.as_str()), ("dev", &dev)];
            tree.class_device("infiniband_mad", function, &name, &files);
            tree.node(&format!("/dev/infiniband/{name}"), 231, base + number);
        }
    }

    fn interface(tree: &Tree, function: &str, name: &str, files: &[(&str, &str)]) {
        tree.class_device("net", function, name, files);
    }

    /// A device whose driver creates a node beside uverbs, and what is said of the host.
    fn companion(
        driver: &str,
        name: &str,
        class: &str,
        node: &str,
        path: &str,
    ) -> (String, String) {
        let tree = tree();
        let function = tree.function("0000:5e:00.0", "0x020800", 0);
        tree.bind(&function, driver);
        device(&tree, &function, name, 0);
        tree.file(&format!("/sys/class/{class}/{node}/dev"), "240:0\n");
        tree.node(path, 240, 0);
        let found = look_at(&tree);
        (paths_of(&found.devices[0]).join(" "), found.warnings.concat())
    }

    #[test]
    fn a_node_that_the_driver_creates_beside_uverbs_comes_with_the_device() {
        let all = "/dev/infiniband/uverbs0 /dev/infiniband/rdma_cm";
        for (driver, name, class, path, wanted) in [
            ("hfi1", "hfi1_0", "hfi1_user", "/dev/hfi1_0", " /dev/hfi1_0"),
            ("hfi1", "hfi1_1", "hfi1", "/dev/hfi1_1", " /dev/hfi1_1"),
            ("ib_qib", "qib0", "ipath", "/dev/ipath1", " /dev/ipath1"),
            ("mlx5_core", "hfi1_0", "hfi1_user", "/dev/hfi1_0", ""),
        ] {
            let node = path.trim_start_matches("/dev/");
            let (paths, warnings) = companion(driver, name, class, node, path);
            assert_eq!((paths, warnings), (format!("{all}{wanted}"), String::new()), "{driver}");
        }
        for (name, path, reason) in [
            (
                "opap94s0",
                "/dev/hfi1_0",
                "its name was changed, and PSM2 finds its node only by the kernel's name",
            ),
            (
                "hfi1_0",
                "/dev/hfi1_7",
                "/dev/hfi1_0 does not exist, although its driver created the device 240:0",
            ),
        ] {
            let (paths, warnings) = companion("hfi1", name, "hfi1_user", "hfi1_0", path);
            assert_eq!(paths, all);
            let start = format!("rdma {name}: programs that use PSM2 will not work: {reason}");
            assert!(warnings.starts_with(&start), "{warnings}");
        }
    }

    #[test]
    fn a_node_guid_of_zeros_is_warned_of() {
        for (guid, is_bad) in [
            ("0000:0000:0000:0000", true),
            ("0000000000000000", true),
            ("0000:0000:0000:0001", false),
            ("b8ce:f603:0000:0000", false),
            ("", false),
        ] {
            let tree = tree();
            let function = tree.function("0000:3b:00.0", "0x020000", 0);
            let device = device(&tree, &function, "mlx5_0", 0);
            tree.file(&format!("{device}/node_guid"), format!("{guid}\n"));
            let warnings = look_at(&tree).warnings.concat();
            assert_eq!(warnings.contains("rdma mlx5_0: its node GUID is zero"), is_bad, "{guid}");
        }
    }

    #[test]
    fn umad_and_issm_are_offered_only_when_the_operator_says_so() {
        let tree = tree();
        let function = tree.function("0000:3b:00.0", "0x020000", 0);
        device(&tree, &function, "mlx5_0", 0);
        management(&tree, &function, "mlx5_0", 0, 1);
        let shy = look_at(&tree);
        assert_eq!(shy.devices[0].nodes.len(), 2);
        assert_eq!(
            shy.reasons(),
            [
                "umad0: for management, not for data; set offer-umad = true in [discover] to offer it",
                "issm0: for management, not for data; set offer-issm = true in [discover] to offer it",
            ]
        );
        let open = discover_host(&tree.host(), &generous());
        assert_eq!(
            paths_of(&open.devices[0])[2..],
            ["/dev/infiniband/umad0", "/dev/infiniband/issm0"]
        );
        assert_eq!(open.reasons(), [""; 0]);
    }

    #[test]
    fn an_hca_of_class_0c06_is_found() {
        let tree = tree();
        let function = tree.function("0000:04:00.0", "0x0c0600", 1);
        device(&tree, &function, "qib0", 0);
        let found = look_at(&tree);
        assert_eq!(found.devices[0].name, "qib0");
        assert_eq!(found.devices[0].numa_node, Some(1));
    }

    #[test]
    fn a_domain_of_five_digits_and_a_numa_node_that_is_not_known() {
        let tree = tree();
        let function = tree.function("10000:e1:00.0", "0x020700", -1);
        device(&tree, &function, "mlx5_0", 0);
        let found = look_at(&tree);
        let address = found.devices[0].pci_address.unwrap().to_string();
        assert_eq!(address, "10000:e1:00.0");
        assert_eq!(found.devices[0].numa_node, None);
    }

    #[test]
    fn of_two_devices_on_one_function_the_one_without_uverbs_is_not_offered() {
        let tree = tree();
        let function = tree.function("0000:3b:00.0", "0x020700", 0);
        device(&tree, &function, "mlx5_0", 0);
        tree.class_device("infiniband", &function, "smi1", &HCA);
        management(&tree, &function, "smi1", 1, 1);
        management(&tree, &function, "smi1", 2, 2);
        let found = discover_host(&tree.host(), &generous());
        assert_eq!(found.devices.len(), 1);
        assert_eq!(found.devices[0].name, "mlx5_0");
        let owners = management_of(&found.devices[0]);
        assert!(owners.iter().all(|owner| owner == "smi1"));
        assert_eq!(
            found.reasons(),
            ["smi1: it has no uverbs device, only umad1, umad2, issm1, issm2: a device for the \
                subnet manager, not for programs"]
        );
    }

    #[test]
    fn two_devices_on_one_function_are_both_offered_with_their_own_nodes() {
        let tree = tree();
        let function = tree.function("0000:3b:00.0", "0x020000", 0);
        device(&tree, &function, "mlx5_0", 1);
        device(&tree, &function, "mlx5_1", 0);
        let found = look_at(&tree);
        assert_eq!(paths_of(&found.devices[0])[0], "/dev/infiniband/uverbs1");
        assert_eq!(paths_of(&found.devices[1])[0], "/dev/infiniband/uverbs0");
    }

    #[test]
    fn two_ports_on_one_function_have_their_own_interfaces() {
        let tree = tree();
        let function = tree.function("0000:04:00.0", "0x020000", 0);
        let device = device(&tree, &function, "mlx4_0", 0);
        port(&tree, &device, 2, "Ethernet");
        interface(&tree, &function, "eth2", &[("dev_port", "0")]);
        interface(&tree, &function, "eth3", &[("dev_port", "1")]);
        let found = look_at(&tree);
        let ports = &found.devices[0].ports;
        assert_eq!(ports[0].netdevs, ["eth2"]);
        assert_eq!(ports[1].netdevs, ["eth3"]);
        assert_eq!(found.devices[0].netdevs, ["eth2", "eth3"]);
    }

    /// Two functions of one card, whose second interface belongs to a port of the first one's device.
    fn two_functions(table: &str) -> Tree {
        let tree = tree();
        for (number, name) in [(0, "ens1f0"), (1, "ens1f1")] {
            let function = tree.function(&format!("0000:3b:00.{number}"), "0x020000", 0);
            let address = format!("b8:ce:f6:0a:0b:0{number}");
            interface(&tree, &function, name, &[("address", &address)]);
        }
        let function = "/sys/bus/pci/devices/0000:3b:00.0";
        let function = tree.host().resolve(Path::new(function)).unwrap().unwrap();
        let device = device(&tree, &function.to_string_lossy(), "mlx5_0", 0);
        port(&tree, &device, 2, "Ethernet");
        write_port_table(&tree, table);
        tree
    }

    /// Writes the table of a capture from lines `DEVICE PORT INTERFACE`.
    fn write_port_table(tree: &Tree, lines: &str) {
        tree.file("/rdma.table", lines);
    }

    fn port_interfaces(tree: &Tree) -> Vec<String> {
        let found = look_at(tree);
        let ports = found.devices.iter().flat_map(|device| {
            device
                .ports
                .iter()
                .map(|port| format!("{} {} {}", device.name, port.port, port.netdevs.join(",")))
        });
        ports.collect()
    }

    #[test]
    fn the_kernel_decides_which_interface_belongs_to_a_port() {
        for (table, expected) in [
            // A port on another function, as of a ConnectX-4 with one device for both.
            ("mlx5_0 1 ens1f0\nmlx5_0 2 ens1f1\n", ["mlx5_0 1 ens1f0", "mlx5_0 2 ens1f1"]),
            ("mlx5_0 1 ens1f1\nmlx5_0 2 ens1f0\n", ["mlx5_0 1 ens1f1", "mlx5_0 2 ens1f0"]),
            // One that is in another network namespace.
            ("mlx5_0 1 -\nmlx5_0 2 ens1f1\n", ["mlx5_0 1 ", "mlx5_0 2 ens1f1"]),
            // It says nothing of this device.
            ("mlx5_9 1 ens1f1\n", ["mlx5_0 1 ens1f0", "mlx5_0 2 "]),
        ] {
            let tree = two_functions(table);
            assert_eq!(port_interfaces(&tree), expected, "{table}");
        }
    }

    #[test]
    fn several_devices_of_a_function_have_the_interfaces_that_the_kernel_names() {
        let tree = tree();
        let function = tree.function("0000:3b:00.0", "0x020000", 0);
        for name in ["ens1", "ens2"] {
            interface(&tree, &function, name, &[]);
        }
        for (number, name) in [(0, "rocep59s0"), (1, "roce_second")] {
            device(&tree, &function, name, number);
        }
        write_port_table(&tree, "rocep59s0 1 ens2\nroce_second 1 ens1\n");
        assert_eq!(port_interfaces(&tree), ["roce_second 1 ens1", "rocep59s0 1 ens2"]);
        assert_eq!(look_at(&tree).warnings, [""; 0]);
    }

    #[test]
    fn several_interfaces_of_one_port_number_are_not_told_apart() {
        let tree = tree();
        let function = tree.function("0000:3b:00.4", "0x020000", 0);
        for name in ["ens1", "ens2"] {
            interface(&tree, &function, name, &[]);
        }
        device(&tree, &function, "cxgb4_0", 0);
        let found = look_at(&tree);
        assert_eq!(found.devices[0].netdevs, [""; 0]);
        assert_eq!(
            found.warnings,
            [
                "rdma cxgb4_0: could not determine the interface of port 1: several have its number, and \
              the kernel reports none"
            ]
        );
        write_port_table(&tree, "cxgb4_0 1 ens2\n");
        assert_eq!(port_interfaces(&tree), ["cxgb4_0 1 ens2"]);
    }

    #[test]
    fn a_representor_that_the_kernel_names_is_no_interface_of_the_device() {
        let tree = tree();
        let function = tree.function("0000:3b:00.0", "0x020000", 0);
        for (name, port) in [("ens1", "p0"), ("eth0", "pf0vf0")] {
            interface(&tree, &function, name, &[("phys_port_name", port)]);
        }
        let device = device(&tree, &function, "mlx5_0", 0);
        port(&tree, &device, 2, "Ethernet");
        write_port_table(&tree, "mlx5_0 1 ens1\nmlx5_0 2 eth0\n");
        assert_eq!(port_interfaces(&tree), ["mlx5_0 1 ens1", "mlx5_0 2 "]);
    }

    #[test]
    fn a_table_of_ports_that_cannot_be_read_is_warned_of() {
        let tree = two_functions("");
        tree.file("/rdma.table", "mlx5_0 1\n");
        let found = look_at(&tree);
        assert_eq!(found.devices[0].ports[0].netdevs, ["ens1f0"]);
        let wanted = "rdma.table: line 1: expected \"device port interface\"";
        assert!(found.warnings.concat().ends_with(wanted), "{:?}", found.warnings);
    }

    #[test]
    fn a_representor_is_no_interface_of_the_functions_device() {
        let tree = tree();
        let function = tree.function("0000:3b:00.0", "0x020000", 0);
        for (name, port) in [("0a1b2c3d", "pf0vf0"), ("ens1", "p0"), ("ens1pf0", "pf0")] {
            interface(&tree, &function, name, &[("phys_port_name", port)]);
        }
        device(&tree, &function, "mlx5_0", 0);
        assert_eq!(look_at(&tree).devices[0].netdevs, ["ens1"]);
    }

    #[test]
    fn an_old_kernel_numbers_the_ports_in_dev_id() {
        let tree = tree();
        let function = tree.function("0000:04:00.0", "0x020000", 0);
        let device = device(&tree, &function, "mlx4_0", 0);
        port(&tree, &device, 2, "Ethernet");
        let second = [("dev_port", "0"), ("dev_id", "0x1")];
        interface(&tree, &function, "eth3", &second);
        let found = look_at(&tree);
        assert_eq!(found.devices[0].ports[0].netdevs, [""; 0]);
        assert_eq!(found.devices[0].ports[1].netdevs, ["eth3"]);
    }

    /// A virtual interface on another one.
    fn upper(tree: &Tree, name: &str, lower: &str) {
        let directory = tree.class_device("net", "/sys/devices/virtual", name, &[]);
        let target = format!("/sys/class/net/{lower}");
        tree.link(&format!("{directory}/lower_{lower}"), &target);
    }

    #[test]
    fn the_interfaces_of_a_port_include_those_on_top() {
        let tree = tree();
        let function = tree.function("0000:3b:00.0", "0x020000", 0);
        device(&tree, &function, "mlx5_0", 0);
        for name in ["ens1", "ens2"] {
            interface(&tree, &function, name, &[]);
        }
        write_port_table(&tree, "mlx5_0 1 ens1\n");
        upper(&tree, "bond0", "ens1");
        upper(&tree, "bond0.100", "bond0");
        upper(&tree, "ens2.100", "ens2");
        assert_eq!(look_at(&tree).devices[0].netdevs, ["bond0", "bond0.100", "ens1"]);
    }

    #[test]
    fn a_subfunction_has_no_interface_of_its_function_by_a_pods_name() {
        let tree = tree();
        let function = tree.function("0000:3b:00.0", "0x020000", 0);
        interface(&tree, &function, "ens1", &[]);
        let subfunction = format!("{function}/mlx5_core.sf.4");
        tree.directory(&subfunction);
        interface(&tree, &subfunction, "ens1s0", &[]);
        device(&tree, &subfunction, "mlx5_2", 2);
        assert_eq!(look_at(&tree).devices[0].netdevs, ["ens1s0"]);
        // Its own has moved into a pod, where it is called that.
        tree.remove("/sys/class/net/ens1s0");
        tree.remove(&format!("{subfunction}/net/ens1s0"));
        assert_eq!(look_at(&tree).devices[0].netdevs, [""; 0]);
    }

    #[test]
    fn a_software_device_has_its_parent_and_what_stands_on_it() {
        let tree = tree();
        let function = tree.function("0000:3b:00.0", "0x020000", 0);
        for name in ["ens1", "ens2"] {
            interface(&tree, &function, name, &[]);
        }
        upper(&tree, "bond0", "ens1");
        upper(&tree, "bond0.100", "bond0");
        upper(&tree, "ens1.100", "ens1");
        let device = device(&tree, "/sys/devices/virtual", "rxe0", 0);
        for (parent, on) in [
            ("ens1", &["bond0", "bond0.100", "ens1", "ens1.100"][..]),
            ("bond0", &["bond0", "bond0.100", "ens1", "ens1.100"]),
            ("ens2", &["ens2"]),
            ("lo", &["lo"]),
        ] {
            tree.attribute(&format!("{device}/parent"), parent);
            assert_eq!(look_at(&tree).devices[0].netdevs, on, "{parent}");
        }
        tree.remove(&format!("{device}/parent"));
        assert_eq!(look_at(&tree).devices[0].netdevs, [""; 0]);
    }

    #[test]
    fn ip_over_infiniband_is_matched_by_port_guid_and_not_by_node_guid() {
        let tree = tree();
        let function = tree.function("0000:04:00.0", "0x028000", 0);
        let device = tree.class_device("infiniband", &function, "mlx4_0", &HCA);
        verbs(&tree, &function, "mlx4_0", 0);
        for (number, guid) in [(1, "bfa1"), (2, "bfa2")] {
            let port = port(&tree, &device, number, "InfiniBand");
            let gid = format!("fe80:0000:0000:0000:0002:c903:00f9:{guid}\n");
            tree.file(&format!("{port}/gids/0"), gid);
        }
        let address =
            |last: &str| format!("80:00:02:08:fe:80:00:00:00:00:00:00:00:02:c9:03:00:f9:bf:{last}");
        // The interface whose address ends like the node's GUID belongs to another device.
        for (name, last) in [("ib0", "a1"), ("ib1", "a2"), ("ib9", "a0")] {
            interface(&tree, "/sys/devices/virtual", name, &[("address", &address(last))]);
        }
        let found = look_at(&tree);
        assert_eq!(found.devices[0].ports[0].netdevs, ["ib0"]);
        assert_eq!(found.devices[0].ports[1].netdevs, ["ib1"]);
        assert_eq!(found.devices[0].netdevs, ["ib0", "ib1"]);
    }

    #[test]
    fn the_number_of_uverbs_has_nothing_to_do_with_that_of_the_device() {
        let tree = tree();
        let first = tree.function("0000:3b:00.0", "0x020000", 0);
        let second = tree.function("0000:86:00.0", "0x020000", 1);
        device(&tree, &first, "mlx5_0", 7);
        device(&tree, &second, "mlx5_7", 0);
        let found = look_at(&tree);
        assert_eq!(paths_of(&found.devices[0])[0], "/dev/infiniband/uverbs7");
        assert_eq!(paths_of(&found.devices[1])[0], "/dev/infiniband/uverbs0");
    }

    #[test]
    fn a_subfunction_belongs_to_its_function_but_not_the_functions_interfaces_to_it() {
        let tree = tree();
        let function = tree.function("0000:3b:00.0", "0x020000", 0);
        interface(&tree, &function, "ens1", &[("dev_port", "0")]);
        let subfunction = format!("{function}/mlx5_core.sf.4");
        tree.directory(&subfunction);
        device(&tree, &subfunction, "mlx5_2", 2);
        interface(&tree, &subfunction, "ens1s0", &[("dev_port", "0")]);
        let found = look_at(&tree);
        let address = found.devices[0].pci_address.unwrap().to_string();
        assert_eq!(address, "0000:3b:00.0");
        assert_eq!(found.devices[0].netdevs, ["ens1s0"]);
    }

    #[test]
    fn a_name_that_cdi_does_not_take_goes_by_the_pci_address() {
        let tree = tree();
        let function = tree.function("0000:3b:00.0", "0x020000", 0);
        device(&tree, &function, "all", 0);
        device(&tree, "/sys/devices/virtual", "rxe_", 1);
        let found = look_at(&tree);
        assert_eq!(found.devices[0].name, "all");
        assert_eq!(found.devices[0].device, "0000:3b:00.0");
        assert_eq!(
            found.reasons(),
            ["rxe_: \"rxe_\" is not a valid CDI device name, and it has no PCI address to use \
                instead; rename it"]
        );
    }

    #[test]
    fn a_device_without_its_node_or_with_another_ones_is_not_offered() {
        let tree = tree();
        for name in ["mlx5_0", "mlx5_1", "mlx5_2"] {
            tree.class_device("infiniband", "/sys/devices/virtual", name, &HCA);
        }
        let numbers = [("uverbs0", "mlx5_0", "231:192"), ("uverbs1", "mlx5_1", "231:193")];
        for (name, owner, dev) in numbers {
            let files = [("ibdev", owner), ("dev", dev)];
            tree.class_device("infiniband_verbs", "/sys/devices/virtual", name, &files);
        }
        tree.node("/dev/infiniband/uverbs1", 231, 200);
        let found = look_at(&tree);
        assert!(found.devices.is_empty());
        assert_eq!(
            found.reasons(),
            [
                "mlx5_0: /dev/infiniband/uverbs0 does not exist, although its driver created the \
                 device 231:192; create it with mknod, or reload the driver",
                "mlx5_1: /dev/infiniband/uverbs1 is 231:200, but the device is 231:193; remove the stale node",
                "mlx5_2: it has no uverbs device; load the module ib_uverbs",
            ]
        );
    }

    #[test]
    fn without_the_connection_manager_a_device_is_offered_with_a_warning() {
        let tree = Tree::new();
        device(&tree, "/sys/devices/virtual", "rxe0", 0);
        let found = look_at(&tree);
        assert_eq!(paths_of(&found.devices[0]), ["/dev/infiniband/uverbs0"]);
        assert!(
            found.warnings[0].contains("/dev/infiniband/rdma_cm does not exist"),
            "{:?}",
            found.warnings
        );
    }

    #[test]
    fn what_to_do_for_the_connection_manager_depends_on_whether_its_module_is_loaded() {
        let tree = Tree::new();
        device(&tree, "/sys/devices/virtual", "rxe0", 0);
        assert_eq!(
            look_at(&tree).warnings,
            ["programs that use librdmacm will not work: /dev/infiniband/rdma_cm does not exist; \
              load the module rdma_ucm"]
        );
        tree.file("/sys/class/misc/rdma_cm/dev", "10:260\n");
        assert_eq!(
            look_at(&tree).warnings,
            ["programs that use librdmacm will not work: /dev/infiniband/rdma_cm does not exist, \
                although its driver created the device 10:260; create it with mknod, or reload the \
                driver"]
        );
    }

    #[test]
    fn a_link_of_the_class_that_leads_to_nothing_is_named_and_not_offered() {
        let tree = tree();
        tree.link("/sys/class/infiniband/scif0", "../../devices/gone");
        let found = look_at(&tree);
        assert!(found.devices.is_empty());
        assert_eq!(
            found.reasons(),
            [
                "scif0: /sys/class/infiniband/scif0 is a broken link: its driver is being removed or \
                has failed; check the kernel log"
            ]
        );
    }

    /// An HCA with several planes: the device for programs, and the one for the subnet manager.
    fn with_planes() -> Tree {
        let tree = tree();
        for (address, name, smi, uverbs, first) in
            [("0000:3b:00.0", "mlx5_0", "smi0", 0, 0), ("0000:5e:00.0", "mlx5_1", "smi1", 1, 10)]
        {
            let function = tree.function(address, "0x020700", 0);
            device(&tree, &function, name, uverbs);
            management(&tree, &function, name, first, 1);
            tree.class_device("infiniband", &function, smi, &HCA);
            for plane in 1..=2 {
                management(&tree, &function, smi, first + plane, plane);
            }
        }
        tree
    }

    #[test]
    fn umad_comes_with_that_of_the_companions_of_the_same_function() {
        let config = DiscoverConfig { offer_umad: true, ..DiscoverConfig::default() };
        let found = discover_host(&with_planes().host(), &config);
        let nodes = |index: usize| paths_of(&found.devices[index]).join(" ");
        let wanted = "uverbs0 rdma_cm umad0 umad1 umad2";
        assert_eq!(nodes(0).replace("/dev/infiniband/", ""), wanted);
        let wanted = "uverbs1 rdma_cm umad10 umad11 umad12";
        assert_eq!(nodes(1).replace("/dev/infiniband/", ""), wanted);
        let owners = management_of(&found.devices[1]);
        assert_eq!(owners, ["mlx5_1", "smi1", "smi1"]);
    }

    #[test]
    fn issm_of_a_companion_comes_only_where_issm_is_offered() {
        let found = discover_host(&with_planes().host(), &generous());
        let nodes = paths_of(&found.devices[0]).join(" ");
        let wanted = "uverbs0 rdma_cm umad0 issm0 umad1 umad2 issm1 issm2";
        assert_eq!(nodes.replace("/dev/infiniband/", ""), wanted);
        let found = look_at(&with_planes());
        let nodes = paths_of(&found.devices[0]).join(" ");
        assert_eq!(nodes.replace("/dev/infiniband/", ""), "uverbs0 rdma_cm");
    }

    #[test]
    fn a_host_without_rdma_gives_no_warning() {
        let found = look_at(&Tree::new());
        assert!(found.devices.is_empty());
        assert_eq!(found.warnings, [""; 0]);
    }

    #[test]
    fn attributes_that_make_no_sense_cost_a_warning_and_no_device() {
        let tree = tree();
        let function = tree.function("0000:3b:00.0", "0x020000", 0);
        let device = device(&tree, &function, "mlx5_0", 0);
        tree.file(&format!("{device}/node_guid"), [0xff, 0xfe]);
        tree.file(&format!("{device}/fw_ver"), vec![b'x'; 1_000_000]);
        tree.file(&format!("{device}/node_type"), "horse\n");
        tree.link("/sys/class/infiniband/gone", "../../devices/gone");
        let found = look_at(&tree);
        assert_eq!(found.devices.len(), 1);
        assert_eq!(found.devices[0].transport, None);
        assert_eq!(found.warnings.len(), 3, "{:?}", found.warnings);
    }

    #[test]
    fn the_namespace_mode_is_read() {
        for (text, mode, warnings) in [
            ("Y\n", Some(RdmaNetns::Shared), 0),
            ("N\n", Some(RdmaNetns::Exclusive), 0),
            ("?\n", None, 1),
        ] {
            let tree = Tree::new();
            tree.file(NETNS_MODE, text);
            let host = tree.host();
            let probe = Probe::new(&host);
            assert_eq!(netns_mode(&probe), mode);
            assert_eq!(probe.warnings().len(), warnings, "{text}");
        }
    }

    /// What stays of the devices of a host in mode exclusive, and the reasons for the others.
    fn in_exclusive_mode(
        host: &Host,
        live_devices: bool,
        config: &DiscoverConfig,
    ) -> (Vec<RdmaDevice>, Vec<Exclusion>) {
        let found = discover_host(host, config);
        let functions = PciFunctions::read(&Probe::new(host));
        let probe = Probe::new(host);
        let devices = offer_movable(&probe, &functions, found.devices, live_devices);
        (devices, probe.not_offered())
    }

    #[test]
    fn in_exclusive_mode_devices_of_functions_are_offered_without_management() {
        let config = DiscoverConfig { offer_umad: true, ..DiscoverConfig::default() };
        let (devices, not_offered) = in_exclusive_mode(&sample("rdma-hcas"), true, &config);
        assert!(!devices.is_empty());
        for device in &devices {
            assert!(device.pci_address.is_some());
            assert!(!paths_of(device).join(" ").contains("umad"));
        }
        let mut management = not_offered.iter();
        assert!(management.any(|one| one.name.starts_with("umad")));
    }

    #[test]
    fn in_exclusive_mode_a_device_in_software_is_refused_with_its_driver() {
        let (devices, not_offered) = in_exclusive_mode(
            &sample("debian13-2numa-onload-rxe-vfio"),
            true,
            &DiscoverConfig::default(),
        );
        assert_eq!(devices, []);
        assert!(!not_offered.is_empty());
        for one in not_offered {
            assert!(one.reason.contains("soft-RoCE (rxe), cannot (EOPNOTSUPP)"), "{one:?}");
        }
    }

    #[test]
    fn in_exclusive_mode_a_device_of_a_driver_that_cannot_move_it_is_refused() {
        let tree = tree();
        // Of a driver that is not known, the kernel says it.
        let drivers = ["efa", "hfi1", "mlx5_core", "of_tomorrow"];
        for (number, driver) in drivers.into_iter().enumerate() {
            let function = tree.function(&format!("0000:0{number}:00.0"), "0x020000", 0);
            tree.bind(&function, driver);
            device(&tree, &function, &format!("{driver}_0"), number as u32);
        }
        let config = DiscoverConfig::default();
        let (devices, not_offered) = in_exclusive_mode(&tree.host(), true, &config);
        let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["mlx5_core_0", "of_tomorrow_0"]);
        for (one, driver) in not_offered.iter().zip(["efa", "hfi1"]) {
            assert_eq!(one.name, format!("{driver}_0"));
            let why = format!("a device of {driver} cannot (EOPNOTSUPP)");
            assert!(one.reason.contains(&why), "{one:?}");
        }
    }

    #[test]
    fn in_exclusive_mode_a_device_whose_interface_the_host_uses_is_refused() {
        let tree = tree();
        let function = tree.function("0000:01:00.0", "0x020700", 0);
        let directory = device(&tree, &function, "mlx5_0", 0);
        tree.file(
            &format!("{directory}/ports/1/gids/0"),
            "fe80:0000:0000:0000:0002:c903:00f9:bfa1",
        );
        tree.file(&format!("{directory}/ports/1/link_layer"), "InfiniBand");
        let address = format!("80:00:00:48:fe:80{}:00:02:c9:03:00:f9:bf:a1", ":00".repeat(6));
        interface(&tree, &function, "ib0", &[("address", &address)]);
        let config = DiscoverConfig::default();
        let refused = |table: &str| {
            tree.file("/network.table", table);
            let (devices, not_offered) = in_exclusive_mode(&tree.host(), true, &config);
            assert_eq!(devices.len() + not_offered.len(), 1);
            not_offered.into_iter().next().map(|one| one.reason)
        };
        let idle = "link 5 ib0 ipoib - - -\naddress 5 fe80::1/64\n";
        assert_eq!(refused(idle), None);
        let reason = refused(&format!("{idle}address 5 192.0.2.1/24\n")).unwrap();
        let why =
            "delete its interface \"ib0\", which the host uses: it has the address 192.0.2.1/24;";
        assert!(reason.contains(why), "{reason}");
        let child = format!("{idle}link 6 ib0.8001 ipoib - 5 -\n");
        let reason = refused(&child).unwrap();
        assert!(reason.ends_with("ipoib \"ib0.8001\" is on it; delete that"), "{reason}");
        // That of an Ethernet port stays on the host.
        assert_eq!(refused("link 5 ib0 - - - -\naddress 5 192.0.2.1/24\n"), None);
    }

    #[test]
    fn in_exclusive_mode_nothing_is_offered_without_the_live_path() {
        let (open, _) = in_exclusive_mode(&sample("rdma-hcas"), true, &DiscoverConfig::default());
        let (closed, not_offered) =
            in_exclusive_mode(&sample("rdma-hcas"), false, &DiscoverConfig::default());
        assert_eq!(closed, []);
        let excluded: Vec<&str> = not_offered
            .iter()
            .filter(|one| one.reason.contains("live-devices = false"))
            .map(|one| one.name.as_str())
            .collect();
        let offered: Vec<&str> = open.iter().map(|device| device.name.as_str()).collect();
        assert!(!excluded.is_empty());
        assert_eq!(excluded, offered);
    }

    #[test]
    fn node_types_give_the_transport() {
        for (text, transport) in [
            ("1: CA", Some("infiniband")),
            ("2: switch", Some("infiniband")),
            ("3: router", Some("infiniband")),
            ("4: RNIC", Some("iwarp")),
            ("5: usNIC", Some("usnic")),
            ("6: usNIC UDP", Some("usnic_udp")),
            ("7: unspecified", Some("unspecified")),
            ("0: <unknown>", None),
            ("99", None),
            ("CA", None),
        ] {
            assert_eq!(parse_transport(text), transport, "{text}");
        }
    }

    #[test]
    fn a_guid_is_read_only_where_there_is_one() {
        let gid = "fe80:0000:0000:0000:0002:c903:00f9:bfa1";
        assert_eq!(parse_port_guid(gid), Some(0x0002_c903_00f9_bfa1));
        for text in [
            "",
            "fe80::1",
            "fe80:0000:0000:0000:0002:c903:00f9",
            &format!("{gid}:0000"),
            "fe80:0000:0000:0000:0002c:903:00f9:bfa1",
            "fe80000000000000:::::::0002c90300f9bfa1",
        ] {
            assert_eq!(parse_port_guid(text), None, "{text}");
        }
        assert_eq!(parse_ipoib_guid("52:54:00:12:34:60"), None);
        let bytes = ["+1"; 20].join(":");
        assert_eq!(parse_ipoib_guid(&bytes), None);
        let odd = format!("sfc.0:{}", ["00"; 19].join(":"));
        assert_eq!(parse_ipoib_guid(&odd), None);
        let bytes = ["0001"; 10].join(":");
        assert_eq!(parse_ipoib_guid(&bytes), None);
    }
}
