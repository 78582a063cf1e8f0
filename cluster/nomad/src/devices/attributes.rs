//! The attributes of a device, with units, as constraints and affinities of jobs read them.
//!
//! Nomad's server parses the value in a job as a number or boolean if possible, and a text never equals these
//! (plugins/shared/structs/attribute.go, `ParseAttribute`). So no text here looks like one: ids begin with `0x`,
//! versions with `v`, and hardware addresses have colons.

use std::collections::BTreeMap;

use onload_core::class::Class;
use onload_host::offers::{self, HostDevice};
use onload_sys::pci::PciAddress;

use crate::wire::structs::Attribute;
use crate::wire::structs::attribute::Value;

pub type NomadAttributes = BTreeMap<String, Attribute>;

/// Attributes that are left out: Nomad already has the group's type and name. `onload` and `firmware` replace the
/// versions of three numbers, since Nomad compares longer ones too. Free pages change all the time, and each change
/// would update the client at the servers, so they are in the statistics instead.
const OMITTED: [&str; 5] = ["kind", "name", "onloadVersion", "firmwareVersion", "freePages"];
/// Attributes with another name in Nomad. The version has nomad-onload's name.
const RENAMED: [(&str, &str); 7] = [
    (ONLOAD, "onload_version"),
    (FIRMWARE, "firmware_version"),
    (VENDOR_ID, "pci_vendor"),
    (DEVICE_ID, "pci_device"),
    ("pf", "physical_function"),
    // Nomad excludes `unique.` attributes from a client's class. Otherwise each client would be in a separate class.
    (CLOCK_NAME, "unique.clock_name"),
    ("nodeGuid", "unique.node_guid"),
];
/// Versions with any number of parts.
const ONLOAD: &str = "onload";
const FIRMWARE: &str = "firmware";
const CLOCK_NAME: &str = "clockName";
/// Ids of four hexadecimal digits.
const VENDOR_ID: &str = "vendor";
const DEVICE_ID: &str = "deviceId";
const VIRTUAL: &str = "virtualFunction";
/// The index of a virtual function.
const VF_INDEX: &str = "vfIndex";
/// The link state. For an interface that moves it would show where the interface is, and change with each task.
const LINK_STATE: &str = "linkState";
/// The link speed in Mbit/s. Nomad has only units in bytes for it.
const SPEED: &str = "linkMbps";
/// The unit of a speed, in bytes since Nomad has none in bits.
const SPEED_UNIT: &str = "MB/s";

/// Returns the attributes of an offer. Unknown ones are left out, so that constraints on them are not met.
pub fn from_device(device: &HostDevice) -> NomadAttributes {
    let mut attributes = NomadAttributes::new();
    let is_virtual = device.attributes.get(VIRTUAL) == Some(&offers::Attribute::Bool(true));
    for (name, value) in &device.attributes {
        match (*name, value) {
            // All offers of a class have this attribute, and 0 would mean the first virtual function.
            (VF_INDEX, _) if !is_virtual => {}
            (LINK_STATE, _) if device.class == Class::Netdev => {}
            (SPEED, offers::Attribute::Int(mbps)) => attributes.extend(speed_attribute(*mbps)),
            (name, value) if !OMITTED.contains(&name) => {
                let value = known_value(name, value);
                attributes.extend(value.map(|value| (attribute_name(name), unitless(value))));
            }
            _ => {}
        }
    }
    let node = device.numa_node.map(|node| Value::IntVal(i64::from(node)));
    attributes.extend(node.map(|node| ("numa_node".to_owned(), unitless(node))));
    let pci = device.pci.as_ref().map(PciAddress::to_string);
    attributes.extend(pci.map(|pci| ("pci_address".to_owned(), unitless(Value::StringVal(pci)))));
    attributes
}

/// Returns a known value, with ids and versions in a form that Nomad does not parse as numbers.
fn known_value(name: &str, value: &offers::Attribute) -> Option<Value> {
    let text = match value {
        offers::Attribute::Int(number) => return Some(Value::IntVal(*number)),
        offers::Attribute::Bool(is) => return Some(Value::BoolVal(*is)),
        offers::Attribute::Version(version) if version == "0.0.0" => return None,
        offers::Attribute::Text(text) | offers::Attribute::Version(text) => text,
    };
    let is_number = text.starts_with(|c: char| c.is_ascii_digit());
    Some(Value::StringVal(match name {
        _ if text.is_empty() => return None,
        VENDOR_ID | DEVICE_ID => format!("0x{text}"),
        CLOCK_NAME if is_hardware_address(text) => {
            text.as_bytes().chunks(2).map(String::from_utf8_lossy).collect::<Vec<_>>().join(":")
        }
        ONLOAD | FIRMWARE if is_number => format!("v{text}"),
        _ => text.clone(),
    }))
}

/// Returns whether a clock is named after the hardware address of its interface
/// (drivers/net/ethernet/intel/igb/igb_ptp.c).
fn is_hardware_address(name: &str) -> bool {
    name.len() == 12 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

pub fn int_attribute(number: usize) -> Attribute {
    unitless(Value::IntVal(i64::try_from(number).unwrap_or(i64::MAX)))
}

/// Converts a speed: 25 Gbit/s are 3125 MB/s. Some speeds are not whole numbers of MB/s.
fn speed_attribute(mbps: i64) -> Option<(String, Attribute)> {
    let value = match mbps {
        ..=0 => return None,
        _ if mbps % 8 == 0 => Value::IntVal(mbps / 8),
        // Link speeds in Mbit/s are exact as floating-point numbers.
        #[allow(clippy::cast_precision_loss)]
        _ => Value::FloatVal(mbps as f64 / 8.0),
    };
    let attribute = Attribute { value: Some(value), unit: SPEED_UNIT.to_owned() };
    Some(("speed".to_owned(), attribute))
}

fn unitless(value: Value) -> Attribute {
    Attribute { value: Some(value), unit: String::new() }
}

fn attribute_name(name: &str) -> String {
    RENAMED
        .iter()
        .find(|(from, _)| *from == name)
        .map_or_else(|| to_snake_case(name), |(_, to)| (*to).to_owned())
}

/// Converts `linkState` to `link_state`, the style of Nomad's attributes.
fn to_snake_case(name: &str) -> String {
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
        let value = |mbps| speed_attribute(mbps).map(|(_, attribute)| attribute.value.unwrap());
        assert_eq!(value(25_000), Some(Value::IntVal(3_125)));
        assert_eq!(value(1_000), Some(Value::IntVal(125)));
        assert_eq!(value(100), Some(Value::FloatVal(12.5)));
        assert_eq!(value(0), None);
        assert_eq!(speed_attribute(25_000).unwrap().1.unit, "MB/s");
    }

    #[test]
    fn names_are_those_of_nomad() {
        assert_eq!(attribute_name("linkState"), "link_state");
        assert_eq!(attribute_name("onload"), "onload_version");
        assert_eq!(attribute_name("driver"), "driver");
    }

    #[test]
    fn ids_and_versions_are_no_numbers() {
        let text =
            |name, text: &str| match known_value(name, &offers::Attribute::Text(text.to_owned())) {
                Some(Value::StringVal(text)) => text,
                other => panic!("{other:?}"),
            };
        for (name, from, to) in [
            ("vendor", "1924", "0x1924"),
            ("deviceId", "15e3", "0x15e3"),
            ("onload", "9.1", "v9.1"),
            ("firmware", "20.31.1014", "v20.31.1014"),
            ("onload", "master", "master"),
            ("driver", "sfc", "sfc"),
            ("clockName", "525400123456", "52:54:00:12:34:56"),
            ("clockName", "sfc", "sfc"),
        ] {
            assert_eq!(text(name, from), to);
        }
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        assert_eq!(known_value("driver", &offers::Attribute::Text(String::new())), None);
        assert_eq!(known_value("onload", &offers::Attribute::Version("0.0.0".to_owned())), None);
        assert_eq!(known_value("slot", &offers::Attribute::Int(0)), Some(Value::IntVal(0)));
    }
}
