//! The network interfaces of a host, each looked at once
//! (`Documentation/ABI/testing/sysfs-class-net`).

use std::path::Path;

use onload_core::pci::PciAddress;

use crate::discover::pci::PciFunctions;
use crate::discover::probe::Probe;

/// Where the kernel lists the interfaces.
const CLASS: &str = "/sys/class/net";

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetDevice {
    /// Its name.
    pub name: String,
    /// The PCI function below it.
    pub pci: Option<PciAddress>,
    /// The driver of the device below it; none for a virtual interface.
    pub driver: Option<String>,
    /// Which port of its function it is; the kernel counts from 0.
    pub port: Option<u32>,
    /// `operstate`: `up`, `down`, `unknown` and others (RFC 2863).
    pub state: Option<String>,
    /// Speed of the link in Mbit/s; none when it is not known.
    pub speed_mbps: Option<u64>,
    /// `address`: six bytes of Ethernet, twenty of IP over InfiniBand.
    pub address: Option<String>,
}

/// Looks at every interface, sorted by name.
#[must_use]
pub fn read(probe: &Probe<'_>) -> Vec<NetDevice> {
    let names = probe.list(CLASS).into_iter();
    // `bonding_masters` is a file of the bonding driver in the middle of the interfaces.
    names
        .filter(|name| name != "bonding_masters")
        .map(|name| read_one(probe, name))
        .collect()
}

fn read_one(probe: &Probe<'_>, name: String) -> NetDevice {
    let directory = Path::new(CLASS).join(&name);
    let device = probe.resolve(directory.join("device"));
    let pci = device.as_deref().and_then(PciFunctions::above);
    let driver = device
        .as_ref()
        .and_then(|_| probe.link_name(directory.join("device/driver")));
    // mlx4 has two ports on one function; old kernels number them in dev_id, new ones in dev_port.
    let port = probe
        .number(directory.join("dev_port"))
        .filter(|port| *port > 0);
    let port = port.or_else(|| probe.hex(directory.join("dev_id")));
    // These are shown, and decide nothing.
    probe.deciding(&[], || NetDevice {
        pci,
        driver,
        port,
        state: probe.attribute(directory.join("operstate")),
        speed_mbps: probe
            .number::<i64>(directory.join("speed"))
            .and_then(known_speed),
        address: probe.attribute(directory.join("address")),
        name,
    })
}

/// A speed that is not known is -1, which some drivers pass on as an unsigned number.
fn known_speed(speed: i64) -> Option<u64> {
    u64::try_from(speed)
        .ok()
        .filter(|speed| *speed > 0 && *speed < u64::from(u32::MAX))
}

/// What every text has to give.
#[cfg(fuzzing)]
pub(super) fn fuzz(text: &str) {
    let speed = text.parse().ok().and_then(known_speed);
    assert!(speed.is_none_or(|speed| speed > 0));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_that_is_not_known_is_none() {
        assert_eq!(known_speed(25_000), Some(25_000));
        assert_eq!(known_speed(-1), None);
        assert_eq!(known_speed(0), None);
        assert_eq!(known_speed(4_294_967_295), None);
    }
}
