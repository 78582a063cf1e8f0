//! Compares the PCIe link of each card with the maximum of the card and its slot
//! (`Documentation/ABI/testing/sysfs-bus-pci`, `current_link_speed` and the following attributes).

use std::collections::BTreeSet;
use std::path::Path;

use onload_host::discover::pci::DEVICES;
use onload_host::discover::pcie_link;
use onload_sys::pci::PciAddress;

use super::check::{Finding, Remedy};
use super::context::{CheckContext, Findings};

pub(super) fn check_links(context: &CheckContext<'_>) -> Findings {
    let mut findings = Vec::new();
    for address in offered_cards(context) {
        let directory = Path::new(DEVICES).join(address.to_string());
        let Some(now) = pcie_link::read(context.host, &directory, "current")? else { continue };
        let Some(card) = pcie_link::read(context.host, &directory, "max")? else { continue };
        let real_path = context.host.resolve(&directory)?;
        let slot = match real_path.as_deref().and_then(Path::parent) {
            Some(parent) => pcie_link::read(context.host, parent, "max")?,
            None => None,
        };
        let best = slot.map_or(card, |slot| card.combine(slot));
        let finding = if now.is_slower_than(best) {
            Finding::warn(
                format!(
                    "the link runs at {now}, but card and slot support {best}: reseat the card"
                ),
                Remedy::run(format!("lspci -vv -s {address} | grep -E \"LnkCap|LnkSta\"")),
            )
            .with_first_remedy(context.install_remedy("lspci")?)
        } else {
            Finding::pass(format!("the link runs at {now}"))
        };
        let finding = finding.with_path(directory.join("current_link_speed"));
        findings.push(finding.with_subject(address.to_string()));
    }
    Ok(findings)
}

/// Returns the physical functions of offered devices, since virtual functions have no link.
fn offered_cards(context: &CheckContext<'_>) -> BTreeSet<PciAddress> {
    let inventory = context.inventory;
    let nics = inventory.nics.iter().filter_map(|nic| nic.pci_address);
    let rdma = inventory.rdma.iter().filter_map(|device| device.pci_address);
    let vfio = inventory.vfio.iter().map(|device| device.pci_address);
    let physical = |address: PciAddress| {
        let function = inventory.functions.get(address);
        let parent = function.and_then(|function| function.physical_function);
        parent.unwrap_or(address)
    };
    nics.chain(rdma).chain(vfio).map(physical).collect()
}
