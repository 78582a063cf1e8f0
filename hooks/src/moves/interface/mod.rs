//! What an interface does on its [journey](super::lifecycle): what is looked at before it moves, what it has in the
//! container, and in [`move_home`] and [`restore`] how it comes back.

mod in_container;
mod move_home;
mod onload;
mod ops;
mod queues;
mod rebind;
mod restore;
mod saved;
mod sysctl;
mod uppers;
mod usage;
mod vf;

use std::path::Path;

use onload_core::class::Class;
use onload_core::lease::{DeviceId, Leases, MoveRecord, SavedInterface, SavedState};
use onload_sys::error::{Context as _, Error, Result};
use onload_sys::fs::lock::Lock;
use onload_sys::netlink::link::Link;
use onload_sys::pci::PciAddress;
use onload_sys::text::Quoted;
use onload_sys::{bail, error};

pub use ops::InterfaceOps;
use rebind::RebindableFunction;
pub(super) use usage::{check as check_unused, find_opener};

use super::lifecycle::{
    ContainerDevice, HostNetns, MoveContext, MoveOps, MoveRequest, RestoreError, ReturnedDevice,
};
use super::netns::{Netns, SearchDepth};

/// What engines call the interface that they give a container themselves.
const RESERVED: &[u8] = b"eth0";

/// The driver of an interface's function, where that can be bound anew.
#[derive(Default)]
pub(crate) struct InterfacePreparation {
    function: Option<RebindableFunction>,
    /// A killed process had left the function without it.
    is_bound_again: bool,
}

impl MoveOps for InterfaceOps {
    const CLASS: Class = Class::Netdev;
    const WORD: &'static str = "interface";
    const THING: &'static str = "interface";
    const NEEDS: &'static str = "an interface needs an engine of the host's root";
    type Facts = SavedInterface;
    type Seen = Link;
    type Driver = InterfacePreparation;

    fn check_way(&self, home: &Netns, to: &Netns, name: &str) -> Result<()> {
        if to.is_same(home) {
            bail!(
                "interface {name} cannot move: the container has this host's own network, where it can use the interface as it is; leave out --network host, or the device"
            );
        }
        Ok(())
    }

    /// Another container may ask for it by another name. Refuses a function that has a lease of another name: a container
    /// may have renamed the interface, which came back under that name, and is not as it was before its own lease ends.
    fn reserve(&self, leases: &Leases, request: &MoveRequest<'_>) -> Result<Option<Lock>> {
        let MoveRequest { name, pci, .. } = request;
        let lock = leases.lock_function(*pci)?;
        let leased = leases.find_by_function(*pci)?;
        if let Some(other) = leased.iter().find(|other| *other != request.device) {
            bail!(
                "interface {name}: PCI function {pci} is leased as {other}; \"onload-ctk lease list\" shows all"
            );
        }
        Ok(Some(lock))
    }

    fn find_requested(&self, netns: &Netns, request: &MoveRequest<'_>) -> Result<Option<Link>> {
        self.find_interface(netns, request.pci, &request.name)
    }

    fn examine(
        &self,
        link: &Link,
        request: &MoveRequest<'_>,
        way: &MoveContext<'_, Self>,
    ) -> Result<(SavedInterface, Option<String>)> {
        let MoveRequest { name, pci, .. } = request;
        if link.name != name.as_bytes() {
            bail!(
                "interface {name}: the interface of PCI function {pci} is called {} now; run `systemctl start onload-cdi.service`, then start a new container",
                Quoted(&link.display_name())
            );
        }
        check_names(link, request, &way.to)?;
        let home = &way.home.netns;
        let warning = usage::check(home, link, Some(*pci), SearchDepth::Processes)?;
        let facts = saved::save_interface(link, *pci);
        let vf = vf::check_vf(self, home, request)?;
        let sysctls = sysctl::save_sysctls(home, link);
        let facts = SavedInterface {
            vf: vf.map(Box::new),
            sysctls: sysctls
                .with_context(|| format!("reading the settings of interface {name}"))?,
            queues: queues::save_queues(home, link).map(Box::new),
            onload: onload::read_registration(&facts),
            ..facts
        };
        Ok((facts, warning))
    }

    fn check_there(&self, there: &Netns, link: &Link, request: &MoveRequest<'_>) -> Result<()> {
        match in_container::find_difference(there, link, request)? {
            Some(otherwise) => bail!(
                "{}: another container has it too, and it is set up otherwise: {otherwise}; ask for the same, or for another device",
                request.device
            ),
            None => Ok(()),
        }
    }

    fn stray_state(&self, _: &Link, request: &MoveRequest<'_>) -> Result<SavedInterface> {
        bail!(
            "interface {} is in the container's network namespace already, and no lease says how it was before; who put it there has to take it out",
            request.name
        )
    }

    fn send(
        &self,
        grant: &ContainerDevice<'_, Self>,
        facts: &SavedInterface,
        way: &MoveContext<'_, Self>,
    ) -> Result<()> {
        let (link, request) = (&grant.seen, &grant.request);
        // It may have come into use since the first look. Nobody but root can do that.
        usage::check(&way.home.netns, link, Some(request.pci), SearchDepth::Root)?;
        vf::set_up_vf(&way.home, link, facts)?;
        let new_name = request.new_name.map(|name| name.as_str().as_bytes());
        let moved = way.home.netns.move_link(link.index, &way.to, new_name);
        moved.with_context(|| uppers::move_context(&link.name, "into the container"))?;
        let there = self.find_requested(&way.to, request)?;
        let there = there.ok_or_else(|| Self::not_here_error(&request.name, request.pci, None))?;
        in_container::set(&way.to, &there, request)?;
        if request.settings.af_xdp {
            let facts = saved::save_interface(&there, request.pci);
            register(&facts, request.device, way)?;
        }
        Ok(())
    }

    fn downcast_saved(facts: &SavedState) -> Option<&SavedInterface> {
        match facts {
            SavedState::Interface(facts) => Some(facts),
            SavedState::Rdma(_) | SavedState::Function(_) => None,
        }
    }

    fn identity(facts: &SavedInterface) -> (PciAddress, &str) {
        (facts.pci, &facts.name)
    }

    fn find(&self, netns: &Netns, facts: &SavedInterface) -> Result<Option<Link>> {
        self.find_interface(netns, facts.pci, &facts.name)
    }

    fn exists_in(&self, netns: &Netns, pci: PciAddress, name: &str) -> bool {
        matches!(self.find_interface(netns, pci, name), Ok(Some(_)))
    }

    fn prepare(
        &self,
        home: &HostNetns<'_, Self>,
        facts: &SavedInterface,
    ) -> Result<InterfacePreparation> {
        move_home::delete_impostors(home)?;
        let function = RebindableFunction::find(Path::new(rebind::PCI), facts.pci);
        // If this fails, the interface is not on the host, which is what is said then.
        let is_bound_again =
            function.as_ref().is_some_and(|own| own.finish_rebind().is_ok_and(|done| done));
        if is_bound_again {
            rebind::wait_for_interface(home, facts)?;
        }
        Ok(InterfacePreparation { function, is_bound_again })
    }

    fn move_home(
        &self,
        from: &Netns,
        link: &Link,
        home: &HostNetns<'_, Self>,
        facts: &SavedInterface,
    ) -> Result<()> {
        move_home::move_home(from, link, home, facts)
    }

    fn restore(
        &self,
        arrival: ReturnedDevice<'_, Self>,
        home: &HostNetns<'_, Self>,
    ) -> Result<(), RestoreError> {
        let ReturnedDevice { back, seen, driver } = arrival;
        restore::clear_and_restore(home, seen, &back.facts, &|link| {
            if driver.is_bound_again {
                // Nobody has had it since its driver made it.
                return Ok(());
            }
            restore::clear(home, link, &back, driver.function.as_ref())
        })
    }

    fn search_context(name: &str) -> String {
        uppers::search_context(name)
    }

    fn not_here_error(name: &str, pci: PciAddress, keeper: Option<String>) -> Error {
        let why = match keeper {
            Some(keeper) => format!("; it is in a network namespace that {keeper} keeps"),
            None => "; is it bound to its driver?".to_owned(),
        };
        error!("interface {name}: PCI function {pci} has no interface on this host{why}")
    }
}

/// Its other names go with it. Where they are in the way, the kernel would say so in the middle of the move.
fn check_names(link: &Link, request: &MoveRequest<'_>, to: &Netns) -> Result<()> {
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
fn register(
    facts: &SavedInterface,
    device: &DeviceId,
    way: &MoveContext<'_, InterfaceOps>,
) -> Result<()> {
    let registration = onload::register(&way.to, facts)?;
    let say = |moved: &mut MoveRecord| {
        if let SavedState::Interface(facts) = &mut moved.facts {
            facts.onload = registration;
        }
    };
    way.leases.update_moves(device, &say)
}
