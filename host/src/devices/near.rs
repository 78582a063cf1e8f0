//! The GPUs and NICs of a host, and which are near each other. Pure.

use std::collections::BTreeMap;

use onload_sys::pci::PciAddress;

use super::inventory::Inventory;
use crate::discover::gpu::{self, Distance};
use crate::discover::link::Link;
use crate::discover::pci::PciFunction;

pub struct Near<'i> {
    pub(super) inventory: &'i Inventory,
    /// By address, each with its vendor.
    pub gpus: Vec<(PciAddress, &'static str)>,
    /// By address.
    pub nics: Vec<Nic>,
    pub obstacle: Option<&'static str>,
}

pub struct Nic {
    pub address: PciAddress,
    pub name: String,
    pub is_rdma: bool,
}

impl<'i> Near<'i> {
    #[must_use]
    pub fn of(inventory: &'i Inventory) -> Near<'i> {
        let functions = &inventory.functions;
        let gpus = functions.iter().filter_map(|function| {
            let vendor = gpu::vendor(function, functions)?;
            Some((function.address, vendor))
        });
        let gpus: Vec<_> = gpus.collect();
        let nics = nics(inventory);
        let nic_addresses = nics.iter().map(|nic| nic.address);
        let compared: Vec<PciAddress> = gpus
            .iter()
            .map(|(address, _)| *address)
            .chain(nic_addresses)
            .collect();
        Near {
            inventory,
            obstacle: gpu::obstacle(functions, &compared).filter(|_| !gpus.is_empty()),
            gpus,
            nics,
        }
    }

    pub fn distance(&self, one: PciAddress, other: PciAddress) -> Option<Distance> {
        match self.obstacle {
            Some(_) => None,
            None => gpu::distance(&self.inventory.functions, one, other),
        }
    }

    /// Why a distance is unknown.
    #[must_use]
    pub fn why_unknown(&self) -> &'static str {
        let numa = "the kernel does not say the NUMA node of the GPU or of a NIC";
        self.obstacle.unwrap_or(numa)
    }

    /// The least that a part of the way between two functions carries, in Mbit/s; none where no link says it.
    pub(super) fn bandwidth(&self, one: PciAddress, other: PciAddress) -> Option<u64> {
        let functions = &self.inventory.functions;
        let [above, above_other] = gpu::apart(functions, one, other);
        let parts = above.iter().chain(above_other).copied().chain([one, other]);
        let links = parts.filter_map(|part| functions.link(part));
        links.map(Link::mbps).min()
    }
}

/// Physical functions of networks, called after their RDMA device, interface or address.
fn nics(inventory: &Inventory) -> Vec<Nic> {
    let mut rdma = BTreeMap::new();
    for device in &inventory.rdma {
        let address = device.pci_address;
        address.map(|address| rdma.entry(address).or_insert(device.name.clone()));
    }
    let interfaces = inventory.interfaces.iter();
    let interfaces = interfaces.filter_map(|found| Some((found.pci?, found.name.clone())));
    let interfaces: BTreeMap<_, _> = interfaces.collect();
    let is_nic = |function: &&PciFunction| {
        let is_known = rdma.contains_key(&function.address) || function.is_network();
        is_known && function.physical_function.is_none()
    };
    let functions = inventory.functions.iter().filter(is_nic);
    let nics = functions.map(|function| {
        let address = function.address;
        let name = rdma.get(&address).or(interfaces.get(&address)).cloned();
        Nic {
            address,
            name: name.unwrap_or_else(|| address.to_string()),
            is_rdma: rdma.contains_key(&address),
        }
    });
    nics.collect()
}
