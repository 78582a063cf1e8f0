//! The GPUs and NICs of a host, and which are near each other. Pure.

use std::collections::BTreeMap;

use onload_core::class::Class;
use onload_core::gpu_name;
use onload_sys::pci::PciAddress;

use super::device::GpuAlias;
use super::inventory::Inventory;
use super::rdma::by_function;
use crate::discover::gpu::{self, Distance};
use crate::discover::pcie_link::PcieLink;

pub struct GpuNicMap<'i> {
    pub(super) inventory: &'i Inventory,
    /// GPUs by address, with their vendors.
    pub gpus: Vec<(PciAddress, &'static str)>,
    /// By address.
    pub nics: Vec<NetworkFunction>,
    /// The reason why distances are unknown.
    pub obstacle: Option<&'i str>,
}

pub struct NetworkFunction {
    pub address: PciAddress,
    pub name: String,
    pub is_rdma: bool,
}

impl<'i> GpuNicMap<'i> {
    #[must_use]
    pub fn from_inventory(inventory: &'i Inventory) -> GpuNicMap<'i> {
        let functions = &inventory.functions;
        let gpus: Vec<_> =
            gpu::gpus(functions).map(|(function, vendor)| (function.address, vendor)).collect();
        let nics = network_functions(inventory);
        let nic_addresses = nics.iter().map(|nic| nic.address);
        let compared: Vec<PciAddress> =
            gpus.iter().map(|(address, _)| *address).chain(nic_addresses).collect();
        let unpaired = inventory.data_direct.obstacle();
        let obstacle = unpaired.or_else(|| gpu::find_obstacle(functions, &compared));
        GpuNicMap { inventory, obstacle: obstacle.filter(|_| !gpus.is_empty()), gpus, nics }
    }

    pub fn distance(&self, one: PciAddress, other: PciAddress) -> Option<Distance> {
        if self.obstacle.is_some() {
            return None;
        }
        let [one, other] = self.data_functions(one, other);
        gpu::distance(&self.inventory.functions, one, other)
    }

    /// Returns the alias of a GPU, by number if it has one. Partitions may have several numbers, of which the lowest
    /// counts.
    #[must_use]
    pub fn gpu_alias(&self, gpu: PciAddress) -> Option<&'i GpuAlias> {
        self.inventory
            .near_gpus
            .iter()
            .filter(|alias| alias.gpu == gpu)
            .min_by_key(|alias| alias.name == gpu_name::from_address(gpu))
    }

    /// Iterates over the GPUs with the NICs of the RDMA devices in their aliases.
    pub fn pairs(&self) -> impl Iterator<Item = (PciAddress, PciAddress)> {
        self.inventory
            .near_gpus
            .iter()
            .filter(|alias| alias.name == gpu_name::from_address(alias.gpu))
            .flat_map(|alias| {
                let rdma = self.inventory.devices_of_class(Class::Rdma);
                rdma.filter(|device| alias.rdma.iter().any(|name| *name == device.name.as_str()))
                    .filter_map(|device| Some((alias.gpu, device.pci?)))
            })
    }

    /// Returns the functions that exchange data: a NIC accesses a GPU through its Data Direct function, if it has one.
    pub fn data_functions(&self, one: PciAddress, other: PciAddress) -> [PciAddress; 2] {
        let is_gpu = |address| self.gpus.iter().any(|(gpu, _)| *gpu == address);
        if !is_gpu(one) && !is_gpu(other) {
            return [one, other];
        }
        let data_direct = &self.inventory.data_direct;
        [one, other].map(|address| data_direct.function_for(address).unwrap_or(address))
    }

    /// Returns the reason why a distance is unknown.
    #[must_use]
    pub fn unknown_reason(&self) -> &'i str {
        let numa = "the kernel does not report the NUMA node of the GPU or of a NIC";
        self.obstacle.unwrap_or(numa)
    }

    /// Returns the bandwidth of the slowest link between two functions in Mbit/s, or `None` if no link reports it.
    pub(super) fn bandwidth(&self, one: PciAddress, other: PciAddress) -> Option<u64> {
        let functions = &self.inventory.functions;
        let [one, other] = self.data_functions(one, other);
        let [above, above_other] = gpu::bridges_between(functions, one, other);
        above
            .iter()
            .chain(above_other)
            .copied()
            .chain([one, other])
            .filter_map(|part| functions.link(part))
            .map(PcieLink::mbps)
            .min()
    }
}

/// Returns the network functions that are not virtual, named after their RDMA device, interface or address.
fn network_functions(inventory: &Inventory) -> Vec<NetworkFunction> {
    let rdma = by_function(inventory.rdma.iter());
    let interfaces: BTreeMap<_, _> = inventory
        .interfaces
        .iter()
        .filter(|interface| !interface.is_representor())
        .filter_map(|interface| Some((interface.pci()?, interface.name.clone())))
        .collect();
    let mut nics = Vec::new();
    for function in inventory.functions.iter() {
        let address = function.address;
        let device = rdma.get(&address);
        if function.physical_function.is_some() || device.is_none() && !function.is_network() {
            continue;
        }
        let name = device.map(|device| &device.name).or(interfaces.get(&address));
        nics.push(NetworkFunction {
            address,
            name: name.map_or_else(|| address.to_string(), String::clone),
            is_rdma: device.is_some(),
        });
    }
    nics
}
