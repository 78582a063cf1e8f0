//! PTP hardware clocks and PPS sources, and the NIC that each belongs to
//! (`Documentation/ABI/testing/sysfs-ptp`, `sysfs-pps`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

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

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clocks {
    pub ptp: Vec<Clock>,
    pub pps: Vec<Clock>,
}

pub(crate) fn read(
    probe: &Probe<'_>,
    functions: &PciFunctions,
    interfaces: &[NetworkInterface],
) -> Clocks {
    let nics = group_without_representors(interfaces);
    let ptp = read_class(probe, Class::Ptp, "clock_name");
    let mut pps = read_class(probe, Class::Pps, "name");
    for source in &mut pps {
        if source.pci.is_none() {
            // The PPS source of a PTP clock is named after the clock, and has no parent that
            // identifies it (drivers/ptp/ptp_clock.c, `ptp_clock_register`).
            let clock = ptp.iter().find(|clock| source.clock_name.as_ref() == Some(&clock.name));
            source.pci = clock.and_then(|clock| clock.pci);
        }
    }
    let offer = |class, sources: Vec<ClockSource>| {
        let offered = sources.into_iter().filter_map(|source| {
            let (name, pci) = (source.name.clone(), source.pci);
            let clock = source.into_clock(probe, functions, &nics);
            clock
                .map_err(|reason| probe.exclude(Exclusion::new(class, name, reason).with_pci(pci)))
                .ok()
        });
        offered.collect()
    };
    Clocks { ptp: offer(Class::Ptp, ptp), pps: offer(Class::Pps, pps) }
}

struct ClockSource {
    name: String,
    directory: PathBuf,
    pci: Option<PciAddress>,
    clock_name: Option<String>,
}

impl ClockSource {
    fn into_clock(
        self,
        probe: &Probe<'_>,
        functions: &PciFunctions,
        nics: &BTreeMap<PciAddress, Vec<&NetworkInterface>>,
    ) -> Result<Clock, String> {
        let node = NumberedNode::find(probe, format!("/dev/{}", self.name), &self.directory)?;
        let function = self.pci.and_then(|pci| functions.get(pci));
        let nic = self.pci.and_then(|pci| nics.get(&pci)?.first());
        Ok(Clock {
            name: self.name,
            clock_name: self.clock_name,
            nic: nic.map(|nic| nic.name.clone()),
            pci_address: self.pci,
            numa_node: function.and_then(|function| function.numa_node),
            node,
        })
    }
}

/// Returns the devices of a class, by number.
fn read_class(probe: &Probe<'_>, class: Class, clock_name: &str) -> Vec<ClockSource> {
    let class_name = class.as_str();
    let class_dir = Path::new("/sys/class").join(class_name);
    let mut sources: BTreeMap<u32, ClockSource> = BTreeMap::new();
    for name in probe.list(&class_dir) {
        let Some(number) = parse_number(class_name, &name) else {
            continue;
        };
        let link = class_dir.join(&name);
        let Some(directory) = probe.resolve(&link) else {
            probe.exclude(Exclusion::new(class, name, probe.dangling_reason(&link)));
            continue;
        };
        let pci = PciFunctions::function_above(&directory).or_else(|| {
            let device = probe.resolve(directory.join("device"))?;
            PciFunctions::function_above(&device)
        });
        let clock_name = probe.attribute(directory.join(clock_name));
        sources.insert(number, ClockSource { name, directory, pci, clock_name });
    }
    sources.into_values().collect()
}

fn parse_number(class: &str, name: &str) -> Option<u32> {
    parse_digits(name.strip_prefix(class)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::test_tree::{AsHost, Discovered, Tree, discover};
    use crate::host::Host;

    fn discover_tree(host: &Host) -> (Clocks, Discovered<()>) {
        let mut clocks = Clocks::default();
        let found = discover(host, |probe, functions, interfaces| {
            clocks = read(probe, functions, interfaces);
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
        assert_eq!(parse_number("ptp", "ptp12"), Some(12));
        for name in ["ptp", "ptp+1", "ptp1a", "pps0", "xptp0", "ptp4294967296"] {
            assert_eq!(parse_number("ptp", name), None, "{name}");
        }
    }
}
