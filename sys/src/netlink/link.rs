//! Network interfaces as the kernel lists them, and changes to them (rtnetlink(7), include/uapi/linux/if_link.h). Names
//! and other values that a container may have set are bytes, since they need not be UTF-8.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::pci::PciAddress;

use super::message::{
    self, CREATE, EXCLUSIVE, encode_attribute, encode_nested, encode_text, parse_attributes,
    u16_at, u32_at, until_nul,
};

pub const NEW: u16 = 16; // RTM_NEWLINK
pub const DELETE: u16 = 17; // RTM_DELLINK
pub const GET: u16 = 18; // RTM_GETLINK
pub const SET: u16 = 19; // RTM_SETLINK
const ADD_PROPERTY: u16 = 108; // RTM_NEWLINKPROP
const DELETE_PROPERTY: u16 = 109; // RTM_DELLINKPROP

/// `RTM_GETNSID`, the length of its header, `NETNSA_NSID` and `NETNSA_FD` (include/uapi/linux/net_namespace.h).
pub const GET_NAMESPACE: u16 = 90;
const NAMESPACE_HEADER: usize = 4;
const NAMESPACE_NUMBER: u16 = 1;
const NAMESPACE_NUMBER_FD: u16 = 3;

pub(super) const HEADER: usize = 16; // struct ifinfomsg
// The attributes of an interface (`IFLA_*`).
const ADDRESS: u16 = 1;
const BROADCAST: u16 = 2;
const NAME: u16 = 3;
const MTU: u16 = 4;
const LOWER: u16 = 5;
const MASTER: u16 = 10;
const QUEUE_LENGTH: u16 = 13;
const LINK_MODE: u16 = 17;
const INFO: u16 = 18;
const ALIAS: u16 = 20;
const NAMESPACE_FD: u16 = 28;
const EXT_MASK: u16 = 29;
const PROMISCUITY: u16 = 30;
const LOWER_NAMESPACE: u16 = 37;
const XDP: u16 = 43;
const PROPERTIES: u16 = 52;
const ALTERNATIVE_NAME: u16 = 53;
const PERMANENT_ADDRESS: u16 = 54;
const PARENT: u16 = 56;
const PARENT_BUS: u16 = 57;
/// `IFLA_GROUP`.
pub const GROUP: u16 = 27;
/// Further attributes that can be set: those above, `IFLA_GSO_MAX_SEGS`, `IFLA_GSO_MAX_SIZE`, `IFLA_GRO_MAX_SIZE`,
/// `IFLA_GSO_IPV4_MAX_SIZE` and `IFLA_GRO_IPV4_MAX_SIZE`. The kernel derives the sizes for IPv4 from the other two
/// sizes unless they are set.
const SETTINGS: [u16; 10] = [BROADCAST, QUEUE_LENGTH, LINK_MODE, ALIAS, GROUP, 40, 41, 58, 63, 64];
const INFO_KIND: u16 = 1; // IFLA_INFO_KIND
const INFO_DATA: u16 = 2; // IFLA_INFO_DATA
const BOND_MODE: u16 = 1; // IFLA_BOND_MODE
const IPVLAN_MODE: u16 = 1; // IFLA_IPVLAN_MODE
const VLAN_PROTOCOL: u16 = 5; // IFLA_VLAN_PROTOCOL
/// `IFLA_XDP_FD`, `IFLA_XDP_ATTACHED` and `IFLA_XDP_FLAGS`.
const XDP_FD: u16 = 1;
const XDP_ATTACHED: u16 = 2;
const XDP_FLAGS: u16 = 3;
/// `IFLA_XDP_PROG_ID`, and the IDs for each mode: driver, generic and hardware.
const XDP_PROGRAMS: [u16; 4] = [4, 5, 6, 7];
const WITHOUT_STATISTICS: u32 = 8; // RTEXT_FILTER_SKIP_STATS
pub const UP: u32 = 0x1; // IFF_UP
pub const PROMISCUOUS: u32 = 0x100; // IFF_PROMISC
/// The flags that administrators set: `IFF_UP`, `IFF_NOARP`, `IFF_PROMISC`, `IFF_ALLMULTI` and `IFF_MULTICAST`.
pub const SETTABLE_FLAGS: u32 = UP | 0x80 | 0x100 | 0x200 | 0x1000;
/// Length of the longest hardware address in bytes (`MAX_ADDR_LEN`).
const MAX_ADDRESS: usize = 32;
/// Kinds of interfaces that are stacked on another one and receive its packets. They stay on it when it moves to
/// another namespace (drivers/net/macvlan.c, `macvlan_device_event`, and the same function of the other drivers).
const UPPER_KINDS: [&[u8]; 7] =
    [b"macvlan", b"macvtap", b"ipvlan", b"ipvtap", b"vlan", b"macsec", b"ipoib"];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// The interface index in its namespace.
    pub index: u32,
    /// `IFF_*`.
    pub flags: u32,
    pub name: Vec<u8>,
    /// Alternative names, sorted.
    pub alternative_names: Vec<Vec<u8>>,
    pub address: Vec<u8>,
    /// The address that the driver read from the card.
    pub permanent_address: Vec<u8>,
    /// The MTU in bytes.
    pub mtu: u32,
    /// The number of requests for promiscuous mode that are in force (`IFLA_PROMISCUITY`).
    pub promiscuity: u32,
    /// The attributes in [`SETTINGS`], by type, as the kernel has them. The alias is empty if there is none.
    pub settings: BTreeMap<u16, Vec<u8>>,
    /// The index of the bond, bridge or other interface that this one is a member of.
    pub master: Option<u32>,
    /// The index of the interface that this one is stacked on (`IFLA_LINK`).
    pub lower: Option<u32>,
    /// The namespace ID (`nsid`) of the lower interface, if it is in another namespace.
    pub lower_namespace: Option<i32>,
    /// The kind of a virtual interface, for example `bond` or `vlan`. Empty for other interfaces.
    pub kind: Vec<u8>,
    /// The mode of a bond or an ipvlan, or the EtherType of a VLAN's tag.
    pub variant: Option<u16>,
    /// `XDP_FLAGS_*_MODE` of each attached XDP program.
    pub xdp_modes: &'static [u32],
    /// The IDs of the attached XDP programs.
    pub xdp_programs: Vec<u32>,
    /// The PCI function of the interface. Linux reports it since 5.14.
    pub function: Option<PciAddress>,
}

impl Link {
    /// Returns true if the interface has this name or alternative name.
    pub fn has_name(&self, name: &[u8]) -> bool {
        self.names().any(|own_name| own_name == name)
    }

    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        let alternative_names = self.alternative_names.iter().map(Vec::as_slice);
        std::iter::once(self.name.as_slice()).chain(alternative_names)
    }

    pub fn display_name(&self) -> String {
        String::from_utf8_lossy(&self.name).into_owned()
    }

    /// Returns the index of the lower interface. `None` if it is in another namespace, where the index means another
    /// interface, as the peer of a veth may be.
    pub fn lower_in_same_namespace(&self) -> Option<u32> {
        self.lower.filter(|_| self.lower_namespace.is_none())
    }

    /// Returns true if the interface is stacked on the one with this index, in the same namespace.
    pub fn is_upper_of(&self, index: u32) -> bool {
        self.is_upper_of_in(None, index)
    }

    /// Returns true if the interface is stacked on the one with this index. `namespace` is the `nsid` of the lower
    /// interface's namespace, or `None` for the same namespace.
    pub fn is_upper_of_in(&self, namespace: Option<i32>, index: u32) -> bool {
        self.lower == Some(index)
            && self.lower_namespace == namespace
            && UPPER_KINDS.contains(&self.kind.as_slice())
    }
}

pub fn dump_payload() -> Vec<u8> {
    let mask = encode_attribute(EXT_MASK, &WITHOUT_STATISTICS.to_ne_bytes());
    [header(0, 0, 0), mask].concat()
}

/// Parses an `RTM_NEWLINK` message. Returns `None` if it is malformed.
pub fn parse(payload: &[u8]) -> Option<Link> {
    let mut link =
        Link { index: u32_at(payload, 4)?, flags: u32_at(payload, 8)?, ..Link::default() };
    let (mut parent, mut bus) = (None, None);
    for (kind, value) in parse_attributes(payload.get(HEADER..)?) {
        let word = || u32_at(value, 0);
        match kind {
            NAME => link.name = until_nul(value).to_vec(),
            ADDRESS => link.address = value.to_vec(),
            PERMANENT_ADDRESS => link.permanent_address = value.to_vec(),
            MTU => link.mtu = word()?,
            MASTER => link.master = word().filter(|index| *index != 0),
            LOWER => link.lower = word().filter(|index| *index != 0),
            LOWER_NAMESPACE => link.lower_namespace = Some(word()?.cast_signed()),
            PROMISCUITY => link.promiscuity = word()?,
            number if SETTINGS.contains(&number) => {
                link.settings.insert(number, value.to_vec());
            }
            INFO => {
                let kind = message::find_attribute(value, INFO_KIND);
                link.kind = kind.map_or_else(Vec::new, |kind| until_nul(kind).to_vec());
                let data = message::find_attribute(value, INFO_DATA);
                link.variant = data.and_then(|data| variant(&link.kind, data));
            }
            XDP => {
                let attached = message::find_attribute(value, XDP_ATTACHED);
                link.xdp_modes = attached.and_then(<[u8]>::first).map_or(&[], xdp_modes);
                link.xdp_programs = xdp_programs(value);
            }
            PROPERTIES => link.alternative_names = alternative_names(value),
            PARENT => parent = Some(until_nul(value)),
            PARENT_BUS => bus = Some(until_nul(value)),
            _ => {}
        }
    }
    link.settings.entry(ALIAS).or_default();
    let parent = parent.filter(|_| bus == Some(b"pci"));
    link.function = parent.and_then(|parent| std::str::from_utf8(parent).ok()?.parse().ok());
    Some(link)
}

fn variant(kind: &[u8], data: &[u8]) -> Option<u16> {
    let value = |number| message::find_attribute(data, number);
    match kind {
        b"bond" => Some((*value(BOND_MODE)?.first()?).into()),
        b"ipvlan" => u16_at(value(IPVLAN_MODE)?, 0),
        // Network byte order.
        b"vlan" => Some(u16::from_be_bytes(*value(VLAN_PROTOCOL)?.first_chunk()?)),
        _ => None,
    }
}

/// Converts `XDP_ATTACHED_*` (none, driver, generic, hardware, or several) to `XDP_FLAGS_*_MODE`. Returns all modes for
/// several.
fn xdp_modes(attached: &u8) -> &'static [u32] {
    match attached {
        0 => &[],
        1 => &[4],
        2 => &[2],
        3 => &[8],
        _ => &[2, 4, 8],
    }
}

fn xdp_programs(value: &[u8]) -> Vec<u32> {
    parse_attributes(value)
        .filter(|(kind, _)| XDP_PROGRAMS.contains(kind))
        .filter_map(|(_, id)| u32_at(id, 0))
        .collect()
}

fn alternative_names(value: &[u8]) -> Vec<Vec<u8>> {
    let mut names: Vec<_> = parse_attributes(value)
        .filter(|(kind, _)| *kind == ALTERNATIVE_NAME)
        .map(|(_, name)| until_nul(name).to_vec())
        .collect();
    names.sort_unstable();
    names
}

/// Encodes a `struct ifinfomsg`.
pub(super) fn header(index: u32, flags: u32, change: u32) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend(index.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(change.to_ne_bytes());
    bytes
}

/// A change to an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkChange<'a> {
    /// Sets the flags in `mask` to their values in `flags`.
    Flags {
        mask: u32,
        flags: u32,
    },
    Name(&'a [u8]),
    /// Adds or removes an alternative name.
    AlternativeName {
        name: &'a [u8],
        is_set: bool,
    },
    Address(Vec<u8>),
    /// Bytes.
    Mtu(u32),
    /// Any attribute.
    Setting {
        /// The type of the attribute (`IFLA_*`).
        kind: u16,
        value: &'a [u8],
    },
    /// Detaches the XDP program of this mode.
    NoXdp(u32),
}

impl LinkChange<'_> {
    /// Returns the type, the flags and the payload of the message for the interface with this index.
    pub fn request(&self, index: u32) -> (u16, u16, Vec<u8>) {
        let with = |attribute: Vec<u8>| [header(index, 0, 0), attribute].concat();
        let payload = match self {
            LinkChange::Flags { mask, flags } => header(index, flags & mask, *mask),
            LinkChange::Name(name) => with(encode_text(NAME, name)),
            LinkChange::Address(bytes) => with(encode_attribute(ADDRESS, bytes)),
            LinkChange::Mtu(mtu) => with(encode_attribute(MTU, &mtu.to_ne_bytes())),
            LinkChange::Setting { kind, value } => with(encode_attribute(*kind, value)),
            LinkChange::NoXdp(mode) => {
                let none = encode_attribute(XDP_FD, &(-1i32).to_ne_bytes());
                let flags = encode_attribute(XDP_FLAGS, &mode.to_ne_bytes());
                with(encode_nested(XDP, &[none, flags].concat()))
            }
            LinkChange::AlternativeName { name, is_set } => {
                let list = with(encode_nested(PROPERTIES, &encode_text(ALTERNATIVE_NAME, name)));
                return if *is_set {
                    (ADD_PROPERTY, CREATE | EXCLUSIVE, list)
                } else {
                    (DELETE_PROPERTY, 0, list)
                };
            }
        };
        (SET, 0, payload)
    }
}

/// Returns the payload of [`SET`] that moves an interface to a namespace and renames it if `name` is set.
pub fn to_namespace(index: u32, namespace: BorrowedFd<'_>, name: Option<&[u8]>) -> Vec<u8> {
    let fd = namespace.as_raw_fd().to_ne_bytes();
    let name = name.map_or_else(Vec::new, |name| encode_text(NAME, name));
    [header(index, 0, 0), encode_attribute(NAMESPACE_FD, &fd), name].concat()
}

/// Returns the payload of [`GET_NAMESPACE`], which asks for the `nsid` of a namespace.
pub fn namespace_id_payload(namespace: BorrowedFd<'_>) -> Vec<u8> {
    let fd = namespace.as_raw_fd().to_ne_bytes();
    let mut message = vec![0; NAMESPACE_HEADER];
    message.extend(encode_attribute(NAMESPACE_NUMBER_FD, &fd));
    message
}

/// Parses the `nsid` in the answer to [`GET_NAMESPACE`]. Returns `None` if the namespace has no `nsid` yet.
pub fn parse_namespace_number(payload: &[u8]) -> Option<i32> {
    let number = message::find_attribute(payload.get(NAMESPACE_HEADER..)?, NAMESPACE_NUMBER)?;
    let number = u32_at(number, 0)?.cast_signed();
    (number >= 0).then_some(number)
}

/// Returns the payload of [`DELETE`].
pub fn delete_payload(index: u32) -> Vec<u8> {
    header(index, 0, 0)
}

/// Returns the payload of [`DELETE`] for all interfaces of a group. The kernel deletes none if one of them cannot be
/// deleted (net/core/rtnetlink.c, `rtnl_group_dellink`).
pub fn delete_group_payload(group: u32) -> Vec<u8> {
    [header(0, 0, 0), encode_attribute(GROUP, &group.to_ne_bytes())].concat()
}

/// Formats a hardware address, for example `02:00:00:00:10:01`.
pub fn format_hwaddr(bytes: &[u8]) -> String {
    let pairs: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    pairs.join(":")
}

pub fn parse_hwaddr(text: &str) -> Option<Vec<u8>> {
    let pair = |pair: &str| {
        let is_pair = pair.len() == 2 && pair.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_pair.then(|| u8::from_str_radix(pair, 16).ok())?
    };
    let bytes: Vec<u8> = text.split(':').map(pair).collect::<Option<_>>()?;
    (bytes.len() <= MAX_ADDRESS).then_some(bytes)
}

/// Checks properties that hold for any bytes.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    if let Some(link) = parse(bytes) {
        assert!(link.names().all(|name| !name.contains(&0)));
        assert!(link.alternative_names.is_sorted());
        let shown = format_hwaddr(&link.address);
        if (1..=MAX_ADDRESS).contains(&link.address.len()) {
            assert_eq!(parse_hwaddr(&shown), Some(link.address));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message as a VF of igb has it, with what a container may have done to it.
    fn payload(bus: &[u8]) -> Vec<u8> {
        let names =
            [encode_text(ALTERNATIVE_NAME, b"zz"), encode_text(ALTERNATIVE_NAME, b"enp3\xff")]
                .concat();
        let xdp =
            [encode_attribute(XDP_ATTACHED, &[2]), encode_attribute(4, &[9, 0, 0, 0])].concat();
        [
            header(7, UP | 0x100, 0),
            encode_text(NAME, b"ens1v0"),
            encode_attribute(ADDRESS, &[2, 0, 0, 0, 0x10, 1]),
            encode_attribute(PERMANENT_ADDRESS, &[2, 0, 0, 0, 0x10, 2]),
            encode_attribute(MTU, &1500u32.to_ne_bytes()),
            encode_attribute(QUEUE_LENGTH, &1000u32.to_ne_bytes()),
            encode_text(ALIAS, b"rack 7"),
            encode_attribute(MASTER, &0u32.to_ne_bytes()),
            encode_nested(XDP, &xdp),
            encode_nested(PROPERTIES, &names),
            encode_text(PARENT, b"0000:03:10.0"),
            encode_text(PARENT_BUS, bus),
            encode_attribute(BROADCAST, &[255; 6]),
            encode_attribute(LINK_MODE, &[1]),
            encode_attribute(27, &7u32.to_ne_bytes()),
            encode_attribute(41, &65536u32.to_ne_bytes()),
            encode_attribute(999, b"of a newer kernel"),
        ]
        .concat()
    }

    #[test]
    fn an_interface_is_read_with_all_its_names_and_its_function() {
        let link = parse(&payload(b"pci")).unwrap();
        let wanted = Link {
            index: 7,
            flags: UP | 0x100,
            name: b"ens1v0".to_vec(),
            alternative_names: vec![b"enp3\xff".to_vec(), b"zz".to_vec()],
            address: vec![2, 0, 0, 0, 0x10, 1],
            permanent_address: vec![2, 0, 0, 0, 0x10, 2],
            mtu: 1500,
            settings: BTreeMap::from([
                (BROADCAST, vec![255; 6]),
                (QUEUE_LENGTH, 1000u32.to_ne_bytes().to_vec()),
                (LINK_MODE, vec![1]),
                (ALIAS, b"rack 7\0".to_vec()),
                (27, 7u32.to_ne_bytes().to_vec()),
                (41, 65536u32.to_ne_bytes().to_vec()),
            ]),
            xdp_modes: &[2],
            xdp_programs: vec![9],
            function: Some("0000:03:10.0".parse().unwrap()),
            ..Link::default()
        };
        assert_eq!(link, wanted);
        assert!(link.has_name(b"ens1v0") && link.has_name(b"zz") && !link.has_name(b"z"));
    }

    #[test]
    fn a_parent_on_another_bus_is_no_pci_function() {
        assert_eq!(parse(&payload(b"virtio")).unwrap().function, None);
        let upper =
            |attributes: &[Vec<u8>]| parse(&[header(9, 0, 0), attributes.concat()].concat());
        assert_eq!(upper(&[encode_text(PARENT, b"0000:03:10.0")]).unwrap().function, None);
        let kind = encode_nested(INFO, &encode_text(INFO_KIND, b"macvlan"));
        let on = encode_attribute(LOWER, &7u32.to_ne_bytes());
        let elsewhere = encode_attribute(LOWER_NAMESPACE, &0u32.to_ne_bytes());
        let stands = |attributes: &[Vec<u8>]| upper(attributes).unwrap().is_upper_of(7);
        assert!(stands(&[kind.clone(), on.clone()]));
        let moved = upper(&[kind.clone(), on.clone(), elsewhere.clone()]).unwrap();
        assert!(moved.is_upper_of_in(Some(0), 7) && !moved.is_upper_of_in(Some(1), 7));
        assert!(!stands(&[kind, on.clone(), elsewhere]));
        assert!(!stands(&[encode_nested(INFO, &encode_text(INFO_KIND, b"veth")), on]));
    }

    #[test]
    fn what_an_interface_is_of_its_kind_is_read_for_bonds_ipvlans_and_vlans() {
        let parse_variant = |kind: &[u8], data: &[u8]| {
            let info = [encode_text(INFO_KIND, kind), encode_nested(INFO_DATA, data)].concat();
            parse(&[header(9, 0, 0), encode_nested(INFO, &info)].concat()).unwrap().variant
        };
        let mode = encode_attribute(1, &[4]);
        assert_eq!(parse_variant(b"bond", &mode), Some(4));
        assert_eq!(parse_variant(b"ipvlan", &encode_attribute(1, &2u16.to_ne_bytes())), Some(2));
        let tag = [encode_attribute(1, &[9, 0]), encode_attribute(5, &[0x88, 0xa8])].concat();
        assert_eq!(parse_variant(b"vlan", &tag), Some(0x88a8));
        for (kind, data) in
            [(&b"macvlan"[..], &mode[..]), (b"ipvlan", &mode), (b"bond", &[]), (b"vlan", &mode)]
        {
            assert_eq!(parse_variant(kind, data), None);
        }
    }

    #[test]
    fn what_is_cut_short_is_no_interface_or_one_with_less() {
        let whole = payload(b"pci");
        for end in 0..whole.len() {
            let found = parse(&whole[..end]);
            assert_eq!(found.is_some(), end >= HEADER, "{end}");
        }
    }

    /// `strace -e trace=sendmsg ip link set eth0 mtu 9000` shows the same words.
    #[test]
    #[cfg(target_endian = "little")]
    fn a_change_is_one_attribute_of_one_interface() {
        let mtu = LinkChange::Mtu(9000).request(7).2;
        let wanted = [0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 4, 0, 40, 35, 0, 0];
        assert_eq!(mtu, wanted);
        let mask = SETTABLE_FLAGS;
        let flags = LinkChange::Flags { mask, flags: 0x1_0043 }.request(7).2;
        assert_eq!(flags[8..], [1, 0, 0, 0, 0x81, 0x13, 0, 0]);
        let name = LinkChange::Name(b"ens1").request(7).2;
        assert_eq!(name[HEADER..], [9, 0, 3, 0, b'e', b'n', b's', b'1', 0, 0, 0, 0]);
    }

    #[test]
    fn a_hardware_address_is_written_and_read_the_same() {
        for text in ["02:00:00:00:10:01", "00", "80:00:02:08:fe"] {
            assert_eq!(format_hwaddr(&parse_hwaddr(text).unwrap()), text);
        }
        for text in ["", "2", "02:", ":02", "02:0g", "02:+1", "0200", "02-00"] {
            assert_eq!(parse_hwaddr(text), None, "{text}");
        }
        assert_eq!(parse_hwaddr(&["02"; 33].join(":")), None);
    }
}
