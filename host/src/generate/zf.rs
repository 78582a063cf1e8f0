//! The class zf: TCPDirect for each interface that it supports.

use super::class_edits::ClassEdits;
use super::edit_builder::EditBuilder;
use super::onload;
use crate::devices::HostDevice;
use crate::devices::inventory::Inventory;

pub(super) fn class_edits(
    inventory: &Inventory,
    devices: &[&HostDevice],
    builder: &EditBuilder<'_>,
) -> ClassEdits {
    let Some(tcpdirect) = &inventory.tcpdirect else {
        return ClassEdits::default();
    };
    // TCPDirect also opens /dev/onload, for its control plane and shared memory.
    let mut common = onload::driver_node_edits(&tcpdirect.nodes, builder);
    common.mounts = builder.library_mounts(&tcpdirect.installation, tcpdirect.machine);
    common.mounts.extend(builder.tool_mounts(&tcpdirect.tools, "tcpdirect"));
    common.mounts.extend(onload::socket_mount(builder));
    ClassEdits {
        common,
        devices: devices.iter().map(|nic| onload::device_edits(nic, builder)).collect(),
        all: Some(onload::all_edits(devices, builder)),
    }
}
