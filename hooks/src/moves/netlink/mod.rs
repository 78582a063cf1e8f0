//! Netlink: a socket to ask the kernel on, which belongs to the network namespace that it was made in. What is asked and
//! answered, [`onload_sys::netlink`] makes and reads.

pub(crate) mod socket;

pub(crate) use onload_sys::netlink::{address, link, message, route};
