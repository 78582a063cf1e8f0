//! A container whose program sends packets by an accelerated interface, and what `status` says of it.

use std::net::{IpAddr, Ipv4Addr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use onload_core::netdev::usage::{NetworkLink, NetworkState};
use onload_core::onload::LIBRARY;
use onload_host::discover::netdev;
use onload_host::netlink::netns_links::route_interface;
use onload_report::status::{RESTART_REMEDY, VerdictState};
use onload_sys::text::quote_for_shell;

use super::{Trial, TrialOutcome, image};
use crate::commands::status;
use crate::printer::Printer;

/// How long a program may take until it has a stack.
const STACK_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends a datagram to a neighbour's discard port five times a second, until its stdin ends (read: 1).
const SCRIPT: &str = "exec 3<>/dev/udp/$1/9 || exit 1; echo ready; \
    while echo onload-ctk try >&3; read -t 0.2; [ $? -gt 128 ]; do :; done 2>/dev/null; :";

impl Trial<'_> {
    pub(super) fn try_nic(&self, printer: &mut Printer) -> Result<TrialOutcome> {
        let network = self.host.network()?.unwrap_or_default();
        let port = &self.trial_device.name;
        let path = match TrafficPath::find(port, &network, &route_interface, &is_down) {
            Ok(path) => path,
            Err(outcome) => return Ok(outcome),
        };
        let onload = self.inventory.onload.as_ref();
        let installation = onload
            .and_then(|onload| onload.installation.as_ref())
            .context("looking for Onload's library: not found")?;
        let files = image::shell_files(self.host, installation.library_dir.join(LIBRARY))?;
        let neighbour = path.neighbour.to_string();
        let program = [image::SHELL, "-c", SCRIPT, "bash", &neighbour].map(str::to_owned);
        self.try_program(&files, &program, |_| self.await_status(&path, printer))
    }

    /// Returns the verdict of `status`, once it is good or the time is over.
    fn await_status(&self, path: &TrafficPath, printer: &mut Printer) -> Result<TrialOutcome> {
        let before = read_sent(&path.ports)?;
        let deadline = Instant::now() + STACK_TIMEOUT;
        loop {
            self.stop.refuse()?;
            let report = status::inspect_containers(self.host, self.inventory, printer)?;
            let verdict = report
                .containers
                .into_iter()
                .find(|container| container.matches_name(&self.names.container()))
                .and_then(|container| container.verdicts.into_iter().next());
            let is_good =
                verdict.as_ref().is_some_and(|verdict| verdict.state == VerdictState::Accelerated);
            if !is_good && Instant::now() < deadline {
                sleep(Duration::from_millis(200));
                continue;
            }
            let Some(verdict) = verdict else {
                bail!("reading the container: it is not in the status; run: onload-ctk status");
            };
            if is_good {
                let sent = self.sent_since(before, &path.ports)?;
                return Ok(path.judge(&verdict.reason, sent));
            }
            return Ok(TrialOutcome::Fails(
                verdict.reason,
                verdict.remedy.as_deref().map(adapt_remedy),
            ));
        }
    }

    /// Packets that the ports have sent since, for a few datagrams; some drivers count once in seconds.
    fn sent_since(&self, before: u64, ports: &[String]) -> Result<u64> {
        let deadline = Instant::now() + STACK_TIMEOUT;
        loop {
            sleep(Duration::from_secs(1));
            self.stop.refuse()?;
            let count = read_sent(ports)?.saturating_sub(before);
            if count > 0 || Instant::now() > deadline {
                return Ok(count);
            }
        }
    }
}

/// `status` speaks of a container that runs; this one is gone when the remedy is read.
fn adapt_remedy(remedy: &str) -> String {
    remedy.replace(RESTART_REMEDY, "try it again")
}

fn is_down(interface: &str) -> bool {
    let flags = std::fs::read_to_string(format!("/sys/class/net/{interface}/flags"));
    flags.is_ok_and(|flags| netdev::is_down(flags.trim()))
}

/// Packets that the ports have sent.
fn read_sent(ports: &[String]) -> Result<u64> {
    let counts = ports.iter().map(|port| {
        let path = format!("/sys/class/net/{port}/statistics/tx_packets");
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let count: u64 = text.trim().parse().with_context(|| format!("reading {path}"))?;
        Ok(count)
    });
    counts.sum()
}

/// How packets go by a port.
#[derive(Debug, PartialEq, Eq)]
struct TrafficPath {
    neighbour: Ipv4Addr,
    /// The port, or all members of its bond: neither a VLAN nor a team counts packets that pass the kernel by.
    ports: Vec<String>,
}

impl TrafficPath {
    /// To another address of a network of the port, or of what is on it, that the kernel, and Onload with it, reaches by there.
    fn find(
        port: &str,
        network: &NetworkState,
        leads_by: &dyn Fn(IpAddr) -> Option<u32>,
        is_down: &dyn Fn(&str) -> bool,
    ) -> Result<TrafficPath, TrialOutcome> {
        let bond = find_master(network, port).filter(|master| is_one_of(master, &["bond", "team"]));
        let ports = match bond {
            Some(bond) => network
                .links
                .iter()
                .filter(|link| link.master == Some(bond.index))
                .map(|member| member.name.clone())
                .collect(),
            None => vec![port.to_owned()],
        };
        let lower = bond.or_else(|| network.link(port));
        let mut other_route = None;
        for carrier in lower.map_or_else(Vec::new, |lower| find_carriers(network, lower)) {
            let neighbours =
                network.addresses.iter().filter(|entry| entry.index == carrier.index).flat_map(
                    |entry| match entry.address {
                        IpAddr::V4(address) => neighbour_addresses(address, entry.prefix),
                        IpAddr::V6(_) => Vec::new(),
                    },
                );
            for neighbour in neighbours {
                if leads_by(neighbour.into()) == Some(carrier.index) {
                    return Ok(TrafficPath { neighbour, ports });
                }
                other_route.get_or_insert((neighbour, carrier.name.as_str()));
            }
        }
        Err(match other_route {
            None => {
                let name = lower.map_or(port, |lower| &lower.name);
                TrialOutcome::NotTried(
                    format!(
                        "{name} and the interfaces on it have no IPv4 address, so {port} cannot send"
                    ),
                    format!("give {name}, or an interface on it, an IPv4 address"),
                )
            }
            Some((_, name)) if is_down(name) => TrialOutcome::NotTried(
                format!("{name} is down, so it cannot send"),
                format!("run: ip link set dev {} up", quote_for_shell(name)),
            ),
            Some((neighbour, name)) => TrialOutcome::NotTried(
                format!(
                    "the kernel does not send to {neighbour}, which is next to an address of \
                     {name}, by {name}"
                ),
                format!(
                    "run: ip route get {neighbour}; give {name} an address of a network that no \
                     other interface is in"
                ),
            ),
        })
    }

    /// Concludes for an accelerated program. The counters of the ports decide, because such a
    /// program may send through other ports.
    fn judge(&self, reason: &str, sent: u64) -> TrialOutcome {
        let neighbour = self.neighbour;
        let counting = self.ports.join(" and ");
        if sent == 0 {
            return TrialOutcome::Fails(
                format!(
                    "{reason}; but {counting} counted no sent packet while datagrams went to \
                     {neighbour}"
                ),
                Some(
                    "check which interface sends them: onload_stackdump netstat, ip -statistics \
                     link"
                        .to_owned(),
                ),
            );
        }
        TrialOutcome::Works(format!(
            "{reason}; {counting} counted {sent} sent packets while datagrams went to {neighbour}"
        ))
    }
}

fn is_one_of(link: &NetworkLink, kinds: &[&str]) -> bool {
    link.kind.as_deref().is_some_and(|kind| kinds.contains(&kind))
}

fn find_master<'n>(network: &'n NetworkState, name: &str) -> Option<&'n NetworkLink> {
    let number = network.link(name)?.master?;
    network.links.iter().find(|link| link.index == number)
}

/// An interface, and those that are on it and take its packets.
fn find_carriers<'n>(network: &'n NetworkState, carrier: &'n NetworkLink) -> Vec<&'n NetworkLink> {
    let mut carriers = vec![carrier];
    let mut index = 0;
    while let Some(carrier) = carriers.get(index) {
        let lower_index = carrier.index;
        for link in &network.links {
            if link.lower == Some(lower_index)
                && is_one_of(link, &["vlan", "macvlan", "ipvlan"])
                && !carriers.iter().any(|known| known.index == link.index)
            {
                carriers.push(link);
            }
        }
        index += 1;
    }
    carriers
}

/// The first other addresses of a network; the host may have some of them itself.
fn neighbour_addresses(address: Ipv4Addr, prefix: u8) -> Vec<Ipv4Addr> {
    let bits = address.to_bits();
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or_default();
    let neighbours: Vec<u32> = match prefix {
        0..=30 => (1..=3).map(|number| (bits & mask) + number).collect(),
        31 => vec![bits ^ 1],
        _ => Vec::new(),
    };
    neighbours
        .into_iter()
        .filter(|other| *other != bits && (prefix == 31 || *other != bits | !mask))
        .map(Ipv4Addr::from_bits)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::{ENDING, READY_LINE};
    use super::*;

    #[test]
    fn a_neighbour_is_another_address_of_the_network() {
        for (own, prefix, others) in [
            ("192.0.2.10", 24, &["192.0.2.1", "192.0.2.2", "192.0.2.3"][..]),
            ("192.0.2.1", 24, &["192.0.2.2", "192.0.2.3"]),
            ("192.0.2.5", 30, &["192.0.2.6"]),
            ("192.0.2.6", 31, &["192.0.2.7"]),
            ("192.0.2.6", 32, &[]),
            ("192.0.2.6", 0, &["0.0.0.1", "0.0.0.2", "0.0.0.3"]),
        ] {
            let found: Vec<String> = neighbour_addresses(own.parse().unwrap(), prefix)
                .iter()
                .map(Ipv4Addr::to_string)
                .collect();
            assert_eq!(found, others, "{own}/{prefix}");
        }
    }

    #[test]
    fn the_remedy_is_for_a_container_that_is_gone() {
        let of_status = "start it again now that ens1 is there";
        let of_trial = "try it again now that ens1 is there";
        assert_eq!(adapt_remedy(of_status), of_trial);
        let other = "check: onload_stackdump, ss --tcp";
        assert_eq!(adapt_remedy(other), other);
    }

    const PORTS: &str = "link 2 ens1 - - - -\nlink 3 ens2 - - - -\n";

    /// By ens1 of these interfaces and addresses, where the kernel sends by the interface of that number.
    fn by_number(table: &str, leads_by: u32) -> Result<TrafficPath, TrialOutcome> {
        way(table, &|_| Some(leads_by))
    }

    fn way(
        table: &str,
        leads_by: &dyn Fn(IpAddr) -> Option<u32>,
    ) -> Result<TrafficPath, TrialOutcome> {
        TrafficPath::find("ens1", &NetworkState::parse(table).unwrap(), leads_by, &|_| false)
    }

    fn to(neighbour: [u8; 4], ports: &[&str]) -> Option<TrafficPath> {
        Some(TrafficPath {
            neighbour: neighbour.into(),
            ports: ports.iter().map(|port| (*port).to_owned()).collect(),
        })
    }

    #[track_caller]
    fn not_tried(found: Result<TrafficPath, TrialOutcome>) -> (String, String) {
        match found {
            Err(TrialOutcome::NotTried(why, remedy)) => (why, remedy),
            _ => panic!("it is tried"),
        }
    }

    #[test]
    fn a_port_without_an_address_is_not_tried() {
        let (why, remedy) = not_tried(by_number(PORTS, 2));
        assert_eq!(why, "ens1 and the interfaces on it have no IPv4 address, so ens1 cannot send");
        assert_eq!(remedy, "give ens1, or an interface on it, an IPv4 address");
        let of_ipv6 = format!("{PORTS}address 2 2001:db8::5/64\n");
        let (again, _) = not_tried(by_number(&of_ipv6, 2));
        assert_eq!(again, why);
        not_tried(way("", &|_| Some(2)));
    }

    #[test]
    fn a_member_of_a_bond_is_tried_by_the_bond_and_all_members_count() {
        let bond = "link 2 ens1 - 4 - -\nlink 3 ens2 - 4 - -\nlink 4 bond0 bond:1 - - -\n";
        let own = format!("{bond}address 4 192.0.2.10/24\n");
        assert_eq!(by_number(&own, 4).ok(), to([192, 0, 2, 1], &["ens1", "ens2"]));
        let on_vlan = format!("{bond}link 5 bond0.7 vlan:33024 - 4 -\naddress 5 192.0.2.10/24\n");
        assert_eq!(by_number(&on_vlan, 5).ok(), to([192, 0, 2, 1], &["ens1", "ens2"]));
        // An address on the member itself is no way, and it is not told to have one.
        let on_member = format!("{bond}address 2 192.0.2.10/24\n");
        let (why, remedy) = not_tried(by_number(&on_member, 2));
        assert!(why.starts_with("bond0 and the interfaces on it have no IPv4 address"), "{why}");
        assert_eq!(remedy, "give bond0, or an interface on it, an IPv4 address");
        let way = by_number(&own, 4).ok().unwrap();
        let TrialOutcome::Works(text) = way.judge("a stack", 5) else {
            panic!("it works");
        };
        assert!(text.contains("ens1 and ens2 counted 5 sent packets"), "{text}");
    }

    #[test]
    fn a_port_with_interfaces_on_it_alone_is_tried_by_these_and_counts_itself() {
        let vlan = format!("{PORTS}link 5 ens1.7 vlan:33024 - 2 -\n");
        let own = format!("{vlan}address 5 192.0.2.10/24\n");
        assert_eq!(by_number(&own, 5).ok(), to([192, 0, 2, 1], &["ens1"]));
        let on_it = format!("{vlan}link 6 mac0 macvlan - 5 -\naddress 6 192.0.2.10/24\n");
        assert_eq!(by_number(&on_it, 6).ok(), to([192, 0, 2, 1], &["ens1"]));
        // Neither those of another port, nor kinds of which Onload knows nothing, nor interfaces around a circle.
        for line in [
            "link 5 ens2.7 vlan:33024 - 3 -\n",
            "link 5 tunnel gre - 2 -\n",
            "link 5 a vlan - 6 -\nlink 6 b vlan - 5 -\n",
        ] {
            not_tried(by_number(&format!("{PORTS}{line}address 5 192.0.2.10/24\n"), 5));
        }
    }

    #[test]
    fn thousands_of_interfaces_on_a_port_take_no_minutes() {
        let vlans = 5..2005;
        let vlans = vlans.map(|number| format!("link {number} v{number} vlan:33024 - 2 -\n"));
        let table: String = std::iter::once(PORTS.to_owned()).chain(vlans).collect();
        let begun = Instant::now();
        not_tried(by_number(&table, 2));
        assert!(begun.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_port_of_a_bridge_is_not_tried_by_the_bridge() {
        let bridge = "link 2 ens1 - 4 - -\nlink 4 br0 bridge - - -\naddress 4 192.0.2.10/24\n";
        let (why, _) = not_tried(by_number(bridge, 4));
        assert!(why.starts_with("ens1 and the interfaces on it"), "{why}");
    }

    #[test]
    fn a_neighbour_is_one_to_which_the_kernel_sends_by_the_interface() {
        let two = format!("{PORTS}address 2 192.0.2.10/24\naddress 2 198.51.100.10/24\n");
        let starts = |address: IpAddr, start: &str| address.to_string().starts_with(start);
        assert_eq!(by_number(&two, 2).ok(), to([192, 0, 2, 1], &["ens1"]));
        // An address of the host's own, and then a network that another interface is in too.
        let own = |address: IpAddr| Some(if starts(address, "192.0.2.1") { 1 } else { 2 });
        assert_eq!(way(&two, &own).ok(), to([192, 0, 2, 2], &["ens1"]));
        let shared = |address: IpAddr| Some(if starts(address, "192") { 3 } else { 2 });
        assert_eq!(way(&two, &shared).ok(), to([198, 51, 100, 1], &["ens1"]));
        let (why, _) = not_tried(by_number(&two, 3));
        let expected =
            "the kernel does not send to 192.0.2.1, which is next to an address of ens1, by ens1";
        assert_eq!(why, expected);
        let (why, _) = not_tried(way(&two, &|_| None));
        assert_eq!(why, expected);
    }

    #[test]
    fn an_interface_that_is_down_is_told_to_be_set_up() {
        let network = NetworkState::parse(&format!("{PORTS}address 2 192.0.2.10/24\n")).unwrap();
        for leads_by in [None, Some(3)] {
            let found = TrafficPath::find("ens1", &network, &|_| leads_by, &|name| name == "ens1");
            let (why, remedy) = not_tried(found);
            assert_eq!(why, "ens1 is down, so it cannot send");
            assert_eq!(remedy, "run: ip link set dev ens1 up");
        }
    }

    #[test]
    fn a_stack_alone_does_not_make_a_program_accelerated() {
        let way = to([192, 0, 2, 1], &["ens1"]).unwrap();
        let TrialOutcome::Works(text) = way.judge("a stack", 5) else {
            panic!("it works");
        };
        assert_eq!(text, "a stack; ens1 counted 5 sent packets while datagrams went to 192.0.2.1");
        let TrialOutcome::Fails(reason, Some(_)) = way.judge("a stack", 0) else {
            panic!("it does not work");
        };
        assert!(reason.starts_with("a stack; but ens1 counted no sent packet"), "{reason}");
    }

    #[test]
    fn the_script_sends_until_its_input_ends() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let script = SCRIPT.replace("/9 ", &format!("/{port} "));
        let line = ["bash", "-c", &script, "bash", "127.0.0.1"].map(str::to_owned);
        let container = super::super::ForegroundContainer::start(&line).unwrap();
        let stop = super::super::Interrupt::default();
        container.read_until(READY_LINE, ENDING, &stop).unwrap();
        let mut bytes = [0; 64];
        socket.set_read_timeout(Some(ENDING)).unwrap();
        for _ in 0..2 {
            let length = socket.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..length], b"onload-ctk try\n");
        }
        let began = Instant::now();
        container.end(ENDING);
        assert!(began.elapsed() < ENDING);
    }
}
