//! The family that a class is of.

use onload_core::class::Class;

use super::device::Device;
use super::places::Places;
use super::{clock, hugepages, netdev, nic, profile, rdma, vfio};

/// The devices that a host offers of a class. A bundle is none: its devices are.
pub(super) fn devices(class: Class, places: &Places<'_>) -> Vec<Device> {
    match class {
        Class::Nic | Class::NicPlain | Class::NicNodes | Class::Zf => nic::devices(class, places),
        Class::Profile => profile::devices(places),
        Class::Rdma => rdma::devices(places),
        Class::Vfio => vfio::devices(places),
        Class::Hugepages => hugepages::devices(places),
        Class::Netdev => netdev::devices(places),
        Class::Ptp | Class::Pps => clock::devices(class, places),
        Class::Bundle => Vec::new(),
    }
}

/// A device that a specification has and the host does not offer: with what can be told by its name.
pub(crate) fn gone(class: Class, name: &str, places: &Places<'_>) -> Option<Device> {
    match class {
        Class::Nic | Class::NicPlain | Class::NicNodes | Class::Zf => {
            nic::gone(class, name, places)
        }
        Class::Profile => profile::gone(name, places),
        Class::Rdma => rdma::gone(name, places),
        Class::Vfio => vfio::gone(name, places),
        Class::Hugepages => hugepages::gone(name),
        Class::Netdev => netdev::gone(name, places),
        Class::Ptp | Class::Pps => clock::gone(class, name, places),
        Class::Bundle => None,
    }
}
