//! The classes nic, nic-plain, nic-nodes and zf: interfaces that Onload or TCPDirect accelerates.

use onload_core::class::Class;
use onload_core::select::LinkLayer;

use super::attributes::{Attribute, Attributes, count, int, text, version};
use super::device::{Health, HostDevice, LOOPBACK, RETURNING, STATE_HELD, build_devices};
use super::function_index::{FunctionIndex, link_layer};
use crate::discover::netdev::NetworkInterface;

pub(super) fn devices(class: Class, function_index: &FunctionIndex<'_>) -> Vec<HostDevice> {
    let inventory = function_index.inventory;
    let is_zf = class == Class::Zf;
    let nodes = if is_zf {
        inventory.tcpdirect.as_ref().map(|tcpdirect| &tcpdirect.nodes)
    } else {
        inventory.usable_onload().map(|onload| &onload.nodes)
    };
    let Some(nodes) = nodes else {
        return Vec::new();
    };
    let mut nic_devices = build_devices(&inventory.nics, |nic| {
        if is_zf && !nic.datapath.has_tcpdirect() {
            return None;
        }
        let interface = function_index.interface(&nic.name);
        let device = HostDevice {
            interfaces: vec![nic.name.clone()],
            link_layers: interface.map(link_layer).into_iter().collect(),
            nodes: nodes.clone(),
            health: Health::from_trouble(link_trouble(nic.state.as_deref())),
            ..HostDevice::new(class, &nic.device)?
        };
        Some(function_index.place_device(device, nic.pci_address))
    });
    if !is_zf {
        let loopback = HostDevice::new(class, LOOPBACK);
        nic_devices.extend(loopback.map(|device| HostDevice { nodes: nodes.clone(), ..device }));
    }
    nic_devices
}

pub(super) fn attributes(device: &HostDevice, function_index: &FunctionIndex<'_>) -> Attributes {
    let nic = device.read.and_then(|index| function_index.inventory.nics.get(index));
    let name = nic.map_or(device.name.as_str(), |nic| nic.name.as_str());
    let interface = function_index.interface(name).filter(|_| !device.is_loopback());
    let onload =
        function_index.inventory.onload.as_ref().and_then(|onload| onload.version.as_deref());
    let functions = nic.map_or(0, |nic| nic.virtual_functions.len());
    let speed = interface.and_then(|interface| interface.speed_mbps);
    let state = interface.and_then(|interface| interface.operstate.as_deref());
    let driver = interface.and_then(NetworkInterface::driver);
    let layer = interface.map(|interface| match link_layer(interface) {
        // The spelling of the RDMA stack.
        LinkLayer::InfiniBand => "InfiniBand",
        LinkLayer::Ethernet => "Ethernet",
    });
    let datapath = nic.map(|nic| nic.datapath.to_string());
    let mut attributes = function_index.attributes(interface.and_then(NetworkInterface::pci));
    attributes.extend([
        ("name", text(Some(name))),
        ("interface", text(interface.map(|interface| interface.name.as_str()))),
        ("driver", text(driver)),
        ("datapath", text(datapath.as_deref())),
        ("accelerated", Attribute::Bool(nic.is_some())),
        ("linkMbps", int(speed)),
        ("linkState", text(state)),
        ("linkLayer", text(layer)),
        ("virtualFunctions", count(functions)),
        ("onloadVersion", version(onload)),
        ("onload", text(onload)),
    ]);
    attributes
}

/// Returns why the link cannot send, by `operstate` (RFC 2863, `Documentation/networking/operstates.rst`). Many drivers
/// always report `unknown`, which counts as up.
fn link_trouble(state: Option<&str>) -> Option<String> {
    let advice = match state? {
        "down" => "set the interface up, or check its cable and the port at the other end",
        "lowerlayerdown" => "set its lower interface up",
        "notpresent" => "check the kernel log for messages of its driver",
        "dormant" => "check the program that authenticates it (802.1X)",
        STATE_HELD | RETURNING => {
            return Some(
                "it is in a container's network; wait until the container ends".to_owned(),
            );
        }
        _ => return None,
    };
    let state = state?;
    Some(format!("its link is down (operstate {state}); {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_is_down_is_trouble_with_its_remedy() {
        for state in ["down", "lowerlayerdown", "notpresent", "dormant"] {
            let message = link_trouble(Some(state)).unwrap();
            let begins = format!("its link is down (operstate {state}); ");
            assert!(message.starts_with(&begins), "{message}");
        }
        let held = link_trouble(Some(STATE_HELD)).unwrap();
        assert!(held.starts_with("it is in a container"), "{held}");
        for state in [None, Some("up"), Some("unknown"), Some("testing")] {
            assert_eq!(link_trouble(state), None, "{state:?}");
        }
    }
}
