//! A container whose program sends packets by an accelerated interface, and what `status` says of it.

use std::net::{IpAddr, Ipv4Addr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use onload_core::netdev::usage::Namespace;
use onload_core::onload::LIBRARY;
use onload_report::status::{START_AGAIN, State};

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
        let Some(neighbour) = neighbour(&network, interface) else {
            return Ok(Outcome::Fails(
                format!("{interface} has no IPv4 address, so that nothing is sent by it"),
                Some(format!("run: ip address add ADDRESS/24 dev {interface}")),
            ));
        };
        let onload = self.inventory.onload.as_ref();
        let installation = onload.and_then(|onload| onload.installation.as_ref());
        let installation = installation.context("looking for Onload's library: there is none")?;
        let files = image::of_shell(self.host, installation.library_dir.join(LIBRARY))?;
        let neighbour = neighbour.to_string();
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
            let verdict = own.and_then(|own| own.verdicts.into_iter().next());
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
                // A few more datagrams, for the counter.
                sleep(Duration::from_secs(1));
                let sent = sent(interface)?.saturating_sub(before);
                return Ok(Outcome::Works(format!(
                    "{}; meanwhile {interface} counted {sent} packets sent, with datagrams to {neighbour}",
                    verdict.reason
                )));
            }
            return Ok(Outcome::Fails(
                verdict.reason,
                verdict.remedy.as_deref().map(for_the_next_trial),
            ));
        }
    }
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

/// Another address of the interface's first IPv4 network.
fn neighbour(network: &Namespace, interface: &str) -> Option<Ipv4Addr> {
    let mut links = network.links.iter();
    let index = links.find(|link| link.name == interface)?.index;
    let mut addresses = network.addresses.iter();
    addresses.find_map(|own| match own.address {
        IpAddr::V4(address) if own.index == index => beside(address, own.prefix),
        _ => None,
    })
}

fn beside(own: Ipv4Addr, prefix: u8) -> Option<Ipv4Addr> {
    let own = own.to_bits();
    match prefix {
        0..=30 => {
            let network = own & (u32::MAX << (32 - u32::from(prefix.max(1))));
            let first = network + 1;
            let other = if first == own { first + 1 } else { first };
            Some(Ipv4Addr::from_bits(other))
        }
        31 => Some(Ipv4Addr::from_bits(own ^ 1)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ENDING, READY};
    use super::*;

    #[test]
    fn a_neighbour_is_another_address_of_the_network() {
        for (own, prefix, other) in [
            ("192.0.2.10", 24, Some("192.0.2.1")),
            ("192.0.2.1", 24, Some("192.0.2.2")),
            ("192.0.2.7", 30, Some("192.0.2.5")),
            ("192.0.2.6", 31, Some("192.0.2.7")),
            ("192.0.2.6", 32, None),
        ] {
            let found = beside(own.parse().unwrap(), prefix);
            assert_eq!(
                found,
                other.map(|other| other.parse().unwrap()),
                "{own}/{prefix}"
            );
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

    #[test]
    fn an_interface_without_an_address_has_no_neighbour() {
        assert_eq!(neighbour(&Namespace::default(), "ens1"), None);
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
