//! Netlink: what the kernel is asked and told about network interfaces (rtnetlink(7)) and RDMA devices. Messages are
//! made and read by pure functions over bytes, one file for each family; [`socket`] does the I/O. Numbers are of the
//! host's byte order.

pub mod address;
pub mod link;
pub mod message;
pub mod nldev;
pub mod route;
pub mod socket;
pub mod vf;

/// Gives the readers of answers something foreign.
///
/// # Panics
/// A reader panics, or returns what it must not.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    message::fuzz(bytes);
    link::fuzz(bytes);
    nldev::fuzz(bytes);
    let _ = (address::parse(bytes), vf::parse(bytes));
    let object = route::parse_next_hop(bytes);
    if let (Some(mut route), Some(object)) = (route::parse(bytes), object) {
        let _ = route.resolve(&[object]);
    }
}
