//! Netlink (netlink(7)): what is asked of it. [`onload_sys::netlink`] makes and reads the messages.

pub mod abilities;
pub mod namespace;

#[cfg(fuzzing)]
pub(crate) fn fuzz(bytes: &[u8]) {
    namespace::fuzz(bytes);
    abilities::fuzz(bytes);
}
