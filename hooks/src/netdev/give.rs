//! The way there: an interface of the host into the network namespace of a container's init.

use onload_core::bail;
use onload_core::error::{Context as _, Error, Result};
use onload_core::fs::lock::{Lock, START_PATIENCE};
use onload_core::hook_arguments::MovedInterface;
use onload_core::lease::{Device, Facts, InterfaceFacts, Moved};
use onload_core::pci::PciAddress;
use onload_core::text::Quoted;

use super::facts;
use super::home::Home;
use super::identity::Identity;
use super::inside::{self, Wanted};
use super::{back, leftovers, onload, queues, usage};
use crate::giving::{self, Recipient};
use crate::host::ThisHost;
use crate::netlink::link::Link;
use crate::netns::{Depth, Netns};
use crate::returning::{DYING_PATIENCE, MOVING_PATIENCE};
use crate::run::lease::{self, Container};

/// What engines call the interface that they give a container themselves.
const RESERVED: &[u8] = b"eth0";

#[derive(Clone, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) interface: &'a MovedInterface,
    pub(crate) device: &'a Device,
    pub(crate) wanted: Wanted,
}

/// One that the container has now.
struct Given<'a> {
    asked: &'a Asked<'a>,
    /// What it was; none where another container of the namespace had it already.
    facts: Option<InterfaceFacts>,
    /// What is not known of it.
    warning: Option<String>,
    /// Nobody else touches it before all are given.
    _moving: [Lock; 2],
}

struct Mover<'a> {
    home: Home<'a>,
    to: Recipient<'a>,
}

/// Gives a container all of the interfaces, or none of them; warnings of what is not known of them. After an error what
/// moved is back, or the error says that it is not.
pub(super) fn give(
    asked: &[Asked<'_>],
    claim: lease::Wanted<'_>,
    container: Container<'_>,
    host: &ThisHost,
    identity: &Identity,
) -> Result<Vec<String>> {
    let Some(first) = asked.first() else {
        return Ok(Vec::new());
    };
    let mover = Mover::new(first, claim, container, host, identity)?;
    let mut given = Vec::new();
    for one in asked {
        match mover.give(one) {
            Ok(new) => given.push(new),
            Err(error) => return Err(mover.withdraw(given, error)),
        }
    }
    Ok(given.into_iter().filter_map(|one| one.warning).collect())
}

impl<'a> Mover<'a> {
    fn new(
        first: &Asked<'_>,
        claim: lease::Wanted<'a>,
        container: Container<'a>,
        host: &'a ThisHost,
        identity: &'a Identity,
    ) -> Result<Self> {
        let name = &first.interface.name;
        if !host.is_initial_namespace() {
            bail!(
                "interface {name} cannot move: the engine is in a user namespace (rootless); an interface needs an engine of the host's root"
            );
        }
        let home = Home::open(identity, &name.to_string())?;
        let target = Netns::of_init(container.init)?;
        if target.is(&home.netns) {
            bail!(
                "interface {name} cannot move: the container has this host's own network, where it can use the interface as it is; leave out --network host, or the device"
            );
        }
        let to = Recipient::new(target, claim, container, host)?;
        Ok(Mover { home, to })
    }

    /// Gives one. What fails before the lease has changed nothing; what fails afterwards is taken back here.
    fn give<'b>(&self, asked: &'b Asked<'b>) -> Result<Given<'b>> {
        let (leases, device) = (&self.to.leases, asked.device);
        let moving = leases.lock_moving(device, MOVING_PATIENCE)?;
        back::settle(leases, device, self.home.identity, DYING_PATIENCE)?;
        let (name, pci) = (asked.interface.name.to_string(), asked.interface.pci);
        // Another container may ask for it by another name.
        let function = leases.lock_function(pci, MOVING_PATIENCE)?;
        let given = |facts, warning| Given {
            asked,
            facts,
            warning,
            _moving: [moving, function],
        };
        self.check_function(device, &name, pci)?;
        let Some(link) = self.home.identity.find(&self.home.netns, pci, &name)? else {
            self.join(asked, &name)?;
            return Ok(given(None, None));
        };
        let (facts, warning) = self.look(asked, &link)?;
        let addresses = asked.wanted.own_addresses();
        self.to.lease_moved(device, facts.clone(), addresses)?;
        if let Err(error) = self.send(&link, &facts, asked) {
            return Err(self.undo(device, &facts, error));
        }
        Ok(given(Some(facts), warning))
    }

    /// Refuses a function that has a lease of another name: a container may have renamed the interface, which came back
    /// under that name, and is not as it was before its own lease ends.
    fn check_function(&self, device: &Device, name: &str, pci: PciAddress) -> Result<()> {
        let leased = self.to.leases.moved_as(pci)?;
        if let Some(other) = leased.iter().find(|other| *other != device) {
            bail!(
                "interface {name}: PCI function {pci} is leased as {other}; \"onload-ctk lease list\" shows all"
            );
        }
        Ok(())
    }

    /// Looks at everything before anything is changed; what the interface is, and a warning.
    fn look(&self, asked: &Asked<'_>, link: &Link) -> Result<(InterfaceFacts, Option<String>)> {
        let (name, pci) = (asked.interface.name.to_string(), asked.interface.pci);
        if link.name != name.as_bytes() {
            bail!(
                "interface {name}: the interface of PCI function {pci} is called {} now; run `systemctl start onload-cdi.service`, then start a new container",
                Quoted(&link.shown())
            );
        }
        if link.is_called(RESERVED) {
            bail!(
                "interface {name} cannot move: one of its names is eth0, and engines call the container's own interface so; give it another one on the host"
            );
        }
        self.check_names(link)?;
        let warning = usage::check(&self.home.netns, link, Depth::Processes)?;
        let facts = facts::of(link, pci);
        let facts = InterfaceFacts {
            queues: queues::of(&self.home.netns, link).map(Box::new),
            onload: onload::registration(&facts),
            ..facts
        };
        Ok((facts, warning))
    }

    fn check_names(&self, link: &Link) -> Result<()> {
        let theirs = self.to.netns.links()?;
        let is_taken = |name: &&[u8]| theirs.iter().any(|other| other.is_called(name));
        if let Some(taken) = link.names().find(is_taken) {
            bail!(
                "interface {} cannot move: the container has an interface called {} already",
                link.shown(),
                Quoted(&String::from_utf8_lossy(taken))
            );
        }
        Ok(())
    }

    fn send(&self, link: &Link, facts: &InterfaceFacts, asked: &Asked<'_>) -> Result<()> {
        // It may have come into use since the first look. Nobody but root can do that.
        usage::check(&self.home.netns, link, Depth::Root)?;
        let moved = self.home.netns.give(link.index, &self.to.netns, None);
        moved.with_context(|| leftovers::moving(&link.name, "into the container"))?;
        let (name, pci) = (facts.name.as_str(), facts.pci);
        let there = self.home.identity.find(&self.to.netns, pci, name)?;
        let there = there.ok_or_else(|| back::not_here(name, pci, None))?;
        inside::set(&self.to.netns, &there, &asked.wanted)?;
        if asked.wanted.settings.af_xdp {
            self.register(&facts::of(&there, pci), asked.device)?;
        }
        Ok(())
    }

    /// Has Onload take it, where no program of the host sees it any more: one that began to use it would have its queues.
    fn register(&self, facts: &InterfaceFacts, device: &Device) -> Result<()> {
        let registration = onload::register(&self.to.netns, facts)?;
        let say = |moved: &mut Moved<Facts>| {
            if let Facts::Interface(facts) = &mut moved.facts {
                facts.onload = registration;
            }
        };
        self.to.leases.amend(device, START_PATIENCE, &say)
    }

    /// The interface is not on the host: another container of the same namespace may have it.
    fn join(&self, asked: &Asked<'_>, name: &str) -> Result<()> {
        let (device, pci) = (asked.device, asked.interface.pci);
        let Recipient { leases, netns, .. } = &self.to;
        let moved = leases.moved_to(device, netns.cookie(), START_PATIENCE)?;
        if self.home.identity.find(netns, pci, name)?.is_none() {
            let away = || back::away(&self.home, pci, name);
            return Err(self.to.held_elsewhere(device, away));
        }
        let Some(moved) = moved else {
            bail!(
                "interface {name} is in the container's network namespace already, and no lease says how it was before; who put it there has to take it out"
            );
        };
        let (facts, addresses): (InterfaceFacts, _) = (moved.facts, moved.addresses);
        self.to.lease_moved(device, facts, addresses)
    }

    /// Brings back what could not be given, and ends its lease; the error to report.
    fn undo(&self, device: &Device, facts: &InterfaceFacts, failed: Error) -> Error {
        lost(failed, self.bring_back(device, facts))
    }

    fn bring_back(&self, device: &Device, facts: &InterfaceFacts) -> Result<()> {
        self.to.bring_back(device, facts.clone(), |moved| {
            let (identity, facts) = (self.home.identity, &moved.facts);
            if let Some(link) = identity.find(&self.to.netns, facts.pci, &facts.name)? {
                back::fetch_from(&self.home, &self.to.netns, &link, facts)?;
            }
            let (leases, home) = (&self.to.leases, &self.home);
            back::bring_leased(leases, device, home, moved, &|| None, DYING_PATIENCE)
        })
    }

    /// Takes back what was given before another one failed; the error to report.
    fn withdraw(&self, given: Vec<Given<'_>>, mut failed: Error) -> Error {
        for one in given.into_iter().rev() {
            failed = match &one.facts {
                Some(facts) => self.undo(one.asked.device, facts, failed),
                // The others of the namespace keep it.
                None => lost(failed, self.to.abandon(one.asked.device)),
            };
        }
        failed
    }
}

fn lost(failed: Error, back: Result<()>) -> Error {
    match back {
        Ok(()) => failed,
        Err(back) => giving::lost(&failed, &back),
    }
}
