//! The PCI functions of a host, each read once (`Documentation/ABI/testing/sysfs-bus-pci`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use onload_sys::pci::PciAddress;
use onload_sys::text::parse_digits;

use crate::discover::pcie_link::{self, PcieLink};
use crate::discover::probe::Probe;

pub const DEVICES: &str = "/sys/bus/pci/devices";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciFunction {
    pub address: PciAddress,
    pub id: PciId,
    /// Class, subclass and programming interface, for instance 0x020000 for Ethernet.
    pub class: u32,
    pub driver: Option<String>,
    /// Its NUMA node; `None` if the kernel does not know it (-1).
    pub numa_node: Option<u32>,
    pub iommu_group: Option<u32>,
    pub physical_function: Option<PciAddress>,
    /// Its index among the virtual functions of its physical function.
    pub vf_index: Option<u32>,
    /// Its virtual functions, by index.
    pub virtual_functions: BTreeMap<u32, PciAddress>,
    ancestors: PciAncestors,
    entries: Vec<String>,
}

/// Vendor and device number of a PCI function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciId {
    pub vendor: u16,
    pub device: u16,
}

impl std::fmt::Display for PciId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:04x}:{:04x}", self.vendor, self.device)
    }
}

impl PciFunction {
    pub(crate) fn directory(&self) -> PathBuf {
        Path::new(DEVICES).join(self.address.to_string())
    }

    pub(crate) fn has_entry(&self, entry: &str) -> bool {
        self.entries.binary_search_by(|name| name.as_str().cmp(entry)).is_ok()
    }

    pub(crate) fn vf_addresses(&self) -> Vec<PciAddress> {
        self.virtual_functions.values().copied().collect()
    }

    /// A network controller of any kind (class 02).
    pub fn is_network(&self) -> bool {
        self.class >> 16 == 0x02
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PciFunctions {
    functions: BTreeMap<PciAddress, PciFunction>,
    links: BTreeMap<PciAddress, PcieLink>,
    /// The NUMA node of a host with a single one, if that was read.
    only_node: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PciAncestors {
    root: Option<String>,
    /// Whether the root is directly below /sys/devices.
    is_first: bool,
    /// Bridges, starting from the root.
    bridges: Vec<PciAddress>,
}

impl PciFunctions {
    pub(crate) fn read(probe: &Probe<'_>) -> Self {
        let names = probe.list(DEVICES);
        let addresses = names.iter().filter_map(|name| match name.parse::<PciAddress>() {
            Ok(address) => Some(address),
            Err(error) => {
                probe.warn(format!("listing {DEVICES}: {error}"));
                None
            }
        });
        let mut functions: BTreeMap<PciAddress, PciFunction> = addresses
            .filter_map(|address| Some((address, read_function(probe, address)?)))
            .collect();
        for parent in functions.clone().into_values() {
            for (index, child) in parent.virtual_functions {
                if let Some(child) = functions.get_mut(&child) {
                    child.vf_index = Some(index);
                    child.physical_function.get_or_insert(parent.address);
                }
            }
        }
        PciFunctions { functions, links: BTreeMap::new(), only_node: None }
    }

    /// Reads the maximum speed of the links of these functions and of the bridges above them.
    pub(crate) fn read_links(&mut self, probe: &Probe<'_>, addresses: &[PciAddress]) {
        let all: BTreeSet<PciAddress> = addresses
            .iter()
            .flat_map(|address| self.bridges(*address))
            .chain(addresses)
            .copied()
            .collect();
        let links = all.into_iter().filter_map(|address| {
            let directory = Path::new(DEVICES).join(address.to_string());
            let link = probe.ok_or_warn(pcie_link::read(probe.host(), &directory, "max"))?;
            Some((address, link))
        });
        self.links = links.collect();
    }

    /// Reads whether the host has a single NUMA node. If firmware assigns none to a root, the kernel reports -1 there
    /// too.
    pub(crate) fn read_only_node(&mut self, probe: &Probe<'_>) {
        let online = probe.attribute("/sys/devices/system/node/online");
        self.only_node = online.as_deref().and_then(parse_digits);
    }

    /// Returns the NUMA node nearest to a function.
    pub(crate) fn nearest_node(&self, address: PciAddress) -> Option<u32> {
        self.get(address)?.numa_node.or(self.only_node)
    }

    /// Returns the maximum speed of a function's or port's link, if it was read.
    pub(crate) fn link(&self, address: PciAddress) -> Option<PcieLink> {
        self.links.get(&address).copied()
    }

    /// Returns the root of a function's tree, for instance `pci0000:80`.
    pub fn root(&self, address: PciAddress) -> Option<&str> {
        self.get(address)?.ancestors.root.as_deref()
    }

    /// Returns the root for the attribute `resource.kubernetes.io/pcieRoot`
    /// (`k8s.io/dynamic-resource-allocation/deviceattribute`). `None` for a root below another device, for which other
    /// drivers set no attribute.
    pub fn pcie_root(&self, address: PciAddress) -> Option<&str> {
        let ancestors = &self.get(address)?.ancestors;
        ancestors.root.as_deref().filter(|_| ancestors.is_first)
    }

    /// Returns the bridges above a function, starting from the root.
    pub fn bridges(&self, address: PciAddress) -> &[PciAddress] {
        self.get(address).map_or(&[], |function| &function.ancestors.bridges)
    }

    pub fn get(&self, address: PciAddress) -> Option<&PciFunction> {
        self.functions.get(&address)
    }

    pub fn iter(&self) -> impl Iterator<Item = &PciFunction> {
        self.functions.values()
    }

    /// Returns the PCI function of a device in sysfs: the last PCI address in its path. The device may be directly
    /// below it, or behind virtio, the auxiliary bus or a subfunction.
    pub(crate) fn function_above(device: &Path) -> Option<PciAddress> {
        device.iter().rev().find_map(|name| name.to_str()?.parse().ok())
    }
}

fn read_function(probe: &Probe<'_>, address: PciAddress) -> Option<PciFunction> {
    let directory = Path::new(DEVICES).join(address.to_string());
    let entries = probe.list(&directory);
    let has = |name: &str| entries.binary_search_by(|entry| entry.as_str().cmp(name)).is_ok();
    let id16 = |name: &str| probe.hex(directory.join(name)).and_then(|id| u16::try_from(id).ok());
    let id = PciId { vendor: id16("vendor")?, device: id16("device")? };
    let link = |name: &str| has(name).then(|| probe.link_name(directory.join(name))).flatten();
    let virtual_functions = entries
        .iter()
        .filter_map(|name| name.strip_prefix("virtfn")?.parse::<u32>().ok())
        .filter_map(|index| {
            let target = probe.link_name(directory.join(format!("virtfn{index}")))?;
            Some((index, target.parse().ok()?))
        });
    let path = probe.with_classes(&[], || probe.resolve(&directory));
    Some(PciFunction {
        ancestors: path.as_deref().map(parse_ancestors).unwrap_or_default(),
        vf_index: None,
        address,
        id,
        class: probe.hex(directory.join("class")).unwrap_or(0),
        driver: link("driver"),
        numa_node: numa_node(probe, &directory),
        iommu_group: link("iommu_group").and_then(|group| group.parse().ok()),
        physical_function: link("physfn").and_then(|name| name.parse().ok()),
        virtual_functions: virtual_functions.collect(),
        entries: entries.into_iter().filter(|name| is_needed_entry(name)).collect(),
    })
}

/// Parses the ancestors from a function's path in sysfs: each PCI address in it except the last is a bridge.
fn parse_ancestors(directory: &Path) -> PciAncestors {
    let names = directory.iter().filter_map(|name| name.to_str());
    let mut bridges: Vec<PciAddress> = names.filter_map(|name| name.parse().ok()).collect();
    bridges.pop();
    let mut names = directory
        .strip_prefix("/sys/devices")
        .into_iter()
        .flatten()
        .filter_map(|name| name.to_str());
    // Below a platform device or a device of a hypervisor's bus, the root is further down.
    let position = names.clone().position(is_root);
    PciAncestors {
        root: names.find(|name| is_root(name)).map(str::to_owned),
        is_first: position == Some(0),
        bridges,
    }
}

/// Returns whether a name consists of `pci`, a domain and a bus.
fn is_root(name: &str) -> bool {
    name.strip_prefix("pci").is_some_and(|rest| rest.contains(':'))
}

fn numa_node(probe: &Probe<'_>, directory: &Path) -> Option<u32> {
    let node: i64 = probe.with_classes(&[], || probe.number(directory.join("numa_node")))?;
    u32::try_from(node).ok()
}

/// Returns whether discovery needs an entry of a function's directory: a host may have thousands of functions with
/// fifty entries each.
pub fn is_needed_entry(entry: &str) -> bool {
    ["net", "sfc_resource", "vfio-dev"].contains(&entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn above(path: &str) -> Option<String> {
        PciFunctions::function_above(Path::new(path)).map(|address| address.to_string())
    }

    #[test]
    fn a_device_belongs_to_the_nearest_function_above_it() {
        let direct = above("/sys/devices/pci0000:40/0000:40:00.0/0000:41:00.0/net/ens1");
        assert_eq!(direct.as_deref(), Some("0000:41:00.0"));
        let virtio = above("/sys/devices/pci0000:00/0000:00:03.0/virtio2/net/enp0s3");
        assert_eq!(virtio.as_deref(), Some("0000:00:03.0"));
        let subfunction = above("/sys/devices/pci0000:00/0000:00:02.0/0000:3b:00.0/mlx5_core.sf.4");
        assert_eq!(subfunction.as_deref(), Some("0000:3b:00.0"));
        let wide = above("/sys/devices/pci10000:e0/10000:e0:01.0/10000:e1:00.0/infiniband/mlx5_0");
        assert_eq!(wide.as_deref(), Some("10000:e1:00.0"));
    }

    #[test]
    fn a_device_without_a_function_belongs_to_none() {
        assert_eq!(above("/sys/devices/virtual/infiniband/rxe0"), None);
        assert_eq!(above("/sys/devices/platform/0000:xx"), None);
    }

    #[test]
    fn the_root_of_a_function_is_the_first_of_its_path_wherever_that_is() {
        let vmbus = "/sys/devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/56475055-0002-0000-3130-303237344131";
        let hyper_v = format!("{vmbus}/pci0002:00/0002:00:00.0");
        for (path, expected) in [
            ("/sys/devices/pci0000:80/0000:80:01.0/0000:81:10.0", "pci0000:80"),
            ("/sys/devices/pci10000:e0/10000:e0:01.0/10000:e1:00.0", "pci10000:e0"),
            ("/sys/devices/pci0000:64/0000:64:00.5/pci10000:e0/10000:e0:01.0", "pci0000:64"),
        ] {
            let above = parse_ancestors(Path::new(path));
            assert_eq!(above.root.as_deref(), Some(expected), "{path}");
            assert!(above.is_first, "{path}");
        }
        for (path, expected) in [
            (hyper_v.as_str(), "pci0002:00"),
            ("/sys/devices/platform/40000000.pcie/pci0000:00/0000:00:01.0", "pci0000:00"),
        ] {
            let above = parse_ancestors(Path::new(path));
            assert_eq!(above.root.as_deref(), Some(expected), "{path}");
            assert!(!above.is_first, "{path}");
        }
        for path in ["/sys/bus/pci/devices/0000:81:10.0", "/sys/devices", "/"] {
            assert_eq!(parse_ancestors(Path::new(path)).root, None, "{path}");
        }
    }

    #[test]
    fn the_bridges_of_a_function_are_the_addresses_before_its_own() {
        let bridges = |path: &str| -> Vec<String> {
            let bridges = parse_ancestors(Path::new(path)).bridges;
            bridges.iter().map(PciAddress::to_string).collect()
        };
        let path = "/sys/devices/pci0000:64/0000:64:00.5/pci10000:e0/10000:e0:01.0/10000:e1:00.0";
        assert_eq!(bridges(path), ["0000:64:00.5", "10000:e0:01.0"]);
        assert!(bridges("/sys/devices/pci0000:00/0000:00:03.0").is_empty());
        assert!(bridges("/sys/devices/pci0000:00").is_empty());
    }
}
