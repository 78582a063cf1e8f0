//! The class rdma.

use onload_core::class::Class;

use super::attributes::{count, int, text, version};
use super::found::Found;
use super::offer::Attributes;
use super::places::Places;
use crate::discover::rdma::{RdmaDevice, RdmaPort};

pub(super) fn found(places: &Places<'_>) -> Vec<Found> {
    let devices = places.inventory.rdma.iter();
    let found = devices.map(|device| Found {
        names: vec![device.device.clone()],
        aliases: Vec::new(),
        pci: device.pci_address,
        numa_node: device.numa_node,
        attributes: attributes(&device.name, Some(device), places),
        trouble: trouble(&device.ports),
    });
    found.collect()
}

pub(super) fn gone(name: &str, places: &Places<'_>) -> Found {
    Found {
        names: vec![name.to_owned()],
        attributes: attributes(name, None, places),
        ..Found::default()
    }
}

fn attributes(name: &str, device: Option<&RdmaDevice>, places: &Places<'_>) -> Attributes {
    let port = device.and_then(|device| first_active(&device.ports));
    let netdevs = device.map(|device| device.netdevs.as_slice());
    let interface = netdevs.and_then(<[String]>::first);
    let joined = netdevs.unwrap_or_default().join(",");
    let firmware = device.and_then(|device| device.firmware.as_deref());
    let rate = port.and_then(|port| port.rate.as_deref());
    let mut attributes = places.attributes(device.and_then(|device| device.pci_address));
    attributes.extend([
        ("kind", text(Some(Class::Rdma.as_str()))),
        ("name", text(Some(name))),
        ("interface", text(interface.map(String::as_str))),
        ("netdevs", text(Some(&joined))),
        (
            "linkLayer",
            text(port.and_then(|port| port.link_layer.as_deref())),
        ),
        ("linkMbps", int(rate.and_then(mbps))),
        (
            "linkState",
            text(port.and_then(|port| port.state.as_deref())),
        ),
        (
            "ports",
            count(device.map_or(0, |device| device.ports.len())),
        ),
        (
            "transport",
            text(device.and_then(|device| device.transport)),
        ),
        (
            "nodeGuid",
            text(device.and_then(|device| device.node_guid.as_deref())),
        ),
        ("firmwareVersion", version(firmware)),
        ("firmware", text(firmware)),
    ]);
    attributes
}

/// The first port that can be used, or else the first.
fn first_active(ports: &[RdmaPort]) -> Option<&RdmaPort> {
    let active = ports.iter().find(|port| is_active(port));
    active.or(ports.first())
}

/// `ACTIVE`, or `ACTIVE_DEFER` (`enum ib_port_state`, include/rdma/ib_verbs.h).
fn is_active(port: &RdmaPort) -> bool {
    let state = port.state.as_deref();
    state.is_some_and(|state| state.starts_with("ACTIVE"))
}

/// Why nothing can be sent: each port says that it is not active.
fn trouble(ports: &[RdmaPort]) -> Option<String> {
    let states: Option<Vec<String>> = ports
        .iter()
        .map(|port| Some(format!("port {} is {}", port.port, port.state.as_deref()?)))
        .collect();
    let states = states.filter(|states| !states.is_empty())?;
    if ports.iter().any(is_active) {
        return None;
    }
    Some(format!(
        "none of its ports is active: {}; bring its link up, on InfiniBand with a subnet manager",
        states.join(", ")
    ))
}

/// A rate such as `2.5 Gb/sec (1X SDR)` in Mbit/s (`drivers/infiniband/core/sysfs.c`, `rate_show`).
fn mbps(rate: &str) -> Option<u64> {
    let (number, unit) = rate.split_once(' ')?;
    let (whole, tenth) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !unit.starts_with("Gb/sec") || !digits(whole) || !digits(tenth) || tenth.len() != 1 {
        return None;
    }
    let (whole, tenth): (u64, u64) = (whole.parse().ok()?, tenth.parse().ok()?);
    whole.checked_mul(1000)?.checked_add(tenth * 100)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            trouble(&ports).as_deref(),
            Some(
                "none of its ports is active: port 1 is DOWN, port 2 is INIT; bring its link up, on InfiniBand with a subnet manager"
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
            assert_eq!(trouble(&ports), None, "{ports:?}");
        }
    }

    #[test]
    fn a_rate_is_read_in_megabits() {
        assert_eq!(mbps("100 Gb/sec (4X EDR)"), Some(100_000));
        assert_eq!(mbps("2.5 Gb/sec (1X SDR)"), Some(2_500));
        for bad in [
            "",
            "100",
            "x Gb/sec",
            "-1 Gb/sec",
            "1.25 Gb/sec",
            "1. Gb/sec",
            "5 Mb/sec",
        ] {
            assert_eq!(mbps(bad), None, "{bad}");
        }
        assert_eq!(mbps("18446744073709551615 Gb/sec"), None);
    }
}
