//! The way there: an RDMA device of the host into the network namespace of a container's init, or found there.

use std::path::Path;

use onload_core::bail;
use onload_core::class::Class;
use onload_core::error::{Context as _, Error, Result};
use onload_core::fs::lock::{Lock, START_PATIENCE};
use onload_core::hook_arguments::{HookArguments, MovedRdma};
use onload_core::lease::{Device, Moved, RdmaFacts};
use onload_core::netlink::nldev::NetnsMode;

use super::back::{self, Home};
use super::devices::{Devices, Found, Node};
use crate::giving::{self, Recipient};
use crate::host::ThisHost;
use crate::netns::Netns;
use crate::returning::{DYING_PATIENCE, MOVING_PATIENCE};
use crate::run::lease::{self, Container};

/// A device that a container is to have, and what is leased for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    rdma: &'a MovedRdma,
    device: &'a Device,
}

/// What a hook is to move, each with its device, in one order: two containers that want the same two must not wait for
/// each other.
pub(super) fn asked(arguments: &HookArguments) -> Result<Vec<Asked<'_>>> {
    let mut asked = Vec::new();
    for rdma in &arguments.rdma_netns {
        let mut leases = arguments.lease.iter();
        let Some(device) = leases.find(|device| is_of(device, rdma)) else {
            bail!(
                "--rdma-netns {rdma} has no --lease rdma:NAME beside it; write the specification anew"
            );
        };
        asked.push(Asked { rdma, device });
    }
    asked.sort_by_key(|one| one.device);
    Ok(asked)
}

/// Whether a device is leased for one that moves.
pub(super) fn is_of(device: &Device, rdma: &MovedRdma) -> bool {
    let name = device.name.as_str();
    device.class == Class::Rdma && (name == rdma.ibdev || name == rdma.pci.to_string())
}

/// One that the container has now.
#[derive(Debug)]
struct One {
    device: Device,
    /// Where it has come from, if it was moved for this container.
    facts: Option<RdmaFacts>,
    /// Nobody else touches it before all is given.
    _moving: Lock,
}

/// What a container has been given, and the way back for what fails behind it.
#[derive(Debug)]
pub(crate) struct Given<'a> {
    mover: Mover<'a>,
    all: Vec<One>,
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Mover<'a> {
    home: Home<'a>,
    to: Recipient<'a>,
}

/// Gives a container the devices in its network namespace, all of them or none. After an error what moved is back, or
/// the error says that it is not.
pub(crate) fn give<'a>(
    arguments: &'a HookArguments,
    entry_point: &'a str,
    container: Container<'a>,
    host: &'a ThisHost,
    devices: &'a Devices,
) -> Result<Option<Given<'a>>> {
    let asked = asked(arguments)?;
    let Some(first) = asked.first() else {
        return Ok(None);
    };
    let claim = lease::Wanted {
        devices: &[],
        expect: &[],
        token: arguments.token.as_ref(),
        claim: arguments.claim.as_ref(),
        entry_point,
        moved: None,
    };
    let mover = Mover::new(first.rdma, claim, container, host, devices)?;
    let mut given = Given {
        mover,
        all: Vec::new(),
        nodes: Vec::new(),
    };
    for one in asked {
        if let Err(error) = given.add(one) {
            return Err(given.withdraw(format!("{error:#}")).unwrap_or(error));
        }
    }
    Ok(Some(given))
}

impl Given<'_> {
    /// The nodes that the container is to have, each once.
    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub(crate) fn devices(&self) -> Vec<Device> {
        self.all.iter().map(|one| one.device.clone()).collect()
    }

    fn add(&mut self, asked: Asked<'_>) -> Result<()> {
        let mover = &self.mover;
        let moving = mover.to.leases.lock_moving(asked.device, MOVING_PATIENCE)?;
        let (leases, devices) = (&mover.to.leases, mover.home.devices);
        back::settle(leases, asked.device, devices, DYING_PATIENCE)?;
        let (index, facts) = mover.put(asked)?;
        self.all.push(One {
            device: asked.device.clone(),
            facts,
            _moving: moving,
        });
        for node in mover.nodes(asked, index)? {
            if !self.nodes.contains(&node) {
                self.nodes.push(node);
            }
        }
        Ok(())
    }

    /// Takes everything back, since something failed; none where all is as it was.
    pub(crate) fn withdraw(self, failed: String) -> Option<Error> {
        let mut failed = failed;
        let mut lost = None;
        for one in self.all.into_iter().rev() {
            let back = match &one.facts {
                Some(facts) => self.mover.bring_back(&one.device, facts),
                // It is the host's network, or others of the namespace keep it.
                None => self.mover.to.abandon(&one.device),
            };
            if let Err(back) = back {
                let error = giving::lost(&failed, &back);
                failed = error.to_string();
                lost = Some(error);
            }
        }
        lost
    }
}

impl<'a> Mover<'a> {
    fn new(
        first: &MovedRdma,
        claim: lease::Wanted<'a>,
        container: Container<'a>,
        host: &'a ThisHost,
        devices: &'a Devices,
    ) -> Result<Self> {
        let name = first.ibdev.as_str();
        if !host.is_initial_namespace() {
            bail!(
                "rdma {name} cannot move: the engine is in a user namespace (rootless); it needs an engine of the host's root, or RDMA's mode shared"
            );
        }
        let home = Home::open(devices, name)?;
        let mode = devices.mode(&home.netns);
        let mode = mode.with_context(|| format!("asking for the mode of rdma {name}"))?;
        if mode == Some(NetnsMode::Shared) {
            bail!(
                "rdma {name} need not move: network namespaces share RDMA devices now; run `systemctl start onload-cdi.service`, then start a new container"
            );
        }
        let target = Netns::of_init(container.init)?;
        let to = Recipient::new(target, claim, container, host)?;
        Ok(Mover { home, to })
    }

    /// Has a device in the container's namespace, and leases it; its number, and what it was if it was moved. What
    /// fails after the lease is taken back here.
    fn put(&self, asked: Asked<'_>) -> Result<(u32, Option<RdmaFacts>)> {
        let Some(found) = self.look(asked, &self.home.netns)? else {
            return Ok((self.join(asked)?, None));
        };
        // A container with the host's network opens the device where it is.
        if self.to.netns.is(&self.home.netns) {
            self.to.lease(asked.device)?;
            return Ok((found.index, None));
        }
        let facts = facts_of(&found, asked.rdma, false);
        self.to
            .lease_moved(asked.device, facts.clone(), Vec::new())?;
        if let Err(error) = self.send(&found) {
            let back = self.bring_back(asked.device, &facts);
            return Err(match back {
                Ok(()) => error,
                Err(back) => giving::lost(format!("{error:#}"), &back),
            });
        }
        Ok((found.index, Some(facts)))
    }

    /// The device in a namespace, by its name; none where that has none of the name.
    fn look(&self, asked: Asked<'_>, netns: &Netns) -> Result<Option<Found>> {
        let MovedRdma { ibdev, pci } = asked.rdma;
        let mut all = self.home.all(netns, ibdev)?.into_iter();
        let found = all.find(|found| found.name == *ibdev);
        if let Some(other) = found.as_ref().filter(|found| found.pci != Some(*pci)) {
            let now = match other.pci {
                Some(pci) => format!("PCI function {pci}"),
                None => "no PCI function".to_owned(),
            };
            bail!(
                "rdma {ibdev} belongs to {now} now, not to PCI function {pci}; run `systemctl start onload-cdi.service`, then start a new container"
            );
        }
        Ok(found)
    }

    fn send(&self, found: &Found) -> Result<()> {
        let home = &self.home;
        let moved = home.devices.give(&home.netns, found.index, &self.to.netns);
        back::check_moved(moved, "moving into the container", &found.name)
    }

    /// The device is not on the host: another container of the same namespace may have it, or somebody else has put it
    /// there. Its number.
    fn join(&self, asked: Asked<'_>) -> Result<u32> {
        let Recipient { leases, netns, .. } = &self.to;
        let Some(found) = self.look(asked, netns)? else {
            let away = || back::away(&self.home, asked.rdma.pci, &asked.rdma.ibdev);
            return Err(self.to.held_elsewhere(asked.device, away));
        };
        let moved = leases.moved_to(asked.device, netns.cookie(), START_PATIENCE)?;
        let facts = match moved {
            Some(Moved { facts, .. }) => facts,
            None => facts_of(&found, asked.rdma, true),
        };
        self.to.lease_moved(asked.device, facts, Vec::new())?;
        Ok(found.index)
    }

    /// The nodes of a device that is in the container's namespace: a move makes them anew, and with other numbers.
    fn nodes(&self, asked: Asked<'_>, index: u32) -> Result<Vec<Node>> {
        let name = asked.rdma.ibdev.as_str();
        let nodes = self.home.devices.nodes(&self.to.netns, index);
        let nodes = nodes.with_context(|| format!("looking for the nodes of rdma {name}"))?;
        if nodes.is_empty() {
            bail!("rdma {name} has no uverbs device; load the module ib_uverbs");
        }
        Ok(nodes)
    }

    fn bring_back(&self, device: &Device, facts: &RdmaFacts) -> Result<()> {
        let init = Path::new("/proc").join(self.to.container.init.to_string());
        let hint = || Some(init.join("ns/net"));
        self.to.bring_back(device, facts.clone(), |moved| {
            back::bring(&self.home, moved, &hint, DYING_PATIENCE)
        })
    }
}

fn facts_of(found: &Found, rdma: &MovedRdma, moved_by_other: bool) -> RdmaFacts {
    RdmaFacts {
        name: rdma.ibdev.clone(),
        pci: rdma.pci,
        index: found.index,
        moved_by_other,
    }
}
