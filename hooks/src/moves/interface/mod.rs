//! The [lifecycle](super::lifecycle) of an interface: the checks before it moves, its settings in the container, and
//! its return in [`move_home`] and [`restore`].

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

use onload_core::device_id::DeviceId;
use onload_lease::{Leases, SavedInterface, SavedState};
use onload_sys::error::{Context as _, Result, bail};
use onload_sys::fs::lock::Lock;
use onload_sys::netlink::link::Link;
use onload_sys::pci::PciAddress;
use onload_sys::text::Quoted;

pub(crate) use ops::InterfaceOps;
use ops::find_interface;
use rebind::RebindableFunction;
pub(super) use usage::{check as check_unused, find_opener};

use super::lifecycle::{
    MoveContext, MoveOps, MoveRequest, RestoreError, ReturnedDevice, not_on_host_error,
};
use super::netns::{Netns, SearchDepth};

/// The name that engines use for a container's own interface.
const RESERVED: &[u8] = b"eth0";

impl MoveOps for InterfaceOps {
    const WORD: &'static str = "interface";
    const NEEDS: &'static str = "an interface needs a rootful engine on the host";
    type Saved = SavedInterface;
    const TO_STATE: fn(SavedInterface) -> SavedState = SavedState::Interface;
    type Observation = Link;

    fn check_movable(context: &MoveContext<'_>, name: &str) -> Result<()> {
        if context.container_netns.is_same(&context.host_netns) {
            bail!(
                "interface {name} cannot move: the container has this host's own network, where it \
                 can use the interface as it is; omit --network host, or the device"
            );
        }
        Ok(())
    }

    /// Takes the lock of the PCI function, since another container may request the interface by another name. Fails if
    /// the function is leased under another name: a container may have renamed the interface, which is not restored
    /// until that lease ends.
    fn reserve(leases: &Leases, request: &MoveRequest<'_>) -> Result<Option<Lock>> {
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

    fn find_requested(netns: &Netns, request: &MoveRequest<'_>) -> Result<Option<Link>> {
        find_interface(netns, request.pci, &request.name)
    }

    fn examine(
        link: &Link,
        request: &MoveRequest<'_>,
        context: &MoveContext<'_>,
    ) -> Result<(SavedInterface, Option<String>)> {
        let MoveRequest { name, pci, .. } = request;
        if link.name != name.as_bytes() {
            bail!(
                "interface {name}: the interface of PCI function {pci} is called {} now; run `systemctl start onload-cdi.service`, then start a new container",
                Quoted(&link.display_name())
            );
        }
        check_names(link, request, &context.container_netns)?;
        let host_netns = &context.host_netns;
        let warning = usage::check(host_netns, link, Some(*pci), SearchDepth::Processes)?;
        let mut saved = saved::save_interface(link, *pci);
        saved.vf = vf::check_vf(host_netns, request)?.map(Box::new);
        saved.sysctls = sysctl::save_sysctls(host_netns, link)
            .with_context(|| format!("reading the settings of interface {name}"))?;
        saved.queues = queues::save_queues(host_netns, link).map(Box::new);
        saved.onload = onload::read_registration(&saved);
        Ok((saved, warning))
    }

    fn check_existing(
        container_netns: &Netns,
        link: &Link,
        request: &MoveRequest<'_>,
    ) -> Result<()> {
        match in_container::find_difference(container_netns, link, request)? {
            Some(difference) => bail!(
                "{}: another container has it too, and it is set up otherwise: {difference}; \
                 request the same, or for another device",
                request.device
            ),
            None => Ok(()),
        }
    }

    fn stray_state(_: &Link, request: &MoveRequest<'_>) -> Result<SavedInterface> {
        bail!(
            "interface {} is in the container's network namespace already, and no lease says how \
             it was before; move it back manually",
            request.name
        )
    }

    fn send(
        link: &Link,
        request: &MoveRequest<'_>,
        saved: &SavedInterface,
        context: &MoveContext<'_>,
    ) -> Result<()> {
        // A program of root may have started to use the interface since the first check. Other users cannot.
        usage::check(&context.host_netns, link, Some(request.pci), SearchDepth::Root)?;
        vf::set_up_vf(&context.host_netns, link, saved)?;
        if request.settings.af_xdp {
            queues::leave_one_channel(&context.host_netns, link, saved)?;
        }
        let new_name = request.new_name.map(|name| name.as_str().as_bytes());
        let moved = context.host_netns.move_link(link.index, &context.container_netns, new_name);
        moved.with_context(|| uppers::move_context(&link.name, "into the container"))?;
        let moved_link =
            Self::find_requested(&context.container_netns, request)?.ok_or_else(|| {
                not_on_host_error::<Self>(&context.host_netns, request.pci, &request.name)
            })?;
        in_container::set(&context.container_netns, &moved_link, request)?;
        if request.settings.af_xdp {
            let saved = saved::save_interface(&moved_link, request.pci);
            register(&saved, request.device, context)?;
        }
        Ok(())
    }

    fn find(netns: &Netns, saved: &SavedInterface) -> Result<Option<Link>> {
        find_interface(netns, saved.pci, &saved.name)
    }

    fn is_in_netns(netns: &Netns, pci: PciAddress, name: &str) -> bool {
        matches!(find_interface(netns, pci, name), Ok(Some(_)))
    }

    fn prepare(host_netns: &Netns, saved: &SavedInterface) -> Result<()> {
        move_home::delete_impostors(host_netns)?;
        // If binding fails, the error will be that the interface is not on the host.
        if let Some(function) = find_function(saved)
            && let Ok(true) = function.finish_rebind()
        {
            rebind::wait_for_interface(host_netns, saved)?;
        }
        Ok(())
    }

    fn move_home(
        from: &Netns,
        link: &Link,
        host_netns: &Netns,
        saved: &SavedInterface,
    ) -> Result<()> {
        move_home::move_home(from, link, host_netns, saved)
    }

    fn restore(returned: ReturnedDevice<'_, Self>, host_netns: &Netns) -> Result<(), RestoreError> {
        let ReturnedDevice { returning, observation: link } = returned;
        let function = find_function(&returning.saved);
        restore::clear_and_restore(host_netns, link, &returning.saved, &|link| {
            restore::clear(host_netns, link, &returning, function.as_ref())
        })
    }
}

fn find_function(saved: &SavedInterface) -> Option<RebindableFunction> {
    RebindableFunction::find(Path::new(rebind::PCI), saved.pci)
}

/// Fails if an alternative name of the interface is taken in the container. The names move too, and the kernel would
/// fail in the middle of the move.
fn check_names(link: &Link, request: &MoveRequest<'_>, container_netns: &Netns) -> Result<()> {
    let name = &request.name;
    let container_name =
        request.new_name.map_or(link.name.as_slice(), |name| name.as_str().as_bytes());
    let other_names = || link.alternative_names.iter().map(Vec::as_slice);
    if request.new_name.is_some() && other_names().any(|other| other == container_name) {
        bail!(
            "interface {name} cannot be called {} in the container: that is another name of it on this host",
            Quoted(&String::from_utf8_lossy(container_name))
        );
    }
    let mut names: Vec<&[u8]> = vec![container_name];
    names.extend(other_names());
    if names.contains(&RESERVED) {
        bail!(
            "interface {name} cannot move: one of its names is eth0, and engines call the container's own interface so; give it another one on the host"
        );
    }
    let container_links = container_netns.links()?;
    for taken in names {
        if container_links.iter().any(|other| other.has_name(taken)) {
            bail!(
                "interface {name} cannot move: the container has an interface called {} already",
                Quoted(&String::from_utf8_lossy(taken))
            );
        }
    }
    Ok(())
}

/// Registers the interface with Onload in the container, where programs of the host no longer see it: a program that
/// started to use it would own its queues.
fn register(saved: &SavedInterface, device: &DeviceId, context: &MoveContext<'_>) -> Result<()> {
    let registration = onload::register(&context.container_netns, saved)?;
    context.leases.update_moves(device, &|record| {
        if let SavedState::Interface(saved) = &mut record.saved {
            saved.onload = registration;
        }
    })
}
