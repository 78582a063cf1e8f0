//! Why an RDMA device does not move, or does not come back.

use std::io;

use onload_core::lease::LeaseError;
use onload_core::pci::PciAddress;
use rustix::io::Errno;

use crate::host::HostFilesError;
use crate::netns::NetnsError;
use crate::process::init::InitError;
use crate::run::lease::ClaimError;

/// Why an RDMA device does not move, or does not come back.
#[derive(Debug, thiserror::Error)]
pub enum RdmaError {
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
    #[error("--rdma-netns {0} has no --lease rdma:NAME beside it; write the specification anew")]
    NoLease(String),
    /// Only the host's root has its devices.
    #[error(
        "rdma {0} cannot move: the engine is in a user namespace (rootless); it needs an engine of the host's root, or RDMA's mode shared"
    )]
    Rootless(String),
    /// The engine has a network of its own.
    #[error(
        "rdma {0} cannot move: the engine is not in this host's own network and PID namespaces, and has no device of it"
    )]
    Elsewhere(String),
    /// Network namespaces share the devices by now.
    #[error(
        "rdma {0} need not move: network namespaces share RDMA devices now; run `systemctl start onload-cdi.service`, then start a new container"
    )]
    Shared(String),
    #[error(
        "rdma {0} cannot move: its driver cannot take a device out of a network namespace (EOPNOTSUPP), like soft-RoCE (rxe) and soft-iWARP (siw); give the container the host's network, or set RDMA's mode to shared"
    )]
    CannotMove(String),
    #[error(
        "rdma {name} belongs to {} now, not to PCI function {pci}; run `systemctl start onload-cdi.service`, then start a new container",
        told_function(*.found)
    )]
    Other {
        name: String,
        /// The function that it should belong to.
        pci: PciAddress,
        /// The one that it belongs to.
        found: Option<PciAddress>,
    },
    /// It is neither here nor there.
    #[error("rdma {name} ({pci}) is not on this host{}", told_keeper(.keeper.as_deref()))]
    Away {
        name: String,
        pci: PciAddress,
        /// Who keeps the namespace where it is.
        keeper: Option<String>,
    },
    /// It has nothing that programs could open.
    #[error("rdma {0} has no uverbs device; load the module ib_uverbs")]
    NoNode(String),
    /// The kernel does not do it.
    #[error("{what} rdma {name}")]
    Kernel {
        /// What was being done.
        what: &'static str,
        name: String,
        source: io::Error,
    },
    /// It is back under another name.
    #[error("giving rdma {name} ({pci}) its name back, which is called {found:?} now")]
    NotRestored {
        /// The name that it had.
        name: String,
        pci: PciAddress,
        /// The name that it has.
        found: String,
        source: io::Error,
    },
    /// It was not given, and did not come back either.
    #[error("{failed}; and then: {back}; \"onload-ctk lease restore\" brings it back")]
    Lost {
        /// Why it was not given.
        failed: String,
        /// Why it did not come back.
        back: Box<RdmaError>,
    },
}

impl onload_core::error::Typed for RdmaError {}

fn told_function(pci: Option<PciAddress>) -> String {
    pci.map_or_else(
        || "no PCI function".to_owned(),
        |pci| format!("PCI function {pci}"),
    )
}

fn told_keeper(keeper: Option<&str>) -> String {
    match keeper {
        Some(keeper) => format!("; it is in a network namespace that {keeper} keeps"),
        None => "; is its function bound to its driver?".to_owned(),
    }
}

impl RdmaError {
    /// The kernel's word on what it was told.
    pub(super) fn kernel(what: &'static str, name: &str) -> impl Fn(io::Error) -> RdmaError {
        let name = name.to_owned();
        move |source| RdmaError::Kernel {
            what,
            name: name.clone(),
            source,
        }
    }

    /// The kernel's word on a move.
    pub(super) fn moving(what: &'static str, name: &str) -> impl Fn(io::Error) -> RdmaError {
        let name = name.to_owned();
        move |source| match Errno::from_io_error(&source) {
            Some(Errno::OPNOTSUPP) => RdmaError::CannotMove(name.clone()),
            _ => RdmaError::kernel(what, &name)(source),
        }
    }
}

impl From<LeaseError> for RdmaError {
    fn from(error: LeaseError) -> Self {
        RdmaError::Lease(Box::new(error))
    }
}

impl From<ClaimError> for RdmaError {
    fn from(error: ClaimError) -> Self {
        RdmaError::Claim(Box::new(error))
    }
}
