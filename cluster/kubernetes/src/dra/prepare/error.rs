//! Why a claim is not prepared. kubelet shows the text as an event of the pod, behind the claim's name, and tries
//! again after a minute.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use onload_core::fs::atomic::WriteError;
use onload_core::lease::{NotClaimUid, Refusal as Held};
use onload_core::netdev::address::InterfaceAddress;
use onload_core::text::Quoted;

use super::parameters::{Author, ParametersError};

/// Why a claim is not prepared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrepareError {
    /// kubelet names it by something else than a uid.
    #[error(transparent)]
    Uid(#[from] NotClaimUid),
    /// The API server cannot be asked.
    #[error("{0}; kubelet tries again")]
    Api(String),
    #[error("asking the API server for the claim took more than {0} s; kubelet tries again")]
    Slow(u64),
    /// There is no such claim.
    #[error("the API server knows no such claim any more; delete the pod")]
    Gone,
    /// A later claim has its name.
    #[error(
        "it was deleted, and another claim has its name: that one has uid {}, and the pod waits for {wanted}; delete the pod",
        Quoted(.found)
    )]
    Another {
        /// The uid of the later one.
        found: String,
        /// The uid that kubelet asked for.
        wanted: String,
    },
    /// The scheduler has not given it anything.
    #[error("it has no allocation; has its pod been scheduled?")]
    NotAllocated,
    /// What is said of its devices is not understood.
    #[error("parameters of {of}")]
    Parameters {
        /// Who said it: the class, or the claim.
        of: Author,
        source: ParametersError,
    },
    /// A device cannot be given.
    #[error("request {}", Quoted(.request))]
    Device {
        /// The request that it was allocated for.
        request: String,
        source: DeviceError,
    },
    /// The specification of the claim cannot be written.
    #[error("writing what the claim's containers share to {}", .dir.display())]
    Write { dir: PathBuf, source: WriteError },
    /// The directory of specifications cannot be used.
    #[error("opening the directory of specifications {}", .dir.display())]
    Directory { dir: PathBuf, source: io::Error },
}

/// Why a device is not given.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeviceError {
    /// Nobody on this node has that name.
    #[error("this node has no device {} in pool {}; delete the pod, so that its claim is allocated anew", Quoted(.device), Quoted(.pool))]
    Unknown {
        /// The pool of the allocation.
        pool: String,
        /// The device of the allocation.
        device: String,
    },
    /// It is there, and not offered.
    #[error("device {} is not offered: {reason}", Quoted(.device))]
    NotOffered {
        /// The device of the allocation.
        device: String,
        /// What `discover` says.
        reason: String,
    },
    /// The runtime would not find what it gets.
    #[error("{0}")]
    NoSpec(String),
    #[error("{device}")]
    Held {
        device: String,
        /// By whom.
        source: Held,
    },
    /// Nobody knows whether another has it.
    #[error("{0}")]
    Leases(String),
    /// A claim sets an address that the operator does not allow.
    #[error(
        "parameter address sets {address}, which is in none of the networks that this node allows to claims ({allowed}); ask its operator for addresses under [kubernetes], or for a DeviceClass with it"
    )]
    Address {
        address: InterfaceAddress,
        allowed: String,
    },
    /// Nothing says which interface it is.
    #[error(
        "parameter address: which interface {device} is, is not known; run `onload-ctk discover` on the node"
    )]
    NoInterface { device: String },
    /// Two devices of a claim would have one address.
    #[error(
        "parameter address sets {0} for two devices of the claim; name the request that it is for in requests of the configuration"
    )]
    TwoOfAddress(IpAddr),
    #[error(
        "parameter address: a CNI plugin moves {device}, and sets its addresses; set them in the plugin's configuration"
    )]
    LeftToCni { device: String },
    /// A parameter is for devices of another class.
    #[error(
        "parameter {parameter} is for devices of class {wanted}, and {device} is of class {class}"
    )]
    Parameter {
        parameter: &'static str,
        /// The classes that it is for.
        wanted: &'static str,
        device: String,
        class: &'static str,
    },
}
