//! The way there: an interface of the host into the network namespace of a container's init.

use onload_core::fs::lock::{Lock, START_PATIENCE};
use onload_core::hook_arguments::MovedInterface;
use onload_core::lease::{Device, Facts, InterfaceFacts, Moved};
use onload_core::pci::PciAddress;
use onload_core::text::Quoted;

use super::error::NetdevError;
use super::facts;
use super::home::Home;
use super::identity::Identity;
use super::inside::{self, Wanted};
use super::settle;
use super::{back, onload, queues, usage};
use crate::giving::Recipient;
use crate::host::ThisHost;
use crate::netlink::link::Link;
use crate::netns::{Depth, Netns};
use crate::returning::{DYING_PATIENCE, MOVING_PATIENCE};
use crate::run::lease::{self, Container};

/// What engines call the interface that they give a container themselves.
const RESERVED: &[u8] = b"eth0";

/// An interface that a container is to have.
#[derive(Clone, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) interface: &'a MovedInterface,
    /// The device that is leased for it.
    pub(crate) device: &'a Device,
    /// What it is to have there.
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

/// The host, and the container.
struct Mover<'a> {
    home: Home<'a>,
    to: Recipient<'a>,
}

/// Gives a container all of the interfaces, or none of them; warnings of what is not known of them.
///
/// # Errors
/// [`NetdevError`]: the container must not start. What moved is back then, or the error says that it is not.
pub(super) fn give(
    asked: &[Asked<'_>],
    claim: lease::Wanted<'_>,
    container: Container<'_>,
    host: &ThisHost,
    identity: &Identity,
) -> Result<Vec<String>, NetdevError> {
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
    ) -> Result<Self, NetdevError> {
        let name = || first.interface.name.to_string();
        if !host.is_initial_namespace() {
            return Err(NetdevError::Rootless(name()));
        }
        let home = Home::open(identity).map_err(|error| match error {
            NetdevError::Elsewhere(_) => NetdevError::Elsewhere(name()),
            error => error,
        })?;
        let target = Netns::of_init::<NetdevError>(container.init)?;
        if target.is(&home.netns) {
            return Err(NetdevError::HostNetwork(name()));
        }
        let to = Recipient::new(target, claim, container, host)?;
        Ok(Mover { home, to })
    }

    /// Gives one. What fails before the lease has changed nothing; what fails afterwards is taken back here.
    fn give<'b>(&self, asked: &'b Asked<'b>) -> Result<Given<'b>, NetdevError> {
        let moving = self.to.leases.lock_moving(asked.device, MOVING_PATIENCE)?;
        settle::one(
            &self.to.leases,
            asked.device,
            self.home.identity,
            DYING_PATIENCE,
        )?;
        let (name, pci) = (asked.interface.name.to_string(), asked.interface.pci);
        // Another container may ask for it by another name.
        let function = self.to.leases.lock_function(pci, MOVING_PATIENCE)?;
        let given = |facts, warning| Given {
            asked,
            facts,
            warning,
            _moving: [moving, function],
        };
        self.check_function(asked.device, &name, pci)?;
        match self.home.identity.find(&self.home.netns, pci, &name)? {
            Some(link) => {
                let (facts, warning) = self.look(asked, &link)?;
                let addresses = asked.wanted.own_addresses();
                self.to
                    .lease_moved(asked.device, facts.clone(), addresses)?;
                match self.send(&link, &facts, asked) {
                    Ok(()) => Ok(given(Some(facts), warning)),
                    Err(error) => Err(self.undo(asked.device, &facts, error)),
                }
            }
            None => {
                self.join(asked, &name)?;
                Ok(given(None, None))
            }
        }
    }

    /// That no lease of another name has the function: a container may have renamed the interface, which came back under
    /// that name, and is not as it was before its own lease ends.
    fn check_function(
        &self,
        device: &Device,
        name: &str,
        pci: PciAddress,
    ) -> Result<(), NetdevError> {
        match self
            .to
            .leases
            .moved_as(pci)?
            .into_iter()
            .find(|other| other != device)
        {
            None => Ok(()),
            Some(other) => Err(NetdevError::OtherName {
                name: name.to_owned(),
                pci,
                other: other.to_string(),
            }),
        }
    }

    /// Looks at everything before anything is changed; what the interface is, and a warning.
    fn look(
        &self,
        asked: &Asked<'_>,
        link: &Link,
    ) -> Result<(InterfaceFacts, Option<String>), NetdevError> {
        let (name, pci) = (asked.interface.name.to_string(), asked.interface.pci);
        if link.name != name.as_bytes() {
            let found = Quoted(&link.shown()).to_string();
            return Err(NetdevError::Renamed { name, pci, found });
        }
        if link.is_called(RESERVED) {
            return Err(NetdevError::Reserved(name));
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

    /// That no interface of the container has one of its names.
    fn check_names(&self, link: &Link) -> Result<(), NetdevError> {
        let theirs = self.to.netns.links()?;
        let is_taken = |name: &&[u8]| theirs.iter().any(|other| other.is_called(name));
        match link.names().find(is_taken) {
            None => Ok(()),
            Some(taken) => Err(NetdevError::Taken {
                name: link.shown(),
                taken: Quoted(&String::from_utf8_lossy(taken)).to_string(),
            }),
        }
    }

    /// Moves it, and sets what it is to have there.
    fn send(
        &self,
        link: &Link,
        facts: &InterfaceFacts,
        asked: &Asked<'_>,
    ) -> Result<(), NetdevError> {
        // It may have come into use since the first look. Nobody but root can do that.
        usage::check(&self.home.netns, link, Depth::Root)?;
        let moved = self.home.netns.give(link.index, &self.to.netns, None);
        moved.map_err(NetdevError::moving(&link.name, "into the container"))?;
        let name = facts.name.as_str();
        let there = self.home.identity.find(&self.to.netns, facts.pci, name)?;
        let there = there.ok_or_else(|| NetdevError::Away {
            name: name.to_owned(),
            pci: facts.pci,
            keeper: None,
        })?;
        inside::set(&self.to.netns, &there, &asked.wanted)?;
        match asked.wanted.settings.af_xdp {
            true => self.register(&facts::of(&there, facts.pci), asked.device),
            false => Ok(()),
        }
    }

    /// Has Onload take it, where no program of the host sees it any more: one that began to use it would have its queues.
    fn register(&self, facts: &InterfaceFacts, device: &Device) -> Result<(), NetdevError> {
        let registration = onload::register(&self.to.netns, facts)?;
        let say = |moved: &mut Moved<Facts>| {
            if let Facts::Interface(facts) = &mut moved.facts {
                facts.onload = registration;
            }
        };
        Ok(self.to.leases.amend(device, START_PATIENCE, &say)?)
    }

    /// The interface is not on the host: another container of the same namespace may have it.
    fn join(&self, asked: &Asked<'_>, name: &str) -> Result<(), NetdevError> {
        let pci = asked.interface.pci;
        let namespace = self.to.netns.cookie();
        let moved = self
            .to
            .leases
            .moved_to(asked.device, namespace, START_PATIENCE)?;
        let is_here = self
            .home
            .identity
            .find(&self.to.netns, pci, name)?
            .is_some();
        match moved {
            Some(moved) if is_here => {
                let (facts, addresses): (InterfaceFacts, _) = (moved.facts, moved.addresses);
                Ok(self.to.lease_moved(asked.device, facts, addresses)?)
            }
            _ if is_here => Err(NetdevError::Unknown(name.to_owned())),
            _ => Err(self
                .to
                .held_elsewhere(asked.device, || back::away(&self.home, pci, name))),
        }
    }

    /// Brings back what could not be given, and ends its lease; the error to report.
    fn undo(&self, device: &Device, facts: &InterfaceFacts, failed: NetdevError) -> NetdevError {
        match self.bring_back(device, facts) {
            Ok(()) => failed,
            Err(back) => NetdevError::Lost {
                failed: Box::new(failed),
                back: Box::new(back),
            },
        }
    }

    fn bring_back(&self, device: &Device, facts: &InterfaceFacts) -> Result<(), NetdevError> {
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
    fn withdraw(&self, given: Vec<Given<'_>>, failed: NetdevError) -> NetdevError {
        let mut failed = failed;
        for one in given.into_iter().rev() {
            failed = match &one.facts {
                Some(facts) => self.undo(one.asked.device, facts, failed),
                // The others of the namespace keep it.
                None => match self.to.abandon(one.asked.device) {
                    Ok(()) => failed,
                    Err(back) => NetdevError::Lost {
                        failed: Box::new(failed),
                        back: Box::new(back),
                    },
                },
            };
        }
        failed
    }
}
