//! What a publisher needs, and what it tells.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use onload_core::class::Class;
use tokio::sync::watch;

use crate::dra::Registered;
use crate::dra::api::Api;
use crate::dra::classes::Told;
use crate::dra::names::NodeName;
use crate::dra::slices::Features;
use crate::host_state::Snapshot;
use crate::observe::metrics::Metrics;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    pub pools: BTreeMap<Class, PublishedPool>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedPool {
    pub devices: usize,
    pub slices: usize,
    pub features: Features,
}

/// How often the slices of a pool are written at most: each write is an event for each scheduler.
pub const WRITE_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Publisher {
    pub api: Api,
    pub node: NodeName,
    pub snapshots: watch::Receiver<Arc<Snapshot>>,
    pub registered: watch::Receiver<Registered>,
    pub classes: watch::Receiver<BTreeSet<Class>>,
    /// The classes of which that is not known yet: their slices are left as they are.
    pub undecided: watch::Receiver<BTreeSet<Class>>,
    /// What is known of DeviceClasses: a server that refuses to tell has given this program no rights.
    pub device_classes: watch::Receiver<Told>,
    pub metrics: Arc<Metrics>,
    /// [`WRITE_INTERVAL`].
    pub write_interval: Duration,
    /// Whether the program ends. The slices stay then: a successor may be there already, and if none comes,
    /// kubelet deletes them.
    pub stop: watch::Receiver<bool>,
}
