//! What tests of netlink need: recorded messages, and a socket whose messages are theirs.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, send, socketpair,
};

/// See its head for where it comes from.
const EXCHANGE: &str = include_str!("../nldev-exchange.txt");
/// The number that each message of [`exchange`] has.
pub const SEQUENCE: u32 = 7;

/// What one line says that went over a socket of RDMA's netlink.
#[must_use]
pub fn exchange(name: &str) -> Vec<u8> {
    let mut lines = EXCHANGE.lines().filter(|line| !line.starts_with('#'));
    let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let digits: String = line.unwrap().split_whitespace().collect();
    let pair = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(pair).collect()
}

/// A socket and what feeds it.
#[must_use]
pub fn fed() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (family, kind) = (AddressFamily::UNIX, SocketType::DGRAM);
    let (reader, feeder) = socketpair(family, kind, flags, None).unwrap();
    // A sender without a name has no address.
    let number = feeder.as_raw_fd();
    let name = format!("onload-ctk-test-{}-{number}", std::process::id());
    let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    bind(&feeder, &name).unwrap();
    (reader, feeder)
}

pub fn feed(feeder: &OwnedFd, message: &[u8]) {
    assert_eq!(send(feeder, message, SendFlags::empty()), Ok(message.len()));
}
