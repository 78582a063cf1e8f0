//! What a host offers to cluster engines, in words that belong to neither Kubernetes nor Nomad: each engine's agent
//! maps an [`Offer`] to its own protocol. Only devices in a CDI specification on disk are healthy, since a container
//! gets what the specification says. Pools, `any` and `all` are no offers: they stand for devices that are offered one
//! by one.

mod absent;
mod attributes;
mod clock;
mod found;
mod holders;
mod netdev;
mod nic;
mod offer;
mod offering;
mod places;
mod plain;
mod published;
mod rdma;
mod stale;
mod survey;
#[cfg(test)]
mod tests;
mod vfio;

pub use offer::{Attribute, Attributes, Health, Held, Offer, Sharing};
pub use offering::offers;
pub use published::GENERATE;
pub use survey::Survey;

pub const LOOPBACK: &str = crate::generate::LOOPBACK;
