//! The class rdma.

use std::collections::BTreeMap;

use onload_core::class::Class;
use onload_sys::pci::PciAddress;
use onload_sys::text::parse_digits;

use super::attributes::{Attributes, count, int, text, version};
use super::device::{Health, HostDevice, build_devices};
use super::function_index::FunctionIndex;
use crate::discover::rdma::{RdmaDevice, RdmaPort, describe_inactive_ports};

pub(super) fn devices(function_index: &FunctionIndex<'_>) -> Vec<HostDevice> {
    build_devices(&function_index.inventory.rdma, |device| {
        let layers = device.ports.iter().filter_map(|port| port.link_layer.as_ref()?.parse().ok());
        let host_device = HostDevice {
            interfaces: device.netdevs.clone(),
            link_layers: layers.collect(),
            nodes: device.nodes.clone(),
            health: Health::from_trouble(device.trouble.clone().or_else(|| device.port_trouble())),
            ..HostDevice::new(Class::Rdma, &device.device)?
        };
        Some(function_index.place_device(host_device, device.pci_address))
    })
}

pub(super) fn attributes(device: &HostDevice, function_index: &FunctionIndex<'_>) -> Attributes {
    let read = device.read.and_then(|index| function_index.inventory.rdma.get(index));
    let name = read.map_or(device.name.as_str(), |read| read.name.as_str());
    let port = read.and_then(|read| first_active(&read.ports));
    let netdevs = read.map_or(&[][..], |read| read.netdevs.as_slice());
    let firmware = read.and_then(|read| read.firmware.as_deref());
    let rate = port.and_then(|port| port.rate.as_deref());
    let mut attributes = function_index.attributes(device.pci);
    attributes.extend([
        ("name", text(Some(name))),
        ("interface", text(netdevs.first().map(String::as_str))),
        ("netdevs", text(Some(&netdevs.join(",")))),
        ("linkLayer", text(port.and_then(|port| port.link_layer.as_deref()))),
        ("linkMbps", int(rate.and_then(parse_mbps))),
        ("linkState", text(port.and_then(|port| port.state.as_deref()))),
        ("ports", count(read.map_or(0, |read| read.ports.len()))),
        ("transport", text(read.and_then(|read| read.transport))),
        ("nodeGuid", text(read.and_then(|read| read.node_guid.as_deref()))),
        ("firmwareVersion", version(firmware)),
        ("firmware", text(firmware)),
    ]);
    attributes
}

/// Returns the first active port, or else the first port.
fn first_active(ports: &[RdmaPort]) -> Option<&RdmaPort> {
    ports.iter().find(|port| port.is_active()).or(ports.first())
}

/// Returns the device that represents each PCI function. A subfunction's device belongs to its tenant and never
/// represents the NIC, even if the NIC's own device is of little use to programs, as in switchdev mode.
pub(super) fn by_function<'d>(
    devices: impl Iterator<Item = &'d RdmaDevice>,
) -> BTreeMap<PciAddress, &'d RdmaDevice> {
    let mut devices: Vec<&RdmaDevice> = devices.filter(|one| !one.is_subfunction).collect();
    devices.sort_by_cached_key(|one| {
        let is_away = one.nodes.is_empty();
        (is_away, describe_inactive_ports(&one.ports).is_some(), sort_key(&one.name))
    });
    let mut devices_by_function = BTreeMap::new();
    for device in devices {
        let address = device.pci_address;
        address.map(|address| *devices_by_function.entry(address).or_insert(device));
    }
    devices_by_function
}

/// Returns a sort key that puts `mlx5_2` before `mlx5_10`.
fn sort_key(name: &str) -> (String, Option<u32>) {
    let letters = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (letters.to_owned(), parse_digits(&name[letters.len()..]))
}

/// Returns the rate of its fastest usable port in Mbit/s.
pub(super) fn max_rate(device: &RdmaDevice) -> Option<u64> {
    device
        .ports
        .iter()
        .filter(|port| port.is_active())
        .filter_map(|port| parse_mbps(port.rate.as_deref()?))
        .max()
}

/// Converts a rate such as `2.5 Gb/sec (1X SDR)` to Mbit/s (`drivers/infiniband/core/sysfs.c`, `rate_show`).
fn parse_mbps(rate: &str) -> Option<u64> {
    let (number, unit) = rate.split_once(' ')?;
    let (whole, tenth) = number.split_once('.').unwrap_or((number, "0"));
    if !unit.starts_with("Gb/sec") || tenth.len() != 1 {
        return None;
    }
    let (whole, tenth): (u64, u64) = (parse_digits(whole)?, parse_digits(tenth)?);
    whole.checked_mul(1000)?.checked_add(tenth * 100)
}

#[cfg(test)]
mod tests {
    use onload_core::config::Config;

    use super::*;
    use crate::discover::test_tree::{AsHost, Tree};
    use crate::pools::discover_with_pools;

    /// Whether a RoCE device on a physical function and one on its virtual one are healthy, whose ports are down. The
    /// interface of either has these flags; without them it is in another network namespace.
    fn health(physical: Option<&str>, part: Option<&str>) -> [bool; 2] {
        let tree = Tree::new();
        tree.file("/sys/module/ib_core/parameters/netns_mode", "Y\n");
        let functions = ["0000:3b:00.0", "0000:3b:00.2"];
        let [parent, child] = functions.map(|address| tree.function(address, "0x020000", 0));
        tree.virtual_function(&parent, 0, &child);
        for (at, function, flags) in [(0, &parent, physical), (2, &child, part)] {
            let device = tree.rdma(function, &format!("mlx5_{at}"), at);
            tree.file(&format!("{device}/ports/1/state"), "1: DOWN");
            if let Some(flags) = flags {
                let interface = tree.interface(function, &format!("ens{at}"));
                tree.attributes(&interface, &[("flags", flags), ("operstate", "down")]);
            }
        }
        let (inventory, _) = discover_with_pools(&tree.host(), &Config::default());
        let devices = inventory.devices_of_class(Class::Rdma);
        let healthy: Vec<bool> = devices.map(|one| one.health == Health::Healthy).collect();
        healthy.try_into().unwrap()
    }

    #[test]
    fn a_virtual_function_whose_interface_waits_for_its_container_is_healthy() {
        const UP: Option<&str> = Some("0x1003");
        const SET_DOWN: Option<&str> = Some("0x1002");
        assert_eq!(health(UP, SET_DOWN), [false, true]);
        assert_eq!(health(SET_DOWN, None), [false, true]);
        assert_eq!(health(None, UP), [false, false]);
        // Where the kernel says nothing of the interface, its port counts.
        assert_eq!(health(UP, Some("?")), [false, false]);
    }

    fn port(number: u32, state: Option<&str>) -> RdmaPort {
        RdmaPort {
            port: number,
            state: state.map(str::to_owned),
            link_layer: None,
            rate: None,
            netdevs: Vec::new(),
        }
    }

    #[test]
    fn a_device_without_an_active_port_says_so_of_each() {
        let ports = [port(1, Some("DOWN")), port(2, Some("INIT"))];
        assert_eq!(
            describe_inactive_ports(&ports).as_deref(),
            Some(
                "none of its ports is active: port 1 is DOWN, port 2 is INIT; bring its link up \
                 (InfiniBand needs a subnet manager)"
            )
        );
    }

    #[test]
    fn one_active_port_is_enough_and_an_unknown_one_may_be() {
        for ports in [
            vec![port(1, Some("DOWN")), port(2, Some("ACTIVE"))],
            vec![port(1, Some("ACTIVE_DEFER"))],
            vec![port(1, Some("DOWN")), port(2, None)],
            vec![],
        ] {
            assert_eq!(describe_inactive_ports(&ports), None, "{ports:?}");
        }
    }

    #[test]
    fn a_rate_is_read_in_megabits() {
        assert_eq!(parse_mbps("100 Gb/sec (4X EDR)"), Some(100_000));
        assert_eq!(parse_mbps("2.5 Gb/sec (1X SDR)"), Some(2_500));
        for bad in ["", "100", "x Gb/sec", "-1 Gb/sec", "1.25 Gb/sec", "1. Gb/sec", "5 Mb/sec"] {
            assert_eq!(parse_mbps(bad), None, "{bad}");
        }
        assert_eq!(parse_mbps("18446744073709551615 Gb/sec"), None);
    }
}
