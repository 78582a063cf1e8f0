//! Who holds which device.

use std::collections::BTreeMap;

use onload_core::class::Class;
use onload_core::lease::Listed;
use onload_sys::text::Listed as Words;

use crate::devices::Held;

pub(super) struct Holders<'l> {
    by_device: BTreeMap<(Class, &'l str), Vec<&'l Listed>>,
}

impl<'l> Holders<'l> {
    pub(super) fn of(leases: &'l [Listed]) -> Holders<'l> {
        let mut by_device: BTreeMap<(Class, &str), Vec<&Listed>> = BTreeMap::new();
        for listed in leases.iter().filter(|listed| !listed.is_over) {
            let key = (listed.device.class, listed.device.name.as_str());
            by_device.entry(key).or_default().push(listed);
        }
        Holders { by_device }
    }

    pub(super) fn is_held(&self, class: Class, name: &str) -> bool {
        self.by_device.contains_key(&(class, name))
    }

    /// The leases of a device that may be leased by several names, by slot.
    pub(super) fn holding<'n>(
        &self,
        class: Class,
        names: impl Iterator<Item = &'n str>,
    ) -> Vec<Held> {
        let found = names.filter_map(|name| self.by_device.get(&(class, name)));
        let mut held: Vec<Held> = found.flatten().map(|listed| held(listed)).collect();
        held.sort_by_key(|held| held.slot);
        held
    }
}

fn held(listed: &Listed) -> Held {
    Held {
        slot: listed.slot,
        lease: listed.lease.as_ref().ok().cloned(),
        text: match &listed.lease {
            Ok(lease) => lease.to_string(),
            Err(why) => format!("an unknown container ({why})"),
        },
    }
}

pub(super) fn text(leases: &[Held]) -> Option<String> {
    let holders: Vec<String> = leases.iter().map(|held| held.text.clone()).collect();
    (!holders.is_empty()).then(|| Words(&holders).to_string())
}
