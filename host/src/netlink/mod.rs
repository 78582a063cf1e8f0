//! Netlink (netlink(7)): what is asked of it. [`onload_sys::netlink`] makes and reads the messages.

pub mod features;
pub mod netns_links;
pub mod rdma_ports;

#[cfg(fuzzing)]
pub(crate) fn fuzz(bytes: &[u8]) {
    netns_links::fuzz(bytes);
    features::fuzz(bytes);
    rdma_ports::fuzz(bytes);
}
