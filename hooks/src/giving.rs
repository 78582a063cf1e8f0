//! Devices that go into a container: what interfaces and RDMA devices have in common.

use std::fmt::Display;
use std::net::IpAddr;
use std::slice;

use onload_core::error;
use onload_core::error::{Error, Result};
use onload_core::fs::lock::START_PATIENCE;
use onload_core::lease::{Device, Facts, Leases, Moved};
use onload_core::processes::Processes;

use crate::host::ThisHost;
use crate::netns::Netns;
use crate::run::lease::{self, Container};
use crate::run::own_dir::open_run;

/// A container that gets devices of the host in its network namespace.
#[derive(Debug)]
pub(crate) struct Recipient<'a> {
    pub(crate) netns: Netns,
    pub(crate) leases: Leases,
    pub(crate) container: Container<'a>,
    /// All of its leases but the devices.
    claim: lease::Wanted<'a>,
    host: &'a ThisHost,
}

impl<'a> Recipient<'a> {
    pub(crate) fn new(
        netns: Netns,
        claim: lease::Wanted<'a>,
        container: Container<'a>,
        host: &'a ThisHost,
    ) -> Result<Self> {
        let run = open_run(host)?;
        Ok(Recipient {
            netns,
            leases: Leases::open(&run, Processes::default())?,
            container,
            claim,
            host,
        })
    }

    /// Leases a device to the container that stays where it is.
    pub(crate) fn lease(&self, device: &Device) -> Result<()> {
        self.lease_as(device, None)
    }

    /// Leases a device that is in the container's namespace, or about to move there; `facts` says what it was on the host.
    /// It has the addresses there.
    pub(crate) fn lease_moved(
        &self,
        device: &Device,
        facts: impl Into<Facts>,
        addresses: Vec<IpAddr>,
    ) -> Result<()> {
        let moved = self.moved(facts.into(), addresses, false);
        self.lease_as(device, Some(&moved))
    }

    fn lease_as(&self, device: &Device, moved: Option<&Moved<Facts>>) -> Result<()> {
        let wanted = lease::Wanted {
            devices: slice::from_ref(device),
            moved,
            ..self.claim
        };
        lease::claim_alone(wanted, self.container, self.host).map(drop)
    }

    /// Why a device that is not on the host cannot be had: its holder, or what `away` finds.
    pub(crate) fn held_elsewhere(&self, device: &Device, away: impl FnOnce() -> Error) -> Error {
        match self.leases.holders(device, START_PATIENCE) {
            Err(error) | Ok(Some(error)) => error,
            Ok(None) => away(),
        }
    }

    /// Brings back, by `bring`, a device that was to stay here, and ends its lease. The lease stays after an error.
    pub(crate) fn bring_back<F: TryFrom<Facts>>(
        &self,
        device: &Device,
        facts: F,
        bring: impl FnOnce(&Moved<F>) -> Result<()>,
    ) -> Result<()> {
        let (id, bundle) = (self.container.id, lease::canonical(self.container.bundle)?);
        self.leases.call_back(device, id, &bundle, START_PATIENCE)?;
        // An earlier start of the container may have left it otherwise than it was, which its lease knows.
        let kept = self.leases.returning(device, START_PATIENCE)?;
        bring(&kept.unwrap_or_else(|| self.moved(facts, Vec::new(), true)))?;
        self.leases.returned(device, START_PATIENCE)
    }

    /// Ends the lease of a device that stays where it is, unless no other container of its namespace has it.
    pub(crate) fn abandon(&self, device: &Device) -> Result<()> {
        let (id, bundle) = (self.container.id, lease::canonical(self.container.bundle)?);
        self.leases.abandon(device, id, &bundle, START_PATIENCE)
    }

    fn moved<F>(&self, facts: F, addresses: Vec<IpAddr>, returning: bool) -> Moved<F> {
        Moved {
            facts,
            namespace: self.netns.cookie(),
            addresses,
            returning,
            left: None,
            rebound: None,
        }
    }
}

/// Why a device was not given, and did not come back either.
pub(crate) fn lost(failed: impl Display, back: &Error) -> Error {
    error!("{failed}; and then: {back}; \"onload-ctk lease restore\" brings it back")
}
