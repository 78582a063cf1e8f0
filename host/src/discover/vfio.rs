//! PCI functions that a vfio driver holds for user space, by IOMMU group
//! (`Documentation/driver-api/vfio.rst`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onload_core::class::Class;
use onload_core::config::{CdiConfig, DiscoverConfig};
use onload_core::expectation::ExpectedDevice;
use onload_core::vf_config::OWN_GROUPS;
use onload_sys::pci::PciAddress;
use onload_sys::text::{format_count, quote_for_shell};
use serde::Serialize;

use crate::discover::exclusion::Exclusion;
use crate::discover::netdev::{self, NetworkInterface};
use crate::discover::node::{NumberedNode, OfferedNode, serialize_paths};
use crate::discover::pci::{PciFunction, PciFunctions};
use crate::discover::probe::Probe;

const GROUPS: &str = "/sys/kernel/iommu_groups";
/// The vfio container node, which every user of a group opens.
const CONTAINER: &str = "/dev/vfio/vfio";
/// iommufd, which every user of a device's own node opens (Linux 6.6).
const IOMMUFD: &str = "/dev/iommu";
/// vhost-net and tun: DPDK's virtio-user needs both, its tap driver the second.
const VHOST_NODES: [&str; 2] = ["/dev/vhost-net", "/dev/net/tun"];
/// `name` of a group without an IOMMU (`vfio_noiommu_group_alloc`).
const NOIOMMU_GROUP: &str = "vfio-noiommu";

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VfioDevice {
    /// The lowest address in the group among the functions that a vfio driver holds; it names the
    /// device.
    pub pci_address: PciAddress,
    pub numa_node: Option<u32>,
    pub iommu_group: u32,
    /// Every PCI function of the group, sorted, whichever driver holds it.
    pub group_members: Vec<PciAddress>,
    /// Whether the kernel gives the group to user space. Only then is it offered.
    pub viable: bool,
    /// The offered nodes. Empty if the group is not viable.
    #[serde(serialize_with = "serialize_paths")]
    pub nodes: Vec<Arc<OfferedNode>>,
    /// Other functions of the group that a vfio driver holds, which a container gets with this one.
    pub aliases: Vec<PciAddress>,
    pub driver: Option<String>,
    pub physical_function: Option<PciAddress>,
    /// No IOMMU protects the host's memory from the function.
    pub noiommu: bool,
}

/// Reads every function that a vfio driver holds, sorted by address. Virtual functions, and network
/// functions without a driver that a vfio driver could hold, are listed as not offered.
pub(crate) fn read(
    probe: &Probe<'_>,
    functions: &PciFunctions,
    config: &DiscoverConfig,
) -> Vec<VfioDevice> {
    let mut by_group: BTreeMap<u32, Vec<&PciFunction>> = BTreeMap::new();
    for function in functions.iter() {
        match (is_bound_to_vfio(function), function.iommu_group) {
            (true, Some(group)) => by_group.entry(group).or_default().push(function),
            (true, None) => probe.exclude(new_exclusion(function.address, NO_GROUP.to_owned())),
            (false, _) => {
                if let Some(reason) = not_bound_reason(function) {
                    probe.exclude(new_exclusion(function.address, reason));
                }
            }
        }
    }
    if by_group.is_empty() {
        return Vec::new();
    }
    let context = VfioContext {
        probe,
        functions,
        config,
        container: NumberedNode::find(probe, CONTAINER, Path::new("/sys/class/misc/vfio"))
            .map(OfferedNode::shared),
        iommufd: find_iommufd(probe),
    };
    let mut devices = Vec::new();
    for (number, bound_functions) in by_group {
        let group = context.find_group(number);
        let read = match context.not_viable_reason(&group) {
            Some(reason) => {
                devices.push(new_device(&group, &bound_functions, false));
                Err(reason)
            }
            None => context.offered_devices(&group, &bound_functions),
        };
        match read {
            Ok(mut offered) => devices.append(&mut offered),
            Err(reason) => {
                for function in bound_functions {
                    probe.exclude(new_exclusion(function.address, reason.clone()));
                }
            }
        }
    }
    warn_of_tokens(probe, functions, &devices);
    devices.sort_by_key(|device| device.pci_address);
    devices
}

/// Warns that opening a virtual function requires a token if its physical function is held by vfio too
/// (`vfio_pci_validate_vf_token`).
fn warn_of_tokens(probe: &Probe<'_>, functions: &PciFunctions, devices: &[VfioDevice]) {
    for address in physical_functions(devices) {
        if let Some(parent) = functions.get(address).filter(|parent| is_bound_to_vfio(parent)) {
            let driver = parent.driver.as_deref().unwrap_or("vfio");
            probe.warn(format!("vfio {address}: it is bound to {driver}, and {NEEDS_TOKEN}"));
        }
    }
}

/// Returns the physical functions of offered virtual functions.
fn physical_functions(devices: &[VfioDevice]) -> BTreeSet<PciAddress> {
    devices
        .iter()
        .filter(|device| device.viable)
        .filter_map(|device| device.physical_function)
        .collect()
}

/// Returns the physical functions of offered virtual functions whose interface is down, with its name: ports that are
/// not set up because only their virtual functions are used.
pub(crate) fn find_idle_ports(
    probe: &Probe<'_>,
    devices: &[VfioDevice],
    interfaces: &[NetworkInterface],
) -> Vec<(PciAddress, String)> {
    let parents = physical_functions(devices);
    let mut idle = Vec::new();
    for interface in interfaces.iter().filter(|one| !one.is_representor()) {
        let name = &interface.name;
        let Some(parent) = interface.pci().filter(|pci| parents.contains(pci)) else {
            continue;
        };
        if netdev::is_admin_down(probe, name) {
            let command = format!("ip link set dev {} up", quote_for_shell(name));
            probe.warn(format!(
                "vfio {parent}: its interface {name} is down: {NO_LINK}; run \"{command}\""
            ));
            idle.push((parent, name.clone()));
        }
    }
    idle
}

/// The problem of a physical function whose interface is down (ixgbe and igb answer their virtual functions only while
/// it is up).
pub const NO_LINK: &str =
    "its virtual functions have no link, and DPDK cannot start with those of some cards";

/// The requirement for virtual functions of a physical function that vfio holds.
pub const NEEDS_TOKEN: &str = "a program that opens one of its virtual functions must give its VF token (DPDK: --vfio-vf-token)";

const NO_GROUP: &str = "it has no IOMMU group; enable the IOMMU in the firmware, and with \
    intel_iommu=on if the kernel requires that";

fn new_exclusion(address: PciAddress, reason: String) -> Exclusion {
    Exclusion::new(Class::Vfio, address.to_string(), reason)
}

/// Returns whether a function is held by vfio-pci or one of its variants, all of which register a vfio device below the
/// function (since Linux 6.1) and have the word in their names.
pub fn is_bound_to_vfio(function: &PciFunction) -> bool {
    function.has_entry("vfio-dev") || function.driver.as_deref().is_some_and(is_vfio_driver)
}

/// `vfio-pci`, `mlx5_vfio_pci`, `hisi_acc_vfio_pci`, `virtio_vfio_pci`, and future ones.
fn is_vfio_driver(driver: &str) -> bool {
    driver.contains("vfio")
}

/// Drivers that do no DMA for the kernel (`driver_managed_dma` in `struct pci_driver`), and those
/// that give the device to user space.
fn leaves_group_viable(driver: &str) -> bool {
    driver == "pci-stub" || driver == "pcieport" || is_vfio_driver(driver)
}

/// Returns the functions because of which vfio rejects a group.
pub fn find_blockers<'f, 'm>(
    functions: &'f PciFunctions,
    members: impl IntoIterator<Item = &'m PciAddress>,
) -> Vec<&'f PciFunction> {
    let blocks = |function: &&PciFunction| {
        let driver = function.driver.as_deref();
        !is_bound_to_vfio(function) && driver.is_some_and(|driver| !leaves_group_viable(driver))
    };
    members.into_iter().filter_map(|member| functions.get(*member)).filter(blocks).collect()
}

/// Returns whether a host can do without a function that blocks a group: not without a disk, and virtual functions
/// depend on their physical function.
pub fn can_be_spared(function: &PciFunction) -> bool {
    (function.is_network() || function.physical_function.is_some())
        && function.virtual_functions.is_empty()
}

/// Returns whether one of these functions has a network interface.
pub fn any_has_interface(functions: &[&PciFunction]) -> bool {
    functions.iter().any(|function| function.has_entry("net"))
}

fn binding_cost(functions: &[&PciFunction]) -> &'static str {
    if any_has_interface(functions) { " (the host then loses its interface)" } else { "" }
}

/// Returns why a function is not offered, if users might expect it here.
fn not_bound_reason(function: &PciFunction) -> Option<String> {
    let is_virtual = function.physical_function.is_some();
    let command = format!("driverctl set-override {} vfio-pci", function.address);
    let cost = binding_cost(&[function]);
    match function.driver.as_deref() {
        Some(driver) if is_virtual && is_nvidia_driver(driver) => Some(format!(
            "bound to {driver}, with which DPDK uses it as an rdma device; run \"{command}\" for \
             other programs{cost}"
        )),
        Some(driver) if is_virtual => {
            Some(format!("bound to {driver}, not to a vfio driver; run \"{command}\"{cost}"))
        }
        None if is_virtual || function.is_network() => {
            Some(format!("bound to no driver; run \"{command}\""))
        }
        _ => None,
    }
}

/// Returns whether DPDK uses the kernel's driver instead of replacing it (DPDK, "NVIDIA MLX5 Ethernet Driver").
fn is_nvidia_driver(driver: &str) -> bool {
    ["mlx4_core", "mlx5_core"].contains(&driver)
}

/// Returns iommufd, if the kernel has it. Only devices with their own nodes need it.
fn find_iommufd(probe: &Probe<'_>) -> Option<Arc<OfferedNode>> {
    probe.device_node(IOMMUFD)?;
    let node = NumberedNode::find(probe, IOMMUFD, Path::new("/sys/class/misc/iommu"))
        .map_err(|reason| probe.warn(reason))
        .ok();
    node.map(OfferedNode::shared)
}

struct VfioContext<'p, 'h> {
    probe: &'p Probe<'h>,
    functions: &'p PciFunctions,
    config: &'p DiscoverConfig,
    container: Result<Arc<OfferedNode>, String>,
    iommufd: Option<Arc<OfferedNode>>,
}

struct IommuGroup {
    number: u32,
    directory: PathBuf,
    noiommu: bool,
    members: BTreeSet<PciAddress>,
    other_members: Vec<String>,
}

impl VfioContext<'_, '_> {
    fn not_viable_reason(&self, group: &IommuGroup) -> Option<String> {
        let blocking = self.blocking_members(group);
        if blocking.is_empty() {
            return None;
        }
        let blockers = find_blockers(self.functions, &group.members);
        let spared = blockers.iter().filter(|function| can_be_spared(function));
        let remedy = if spared.count() == blocking.len() {
            let cost = binding_cost(&blockers);
            format!("bind the rest to vfio-pci too, or unbind it{cost}")
        } else {
            OWN_GROUPS.to_owned()
        };
        let (group, blocking) = (group.number, blocking.join(", and "));
        Some(format!("IOMMU group {group} also holds {blocking}; {remedy}"))
    }

    /// Returns the devices of a viable group, or why none of them is offered.
    fn offered_devices(
        &self,
        group: &IommuGroup,
        bound_functions: &[&PciFunction],
    ) -> Result<Vec<VfioDevice>, String> {
        self.check_parents(bound_functions)?;
        let cdev_nodes = self.cdev_nodes(bound_functions);
        let offered = match self.group_nodes(group, bound_functions) {
            Ok(mut nodes) => {
                let iommufd = self.iommufd.iter().filter(|_| !cdev_nodes.is_empty()).cloned();
                nodes.extend(cdev_nodes.iter().cloned().chain(iommufd));
                vec![VfioDevice { nodes, ..new_device(group, bound_functions, true) }]
            }
            // A kernel without group nodes (CONFIG_VFIO_GROUP is off) has one device per function.
            Err(reason) => {
                if cdev_nodes.is_empty() || self.probe.entry("/sys/class/vfio").is_some() {
                    return Err(reason);
                }
                let devices = bound_functions.iter().zip(cdev_nodes).map(|(function, node)| {
                    let nodes = [node].into_iter().chain(self.iommufd.clone()).collect();
                    VfioDevice { nodes, ..new_device(group, &[function], true) }
                });
                devices.collect()
            }
        };
        if group.noiommu {
            for device in &offered {
                self.probe.warn(format!(
                    "vfio {}: the host's memory is not protected from it by an IOMMU; a container \
                     needs CAP_SYS_RAWIO to open it and CAP_SYS_ADMIN for DPDK, and is in effect \
                     root on the host",
                    device.pci_address
                ));
            }
        }
        Ok(offered)
    }

    fn find_group(&self, number: u32) -> IommuGroup {
        let directory = Path::new(GROUPS).join(number.to_string());
        let name = self.probe.attribute(directory.join("name"));
        let mut members = BTreeSet::new();
        let mut other_members = Vec::new();
        for name in self.probe.list(directory.join("devices")) {
            match name.parse() {
                Ok(address) => {
                    members.insert(address);
                }
                Err(_) => other_members.push(name),
            }
        }
        IommuGroup {
            number,
            noiommu: name.as_deref() == Some(NOIOMMU_GROUP),
            directory,
            members,
            other_members,
        }
    }

    fn blocking_members(&self, group: &IommuGroup) -> Vec<String> {
        let members = group.members.iter().map(|address| {
            let driver = match self.functions.get(*address) {
                Some(function) if is_bound_to_vfio(function) => None,
                Some(function) => function.driver.clone(),
                None => self.driver_of(group, &address.to_string()),
            };
            (address.to_string(), driver)
        });
        let other_members =
            group.other_members.iter().map(|name| (name.clone(), self.driver_of(group, name)));
        members
            .chain(other_members)
            .filter_map(|(name, driver)| {
                let driver = driver.filter(|driver| !leaves_group_viable(driver))?;
                Some(format!("{name}, still bound to {driver}"))
            })
            .collect()
    }

    fn driver_of(&self, group: &IommuGroup, member: &str) -> Option<String> {
        let device = group.directory.join("devices").join(member);
        self.probe.link_name(device.join("driver"))
    }

    fn check_parents(&self, bound_functions: &[&PciFunction]) -> Result<(), String> {
        if self.config.offer_pf_with_vfs {
            return Ok(());
        }
        match bound_functions.iter().find(|function| !function.virtual_functions.is_empty()) {
            None => Ok(()),
            Some(function) => Err(format!(
                "{} has {}, which its holder could change; set offer-pf-with-vfs = true in \
                 [discover] to offer it anyway",
                function.address,
                format_count(
                    function.virtual_functions.len(),
                    "virtual function",
                    "virtual functions"
                )
            )),
        }
    }

    /// Returns the functions' own nodes. Empty unless each function has one and iommufd exists.
    fn cdev_nodes(&self, bound_functions: &[&PciFunction]) -> Vec<Arc<OfferedNode>> {
        let nodes: Vec<_> = bound_functions
            .iter()
            .map(|function| {
                let expected = vec![ExpectedDevice::Vfio { pci: function.address }];
                Some(OfferedNode::exclusive(self.cdev_node(function)?, expected))
            })
            .collect::<Option<_>>()
            .unwrap_or_default();
        if !nodes.is_empty() && self.iommufd.is_none() {
            self.probe.warn(format!(
                "{IOMMUFD} does not exist: vfio devices are offered by their group only; load the \
                 module iommufd to offer their own nodes too"
            ));
            return Vec::new();
        }
        nodes
    }

    fn cdev_node(&self, function: &PciFunction) -> Option<NumberedNode> {
        if !function.has_entry("vfio-dev") {
            return None;
        }
        let directory = function.directory().join("vfio-dev");
        let names = self.probe.list(&directory);
        let name = names.first()?;
        let device = directory.join(name);
        // A kernel without CONFIG_VFIO_DEVICE_CDEV lists the device but assigns no number.
        self.probe.entry(device.join("dev"))?;
        let node = NumberedNode::find(self.probe, format!("/dev/vfio/devices/{name}"), &device);
        node.map_err(|reason| {
            self.probe.warn(format!("vfio {}: left out: {reason}", function.address));
        })
        .ok()
    }

    /// Returns the node of the vfio container, which users of a group need too, and that of the group.
    fn group_nodes(
        &self,
        group: &IommuGroup,
        bound_functions: &[&PciFunction],
    ) -> Result<Vec<Arc<OfferedNode>>, String> {
        let prefix = if group.noiommu { "noiommu-" } else { "" };
        let name = format!("{prefix}{}", group.number);
        let node = NumberedNode::find(
            self.probe,
            format!("/dev/vfio/{name}"),
            &Path::new("/sys/class/vfio").join(name),
        )?;
        let expected =
            bound_functions.iter().map(|function| ExpectedDevice::Vfio { pci: function.address });
        let node = OfferedNode::exclusive(node, expected.collect());
        Ok(vec![self.container.clone()?, node])
    }
}

/// Reads the nodes for a virtual interface in addition to a vfio device, if the configuration adds them.
pub(crate) fn read_vhost_net(probe: &Probe<'_>, cdi: &CdiConfig) -> Vec<Arc<OfferedNode>> {
    let nodes = VHOST_NODES.iter().filter(|_| cdi.vhost_net).filter_map(|path| {
        let name = path.rsplit('/').next()?;
        let Some(ExpectedDevice::Driver(driver)) = ExpectedDevice::find_driver_node(name) else {
            return None;
        };
        let node = NumberedNode::find_of_driver(probe, path, driver)?;
        node.map_err(|reason| {
            probe.warn(format!(
                "[cdi] vhost-net is set, but vfio devices come without {path}: {reason}"
            ));
        })
        .ok()
    });
    nodes.map(OfferedNode::shared).collect()
}

/// Creates a device. `bound_functions` is sorted and not empty.
fn new_device(group: &IommuGroup, bound_functions: &[&PciFunction], viable: bool) -> VfioDevice {
    let (first, rest) = (bound_functions[0], &bound_functions[1..]);
    VfioDevice {
        pci_address: first.address,
        numa_node: first.numa_node,
        iommu_group: group.number,
        group_members: group.members.iter().copied().collect(),
        viable,
        nodes: Vec::new(),
        aliases: rest.iter().map(|function| function.address).collect(),
        driver: first.driver.clone(),
        physical_function: first.physical_function,
        noiommu: group.noiommu,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::test_tree::{AsHost, Discovered, Tree, discover, generous};
    use crate::host::Host;

    fn discover_host(host: &Host, config: &DiscoverConfig) -> Discovered<VfioDevice> {
        discover(host, |probe, functions, interfaces| {
            let devices = read(probe, functions, config);
            find_idle_ports(probe, &devices, interfaces);
            devices
        })
    }

    fn look_at(tree: &Tree) -> Discovered<VfioDevice> {
        discover_host(&tree.host(), &DiscoverConfig::default())
    }

    /// A host with vfio loaded.
    fn tree() -> Tree {
        let tree = Tree::new();
        tree.file("/sys/class/misc/vfio/dev", "10:196\n");
        tree.node(CONTAINER, 10, 196);
        tree
    }

    fn function(tree: &Tree, address: &str, group: u32, driver: &str) -> String {
        let function = tree.function(address, "0x020000", 0);
        join(tree, &function, group);
        if !driver.is_empty() {
            tree.bind(&function, driver);
        }
        function
    }

    fn join(tree: &Tree, device: &str, group: u32) {
        let directory = format!("{GROUPS}/{group}");
        let name = device.rsplit('/').next().unwrap();
        tree.link(&format!("{directory}/devices/{name}"), device);
        tree.link(&format!("{device}/iommu_group"), &directory);
    }

    fn paths_of(device: &VfioDevice) -> Vec<&str> {
        device.nodes.iter().map(|node| node.node.path.as_str()).collect()
    }

    fn group_node(tree: &Tree, name: &str, minor: u32) {
        tree.file(&format!("/sys/class/vfio/{name}/dev"), format!("241:{minor}\n"));
        tree.node(&format!("/dev/vfio/{name}"), 241, minor);
    }

    /// A node of the function itself, as kernels with CONFIG_VFIO_DEVICE_CDEV create it.
    fn own_node(tree: &Tree, function: &str, number: u32) {
        let directory = format!("{function}/vfio-dev/vfio{number}");
        tree.file(&format!("{directory}/dev"), format!("511:{number}\n"));
        tree.node(&format!("/dev/vfio/devices/vfio{number}"), 511, number);
    }

    fn iommufd_of(tree: &Tree) {
        tree.file("/sys/class/misc/iommu/dev", "10:125\n");
        tree.node(IOMMUFD, 10, 125);
    }

    fn addresses(list: &[PciAddress]) -> Vec<String> {
        list.iter().map(PciAddress::to_string).collect()
    }

    #[test]
    fn functions_of_one_group_are_one_device_named_by_the_lowest_address() {
        let tree = tree();
        function(&tree, "0000:81:00.1", 15, "vfio-pci");
        function(&tree, "0000:81:00.0", 15, "vfio-pci");
        function(&tree, "0000:81:00.2", 15, "");
        group_node(&tree, "15", 0);
        let found = look_at(&tree);
        assert_eq!(found.devices.len(), 1);
        let device = &found.devices[0];
        assert_eq!(device.pci_address.to_string(), "0000:81:00.0");
        assert_eq!(addresses(&device.aliases), ["0000:81:00.1"]);
        let members = ["0000:81:00.0", "0000:81:00.1", "0000:81:00.2"];
        assert_eq!(addresses(&device.group_members), members);
        let functions = ["0000:81:00.0", "0000:81:00.1"]
            .map(|pci| ExpectedDevice::Vfio { pci: pci.parse().unwrap() });
        assert_eq!(device.nodes[1].expected, functions);
        // The one without a driver comes with the group, and is listed as such.
        assert_eq!(
            found.reasons(),
            [
                "0000:81:00.2: bound to no driver; run \"driverctl set-override 0000:81:00.2 vfio-pci\""
            ]
        );
    }

    #[test]
    fn a_group_with_a_member_that_the_kernel_drives_is_shown_and_not_offered() {
        let tree = tree();
        function(&tree, "0000:81:10.0", 15, "vfio-pci");
        function(&tree, "0000:81:10.1", 15, "vfio-pci");
        function(&tree, "0000:81:00.1", 15, "igb");
        group_node(&tree, "15", 0);
        let found = look_at(&tree);
        assert_eq!(found.devices.len(), 1);
        assert!(!found.devices[0].viable);
        assert_eq!(paths_of(&found.devices[0]), [""; 0]);
        assert_eq!(addresses(&found.devices[0].aliases), ["0000:81:10.1"]);
        let reason = "IOMMU group 15 also holds 0000:81:00.1, still bound to igb; bind the rest to \
                      vfio-pci too, or unbind it";
        assert_eq!(
            found.reasons(),
            [format!("0000:81:10.0: {reason}"), format!("0000:81:10.1: {reason}")]
        );
    }

    #[test]
    fn every_member_that_blocks_is_named_also_one_that_is_no_pci_function() {
        let tree = tree();
        function(&tree, "0000:81:10.0", 15, "vfio-pci");
        function(&tree, "0000:81:00.1", 15, "igb");
        let platform = "/sys/devices/platform/arm-smmu-test";
        tree.link(&format!("{platform}/driver"), "/sys/bus/platform/drivers/xgene");
        join(&tree, platform, 15);
        let found = look_at(&tree);
        assert_eq!(
            found.reasons(),
            ["0000:81:10.0: IOMMU group 15 also holds 0000:81:00.1, still bound to igb, and \
              arm-smmu-test, still bound to xgene; put each function into its own group (PCI \
              access control services, ACS, in the firmware's settings)"]
        );
    }

    #[test]
    fn what_the_host_loses_with_a_group_is_said() {
        let tree = tree();
        function(&tree, "0000:81:10.0", 15, "vfio-pci");
        let other = function(&tree, "0000:81:00.1", 15, "igb");
        tree.directory(&format!("{other}/net/ens1"));
        let reasons = look_at(&tree).reasons();
        let cost = "vfio-pci too, or unbind it (the host then loses its interface)";
        assert!(reasons[0].ends_with(cost), "{reasons:?}");
    }

    #[test]
    fn nobody_is_told_to_take_a_physical_function_or_a_disk_from_the_host() {
        let parent_of = |tree: &Tree, child: &str| {
            let parent = function(tree, "0000:81:00.0", 15, "igb");
            tree.virtual_function(&parent, 0, child);
        };
        let disk = |tree: &Tree, _: &str| {
            let disk = tree.function("0000:82:00.0", "0x010802", 0);
            join(tree, &disk, 15);
            tree.bind(&disk, "nvme");
        };
        for other in [parent_of as fn(&Tree, &str), disk] {
            let tree = tree();
            let child = function(&tree, "0000:81:10.0", 15, "vfio-pci");
            other(&tree, &child);
            let reasons = look_at(&tree).reasons();
            assert!(reasons[0].ends_with(&format!("; {OWN_GROUPS}")), "{reasons:?}");
        }
    }

    #[test]
    fn ports_stubs_and_functions_without_a_driver_leave_a_group_viable() {
        let tree = tree();
        function(&tree, "0000:81:00.0", 15, "pcieport");
        function(&tree, "0000:82:00.0", 15, "pci-stub");
        function(&tree, "0000:82:00.1", 15, "mlx5_vfio_pci");
        function(&tree, "0000:82:00.2", 15, "");
        group_node(&tree, "15", 0);
        let found = look_at(&tree);
        assert!(found.devices[0].viable);
        assert_eq!(found.devices[0].driver.as_deref(), Some("mlx5_vfio_pci"));
    }

    #[test]
    fn a_variant_driver_is_known_by_its_name_or_by_the_vfio_device_below_the_function() {
        for driver in ["vfio-pci", "hisi_acc_vfio_pci", "pds_vfio_pci", "virtio-vfio-pci"] {
            assert!(is_vfio_driver(driver), "{driver}");
        }
        for driver in ["igbvf", "mlx5_core", "pci-stub", "uio_pci_generic"] {
            assert!(!is_vfio_driver(driver), "{driver}");
        }
        let tree = tree();
        let function = function(&tree, "0000:81:10.0", 15, "some_new_one");
        tree.directory(&format!("{function}/vfio-dev/vfio0"));
        group_node(&tree, "15", 0);
        let found = look_at(&tree);
        assert_eq!(found.devices[0].driver.as_deref(), Some("some_new_one"));
        // The kernel assigned no number, so it has no node of its own.
        assert_eq!(paths_of(&found.devices[0]), ["/dev/vfio/vfio", "/dev/vfio/15"]);
        assert!(found.devices[0].viable);
        assert_eq!(found.reasons(), [""; 0]);
    }

    #[test]
    fn nodes_of_the_functions_are_offered_together_with_iommufd() {
        let tree = tree();
        let first = function(&tree, "0000:81:10.0", 15, "vfio-pci");
        let second = function(&tree, "0000:81:10.1", 15, "vfio-pci");
        own_node(&tree, &first, 3);
        own_node(&tree, &second, 1);
        group_node(&tree, "15", 0);
        let without = look_at(&tree);
        assert_eq!(paths_of(&without.devices[0]), ["/dev/vfio/vfio", "/dev/vfio/15"]);
        assert!(without.warnings[0].starts_with("/dev/iommu does not exist"));
        iommufd_of(&tree);
        let with = look_at(&tree);
        assert_eq!(
            paths_of(&with.devices[0]),
            [
                "/dev/vfio/vfio",
                "/dev/vfio/15",
                "/dev/vfio/devices/vfio3",
                "/dev/vfio/devices/vfio1",
                "/dev/iommu"
            ]
        );
        let pci = "0000:81:10.1".parse().unwrap();
        assert_eq!(with.devices[0].nodes[3].expected, [ExpectedDevice::Vfio { pci }]);
        assert_eq!(with.warnings, [""; 0]);
    }

    #[test]
    fn a_kernel_without_group_nodes_gives_each_function_for_itself() {
        let tree = Tree::new();
        for (number, address) in [(0, "0000:81:10.0"), (1, "0000:81:10.1")] {
            let function = function(&tree, address, 15, "vfio-pci");
            own_node(&tree, &function, number);
        }
        iommufd_of(&tree);
        let found = look_at(&tree);
        assert_eq!(found.devices.len(), 2);
        let second = &found.devices[1];
        assert_eq!(paths_of(second), ["/dev/vfio/devices/vfio1", "/dev/iommu"]);
        assert_eq!(second.aliases, []);
        assert_eq!(second.group_members.len(), 2);
    }

    #[test]
    fn a_group_without_its_node_or_the_container_is_not_offered() {
        let tree = tree();
        function(&tree, "0000:81:10.0", 15, "vfio-pci");
        tree.file("/sys/class/vfio/15/dev", "241:0\n");
        let found = look_at(&tree);
        assert!(found.devices.is_empty());
        assert_eq!(
            found.reasons(),
            ["0000:81:10.0: /dev/vfio/15 does not exist, although its driver created the device \
                241:0; create it with mknod, or reload the driver"]
        );
        let tree = Tree::new();
        function(&tree, "0000:81:10.0", 15, "vfio-pci");
        group_node(&tree, "15", 0);
        let found = look_at(&tree);
        assert!(found.devices.is_empty());
        assert!(found.reasons()[0].contains("/dev/vfio/vfio does not exist"));
    }

    #[test]
    fn a_group_without_an_iommu_is_offered_by_its_own_node_with_a_warning() {
        let tree = tree();
        function(&tree, "0000:81:10.0", 0, "vfio-pci");
        tree.file(&format!("{GROUPS}/0/name"), "vfio-noiommu\n");
        group_node(&tree, "noiommu-0", 0);
        let found = look_at(&tree);
        assert!(found.devices[0].noiommu);
        assert_eq!(paths_of(&found.devices[0]), ["/dev/vfio/vfio", "/dev/vfio/noiommu-0"]);
        // DPDK reads physical addresses, which pagemap_read (fs/proc/task_mmu.c) tells by that capability alone.
        for part in ["CAP_SYS_RAWIO to open it", "CAP_SYS_ADMIN for DPDK", "root on the host"] {
            assert!(found.warnings[0].contains(part), "{part}");
        }
    }

    #[test]
    fn a_function_without_a_group_is_not_offered() {
        let tree = tree();
        let function = tree.function("0000:81:10.0", "0x020000", 0);
        tree.bind(&function, "vfio-pci");
        let found = look_at(&tree);
        assert!(found.devices.is_empty());
        assert_eq!(found.reasons(), [format!("0000:81:10.0: {NO_GROUP}")]);
    }

    #[test]
    fn a_physical_function_with_virtual_ones_is_offered_only_when_the_operator_says_so() {
        let tree = tree();
        let parent = function(&tree, "0000:81:00.0", 9, "vfio-pci");
        let child = function(&tree, "0000:81:10.0", 15, "vfio-pci");
        tree.link(&format!("{parent}/virtfn0"), &child);
        tree.link(&format!("{child}/physfn"), &parent);
        group_node(&tree, "9", 0);
        group_node(&tree, "15", 1);
        let shy = look_at(&tree);
        assert_eq!(shy.devices.len(), 1);
        assert_eq!(shy.devices[0].pci_address.to_string(), "0000:81:10.0");
        let physical = shy.devices[0].physical_function.unwrap().to_string();
        assert_eq!(physical, "0000:81:00.0");
        let token = format!("vfio 0000:81:00.0: it is bound to vfio-pci, and {NEEDS_TOKEN}");
        assert_eq!(shy.warnings, [token]);
        assert_eq!(
            shy.reasons(),
            ["0000:81:00.0: 0000:81:00.0 has 1 virtual function, which its holder could change; \
                set offer-pf-with-vfs = true in [discover] to offer it anyway"]
        );
        let open = discover_host(&tree.host(), &generous());
        assert_eq!(open.devices.len(), 2);
    }

    #[test]
    fn a_virtual_function_of_the_kernels_driver_needs_no_token() {
        let tree = tree();
        let parent = function(&tree, "0000:81:00.0", 9, "igb");
        let child = function(&tree, "0000:81:10.0", 15, "vfio-pci");
        tree.link(&format!("{child}/physfn"), &parent);
        group_node(&tree, "15", 0);
        let found = look_at(&tree);
        assert_eq!(found.devices.len(), 1);
        assert_eq!(found.warnings, [""; 0]);
    }

    #[test]
    fn a_port_that_is_down_below_offered_functions_is_warned_of_once() {
        let tree = tree();
        let parent = function(&tree, "0000:81:00.0", 9, "ixgbe");
        let net = format!("{parent}/net/ens1");
        tree.link("/sys/class/net/ens1", &net);
        tree.link(&format!("{net}/device"), &parent);
        for (group, address) in [(15, "0000:81:10.0"), (16, "0000:81:10.2")] {
            let child = function(&tree, address, group, "vfio-pci");
            tree.link(&format!("{child}/physfn"), &parent);
            group_node(&tree, &group.to_string(), group);
        }
        let warning = format!(
            "vfio 0000:81:00.0: its interface ens1 is down: {NO_LINK}; run \"ip link set dev ens1 up\""
        );
        let flags = format!("{net}/flags");
        for (text, warnings) in [
            ("0x1002", vec![warning]),
            // Up without a link.
            ("0x1003", Vec::new()),
        ] {
            tree.file(&flags, text);
            assert_eq!(look_at(&tree).warnings, warnings, "{text}");
        }
        // Nobody has functions of it.
        tree.file(&flags, "0x1002");
        for address in ["0000:81:10.0", "0000:81:10.2"] {
            tree.bind(&format!("/sys/devices/pci0000:81/{address}"), "ixgbevf");
        }
        assert_eq!(look_at(&tree).warnings, [""; 0]);
    }

    #[test]
    fn totalvfs_without_virtual_functions_makes_no_parent() {
        let tree = tree();
        let parent = function(&tree, "0000:81:00.0", 9, "vfio-pci");
        let files = [("sriov_totalvfs", "8"), ("sriov_numvfs", "0")];
        tree.attributes(&parent, &files);
        group_node(&tree, "9", 0);
        assert_eq!(look_at(&tree).devices.len(), 1);
    }

    #[test]
    fn a_virtual_function_in_a_guest_has_no_physical_one_and_is_a_function_like_others() {
        let tree = tree();
        function(&tree, "0000:00:05.0", 3, "vfio-pci");
        function(&tree, "0000:00:06.0", 4, "mlx5_core");
        group_node(&tree, "3", 0);
        let found = look_at(&tree);
        assert_eq!(found.devices[0].physical_function, None);
        assert_eq!(found.reasons(), [""; 0]);
    }

    #[test]
    fn a_domain_of_five_digits_and_a_numa_node_that_is_not_known() {
        let tree = tree();
        let function = tree.function("10000:e1:00.0", "0x010802", -1);
        join(&tree, &function, 7);
        tree.bind(&function, "vfio-pci");
        group_node(&tree, "7", 0);
        let found = look_at(&tree);
        assert_eq!(found.devices[0].pci_address.to_string(), "10000:e1:00.0");
        assert_eq!(found.devices[0].numa_node, None);
    }

    #[test]
    fn a_host_without_vfio_gives_nothing_and_no_warning() {
        let found = look_at(&Tree::new());
        assert!(found.devices.is_empty());
        assert_eq!(found.warnings, [""; 0]);
    }
}

#[cfg(test)]
mod vhost_tests {
    use super::*;
    use crate::discover::test_tree::{AsHost, Tree};

    fn read_on(tree: &Tree) -> (Vec<String>, Vec<String>) {
        let host = tree.host();
        let probe = Probe::new(&host);
        let cdi = CdiConfig { vhost_net: true, ..CdiConfig::default() };
        let nodes = read_vhost_net(&probe, &cdi)
            .into_iter()
            .map(|offered| offered.node.path.clone())
            .collect();
        (nodes, probe.warnings())
    }

    #[test]
    fn the_nodes_are_right_before_their_modules_are_loaded_and_afterwards() {
        let tree = Tree::new();
        tree.node("/dev/vhost-net", 10, 238).node("/dev/net/tun", 10, 200);
        let wanted = (VHOST_NODES.map(str::to_owned).to_vec(), Vec::new());
        assert_eq!(read_on(&tree), wanted);
        tree.file("/sys/class/misc/vhost-net/dev", "10:238\n");
        tree.file("/sys/class/misc/tun/dev", "10:200\n");
        assert_eq!(read_on(&tree), wanted);
    }

    #[test]
    fn nobody_looks_for_them_unless_the_operator_wants_them() {
        let tree = Tree::new();
        let host = tree.host();
        let probe = Probe::new(&host);
        assert_eq!(read_vhost_net(&probe, &CdiConfig::default()), []);
        assert_eq!(probe.warnings(), [""; 0]);
    }

    #[test]
    fn what_is_missing_or_is_another_device_is_left_out_with_the_reason() {
        let refused = |tree: &Tree, reason: &str| {
            let (nodes, warnings) = read_on(tree);
            assert_eq!(nodes, ["/dev/net/tun"]);
            let start = "[cdi] vhost-net is set, but vfio devices come without /dev/vhost-net: ";
            assert_eq!(warnings, [format!("{start}{reason}")]);
        };
        let with_tun = || {
            let tree = Tree::new();
            tree.node("/dev/net/tun", 10, 200);
            tree
        };
        refused(&with_tun(), "/dev/vhost-net does not exist; load its driver");
        let tree = with_tun();
        tree.node("/dev/vhost-net", 10, 241);
        refused(&tree, "/dev/vhost-net is 10:241, but the device is 10:238; remove the stale node");
        let tree = with_tun();
        tree.block_node("/dev/vhost-net", 10, 238);
        refused(&tree, "/dev/vhost-net is not a character device; remove it and reload its driver");
        let tree = with_tun();
        tree.file("/dev/vhost-net", "");
        refused(&tree, "/dev/vhost-net is not a character device; remove it and reload its driver");
    }
}
