//! The interfaces of a container's network, as rtnetlink(7) lists them there, and which of them Onload accelerates.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use onload_core::class::Class;
use onload_core::netdev::usage::NetworkState;
use onload_host::discover::netdev::SYS_CLASS_NET;
use onload_host::discover::nic::{self, DEBUGFS_NICS, RESOURCE_MODULE};
use onload_host::discover::pci::PciFunctions;
use onload_host::host::Host;
use onload_host::netlink::netns_links::{NetnsLinks, list_links};
use onload_lease::{LeaseEntry, OnloadRegistration, SavedState};
use onload_sys::netlink::link::{self, Link, format_hwaddr};
use serde::{Deserialize, Serialize};

use super::input::{ProgramLookup, StatusInput};
use super::link_judge::{Acceleration, LowerPath, PortId, judge_links, with_uppers};
use super::process::proc_dir;

/// Interfaces of one network that are judged; of more nothing is said. The owner of a network namespace can create
/// 100,000.
const MAX_INTERFACES: usize = 4096;
/// `IFF_UP` and `IFF_LOWER_UP`, `IFF_LOOPBACK` (netdevice(7)).
const LOWER_UP: u32 = 0x1_0000;
const LOOPBACK: u32 = 0x8;
/// `None` if the kernel does not report it.
pub fn read_network(host: &Host, pid: u32) -> Option<NetnsLinks> {
    let file = proc_dir(pid).join("ns/net");
    host.is_running().then(|| list_links(&file).ok()).flatten()
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ContainerInterface {
    pub(super) name: String,
    pub(super) other_names: Vec<String>,
    /// The interfaces through which Onload sends for it.
    pub(super) ports: BTreeSet<PortId>,
    /// Whether Onload accelerates it or the interface below it; `None` if unknown.
    pub(super) is_accelerated: Option<bool>,
    /// Whether it is one of a PCI function, and not one of software.
    pub(super) is_physical: bool,
    /// Whatever its link is.
    pub(super) is_up: bool,
    pub(super) has_link: bool,
}

impl ContainerInterface {
    pub(super) fn has_name(&self, name: &str) -> bool {
        self.name == name || self.other_names.iter().any(|other| other == name)
    }
}

#[derive(Debug)]
pub(super) struct AcceleratedInterfaces<'l> {
    functions: &'l PciFunctions,
    /// The host's accelerated interfaces, and what is on them, by their numbers.
    host_paths: BTreeMap<u32, LowerPath>,
    /// The host's interfaces, of which only names and ports are known, and of other names nothing.
    pub(super) host_interfaces: Vec<ContainerInterface>,
    /// The names of the host's interfaces that Onload has.
    pub(super) host_ports: BTreeMap<PortId, String>,
    /// The names of the host's interfaces by their addresses.
    pub(super) host_addresses: BTreeMap<IpAddr, String>,
    /// The interfaces that Onload has attached to, in any network namespace; `None` if unknown.
    attached: Option<Vec<nic::DebugfsNic>>,
    /// The leased interfaces without Onload's XDP program.
    pub(super) without_program: BTreeSet<(Class, String)>,
    accelerates_veth: bool,
}

impl<'l> AcceleratedInterfaces<'l> {
    pub(super) fn new(input: &StatusInput<'l>, accelerates_veth: bool) -> Self {
        let host = input.host;
        let number = |name: &String| {
            let text = host.attribute(&Path::new(SYS_CLASS_NET).join(name).join("ifindex"));
            Some((name.clone(), text.ok()??.parse().ok()?))
        };
        let index_by_name: BTreeMap<String, u32> =
            input.inventory.attached.iter().filter_map(number).collect();
        let NetworkState { links, addresses, .. } =
            host.network().ok().flatten().unwrap_or_default();
        let host_addresses = addresses
            .into_iter()
            .filter_map(|address| {
                let link = links.iter().find(|link| link.index == address.index)?;
                Some((address.address, link.display_name()))
            })
            .collect();
        let host_ports =
            index_by_name.iter().map(|(name, index)| ((true, *index), name.clone())).collect();
        let host_paths = with_uppers(&index_by_name.values().copied().collect(), &links);
        let links = links.into_iter().map(|link| (link.display_name(), link.index));
        let host_interfaces =
            index_by_name.into_iter().chain(links).map(|(name, number)| ContainerInterface {
                name,
                is_accelerated: Some(host_paths.contains_key(&number)),
                ports: host_paths.get(&number).map(|path| path.ports.clone()).unwrap_or_default(),
                ..ContainerInterface::default()
            });
        let mut without_program = BTreeSet::new();
        AcceleratedInterfaces {
            functions: &input.inventory.functions,
            host_interfaces: host_interfaces.collect(),
            host_addresses,
            host_paths,
            host_ports,
            attached: read_attached(input, &mut without_program),
            without_program,
            accelerates_veth,
        }
    }

    /// Interfaces except loopback; `None` if there are too many.
    pub(super) fn interfaces(&self, network: &NetnsLinks) -> Option<Vec<ContainerInterface>> {
        if network.links.len() > MAX_INTERFACES {
            return None;
        }
        let links = network.links.iter().filter(|link| link.flags & LOOPBACK == 0);
        let accelerations = judge_links(&network.links, &|link| self.judge_base(network, link));
        let mut interfaces: Vec<ContainerInterface> = links
            .map(|link| {
                let acceleration =
                    accelerations.get(&link.index).cloned().unwrap_or(Acceleration::Unknown);
                ContainerInterface {
                    name: link.display_name(),
                    other_names: link
                        .alternative_names
                        .iter()
                        .map(|name| String::from_utf8_lossy(name).into_owned())
                        .collect(),
                    is_accelerated: acceleration.is_accelerated(),
                    ports: acceleration.ports(),
                    is_physical: link.kind.is_empty(),
                    is_up: link.flags & link::UP != 0,
                    has_link: link.flags & LOWER_UP != 0,
                }
            })
            .collect();
        interfaces.sort_by(|one, other| one.name.cmp(&other.name));
        Some(interfaces)
    }

    /// Of one that is on no other of its network, and has no members.
    fn judge_base(&self, network: &NetnsLinks, link: &Link) -> Acceleration {
        // The number of an interface says nothing without the namespace that it is of.
        let is_on_host = link.lower_namespace.is_some() && link.lower_namespace == network.own_id;
        let lower = link.lower.filter(|_| is_on_host);
        let lower_path = lower.and_then(|lower| self.host_paths.get(&lower));
        match link.kind.as_slice() {
            b"macvlan" | b"ipvlan" | b"vlan" if link.lower_namespace.is_none() => {
                Acceleration::Unknown
            }
            b"macvlan" | b"ipvlan" | b"vlan" => {
                lower_path.map_or(Acceleration::No, |path| Acceleration::Yes(path.clone()))
            }
            b"veth" => {
                let ports: BTreeSet<PortId> =
                    self.host_paths.values().flat_map(|path| path.ports.iter().copied()).collect();
                Acceleration::from_known(
                    Some(self.accelerates_veth && is_on_host && !ports.is_empty()),
                    ports,
                )
            }
            b"" => Acceleration::from_known(
                self.is_onload_interface(link),
                [(false, link.index)].into(),
            ),
            _ => Acceleration::No,
        }
    }

    /// Whether Onload has an interface of a device. Its name is one of many; with its hardware address it is that one.
    fn is_onload_interface(&self, link: &Link) -> Option<bool> {
        // A kernel before 5.14 does not say the function.
        let function = link.function.and_then(|function| self.functions.get(function));
        if function
            .is_some_and(|function| nic::is_supported(function.id.vendor, function.id.device))
        {
            return Some(true);
        }
        let own_addresses =
            [&link.address, &link.permanent_address].map(|address| format_hwaddr(address));
        let answers = self
            .attached
            .as_ref()?
            .iter()
            .filter(|attached| link.name == attached.name.as_bytes())
            .map(|attached| Some(own_addresses.contains(attached.address.as_ref()?)));
        any_known(answers)
    }
}

/// Whether one is; not known where none is known to be and of one it is not known.
pub(super) fn any_known(answers: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut known = Some(false);
    for answer in answers {
        match answer {
            Some(true) => return answer,
            Some(false) => {}
            None => known = None,
        }
    }
    known
}

/// Returns the interfaces in Onload's debugfs, in any network namespace (Onload, `lib/efhw/debugfs_nic.c`). `dev` in it
/// is no PCI function: an auxiliary device, or nothing with AF_XDP.
fn read_attached(
    input: &StatusInput<'_>,
    without_program: &mut BTreeSet<(Class, String)>,
) -> Option<Vec<nic::DebugfsNic>> {
    let host = input.host;
    if host.entry(Path::new(RESOURCE_MODULE)).ok()?.is_none() {
        return Some(Vec::new());
    }
    host.entry(Path::new(DEBUGFS_NICS)).ok()??;
    let mut nics = Vec::new();
    for entry in host.list(Path::new(DEBUGFS_NICS)).ok()?.names {
        let Some(nic) = nic::DebugfsNic::read(&entry, |path| host.attribute(path).ok().flatten())
        else {
            continue;
        };
        let since = host.modified(&Path::new(DEBUGFS_NICS).join(&entry)).ok().flatten();
        let lease = input.leases.unwrap_or_default().iter().find(|entry| {
            !entry.has_ended() && lacks_program(entry, &nic, since, input.has_program)
        });
        match lease {
            Some(lease) => {
                without_program.insert((lease.device.class, lease.device.name.to_string()));
            }
            None => nics.push(nic),
        }
    }
    Some(nics)
}

/// Returns whether another XDP program has replaced Onload's on a leased interface whose registration
/// remains. Neither debugfs nor netlink shows it: Onload attaches its program directly to the driver.
/// But the lease has the program's ID, and the kernel frees a program that was replaced.
fn lacks_program(
    entry: &LeaseEntry,
    nic: &nic::DebugfsNic,
    since: Option<SystemTime>,
    has_program: ProgramLookup<'_>,
) -> bool {
    let record = entry.lease.as_ref().ok().and_then(|lease| lease.moved.as_ref());
    let Some(SavedState::Interface(saved)) = record.map(|record| &record.saved) else {
        return false;
    };
    let Some(OnloadRegistration { since: saved_since, program: Some(program) }) = saved.onload
    else {
        return false;
    };
    let is_same = since == Some(UNIX_EPOCH + Duration::from_nanos(saved_since))
        && nic.address.is_some()
        && [Some(&saved.mac), saved.permanent_mac.as_ref()].contains(&nic.address.as_ref());
    is_same && has_program(program) == Some(false)
}
