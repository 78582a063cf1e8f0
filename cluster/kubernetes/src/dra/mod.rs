//! Dynamic resource allocation: each device of the node in a ResourceSlice, and claims instead of numbers.
//!
//! - [`node`] finds the Node and its API server, and starts everything else. [`api`] has the requests to the API server.
//! - [`engine`] decides which classes DRA offers and which the device plugin, by the configuration, [`pod_resources`] and
//!   [`published`].
//! - [`slices`] builds the ResourceSlices of the host's devices, and [`publish`] keeps them up to date on the API server.
//! - [`driver`] serves kubelet: [`sockets`] creates the sockets, [`registration`] registers the driver, and [`service`]
//!   prepares claims by [`prepare`] and streams the [`health`] of devices. [`report`] writes the status of claims.
//! - [`resource_names`] lists the resources that pods request, [`classes`] the DeviceClasses that serve them, and
//!   [`pool_selectors`] how claims select the devices of a pool.
//! - [`amounts`] finds resources that a kubelet without its checkpoint still reports.

pub mod amounts;
pub mod api;
pub mod classes;
pub mod driver;
pub mod engine;
mod health;
pub mod node;
pub mod pod_resources;
pub(crate) mod pool_selectors;
pub mod prepare;
pub mod publish;
pub mod published;
mod registration;
mod report;
mod resource_names;
mod service;
pub mod slices;
pub(crate) mod sockets;
#[cfg(test)]
mod test_offers;

use std::collections::BTreeSet;

use onload_core::class::Class;

/// The name of the driver (`spec.driver` of a ResourceSlice, `name` of a PluginInfo).
pub const DRIVER: &str = "onload.dev";

/// The classes that are offered by DRA, as the engine decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DraClasses {
    pub classes: BTreeSet<Class>,
    /// Classes of the host of which nothing is known yet. Their slices belong to a predecessor or another instance and
    /// are not changed.
    pub undecided: BTreeSet<Class>,
    /// Classes that DRA will offer once the Node reports no amount of their resources.
    pub awaited: BTreeSet<Class>,
}

impl DraClasses {
    /// The classes of which the Node is to report no amount.
    fn served(&self) -> BTreeSet<Class> {
        self.classes.union(&self.awaited).copied().collect()
    }
}
