//! GPUs, and distances of PCI functions in the PCIe tree. Pure.

use std::collections::BTreeSet;

use onload_sys::error::shown_as_serialized;
use onload_sys::pci::PciAddress;
use serde::Serialize;

use super::pci::{PciFunction, PciFunctions, PciId};

const AMD_GPU: u16 = 0x1002;
const AMD_CPU: u16 = 0x1022;
const NVIDIA: u16 = 0x10de;
const INTEL: u16 = 0x8086;

/// Vendors of the bridges that QEMU and VMware emulate.
const EMULATED: [u16; 2] = [0x1b36, 0x15ad];
/// QEMU's i82801b11-bridge, below which Proxmox and libvirt put virtio's devices on q35. A real one has no GPU near it.
const EMULATED_ICH: PciId = PciId { vendor: INTEL, device: 0x244e };

/// The classes of `nvidia-smi topo -m`, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Distance {
    Pix,
    Pxb,
    Phb,
    Node,
    Sys,
}

shown_as_serialized!(Distance);

/// The GPUs of a host, by address.
pub fn gpus(functions: &PciFunctions) -> impl Iterator<Item = (&PciFunction, &'static str)> {
    functions.iter().filter_map(|function| Some((function, vendor(function, functions)?)))
}

/// Returns the vendor of a GPU. `None` for other functions, virtual functions, and graphics of a CPU or BMC.
pub fn vendor(function: &PciFunction, functions: &PciFunctions) -> Option<&'static str> {
    let is_display = function.class >> 16 == 0x03;
    let is_accelerator = function.class >> 16 == 0x12;
    if function.physical_function.is_some() {
        return None;
    }
    match function.id.vendor {
        NVIDIA if is_display || is_accelerator => Some("NVIDIA"),
        AMD_GPU if is_display || is_accelerator => {
            (!is_on_amd_cpu(function, functions)).then_some("AMD")
        }
        // A CPU's graphics is on the root bus.
        INTEL if is_display => (!functions.bridges(function.address).is_empty()).then_some("Intel"),
        _ => None,
    }
}

/// Returns whether this is the graphics of an AMD CPU, whose PCI device has other functions of the CPU too, such as the
/// security processor.
fn is_on_amd_cpu(gpu: &PciFunction, functions: &PciFunctions) -> bool {
    let mut functions = functions.iter();
    functions.any(|other| {
        other.id.vendor == AMD_CPU && device_address(other.address) == device_address(gpu.address)
    })
}

/// Returns an address without the function number.
fn device_address(address: PciAddress) -> String {
    let mut text = address.to_string();
    text.truncate(text.len() - 2);
    text
}

/// Returns the bridges above each of two functions that are not above the other one.
pub fn bridges_between(
    functions: &PciFunctions,
    one: PciAddress,
    other: PciAddress,
) -> [&[PciAddress]; 2] {
    let (above, above_other) = (functions.bridges(one), functions.bridges(other));
    let common = above.iter().zip(above_other).take_while(|(one, other)| one == other).count();
    [&above[common..], &above_other[common..]]
}

/// Returns the distance of two functions, or `None` if sysfs does not show it.
pub fn distance(functions: &PciFunctions, one: PciAddress, other: PciAddress) -> Option<Distance> {
    let [own, own_other] = bridges_between(functions, one, other);
    if own.len() < functions.bridges(one).len() {
        // A switch consists of two bridges, of which the upper one is shared, so one further bridge is still the same
        // switch.
        let own = own.len().max(own_other.len());
        return Some(if own <= 1 { Distance::Pix } else { Distance::Pxb });
    }
    let root = functions.root(one);
    if root.is_some() && root == functions.root(other) {
        return Some(Distance::Phb);
    }
    let is_same = functions.nearest_node(one)? == functions.nearest_node(other)?;
    Some(if is_same { Distance::Node } else { Distance::Sys })
}

/// Returns why the tree does not show the distances of these functions.
pub fn find_obstacle(functions: &PciFunctions, compared: &[PciAddress]) -> Option<&'static str> {
    let roots: BTreeSet<_> = compared.iter().map(|address| functions.root(*address)).collect();
    let is_flat = compared.iter().flat_map(|address| functions.bridges(*address)).all(|bridge| {
        functions.get(*bridge).is_some_and(|function| {
            EMULATED.contains(&function.id.vendor) || function.id == EMULATED_ICH
        })
    });
    (roots.len() == 1 && is_flat).then_some("the hypervisor shows one flat PCI bus")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::probe::Probe;
    use crate::discover::test_tree::{AsHost, Tree};
    use onload_test_tree::Pci;

    fn address(text: &str) -> PciAddress {
        text.parse().unwrap()
    }

    fn read(tree: &Tree) -> PciFunctions {
        PciFunctions::read(&Probe::new(&tree.host()))
    }

    fn put(tree: &Tree, above: &str, address: &str, (class, id): (&str, &str), numa_node: i32) {
        let function = Pci { class, numa_node, ..Pci::network(address, id, "") };
        tree.pci_below(above, function);
    }

    const H100: (&str, &str) = ("0x030200", "10de:2330");
    const NIC: (&str, &str) = ("0x020700", "15b3:1021");
    const BRIDGE: (&str, &str) = ("0x060400", "1000:c030");

    #[test]
    fn accelerators_and_graphics_cards_are_gpus_of_their_vendors() {
        let tree = Tree::new();
        for (address, id, expected) in [
            ("0000:1b:00.0", H100, Some("NVIDIA")),
            ("0000:1c:00.0", ("0x120000", "1002:74a1"), Some("AMD")),
            ("0000:1d:00.0", ("0x038000", "8086:0bd5"), Some("Intel")),
            // An NVSwitch, the sound of a card, a BMC, a network processor and the NPU of a CPU.
            ("0000:1e:00.0", ("0x068000", "10de:22a3"), None),
            ("0000:1b:00.1", ("0x040300", "10de:22ba"), None),
            ("0000:1f:00.0", ("0x030000", "1a03:2000"), None),
            ("0000:20:00.0", ("0x120000", "1234:0001"), None),
            ("0000:21:00.0", ("0x120000", "8086:7d1d"), None),
        ] {
            put(&tree, "pci0000:10/0000:10:01.0", address, id, 0);
            let functions = read(&tree);
            let function = functions.get(self::address(address)).unwrap();
            assert_eq!(vendor(function, &functions), expected, "{address}");
        }
    }

    #[test]
    fn graphics_of_a_cpu_and_virtual_functions_are_no_gpus() {
        let tree = Tree::new();
        let display = |id| ("0x030000", id);
        put(&tree, "pci0000:00", "0000:00:02.0", display("8086:4680"), 0);
        let behind = "pci0000:00/0000:00:08.1";
        put(&tree, behind, "0000:c3:00.0", display("1002:15bf"), 0);
        put(&tree, behind, "0000:c3:00.2", ("0x108000", "1022:15c7"), 0);
        put(&tree, "pci0000:10/0000:10:01.0", "0000:1b:00.0", H100, 0);
        put(&tree, "pci0000:10/0000:10:01.0", "0000:1b:00.4", H100, 0);
        let directory = |at: &str| format!("/sys/devices/pci0000:10/0000:10:01.0/0000:1b:00.{at}");
        tree.virtual_function(&directory("0"), 0, &directory("4"));
        let functions = read(&tree);
        let gpus: Vec<_> = functions
            .iter()
            .filter(|function| vendor(function, &functions).is_some())
            .map(|function| function.address)
            .collect();
        assert_eq!(gpus, [address("0000:1b:00.0")]);
    }

    #[test]
    fn distance_is_counted_in_the_bridges_that_are_not_common() {
        let tree = Tree::new();
        let switch = "pci0000:10/0000:10:01.0/0000:11:00.0";
        put(&tree, &format!("{switch}/0000:12:00.0"), "0000:13:00.0", H100, 0);
        put(&tree, &format!("{switch}/0000:12:01.0"), "0000:14:00.0", NIC, 0);
        let second = format!("{switch}/0000:12:02.0/0000:15:00.0/0000:16:00.0");
        put(&tree, &second, "0000:17:00.0", NIC, 0);
        put(&tree, "pci0000:10/0000:10:02.0", "0000:18:00.0", NIC, 0);
        put(&tree, "pci0000:20/0000:20:01.0", "0000:21:00.0", NIC, 0);
        put(&tree, "pci0000:80/0000:80:01.0", "0000:81:00.0", NIC, 1);
        put(&tree, "pci0000:90/0000:90:01.0", "0000:91:00.0", NIC, -1);
        let functions = read(&tree);
        let gpu = address("0000:13:00.0");
        for (nic, expected) in [
            ("0000:14:00.0", Some(Distance::Pix)),
            ("0000:17:00.0", Some(Distance::Pxb)),
            ("0000:18:00.0", Some(Distance::Phb)),
            ("0000:21:00.0", Some(Distance::Node)),
            ("0000:81:00.0", Some(Distance::Sys)),
            ("0000:91:00.0", None),
        ] {
            let nic = address(nic);
            assert_eq!(distance(&functions, gpu, nic), expected, "{nic}");
            assert_eq!(distance(&functions, nic, gpu), expected, "{nic}");
        }
    }

    /// Whether a host with a GPU and a NIC at these places says nothing, where the bridges above each are these.
    fn is_flat(gpu: &str, nic: &str, bridges: [&[&str]; 2]) -> bool {
        let tree = Tree::new();
        put(&tree, gpu, "0000:03:00.0", H100, -1);
        put(&tree, nic, "0000:04:00.0", NIC, -1);
        for (above, bridges) in [gpu, nic].into_iter().zip(bridges) {
            let mut path = above.split('/');
            let mut above = path.next().unwrap().to_owned();
            for (address, id) in path.zip(bridges) {
                put(&tree, &above, address, (BRIDGE.0, id), -1);
                above = format!("{above}/{address}");
            }
        }
        let both = ["0000:03:00.0", "0000:04:00.0"].map(address);
        find_obstacle(&read(&tree), &both).is_some()
    }

    #[test]
    fn one_root_without_real_bridges_says_nothing() {
        let (one, other) = ("pci0000:00/0000:00:01.0", "pci0000:00/0000:00:02.0");
        let (port, real): (&[&str], &[&str]) = (&["1b36:000c"], &["8086:352a"]);
        assert!(is_flat("pci0000:00", "pci0000:00", [&[], &[]]));
        assert!(is_flat(one, other, [port, port]));
        assert!(!is_flat(one, other, [real, real]));
        assert!(!is_flat(one, other, [port, real]));
        assert!(!is_flat("pci0000:10", "pci0000:20", [&[], &[]]));
    }

    #[test]
    fn one_root_with_emulated_bridges_below_each_other_says_nothing_either() {
        let (gpu, nic) = ("pci0000:00/0000:00:01.0", "pci0000:00/0000:00:1e.0/0000:01:01.0");
        let port: &[&str] = &["1b36:000c"];
        let is_flat = |above_nic: &[&str]| is_flat(gpu, nic, [port, above_nic]);
        // The root ports of Proxmox (pve-q35-4.0.cfg), and a PCIe-to-PCI bridge below a root port.
        assert!(is_flat(&["8086:244e", "1b36:0001"]));
        assert!(is_flat(&["1b36:000c", "1b36:000e"]));
        // A switch, which exists only if the devices below it are given (QEMU's x3130-upstream).
        assert!(!is_flat(&["1b36:000c", "104c:8232"]));
    }

    #[test]
    fn a_gpu_below_a_real_port_is_near_what_is_below_an_old_bridge() {
        let (gpu, nic) = ("pci0000:00/0000:00:03.0", "pci0000:00/0000:00:1e.0");
        assert!(!is_flat(gpu, nic, [&["8086:340a"], &["8086:244e"]]));
    }

    #[test]
    fn a_function_below_its_own_device_of_hyper_vs_bus_has_a_root_of_its_own() {
        let tree = Tree::new();
        let vmbus = "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00";
        let nics = [("0101:00:02.0", 0), ("0102:00:02.0", 1)];
        let functions =
            [("0001:00:00.0", H100, 0)].into_iter().chain(nics.map(|(at, node)| (at, NIC, node)));
        for (at, id, numa_node) in functions {
            let root = format!("{vmbus}/{at}-0000-3130-303237344131/pci{}", &at[..7]);
            put(&tree, &root, at, id, numa_node);
        }
        let functions = read(&tree);
        let (gpu, nics) = (address("0001:00:00.0"), nics.map(|(at, _)| address(at)));
        assert_eq!(find_obstacle(&functions, &[gpu, nics[0], nics[1]]), None);
        let distances = nics.map(|nic| distance(&functions, gpu, nic));
        assert_eq!(distances, [Some(Distance::Node), Some(Distance::Sys)]);
    }
}
