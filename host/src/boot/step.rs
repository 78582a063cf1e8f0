//! What is to be done, why something is not, and how it is seen that it is done.

use std::path::PathBuf;

use onload_core::host_settings::RdmaNetns;
use onload_core::pci::PciAddress;
use serde::Serialize;

use super::kernel::VfChange;

/// What has to be done for the host to be as it is configured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// What is to change, in order.
    pub steps: Vec<Step>,
    /// What is configured and will not be.
    pub refused: Vec<Refusal>,
    pub warnings: Vec<String>,
}

impl Plan {
    pub(super) fn refuse(&mut self, subject: &Subject, reason: impl Into<String>) {
        self.refused.push(Refusal {
            subject: subject.clone(),
            reason: reason.into(),
        });
    }
}

/// What a step is about. Steps about one subject depend on each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Subject {
    /// The key of the configuration: `sriov`, `hugepages`, `af-xdp`, `af-xdp-flow-filters`, `rdma-netns`.
    pub resource: &'static str,
    /// Which of them; empty where there is one.
    pub name: String,
}

impl Subject {
    pub(super) fn new(resource: &'static str, name: &(impl ToString + ?Sized)) -> Self {
        Subject {
            resource,
            name: name.to_string(),
        }
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name.as_str() {
            "" => f.write_str(self.resource),
            name => write!(f, "{} {name}", self.resource),
        }
    }
}

/// Something that is to change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    #[serde(flatten)]
    pub subject: Subject,
    pub setting: String,
    /// As it is; `-` where it is not there yet.
    pub now: String,
    /// As it is to be.
    pub wanted: String,
    /// How; empty where that is known only after the steps before it.
    #[serde(skip)]
    pub actions: Vec<Action>,
    /// Virtual functions that nobody may use when it is done: they are taken away, or from their driver.
    #[serde(skip)]
    pub frees: Vec<PciAddress>,
    /// What shows that it is done.
    #[serde(skip)]
    pub effect: Effect,
}

/// Something that is configured and will not be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    #[serde(flatten)]
    pub subject: Subject,
    /// Why, and what to do.
    pub reason: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.subject, self.reason)
    }
}

/// Something that the kernel is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// An attribute of sysfs is written.
    Write { path: PathBuf, text: String },
    Load {
        /// Its name, or an alias.
        module: String,
    },
    /// As before, where there is such a module.
    LoadIfThere {
        /// Its name, or an alias.
        module: String,
    },
    /// A setting of a virtual function is changed.
    SetVf {
        interface: String,
        vf: u32,
        change: VfChange,
    },
    /// An interface is left one channel.
    OneChannel { interface: String },
    /// RDMA's mode of network namespaces is set.
    SetRdmaNetns(RdmaNetns),
}

impl Action {
    pub(super) fn write(path: impl Into<PathBuf>, text: &(impl ToString + ?Sized)) -> Self {
        Action::Write {
            path: path.into(),
            text: text.to_string(),
        }
    }
}

/// What shows that a step is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// An attribute has a value.
    Is {
        path: PathBuf,
        text: String,
    },
    /// An attribute has a number, or a larger one.
    Minimum {
        path: PathBuf,
        number: u64,
        /// What to do where it is smaller.
        advice: String,
    },
    Exists(PathBuf),
    /// A directory has an entry whose name ends so.
    Listed {
        directory: PathBuf,
        /// The end of the name.
        ending: String,
    },
    /// A function is bound to a driver.
    Bound {
        function: PathBuf,
        /// The driver; none: any but vfio's.
        driver: Option<&'static str>,
        /// What to do where it is not.
        advice: String,
    },
    /// The driver of a physical function says so of a virtual one.
    Vf {
        interface: String,
        vf: u32,
        /// What was changed.
        change: VfChange,
    },
    /// An interface has one channel.
    OneChannel {
        interface: String,
    },
    /// That of the steps before it, which make it possible.
    Unknown,
}
