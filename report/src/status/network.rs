//! The interfaces of a container's network, as rtnetlink(7) lists them there, and which of them Onload accelerates.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::SystemTime;

use onload_core::netdev::usage;
use onload_host::discover::netdev::CLASS;
use onload_host::discover::nic::{self, DEBUGFS_NICS, RESOURCE_MODULE};
use onload_host::discover::pci::PciFunctions;
use onload_host::host::Host;
use onload_host::netlink::namespace::{Elsewhere as Network, elsewhere};
use onload_sys::netlink::link::{self, Link, address_text};

use super::looked::Looked;
use super::patience::{PATIENCE, patiently};
use super::process::directory;

/// Interfaces of one network that are judged; of more nothing is said. Who owns a network can make 100,000.
const MOST: usize = 4096;
/// Interfaces that are on one another; the kernel allows 8 (`MAX_NEST_DEV`).
const DEPTH: usize = 8;
/// `IFF_UP` and `IFF_LOWER_UP`, `IFF_LOOPBACK` (netdevice(7)).
const LOWER_UP: u32 = 0x1_0000;
const LOOPBACK: u32 = 0x8;
/// Kinds that take the packets of the interface below them, and kinds that have members (Onload accelerates all of these).
const UPPER: [&[u8]; 3] = [b"macvlan", b"ipvlan", b"vlan"];
const MASTERS: [&[u8]; 2] = [b"bond", b"team"];

/// None where the kernel does not say.
pub fn network(host: &Host, pid: u32) -> Option<Network> {
    let look = move |host: &Host| {
        let file = directory(pid).join("ns/net");
        host.is_running().then(|| elsewhere(&file).ok()).flatten()
    };
    patiently(host, PATIENCE, look).flatten()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    /// Whether Onload accelerates it, itself or the one below it; none where that is not known.
    pub(super) is_accelerated: Option<bool>,
    /// Whether it is one of a PCI function, and not one of software.
    pub(super) is_physical: bool,
    /// Whatever its link is.
    pub(super) is_up: bool,
    pub(super) has_link: bool,
}

#[derive(Debug)]
pub(super) struct Accelerators<'l> {
    functions: &'l PciFunctions,
    /// The numbers of the host's accelerated interfaces, and of what is on them.
    own: BTreeSet<u32>,
    /// What Onload has attached to, in whatever network; none where that is not known.
    attached: Option<Vec<Attached>>,
    with_veth: bool,
}

#[derive(Debug)]
struct Attached {
    name: String,
    /// As the kernel writes it; none where Onload does not say.
    address: Option<String>,
    since: SystemTime,
}

impl<'l> Accelerators<'l> {
    pub(super) fn of(looked: &Looked<'l>, with_veth: bool) -> Self {
        let host = looked.host;
        let number = |name: &String| {
            let text = host.attribute(&Path::new(CLASS).join(name).join("ifindex"));
            text.ok()??.parse().ok()
        };
        let attached_here = looked.inventory.attached.iter();
        let numbers = attached_here.filter_map(number).collect();
        let links = host.network().ok().flatten();
        Accelerators {
            functions: &looked.inventory.functions,
            own: with_uppers(numbers, &links.map(|all| all.links).unwrap_or_default()),
            attached: attached(host),
            with_veth,
        }
    }

    /// When Onload first attached to an interface that it still has; none where that is not known.
    pub(super) fn since(&self) -> Option<SystemTime> {
        let attached = self.attached.as_ref()?.iter();
        attached.map(|interface| interface.since).min()
    }

    /// Without the loopback; none where there are too many.
    pub(super) fn interfaces(&self, network: &Network) -> Option<Vec<Interface>> {
        if network.links.len() > MOST {
            return None;
        }
        let links = network.links.iter();
        let links = links.filter(|link| link.flags & LOOPBACK == 0);
        let interfaces = links.map(|link| Interface {
            name: link.shown(),
            is_accelerated: self.accelerates(network, link, DEPTH),
            is_physical: link.kind.is_empty(),
            is_up: link.flags & link::UP != 0,
            has_link: link.flags & LOWER_UP != 0,
        });
        let mut interfaces: Vec<Interface> = interfaces.collect();
        interfaces.sort_by(|one, other| one.name.cmp(&other.name));
        Some(interfaces)
    }

    fn accelerates(&self, network: &Network, link: &Link, depth: usize) -> Option<bool> {
        let below = depth.checked_sub(1)?;
        let is_one_of = |kinds: &[&[u8]]| kinds.contains(&link.kind.as_slice());
        if is_one_of(&MASTERS) {
            let members = network.links.iter();
            let members = members.filter(|member| member.master == Some(link.index));
            return any(members.map(|member| self.accelerates(network, member, below)));
        }
        // The number of an interface says nothing without the namespace that it is of.
        let is_on_host = link.lower_namespace.is_some() && link.lower_namespace == network.own;
        if is_one_of(&UPPER) {
            return match link.lower_namespace {
                Some(_) => Some(is_on_host && self.own.contains(&link.lower?)),
                None => {
                    let mut all = network.links.iter();
                    let lower = all.find(|lower| Some(lower.index) == link.lower)?;
                    self.accelerates(network, lower, below)
                }
            };
        }
        match link.kind.as_slice() {
            b"veth" => Some(self.with_veth && is_on_host && !self.own.is_empty()),
            b"" => self.has(link),
            _ => Some(false),
        }
    }

    /// Whether Onload has an interface of a device. Its name is one of many; with its hardware address it is that one.
    fn has(&self, link: &Link) -> Option<bool> {
        // A kernel before 5.14 does not say the function.
        let function = link
            .function
            .and_then(|function| self.functions.get(function));
        if function
            .is_some_and(|function| nic::is_supported(function.id.vendor, function.id.device))
        {
            return Some(true);
        }
        let attached = self.attached.as_ref()?.iter();
        let called_so = attached.filter(|attached| link.name == attached.name.as_bytes());
        any(called_so.map(|attached| {
            let address = attached.address.as_deref()?;
            Some(
                [&link.address, &link.permanent_address]
                    .into_iter()
                    .any(|own| address_text(own) == address),
            )
        }))
    }
}

/// Whether one is; not known where none is known to be and of one it is not known.
pub(super) fn any(answers: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut found = Some(false);
    for answer in answers {
        match answer {
            Some(true) => return answer,
            Some(false) => {}
            None => found = None,
        }
    }
    found
}

fn with_uppers(mut numbers: BTreeSet<u32>, links: &[usage::Link]) -> BTreeSet<u32> {
    for _ in 0..DEPTH {
        for link in links {
            let kind = link.kind.as_deref().unwrap_or_default().as_bytes();
            if UPPER.contains(&kind) && link.lower.is_some_and(|lower| numbers.contains(&lower)) {
                numbers.insert(link.index);
            }
            let master = links
                .iter()
                .find(|master| Some(master.index) == link.master);
            let kind = master.and_then(|master| master.kind.as_deref());
            let is_member = kind.is_some_and(|kind| MASTERS.contains(&kind.as_bytes()));
            if is_member && numbers.contains(&link.index) {
                numbers.extend(link.master);
            }
        }
    }
    numbers
}

/// What Onload has attached to, whatever network it is in: it makes a directory in debugfs then (Onload,
/// `lib/efhw/debugfs_nic.c`). `dev` in it is no PCI function: an auxiliary device, or nothing with AF_XDP.
fn attached(host: &Host) -> Option<Vec<Attached>> {
    if host.entry(Path::new(RESOURCE_MODULE)).ok()?.is_none() {
        return Some(Vec::new());
    }
    host.entry(Path::new(DEBUGFS_NICS)).ok()??;
    let mut found = Vec::new();
    for entry in host.list(Path::new(DEBUGFS_NICS)).ok()?.names {
        let directory = Path::new(DEBUGFS_NICS).join(&entry);
        let attribute = |name: &str| host.attribute(&directory.join(name)).ok().flatten();
        let at_first = || nic::interface_of(&entry).map(str::to_owned);
        if let Some(name) = attribute("net_dev").or_else(at_first) {
            found.push(Attached {
                name,
                address: attribute("mac_addr"),
                since: host.modified(&directory).ok()??,
            });
        }
    }
    Some(found)
}
