//! Why an interface does not move, or does not come back.

use std::io;

use onload_core::lease::LeaseError;
use onload_core::netdev::usage::Use;
use onload_core::pci::PciAddress;
use onload_core::text::Quoted;

use crate::host::HostFilesError;
use crate::netns::NetnsError;
use crate::process::init::InitError;
use crate::run::lease::ClaimError;

/// Why an interface does not move, or does not come back.
#[derive(Debug, thiserror::Error)]
pub enum NetdevError {
    /// A network namespace is of no use.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The leases are of no use, or somebody else has the device.
    #[error(transparent)]
    Lease(Box<LeaseError>),
    #[error(transparent)]
    Claim(Box<ClaimError>),
    /// The container's init is not as it should be.
    #[error(transparent)]
    Init(#[from] InitError),
    /// The operator's configuration cannot be used.
    #[error(transparent)]
    Host(#[from] HostFilesError),
    /// The hook was given no lease for it.
    #[error("--netdev {0} has no --lease netdev:NAME beside it; write the specification anew")]
    NoLease(String),
    /// Only the host's root has its interfaces.
    #[error(
        "interface {0} cannot move: the engine is in a user namespace (rootless); an interface needs an engine of the host's root"
    )]
    Rootless(String),
    /// The engine has a network of its own.
    #[error(
        "interface {0} cannot move: the engine is not in this host's own network and PID namespaces, and has no interface of it"
    )]
    Elsewhere(String),
    /// The container has the host's network.
    #[error(
        "interface {0} cannot move: the container has this host's own network, where it can use the interface as it is; leave out --network host, or the device"
    )]
    HostNetwork(String),
    /// A name that engines give.
    #[error(
        "interface {0} cannot move: one of its names is eth0, and engines call the container's own interface so; give it another one on the host"
    )]
    Reserved(String),
    /// Its function has no interface here.
    #[error("interface {name}: PCI function {pci} has no interface on this host{}", told_keeper(.keeper.as_deref()))]
    Away {
        name: String,
        pci: PciAddress,
        /// Who keeps the namespace where it is.
        keeper: Option<String>,
    },
    #[error(
        "interface {name}: PCI function {pci} has more than one interface, so that none could be told from the others when it comes back"
    )]
    Several { name: String, pci: PciAddress },
    #[error(
        "interface {name}: the interface of PCI function {pci} is called {found} now; run `systemctl start onload-cdi.service`, then start a new container"
    )]
    Renamed {
        name: String,
        pci: PciAddress,
        /// What its interface is called, quoted.
        found: String,
    },
    #[error("interface {name} is in use on this host: {}", told_uses(.uses))]
    Used { name: String, uses: Vec<Use> },
    /// The container has one of its names.
    #[error("interface {name} cannot move: the container has an interface called {taken} already")]
    Taken {
        name: String,
        /// The name, quoted.
        taken: String,
    },
    /// It is in the container, and no lease says how it came there.
    #[error(
        "interface {0} is in the container's network namespace already, and no lease says how it was before; who put it there has to take it out"
    )]
    Unknown(String),
    /// The kernel does not move it.
    #[error("moving interface {name} {way}")]
    Move {
        name: String,
        /// Where from or to.
        way: &'static str,
        source: io::Error,
    },
    /// Namespaces cannot all be looked at.
    #[error("interface {name}: looking at other network namespaces")]
    Looking { name: String, source: io::Error },
    /// Something may stand on it in a namespace that cannot be looked at.
    #[error(
        "looking for what a container left in the network namespace that {keeper} keeps; if that does not end, stop it, then run \"onload-ctk lease restore\""
    )]
    Unseen {
        /// Who keeps the namespace.
        keeper: String,
        /// Why it cannot be looked at.
        source: NetnsError,
    },
    /// Nor does the interface go with what may stand on it.
    #[error("{unseen}; and then")]
    NotAnew {
        /// Why something may stand on it.
        unseen: String,
        /// Why its driver was not bound anew.
        source: io::Error,
    },
    /// What a container put on it stays.
    #[error("removing BPF programs from interface {name}; `bpftool net` shows them")]
    Programs { name: String, source: io::Error },
    /// It may be in a namespace or not.
    #[error("looking for interface {0} in a network namespace whose interfaces never stand still")]
    Restless(String),
    /// Another interface came in its place.
    #[error(
        "interface {0} was replaced by another one in its container's network namespace while it was fetched; stop what runs there, then run \"onload-ctk lease restore\""
    )]
    Replaced(String),
    /// The same function was leased under another name.
    #[error(
        "interface {name}: PCI function {pci} is leased as {other}; \"onload-ctk lease list\" shows all"
    )]
    OtherName {
        name: String,
        pci: PciAddress,
        /// The device that it is leased as.
        other: String,
    },
    /// The kernel does not set what it is to have in the container.
    #[error("setting {what} of interface {name} in the container")]
    Set {
        what: String,
        name: String,
        source: io::Error,
    },
    /// It is back, and not as it was.
    #[error(
        "restoring interface {name} ({pci}): {what} is not as it was{}{}",
        told_cause(.cause.as_ref()),
        told_taken(*.is_taken)
    )]
    NotRestored {
        name: String,
        pci: PciAddress,
        what: String,
        /// What the kernel said.
        cause: Option<io::Error>,
        /// Another interface has its name.
        is_taken: bool,
    },
    /// Onload does not take it.
    #[error(
        "registering interface {name} with Onload for AF_XDP; the kernel's log (dmesg) may say more, and \"onload-ctk doctor\" whether Onload works"
    )]
    NotRegistered {
        name: String,
        /// What the kernel said; none where it said nothing, and Onload does not list the interface.
        source: Option<io::Error>,
    },
    /// It is back, and Onload's program is not on it.
    #[error(
        "interface {name} ({pci}) is back, and Onload does not reach it any more: in the container another XDP program took the place of Onload's; run `onload_tool reload`, then \"onload-ctk lease restore\", which registers it again"
    )]
    WithoutProgram { name: String, pci: PciAddress },
    /// It did not move, and did not come back either.
    #[error("{failed}; and then: {back}; \"onload-ctk lease restore\" brings it back")]
    Lost {
        /// Why it did not move.
        failed: Box<NetdevError>,
        /// Why it did not come back.
        back: Box<NetdevError>,
    },
}

impl onload_core::error::Typed for NetdevError {}

fn told_keeper(keeper: Option<&str>) -> String {
    match keeper {
        Some(keeper) => format!("; it is in a network namespace that {keeper} keeps"),
        None => "; is it bound to its driver?".to_owned(),
    }
}

fn told_uses(uses: &[Use]) -> String {
    let uses: Vec<String> = uses.iter().map(ToString::to_string).collect();
    uses.join("; ")
}

fn told_cause(cause: Option<&io::Error>) -> String {
    cause.map_or_else(String::new, |cause| format!(" ({cause})"))
}

fn told_taken(is_taken: bool) -> &'static str {
    match is_taken {
        true => {
            "; another interface has that name: give that one another, then run \"onload-ctk lease restore\""
        }
        false => "",
    }
}

impl NetdevError {
    /// What of an interface that is back is not as it was.
    pub(super) fn left(&self) -> Option<String> {
        match self {
            NetdevError::NotRestored { what, .. } => Some(what.clone()),
            NetdevError::NotRegistered { .. } | NetdevError::WithoutProgram { .. } => {
                Some("its registration with Onload for AF_XDP".to_owned())
            }
            _ => None,
        }
    }

    /// Other namespaces cannot be looked at.
    pub(super) fn looking(name: impl Into<String>) -> impl Fn(io::Error) -> NetdevError {
        let name = name.into();
        move |source| NetdevError::Looking {
            name: name.clone(),
            source,
        }
    }

    /// The kernel's word on a move.
    pub(super) fn moving(name: &[u8], way: &'static str) -> impl Fn(io::Error) -> NetdevError {
        let name = Quoted(&String::from_utf8_lossy(name)).to_string();
        move |source| NetdevError::Move {
            name: name.clone(),
            way,
            source,
        }
    }
}

impl From<LeaseError> for NetdevError {
    fn from(error: LeaseError) -> Self {
        NetdevError::Lease(Box::new(error))
    }
}

impl From<ClaimError> for NetdevError {
    fn from(error: ClaimError) -> Self {
        NetdevError::Claim(Box::new(error))
    }
}
