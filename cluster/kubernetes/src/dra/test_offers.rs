//! Offers for the tests of this directory.

use onload_cdi::DeviceName;
use onload_core::class::Class;
use onload_host::offers::{Attributes, Health, Offer, Sharing};

pub(crate) fn offer(class: Class, name: &str) -> Offer {
    Offer {
        class,
        name: DeviceName::try_from(name).unwrap(),
        cdi: vec![format!("{}={name}", class.kind())],
        pools: Vec::new(),
        pci: None,
        pcie_root: None,
        numa_node: None,
        attributes: Attributes::new(),
        sharing: Sharing::Shared,
        slots: None,
        health: Health::Healthy,
        holder: None,
        leases: Vec::new(),
    }
}
