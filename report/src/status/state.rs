//! How a container may do, and what every container's verdict takes from the host.

use serde::{Deserialize, Serialize};
use strum::VariantArray;

/// How a container does with what it was given; the worse, the later.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, VariantArray,
)]
#[serde(rename_all = "kebab-case")]
pub enum VerdictState {
    Accelerated,
    Ready,
    /// It has the nodes of Onload and was not given the preload.
    Plain,
    /// Not enough of it can be seen.
    Unknown,
    /// It has a device to itself that none of its programs uses.
    Unused,
    Memlock,
    InterfaceDown,
    /// Some of its programs have sockets of Onload, and others with the library do not.
    PartlyAccelerated,
    NoInterface,
    /// Its programs have the library and an accelerated interface, and no stack of Onload.
    NoStack,
    /// It requested an onload.dev device and got none.
    NothingGiven,
    /// Its programs find no library for its RDMA device.
    NoProvider,
    /// Its RDMA device is in another network namespace.
    RdmaNamespace,
    /// The library was given, and no program has it.
    PreloadLost,
    /// The library was built for another driver than the loaded one.
    OtherLibrary,
    /// A device has another number than the container's node.
    DeviceRenumbered,
    DeviceGone,
}

impl VerdictState {
    pub fn as_str(self) -> &'static str {
        match self {
            VerdictState::Accelerated => "accelerated",
            VerdictState::Ready => "ready",
            VerdictState::Plain => "without preload",
            VerdictState::Unknown => "not known",
            VerdictState::Unused => "held and unused",
            VerdictState::Memlock => "memlock too small",
            VerdictState::InterfaceDown => "interface down",
            VerdictState::PartlyAccelerated => "partly accelerated",
            VerdictState::NoInterface => "no accelerated interface",
            VerdictState::NoStack => "not accelerated",
            VerdictState::NothingGiven => "asked and got nothing",
            VerdictState::NoProvider => "no provider library",
            VerdictState::RdmaNamespace => "RDMA device in another namespace",
            VerdictState::PreloadLost => "preload lost",
            VerdictState::OtherLibrary => "library of another build",
            VerdictState::DeviceRenumbered => "device renumbered",
            VerdictState::DeviceGone => "device gone",
        }
    }

    pub fn is_good(self) -> bool {
        self < VerdictState::Unknown
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Verdict {
    pub state: VerdictState,
    pub reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Verdict {
    pub(super) fn without_remedy(state: VerdictState, reason: impl Into<String>) -> Verdict {
        Verdict { state, reason: reason.into(), remedy: None }
    }

    pub(super) fn with_remedy(
        state: VerdictState,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Verdict {
        Verdict { remedy: Some(remedy.into()), ..Verdict::without_remedy(state, reason) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostFacts {
    /// Returns whether Onload has an interface of the host, offered or not; `None` if this user may not see that.
    pub(super) has_nic: Option<bool>,
    pub(super) library_matches: Option<bool>,
    pub(super) is_rdma_exclusive: bool,
    /// `None` if this version of Onload has no such setting.
    pub(super) accelerates_veth: Option<bool>,
}
