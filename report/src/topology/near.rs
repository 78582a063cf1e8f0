//! The GPUs and NICs of a host, and which are near each other. Pure.

use std::collections::BTreeMap;

use onload_host::devices::inventory::Inventory;
use onload_host::discover::gpu::{self, Distance};
use onload_host::discover::pci::PciFunction;
use onload_sys::pci::PciAddress;

use super::model::{Gpu, Nearest};

pub(super) struct Near<'i> {
    inventory: &'i Inventory,
    /// By address, each with its vendor.
    pub(super) gpus: Vec<(PciAddress, &'static str)>,
    /// By address.
    pub(super) nics: Vec<Nic>,
    pub(super) obstacle: Option<&'static str>,
}

pub(super) struct Nic {
    pub(super) address: PciAddress,
    pub(super) name: String,
    is_rdma: bool,
}

impl<'i> Near<'i> {
    pub(super) fn of(inventory: &'i Inventory) -> Near<'i> {
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

    pub(super) fn distance(&self, one: PciAddress, other: PciAddress) -> Option<Distance> {
        match self.obstacle {
            Some(_) => None,
            None => gpu::distance(&self.inventory.functions, one, other),
        }
    }

    pub(super) fn gpu(&self, address: PciAddress) -> Option<Gpu> {
        let number = self.gpus.iter().position(|(gpu, _)| *gpu == address)?;
        let (_, vendor) = self.gpus.get(number)?;
        Some(Gpu {
            number,
            vendor,
            nearest: self.nearest(address),
        })
    }

    /// Among the NICs with RDMA where there are any: a GPU reaches no other by itself.
    fn nearest(&self, gpu: PciAddress) -> Nearest {
        let has_rdma = self.nics.iter().any(|nic| nic.is_rdma);
        let candidates = self.nics.iter().filter(|nic| nic.is_rdma || !has_rdma);
        let candidates: Vec<_> = candidates
            .map(|nic| (self.distance(gpu, nic.address), nic))
            .collect();
        let least = candidates.iter().filter_map(|(at, _)| *at).min();
        // A NIC at an unknown distance is below another root: it may be as near as any that is.
        let is_open = candidates.iter().any(|(at, _)| at.is_none());
        let Some(distance) = least.filter(|least| *least <= Distance::Phb || !is_open) else {
            let reason = "the kernel does not say the NUMA node of the GPU or of a NIC";
            return Nearest {
                distance: None,
                nearest: Vec::new(),
                reason: is_open.then(|| self.obstacle.unwrap_or(reason)),
            };
        };
        let nearest = candidates.iter().filter(|(at, _)| *at == Some(distance));
        Nearest {
            distance: Some(distance),
            nearest: nearest.map(|(_, nic)| nic.name.clone()).collect(),
            reason: None,
        }
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
