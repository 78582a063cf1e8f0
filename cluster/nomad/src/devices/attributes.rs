//! The attributes of a device, with units, as constraints and affinities of jobs read them.

use std::collections::BTreeMap;

use onload_core::pci::PciAddress;
use onload_host::offers::{self, Offer};

use crate::wire::structs::{Attribute, Value};

/// Attributes by name.
pub type Attributes = BTreeMap<String, Attribute>;

/// Those that say what Nomad says anyway: the type and the name of the group. `onload` and `firmware` take the place
/// of versions of three numbers: Nomad compares longer ones too. Free pages change all the time, and each change
/// would be an update of the client at the servers: they are in the statistics.
const LEFT_OUT: [&str; 5] = [
    "kind",
    "name",
    "onloadVersion",
    "firmwareVersion",
    "freePages",
];
/// Attributes of other names than the offer's. nomad-onload calls the version so.
const RENAMED: [(&str, &str); 5] = [
    ("onload", "onload_version"),
    ("firmware", "firmware_version"),
    ("vendor", "pci_vendor"),
    ("deviceId", "pci_device"),
    ("pf", "physical_function"),
];
/// Whether a PCI function is a virtual one.
const VIRTUAL: &str = "virtualFunction";
/// Which one of its physical function it is.
const VF_INDEX: &str = "vfIndex";
/// The speed of a link in Mbit/s, which has a unit of Nomad's in bytes alone.
const SPEED: &str = "linkMbps";
/// The unit of a speed: Nomad knows none in bits.
const SPEED_UNIT: &str = "MB/s";

/// The attributes of an offer. What is not known is left out: a constraint is not met then.
#[must_use]
pub fn of(offer: &Offer) -> Attributes {
    let mut attributes = Attributes::new();
    let is_virtual = offer.attributes.get(VIRTUAL) == Some(&offers::Attribute::Bool(true));
    for (name, value) in &offer.attributes {
        match (*name, value) {
            // All offers of a class have the same names; the first of the virtual functions is 0.
            (VF_INDEX, _) if !is_virtual => {}
            (SPEED, offers::Attribute::Int(mbps)) => attributes.extend(speed(*mbps)),
            (name, value) if !LEFT_OUT.contains(&name) => {
                attributes.extend(known(value).map(|value| (name_of(name), plain(value))));
            }
            _ => {}
        }
    }
    let node = offer.numa_node.map(|node| Value::Int(i64::from(node)));
    attributes.extend(node.map(|node| ("numa_node".to_owned(), plain(node))));
    let pci = offer.pci.as_ref().map(PciAddress::to_string);
    attributes.extend(pci.map(|pci| ("pci_address".to_owned(), plain(Value::Text(pci)))));
    attributes
}

/// The value, if it is known.
fn known(value: &offers::Attribute) -> Option<Value> {
    match value {
        offers::Attribute::Text(text) => Some(text.clone())
            .filter(|text| !text.is_empty())
            .map(Value::Text),
        offers::Attribute::Version(version) => {
            let version = Some(version.clone()).filter(|version| version != "0.0.0");
            version.map(Value::Text)
        }
        offers::Attribute::Int(number) => Some(Value::Int(*number)),
        offers::Attribute::Bool(is) => Some(Value::Bool(*is)),
    }
}

/// 25 Gbit/s are 3125 MB/s; some speeds are no whole number of these.
fn speed(mbps: i64) -> Option<(String, Attribute)> {
    let value = match mbps {
        ..=0 => return None,
        _ if mbps % 8 == 0 => Value::Int(mbps / 8),
        // A link has fewer Mbit/s than a float has digits.
        #[allow(clippy::cast_precision_loss)]
        _ => Value::Float(mbps as f64 / 8.0),
    };
    let attribute = Attribute {
        value: Some(value),
        unit: SPEED_UNIT.to_owned(),
    };
    Some(("speed".to_owned(), attribute))
}

fn plain(value: Value) -> Attribute {
    Attribute {
        value: Some(value),
        unit: String::new(),
    }
}

fn name_of(name: &str) -> String {
    let renamed = RENAMED.iter().find(|(from, _)| *from == name);
    renamed.map_or_else(|| snake_case(name), |(_, to)| (*to).to_owned())
}

/// `linkState` as `link_state`, the way Nomad and its plugins write attributes.
fn snake_case(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 4);
    for c in name.chars() {
        if c.is_ascii_uppercase() {
            text.push('_');
        }
        text.push(c.to_ascii_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_is_in_bytes_since_nomad_has_no_unit_of_bits() {
        let value = |mbps| speed(mbps).map(|(_, attribute)| attribute.value.unwrap());
        assert_eq!(value(25_000), Some(Value::Int(3_125)));
        assert_eq!(value(1_000), Some(Value::Int(125)));
        assert_eq!(value(100), Some(Value::Float(12.5)));
        assert_eq!(value(0), None);
        assert_eq!(speed(25_000).unwrap().1.unit, "MB/s");
    }

    #[test]
    fn names_are_those_of_nomad() {
        assert_eq!(name_of("linkState"), "link_state");
        assert_eq!(name_of("onload"), "onload_version");
        assert_eq!(name_of("driver"), "driver");
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        assert_eq!(known(&offers::Attribute::Text(String::new())), None);
        assert_eq!(known(&offers::Attribute::Version("0.0.0".to_owned())), None);
        assert_eq!(known(&offers::Attribute::Int(0)), Some(Value::Int(0)));
    }
}
