//! The network interfaces of a host, each read once (`Documentation/ABI/testing/sysfs-class-net`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use onload_sys::netlink::link::UP;
use onload_sys::pci::PciAddress;

use crate::discover::pci::PciFunctions;
use crate::discover::probe::Probe;

pub const CLASS: &str = "/sys/class/net";
/// Interfaces without a device are below it.
const VIRTUAL: &str = "/sys/devices/virtual";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetDevice {
    pub name: String,
    pub pci: Option<PciAddress>,
    /// The driver of the underlying device; `None` for a virtual interface.
    pub driver: Option<String>,
    pub unknown: Option<String>,
    /// The interfaces with a device that a virtual one sends through, sorted; `None` if it has a device itself.
    pub virtual_over: Option<Vec<String>>,
    /// Its port on that function; the kernel counts from 0.
    pub port: Option<u32>,
    /// `phys_port_name`: which port of the card, or of the switch in it; few drivers say it.
    pub port_name: Option<String>,
    /// `operstate`: `up`, `down`, `unknown` and others (RFC 2863).
    pub state: Option<String>,
    /// Mbit/s.
    pub speed_mbps: Option<u64>,
    /// `address`: six bytes of Ethernet, twenty of IP over InfiniBand.
    pub address: Option<String>,
}

impl NetDevice {
    /// Whether it carries IP over InfiniBand, as the length of its address says (RFC 4391 section 9.1.1).
    pub(crate) fn is_ipoib(&self) -> bool {
        let bytes = self.address.as_deref().map(|address| address.split(':'));
        bytes.is_some_and(|bytes| bytes.count() == 20)
    }

    pub(crate) fn is_representor(&self) -> bool {
        self.port_name.as_deref().is_some_and(is_representor)
    }
}

pub(crate) fn read(probe: &Probe<'_>) -> Vec<NetDevice> {
    let names = probe.list(CLASS).into_iter();
    // `bonding_masters` is a file of the bonding driver among the interfaces.
    let names = names.filter(|name| name != "bonding_masters");
    let mut interfaces: Vec<NetDevice> = names.map(|name| read_one(probe, name)).collect();
    let virtual_ones = interfaces.iter();
    let virtual_ones =
        virtual_ones.filter_map(|one| Some((one.name.clone(), one.virtual_over.clone()?)));
    let below: BTreeMap<String, Vec<String>> = virtual_ones.collect();
    for over in interfaces
        .iter_mut()
        .filter_map(|one| one.virtual_over.as_mut())
    {
        *over = with_device(&below, std::mem::take(over));
    }
    interfaces
}

/// One of those that [`read`] gave, which are sorted by name.
pub(crate) fn find<'i>(interfaces: &'i [NetDevice], name: &str) -> Option<&'i NetDevice> {
    let found = interfaces.binary_search_by(|interface| interface.name.as_str().cmp(name));
    interfaces.get(found.ok()?)
}

/// Whether nobody has set it up. Its `operstate` does not tell that from a missing carrier.
pub(crate) fn is_set_down(probe: &Probe<'_>, name: &str) -> bool {
    let flags = probe.attribute(Path::new(CLASS).join(name).join("flags"));
    let flags = flags.and_then(|text| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok());
    flags.is_some_and(|flags| flags & UP == 0)
}

/// The interfaces of each PCI function, by port and name.
pub(crate) fn by_function(interfaces: &[NetDevice]) -> BTreeMap<PciAddress, Vec<&NetDevice>> {
    let mut all: BTreeMap<PciAddress, Vec<&NetDevice>> = BTreeMap::new();
    for interface in interfaces {
        if let Some(pci) = interface.pci {
            all.entry(pci).or_default().push(interface);
        }
    }
    for of_function in all.values_mut() {
        of_function.sort_by_key(|interface| (interface.port.unwrap_or(0), &interface.name));
    }
    all
}

/// As [`by_function`], without representors: a function may have many, whose names a cluster's network chooses.
pub(crate) fn own_by_function(interfaces: &[NetDevice]) -> BTreeMap<PciAddress, Vec<&NetDevice>> {
    let mut all = by_function(interfaces);
    for of_function in all.values_mut() {
        of_function.retain(|interface| !interface.is_representor());
    }
    all
}

/// Whether a port is that of a switch in the card to another function: `pf0` to a physical one, `pf0vf1`, `pf0sf88`, each
/// perhaps after the controller's number (`__devlink_port_phys_port_name_get` in net/devlink/port.c), or as sfc says it
/// after the card's port and an interface's number (`p0pf0vf1`, `p0if1pf0`; drivers/net/ethernet/sfc/ef100_rep.c).
pub(crate) fn is_representor(port_name: &str) -> bool {
    let rest = ["c", "p", "if"].into_iter();
    let rest = rest.fold(port_name, |rest, word| after(rest, word).unwrap_or(rest));
    let of_physical = after(rest, "pf");
    of_physical.is_some_and(|rest| {
        let words = ["vf", "sf"];
        rest.is_empty() || words.iter().any(|word| after(rest, word) == Some(""))
    })
}

/// What follows a word and a number.
fn after<'t>(text: &'t str, word: &str) -> Option<&'t str> {
    let number = text.strip_prefix(word)?;
    let rest = number.trim_start_matches(|digit: char| digit.is_ascii_digit());
    (rest.len() < number.len()).then_some(rest)
}

/// Those of them that have a device, and those below the others: a VLAN may be on a bond.
fn with_device(below: &BTreeMap<String, Vec<String>>, mut names: Vec<String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    while let Some(name) = names.pop() {
        let lower = below.get(&name).cloned().unwrap_or_default();
        if seen.insert(name) {
            names.extend(lower);
        }
    }
    seen.retain(|name| !below.contains_key(name));
    seen.into_iter().collect()
}

fn read_one(probe: &Probe<'_>, name: String) -> NetDevice {
    let directory = Path::new(CLASS).join(&name);
    let place = probe.resolve(&directory);
    let device = probe.resolve(directory.join("device"));
    let device = device.or_else(|| device_above(place.as_deref()?));
    let pci = device.as_deref().and_then(PciFunctions::above);
    let driver = device
        .as_ref()
        .and_then(|device| probe.link_name(device.join("driver")));
    let below = match &device {
        Some(_) => Vec::new(),
        None => probe.deciding(&[], || interfaces_below(probe, &directory)),
    };
    let unknown = match (&device, &place) {
        (Some(_), _) => None,
        (None, None) => Some(probe.dangling(&directory)),
        (None, Some(_)) => no_device(probe, &directory),
    };
    // mlx4 has two ports on one function; old kernels number them in dev_id, new ones in dev_port.
    let port = probe
        .number(directory.join("dev_port"))
        .filter(|port| *port > 0);
    let port = port.or_else(|| probe.hex(directory.join("dev_id")));
    // These are displayed, and decide nothing.
    probe.deciding(&[], || NetDevice {
        pci,
        driver,
        virtual_over: (device.is_none() && unknown.is_none()).then_some(below),
        unknown,
        port,
        port_name: pci.and_then(|_| probe.attribute(directory.join("phys_port_name"))),
        state: probe.attribute(directory.join("operstate")),
        speed_mbps: probe
            .number::<i64>(directory.join("speed"))
            .and_then(known_speed),
        address: probe.attribute(directory.join("address")),
        name,
    })
}

fn no_device(probe: &Probe<'_>, directory: &Path) -> Option<String> {
    let link = directory.join("device");
    if probe.link_name(&link).is_some() {
        return Some(probe.dangling(&link));
    }
    let unread = probe.why_unread(directory);
    unread.map(|reason| format!("not known: {reason}"))
}

/// The device above an interface in sysfs, for interfaces without a link to it; virtual interfaces
/// have none.
fn device_above(directory: &Path) -> Option<PathBuf> {
    let class = directory.parent()?;
    let device = class.parent().filter(|_| class.ends_with("net"))?;
    let is_device = device.starts_with("/sys/devices") && !device.starts_with(VIRTUAL);
    is_device.then(|| device.to_owned())
}

/// The interfaces that a virtual one sends through: its links `lower_<interface>`
/// (`netdev_adjacent_sysfs_add` in `net/core/dev.c`). Kernels before 3.14 have none, and of a bond a list.
fn interfaces_below(probe: &Probe<'_>, directory: &Path) -> Vec<String> {
    let names = probe.list(directory).into_iter();
    let lower = names.filter_map(|name| Some(name.strip_prefix("lower_")?.to_owned()));
    let is_link = |name: &String| {
        let link = directory.join(format!("lower_{name}"));
        probe.link_name(link).is_some()
    };
    let below: Vec<String> = lower.filter(is_link).collect();
    if !below.is_empty() {
        return below;
    }
    let slaves = probe.attribute(directory.join("bonding/slaves"));
    let slaves = slaves.unwrap_or_default();
    let mut slaves: Vec<String> = slaves.split(' ').map(str::to_owned).collect();
    slaves.retain(|name| !name.is_empty());
    slaves.sort();
    slaves
}

/// An unknown speed is -1, which some drivers pass on as an unsigned number.
fn known_speed(speed: i64) -> Option<u64> {
    u64::try_from(speed)
        .ok()
        .filter(|speed| *speed > 0 && *speed < u64::from(u32::MAX))
}

#[cfg(fuzzing)]
pub(super) fn fuzz(text: &str) {
    let speed = text.parse().ok().and_then(known_speed);
    assert!(speed.is_none_or(|speed| speed > 0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::test_tree::{AsHost, Tree};

    #[test]
    fn a_speed_that_is_not_known_is_none() {
        assert_eq!(known_speed(25_000), Some(25_000));
        assert_eq!(known_speed(-1), None);
        assert_eq!(known_speed(0), None);
        assert_eq!(known_speed(4_294_967_295), None);
    }

    fn interface(tree: &Tree, name: &str) -> NetDevice {
        let host = tree.host();
        let mut all = read(&Probe::new(&host)).into_iter();
        all.find(|interface| interface.name == name).unwrap()
    }

    #[test]
    fn an_interface_whose_links_lead_to_nothing_is_no_virtual_one() {
        let tree = Tree::new();
        tree.link("/sys/class/net/ens1", "/sys/devices/gone/net/ens1");
        let going = interface(&tree, "ens1");
        assert_eq!(going.virtual_over, None);
        assert_eq!(
            going.unknown.unwrap(),
            "/sys/class/net/ens1 leads to nothing: its driver is going or has failed; look at the kernel's log"
        );
        tree.link("/sys/class/net/ens2/device", "/sys/devices/gone");
        let going = interface(&tree, "ens2");
        assert_eq!((going.virtual_over, going.driver), (None, None));
        let reason = going.unknown.unwrap();
        assert!(reason.starts_with("/sys/class/net/ens2/device leads to nothing: "));
    }

    #[test]
    fn a_port_to_another_function_is_told_by_its_name() {
        for name in [
            "pf0",
            "pf0vf0",
            "pf12vf127",
            "pf0sf88",
            "c1pf0",
            "c1pf0vf3",
            "c2pf1sf4",
            "p0pf0vf1",
            "p0if1pf0",
            "p0if1pf0vf2",
        ] {
            assert!(is_representor(name), "{name}");
        }
        for name in [
            "",
            "p0",
            "p1",
            "p0s1",
            "0",
            "pf",
            "pfvf0",
            "pf0vf",
            "pf0vf1x",
            "pf0sf1vf2",
            "xpf0vf0",
            "cpf0",
            "c1",
            "c1p0",
            "vf0",
            "n0",
            "pf+1",
            "PF0",
            "pf0 vf0",
        ] {
            assert!(!is_representor(name), "{name}");
        }
    }

    #[test]
    fn only_an_interface_of_a_function_is_asked_for_its_port() {
        let tree = Tree::new();
        let function = tree.function("0000:3b:00.0", "0x020000", 0);
        let port = [("phys_port_name", "pf0vf0")];
        tree.class_device("net", &function, "eth0", &port);
        tree.class_device("net", &function, "ens1", &[]);
        tree.class_device("net", "/sys/devices/virtual", "dummy0", &port);
        let is = |name: &str| interface(&tree, name).is_representor();
        assert_eq!(["eth0", "ens1", "dummy0"].map(is), [true, false, false]);
    }

    #[test]
    fn a_bond_of_an_old_kernel_lists_what_is_below_it() {
        let tree = Tree::new();
        let bond = tree.class_device("net", "/sys/devices/virtual", "bond0", &[]);
        tree.file(&format!("{bond}/bonding/slaves"), "eth1 eth0 \n");
        let below = interface(&tree, "bond0").virtual_over;
        assert_eq!(below.unwrap(), ["eth0", "eth1"]);
        // One that no interface was put into yet.
        tree.file(&format!("{bond}/bonding/slaves"), "\n");
        assert_eq!(interface(&tree, "bond0").virtual_over, Some(Vec::new()));
    }

    #[test]
    fn an_interface_without_a_link_to_its_device_stands_below_it() {
        let above =
            |path: &str| device_above(Path::new(path)).map(|path| path.display().to_string());
        let function = "/sys/devices/pci0000:3b/0000:3b:00.0";
        assert_eq!(
            above(&format!("{function}/net/ens1")).as_deref(),
            Some(function)
        );
        let virtio = format!("{function}/virtio2");
        assert_eq!(above(&format!("{virtio}/net/ens2")), Some(virtio));
        for path in [
            "/sys/devices/virtual/net/lo",
            "/sys/class/net/eth0",
            "/sys/devices/x/eth0",
            "/",
        ] {
            assert_eq!(above(path), None, "{path}");
        }
    }
}
