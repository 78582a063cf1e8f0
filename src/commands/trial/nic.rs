//! A container whose program sends packets by an accelerated interface, and what `status` says of it.

use std::net::{IpAddr, Ipv4Addr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use onload_core::netdev::usage::Namespace;
use onload_core::onload::LIBRARY;
use onload_host::netlink::namespace::leads_by;
use onload_report::status::{START_AGAIN, State, has_kernel_socket};
use onload_sys::text::shell_word;

use super::{Outcome, Trial, image};
use crate::commands::status;
use crate::printer::Printer;

/// How long a program may take until it has a stack.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sends a datagram to a neighbour's discard port five times a second, until its stdin ends (read: 1).
const SCRIPT: &str = "exec 3<>/dev/udp/$1/9 || exit 1; echo ready; \
    while echo onload-ctk try >&3; read -t 0.2; [ $? -gt 128 ]; do :; done 2>/dev/null; :";

impl Trial<'_> {
    pub(super) fn nic(&self, printer: &mut Printer) -> anyhow::Result<Outcome> {
        let interface = self.asked.name.as_str();
        let network = self.host.network()?.unwrap_or_default();
        let neighbour = match neighbour(&network, interface, &leads_by) {
            Ok(neighbour) => neighbour.to_string(),
            Err(outcome) => return Ok(outcome),
        };
        let onload = self.inventory.onload.as_ref();
        let installation = onload.and_then(|onload| onload.installation.as_ref());
        let installation = installation.context("looking for Onload's library: there is none")?;
        let files = image::of_shell(self.host, installation.library_dir.join(LIBRARY))?;
        let program = [image::SHELL, "-c", SCRIPT, "bash", &neighbour].map(str::to_owned);
        self.tried(&files, &program, |_| {
            self.looked_at(interface, &neighbour, printer)
        })
    }

    /// What `status` says, once it says something good or has had time for it.
    fn looked_at(
        &self,
        interface: &str,
        neighbour: &str,
        printer: &mut Printer,
    ) -> anyhow::Result<Outcome> {
        let before = sent(interface)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.stop.refuse()?;
            let found = status::look(self.host, self.inventory, printer)?;
            let mut containers = found.containers.into_iter();
            let own = containers.find(|one| one.is_called(&self.names.container()));
            let own = own.and_then(|own| Some((own.verdicts.into_iter().next()?, own.processes)));
            let (verdict, processes) = own.unzip();
            let is_good = verdict
                .as_ref()
                .is_some_and(|verdict| verdict.state == State::Accelerated);
            if !is_good && Instant::now() < deadline {
                sleep(Duration::from_millis(200));
                continue;
            }
            let Some(verdict) = verdict else {
                bail!("looking at the container: status does not know it; run: onload-ctk status");
            };
            if is_good {
                let sent = self.sent_since(before, interface)?;
                let mut processes = processes.into_iter().flatten();
                let is_by_kernel =
                    processes.any(|(pid, _)| has_kernel_socket(self.host, pid) == Some(true));
                return Ok(judged(
                    &verdict.reason,
                    interface,
                    neighbour,
                    sent,
                    is_by_kernel,
                ));
            }
            return Ok(Outcome::Fails(
                verdict.reason,
                verdict.remedy.as_deref().map(for_the_next_trial),
            ));
        }
    }

    /// Packets that the interface has sent since, for a few datagrams; some drivers count once in seconds.
    fn sent_since(&self, before: u64, interface: &str) -> anyhow::Result<u64> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            sleep(Duration::from_secs(1));
            self.stop.refuse()?;
            let since = sent(interface)?.saturating_sub(before);
            if since > 0 || Instant::now() > deadline {
                return Ok(since);
            }
        }
    }
}

/// What follows for a program with a stack: the stack alone does not say that it sends by it, and by that interface.
fn judged(
    reason: &str,
    interface: &str,
    neighbour: &str,
    sent: u64,
    is_by_kernel: bool,
) -> Outcome {
    if is_by_kernel {
        return Outcome::Fails(
            format!("{reason}; but datagrams to {neighbour} go by a socket of the kernel"),
            Some(format!(
                "look at dmesg, and at the variables EF_… that \"onload-ctk cdi show nic={interface}\" shows"
            )),
        );
    }
    if sent == 0 {
        return Outcome::Fails(
            format!(
                "{reason}; but {interface} counted no packet sent, with datagrams to {neighbour}"
            ),
            Some("look at where they go: onload_stackdump netstat, ip -statistics link".to_owned()),
        );
    }
    Outcome::Works(format!(
        "{reason}; meanwhile {interface} counted {sent} packets sent, with datagrams to {neighbour}"
    ))
}

/// `status` speaks of a container that runs; this one is gone when the remedy is read.
fn for_the_next_trial(remedy: &str) -> String {
    remedy.replace(START_AGAIN, "try it again")
}

/// Packets that the interface has sent.
fn sent(interface: &str) -> anyhow::Result<u64> {
    let path = format!("/sys/class/net/{interface}/statistics/tx_packets");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    text.trim()
        .parse()
        .with_context(|| format!("reading {path}"))
}

/// Another address of one of the interface's IPv4 networks, to which the kernel, and Onload with it, sends by this interface.
fn neighbour(
    network: &Namespace,
    interface: &str,
    leads_by: &dyn Fn(IpAddr) -> Option<u32>,
) -> Result<Ipv4Addr, Outcome> {
    let index = network.link(interface).map(|link| link.index);
    let addresses = network.addresses.iter();
    let addresses = addresses.filter(|own| Some(own.index) == index);
    let neighbours = addresses.flat_map(|own| match own.address {
        IpAddr::V4(address) => beside(address, own.prefix),
        IpAddr::V6(_) => Vec::new(),
    });
    let mut elsewhere = None;
    for neighbour in neighbours {
        let by = leads_by(neighbour.into());
        if by == index {
            return Ok(neighbour);
        }
        elsewhere.get_or_insert((neighbour, by));
    }
    Err(match elsewhere {
        None => Outcome::NotTried(
            format!("{interface} has no IPv4 address, so that nothing is sent by it"),
            format!(
                "run: ip address add ADDRESS/24 dev {}",
                shell_word(interface)
            ),
        ),
        Some((neighbour, None)) => Outcome::NotTried(
            format!("the kernel has no route to {neighbour}, beside an address of {interface}"),
            format!(
                "run: ip link set dev {} up; ip route get {neighbour}",
                shell_word(interface)
            ),
        ),
        Some((neighbour, Some(by))) => {
            let mut links = network.links.iter();
            let by = links.find(|link| link.index == by);
            let by = by.map_or("another interface", |link| link.name.as_str());
            Outcome::NotTried(
                format!(
                    "the kernel sends to {neighbour}, beside an address of {interface}, by {by}, so that nothing is sent by {interface}"
                ),
                format!("give {interface} an address of a network that {by} is not in"),
            )
        }
    })
}

/// The first other addresses of a network; the host may have some of them itself.
fn beside(own: Ipv4Addr, prefix: u8) -> Vec<Ipv4Addr> {
    let own = own.to_bits();
    let mask = u32::MAX
        .checked_shl(32 - u32::from(prefix))
        .unwrap_or_default();
    let others: Vec<u32> = match prefix {
        0..=30 => (1..=3).map(|number| (own & mask) + number).collect(),
        31 => vec![own ^ 1],
        _ => Vec::new(),
    };
    let is_other = |other: &u32| *other != own && (prefix == 31 || *other != own | !mask);
    let others = others.into_iter().filter(is_other);
    others.map(Ipv4Addr::from_bits).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{ENDING, READY};
    use super::*;

    #[test]
    fn a_neighbour_is_another_address_of_the_network() {
        for (own, prefix, others) in [
            (
                "192.0.2.10",
                24,
                &["192.0.2.1", "192.0.2.2", "192.0.2.3"][..],
            ),
            ("192.0.2.1", 24, &["192.0.2.2", "192.0.2.3"]),
            ("192.0.2.5", 30, &["192.0.2.6"]),
            ("192.0.2.6", 31, &["192.0.2.7"]),
            ("192.0.2.6", 32, &[]),
            ("192.0.2.6", 0, &["0.0.0.1", "0.0.0.2", "0.0.0.3"]),
        ] {
            let found = beside(own.parse().unwrap(), prefix);
            let found: Vec<String> = found.iter().map(Ipv4Addr::to_string).collect();
            assert_eq!(found, others, "{own}/{prefix}");
        }
    }

    #[test]
    fn the_remedy_is_for_a_container_that_is_gone() {
        let of_status = "start it again now that ens1 is there";
        let of_trial = "try it again now that ens1 is there";
        assert_eq!(for_the_next_trial(of_status), of_trial);
        let other = "look for them: onload_stackdump, ss --tcp";
        assert_eq!(for_the_next_trial(other), other);
    }

    /// The interface 2, ens1, with these addresses, beside the interface 3, ens2.
    fn network(addresses: &[&str]) -> Namespace {
        let lines = addresses
            .iter()
            .map(|address| format!("address 2 {address}\n"));
        let lines = lines.collect::<String>();
        Namespace::parse(&format!(
            "link 2 ens1 - - - -\nlink 3 ens2 - - - -\n{lines}"
        ))
        .unwrap()
    }

    #[track_caller]
    fn not_tried(found: Result<Ipv4Addr, Outcome>) -> (String, String) {
        match found {
            Err(Outcome::NotTried(why, remedy)) => (why, remedy),
            _ => panic!("it is tried"),
        }
    }

    #[test]
    fn an_interface_without_an_address_has_no_neighbour() {
        let (why, remedy) = not_tried(neighbour(&network(&[]), "ens1", &|_| Some(2)));
        assert_eq!(
            why,
            "ens1 has no IPv4 address, so that nothing is sent by it"
        );
        assert_eq!(remedy, "run: ip address add ADDRESS/24 dev ens1");
        let of_ipv6 = network(&["2001:db8::5/64"]);
        not_tried(neighbour(&of_ipv6, "ens1", &|_| Some(2)));
    }

    #[test]
    fn a_neighbour_is_one_to_which_the_kernel_sends_by_the_interface() {
        let two = network(&["192.0.2.10/24", "198.51.100.10/24"]);
        let first = |_: IpAddr| Some(2);
        assert_eq!(
            neighbour(&two, "ens1", &first).ok(),
            Some([192, 0, 2, 1].into())
        );
        // An address of the host's own, and then a network that another interface is in too.
        let own = |address: IpAddr| {
            Some(if address.to_string() == "192.0.2.1" {
                1
            } else {
                2
            })
        };
        assert_eq!(
            neighbour(&two, "ens1", &own).ok(),
            Some([192, 0, 2, 2].into())
        );
        let shared = |address: IpAddr| {
            Some(if address.to_string().starts_with("192") {
                3
            } else {
                2
            })
        };
        assert_eq!(
            neighbour(&two, "ens1", &shared).ok(),
            Some([198, 51, 100, 1].into())
        );
        let (why, _) = not_tried(neighbour(&two, "ens1", &|_| Some(3)));
        assert_eq!(
            why,
            "the kernel sends to 192.0.2.1, beside an address of ens1, by ens2, so that nothing is sent by ens1"
        );
        let (why, _) = not_tried(neighbour(&two, "ens1", &|_| None));
        assert_eq!(
            why,
            "the kernel has no route to 192.0.2.1, beside an address of ens1"
        );
    }

    #[test]
    fn a_stack_alone_does_not_make_a_program_accelerated() {
        let outcome =
            |sent, is_by_kernel| judged("a stack", "ens1", "192.0.2.1", sent, is_by_kernel);
        let Outcome::Works(text) = outcome(5, false) else {
            panic!("it works");
        };
        assert_eq!(
            text,
            "a stack; meanwhile ens1 counted 5 packets sent, with datagrams to 192.0.2.1"
        );
        for (sent, is_by_kernel, words) in [
            (0, false, "ens1 counted no packet sent"),
            (5, true, "go by a socket of the kernel"),
            (0, true, "go by a socket of the kernel"),
        ] {
            let Outcome::Fails(why, Some(_)) = outcome(sent, is_by_kernel) else {
                panic!("{sent} {is_by_kernel}: it does not work");
            };
            assert!(why.starts_with("a stack; but "), "{why}");
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn the_script_sends_until_its_input_ends() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let script = SCRIPT.replace("/9 ", &format!("/{port} "));
        let line = ["bash", "-c", &script, "bash", "127.0.0.1"].map(str::to_owned);
        let container = super::super::Container::start(&line).unwrap();
        let stop = super::super::Interrupt::default();
        container.says_until(READY, ENDING, &stop).unwrap();
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
