//! The interfaces of a container's network, as rtnetlink(7) lists them there, and which of them Onload accelerates.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use onload_host::discover::netdev::SYS_CLASS_NET;
use onload_host::discover::nic::{self, DEBUGFS_NICS, RESOURCE_MODULE};
use onload_host::discover::pci::PciFunctions;
use onload_host::host::Host;
use onload_host::netlink::namespace::{NetnsLinks as Network, list_links};
use onload_sys::netlink::link::{self, Link, format_hwaddr};

use super::looked::Looked;
use super::patience::{PATIENCE, patiently};
use super::process::directory;
use super::uppers::{Carried, Judged, Port, judge, with_uppers};

/// Interfaces of one network that are judged; of more nothing is said. Who owns a network can make 100,000.
const MOST: usize = 4096;
/// `IFF_UP` and `IFF_LOWER_UP`, `IFF_LOOPBACK` (netdevice(7)).
const LOWER_UP: u32 = 0x1_0000;
const LOOPBACK: u32 = 0x8;
/// None where the kernel does not say.
pub fn network(host: &Host, pid: u32) -> Option<Network> {
    let look = move |host: &Host| {
        let file = directory(pid).join("ns/net");
        host.is_running().then(|| list_links(&file).ok()).flatten()
    };
    patiently(host, PATIENCE, look).flatten()
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) other_names: Vec<String>,
    /// Those by which Onload sends for it.
    pub(super) ports: BTreeSet<Port>,
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
    /// The host's accelerated interfaces, and what is on them, by their numbers.
    own: BTreeMap<u32, Carried>,
    /// The host's interfaces, of which only names and ports are known, and of other names nothing.
    pub(super) hosts: Vec<Interface>,
    /// What Onload has attached to, in whatever network; none where that is not known.
    attached: Option<Vec<nic::DebugfsNic>>,
    with_veth: bool,
}

impl<'l> Accelerators<'l> {
    pub(super) fn of(looked: &Looked<'l>, with_veth: bool) -> Self {
        let host = looked.host;
        let number = |name: &String| {
            let text = host.attribute(&Path::new(SYS_CLASS_NET).join(name).join("ifindex"));
            Some((name.clone(), text.ok()??.parse().ok()?))
        };
        let here = looked.inventory.attached.iter();
        let here: BTreeMap<String, u32> = here.filter_map(number).collect();
        let links = host.network().ok().flatten();
        let links = links.map(|all| all.links).unwrap_or_default();
        let own = with_uppers(&here.values().copied().collect(), &links);
        let links = links.into_iter().map(|link| (link.name, link.index));
        let hosts = here.into_iter().chain(links).map(|(name, number)| Interface {
            name,
            is_accelerated: Some(own.contains_key(&number)),
            ports: own.get(&number).map(|own| own.ports.clone()).unwrap_or_default(),
            ..Interface::default()
        });
        Accelerators {
            functions: &looked.inventory.functions,
            hosts: hosts.collect(),
            own,
            attached: attached(host),
            with_veth,
        }
    }

    /// Without the loopback; none where there are too many.
    pub(super) fn interfaces(&self, network: &Network) -> Option<Vec<Interface>> {
        if network.links.len() > MOST {
            return None;
        }
        let links = network.links.iter();
        let links = links.filter(|link| link.flags & LOOPBACK == 0);
        let shown = |name: &Vec<u8>| String::from_utf8_lossy(name).into_owned();
        let judged = judge(&network.links, &|link| self.base(network, link));
        let interfaces = links.map(|link| {
            let judged = judged.get(&link.index).cloned();
            let judged = judged.unwrap_or(Judged::Unknown);
            Interface {
                name: link.display_name(),
                other_names: link.alternative_names.iter().map(shown).collect(),
                is_accelerated: judged.is_accelerated(),
                ports: judged.ports(),
                is_physical: link.kind.is_empty(),
                is_up: link.flags & link::UP != 0,
                has_link: link.flags & LOWER_UP != 0,
            }
        });
        let mut interfaces: Vec<Interface> = interfaces.collect();
        interfaces.sort_by(|one, other| one.name.cmp(&other.name));
        Some(interfaces)
    }

    /// Of one that is on no other of its network, and has no members.
    fn base(&self, network: &Network, link: &Link) -> Judged {
        // The number of an interface says nothing without the namespace that it is of.
        let is_on_host = link.lower_namespace.is_some() && link.lower_namespace == network.own;
        let lower = link.lower.filter(|_| is_on_host);
        let on_host = lower.and_then(|lower| self.own.get(&lower));
        match link.kind.as_slice() {
            b"macvlan" | b"ipvlan" | b"vlan" if link.lower_namespace.is_none() => Judged::Unknown,
            b"macvlan" | b"ipvlan" | b"vlan" => {
                on_host.map_or(Judged::No, |below| Judged::Yes(below.clone()))
            }
            b"veth" => {
                let all = self.own.values().flat_map(|own| own.ports.iter().copied());
                let all: BTreeSet<Port> = all.collect();
                Judged::of(Some(self.with_veth && is_on_host && !all.is_empty()), all)
            }
            b"" => Judged::of(self.has(link), [(false, link.index)].into()),
            _ => Judged::No,
        }
    }

    /// Whether Onload has an interface of a device. Its name is one of many; with its hardware address it is that one.
    fn has(&self, link: &Link) -> Option<bool> {
        // A kernel before 5.14 does not say the function.
        let function = link.function.and_then(|function| self.functions.get(function));
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
                    .any(|own| format_hwaddr(own) == address),
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

/// What Onload has attached to, whatever network it is in: it makes a directory in debugfs then (Onload,
/// `lib/efhw/debugfs_nic.c`). `dev` in it is no PCI function: an auxiliary device, or nothing with AF_XDP.
fn attached(host: &Host) -> Option<Vec<nic::DebugfsNic>> {
    if host.entry(Path::new(RESOURCE_MODULE)).ok()?.is_none() {
        return Some(Vec::new());
    }
    host.entry(Path::new(DEBUGFS_NICS)).ok()??;
    let names = host.list(Path::new(DEBUGFS_NICS)).ok()?.names;
    let attribute = |path: &Path| host.attribute(path).ok().flatten();
    let found = names.iter().filter_map(|entry| nic::DebugfsNic::read(entry, attribute));
    Some(found.collect())
}
