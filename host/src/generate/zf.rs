//! The class zf: TCPDirect for each interface that it works on.

use super::edits::Writer;
use super::offer::Offer;
use super::onload;
use crate::devices::Device;
use crate::devices::inventory::Inventory;

pub(super) fn offer(inventory: &Inventory, devices: &[&Device], writer: &Writer<'_>) -> Offer {
    let Some(tcpdirect) = &inventory.tcpdirect else {
        return Offer::default();
    };
    // TCPDirect also opens /dev/onload, for its control plane and shared memory.
    let mut common = onload::driver_nodes(&tcpdirect.nodes, writer);
    common.mounts = writer.libraries(&tcpdirect.installation, tcpdirect.machine);
    common.mounts.extend(writer.tools(&tcpdirect.tools, "tcpdirect"));
    common.mounts.extend(onload::socket(writer));
    Offer {
        common,
        devices: devices.iter().map(|nic| onload::entry(nic, writer)).collect(),
        all: Some(onload::whole(devices, writer)),
    }
}
