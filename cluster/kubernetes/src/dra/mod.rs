//! Dynamic resource allocation: each device of the node in a ResourceSlice, and claims instead of numbers.
//!
//! [`slices`] makes ResourceSlices of what the host offers, and [`publish`] keeps them on the API server, which [`api`]
//! asks. [`driver`] serves kubelet: [`sockets`] stand where it looks for drivers, [`registration`] says who is there, and
//! [`service`] prepares claims by [`prepare`] and tells the [`health`] of devices; [`report`] says on the API server what
//! became of them. [`engine`] says which classes are for this driver and which for the device plugin. It asks what
//! [`classes`] are on the server, looks at what [`kubelet`] has and does on the node, and [`choice`] decides, where
//! [`resource_names`] says what else pods may ask for. [`amounts`] finds what a kubelet without its memory leaves in the
//! Node. [`node`] finds a node and its API server, and runs all of it.

pub mod amounts;
pub mod api;
mod choice;
pub mod classes;
pub mod driver;
pub mod engine;
mod health;
pub mod kubelet;
pub mod node;
pub mod prepare;
pub mod publish;
mod registration;
mod report;
mod resource_names;
mod service;
pub mod slices;
mod sockets;
#[cfg(test)]
mod test_offers;

use std::collections::BTreeSet;

use onload_core::class::Class;

/// The name of the driver (`spec.driver` of a ResourceSlice, `name` of a PluginInfo).
pub const DRIVER: &str = "onload.dev";

/// What is offered by DRA, as the engine decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DraClasses {
    pub classes: BTreeSet<Class>,
    /// Classes of the host of which nothing is known yet. Their slices are a predecessor's, or another instance's, and
    /// are left as they are.
    pub undecided: BTreeSet<Class>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraRegistration {
    pub now: bool,
    /// Whether it has said that it does not take it, as one without DRA does.
    pub is_refused: bool,
}
