//! Data Direct: a PCI function through which a ConnectX-8 accesses GPU memory outside of the NIC's PCIe tree. Both have
//! the same UUID in their vital product data (VPD), by which `rdma_topo` of rdma-core pairs them too
//! (kernel-boot/rdma_topo).

use std::collections::BTreeMap;

use onload_core::class::Class;
use onload_sys::pci::PciAddress;
use onload_sys::text::ErrorChain;

use super::gpu;
use super::pci::{PciFunction, PciFunctions, PciId};
use super::probe::Probe;
use super::unread::as_root;

const VENDOR: u16 = 0x15b3;
/// `cx_dma` of rdma_topo.
const DATA_DIRECT: u16 = 0x2100;
/// `cx_nic` of rdma_topo. The VPD of other cards is not read, since some hang.
const NICS: [u16; 3] = [0x1021, 0x1023, 0x1025];

/// The sysfs file with the VPD, readable only for root (`Documentation/ABI/testing/sysfs-bus-pci`).
pub const VPD: &str = "vpd";
/// An address of VPD has 15 bits (PCI Local Bus Specification 3.0, appendix I).
const MAX_VPD_BYTES: u64 = 1 << 15;

const LARGE: u8 = 0x80;
const READ_ONLY: u8 = 0x90;
/// The type of the small item that ends VPD, with any length.
const END: u8 = 0x0f;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataDirect {
    /// The Data Direct function of a NIC, by the NIC's address.
    by_nic: BTreeMap<PciAddress, PciAddress>,
    /// The reason why pairs are unknown.
    obstacle: Option<String>,
}

impl DataDirect {
    /// Reads the pairs. Reads nothing on a host without such functions or without GPUs.
    pub(crate) fn read(probe: &Probe<'_>, functions: &PciFunctions) -> DataDirect {
        let mut by_nic = BTreeMap::new();
        let obstacle = read_pairs(probe, functions, &mut by_nic).err();
        DataDirect { by_nic, obstacle }
    }

    pub fn function_for(&self, nic: PciAddress) -> Option<PciAddress> {
        self.by_nic.get(&nic).copied()
    }

    /// Iterates over the NICs and their Data Direct functions by address.
    pub fn iter(&self) -> impl Iterator<Item = (PciAddress, PciAddress)> {
        self.by_nic.iter().map(|(nic, function)| (*nic, *function))
    }

    pub fn obstacle(&self) -> Option<&str> {
        self.obstacle.as_deref()
    }
}

fn read_pairs(
    probe: &Probe<'_>,
    functions: &PciFunctions,
    by_nic: &mut BTreeMap<PciAddress, PciAddress>,
) -> Result<(), String> {
    if gpu::gpus(functions).next().is_none() {
        return Ok(());
    }
    let mut by_uuid = BTreeMap::new();
    for function in functions.iter().filter(|one| is_data_direct(one.id)) {
        let address = function.address;
        let uuid = read_uuid(probe, function)?
            .ok_or_else(|| unknown_reason(function, "it has no UUID there"))?;
        if let Some(other) = by_uuid.insert(uuid, address) {
            return Err(format!(
                "the Data Direct functions {other} and {address} have the same UUID in their VPD"
            ));
        }
    }
    if by_uuid.is_empty() {
        return Ok(());
    }
    for nic in functions.iter().filter(|one| is_nic(one)) {
        // A card without Data Direct has no UUID.
        let uuid = read_uuid(probe, nic)?;
        if let Some(function) = uuid.and_then(|uuid| by_uuid.get(&uuid)) {
            by_nic.insert(nic.address, *function);
        }
    }
    Ok(())
}

pub fn is_data_direct(id: PciId) -> bool {
    (id.vendor, id.device) == (VENDOR, DATA_DIRECT)
}

/// Returns whether a card may have a Data Direct function.
fn is_nic(function: &PciFunction) -> bool {
    let id = function.id;
    function.physical_function.is_none() && id.vendor == VENDOR && NICS.contains(&id.device)
}

fn unknown_reason(function: &PciFunction, reason: &str) -> String {
    let what = if is_data_direct(function.id) { "Data Direct function" } else { "NIC" };
    format!(
        "the VPD of the {what} {}, which identifies the parts of Data Direct, could not be read: \
         {reason}",
        function.address
    )
}

/// Returns the UUID, or `None` if the card has none. Fails if it is unknown.
fn read_uuid(probe: &Probe<'_>, function: &PciFunction) -> Result<Option<String>, String> {
    let reason = match probe.host().bytes(&function.directory().join(VPD), MAX_VPD_BYTES) {
        Ok(Some(vpd)) => match find_uuid(&vpd) {
            Ok(uuid) => return Ok(uuid.map(str::to_owned)),
            Err(VpdError) => "it is not valid VPD".to_owned(),
        },
        Ok(None) => "there is none".to_owned(),
        Err(error) => {
            let reason = ErrorChain(&error).to_string();
            // Only root can determine the nearest NICs, and thus the devices offered under the names of GPUs.
            if error.is_denied() {
                probe.with_classes(&[Class::Rdma], || probe.ok_or_warn::<()>(Err(error)));
                format!("{reason}{}", as_root())
            } else {
                reason
            }
        }
    };
    Err(unknown_reason(function, &reason))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VpdError;

/// Returns the value of keyword V3 in the read-only section (PCI Local Bus Specification 3.0, appendix I).
pub fn find_uuid(vpd: &[u8]) -> Result<Option<&str>, VpdError> {
    let mut rest = vpd;
    loop {
        let (tag, item, after) = parse_item(rest)?;
        if tag == READ_ONLY {
            return find_v3(item);
        }
        if tag & LARGE == 0 && tag >> 3 == END {
            return Ok(None);
        }
        rest = after;
    }
}

/// Splits the first item into its tag, its data and the rest.
fn parse_item(vpd: &[u8]) -> Result<(u8, &[u8], &[u8]), VpdError> {
    let (length, rest) = match vpd {
        // A card without VPD returns these bytes.
        [] | [0 | 0xff, ..] => return Err(VpdError),
        [tag, low, high, rest @ ..] if tag & LARGE != 0 => {
            (u16::from_le_bytes([*low, *high]), rest)
        }
        [tag, rest @ ..] if tag & LARGE == 0 => (u16::from(tag & 0x07), rest),
        _ => return Err(VpdError),
    };
    let (item, after) = rest.split_at_checked(length.into()).ok_or(VpdError)?;
    Ok((vpd[0], item, after))
}

fn find_v3(mut fields: &[u8]) -> Result<Option<&str>, VpdError> {
    while let [first, second, length, rest @ ..] = fields {
        let (value, after) = rest.split_at_checked((*length).into()).ok_or(VpdError)?;
        if [*first, *second] == *b"V3" {
            let value = value.trim_ascii_end();
            let value = str::from_utf8(value).map_err(|_| VpdError)?;
            let is_plain = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_graphic());
            return if is_plain { Ok(Some(value)) } else { Err(VpdError) };
        }
        fields = after;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::test_tree::{AsHost, Tree};

    const ONE: &str = "f8c94c9d0e1bec1180001070fd4a4a2c";
    const OTHER: &str = "6bbbab98e1e3ec118000b83fd29dd2e2";

    /// A GPU with a Data Direct function beside it, and NICs on roots of their own.
    fn machine(of_function: &str, nics: &[(&str, &str)]) -> Tree {
        let mut text = format!(
            "pci0008:00 0\n  bridge 0008:00:00.0\n    gpu 0008:06:00.0 10de:31c2\n    dma 0008:05:00.0 V3={of_function}\n"
        );
        for (root, uuid) in nics {
            text += &format!("pci{root}:00 0\n  nic {root}:03:00.0 mlx5_{root} 800 V3={uuid}\n");
        }
        let tree = Tree::new();
        tree.machine(&text);
        tree
    }

    fn read(tree: &Tree) -> DataDirect {
        let host = tree.host();
        let probe = Probe::new(&host);
        DataDirect::read(&probe, &PciFunctions::read(&probe))
    }

    fn address(text: &str) -> PciAddress {
        text.parse().unwrap()
    }

    #[test]
    fn a_nic_has_the_function_with_its_uuid() {
        let found = read(&machine(ONE, &[("0000", ONE), ("0002", OTHER)]));
        assert_eq!(found.obstacle(), None);
        let function = found.function_for(address("0000:03:00.0"));
        assert_eq!(function, Some(address("0008:05:00.0")));
        assert_eq!(found.function_for(address("0002:03:00.0")), None);
    }

    #[test]
    fn what_cannot_be_paired_is_told() {
        let file = |at: &str| format!("/sys/bus/pci/devices/{at}/vpd");
        let (function, nic) = (file("0008:05:00.0"), file("0000:03:00.0"));
        let cases: [(&str, &[u8], &str); 5] = [
            (&function, b"\x90\x09\x00", "the Data Direct function 0008:05:00.0"),
            (&function, b"\x78", "it has no UUID there"),
            (&nic, b"\xff\xff\xff\xff", "the NIC 0000:03:00.0"),
            (&nic, b"\x90\x05\x00V3\x02\x80\x80\x78", "it is not valid VPD"),
            (&nic, &[0; 40_000], "longer than 32768 bytes"),
        ];
        for (path, content, expected) in cases {
            let tree = machine(ONE, &[("0000", ONE)]);
            tree.file(path, content);
            let found = read(&tree);
            let why = found.obstacle().unwrap();
            assert!(why.contains(expected), "{why}");
            assert_eq!(found.iter().count(), 0);
        }
        let tree = machine(ONE, &[("0000", ONE)]);
        tree.remove(&nic);
        assert!(read(&tree).obstacle().unwrap().ends_with(": there is none"));
    }

    #[test]
    fn two_functions_of_one_uuid_are_paired_with_nothing() {
        let tree = machine(ONE, &[("0000", ONE)]);
        tree.machine(&format!("pci0009:00 0\n  dma 0009:05:00.0 V3={ONE}\n"));
        let found = read(&tree);
        assert!(found.obstacle().unwrap().contains("have the same UUID"));
    }

    #[test]
    fn no_vpd_is_read_of_other_hardware() {
        let seen = |tree: &Tree| {
            let mut host = tree.host();
            host.start_recording();
            let probe = Probe::new(&host);
            DataDirect::read(&probe, &PciFunctions::read(&probe));
            let seen = host.stop_recording().into_keys();
            seen.filter(|path| path.ends_with(VPD)).count()
        };
        let nic = format!("pci0000:00 0\n  nic 0000:03:00.0 mlx5_0 400 V3={ONE}\n");
        let gpu = "pci0008:00 0\n  gpu 0008:06:00.0 10de:31c2\n";
        let function = format!("pci0009:00 0\n  dma 0009:05:00.0 V3={ONE}\n");
        let alike = "pci0010:00 0\n  nic 0010:03:00.0 mlx5_1 400\n";
        for (machine, expected) in [
            (format!("{nic}{gpu}"), 0),
            (format!("{nic}{function}"), 0),
            (format!("{nic}{gpu}{function}"), 2),
        ] {
            let tree = Tree::new();
            tree.machine(&machine);
            assert_eq!(seen(&tree), expected, "{machine}");
        }
        // A card of another kind, with VPD.
        let tree = Tree::new();
        tree.machine(&format!("{nic}{gpu}{function}{alike}"));
        tree.vpd("0010:03:00.0", ONE);
        tree.attribute("/sys/bus/pci/devices/0010:03:00.0/device", "0x101d");
        assert_eq!(seen(&tree), 2);
    }

    #[test]
    fn the_uuid_is_found_wherever_it_stands() {
        let id = b"\x82\x03\x00NIC";
        let last = b"\x90\x12\x00SN\x03123V3\x04abcdRV\x02\x00\x00\x78";
        let whole = [&id[..], last].concat();
        assert_eq!(find_uuid(&whole), Ok(Some("abcd")));
        assert_eq!(find_uuid(b"\x90\x07\x00V3\x04ab  \x78"), Ok(Some("ab")));
        assert_eq!(find_uuid(b"\x90\x06\x00SN\x03123\x78"), Ok(None));
        assert_eq!(find_uuid(b"\x82\x01\x00N\x79\x00"), Ok(None));
        for bad in [
            &b""[..],
            b"\x00\x00\x00",
            b"\xff\xff",
            b"\x82",
            b"\x82\x05",
            b"\x82\x05\x00ab",
            b"\x90\x05\x00V3\x09ab",
            b"\x90\x03\x00V3\x00",
            b"\x82\x01\x00N",
        ] {
            assert_eq!(find_uuid(bad), Err(VpdError), "{bad:?}");
        }
    }
}
