//! Netlink (netlink(7)): a socket to ask the kernel on ([`socket`]).
//! [`onload_core::netlink`] makes and reads the messages.

pub(crate) mod socket;

/// Properties that hold for all bytes.
#[cfg(fuzzing)]
pub(crate) fn fuzz(bytes: &[u8]) {
    socket::fuzz(bytes);
}
