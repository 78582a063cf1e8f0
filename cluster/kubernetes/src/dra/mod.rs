//! Dynamic resource allocation: each device of the node in a ResourceSlice, and claims instead of numbers.
//!
//! [`slices`] makes ResourceSlices of what the host offers, and [`publish`] keeps them on the API server, which [`api`]
//! asks. [`driver`] serves kubelet: [`sockets`] stand where it looks for drivers, [`registration`] says who is there, and
//! [`service`] prepares claims by [`prepare`] and tells the [`health`] of devices; [`report`] says on the API server what
//! became of them. [`engine`] decides which classes are for this driver and which for the device plugin, by the
//! configuration, [`pod_resources`] and [`published`]. [`resource_names`] says which resources pods ask for, and [`classes`]
//! which DeviceClasses serve them; [`pool_selectors`] says how claims select the devices of a pool. [`amounts`] finds what a kubelet without its memory leaves in the Node.
//! [`node`] finds a node and its API server, and runs all of it.

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
