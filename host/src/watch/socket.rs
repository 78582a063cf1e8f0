//! A netlink socket on which the kernel tells of something.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SocketAddrAny, SocketFlags, SocketType, bind, recvfrom,
    socket_with,
};

/// Bytes of a message: a uevent has up to 2 KiB (`UEVENT_BUFFER_SIZE`), an interface with many virtual
/// functions more.
const MESSAGE: usize = 64 * 1024;
/// Bytes that the kernel keeps until they are read. Thousands of virtual functions that are made at once are
/// told one by one; what does not fit is lost, and the kernel says so.
const KEPT: usize = 1024 * 1024;
const MOST_AT_ONCE: usize = 4096;

pub(super) struct Socket {
    descriptor: OwnedFd,
    is_kernel: fn(&SocketAddrAny) -> bool,
    buffer: Vec<u8>,
}

impl Socket {
    pub(super) fn open(protocol: Option<Protocol>, groups: u32) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let descriptor = socket_with(family, kind, flags, protocol)?;
        // With the usual size more is lost, and nothing else.
        let _ = set_socket_recv_buffer_size(&descriptor, KEPT);
        bind(&descriptor, &SocketAddrNetlink::new(0, groups))?;
        Ok(Socket::new(descriptor, is_kernel))
    }

    pub(super) fn new(descriptor: OwnedFd, is_kernel: fn(&SocketAddrAny) -> bool) -> Self {
        Socket {
            descriptor,
            is_kernel,
            buffer: vec![0; MESSAGE],
        }
    }

    /// Reads what has come; whether some of it was lost.
    pub(super) fn read(&mut self, mut each: impl FnMut(&[u8])) -> io::Result<bool> {
        let mut is_lost = false;
        for _ in 0..MOST_AT_ONCE {
            let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
            match recvfrom(&self.descriptor, &mut self.buffer[..], flags) {
                Ok((_, length, sender)) => {
                    if !sender.is_some_and(|sender| (self.is_kernel)(&sender)) {
                        continue;
                    }
                    match self.buffer.get(..length) {
                        Some(message) => each(message),
                        None => is_lost = true,
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(Errno::NOBUFS) => is_lost = true,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(is_lost)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The kernel has number 0 on netlink, and no program gets it (netlink(7)).
fn is_kernel(sender: &SocketAddrAny) -> bool {
    let sender = SocketAddrNetlink::try_from(sender.clone());
    sender.is_ok_and(|sender| sender.pid() == 0)
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::fd::AsRawFd;

    use rustix::net::{SendFlags, SocketAddrUnix, send, sendto, socketpair};

    use super::*;

    /// A socket and what feeds it, which is taken for the kernel.
    pub(in super::super) fn fed() -> (Socket, OwnedFd) {
        fed_by(|_| true)
    }

    fn fed_by(is_kernel: fn(&SocketAddrAny) -> bool) -> (Socket, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (family, kind) = (AddressFamily::UNIX, SocketType::DGRAM);
        let (reader, feeder) = socketpair(family, kind, flags, None).unwrap();
        // A sender without a name has no address.
        let number = feeder.as_raw_fd();
        let name = format!("onload-ctk-test-{}-{number}", std::process::id());
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        bind(&feeder, &name).unwrap();
        (Socket::new(reader, is_kernel), feeder)
    }

    pub(in super::super) fn feed(feeder: &OwnedFd, message: &[u8]) {
        assert_eq!(send(feeder, message, SendFlags::empty()), Ok(message.len()));
    }

    fn read(socket: &mut Socket) -> (Vec<Vec<u8>>, bool) {
        let mut messages = Vec::new();
        let is_lost = socket.read(|bytes| messages.push(bytes.to_vec())).unwrap();
        (messages, is_lost)
    }

    #[test]
    fn messages_are_read_until_there_is_none() {
        let (mut socket, feeder) = fed();
        assert_eq!(read(&mut socket), (vec![], false));
        feed(&feeder, b"one");
        feed(&feeder, b"two");
        let both = vec![b"one".to_vec(), b"two".to_vec()];
        assert_eq!(read(&mut socket), (both, false));
        assert_eq!(read(&mut socket), (vec![], false));
    }

    #[test]
    fn a_message_that_is_cut_short_counts_as_lost() {
        let (mut socket, feeder) = fed();
        feed(&feeder, &[b'a'; MESSAGE + 1]);
        feed(&feeder, b"whole");
        assert_eq!(read(&mut socket), (vec![b"whole".to_vec()], true));
    }

    #[test]
    fn what_the_kernel_did_not_send_is_passed_over() {
        let (mut socket, feeder) = fed_by(is_kernel);
        feed(&feeder, b"a program's");
        assert_eq!(read(&mut socket), (vec![], false));
    }

    /// Every program may send to another's netlink socket of this family: to oneself works without rights.
    #[test]
    fn a_program_on_netlink_is_not_the_kernel() {
        let mut socket = Socket::open(Some(rustix::net::netlink::USERSOCK), 0).unwrap();
        let own = rustix::net::getsockname(&socket.descriptor).unwrap();
        let own = SocketAddrNetlink::try_from(own).unwrap();
        assert_ne!(own.pid(), 0);
        let sent = sendto(&socket.descriptor, b"add@/x", SendFlags::empty(), &own);
        assert_eq!(sent, Ok(6));
        assert_eq!(read(&mut socket), (vec![], false));
    }
}
