//! What a publisher needs, and what it tells.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use onload_core::class::Class;
use tokio::sync::watch;

use crate::dra::Registered;
use crate::dra::api::{Api, ApiError};
use crate::dra::classes::Told;
use crate::dra::names::NodeName;
use crate::dra::slices::Features;
use crate::host_state::Snapshot;
use crate::observe::metrics::Metrics;

/// What is on the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// The pools that have devices.
    pub pools: BTreeMap<Class, PublishedPool>,
}

/// A pool that is on the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedPool {
    /// How many devices it has.
    pub devices: usize,
    pub slices: usize,
    /// The features of the server that it is written with.
    pub features: Features,
}

/// Why a node's slices are not on the server.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The server refused, or cannot be reached.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// There is no such node.
    #[error(
        "publishing devices: the API server has no Node {0}; set --node-name to the metadata.name of this node"
    )]
    NoNode(NodeName),
}

impl PublishError {
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            PublishError::Api(error) => error.retry_after(),
            PublishError::NoNode(_) => None,
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        matches!(self, PublishError::Api(error) if error.is_gone())
    }
}

/// What publishes the devices of a node.
#[derive(Debug)]
pub struct Publisher {
    pub api: Api,
    pub node: NodeName,
    /// The host.
    pub snapshots: watch::Receiver<Arc<Snapshot>>,
    /// Whether kubelet knows the driver.
    pub registered: watch::Receiver<Registered>,
    /// The classes that are offered this way.
    pub classes: watch::Receiver<BTreeSet<Class>>,
    /// The classes of which that is not known yet: their slices are left as they are.
    pub undecided: watch::Receiver<BTreeSet<Class>>,
    /// What is known of DeviceClasses: a server that refuses to tell has given this program no rights.
    pub device_classes: watch::Receiver<Told>,
    pub metrics: Arc<Metrics>,
    /// Whether the program ends. The slices stay then: a successor may be there already, and if none comes,
    /// kubelet deletes them.
    pub stop: watch::Receiver<bool>,
}
