//! The names under which the RDMA devices nearest to each GPU are offered.

use onload_core::class::Class;
use onload_core::gpu_name;

use super::choice::choose;
use super::device::NearGpu;
use super::inventory::Inventory;
use crate::discover::not_offered::NotOffered;

pub(super) fn settle(inventory: &mut Inventory) {
    let (mut near, mut not_offered) = (Vec::new(), Vec::new());
    for (gpu, chosen) in choose(inventory) {
        let name = gpu_name::of_address(gpu);
        match chosen {
            Ok(devices) => {
                let rdma = devices.into_iter().map(|device| device.name.to_string());
                let rdma = rdma.collect();
                near.push(NearGpu { name, gpu, rdma });
            }
            Err(why) => {
                let reason = format!(
                    "which RDMA device is nearest to that GPU is not known: {why}; ask for a device by its own name"
                );
                let entry = NotOffered::new(Class::Rdma, name, reason);
                not_offered.push(entry.on(Some(gpu)));
            }
        }
    }
    inventory.near_gpus = near;
    inventory.not_offered.extend(not_offered);
    inventory.not_offered.sort();
}
