//! The way back: out of the network namespace where a device is, under the name that it had.

use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use onload_core::error::{Context as _, Error, Result};
use onload_core::lease::{Device, Leases, Moved, RdmaFacts};
use onload_core::pci::PciAddress;
use onload_core::{bail, error};
use rustix::io::Errno;

use super::devices::{Devices, Found};
use crate::netns::{self, Netns};
use crate::returning::{self, Hint, is_passing, passing};

/// Between two looks at a namespace that ends.
const PAUSE: Duration = Duration::from_millis(20);
/// How often a device is fetched from the namespace that it moved to.
const FETCHES: u32 = 4;

#[derive(Debug)]
pub(super) struct Home<'a> {
    pub(super) netns: Netns,
    pub(super) devices: &'a Devices,
}

impl<'a> Home<'a> {
    /// The namespace of this process, which has to be the host's; `name` is for messages.
    pub(super) fn open(devices: &'a Devices, name: &str) -> Result<Self> {
        let netns = Netns::own()?;
        if !netns.is_first() {
            bail!(
                "rdma {name} cannot move: the engine is not in this host's own network and PID namespaces, and has no device of it"
            );
        }
        Ok(Home { netns, devices })
    }

    pub(super) fn all(&self, netns: &Netns, name: &str) -> Result<Vec<Found>> {
        let listed = self.devices.of(netns);
        listed.with_context(|| format!("looking for rdma {name}"))
    }

    /// A device that is known already, in a namespace. A driver that was bound anew has given it another number.
    fn find(&self, netns: &Netns, facts: &RdmaFacts) -> Result<Option<Found>> {
        let all = self.all(netns, &facts.name)?;
        Ok(all.into_iter().find(|found| is_of(found, facts)))
    }
}

fn is_of(found: &Found, facts: &RdmaFacts) -> bool {
    let is_named = found.index == facts.index || found.name == facts.name;
    is_named && found.pci == Some(facts.pci)
}

/// Brings a device back. If it is on the host already, it gets its name again. `hint` names a file that may be of its
/// namespace. After an error, calling again goes on where this ended.
pub(super) fn bring(
    home: &Home<'_>,
    moved: &Moved<RdmaFacts>,
    hint: Hint<'_>,
    patience: Duration,
) -> Result<()> {
    let facts = &moved.facts;
    let deadline = Instant::now() + patience;
    let mut fetched = 0;
    loop {
        if let Some(found) = home.find(&home.netns, facts)? {
            return restore(home, &found, facts);
        }
        if fetched < FETCHES && fetch(home, moved, hint().as_deref())? {
            fetched += 1;
            continue;
        }
        if Instant::now() >= deadline {
            return Err(away(home, facts.pci, &facts.name));
        }
        thread::sleep(PAUSE);
    }
}

/// The namespace where a device is that is not on the host.
fn elsewhere(
    home: &Home<'_>,
    name: &str,
    is_it: &dyn Fn(&Found) -> bool,
) -> Result<Option<netns::Found>> {
    let is_there = |netns: &Netns| {
        let all = home.devices.of(netns).unwrap_or_default();
        all.iter().any(is_it)
    };
    netns::holder_of(&home.netns, &is_there)
        .with_context(|| format!("looking at other network namespaces for rdma {name}"))
}

/// Takes a device out of the namespace that it moved to, or that a container moved it on to; whether it was somewhere.
fn fetch(home: &Home<'_>, moved: &Moved<RdmaFacts>, hint: Option<&Path>) -> Result<bool> {
    let facts = &moved.facts;
    // Where there is no time for that, the search below says so.
    if let Ok(Some(there)) = netns::find(moved.namespace, hint)
        && let Some(found) = home.find(&there.netns, facts)?
    {
        return take(home, &there.netns, &found, facts);
    }
    let Some(there) = elsewhere(home, &facts.name, &|found| is_of(found, facts))? else {
        return Ok(false);
    };
    match home.find(&there.netns, facts)? {
        Some(found) => take(home, &there.netns, &found, facts),
        None => Ok(false),
    }
}

/// Moves a device to the host; whether it was there still.
fn take(home: &Home<'_>, from: &Netns, found: &Found, facts: &RdmaFacts) -> Result<bool> {
    match home.devices.give(from, found.index, &home.netns) {
        // The namespace ends, and the kernel was faster.
        Err(error) if is_gone(&error) => Ok(false),
        moved => check_moved(moved, "moving back to the host", &facts.name).map(|()| true),
    }
}

/// Says of what the kernel did why a device did not move.
pub(super) fn check_moved(moved: io::Result<()>, action: &str, name: &str) -> Result<()> {
    let is_fixed = |error| Errno::from_io_error(error) == Some(Errno::OPNOTSUPP);
    if moved.as_ref().is_err_and(is_fixed) {
        bail!(
            "rdma {name} cannot move: its driver cannot take a device out of a network namespace (EOPNOTSUPP), like soft-RoCE (rxe) and soft-iWARP (siw); give the container the host's network, or set RDMA's mode to shared"
        );
    }
    moved.with_context(|| format!("{action} rdma {name}"))
}

/// Whether the kernel says that the namespace has no such device (`nldev_set_doit`, `rdma_dev_change_netns`).
fn is_gone(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::INVAL | Errno::NODEV)
    )
}

/// Whoever has CAP_NET_ADMIN in the container could name it otherwise. Where another device has its name, it gives up
/// the foreign one: the names of two may be swapped, and each would wait for the other.
fn restore(home: &Home<'_>, found: &Found, facts: &RdmaFacts) -> Result<()> {
    if found.name == facts.name {
        return Ok(());
    }
    let rename = |name: &str| home.devices.rename(&home.netns, found.index, name);
    let Err(source) = rename(&facts.name) else {
        return Ok(());
    };
    let mut name = found.name.clone();
    let is_taken = Errno::from_io_error(&source) == Some(Errno::EXIST);
    if is_taken && !is_passing(name.as_bytes()) {
        let way = passing();
        name = rename(&way).map_or(name, |()| way);
    }
    Err(source).with_context(|| {
        let RdmaFacts { name: own, pci, .. } = facts;
        format!("giving rdma {own} ({pci}) its name back, which is called {name:?} now")
    })
}

/// Says where a device is that is not on the host.
pub(super) fn away(home: &Home<'_>, pci: PciAddress, name: &str) -> Error {
    let why = match elsewhere(home, name, &|found| found.pci == Some(pci)) {
        Ok(Some(found)) => {
            let keeper = found.keeper;
            format!("; it is in a network namespace that {keeper} keeps")
        }
        Ok(None) => "; is its function bound to its driver?".to_owned(),
        Err(error) => return error,
    };
    error!("rdma {name} ({pci}) is not on this host{why}")
}

/// Brings back what earlier containers have left of a device, for who has its lock; whether there was something.
pub(super) fn settle(
    leases: &Leases,
    device: &Device,
    devices: &Devices,
    patience: Duration,
) -> Result<bool> {
    returning::settle(leases, device, &|moved| {
        let home = Home::open(devices, device.name.as_str())?;
        bring(&home, moved, &|| None, patience)
    })
}
