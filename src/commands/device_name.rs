//! Parses device names on the command line: with or without the kind's vendor, and PCI addresses with or without their
//! domain.

use std::collections::BTreeSet;

use anyhow::{Result, anyhow, bail};
use onload_cdi::{NameError, QualifiedName, Registry};
use onload_core::class::Class;
use onload_core::request::PREFIX;
use onload_host::devices::inventory::Inventory;
use onload_sys::pci::PciAddress;

/// The device without the vendor of its kind, as in `nic=ens1`.
pub(super) fn strip_vendor(word: &str) -> &str {
    word.strip_prefix(PREFIX).unwrap_or(word)
}

/// Returns `CLASS=NAME` for a word such as `nic:ens1`, or for the name or the PCI address of one of these devices.
pub(super) fn suggest_device<'d>(
    word: &str,
    mut devices: impl Iterator<Item = (Class, &'d str, Option<PciAddress>)>,
) -> Option<String> {
    let short = strip_vendor(word);
    if let Some((class, name)) = short.split_once(':')
        && let Some(class) = Class::from_name(class)
    {
        return Some(format!("{class}={name}"));
    }
    let address: Option<PciAddress> =
        short.parse().or_else(|_| format!("0000:{short}").parse()).ok();
    let (class, name, _) = devices.find(|(_, name, pci)| {
        name.eq_ignore_ascii_case(short) || (address.is_some() && *pci == address)
    })?;
    Some(format!("{class}={name}"))
}

/// [`suggest_device`] of the devices of a host.
pub(super) fn suggest_host_device(word: &str, inventory: &Inventory) -> Option<String> {
    let devices = inventory.with_drained();
    suggest_device(word, devices.map(|device| (device.class, device.name.as_str(), device.pci)))
}

/// Reads the names of devices of any vendor, of which these are offered.
pub(super) fn parse_qualified_names(
    words: &[String],
    registry: &Registry,
) -> Result<Vec<QualifiedName>> {
    words.iter().map(|word| parse_qualified_name(word, registry)).collect()
}

fn parse_qualified_name(word: &str, registry: &Registry) -> Result<QualifiedName> {
    let class = word.split_once('=').and_then(|(class, _)| Class::from_name(class));
    let qualified = match class {
        Some(_) => format!("{PREFIX}{}", strip_vendor(word)),
        None => word.to_owned(),
    };
    if let Some((class, _)) = word.split_once('=').filter(|_| !word.contains('/')) {
        class.parse::<Class>().map_err(|error| anyhow!("reading device {word:?}: {error}"))?;
    }
    let read_error = |error: NameError| {
        let devices = registry.devices().filter_map(|device| {
            let class = Class::from_name(device.name.kind.as_str().strip_prefix(PREFIX)?)?;
            Some((class, device.name.device.as_str(), None))
        });
        match suggest_device(word, devices).filter(|_| !word.contains('=')) {
            Some(suggestion) => {
                anyhow!("reading device {word:?}: expected CLASS=NAME, for example {suggestion}")
            }
            None => {
                anyhow!("reading device {word:?}: {error}; \"onload-ctk cdi list\" shows the names")
            }
        }
    };
    let name: QualifiedName = qualified.parse().map_err(read_error)?;
    let offered = registry.devices().map(|device| device.name);
    let devices = offered.filter(|offered| offered.kind == name.kind);
    match complete_address(name.device.as_str(), devices.map(|name| name.device.as_str()))? {
        Some(device) => format!("{}={device}", name.kind).parse().map_err(read_error),
        None => Ok(name),
    }
}

/// Whether it is a PCI address, with or without its domain.
pub(super) fn is_address(text: &str) -> bool {
    text.parse::<PciAddress>().is_ok() || is_short_address(text)
}

fn is_short_address(text: &str) -> bool {
    format!("0000:{text}").parse::<PciAddress>().is_ok()
}

/// Returns the known name for a PCI address without its domain, such as `41:10.0`. `None` for other words and unknown
/// addresses. An error if several names match.
pub(super) fn complete_address<'n>(
    address: &str,
    known: impl Iterator<Item = &'n str>,
) -> Result<Option<&'n str>> {
    if !is_short_address(address) {
        return Ok(None);
    }
    let matching: BTreeSet<&str> = known
        .filter(|name| name.split_once(':').is_some_and(|(_, rest)| rest == address))
        .collect();
    if matching.len() > 1 {
        let names: Vec<&str> = matching.into_iter().collect();
        bail!("reading address {address:?}: it matches {}; use one of them", names.join(", "));
    }
    Ok(matching.first().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_its_domain_stands_for_the_one_device_that_it_matches() {
        let complete = |address: &str, known: &[&str]| {
            let name = complete_address(address, known.iter().copied());
            name.map_err(|error| error.to_string()).map(|name| name.map(str::to_owned))
        };
        let known = ["0000:41:10.0", "0000:81:10.0", "10000:81:10.0", "ens1"];
        assert_eq!(complete("41:10.0", &known), Ok(Some("0000:41:10.0".to_owned())));
        for other in ["41:10.1", "0000:41:10.0", "ens1", "41:10", ""] {
            assert_eq!(complete(other, &known), Ok(None), "{other}");
        }
        let several = complete("81:10.0", &known).unwrap_err();
        assert_eq!(
            several,
            "reading address \"81:10.0\": it matches 0000:81:10.0, 10000:81:10.0; use one of \
             them"
        );
    }
}
