//! The way back: out of the network namespace where a device is, under the name that it had.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use onload_core::lease::{Device, Leases, Moved, RdmaFacts};
use onload_core::pci::PciAddress;
use rustix::io::Errno;

use super::devices::{Devices, Found};
use super::error::RdmaError;
use crate::netns::{self, Netns};
use crate::returning::{self, Hint, is_passing, passing};

/// Between two looks at a namespace that ends.
const PAUSE: Duration = Duration::from_millis(20);
/// How often a device is fetched from the namespace that it moved to.
const FETCHES: u32 = 4;

/// The host's own network namespace.
#[derive(Debug)]
pub(super) struct Home<'a> {
    pub(super) netns: Netns,
    pub(super) devices: &'a Devices,
}

impl<'a> Home<'a> {
    /// That of this process, which is the host's; `name` is for messages.
    ///
    /// # Errors
    /// [`RdmaError::Elsewhere`] where it is not.
    pub(super) fn open(devices: &'a Devices, name: &str) -> Result<Self, RdmaError> {
        let netns = Netns::own()?;
        match netns.is_first() {
            true => Ok(Home { netns, devices }),
            false => Err(RdmaError::Elsewhere(name.to_owned())),
        }
    }

    /// All devices of a namespace; `name` is for messages.
    pub(super) fn all(&self, netns: &Netns, name: &str) -> Result<Vec<Found>, RdmaError> {
        let listed = self.devices.of(netns);
        listed.map_err(RdmaError::kernel("looking for", name))
    }

    /// A device that is known already, in a namespace. A driver that was bound anew has given it another number.
    fn find(&self, netns: &Netns, facts: &RdmaFacts) -> Result<Option<Found>, RdmaError> {
        let all = self.all(netns, &facts.name)?;
        Ok(all.into_iter().find(|found| is_of(found, facts)))
    }
}

fn is_of(found: &Found, facts: &RdmaFacts) -> bool {
    let is_named = found.index == facts.index || found.name == facts.name;
    is_named && found.pci == Some(facts.pci)
}

/// Brings a device back. Is it on the host already, it has its name again. `hint` names a file that may be of its
/// namespace.
///
/// # Errors
/// [`RdmaError`]: it is not back, or not as it was. Calling again goes on where this ended.
pub(super) fn bring(
    home: &Home<'_>,
    moved: &Moved<RdmaFacts>,
    hint: Hint<'_>,
    patience: Duration,
) -> Result<(), RdmaError> {
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
) -> Result<Option<netns::Found>, RdmaError> {
    let is_there = |netns: &Netns| {
        let all = home.devices.of(netns).unwrap_or_default();
        all.iter().any(is_it)
    };
    let found = netns::holder_of(&home.netns, &is_there);
    found.map_err(RdmaError::kernel(
        "looking at other network namespaces for",
        name,
    ))
}

/// Takes a device out of the namespace that it moved to, or that a container moved it on to; whether it was somewhere.
fn fetch(
    home: &Home<'_>,
    moved: &Moved<RdmaFacts>,
    hint: Option<&Path>,
) -> Result<bool, RdmaError> {
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
fn take(
    home: &Home<'_>,
    from: &Netns,
    found: &Found,
    facts: &RdmaFacts,
) -> Result<bool, RdmaError> {
    match home.devices.give(from, found.index, &home.netns) {
        Ok(()) => Ok(true),
        // The namespace ends, and the kernel was faster.
        Err(error) if is_gone(&error) => Ok(false),
        Err(error) => Err(RdmaError::moving("moving back to the host", &facts.name)(
            error,
        )),
    }
}

/// Whether the kernel says that the namespace has no such device (`nldev_set_doit`, `rdma_dev_change_netns`).
fn is_gone(error: &std::io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::INVAL | Errno::NODEV)
    )
}

/// Whoever has CAP_NET_ADMIN in the container could name it otherwise. Where another device has its name, it gives up
/// the foreign one: the names of two may be swapped, and each would wait for the other.
fn restore(home: &Home<'_>, found: &Found, facts: &RdmaFacts) -> Result<(), RdmaError> {
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
    Err(RdmaError::NotRestored {
        name: facts.name.clone(),
        pci: facts.pci,
        found: name,
        source,
    })
}

/// Who has a device that is not on the host.
pub(super) fn away(home: &Home<'_>, pci: PciAddress, name: &str) -> RdmaError {
    match elsewhere(home, name, &|found| found.pci == Some(pci)) {
        Ok(found) => RdmaError::Away {
            name: name.to_owned(),
            pci,
            keeper: found.map(|found| found.keeper.to_string()),
        },
        Err(error) => error,
    }
}

/// Brings back what earlier containers have left of a device, for who has its lock; whether there was something.
///
/// # Errors
/// [`RdmaError`]: it cannot be brought back now.
pub(super) fn settle(
    leases: &Leases,
    device: &Device,
    devices: &Devices,
    patience: Duration,
) -> Result<bool, RdmaError> {
    returning::settle(leases, device, &|moved| {
        let home = Home::open(devices, device.name.as_str())?;
        bring(&home, moved, &|| None, patience)
    })
}
