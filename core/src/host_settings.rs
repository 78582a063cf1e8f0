//! What the sections `[[sriov]]` and `[host]` say of the host itself, rather than of containers.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use onload_sys::error::{Error, Result, error, read_as_text, written_as_text};
use onload_sys::netlink::link::{format_hwaddr, parse_hwaddr};
use onload_sys::pci::PciAddress;
use onload_sys::text::{Quoted, parse_decimal, parse_digits, parse_kib};

/// A section `[[sriov]]`: the virtual functions of one physical function.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SriovConfig {
    /// The interface of the physical function, or its PCI address.
    pub pf: PfRef,
    /// How many virtual functions it has. The kernel changes a number other than 0 only by removing all of them
    /// first, which is refused while one of them is leased or in use.
    pub vfs: u16,
    /// What they are bound to: "vfio-pci", or "kernel" for the kernel's own driver. sriov_drivers_autoprobe of the
    /// physical function is off with the first and on with the second.
    pub driver: VfDriver,
    /// The VLAN that the card puts their frames into, from 1 to 4094; 0: none.
    pub vlan: Option<Vlan>,
    /// The hardware address of the first; the others count up from it. A driver of the kernel reads it only when it
    /// is bound, so an unused function that has one is bound again for another address. The interface of the physical
    /// function is up meanwhile, since some drivers cannot read the address otherwise.
    pub mac: Option<MacAddress>,
    /// Drop frames with another source address than the function has. Without "mac" the holder chooses that address, and
    /// can send as any other machine all the same; onload-ctk host warns of either.
    pub spoof_check: Option<bool>,
    /// Let the holder change its hardware address and receive frames for others.
    pub trust: Option<bool>,
}

/// Section `[host]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct HostSettings {
    /// Interfaces that are registered with Onload for AF_XDP. A registration ends with the boot.
    pub af_xdp: Vec<InterfaceName>,
    /// Whether Onload sets flow filters on them. With false it sets none, and each of them gets one channel, since
    /// without filters only connections whose hash meets the queue of the stack are accelerated. Set false where a
    /// card has no filters (ethtool -k: "ntuple-filters: off \[fixed]"): there every server's bind or listen fails
    /// with "Operation not supported". Default: the module's parameter and the channels stay as they are.
    pub af_xdp_flow_filters: Option<bool>,
    /// In which network namespaces RDMA devices are seen: "shared", in all; "exclusive", in one each, and a device
    /// moves into the container that gets it. It can change only while the host's network namespace is the only
    /// one. Default: it stays as it is.
    pub rdma_netns: Option<RdmaNetns>,
    /// Huge pages by size and NUMA node, at least: { "1Gi" = { 0 = 4, 1 = 4 } } for four pages of 1 GiB on each of
    /// two nodes.
    pub hugepages: BTreeMap<PageSize, BTreeMap<NumaNodeId, u64>>,
}

read_as_text!(InterfaceName PfRef MacAddress PageSize NumaNodeId);
written_as_text!(PfRef);

/// That a text is not what it has to be.
pub(crate) fn mismatch_error(expected: &str, found: &str) -> Error {
    error!("expected {expected}, found {}", Quoted(found))
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct InterfaceName(String);

impl InterfaceName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for InterfaceName {
    type Err = Error;

    /// What the kernel takes (`dev_valid_name` in net/core/dev.c).
    fn from_str(name: &str) -> Result<Self> {
        let legal = |c: char| !c.is_whitespace() && !c.is_control() && !['/', ':'].contains(&c);
        let is_name = (1..16).contains(&name.len()) && name.chars().all(legal);
        if is_name && name != "." && name != ".." {
            return Ok(InterfaceName(name.to_owned()));
        }
        Err(mismatch_error("the name of an interface", name))
    }
}

/// A physical function, by its interface or its PCI address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum PfRef {
    Address(PciAddress),
    Interface(InterfaceName),
}

impl PfRef {
    pub(crate) fn from_name(text: &str) -> Option<Self> {
        let address = text.parse().map(PfRef::Address);
        address.or_else(|_| text.parse().map(PfRef::Interface)).ok()
    }
}

impl FromStr for PfRef {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let expected = "the name of an interface or a PCI address";
        PfRef::from_name(text).ok_or_else(|| mismatch_error(expected, text))
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

/// What virtual functions are bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VfDriver {
    /// vfio-pci, for programs in user space.
    VfioPci,
    /// The kernel's own driver for them.
    Kernel,
}

/// The number of a VLAN; 0 is none (IEEE 802.1Q).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u16")]
pub struct Vlan(u16);

impl Vlan {
    /// The highest number.
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
        let number = parse_decimal(text).and_then(|number| u16::try_from(number).ok());
        let vlan = number.and_then(|number| Vlan::try_from(number).ok());
        vlan.ok_or_else(|| mismatch_error("a VLAN from 1 to 4094, or 0 for none", text))
    }
}

impl fmt::Display for Vlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The hardware address of an Ethernet interface that one interface alone may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct MacAddress([u8; 6]);

impl MacAddress {
    /// The address that the kernel tells; it may be of any kind, all zeros among them.
    pub fn from_kernel(bytes: [u8; 6]) -> Self {
        MacAddress(bytes)
    }

    pub fn bytes(self) -> [u8; 6] {
        self.0
    }

    /// The address that many after this one; none where that would be of another vendor's range (the
    /// first three bytes).
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
        const EXPECTED: &str =
            "the hardware address of one interface, as \"02:00:00:00:10:00\" is one";
        let bytes = parse_hwaddr(text).and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
        // The lowest bit of the first byte is set in addresses of groups.
        let usable = |bytes: &[u8; 6]| bytes[0] & 1 == 0 && *bytes != [0; 6];
        let bytes = bytes.filter(usable);
        bytes.map(MacAddress).ok_or_else(|| mismatch_error(EXPECTED, text))
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_hwaddr(&self.0))
    }
}

/// In which network namespaces RDMA devices are seen (rdma-system(8)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RdmaNetns {
    /// All see all devices.
    Shared,
    /// Each device is in one.
    Exclusive,
}

impl fmt::Display for RdmaNetns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

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
        let kib = parse_kib(text).filter(|kib| kib.is_power_of_two());
        kib.map(PageSize::from_kib).ok_or_else(|| {
            mismatch_error("the size of a huge page, such as \"2Mi\" or \"1Gi\"", text)
        })
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1 << 20, "Gi"), (1 << 10, "Mi")];
        let whole = units.into_iter().find(|(unit, _)| self.kib.is_multiple_of(*unit));
        let (unit, suffix) = whole.unwrap_or((1, "Ki"));
        write!(f, "{}{suffix}", self.kib / unit)
    }
}

/// The number of a NUMA node, which is a key of TOML and so a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct NumaNodeId(pub u32);

impl FromStr for NumaNodeId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let number = parse_digits(text).map(NumaNodeId);
        number.ok_or_else(|| mismatch_error("the number of a NUMA node", text))
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
            assert!(
                error.starts_with("expected the name of an interface or a PCI address, found "),
                "{bad}: {error}"
            );
        }
    }

    #[test]
    fn a_hardware_address_is_of_one_interface() {
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
    fn a_page_size_is_named_in_its_largest_unit() {
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
    fn a_vlan_is_a_number_that_frames_can_carry() {
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
