//! Netlink (netlink(7)). [`onload_sys::netlink`] makes and reads the messages.

pub mod abilities;
pub mod namespace;
pub(crate) mod socket;

#[cfg(fuzzing)]
pub(crate) fn fuzz(bytes: &[u8]) {
    socket::fuzz(bytes);
    namespace::fuzz(bytes);
    abilities::fuzz(bytes);
}
