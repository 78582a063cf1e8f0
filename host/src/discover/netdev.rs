//! Network interfaces, read from `/sys/class/net` (`Documentation/ABI/testing/sysfs-class-net`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use onload_sys::netlink::link::UP as IFF_UP;
use onload_sys::pci::PciAddress;

use crate::discover::pci::PciFunctions;
use crate::discover::probe::Probe;

pub const SYS_CLASS_NET: &str = "/sys/class/net";

/// Bytes of an IP-over-InfiniBand (IPoIB) hardware address (RFC 4391, section 9.1.1).
const INFINIBAND_ALEN: usize = 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkInterface {
    pub name: String,
    pub backing: Backing,
    /// The port number on the PCI function, counted from 0.
    pub port: Option<u32>,
    pub phys_port_name: Option<String>,
    /// `up`, `down`, `unknown` or another state of RFC 2863.
    pub operstate: Option<String>,
    pub speed_mbps: Option<u64>,
    pub hardware_address: Option<String>,
}

/// The device or the interfaces that a network interface sends packets through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    Device {
        /// The PCI function that is the device or its ancestor.
        pci: Option<PciAddress>,
        driver: Option<String>,
    },
    Virtual {
        /// The interfaces at the bottom of the stack, sorted by name.
        lower_devices: Vec<String>,
    },
    /// The backing could not be determined, for this reason.
    Unknown(String),
}

impl NetworkInterface {
    pub fn pci(&self) -> Option<PciAddress> {
        match self.backing {
            Backing::Device { pci, .. } => pci,
            _ => None,
        }
    }

    pub(crate) fn driver(&self) -> Option<&str> {
        match &self.backing {
            Backing::Device { driver, .. } => driver.as_deref(),
            _ => None,
        }
    }

    pub(crate) fn lower_devices(&self) -> Option<&[String]> {
        match &self.backing {
            Backing::Virtual { lower_devices } => Some(lower_devices),
            _ => None,
        }
    }

    pub(crate) fn is_ipoib(&self) -> bool {
        self.hardware_address
            .as_deref()
            .is_some_and(|address| address.split(':').count() == INFINIBAND_ALEN)
    }

    pub(crate) fn is_representor(&self) -> bool {
        self.phys_port_name
            .as_deref()
            .is_some_and(is_representor_port_name)
    }
}

/// Reads all interfaces, sorted by name.
pub(crate) fn read(probe: &Probe<'_>) -> Vec<NetworkInterface> {
    let mut interfaces: Vec<NetworkInterface> = probe
        .list(SYS_CLASS_NET)
        .into_iter()
        // A control file of the bonding driver.
        .filter(|name| name != "bonding_masters")
        .map(|name| read_interface(probe, name))
        .collect();
    flatten_stacks(&mut interfaces);
    interfaces
}

fn read_interface(probe: &Probe<'_>, name: String) -> NetworkInterface {
    let directory = Path::new(SYS_CLASS_NET).join(&name);
    let attribute = |file: &str| probe.attribute(directory.join(file));
    let backing = read_backing(probe, &directory);
    let port = read_port(probe, &directory);
    // Failing to read these is only a warning: no device class is undecided without them.
    probe.deciding(&[], || NetworkInterface {
        phys_port_name: match backing {
            Backing::Device { pci: Some(_), .. } => attribute("phys_port_name"),
            _ => None,
        },
        operstate: attribute("operstate"),
        speed_mbps: probe
            .number(directory.join("speed"))
            .and_then(validate_speed),
        hardware_address: attribute("address"),
        name,
        backing,
        port,
    })
}

fn read_backing(probe: &Probe<'_>, directory: &Path) -> Backing {
    let real_path = probe.resolve(directory);
    let device_link = directory.join("device");
    let device = probe
        .resolve(&device_link)
        .or_else(|| find_parent_device(real_path.as_deref()?));
    if let Some(device) = device {
        return Backing::Device {
            pci: PciFunctions::above(&device),
            driver: probe.link_name(device.join("driver")),
        };
    }
    // Listed first, because the reasons below include failures to list.
    let lower_devices = probe.deciding(&[], || list_lower_devices(probe, directory));
    if real_path.is_none() {
        return Backing::Unknown(probe.dangling(directory));
    }
    if probe.link_name(&device_link).is_some() {
        return Backing::Unknown(probe.dangling(&device_link));
    }
    if let Some(reason) = probe.why_unread(directory) {
        return Backing::Unknown(format!("not known: {reason}"));
    }
    Backing::Virtual { lower_devices }
}

/// Derives the parent device of an interface without a `device` link from its real path,
/// `<device>/net/<interface>`. Returns `None` for a virtual interface.
fn find_parent_device(real_path: &Path) -> Option<PathBuf> {
    let class_dir = real_path.parent()?;
    let device = class_dir.parent()?;
    let is_physical = class_dir.ends_with("net")
        && device.starts_with("/sys/devices")
        && !device.starts_with("/sys/devices/virtual");
    is_physical.then(|| device.to_owned())
}

/// Lists the interfaces directly below a virtual one, from its `lower_<interface>` links
/// (`netdev_adjacent_sysfs_add`, net/core/dev.c).
fn list_lower_devices(probe: &Probe<'_>, directory: &Path) -> Vec<String> {
    let mut lower_devices = Vec::new();
    for entry in probe.list(directory) {
        if let Some(name) = entry.strip_prefix("lower_")
            && probe.link_name(directory.join(&entry)).is_some()
        {
            lower_devices.push(name.to_owned());
        }
    }
    if !lower_devices.is_empty() {
        return lower_devices;
    }
    // Kernels before 3.14 have no such links, and list only the slaves of a bond.
    let mut slaves: Vec<String> = probe
        .attribute(directory.join("bonding/slaves"))
        .unwrap_or_default()
        .split_ascii_whitespace()
        .map(str::to_owned)
        .collect();
    slaves.sort();
    slaves
}

/// Reads the port number of an interface whose PCI function may have several ports, as on mlx4.
///
/// Drivers set `dev_port` since Linux 3.15. Some still set only `dev_id`, and leave `dev_port` 0.
fn read_port(probe: &Probe<'_>, directory: &Path) -> Option<u32> {
    probe
        .number(directory.join("dev_port"))
        .filter(|port| *port > 0)
        .or_else(|| probe.hex(directory.join("dev_id")))
}

/// Returns `None` for an unknown speed: 0, or -1, which some drivers report as 4294967295.
fn validate_speed(mbps: i64) -> Option<u64> {
    u64::try_from(mbps)
        .ok()
        .filter(|mbps| (1..u64::from(u32::MAX)).contains(mbps))
}

/// Replaces the interfaces directly below each virtual one by those at the bottom of the stack, as
/// for a VLAN on a bond.
fn flatten_stacks(interfaces: &mut [NetworkInterface]) {
    let virtual_interfaces: BTreeMap<String, Vec<String>> = interfaces
        .iter()
        .filter_map(|interface| Some((interface.name.clone(), interface.lower_devices()?.to_vec())))
        .collect();
    for interface in interfaces {
        if let Backing::Virtual { lower_devices } = &mut interface.backing {
            *lower_devices = find_bottom(&interface.name, &virtual_interfaces);
        }
    }
}

/// Finds the interfaces at the bottom of the stack below `top`. `virtual_interfaces` maps each
/// virtual interface to those directly below it.
fn find_bottom(top: &str, virtual_interfaces: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let mut visited = BTreeSet::new();
    let mut pending = vec![top];
    while let Some(name) = pending.pop() {
        if visited.insert(name)
            && let Some(lower_devices) = virtual_interfaces.get(name)
        {
            pending.extend(lower_devices.iter().map(String::as_str));
        }
    }
    visited
        .into_iter()
        .filter(|name| !virtual_interfaces.contains_key(*name))
        .map(str::to_owned)
        .collect()
}

/// Finds an interface in the sorted list that [`read`] returns.
pub(crate) fn find_by_name<'i>(
    interfaces: &'i [NetworkInterface],
    name: &str,
) -> Option<&'i NetworkInterface> {
    let index = interfaces
        .binary_search_by(|interface| interface.name.as_str().cmp(name))
        .ok()?;
    interfaces.get(index)
}

/// Returns whether an interface is administratively down, which `operstate` cannot tell from a
/// missing carrier. Unreadable flags count as up.
pub(crate) fn is_admin_down(probe: &Probe<'_>, name: &str) -> bool {
    probe
        .attribute(Path::new(SYS_CLASS_NET).join(name).join("flags"))
        .and_then(|text| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok())
        .is_some_and(|flags| flags & IFF_UP == 0)
}

/// Groups interfaces by PCI function, and sorts each group by port and name.
pub(crate) fn group_by_function<'i>(
    interfaces: impl IntoIterator<Item = &'i NetworkInterface>,
) -> BTreeMap<PciAddress, Vec<&'i NetworkInterface>> {
    let mut groups: BTreeMap<PciAddress, Vec<&NetworkInterface>> = BTreeMap::new();
    for interface in interfaces {
        if let Some(pci) = interface.pci() {
            groups.entry(pci).or_default().push(interface);
        }
    }
    for group in groups.values_mut() {
        group.sort_by_key(|interface| (interface.port.unwrap_or(0), &interface.name));
    }
    groups
}

/// Like [`group_by_function`], but without representors.
///
/// In switchdev mode the representors of other functions are on the physical function too. Their
/// names are arbitrary, so one of them could sort before the function's own interface.
pub(crate) fn group_without_representors(
    interfaces: &[NetworkInterface],
) -> BTreeMap<PciAddress, Vec<&NetworkInterface>> {
    group_by_function(interfaces.iter().filter(|i| !i.is_representor()))
}

/// Returns whether a `phys_port_name` belongs to a representor, the host's end of another
/// function's port on the NIC's embedded switch.
///
/// devlink names such a port `pf0`, `pf0vf1` or `pf0sf88`, optionally after a controller number as
/// in `c1pf0` (`__devlink_port_phys_port_name_get`, net/devlink/port.c). sfc starts with the port
/// of the NIC, as in `p0pf0vf1`, and out of tree adds an interface number, as in `p0if1pf0`
/// (drivers/net/ethernet/sfc/ef100_rep.c).
pub(crate) fn is_representor_port_name(name: &str) -> bool {
    let mut rest = name;
    for prefix in ["c", "p", "if"] {
        rest = strip_numbered(rest, prefix).unwrap_or(rest);
    }
    let Some(rest) = strip_numbered(rest, "pf") else {
        return false;
    };
    rest.is_empty()
        || strip_numbered(rest, "vf") == Some("")
        || strip_numbered(rest, "sf") == Some("")
}

/// Strips a prefix and the number after it. Returns `None` if either is missing.
fn strip_numbered<'t>(text: &'t str, prefix: &str) -> Option<&'t str> {
    let numbered = text.strip_prefix(prefix)?;
    let rest = numbered.trim_start_matches(|c: char| c.is_ascii_digit());
    (rest != numbered).then_some(rest)
}

#[cfg(fuzzing)]
pub(super) fn fuzz(text: &str) {
    let speed = text.parse().ok().and_then(validate_speed);
    assert!(speed.is_none_or(|speed| speed > 0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::test_tree::{AsHost, Tree};

    fn read_by_name(tree: &Tree, name: &str) -> NetworkInterface {
        let host = tree.host();
        let interfaces = read(&Probe::new(&host));
        find_by_name(&interfaces, name).unwrap().clone()
    }

    #[test]
    fn backing_is_unknown_if_a_link_dangles() {
        let tree = Tree::new();
        tree.link("/sys/class/net/ens1", "/sys/devices/gone/net/ens1");
        tree.link("/sys/class/net/ens2/device", "/sys/devices/gone");
        for (name, link) in [("ens1", "ens1"), ("ens2", "ens2/device")] {
            let reason = format!(
                "/sys/class/net/{link} leads to nothing: its driver is going or has failed; \
                 look at the kernel's log"
            );
            let interface = read_by_name(&tree, name);
            assert_eq!(interface.backing, Backing::Unknown(reason));
        }
    }

    #[test]
    fn parent_device_is_derived_from_the_real_path() {
        let function = "/sys/devices/pci0000:3b/0000:3b:00.0";
        for device in [function, &format!("{function}/virtio2")] {
            let real_path = Path::new(device).join("net/ens1");
            let parent = find_parent_device(&real_path);
            assert_eq!(parent.as_deref(), Some(Path::new(device)));
        }
        for path in [
            "/sys/devices/virtual/net/lo",
            "/sys/class/net/eth0",
            "/sys/devices/x/eth0",
            "/",
        ] {
            assert_eq!(find_parent_device(Path::new(path)), None, "{path}");
        }
    }

    #[test]
    fn bond_without_lower_links_lists_its_slaves() {
        let tree = Tree::new();
        let bond = tree.class_device("net", "/sys/devices/virtual", "bond0", &[]);
        for (slaves, expected) in [("eth1 eth0 \n", vec!["eth0", "eth1"]), ("\n", vec![])] {
            tree.file(&format!("{bond}/bonding/slaves"), slaves);
            let interface = read_by_name(&tree, "bond0");
            assert_eq!(interface.lower_devices().unwrap(), expected);
        }
    }

    #[test]
    fn unknown_speed_is_none() {
        assert_eq!(validate_speed(25_000), Some(25_000));
        for mbps in [-1, 0, 4_294_967_295] {
            assert_eq!(validate_speed(mbps), None, "{mbps}");
        }
    }

    #[test]
    fn only_interfaces_of_pci_functions_are_representors() {
        let tree = Tree::new();
        let function = tree.function("0000:3b:00.0", "0x020000", 0);
        let port_name = [("phys_port_name", "pf0vf0")];
        tree.class_device("net", &function, "eth0", &port_name);
        tree.class_device("net", &function, "ens1", &[]);
        tree.class_device("net", "/sys/devices/virtual", "dummy0", &port_name);
        for (name, expected) in [("eth0", true), ("ens1", false), ("dummy0", false)] {
            let interface = read_by_name(&tree, name);
            assert_eq!(interface.is_representor(), expected, "{name}");
        }
    }

    #[test]
    fn representors_are_recognized_by_port_name() {
        let representors = "pf0 pf0vf0 pf12vf127 pf0sf88 c1pf0 c1pf0vf3 c2pf1sf4 p0pf0vf1 \
                            p0if1pf0 p0if1pf0vf2";
        for name in representors.split(' ') {
            assert!(is_representor_port_name(name), "{name}");
        }
        let others = "p0 p1 p0s1 0 pf pfvf0 pf0vf pf0vf1x pf0sf1vf2 xpf0vf0 cpf0 c1 c1p0 vf0 n0 \
                      pf+1 PF0";
        for name in others.split(' ').chain(["", "pf0 vf0"]) {
            assert!(!is_representor_port_name(name), "{name}");
        }
    }
}
