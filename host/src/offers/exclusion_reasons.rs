//! Reasons of `discover` why a device in a specification is not offered.

use std::collections::BTreeMap;

use onload_core::class::Class;
use onload_sys::pci::PciAddress;

use super::spec_devices::GENERATE;
use crate::devices::LOOPBACK;
use crate::devices::inventory::Inventory;
use crate::discover::exclusion::ExclusionSubject;

const ONLOAD: &str = "onload";
const TCPDIRECT: &str = "tcpdirect";

pub(super) struct ExclusionReasons<'i> {
    inventory: &'i Inventory,
    reasons: BTreeMap<(Class, &'i str), Vec<&'i str>>,
}

impl<'i> ExclusionReasons<'i> {
    pub(super) fn new(inventory: &'i Inventory) -> ExclusionReasons<'i> {
        let mut reasons: BTreeMap<(Class, &str), Vec<&str>> = BTreeMap::new();
        for exclusion in &inventory.not_offered {
            if let ExclusionSubject::Device(class) = exclusion.kind {
                let key = (class, exclusion.name.as_str());
                reasons.entry(key).or_default().push(&exclusion.reason);
            }
        }
        ExclusionReasons { inventory, reasons }
    }

    /// Returns the reason with its remedy. `None` if discovery does not see the device.
    pub(super) fn find(&self, class: Class, name: &str) -> Option<String> {
        let reason = match class {
            Class::Nic | Class::NicPlain | Class::NicNodes if name == LOOPBACK => {
                self.find_onload()
            }
            Class::Nic | Class::NicPlain | Class::NicNodes => {
                self.find_by_interface(Class::Nic, name).or_else(|| self.find_onload())
            }
            Class::Zf => self
                .find_by_interface(Class::Zf, name)
                .or_else(|| self.find_by_interface(Class::Nic, name))
                .or_else(|| self.find_by_name(Class::Zf, TCPDIRECT)),
            Class::Profile => self.find_by_name(class, name).or_else(|| self.find_onload()),
            _ => self.find_by_name(class, name).or_else(|| self.find_by_alias(class, name)),
        };
        reason.or_else(|| self.find_unread(class))
    }

    fn find_by_name(&self, class: Class, name: &str) -> Option<String> {
        Some(self.reasons.get(&(class, name))?.join(", and "))
    }

    /// Returns the reason for an interface, which may be offered by its PCI address.
    fn find_by_interface(&self, class: Class, name: &str) -> Option<String> {
        if let Some(reason) = self.find_by_name(class, name) {
            return Some(reason);
        }
        let address: PciAddress = name.parse().ok()?;
        self.inventory
            .interfaces
            .iter()
            .filter(|interface| interface.pci() == Some(address))
            .find_map(|interface| self.find_by_name(class, &interface.name))
    }

    fn find_onload(&self) -> Option<String> {
        let onload = self.inventory.onload.as_ref();
        let obstacle = onload.and_then(|onload| onload.obstacle.clone());
        let reason = obstacle.or_else(|| self.find_by_name(Class::Nic, ONLOAD))?;
        Some(format!("Onload is not offered: {reason}"))
    }

    fn find_by_alias(&self, class: Class, name: &str) -> Option<String> {
        let alias: PciAddress = name.parse().ok()?;
        let mut devices = self.inventory.with_drained();
        let device = devices.find(|one| one.class == class && one.aliases.contains(&alias))?;
        Some(format!(
            "it is in the IOMMU group of {}, and offered with it; {GENERATE}",
            device.name
        ))
    }

    fn find_unread(&self, class: Class) -> Option<String> {
        let unread = self.inventory.unread.iter().find(|unread| unread.kinds.contains(&class))?;
        Some(format!("could not determine whether it is there: {unread}"))
    }
}
