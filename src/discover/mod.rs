//! Discovery: one file per resource, each with pure parsers; all reading goes through [`Probe`].

pub mod clock;
pub mod hugepages;
pub mod names;
pub mod netdev;
pub mod nic;
pub mod node;
pub mod onload;
pub mod pci;
pub mod probe;
pub mod profile;
pub mod program;
pub mod rdma;
pub mod tcpdirect;
#[cfg(test)]
mod test_tree;
pub mod vfio;

pub use probe::Probe;
