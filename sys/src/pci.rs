//! PCI addresses, as sysfs names them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, error, read_as_text, written_as_text};
use crate::text::{Quoted, is_lower_hex};

/// The address of a PCI function, `domain:bus:device.function`.
///
/// The domain has four or more hexadecimal digits: Intel VMD creates domains from 10000 up, Hyper-V
/// its own (Linux, `drivers/pci/controller/vmd.c`, `pci-hyperv.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

read_as_text!(PciAddress);
written_as_text!(PciAddress);

impl FromStr for PciAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let text = Quoted(text);
        parse(text.0)
            .ok_or_else(|| error!("{text} is not a PCI address; expected one like 0000:3b:00.0"))
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let byte = |digits: &str, length| u8::try_from(hex(digits, length..=length)?).ok();
    Some(PciAddress {
        domain: hex(domain, 4..=8).filter(|_| domain.len() == 4 || !domain.starts_with('0'))?,
        bus: byte(bus, 2)?,
        device: byte(device, 2).filter(|device| *device < 32)?,
        function: byte(function, 1).filter(|function| *function < 8)?,
    })
}

fn hex(digits: &str, length: std::ops::RangeInclusive<usize>) -> Option<u32> {
    let is_number = length.contains(&digits.len()) && is_lower_hex(digits);
    u32::from_str_radix(digits, 16).ok().filter(|_| is_number)
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PciAddress { domain, bus, device, function } = self;
        f.pad(&format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_printed_as_they_were_read() {
        for text in ["0000:3b:00.0", "0101:00:02.7", "10000:e1:1f.1", "ffffffff:ff:1f.7"] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn addresses_sort_by_number_and_not_by_text() {
        let small: PciAddress = "ffff:00:00.0".parse().unwrap();
        let large: PciAddress = "10000:00:00.0".parse().unwrap();
        assert!(small < large);
    }

    #[test]
    fn what_is_no_address_is_refused() {
        let refused = [
            "",
            "3b:00.0",
            "0000:3b:00",
            "0000:3b:00.8",
            "0000:3b:20.0",
            "000:3b:00.0",
            "0000:3B:00.0",
            "0000:3b:00.0 ",
            "0000:3b:00.00",
            "+000:3b:00.0",
            "pci0000:40",
            "100000000:3b:00.0",
            // The kernel pads to four digits, and parsing must accept exactly what is printed.
            "00003b:00:00.0",
        ];
        for text in refused {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }
}
