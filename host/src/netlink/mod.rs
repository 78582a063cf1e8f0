//! Netlink requests of discovery (netlink(7)). [`onload_sys::netlink`] encodes and parses the messages.

pub mod features;
pub mod netns_links;
pub mod rdma_ports;

#[cfg(fuzzing)]
pub(crate) fn fuzz(bytes: &[u8]) {
    netns_links::fuzz(bytes);
    features::fuzz(bytes);
    rdma_ports::fuzz(bytes);
}
