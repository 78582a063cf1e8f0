//! Masks what identifies a machine: hardware addresses, GUIDs and the names derived from them. The
//! vendor's part stays, equal values stay equal, and related ones stay related (the GUID of a port
//! and the address of its interface, EUI-64 and MAC).
//!
//! Masks are numbers in the order of the original values. The same host therefore gives the same
//! capture, and a mask cannot be reversed, as a hash of 24 bits can.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

type Oui = [u8; 3];

/// The bit of a hardware address that marks it as locally administered; in an EUI-64 made from the
/// address it is inverted (RFC 4291, appendix A).
const LOCAL: u8 = 0x02;
/// The vendor bytes of QEMU's network cards, without that bit.
const QEMU: Oui = [0x50, 0x54, 0x00];
/// The upper half of a link-local GID, which is the same everywhere.
const LINK_LOCAL: [u8; 8] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];
/// The middle of a GUID made from a MAC: EUI-64, and the two that Mellanox uses.
const MIDDLES: [[u8; 2]; 3] = [[0xff, 0xfe], [0x03, 0x00], [0x00, 0x00]];
/// The prefix of the name of an interface or RDMA device that contains its address (udev's net_id,
/// and rdma-core's rdma_rename).
const NAMED: [&str; 9] = ["en", "wl", "ww", "sl", "ib", "roce", "iw", "opa", "usnic"];

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AddressIdentity {
    /// The vendor without the local bit, the middle of a GUID if it belongs to the number, and the
    /// number.
    Hardware(Oui, [u8; 2], [u8; 3]),
    /// The upper half of a GID.
    Subnet([u8; 8]),
    /// A UUID, which a hypervisor's buses have in paths.
    Uuid([u8; 16]),
}

/// The bytes of an address, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressPart {
    Mac,
    Guid,
    /// The upper half of a GID; the lower one is a GUID.
    Subnet,
    Uuid,
    /// Four bytes that say nothing of a machine.
    Plain,
}

impl AddressPart {
    fn length(self) -> usize {
        match self {
            AddressPart::Mac => 6,
            AddressPart::Guid | AddressPart::Subnet => 8,
            AddressPart::Uuid => 16,
            AddressPart::Plain => 4,
        }
    }

    /// Returns `None` for an address that identifies no device.
    fn identity(self, bytes: &[u8]) -> Option<AddressIdentity> {
        match (self, bytes) {
            (AddressPart::Uuid, _) => Some(AddressIdentity::Uuid(bytes.try_into().ok()?)),
            _ if is_blank(bytes) => None,
            (AddressPart::Mac, &[a, b, c, d, e, f]) => {
                Some(AddressIdentity::Hardware(vendor_of([a, b, c]), [0, 0], [d, e, f]))
            }
            (AddressPart::Guid, &[a, b, c, m, n, d, e, f]) => {
                let is_known = MIDDLES.contains(&[m, n]);
                let middle = if is_known { [0, 0] } else { [m, n] };
                Some(AddressIdentity::Hardware(vendor_of([a, b, c]), middle, [d, e, f]))
            }
            (AddressPart::Subnet, _) if bytes != LINK_LOCAL => {
                Some(AddressIdentity::Subnet(bytes.try_into().ok()?))
            }
            _ => None,
        }
    }
}

/// The notation of an address: digits per group, and separator.
struct AddressShape {
    groups: &'static [usize],
    separator: Option<u8>,
    parts: &'static [AddressPart],
}

impl AddressShape {
    fn parts<'b>(&self, mut bytes: &'b [u8]) -> impl Iterator<Item = (AddressPart, &'b [u8])> {
        self.parts.iter().filter_map(move |part| {
            let (part_bytes, rest) = bytes.split_at_checked(part.length())?;
            bytes = rest;
            Some((*part, part_bytes))
        })
    }
}

const SHAPES: [AddressShape; 6] = [
    // Of IP over InfiniBand: flags and queue pair, then the GID of the port (RFC 4391 section 9.1.1).
    AddressShape {
        groups: &[2; 20],
        separator: Some(b':'),
        parts: &[AddressPart::Plain, AddressPart::Subnet, AddressPart::Guid],
    },
    AddressShape {
        groups: &[4; 8],
        separator: Some(b':'),
        parts: &[AddressPart::Subnet, AddressPart::Guid],
    },
    AddressShape { groups: &[2; 6], separator: Some(b':'), parts: &[AddressPart::Mac] },
    AddressShape { groups: &[2; 6], separator: Some(b'-'), parts: &[AddressPart::Mac] },
    AddressShape { groups: &[4; 4], separator: Some(b':'), parts: &[AddressPart::Guid] },
    AddressShape { groups: &[8, 4, 4, 4, 12], separator: Some(b'-'), parts: &[AddressPart::Uuid] },
];
/// In names.
const DIGITS: [AddressShape; 2] = [
    AddressShape { groups: &[12], separator: None, parts: &[AddressPart::Mac] },
    AddressShape { groups: &[16], separator: None, parts: &[AddressPart::Guid] },
];

/// Masks texts in two passes: the first sees all of them, the second rewrites each.
#[derive(Debug, Default)]
pub(crate) struct Masker {
    random: BTreeSet<Oui>,
    numbers: BTreeMap<AddressIdentity, u32>,
}

impl Masker {
    pub(crate) fn collect(&mut self, text: &str) {
        rewrite(text, |part, bytes| {
            if let (AddressPart::Mac, &[first, b, c, ..]) = (part, bytes) {
                let vendor = vendor_of([first, b, c]);
                if first & LOCAL != 0 && vendor != QEMU {
                    self.random.insert(vendor);
                }
            }
            if let Some(identity) = part.identity(bytes) {
                self.numbers.insert(identity, 0);
            }
            bytes.to_vec()
        });
    }

    /// Assigns masks to everything collected. Values that are already masked keep their order, so
    /// the capture of a captured host is the same.
    pub(crate) fn assign_masks(&mut self) {
        let noticed = std::mem::take(&mut self.numbers).into_keys();
        let mut ordered: Vec<(Option<Oui>, AddressIdentity)> = noticed
            .map(|identity| match identity {
                AddressIdentity::Hardware(vendor, ..) => {
                    (Some(vendor_of(self.mask_vendor(vendor))), identity)
                }
                other => (None, other),
            })
            .collect();
        ordered.sort();
        let identities = ordered.into_iter().map(|(_, identity)| identity);
        self.numbers = identities.zip(1..).collect();
    }

    pub(crate) fn mask(&self, text: &str) -> String {
        rewrite(text, |part, bytes| self.mask_part(part, bytes))
    }

    pub(crate) fn mask_path(&self, path: &Path) -> PathBuf {
        let name = |name: &OsStr| {
            name.to_str().map_or_else(|| name.to_owned(), |name| OsString::from(self.mask(name)))
        };
        path.iter().map(name).collect()
    }

    fn mask_part(&self, part: AddressPart, bytes: &[u8]) -> Vec<u8> {
        let Some(identity) = part.identity(bytes) else { return bytes.to_vec() };
        let number = self.numbers.get(&identity).copied().unwrap_or_default();
        let [high, d, e, f] = number.to_be_bytes();
        match (part, bytes) {
            (AddressPart::Mac, &[a, b, c, ..]) => {
                [&self.mask_vendor([a, b, c])[..], &[d, e, f]].concat()
            }
            (AddressPart::Guid, &[a, b, c, m, n, ..]) => {
                let is_known = MIDDLES.contains(&[m, n]);
                let middle = if is_known { [m, n] } else { [0, 0] };
                [&self.mask_vendor([a, b, c])[..], &middle, &[d, e, f]].concat()
            }
            (AddressPart::Subnet, _) => vec![0xfe, 0xc0, 0, 0, high, d, e, f],
            (AddressPart::Uuid, _) => vec![0, 0, 0, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, high, d, e, f],
            _ => bytes.to_vec(),
        }
    }

    fn mask_vendor(&self, bytes: Oui) -> Oui {
        if self.random.contains(&vendor_of(bytes)) { [bytes[0] & LOCAL, 0, 0] } else { bytes }
    }
}

fn vendor_of([first, second, third]: Oui) -> Oui {
    [first & !LOCAL, second, third]
}

/// All zeros or all ones, which identify no device.
fn is_blank(bytes: &[u8]) -> bool {
    [0x00, 0xff].iter().any(|blank| bytes.iter().all(|byte| byte == blank))
}

/// The text with every part of an address replaced by the result of `replace`.
fn rewrite(text: &str, mut replace: impl FnMut(AddressPart, &[u8]) -> Vec<u8>) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    let mut before: Option<char> = None;
    while let Some(next) = rest.chars().next() {
        let begins = before.is_none_or(|c| !c.is_ascii_alphanumeric() && c != ':');
        let address = begins
            .then(|| find_first(&SHAPES, rest, 0).or_else(|| find_in_name(rest)))
            .flatten()
            .or_else(|| before.is_none().then(|| find_bare(rest)).flatten());
        if let Some(FoundAddress { shape, bytes, start, length }) = address {
            let (whole, tail) = rest.split_at(start + length);
            let parts = shape.parts(&bytes);
            let new: Vec<Vec<u8>> =
                parts.map(|(part, part_bytes)| replace(part, part_bytes)).collect();
            result.push_str(&whole[..start]);
            result.push_str(&format_like(&new.concat(), &whole[start..]));
            rest = tail;
            before = whole.chars().next_back();
        } else {
            result.push(next);
            before = Some(next);
            rest = &rest[next.len_utf8()..];
        }
    }
    result
}

/// An address at the beginning of a text, or `start` bytes after it.
struct FoundAddress {
    shape: &'static AddressShape,
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

fn find_first(shapes: &'static [AddressShape], text: &str, start: usize) -> Option<FoundAddress> {
    shapes.iter().find_map(|shape| {
        let (bytes, length) = parse_groups(&text.as_bytes()[start..], shape)?;
        Some(FoundAddress { shape, bytes, start, length })
    })
}

/// A name such as `enx525400123456` or `ibx0002c90300f9bfa1`.
fn find_in_name(text: &str) -> Option<FoundAddress> {
    let start = NAMED.iter().find_map(|prefix| {
        let rest = text.strip_prefix(prefix)?;
        rest.starts_with('x').then_some(prefix.len() + 1)
    })?;
    find_first(&DIGITS, text, start)
}

/// An address that is the whole text, without colons, as drivers use it to name their clocks
/// (`%pm`).
fn find_bare(text: &str) -> Option<FoundAddress> {
    let address = find_first(&DIGITS[..1], text, 0)?;
    text[address.length..].trim_ascii().is_empty().then_some(address)
}

/// The bytes of groups of hexadecimal digits, and the length of the groups; `None` if something
/// else is there, or if more of the same follows.
fn parse_groups(text: &[u8], shape: &AddressShape) -> Option<(Vec<u8>, usize)> {
    let mut bytes = Vec::new();
    let mut offset = 0;
    for (index, digits) in shape.groups.iter().enumerate() {
        if index > 0 {
            (text.get(offset).copied() == shape.separator).then_some(())?;
            offset += 1;
        }
        for pair in text.get(offset..offset + digits)?.chunks(2) {
            pair.iter().all(u8::is_ascii_hexdigit).then_some(())?;
            let pair = std::str::from_utf8(pair).ok()?;
            bytes.push(u8::from_str_radix(pair, 16).ok()?);
        }
        offset += digits;
    }
    let ends = match text.get(offset) {
        None => true,
        Some(next) => !next.is_ascii_alphanumeric() && Some(*next) != shape.separator,
    };
    ends.then_some((bytes, offset))
}

/// Other bytes in the shape of an address.
fn format_like(bytes: &[u8], address: &str) -> String {
    let hexadecimal: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut digits = hexadecimal.chars();
    address
        .chars()
        .filter_map(|letter| match letter.is_ascii_hexdigit() {
            true => digits.next(),
            false => Some(letter),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(texts: &[&str]) -> Vec<String> {
        let mut masker = Masker::default();
        for text in texts {
            masker.collect(text);
        }
        masker.assign_masks();
        texts.iter().map(|text| masker.mask(text)).collect()
    }

    #[test]
    fn an_address_keeps_its_vendor_and_gets_the_same_mask_everywhere() {
        let texts = [
            "00:0f:53:7a:11:21",
            "00:0f:53:7a:11:20\n",
            "of 00:0F:53:7a:11:21, again",
            "enx000f537a1120",
        ];
        assert_eq!(
            masked(&texts),
            [
                "00:0f:53:00:00:02",
                "00:0f:53:00:00:01\n",
                "of 00:0f:53:00:00:02, again",
                "enx000f53000001"
            ]
        );
    }

    #[test]
    fn the_guid_of_a_port_and_the_address_of_its_interface_stay_alike() {
        let texts = [
            "fe80:0000:0000:0000:0002:c903:00f9:bfa1",
            "80:00:02:08:fe:80:00:00:00:00:00:00:00:02:c9:03:00:f9:bf:a1",
            "0002:c903:00f9:bfa0",
            "ibx0002c90300f9bfa1",
        ];
        assert_eq!(
            masked(&texts),
            [
                "fe80:0000:0000:0000:0002:c903:0000:0002",
                "80:00:02:08:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:00:02",
                "0002:c903:0000:0001",
                "ibx0002c90300000002"
            ]
        );
    }

    #[test]
    fn a_guid_that_is_made_of_an_address_stays_made_of_it() {
        let texts = ["52:54:00:12:34:60", "5054:00ff:fe12:3460", "5254:00ff:fe12:3460"];
        assert_eq!(
            masked(&texts),
            ["52:54:00:00:00:01", "5054:00ff:fe00:0001", "5254:00ff:fe00:0001"]
        );
    }

    #[test]
    fn an_address_that_is_random_or_made_of_another_keeps_nothing() {
        let texts = ["02:42:ac:11:00:02", "0042:acff:fe11:0002", "b6:1c:9a:00:00:01"];
        assert_eq!(
            masked(&texts),
            ["02:00:00:00:00:01", "0000:00ff:fe00:0001", "02:00:00:00:00:02"]
        );
    }

    #[test]
    fn what_else_could_belong_to_the_number_of_a_guid_is_masked_with_it() {
        let texts = ["a088:c203:12ab:cdef", "a088:c203:13ab:cdef", "a088:c203:12ab:cdee"];
        let masks = masked(&texts);
        let distinct: BTreeSet<&String> = masks.iter().collect();
        assert_eq!(distinct.len(), 3, "{masks:?}");
        assert!(masks.iter().all(|mask| mask.starts_with("a088:c2")), "{masks:?}");
        assert!(masks.iter().all(|mask| !mask.contains("cd")), "{masks:?}");
    }

    #[test]
    fn the_prefix_of_a_site_is_masked_and_the_identity_of_a_virtual_device() {
        let texts =
            ["2a01:04f8:1234:5678:0002:c903:00f9:bfa1", "000d3a12-3456-000d-3a12-3456000d3a12"];
        assert_eq!(
            masked(&texts),
            ["fec0:0000:0000:0001:0002:c903:0000:0003", "00000000-0000-4000-8000-000000000002"]
        );
    }

    #[test]
    fn what_is_no_address_stays() {
        let texts = [
            "00:00:00:00:00:00",
            "ff:ff:ff:ff:ff:ff",
            "0000:0000:0000:0000",
            "0000:41:00.0",
            "pci0000:40/0000:40:00.0/0000:41:00.0",
            "10000:e1:00.0",
            "94e6b7eccf68029c8c29f301197d3e9a",
            "12:34:56",
            "52:54:00:12:34:60:70",
            "9.0.2.140",
            "enp65s0f0np0",
            "enxylophone12",
            "enx52540012",
            "é 1: CA",
            "",
        ];
        assert_eq!(masked(&texts), texts);
    }

    #[test]
    fn what_is_masked_already_stays() {
        let texts = [
            "b6:1c:9a:00:00:01",
            "52:54:00:12:34:60",
            "00:0f:53:7a:11:21",
            "5054:00ff:fe12:3460",
            "a088:c203:12ab:cdef",
            "2a01:04f8:1234:5678:0002:c903:00f9:bfa1",
            "000f537a1122\n",
        ];
        let once = masked(&texts);
        let again: Vec<&str> = once.iter().map(String::as_str).collect();
        assert_eq!(masked(&again), once);
        assert!(once[6].starts_with("000f530000"), "{once:?}");
    }

    #[test]
    fn a_path_is_masked_name_by_name() {
        let mut masker = Masker::default();
        masker.collect("enx525400123456.7");
        masker.assign_masks();
        let path = Path::new("/sys/class/net/enx525400123456.7/speed");
        assert_eq!(masker.mask_path(path), Path::new("/sys/class/net/enx525400000001.7/speed"));
    }
}
