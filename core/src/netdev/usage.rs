//! Decides whether the host uses an interface, from what rtnetlink(7) reports of a network
//! namespace.
//!
//! Discovery decides before it offers an interface, and the hook decides again right before it
//! moves one.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use onload_sys::error::{Result, bail};
use onload_sys::netlink::address::Address;
use onload_sys::netlink::link::Link;
use onload_sys::netlink::route::Route;
use onload_sys::pci::PciAddress;
use onload_sys::text::{Quoted, quote_for_shell};

/// The parts of a network namespace that show how its interfaces are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkState {
    pub links: Vec<Link>,
    pub addresses: Vec<Address>,
    /// The routes. A route over several interfaces has one entry for each of them.
    pub routes: Vec<LinkRoute>,
}

/// A route over an interface (`RTM_NEWROUTE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRoute {
    pub index: u32,
    pub destination: IpAddr,
    /// The length of the destination's prefix in bits; 0 for the default route.
    pub prefix: u8,
    /// The program that created the route (`rtm_protocol`).
    pub protocol: u8,
}

impl LinkRoute {
    /// Returns one entry for each interface of a route.
    pub fn from_route(route: Route) -> impl Iterator<Item = LinkRoute> {
        let (destination, prefix) = route.destination;
        route.interfaces.into_iter().map(move |index| LinkRoute {
            index,
            destination,
            prefix,
            protocol: route.protocol,
        })
    }
}

/// The protocol of routes that the kernel creates together with an address (`RTPROT_KERNEL`).
const RTPROT_KERNEL: u8 = 2;

/// Uses of an interface that rtnetlink does not report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtraUses<'a> {
    /// A software RDMA device on top of the interface, such as soft-RoCE's.
    pub soft_rdma: Option<&'a str>,
    /// The vDPA device of the interface's PCI function.
    pub vdpa: Option<&'a str>,
    /// Whether tcx programs are attached. Discovery cannot see them.
    pub has_tcx: bool,
    /// Whether packet sockets are bound to the interface. They do not prevent a move: otherwise
    /// tcpdump on the host would keep containers from starting.
    pub has_packet_socket: bool,
}

impl NetworkState {
    pub fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name.as_bytes())
    }

    /// Returns the interfaces that carry a default route, and those below them: the members of a
    /// bond, and the interface below a VLAN. All bridges of Open vSwitch count as one, since the
    /// kernel attaches the ports of every bridge to `ovs-system`.
    pub fn default_route_links(&self) -> BTreeSet<u32> {
        let indexes_of = |is_wanted: &dyn Fn(&Link) -> bool| -> Vec<u32> {
            self.links.iter().filter(|link| is_wanted(link)).map(|link| link.index).collect()
        };
        let mut pending: Vec<u32> =
            self.routes.iter().filter(|route| route.prefix == 0).map(|route| route.index).collect();
        let mut indexes = BTreeSet::new();
        while let Some(index) = pending.pop() {
            if !indexes.insert(index) {
                continue;
            }
            pending.extend(indexes_of(&|link| link.master == Some(index)));
            let Some(link) = self.links.iter().find(|link| link.index == index) else {
                continue;
            };
            pending.extend(link.lower_in_same_namespace());
            if is_open_vswitch(link) {
                pending.extend(indexes_of(&is_open_vswitch));
            }
        }
        indexes
    }

    /// Describes how the namespace uses an interface, the most important use first. Each use is a
    /// clause with which a sentence about the interface can end. Returns an empty list if the
    /// interface is unused.
    ///
    /// An AF_XDP registration with Onload does not count: it survives the move, and accelerates the
    /// container's programs.
    pub fn describe_uses(&self, link: &Link, extra_uses: ExtraUses<'_>) -> Vec<String> {
        let mut uses = Vec::new();
        let routes: Vec<&LinkRoute> =
            self.routes.iter().filter(|route| route.index == link.index).collect();
        if routes.iter().any(|route| route.prefix == 0) {
            uses.push("it carries the default route".to_owned());
        }
        if let Some(index) = link.master {
            let master = match self.links.iter().find(|link| link.index == index) {
                Some(master) => describe_link(master),
                None => Quoted(&format!("#{index}")).to_string(),
            };
            uses.push(format!("it is a part of {master}; remove it there"));
        }
        for upper in &self.links {
            if upper.lower_in_same_namespace() == Some(link.index) && upper.index != link.index {
                uses.push(format!("{} is on it; delete that", describe_link(upper)));
            }
        }
        for entry in &self.addresses {
            if entry.index == link.index && !is_automatic(entry) {
                let Address { address, prefix, .. } = entry;
                uses.push(format!(
                    "it has the address {address}/{prefix}; remove it, and keep NetworkManager and networkd from setting one"
                ));
            }
        }
        for LinkRoute { destination, prefix, protocol, .. } in routes {
            if *prefix > 0 && *protocol != RTPROT_KERNEL {
                uses.push(format!("it has a route to {destination}/{prefix}; delete that"));
            }
        }
        for (applies, text) in [
            (!link.xdp_modes.is_empty(), "an XDP program is attached to it; detach it"),
            (
                extra_uses.has_tcx,
                "BPF programs (tcx) are attached to it; detach them, `bpftool net` shows them",
            ),
            (
                extra_uses.has_packet_socket,
                "a program receives its packets (AF_PACKET); end that program, `ss -0 -p` lists it",
            ),
        ] {
            if applies {
                uses.push(text.to_owned());
            }
        }
        uses.extend(extra_uses.soft_rdma.map(|name| {
            format!(
                "the software RDMA device {} is on it, which a move would delete; delete it first",
                Quoted(name)
            )
        }));
        uses.extend(extra_uses.vdpa.map(|name| {
            format!(
                "a virtual machine may use its function through vDPA device {}; if it is unused, run \"vdpa dev del {}\"",
                Quoted(name),
                quote_for_shell(name)
            )
        }));
        uses
    }
}

/// Returns whether a sysfs device belongs to a PCI function, directly or through an auxiliary
/// device.
pub fn is_below(device: &Path, function: PciAddress) -> bool {
    let function = function.to_string();
    device.iter().any(|part| part == function.as_str())
}

/// Returns whether Open vSwitch created the interface: `ovs-system`, or a port such as `br-ex`
/// (net/openvswitch/vport-internal_dev.c).
fn is_open_vswitch(link: &Link) -> bool {
    link.kind == b"openvswitch"
}

/// Formats an interface with its kind.
fn describe_link(link: &Link) -> String {
    let name = link.display_name();
    if link.kind.is_empty() {
        return Quoted(&name).to_string();
    }
    format!("{} {}", describe_kind(&String::from_utf8_lossy(&link.kind)), Quoted(&name))
}

/// Formats the kind of a virtual interface without quotes, since it is a name from the kernel.
pub fn describe_kind(kind: &str) -> String {
    Quoted(kind).to_string().trim_matches('"').to_owned()
}

/// Returns whether the kernel sets the address itself when the interface comes up: fe80::/64 (RFC
/// 4291, 2.5.6).
fn is_automatic(entry: &Address) -> bool {
    match entry.address {
        IpAddr::V6(address) => entry.prefix == 64 && address.to_bits() >> 64 == 0xfe80 << 48,
        IpAddr::V4(_) => false,
    }
}

impl NetworkState {
    /// Parses the text that [`NetworkState::to_text`] writes. The error names the line.
    pub fn parse(text: &str) -> Result<NetworkState> {
        let mut state = NetworkState::default();
        for (number, line) in (1..).zip(text.lines()) {
            let words: Vec<&str> = line.split(' ').collect();
            if state.add(&words).is_none() {
                bail!("line {number} is neither a link nor an address nor a route");
            }
        }
        Ok(state)
    }

    /// Adds the entry of one line. Returns `None` if the line is invalid.
    fn add(&mut self, words: &[&str]) -> Option<()> {
        match *words {
            ["link", index, name, kind, master, lower, xdp] => self.links.push(Link {
                index: index.parse().ok()?,
                name: (!name.is_empty()).then(|| name.into())?,
                kind: kind
                    .split(VARIANT)
                    .next()
                    .filter(|kind| *kind != NONE)
                    .unwrap_or_default()
                    .into(),
                variant: match kind.split_once(VARIANT) {
                    Some((_, variant)) => Some(variant.parse().ok()?),
                    None => None,
                },
                master: parse_optional(master)?,
                lower: parse_optional(lower)?,
                xdp_modes: match xdp {
                    "xdp" => ANY_XDP_MODE,
                    NONE => &[],
                    _ => return None,
                },
                ..Link::default()
            }),
            ["address", index, address] => {
                let (address, prefix) = parse_prefixed(address)?;
                self.addresses.push(Address { index: index.parse().ok()?, address, prefix });
            }
            ["route", index, destination, protocol] => {
                let (destination, prefix) = parse_prefixed(destination)?;
                self.routes.push(LinkRoute {
                    index: index.parse().ok()?,
                    destination,
                    prefix,
                    protocol: protocol.parse().ok()?,
                });
            }
            _ => return None,
        }
        Some(())
    }

    /// Writes one line for each entry, with its fields separated by spaces, which the kernel does
    /// not allow in an interface's name.
    pub fn to_text(&self) -> String {
        let format_optional =
            |number: Option<u32>| number.map_or(NONE.to_owned(), |number| number.to_string());
        let mut text = String::new();
        for link in &self.links {
            let (index, name) = (link.index, link.display_name());
            let mut kind = match &*link.kind {
                [] => NONE.to_owned(),
                kind => String::from_utf8_lossy(kind).into_owned(),
            };
            if let Some(variant) = link.variant {
                kind += &format!("{VARIANT}{variant}");
            }
            let master = format_optional(link.master);
            let lower = format_optional(link.lower_in_same_namespace());
            let xdp = if link.xdp_modes.is_empty() { NONE } else { "xdp" };
            text += &format!("link {index} {name} {kind} {master} {lower} {xdp}\n");
        }
        for Address { index, address, prefix } in &self.addresses {
            text += &format!("address {index} {address}/{prefix}\n");
        }
        for LinkRoute { index, destination, prefix, protocol } in &self.routes {
            text += &format!("route {index} {destination}/{prefix} {protocol}\n");
        }
        text
    }

    /// Replaces addresses and destinations with those reserved for documentation (RFC 5737,
    /// RFC 3849), so that they do not reveal the network. The interfaces keep their uses.
    pub fn mask_addresses(&self) -> NetworkState {
        let mut masked = self.clone();
        for entry in &mut masked.addresses {
            entry.address = match entry.address {
                IpAddr::V6(_) if is_automatic(entry) => {
                    IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1))
                }
                address => documentation_address(address),
            };
        }
        for route in &mut masked.routes {
            if route.prefix > 0 {
                route.destination = documentation_address(route.destination);
            }
        }
        masked
    }
}

fn documentation_address(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    }
}

/// The separator between a kind and its variant.
const VARIANT: char = ':';
/// Stands for the mode of an XDP program, which the text does not have.
const ANY_XDP_MODE: &[u32] = &[0];
/// The text of an absent field.
const NONE: &str = "-";

/// Parses a number, or [`NONE`]. Returns `None` for any other text.
fn parse_optional(word: &str) -> Option<Option<u32>> {
    match word {
        NONE => Some(None),
        word => word.parse().ok().map(Some),
    }
}

fn parse_prefixed(word: &str) -> Option<(IpAddr, u8)> {
    let (address, prefix) = word.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let prefix = prefix.parse().ok()?;
    let max = if address.is_ipv4() { 32 } else { 128 };
    (prefix <= max).then_some((address, prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "link 1 lo - - - -\n\
                        link 2 ens1 - - - -\n\
                        link 3 ens2 - 6 - -\n\
                        link 4 ens3 - - - xdp\n\
                        link 5 ens4 - - - -\n\
                        link 6 br0 bridge - - -\n\
                        link 7 ens4.100 vlan:33024 - 5 -\n\
                        link 8 idle - - - -\n\
                        address 1 127.0.0.1/8\n\
                        address 2 192.0.2.10/24\n\
                        address 2 fe80::1/64\n\
                        address 8 fe80::2/64\n\
                        route 2 0.0.0.0/0 4\n\
                        route 2 192.0.2.0/24 2\n\
                        route 5 198.51.100.0/24 3\n\
                        route 8 fe80::/64 2\n";

    fn describe_usage(text: &str, name: &str, beside: ExtraUses<'_>) -> Vec<String> {
        let namespace = NetworkState::parse(text).unwrap();
        namespace.describe_uses(namespace.link(name).unwrap(), beside)
    }

    #[test]
    fn an_interface_with_only_an_automatic_address_is_unused() {
        assert!(describe_usage(HOST, "idle", ExtraUses::default()).is_empty());
    }

    #[test]
    fn each_use_of_an_interface_is_described() {
        for (name, uses) in [
            ("ens1", &["it carries the default route", "the address 192.0.2.10/24"][..]),
            ("ens2", &["a part of bridge \"br0\""]),
            ("ens3", &["an XDP program"]),
            ("ens4", &["vlan \"ens4.100\" is on it", "a route to 198.51.100.0/24"]),
        ] {
            let found = describe_usage(HOST, name, ExtraUses::default());
            assert_eq!(found.len(), uses.len(), "{found:?}");
            for (found, says) in found.iter().zip(uses) {
                assert!(found.contains(says), "{name}: {found}");
            }
        }
        let beside = ExtraUses {
            soft_rdma: Some("rxe0"),
            vdpa: Some("vdpa1"),
            has_tcx: true,
            has_packet_socket: true,
        };
        let found = describe_usage(HOST, "idle", beside);
        assert!(found[0].contains("(tcx)"), "{found:?}");
        assert!(found[1].contains("(AF_PACKET)"), "{found:?}");
        assert!(found[2].contains("RDMA device \"rxe0\""), "{found:?}");
        assert!(found[3].contains("\"vdpa dev del vdpa1\""), "{found:?}");
    }

    #[test]
    fn a_default_route_includes_the_interfaces_below_it() {
        let text = "link 1 lo - - - -\nlink 2 ens1 - 4 - -\nlink 3 ens2 - 4 - -\nlink 4 bond0 bond - - -\n\
                    link 5 bond0.5 vlan - 4 -\nlink 6 ens9 - - - -\nlink 7 ens7 - - - -\n\
                    route 5 0.0.0.0/0 4\nroute 6 192.0.2.0/24 4\nroute 7 ::/0 9\nroute 6 fe80::/64 2\n";
        let namespace = NetworkState::parse(text).unwrap();
        let found: Vec<u32> = namespace.default_route_links().into_iter().collect();
        assert_eq!(found, [2, 3, 4, 5, 7]);
        let alone = NetworkState::parse("link 1 lo - - - -\nroute 1 127.0.0.0/8 2\n").unwrap();
        assert!(alone.default_route_links().is_empty());
    }

    #[test]
    fn a_default_route_over_an_open_vswitch_bridge_includes_the_ports_of_all_its_bridges() {
        let text = "link 1 lo - - - -\nlink 2 ens1 - 4 - -\nlink 3 ens2 - - - -\nlink 4 ovs-system openvswitch - - -\n\
                    link 5 br-ex openvswitch - - -\nlink 6 br-int openvswitch - - -\nlink 7 ens3 - 8 - -\n\
                    link 8 br0 bridge - - -\nlink 9 bond0 bond 4 - -\nlink 10 ens4 - 9 - -\n";
        let found = |route: &str| -> Vec<u32> {
            let namespace = NetworkState::parse(&format!("{text}{route}")).unwrap();
            namespace.default_route_links().into_iter().collect()
        };
        assert_eq!(found("route 5 0.0.0.0/0 4\n"), [2, 4, 5, 6, 9, 10]);
        assert_eq!(found("route 8 0.0.0.0/0 4\n"), [7, 8]);
        assert_eq!(found("route 3 0.0.0.0/0 4\n"), [3]);
        assert_eq!(found("route 5 192.0.2.0/24 4\n"), [0; 0]);
    }

    #[test]
    fn only_the_address_that_the_kernel_sets_is_not_a_use() {
        for (address, is_used) in [
            ("fe80::abcd/64", false),
            ("fe80::abcd/128", true),
            ("fe80:0:0:1::1/64", true),
            ("169.254.0.1/16", true),
            ("2001:db8::1/64", true),
        ] {
            let text = format!("link 1 a - - - -\naddress 1 {address}\n");
            let uses = describe_usage(&text, "a", ExtraUses::default());
            assert_eq!(!uses.is_empty(), is_used, "{address}");
        }
    }

    #[test]
    fn a_route_counts_unless_the_kernel_created_it_with_an_address() {
        for (route, is_used) in [
            ("ff00::/8 2", false),
            ("fe80::/64 2", false),
            ("2001:db8::/64 9", true),
            ("192.0.2.0/24 0", true),
            ("::/0 9", true),
            // A default route counts whichever program created it.
            ("0.0.0.0/0 2", true),
        ] {
            let text = format!("link 1 a - - - -\nlink 2 b - - - -\nroute 1 {route}\n");
            let uses = describe_usage(&text, "a", ExtraUses::default());
            assert_eq!(!uses.is_empty(), is_used, "{route}");
            assert!(describe_usage(&text, "b", ExtraUses::default()).is_empty());
        }
    }

    #[test]
    fn a_namespace_survives_a_round_trip() {
        let namespace = NetworkState::parse(HOST).unwrap();
        assert_eq!(namespace.to_text(), HOST);
    }

    #[test]
    fn an_invalid_line_is_rejected_with_its_number() {
        for line in [
            "",
            "link",
            "link x a - - - -",
            "link 1  - - - -",
            "link 1 a - - - yes",
            "link 1 a - -1 - -",
            "link 1 a - - - - -",
            "link 1 a bond:active - - -",
            "address 1 192.0.2.1",
            "address 1 192.0.2.1/33",
            "address 1 fe80::1/129",
            "route 1 default 2",
            "route 1 0.0.0.0/0 256",
            "rule 1",
        ] {
            let text = format!("link 1 a - - - -\n{line}\n");
            let message = NetworkState::parse(&text).unwrap_err().to_string();
            assert_eq!(message, "line 2 is neither a link nor an address nor a route");
        }
    }

    #[test]
    fn masking_removes_the_network_s_addresses_and_keeps_the_uses() {
        let masked = NetworkState::parse(HOST).unwrap().mask_addresses();
        let text = masked.to_text();
        for own in ["192.0.2.10", "198.51.100.0", "fe80::2"] {
            assert!(!text.contains(own), "{text}");
        }
        let whole = NetworkState::parse(HOST).unwrap();
        for (link, same) in whole.links.iter().zip(&masked.links) {
            let count =
                |state: &NetworkState, link| state.describe_uses(link, ExtraUses::default()).len();
            assert_eq!(count(&whole, link), count(&masked, same), "{}", link.display_name());
        }
    }
}
