//! Netlink (netlink(7)): a socket to ask the kernel on ([`socket`]), what rtnetlink(7) tells of a network namespace
//! ([`namespace`]), and what drivers say of their interfaces ([`abilities`]). [`onload_core::netlink`] makes and reads the messages.

pub(crate) mod abilities;
pub(crate) mod namespace;
pub(crate) mod socket;

/// Properties that hold for all bytes.
#[cfg(fuzzing)]
pub(crate) fn fuzz(bytes: &[u8]) {
    socket::fuzz(bytes);
    namespace::fuzz(bytes);
    abilities::fuzz(bytes);
}
