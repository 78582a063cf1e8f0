//! A GPU and the NICs that are nearest to it, as they are shown.

use onload_host::devices::near::Near;
use onload_host::discover::gpu::Distance;
use onload_sys::pci::PciAddress;

use super::model::{Gpu, Nearest};

pub(super) fn gpu(near: &Near<'_>, address: PciAddress) -> Option<Gpu> {
    let number = near.gpus.iter().position(|(gpu, _)| *gpu == address)?;
    let (_, vendor) = near.gpus.get(number)?;
    let given = near.given(address);
    Some(Gpu {
        number,
        vendor,
        nearest: nearest(near, address),
        rdma_name: given.map(|given| given.name.clone()),
        rdma: given.map(|given| given.rdma.clone()).unwrap_or_default(),
    })
}

/// Among the NICs with RDMA where there are any: a GPU reaches no other by itself.
fn nearest(near: &Near<'_>, gpu: PciAddress) -> Nearest {
    let has_rdma = near.nics.iter().any(|nic| nic.is_rdma);
    let candidates = near.nics.iter().filter(|nic| nic.is_rdma || !has_rdma);
    let candidates: Vec<_> = candidates
        .map(|nic| (near.distance(gpu, nic.address), nic))
        .collect();
    let least = candidates.iter().filter_map(|(at, _)| *at).min();
    // A NIC at an unknown distance is below another root: it may be as near as any that is.
    let is_open = candidates.iter().any(|(at, _)| at.is_none());
    let Some(distance) = least.filter(|least| *least <= Distance::Phb || !is_open) else {
        return Nearest {
            distance: None,
            nearest: Vec::new(),
            reason: is_open.then(|| near.why_unknown().to_owned()),
        };
    };
    let nearest = candidates.iter().filter(|(at, _)| *at == Some(distance));
    Nearest {
        distance: Some(distance),
        nearest: nearest.map(|(_, nic)| nic.name.clone()).collect(),
        reason: None,
    }
}
