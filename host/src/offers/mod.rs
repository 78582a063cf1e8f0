//! The devices that a host offers to cluster engines, independent of Kubernetes and Nomad, with the data from
//! specifications, pools and leases. Only devices in a CDI specification on disk are healthy, since containers get what
//! the specification contains. Pools, `any` and `all` are not offered, since their devices are offered one by one.

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
