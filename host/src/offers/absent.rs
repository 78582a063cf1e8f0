//! Why a device that a specification has is not offered, in the words of `discover`.

use std::collections::BTreeMap;

use onload_core::class::Class;
use onload_sys::pci::PciAddress;

use super::published::GENERATE;
use crate::devices::LOOPBACK;
use crate::devices::inventory::Inventory;
use crate::discover::not_offered::Subject;

const ONLOAD: &str = "onload";
const TCPDIRECT: &str = "tcpdirect";

pub(super) struct Absence<'i> {
    inventory: &'i Inventory,
    reasons: BTreeMap<(Class, &'i str), Vec<&'i str>>,
    aliases: BTreeMap<(Class, PciAddress), &'i str>,
}

impl<'i> Absence<'i> {
    pub(super) fn of(inventory: &'i Inventory) -> Absence<'i> {
        let mut reasons: BTreeMap<(Class, &str), Vec<&str>> = BTreeMap::new();
        for entry in &inventory.not_offered {
            if let Subject::Device(class) = entry.kind {
                let key = (class, entry.name.as_str());
                reasons.entry(key).or_default().push(&entry.reason);
            }
        }
        let aliases = inventory.with_drained().flat_map(|device| {
            let aliases = device.aliases.iter();
            aliases.map(|alias| ((device.class, *alias), device.name.as_str()))
        });
        Absence { inventory, reasons, aliases: aliases.collect() }
    }

    /// With what would change it; none if discovery sees nothing of the device.
    pub(super) fn why(&self, class: Class, name: &str) -> Option<String> {
        let reason = match class {
            Class::Nic | Class::NicPlain | Class::NicNodes if name == LOOPBACK => self.of_onload(),
            Class::Nic | Class::NicPlain | Class::NicNodes => {
                self.of_interface(Class::Nic, name).or_else(|| self.of_onload())
            }
            Class::Zf => self
                .of_interface(Class::Zf, name)
                .or_else(|| self.of_interface(Class::Nic, name))
                .or_else(|| self.named(Class::Zf, TCPDIRECT)),
            Class::Profile => self.named(class, name).or_else(|| self.of_onload()),
            _ => self.named(class, name).or_else(|| self.of_alias(class, name)),
        };
        reason.or_else(|| self.unread(class))
    }

    fn named(&self, class: Class, name: &str) -> Option<String> {
        Some(self.reasons.get(&(class, name))?.join(", and "))
    }

    /// That of an interface, which may be offered by its PCI address.
    fn of_interface(&self, class: Class, name: &str) -> Option<String> {
        let address: Option<PciAddress> = name.parse().ok();
        let by_address = || {
            let interfaces = self.inventory.interfaces.iter();
            let mut interfaces = interfaces.filter(|one| address.is_some() && one.pci() == address);
            interfaces.find_map(|interface| self.named(class, &interface.name))
        };
        self.named(class, name).or_else(by_address)
    }

    fn of_onload(&self) -> Option<String> {
        let onload = self.inventory.onload.as_ref();
        let obstacle = onload.and_then(|onload| onload.obstacle.clone());
        let reason = obstacle.or_else(|| self.named(Class::Nic, ONLOAD))?;
        Some(format!("Onload is not offered: {reason}"))
    }

    fn of_alias(&self, class: Class, name: &str) -> Option<String> {
        let by = self.aliases.get(&(class, name.parse().ok()?))?;
        Some(format!("it is in the IOMMU group of {by}, and offered with it; {GENERATE}"))
    }

    fn unread(&self, class: Class) -> Option<String> {
        let mut unread = self.inventory.unread.iter();
        let unread = unread.find(|unread| unread.kinds.contains(&class))?;
        Some(format!("whether it is there is not known: {}{}", unread.reason, unread.advice))
    }
}
