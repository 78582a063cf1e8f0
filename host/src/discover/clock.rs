//! PTP hardware clocks and PPS sources, and the NIC that each belongs to
//! (`Documentation/ABI/testing/sysfs-ptp`, `sysfs-pps`).

use std::collections::BTreeMap;
use std::path::Path;

use onload_core::class::Class;
use onload_sys::pci::PciAddress;
use onload_sys::text::parse_digits;
use serde::Serialize;

use crate::discover::exclusion::Exclusion;
use crate::discover::netdev::{NetworkInterface, group_without_representors};
use crate::discover::node::NumberedNode;
use crate::discover::pci::PciFunctions;
use crate::discover::probe::Probe;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Clock {
    /// The kernel's name: `ptp0`, `pps0`.
    pub name: String,
    /// Its name according to the driver; for a PPS source, what drives its pulses.
    pub clock_name: Option<String>,
    /// The interface on the same PCI function; the one on the first port if there are several. No representor.
    pub nic: Option<String>,
    /// Its PCI function; for the PPS source of a PTP clock, that of the clock.
    pub pci_address: Option<PciAddress>,
    pub numa_node: Option<u32>,
    #[serde(skip)]
    pub node: NumberedNode,
}

/// Reads the clocks of a class, sorted by number.
pub(crate) fn read(
    probe: &Probe<'_>,
    class: Class,
    functions: &PciFunctions,
    interfaces: &[NetworkInterface],
) -> Vec<Clock> {
    let nics = group_without_representors(interfaces);
    let class_dir = Path::new("/sys/class").join(class.as_str());
    let name_file = if class == Class::Ptp { "clock_name" } else { "name" };
    let mut clocks: BTreeMap<u32, Clock> = BTreeMap::new();
    for name in probe.list(&class_dir) {
        let Some(number) = name.strip_prefix(class.as_str()).and_then(parse_digits) else {
            continue;
        };
        let link = class_dir.join(&name);
        let Some(directory) = probe.resolve(&link) else {
            probe.exclude(Exclusion::new(class, name, probe.dangling_reason(&link)));
            continue;
        };
        let clock_name = probe.attribute(directory.join(name_file));
        let pci = find_function(probe, &directory).or_else(|| {
            // The PPS source of a PTP clock is named after the clock, and has no parent that
            // identifies it (drivers/ptp/ptp_clock.c, `ptp_clock_register`).
            let clock = clock_name.as_deref().filter(|name| name.starts_with("ptp"))?;
            find_function(probe, &probe.resolve(Path::new("/sys/class/ptp").join(clock))?)
        });
        match NumberedNode::find(probe, format!("/dev/{name}"), &directory) {
            Ok(node) => {
                let nic = pci.and_then(|pci| nics.get(&pci)?.first());
                let clock = Clock {
                    name,
                    clock_name,
                    nic: nic.map(|nic| nic.name.clone()),
                    pci_address: pci,
                    numa_node: pci.and_then(|pci| functions.get(pci)?.numa_node),
                    node,
                };
                clocks.insert(number, clock);
            }
            Err(reason) => probe.exclude(Exclusion::new(class, name, reason).with_pci(pci)),
        }
    }
    clocks.into_values().collect()
}

fn find_function(probe: &Probe<'_>, clock: &Path) -> Option<PciAddress> {
    PciFunctions::function_above(clock)
        .or_else(|| PciFunctions::function_above(&probe.resolve(clock.join("device"))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::test_tree::{AsHost, Discovered, Tree, discover};
    use crate::host::Host;

    #[derive(Debug, Default, PartialEq)]
    struct Clocks {
        ptp: Vec<Clock>,
        pps: Vec<Clock>,
    }

    fn discover_tree(host: &Host) -> (Clocks, Discovered<()>) {
        let mut clocks = Clocks::default();
        let found = discover(host, |probe, functions, interfaces| {
            clocks.ptp = read(probe, Class::Ptp, functions, interfaces);
            clocks.pps = read(probe, Class::Pps, functions, interfaces);
            Vec::new()
        });
        (clocks, found)
    }

    fn ptp(tree: &Tree, parent: &str, number: u32, clock_name: &str) {
        let name = format!("ptp{number}");
        let dev = format!("247:{number}");
        let files = [("clock_name", clock_name), ("dev", dev.as_str())];
        tree.class_device("ptp", parent, &name, &files);
        tree.node(&format!("/dev/{name}"), 247, number);
    }

    fn pps(tree: &Tree, parent: &str, number: u32, source: &str) {
        let name = format!("pps{number}");
        let dev = format!("248:{number}");
        let files = [("name", source), ("path", ""), ("dev", dev.as_str())];
        tree.class_device("pps", parent, &name, &files);
        tree.node(&format!("/dev/{name}"), 248, number);
    }

    #[test]
    fn a_clock_whose_link_leads_to_nothing_is_named_and_not_offered() {
        let tree = Tree::new();
        tree.link("/sys/class/ptp/ptp7", "../../devices/gone");
        let (clocks, found) = discover_tree(&tree.host());
        assert!(clocks.ptp.is_empty());
        let not_offered = found.not_offered;
        assert_eq!(not_offered.len(), 1);
        assert_eq!((not_offered[0].kind, &*not_offered[0].name), (Class::Ptp.into(), "ptp7"));
        assert!(not_offered[0].reason.contains("/sys/class/ptp/ptp7 is a broken link"));
    }

    fn nics(clocks: &[Clock]) -> Vec<(&str, Option<&str>)> {
        clocks.iter().map(|clock| (clock.name.as_str(), clock.nic.as_deref())).collect()
    }

    #[test]
    fn clocks_are_sorted_by_their_numbers() {
        let tree = Tree::new();
        for number in [10, 2, 0] {
            ptp(&tree, "/sys/devices/virtual", number, "x");
        }
        let (clocks, _) = discover_tree(&tree.host());
        let names: Vec<&str> = clocks.ptp.iter().map(|clock| clock.name.as_str()).collect();
        assert_eq!(names, ["ptp0", "ptp2", "ptp10"]);
    }

    #[test]
    fn a_clock_without_a_pci_function_has_no_nic() {
        let tree = Tree::new();
        ptp(&tree, "/sys/devices/virtual", 0, "KVM virtual PTP");
        let (clocks, _) = discover_tree(&tree.host());
        assert_eq!(clocks.ptp[0].clock_name.as_deref(), Some("KVM virtual PTP"));
        assert_eq!(clocks.ptp[0].nic, None);
        assert_eq!(clocks.ptp[0].pci_address, None);
    }

    #[test]
    fn of_two_ports_on_one_function_the_first_is_the_clocks_nic() {
        let tree = Tree::new();
        let function = tree.function("10000:e1:00.0", "0x020000", -1);
        tree.class_device("net", &function, "a1", &[("dev_port", "1")]);
        tree.class_device("net", &function, "z0", &[("dev_port", "0")]);
        ptp(&tree, &function, 0, "mlx4");
        let (clocks, _) = discover_tree(&tree.host());
        assert_eq!(nics(&clocks.ptp), [("ptp0", Some("z0"))]);
        assert_eq!(clocks.ptp[0].numa_node, None);
        let address = clocks.ptp[0].pci_address.unwrap().to_string();
        assert_eq!(address, "10000:e1:00.0");
    }

    #[test]
    fn a_representor_is_not_the_clocks_nic() {
        let tree = Tree::new();
        let function = tree.function("0000:41:00.0", "0x020000", 0);
        let ports = [("0a1b2c3d", "pf0vf0"), ("ens1", "p0"), ("en3f0pf0sf88", "pf0sf88")];
        for (name, port) in ports {
            tree.class_device("net", &function, name, &[("phys_port_name", port)]);
        }
        ptp(&tree, &function, 0, "mlx5_ptp");
        let other = tree.function("0000:42:00.0", "0x020000", 0);
        tree.class_device("net", &other, "eth0", &[("phys_port_name", "c1pf0")]);
        ptp(&tree, &other, 1, "mlx5_ptp");
        let (clocks, _) = discover_tree(&tree.host());
        assert_eq!(nics(&clocks.ptp), [("ptp0", Some("ens1")), ("ptp1", None)]);
    }

    #[test]
    fn the_pulses_of_a_ptp_clock_belong_to_its_nic() {
        let tree = Tree::new();
        let function = tree.function("0000:41:00.0", "0x020000", 1);
        tree.class_device("net", &function, "ens1", &[]);
        ptp(&tree, &function, 3, "igb");
        pps(&tree, "/sys/devices/virtual", 0, "ptp3");
        pps(&tree, "/sys/devices/virtual", 1, "serial0");
        let (clocks, _) = discover_tree(&tree.host());
        assert_eq!(nics(&clocks.pps), [("pps0", Some("ens1")), ("pps1", None)]);
        assert_eq!(clocks.pps[0].numa_node, Some(1));
        assert_eq!(clocks.pps[1].clock_name.as_deref(), Some("serial0"));
    }

    #[test]
    fn a_clock_without_its_node_is_not_offered() {
        let tree = Tree::new();
        tree.class_device("ptp", "/sys/devices/virtual", "ptp0", &[("dev", "247:0")]);
        tree.class_device("pps", "/sys/devices/virtual", "pps0", &[("dev", "248:0")]);
        tree.node("/dev/pps0", 99, 0);
        let (clocks, found) = discover_tree(&tree.host());
        assert_eq!(clocks, Clocks::default());
        assert_eq!(
            found.reasons(),
            [
                "ptp0: /dev/ptp0 does not exist, although its driver created the device 247:0; \
                 create it with mknod, or reload the driver",
                "pps0: /dev/pps0 is 99:0, but the device is 248:0; remove the stale node",
            ]
        );
    }

    #[test]
    fn entries_that_are_no_clocks_are_passed_over() {
        let tree = Tree::new();
        for name in ["ptp", "ptp+1", "ptp1a", "pps0", "xptp0", "ptp4294967296"] {
            tree.class_device("ptp", "/sys/devices/virtual", name, &[]);
        }
        let (clocks, found) = discover_tree(&tree.host());
        assert_eq!(clocks, Clocks::default());
        assert_eq!(found.reasons(), [""; 0]);
    }
}
