//! Steps of a plan with their effects, and the reasons why steps are left out.

use std::path::PathBuf;

use onload_core::host_settings::RdmaNetns;
use onload_sys::pci::PciAddress;
use serde::Serialize;

use super::kernel::VfChange;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostPlan {
    pub steps: Vec<HostStep>,
    pub refused: Vec<StepRefusal>,
    pub warnings: Vec<String>,
}

impl HostPlan {
    pub(super) fn refuse(&mut self, subject: &StepSubject, reason: impl Into<String>) {
        self.refused.push(StepRefusal { subject: subject.clone(), reason: reason.into() });
    }
}

/// The subject of a step. Steps with the same subject depend on each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct StepSubject {
    /// The key of the configuration: `sriov`, `hugepages`, `af-xdp`, `af-xdp-flow-filters`, `rdma-netns`.
    pub resource: &'static str,
    pub name: String,
}

impl StepSubject {
    pub(super) fn new(resource: &'static str, name: &(impl ToString + ?Sized)) -> Self {
        StepSubject { resource, name: name.to_string() }
    }
}

impl std::fmt::Display for StepSubject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name.as_str() {
            "" => f.write_str(self.resource),
            name => write!(f, "{} {name}", self.resource),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostStep {
    #[serde(flatten)]
    pub subject: StepSubject,
    pub setting: String,
    pub now: String,
    pub wanted: String,
    /// Empty if the actions are known only after the steps before it.
    #[serde(skip)]
    pub actions: Vec<StepAction>,
    /// Actions that undo an earlier one, and always run.
    #[serde(skip)]
    pub finally: Vec<StepAction>,
    /// Virtual functions that the step removes or unbinds, and which must be unused.
    #[serde(skip)]
    pub frees: Vec<PciAddress>,
    #[serde(skip)]
    pub effect: Effect,
}

impl HostStep {
    /// Creates a step whose actions are known only after the steps before it.
    pub(super) fn new(
        subject: &StepSubject,
        setting: impl Into<String>,
        now: impl Into<String>,
        wanted: impl Into<String>,
    ) -> Self {
        HostStep {
            subject: subject.clone(),
            setting: setting.into(),
            now: now.into(),
            wanted: wanted.into(),
            actions: Vec::new(),
            finally: Vec::new(),
            frees: Vec::new(),
            effect: Effect::Unknown,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StepRefusal {
    #[serde(flatten)]
    pub subject: StepSubject,
    pub reason: String,
}

impl std::fmt::Display for StepRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.subject, self.reason)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepAction {
    Write {
        path: PathBuf,
        text: String,
    },
    /// A module, by its name or an alias.
    Load(String),
    LoadIfThere(String),
    SetVf {
        interface: String,
        vf: u32,
        change: VfChange,
    },
    /// Sets this interface to one channel.
    OneChannel(String),
    SetRdmaNetns(RdmaNetns),
}

impl StepAction {
    pub(super) fn write(path: impl Into<PathBuf>, text: &(impl ToString + ?Sized)) -> Self {
        StepAction::Write { path: path.into(), text: text.to_string() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Is {
        path: PathBuf,
        text: String,
    },
    Minimum {
        path: PathBuf,
        number: u64,
        advice: String,
    },
    Exists(PathBuf),
    /// Registration with Onload for AF_XDP.
    Registered(String),
    Bound {
        function: PathBuf,
        /// The driver; `None` for any except vfio's.
        driver: Option<&'static str>,
        advice: String,
    },
    Vf {
        interface: String,
        vf: u32,
        change: VfChange,
    },
    /// This interface has one channel.
    OneChannel(String),
    /// The effect is that of the steps before it.
    Unknown,
}
