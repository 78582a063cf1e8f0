//! Reads a host, with one file and pure parsers for each family. All reading goes through [`probe::Probe`].
//! [`crate::devices`] creates devices from the result.

pub mod af_xdp;
pub mod bond;
pub mod clock;
pub mod data_direct;
pub mod exclusion;
pub mod gdrcopy;
pub mod gpu;
pub mod gpu_index;
pub mod hugepages;
pub mod installation;
pub mod movable_interface;
pub mod netdev;
pub mod nic;
pub(crate) mod node;
pub mod onload;
pub mod pci;
pub mod pcie_link;
pub(crate) mod probe;
pub mod profile;
pub mod rdma;
pub mod taken_names;
pub mod tcpdirect;
#[cfg(test)]
pub(crate) mod test_tree;
pub mod unread;
pub mod vfio;
