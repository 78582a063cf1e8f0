//! Chooses device names, since CDI does not accept every name that the kernel uses.

use std::collections::BTreeSet;

use onload_cdi::DeviceName;
use onload_core::pool::ANY;
use onload_sys::pci::PciAddress;

/// Words with a special meaning in place of a device name.
const RESERVED: [&str; 4] = ["all", ANY, "loopback", "none"];

/// The names that devices already have.
#[derive(Debug, Default)]
pub(crate) struct TakenNames {
    taken: BTreeSet<String>,
}

impl TakenNames {
    /// Chooses this name for a device if it is valid and free, otherwise the PCI address. Fails if neither can be used.
    pub(crate) fn choose(&mut self, name: &str, pci: Option<PciAddress>) -> Result<String, String> {
        let problem = match check_name(name) {
            Ok(_) if self.taken.insert(name.to_owned()) => return Ok(name.to_owned()),
            Ok(_) => "another device has that name".to_owned(),
            Err(problem) => problem,
        };
        let Some(pci) = pci else {
            return Err(format!("{problem}, and it has no PCI address to use instead; rename it"));
        };
        let address = pci.to_string();
        if self.taken.insert(address.clone()) {
            return Ok(address);
        }
        Err(format!(
            "{problem}, and another device is named after its PCI address {address}; rename it"
        ))
    }
}

/// Fails if a name is not valid for a CDI device or is reserved.
pub fn check_name(name: &str) -> Result<DeviceName, String> {
    if RESERVED.contains(&name) {
        return Err(format!("{name:?} is a reserved word"));
    }
    DeviceName::try_from(name).map_err(|_| format!("{name:?} is not a valid CDI device name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pci(text: &str) -> Option<PciAddress> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn a_legal_name_is_kept() {
        let mut names = TakenNames::default();
        for name in ["ens1", "enp65s0f0np0", "eth0.100", "a_b", "A-B", "1", "rocep193s0f0"] {
            assert_eq!(names.choose(name, None).unwrap(), name);
        }
    }

    #[test]
    fn a_name_that_is_not_legal_or_means_something_goes_by_its_pci_address() {
        for name in ["a+", "b_", "-x", "all", "any", "loopback", "none", "é"] {
            let mut names = TakenNames::default();
            assert_eq!(names.choose(name, pci("0000:41:00.0")).unwrap(), "0000:41:00.0", "{name}");
        }
    }

    #[test]
    fn a_name_without_an_address_to_go_by_is_refused_with_the_reason() {
        let refusal = |name| TakenNames::default().choose(name, None).unwrap_err();
        assert_eq!(
            refusal("a+"),
            "\"a+\" is not a valid CDI device name, and it has no PCI address to use instead; \
             rename it"
        );
        assert!(refusal("all").starts_with("\"all\" is a reserved word"));
    }

    #[test]
    fn two_devices_on_one_function_never_share_a_name() {
        let mut names = TakenNames::default();
        assert_eq!(names.choose("a+", pci("0000:41:00.0")).unwrap(), "0000:41:00.0");
        let error = names.choose("b+", pci("0000:41:00.0")).unwrap_err();
        assert!(error.ends_with(
            "another device is named after its PCI address 0000:41:00.0; \
            rename it"
        ));
    }
}
