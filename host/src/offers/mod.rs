//! What a host offers to cluster engines, in words that belong to neither Kubernetes nor Nomad: its devices, with what
//! specifications, pools and leases say of them. Only devices in a CDI specification on disk are healthy, since a
//! container gets what the specification says. Pools, `any` and `all` are no offers: they stand for devices that are
//! offered one by one.

mod build;
mod current_nodes;
mod exclusion_reasons;
mod spec_devices;
mod survey;
#[cfg(test)]
mod tests;

pub use crate::devices::{
    Attribute, Attributes, DeviceLease, Health, HostDevice, LOOPBACK, Sharing,
};
pub use build::build_offers;
pub use spec_devices::GENERATE;
pub use survey::Survey;
