//! What an interface does on its [journey](super::journey): what is looked at before it moves, what it has in the
//! container, and in [`take`] and [`restore`] how it comes back.

mod facts;
mod function;
mod identity;
mod inside;
mod leftovers;
mod onload;
mod queues;
mod rebind;
mod restore;
mod sysctl;
mod take;
mod usage;

use std::path::Path;

use onload_core::class::Class;
use onload_core::lease::{DeviceId, Leases, MoveRecord, SavedInterface, SavedState};
use onload_sys::error::{Context as _, Error, Result};
use onload_sys::fs::lock::Lock;
use onload_sys::netlink::link::Link;
use onload_sys::pci::PciAddress;
use onload_sys::text::Quoted;
use onload_sys::{bail, error};

pub use identity::Identity;
use rebind::Function;
pub(super) use usage::{check as check_unused, opener};

use super::journey::{Arrival, Grant, Home, Kind, NotBack, Request, Way};
use super::netns::{Depth, Netns};

/// What engines call the interface that they give a container themselves.
const RESERVED: &[u8] = b"eth0";

/// The driver of an interface's function, where that can be bound anew.
#[derive(Default)]
pub(crate) struct Driver {
    function: Option<Function>,
    /// A killed process had left the function without it.
    is_bound_again: bool,
}

impl Kind for Identity {
    const CLASS: Class = Class::Netdev;
    const WORD: &'static str = "interface";
    const THING: &'static str = "interface";
    const NEEDS: &'static str = "an interface needs an engine of the host's root";
    type Facts = SavedInterface;
    type Seen = Link;
    type Driver = Driver;

    fn check_way(&self, home: &Netns, to: &Netns, name: &str) -> Result<()> {
        if to.is(home) {
            bail!(
                "interface {name} cannot move: the container has this host's own network, where it can use the interface as it is; leave out --network host, or the device"
            );
        }
        Ok(())
    }

    /// Another container may ask for it by another name. Refuses a function that has a lease of another name: a container
    /// may have renamed the interface, which came back under that name, and is not as it was before its own lease ends.
    fn reserve(&self, leases: &Leases, request: &Request<'_>) -> Result<Option<Lock>> {
        let Request { name, pci, .. } = request;
        let lock = leases.lock_function(*pci)?;
        let leased = leases.find_by_function(*pci)?;
        if let Some(other) = leased.iter().find(|other| *other != request.device) {
            bail!(
                "interface {name}: PCI function {pci} is leased as {other}; \"onload-ctk lease list\" shows all"
            );
        }
        Ok(Some(lock))
    }

    fn look(&self, netns: &Netns, request: &Request<'_>) -> Result<Option<Link>> {
        self.interface_of(netns, request.pci, &request.name)
    }

    fn examine(
        &self,
        link: &Link,
        request: &Request<'_>,
        way: &Way<'_, Self>,
    ) -> Result<(SavedInterface, Option<String>)> {
        let Request { name, pci, .. } = request;
        if link.name != name.as_bytes() {
            bail!(
                "interface {name}: the interface of PCI function {pci} is called {} now; run `systemctl start onload-cdi.service`, then start a new container",
                Quoted(&link.display_name())
            );
        }
        check_names(link, request, &way.to)?;
        let home = &way.home.netns;
        let warning = usage::check(home, link, Some(*pci), Depth::Processes)?;
        let facts = facts::of(link, *pci);
        let vf = function::examine(self, home, request)?;
        let sysctls = sysctl::of(home, link);
        let facts = SavedInterface {
            vf: vf.map(Box::new),
            sysctls: sysctls
                .with_context(|| format!("reading the settings of interface {name}"))?,
            queues: queues::of(home, link).map(Box::new),
            onload: onload::registration(&facts),
            ..facts
        };
        Ok((facts, warning))
    }

    fn check_there(&self, there: &Netns, link: &Link, request: &Request<'_>) -> Result<()> {
        match inside::otherwise(there, link, request)? {
            Some(otherwise) => bail!(
                "{}: another container has it too, and it is set up otherwise: {otherwise}; ask for the same, or for another device",
                request.device
            ),
            None => Ok(()),
        }
    }

    fn stray(&self, _: &Link, request: &Request<'_>) -> Result<SavedInterface> {
        bail!(
            "interface {} is in the container's network namespace already, and no lease says how it was before; who put it there has to take it out",
            request.name
        )
    }

    fn send(
        &self,
        grant: &Grant<'_, Self>,
        facts: &SavedInterface,
        way: &Way<'_, Self>,
    ) -> Result<()> {
        let (link, request) = (&grant.seen, &grant.request);
        // It may have come into use since the first look. Nobody but root can do that.
        usage::check(&way.home.netns, link, Some(request.pci), Depth::Root)?;
        function::set_up(&way.home, link, facts)?;
        let new_name = request.new_name.map(|name| name.as_str().as_bytes());
        let moved = way.home.netns.give(link.index, &way.to, new_name);
        moved.with_context(|| leftovers::moving(&link.name, "into the container"))?;
        let there = self.look(&way.to, request)?;
        let there = there.ok_or_else(|| Self::not_here(&request.name, request.pci, None))?;
        inside::set(&way.to, &there, request)?;
        if request.settings.af_xdp {
            let facts = facts::of(&there, request.pci);
            register(&facts, request.device, way)?;
        }
        Ok(())
    }

    fn of(facts: &SavedState) -> Option<&SavedInterface> {
        match facts {
            SavedState::Interface(facts) => Some(facts),
            SavedState::Rdma(_) | SavedState::Function(_) => None,
        }
    }

    fn identity(facts: &SavedInterface) -> (PciAddress, &str) {
        (facts.pci, &facts.name)
    }

    fn find(&self, netns: &Netns, facts: &SavedInterface) -> Result<Option<Link>> {
        self.interface_of(netns, facts.pci, &facts.name)
    }

    fn is_in(&self, netns: &Netns, pci: PciAddress, name: &str) -> bool {
        matches!(self.interface_of(netns, pci, name), Ok(Some(_)))
    }

    fn prepare(&self, home: &Home<'_, Self>, facts: &SavedInterface) -> Result<Driver> {
        take::sweep(home)?;
        let function = Function::find(Path::new(rebind::PCI), facts.pci);
        // If this fails, the interface is not on the host, which is what is said then.
        let is_bound_again =
            function.as_ref().is_some_and(|own| own.bind_again().is_ok_and(|done| done));
        if is_bound_again {
            rebind::wait_for(home, facts)?;
        }
        Ok(Driver { function, is_bound_again })
    }

    fn take(
        &self,
        from: &Netns,
        link: &Link,
        home: &Home<'_, Self>,
        facts: &SavedInterface,
    ) -> Result<()> {
        take::take(from, link, home, facts)
    }

    fn restore(&self, arrival: Arrival<'_, Self>, home: &Home<'_, Self>) -> Result<(), NotBack> {
        let Arrival { back, seen, driver } = arrival;
        restore::finish(home, seen, &back.facts, &|link| {
            if driver.is_bound_again {
                // Nobody has had it since its driver made it.
                return Ok(());
            }
            restore::clear(home, link, &back, driver.function.as_ref())
        })
    }

    fn looking(name: &str) -> String {
        leftovers::looking(name)
    }

    fn not_here(name: &str, pci: PciAddress, keeper: Option<String>) -> Error {
        let why = match keeper {
            Some(keeper) => format!("; it is in a network namespace that {keeper} keeps"),
            None => "; is it bound to its driver?".to_owned(),
        };
        error!("interface {name}: PCI function {pci} has no interface on this host{why}")
    }
}

/// Its other names go with it. Where they are in the way, the kernel would say so in the middle of the move.
fn check_names(link: &Link, request: &Request<'_>, to: &Netns) -> Result<()> {
    let name = &request.name;
    let there = request.new_name.map_or(link.name.as_slice(), |name| name.as_str().as_bytes());
    let others = || link.alternative_names.iter().map(Vec::as_slice);
    if request.new_name.is_some() && others().any(|other| other == there) {
        bail!(
            "interface {name} cannot be called {} in the container: that is another name of it on this host",
            Quoted(&String::from_utf8_lossy(there))
        );
    }
    let mut names: Vec<&[u8]> = vec![there];
    names.extend(others());
    if names.contains(&RESERVED) {
        bail!(
            "interface {name} cannot move: one of its names is eth0, and engines call the container's own interface so; give it another one on the host"
        );
    }
    let theirs = to.links()?;
    let is_taken = |name: &&&[u8]| theirs.iter().any(|other| other.has_name(name));
    if let Some(taken) = names.iter().find(is_taken) {
        bail!(
            "interface {name} cannot move: the container has an interface called {} already",
            Quoted(&String::from_utf8_lossy(taken))
        );
    }
    Ok(())
}

/// Has Onload take it, where no program of the host sees it any more: one that began to use it would have its queues.
fn register(facts: &SavedInterface, device: &DeviceId, way: &Way<'_, Identity>) -> Result<()> {
    let registration = onload::register(&way.to, facts)?;
    let say = |moved: &mut MoveRecord| {
        if let SavedState::Interface(facts) = &mut moved.facts {
            facts.onload = registration;
        }
    };
    way.leases.update_moves(device, &say)
}
