//! The names under which the RDMA devices nearest to each GPU are offered.

use onload_core::class::Class;
use onload_core::gpu_name;

use super::device::GpuAlias;
use super::inventory::Inventory;
use super::nearest_nics::choose;
use crate::discover::exclusion::Exclusion;
use crate::discover::gpu_index::GpuIndexes;

pub(super) fn add_gpu_aliases(inventory: &mut Inventory) {
    let (mut near, mut not_offered) = (Vec::new(), Vec::new());
    for (gpu, chosen) in choose(inventory) {
        let name = gpu_name::from_address(gpu);
        match chosen {
            Ok(devices) => {
                let rdma = devices.into_iter().map(|device| device.name.to_string());
                let rdma = rdma.collect();
                near.push(GpuAlias { name, gpu, rdma });
            }
            Err(why) => {
                let reason = format!(
                    "which RDMA device is nearest to that GPU is not known: {why}; ask for a device by its own name"
                );
                let entry = Exclusion::new(Class::Rdma, name, reason);
                not_offered.push(entry.with_pci(Some(gpu)));
            }
        }
    }
    if !near.is_empty() {
        let indexes = &inventory.gpu_indexes;
        let numbered = aliases_by_index(indexes, &near);
        near.extend(numbered);
        let unknown = indexes.unknown.iter();
        not_offered.extend(unknown.map(|(name, why)| Exclusion::new(Class::Rdma, name, why)));
    }
    inventory.near_gpus = near;
    inventory.not_offered.extend(not_offered);
}

/// The same devices, by the numbers of the GPUs.
fn aliases_by_index(indexes: &GpuIndexes, near: &[GpuAlias]) -> Vec<GpuAlias> {
    let numbered = indexes.known.iter().filter_map(|(index, gpu)| {
        let by_address = near.iter().find(|near| near.gpu == *gpu)?;
        Some(GpuAlias { name: gpu_name::from_index(*index), ..by_address.clone() })
    });
    numbered.collect()
}
