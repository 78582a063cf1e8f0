//! How a container may do, and what every container's verdict takes from the host.

use serde::Serialize;

/// How a container does with what it was given; the worse, the later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Programs have a stack of Onload.
    Accelerated,
    /// It has what it needs.
    Ready,
    /// It has the nodes of Onload and was not given the preload.
    Plain,
    /// Not enough of it can be seen.
    Unknown,
    /// It has a device to itself that none of its programs uses.
    Unused,
    /// It may lock too little memory.
    Memlock,
    /// An interface that is in its network is down.
    InterfaceDown,
    /// No interface in its network is accelerated.
    NoInterface,
    /// Its programs have the library and an accelerated interface, and no stack of Onload.
    NoStack,
    /// It asks for something of ours and got nothing.
    NothingGiven,
    /// Its RDMA device is in another network namespace.
    RdmaNamespace,
    /// The library was given, and no program has it.
    PreloadLost,
    /// The library was built for another driver than the loaded one.
    OtherLibrary,
    /// A device has another number than the container's node.
    DeviceRenumbered,
    /// A device is no more.
    DeviceGone,
}

impl State {
    /// The words that people read.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            State::Accelerated => "accelerated",
            State::Ready => "ready",
            State::Plain => "without preload",
            State::Unknown => "not known",
            State::Unused => "held and unused",
            State::Memlock => "memlock too small",
            State::InterfaceDown => "interface down",
            State::NoInterface => "no accelerated interface",
            State::NoStack => "not accelerated",
            State::NothingGiven => "asked and got nothing",
            State::RdmaNamespace => "RDMA device in another namespace",
            State::PreloadLost => "preload lost",
            State::OtherLibrary => "library of another build",
            State::DeviceRenumbered => "device renumbered",
            State::DeviceGone => "device gone",
        }
    }

    /// Whether all is well, as far as can be seen.
    #[must_use]
    pub fn is_good(self) -> bool {
        self < State::Unknown
    }
}

/// One thing that is so of a container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Verdict {
    pub state: State,
    /// Why it is said to.
    pub reason: String,
    /// What to do; none where nothing is to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Verdict {
    pub(super) fn good(state: State, reason: impl Into<String>) -> Verdict {
        Verdict {
            state,
            reason: reason.into(),
            remedy: None,
        }
    }

    pub(super) fn bad(
        state: State,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Verdict {
        Verdict {
            remedy: Some(remedy.into()),
            ..Verdict::good(state, reason)
        }
    }
}

/// What is so of the host, for every container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostFacts {
    /// Whether the host has an accelerated interface.
    pub(super) has_nic: bool,
    /// Whether its library was built for the loaded driver.
    pub(super) library_matches: Option<bool>,
    /// Whether RDMA devices are in one network namespace each.
    pub(super) is_rdma_exclusive: bool,
    /// Whether Onload is told to accelerate veth (`oo_accelerate_veth`).
    pub(super) accelerates_veth: bool,
}
