//! The sections `[[sriov]]` and `[host]`, which configure the host itself.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use onload_sys::error::{
    Error, Result, error, read_as_text, shown_as_serialized, shown_as_text, written_as_text,
};
use onload_sys::netlink::link::{format_hwaddr, parse_hwaddr};
use onload_sys::pci::PciAddress;
use onload_sys::text::{Quoted, parse_decimal, parse_digits, parse_kib};

/// A section `[[sriov]]`: the virtual functions of one physical function.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub struct SriovConfig {
    /// The interface of the physical function, or its PCI address.
    pub pf: PfRef,
    /// The number of virtual functions. The kernel changes a number other than 0 only by first
    /// removing all of them, which is rejected while one of them is leased or in use.
    pub vfs: u16,
    /// The driver of the virtual functions: "vfio-pci", or "kernel" for the kernel's own driver.
    /// sriov_drivers_autoprobe of the physical function is off for the first and on for the second.
    pub driver: VfDriver,
    /// The VLAN that the NIC puts their frames into, from 1 to 4094; 0 for none.
    pub vlan: Option<Vlan>,
    /// The hardware address of the first virtual function; the others count up from it. A kernel
    /// driver reads the address only when it is bound, so an unused function that has a kernel
    /// driver is bound again if its address changes. The interface of the physical function is up
    /// during this time, since some drivers cannot read the address when it is down.
    pub mac: Option<MacAddress>,
    /// Drop frames whose source address is not the function's. Without "mac" the container chooses
    /// that address, so it can still send as any other machine; onload-ctk host warns of either.
    pub spoof_check: Option<bool>,
    /// Allow the container to change its hardware address and to receive frames for others.
    pub trust: Option<bool>,
}

/// Section `[host]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "kebab-case")]
pub struct HostSettings {
    /// Interfaces to register with Onload for AF_XDP. A registration lasts until the next boot.
    pub af_xdp: Vec<InterfaceName>,
    /// Whether Onload sets flow filters on the interfaces of af-xdp. If false, it sets none, and
    /// each interface gets one channel, since without filters only connections whose hash selects
    /// the queue of the stack are accelerated. Use false if a NIC has no filters (ethtool -k:
    /// "ntuple-filters: off \[fixed]"): every bind or listen of a server fails there with
    /// "Operation not supported". Default: the module's parameter and the channels are not changed.
    pub af_xdp_flow_filters: Option<bool>,
    /// The network namespaces that see RDMA devices: "shared", all of them; "exclusive", one for
    /// each device, which moves into the container that gets it. The mode can change only while the
    /// host's network namespace is the only one. Default: not changed.
    pub rdma_netns: Option<RdmaNetns>,
    /// The minimum number of huge pages by size and NUMA node: { "1Gi" = { 0 = 4, 1 = 4 } } for
    /// four pages of 1 GiB on each of two nodes.
    pub hugepages: BTreeMap<PageSize, BTreeMap<NumaNodeId, u64>>,
}

read_as_text!(InterfaceName PfRef MacAddress PageSize NumaNodeId);
shown_as_text!(InterfaceName);
written_as_text!(PfRef);

/// Returns the error for a text of the wrong form.
pub(crate) fn mismatch_error(expected: &str, found: &str) -> Error {
    error!("expected {expected}, found {}", Quoted(found))
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct InterfaceName(String);

impl FromStr for InterfaceName {
    type Err = Error;

    /// Accepts the names that the kernel accepts (`dev_valid_name`, net/core/dev.c).
    fn from_str(name: &str) -> Result<Self> {
        let is_special = name == "." || name == "..";
        if !(1..16).contains(&name.len()) || name.contains(is_illegal_in_name) || is_special {
            return Err(mismatch_error("the name of an interface", name));
        }
        Ok(InterfaceName(name.to_owned()))
    }
}

fn is_illegal_in_name(c: char) -> bool {
    c.is_whitespace() || c.is_control() || ['/', ':'].contains(&c)
}

/// A physical function, by its PCI address or its interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum PfRef {
    Address(PciAddress),
    Interface(InterfaceName),
}

impl FromStr for PfRef {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let expected = "the name of an interface, or a PCI address such as \"0000:3b:00.0\"";
        text.parse()
            .map(PfRef::Address)
            .or_else(|_| text.parse().map(PfRef::Interface))
            .map_err(|_: Error| mismatch_error(expected, text))
    }
}

impl fmt::Display for PfRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PfRef::Address(address) => write!(f, "{address}"),
            PfRef::Interface(interface) => write!(f, "{interface}"),
        }
    }
}

/// The driver that virtual functions are bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum VfDriver {
    /// For programs in user space.
    VfioPci,
    /// The kernel's own driver for the device.
    Kernel,
}

/// A VLAN number; 0 means no VLAN (IEEE 802.1Q).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u16")]
pub struct Vlan(u16);

impl Vlan {
    pub(crate) const MAX: u16 = 4094;

    pub fn number(self) -> u16 {
        self.0
    }
}

impl TryFrom<u16> for Vlan {
    type Error = Error;

    fn try_from(number: u16) -> Result<Self> {
        if number <= Vlan::MAX {
            return Ok(Vlan(number));
        }
        Err(mismatch_error("a VLAN from 1 to 4094, or 0 for none", &number.to_string()))
    }
}

impl FromStr for Vlan {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse_decimal(text)
            .and_then(|number| Vlan::try_from(u16::try_from(number).ok()?).ok())
            .ok_or_else(|| mismatch_error("a VLAN from 1 to 4094, or 0 for none", text))
    }
}

impl fmt::Display for Vlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The hardware address of a single Ethernet interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct MacAddress([u8; 6]);

impl MacAddress {
    pub fn bytes(self) -> [u8; 6] {
        self.0
    }

    /// Adds to the address. Returns `None` if the vendor's part, the first three bytes, would
    /// change.
    pub fn checked_add(self, count: u16) -> Option<MacAddress> {
        let [a, b, c, d, e, f] = self.0;
        let sum = u32::from_be_bytes([0, d, e, f]) + u32::from(count);
        let [over, d, e, f] = sum.to_be_bytes();
        (over == 0).then_some(MacAddress([a, b, c, d, e, f]))
    }
}

impl FromStr for MacAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let expected = "the hardware address of one interface, such as \"02:00:00:00:10:00\"";
        parse_hwaddr(text)
            .and_then(|bytes| <[u8; 6]>::try_from(bytes).ok())
            // The lowest bit of the first byte is set in addresses of groups.
            .filter(|bytes| bytes[0] & 1 == 0 && *bytes != [0; 6])
            .map(MacAddress)
            .ok_or_else(|| mismatch_error(expected, text))
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_hwaddr(&self.0))
    }
}

/// Which network namespaces see RDMA devices (rdma-system(8)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum RdmaNetns {
    /// All of them.
    Shared,
    /// Only the network namespace that the device is in.
    Exclusive,
}

shown_as_serialized!(RdmaNetns);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct PageSize {
    kib: u64,
}

impl PageSize {
    pub fn from_kib(kib: u64) -> Self {
        PageSize { kib }
    }

    pub fn kib(self) -> u64 {
        self.kib
    }
}

impl FromStr for PageSize {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let expected = "the size of a huge page, such as \"2Mi\" or \"1Gi\"";
        parse_kib(text)
            .filter(|kib| kib.is_power_of_two())
            .map(PageSize::from_kib)
            .ok_or_else(|| mismatch_error(expected, text))
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, suffix) = match self.kib {
            kib if kib.is_multiple_of(1 << 20) => (1 << 20, "Gi"),
            kib if kib.is_multiple_of(1 << 10) => (1 << 10, "Mi"),
            _ => (1, "Ki"),
        };
        write!(f, "{}{suffix}", self.kib / unit)
    }
}

/// The number of a NUMA node. It is a key in TOML, and therefore parsed from a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct NumaNodeId(pub u32);

impl FromStr for NumaNodeId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse_digits(text)
            .map(NumaNodeId)
            .ok_or_else(|| mismatch_error("the number of a NUMA node", text))
    }
}

impl fmt::Display for NumaNodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(text: &str) -> MacAddress {
        text.to_owned().try_into().unwrap()
    }

    #[test]
    fn a_physical_function_is_an_address_or_an_interface() {
        let read = |text: &str| PfRef::try_from(text.to_owned());
        assert_eq!(read("0000:81:00.0"), Ok(PfRef::Address("0000:81:00.0".parse().unwrap())));
        let ens1 = InterfaceName::try_from("ens1f0".to_owned()).unwrap();
        assert_eq!(read("ens1f0"), Ok(PfRef::Interface(ens1)));
        for bad in ["", ".", "..", "a/b", "a b", "a\n", "81:00.0", "abcdefghijklmnop"] {
            let error = read(bad).unwrap_err().to_string();
            let expected = "expected the name of an interface, or a PCI address such as \"0000:3b:00.0\", found ";
            assert!(error.starts_with(expected), "{bad}: {error}");
        }
    }

    #[test]
    fn a_hardware_address_identifies_one_interface() {
        assert_eq!(mac("02:00:AB:00:10:0f").to_string(), "02:00:ab:00:10:0f");
        for bad in [
            "",
            "02:00:00:00:10",
            "02:00:00:00:10:00:00",
            "2:0:0:0:10:0",
            "00:00:00:00:00:00",
            "01:00:5e:00:00:01",
            "ff:ff:ff:ff:ff:ff",
            "02-00-00-00-10-00",
            "+2:00:00:00:10:00",
        ] {
            assert!(MacAddress::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }

    #[test]
    fn hardware_addresses_count_up_within_their_range() {
        let first = mac("02:00:00:00:ff:fe");
        assert_eq!(first.checked_add(0), Some(first));
        assert_eq!(first.checked_add(2), Some(mac("02:00:00:01:00:00")));
        let last = mac("02:00:00:ff:ff:fe");
        assert_eq!(last.checked_add(1), Some(mac("02:00:00:ff:ff:ff")));
        assert_eq!(last.checked_add(2), None);
    }

    #[test]
    fn a_page_size_is_written_in_its_largest_unit() {
        for (text, kib) in [("64Ki", 64), ("2Mi", 2048), ("1Gi", 1 << 20), ("16Gi", 16 << 20)] {
            let size: PageSize = text.parse().unwrap();
            assert_eq!((size.kib(), size.to_string().as_str()), (kib, text));
        }
        assert_eq!("2048Ki".parse::<PageSize>().unwrap().to_string(), "2Mi");
        for bad in ["", "2", "2M", "Mi", "+2Mi", "3Mi", "0Mi", "2mi", "99999999999999999999Ki"] {
            assert!(bad.parse::<PageSize>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_vlan_is_at_most_4094() {
        assert!(Vlan::try_from(0).is_ok() && Vlan::try_from(4094).is_ok());
        assert!(Vlan::try_from(4095).is_err());
    }

    #[test]
    fn a_numa_node_is_a_number() {
        assert_eq!("252".to_owned().try_into(), Ok(NumaNodeId(252)));
        for bad in ["", "-1", "+1", "node0", "4294967296"] {
            assert!(NumaNodeId::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }
}
