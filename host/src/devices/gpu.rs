//! The names under which the RDMA devices nearest to each GPU are offered.

use onload_core::class::Class;
use onload_core::gpu_name;

use super::device::GpuAlias;
use super::inventory::Inventory;
use super::nearest_nics::choose;
use crate::discover::exclusion::Exclusion;
use crate::discover::gpu_index::GpuIndexes;

pub(super) fn add_gpu_aliases(inventory: &mut Inventory) {
    let (mut aliases, mut exclusions) = (Vec::new(), Vec::new());
    for (gpu, chosen) in choose(inventory) {
        let name = gpu_name::from_address(gpu);
        match chosen {
            Ok(devices) => {
                let rdma = devices.into_iter().map(|device| device.name.to_string()).collect();
                aliases.push(GpuAlias { name, gpu, rdma });
            }
            Err(why) => {
                let reason = format!(
                    "could not determine which RDMA device is nearest to that GPU: {why}; request \
                     a device by name"
                );
                let exclusion = Exclusion::new(Class::Rdma, name, reason);
                exclusions.push(exclusion.with_pci(Some(gpu)));
            }
        }
    }
    if !aliases.is_empty() {
        let indexes = &inventory.gpu_indexes;
        let by_index = aliases_by_index(indexes, &aliases);
        aliases.extend(by_index);
        let unknown = indexes.unknown.iter();
        exclusions.extend(unknown.map(|(name, reason)| Exclusion::new(Class::Rdma, name, reason)));
    }
    inventory.near_gpus = aliases;
    inventory.not_offered.extend(exclusions);
}

/// Returns the same aliases under the numbers of the GPUs.
fn aliases_by_index(indexes: &GpuIndexes, aliases: &[GpuAlias]) -> Vec<GpuAlias> {
    let by_index = indexes.known.iter().filter_map(|(index, gpu)| {
        let by_address = aliases.iter().find(|alias| alias.gpu == *gpu)?;
        Some(GpuAlias { name: gpu_name::from_index(*index), ..by_address.clone() })
    });
    by_index.collect()
}
