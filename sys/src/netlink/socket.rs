//! Netlink sockets (netlink(7)) for requests and for notifications. A socket belongs to the network namespace in which
//! it was opened. In a container's namespace a process with CAP_NET_ADMIN can send messages to it as well
//! (net/netlink/af_netlink.c, `netlink_allowed`), so that only messages from the kernel are read.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType, bind,
    connect, recvfrom, send, socket_with,
};

use super::message::{ACKNOWLEDGE, DUMP, REQUEST, encode_message, read_datagram, truncated_error};
use super::route::{self, Route};

/// Size of the receive buffer for one datagram, in bytes. The kernel sends lists in smaller datagrams, and a single
/// interface fits, since the list of its virtual functions is an attribute with a 16-bit length.
const DATAGRAM: usize = 128 * 1024;
/// Limit of a whole list, in bytes. A router has a million routes.
const LIST: usize = 256 * 1024 * 1024;
/// Number of attempts to read a list that changes while it is read.
const ATTEMPTS: u32 = 8;
/// Time limit for a list whose length a container controls.
const LIST_TIMEOUT: Duration = Duration::from_secs(2);

/// Size of the buffer for one notification, in bytes. A uevent has up to 2 KiB (`UEVENT_BUFFER_SIZE`), a message about
/// an interface with many virtual functions more.
const MAX_NOTIFICATION: usize = 64 * 1024;
/// Size of the kernel's queue of unread notifications, in bytes. Creating thousands of virtual functions sends one
/// notification for each. If the queue is full, the kernel drops the rest and reports an overrun.
const RECEIVE_BUFFER: usize = 1024 * 1024;
const MAX_AT_ONCE: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyEnd {
    /// The answer is a consistent snapshot.
    Whole,
    /// The answer is complete, but the list changed while the kernel sent it.
    Changed,
    /// The time limit was reached before the end.
    Late,
}

/// A socket that sends one request at a time and reads the answer.
#[derive(Debug)]
pub struct NetlinkSocket {
    fd: OwnedFd,
    has_timeout: bool,
    sequence: AtomicU32,
}

impl NetlinkSocket {
    /// Opens a socket in the calling thread's network namespace. The default protocol is NETLINK_ROUTE.
    pub fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        let fd = open(protocol, SocketFlags::empty())?;
        // Once connected, the socket receives messages only from the kernel, so that other senders cannot fill its
        // queue (net/netlink/af_netlink.c, `netlink_getsockbyportid`).
        connect(&fd, &SocketAddrNetlink::new(0, 0))?;
        Ok(NetlinkSocket {
            fd,
            has_timeout: false,
            // 0 is the kernel's own.
            sequence: AtomicU32::new(1),
        })
    }

    /// Limits the time for a list to two seconds, because a container may fill its network namespace with interfaces.
    #[must_use]
    pub fn with_timeout(self) -> Self {
        NetlinkSocket { has_timeout: true, ..self }
    }

    pub fn execute(&self, kind: u16, flags: u16, payload: &[u8]) -> io::Result<()> {
        let flags = flags | ACKNOWLEDGE;
        self.query(kind, flags, payload, &|_| None::<()>).map(drop)
    }

    /// Requests a single object. Returns what `parse` returns for it.
    pub fn get<T>(
        &self,
        kind: u16,
        payload: &[u8],
        parse: &dyn Fn(&[u8]) -> Option<T>,
    ) -> io::Result<Option<T>> {
        let mut values = self.query(kind, ACKNOWLEDGE, payload, parse)?;
        Ok(values.pop())
    }

    /// Requests a whole list. Returns what `parse` returns for its messages.
    pub fn list<P: IntoIterator>(
        &self,
        kind: u16,
        payload: &[u8],
        parse: &dyn Fn(&[u8]) -> P,
    ) -> io::Result<Vec<P::Item>> {
        self.query(kind, DUMP, payload, parse)
    }

    /// Sends a request and collects what `parse` returns for the messages of the answer. Repeats the request if the
    /// list changed while the kernel sent it.
    pub fn query<P: IntoIterator>(
        &self,
        kind: u16,
        flags: u16,
        payload: &[u8],
        parse: &dyn Fn(&[u8]) -> P,
    ) -> io::Result<Vec<P::Item>> {
        let deadline = self.deadline();
        for _ in 0..ATTEMPTS {
            match self.try_query(kind, flags, payload, parse, deadline)? {
                (values, ReplyEnd::Whole) => return Ok(values),
                (_, ReplyEnd::Changed) => {}
                (_, ReplyEnd::Late) => return Err(timeout_error()),
            }
        }
        Err(inconsistent_error())
    }

    /// Returns all routes of the namespace with their interfaces.
    pub fn list_routes(&self) -> io::Result<Vec<Route>> {
        for _ in 0..ATTEMPTS {
            let mut routes = self.list(route::GET, &route::dump_payload(), &route::parse)?;
            let mut unresolved = routes.iter_mut().filter(|route| route.is_unresolved()).peekable();
            if unresolved.peek().is_none() {
                return Ok(routes);
            }
            let payload = route::dump_next_hops_payload();
            let next_hops = self.list(route::GET_NEXT_HOPS, &payload, &route::parse_next_hop)?;
            // Removing a next hop removes its routes, so that the next attempt finds neither.
            if unresolved.all(|route| route.resolve(&next_hops).is_some()) {
                return Ok(routes);
            }
        }
        Err(inconsistent_error())
    }

    /// Reads a list and returns whether it is a consistent snapshot. If the list changes during every attempt, returns
    /// the objects of all attempts, each `key` once, in the last state seen.
    pub fn snapshot<T>(
        &self,
        kind: u16,
        payload: &[u8],
        parse: &dyn Fn(&[u8]) -> Option<T>,
        key: &dyn Fn(&T) -> u32,
    ) -> io::Result<(Vec<T>, bool)> {
        let deadline = self.deadline();
        merge_attempts(&mut || self.try_query(kind, DUMP, payload, parse, deadline), key)
    }

    fn deadline(&self) -> Option<Instant> {
        self.has_timeout.then(|| Instant::now() + LIST_TIMEOUT)
    }

    fn try_query<P: IntoIterator>(
        &self,
        kind: u16,
        flags: u16,
        payload: &[u8],
        parse: &dyn Fn(&[u8]) -> P,
        deadline: Option<Instant>,
    ) -> io::Result<(Vec<P::Item>, ReplyEnd)> {
        let mut values = Vec::new();
        let end = self.exchange(kind, flags, payload, deadline, &mut |bytes| {
            values.extend(parse(bytes));
        })?;
        Ok((values, end))
    }

    /// Sends a request and reads the answer to its end or until the deadline.
    fn exchange(
        &self,
        kind: u16,
        flags: u16,
        payload: &[u8],
        deadline: Option<Instant>,
        visit: &mut dyn FnMut(&[u8]),
    ) -> io::Result<ReplyEnd> {
        // Answers to an earlier, abandoned request may still arrive.
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let request = encode_message(kind, flags | REQUEST, sequence, payload);
        send(&self.fd, &request, SendFlags::empty())?;
        let mut bytes = vec![0; DATAGRAM];
        let (mut received, mut has_changed) = (0, false);
        loop {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(ReplyEnd::Late);
            }
            // The kernel queues the answer during send(2), so this does not block.
            let (length, sender) = receive(&self.fd, &mut bytes)?;
            if !sender.is_some_and(|sender| is_kernel(&sender)) {
                continue;
            }
            received += length;
            if received > LIST {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            let datagram = bytes.get(..length).ok_or_else(truncated_error)?;
            let progress = read_datagram(datagram, sequence, visit)?;
            has_changed |= progress.has_changed;
            match (progress.is_complete, has_changed) {
                (false, _) => {}
                (true, false) => return Ok(ReplyEnd::Whole),
                (true, true) => return Ok(ReplyEnd::Changed),
            }
        }
    }
}

impl AsFd for NetlinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A socket that receives notifications to multicast groups. Connected or not, it also receives messages that programs
/// send to these groups.
#[derive(Debug)]
pub struct NetlinkListener {
    fd: OwnedFd,
    is_kernel: fn(&SocketAddrAny) -> bool,
    buffer: Vec<u8>,
}

impl NetlinkListener {
    /// Opens a socket in the calling thread's network namespace. `groups` is a bit mask of multicast groups.
    pub fn open(protocol: Option<Protocol>, groups: u32) -> io::Result<Self> {
        let fd = open(protocol, SocketFlags::NONBLOCK)?;
        // With the default size more notifications are lost, which `read` reports.
        let _ = set_socket_recv_buffer_size(&fd, RECEIVE_BUFFER);
        bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(NetlinkListener::with(fd, is_kernel))
    }

    /// Creates a listener whose messages come from a sender of the caller's choice, for tests, since no test can make
    /// the kernel send a given message.
    #[must_use]
    pub fn with(fd: OwnedFd, is_kernel: fn(&SocketAddrAny) -> bool) -> Self {
        NetlinkListener { fd, is_kernel, buffer: vec![0; MAX_NOTIFICATION] }
    }

    /// Reads the queued notifications. Returns true if some were lost.
    pub fn read(&mut self, mut visit: impl FnMut(&[u8])) -> io::Result<bool> {
        let mut is_lost = false;
        for _ in 0..MAX_AT_ONCE {
            match receive(&self.fd, &mut self.buffer) {
                Ok((length, sender)) => {
                    if !sender.is_some_and(|sender| (self.is_kernel)(&sender)) {
                        continue;
                    }
                    match self.buffer.get(..length) {
                        Some(message) => visit(message),
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

impl AsFd for NetlinkListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn open(protocol: Option<Protocol>, flags: SocketFlags) -> io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    Ok(socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?)
}

/// Returns the length and sender of the next datagram. The length exceeds the buffer's if the datagram is truncated.
fn receive(fd: &OwnedFd, bytes: &mut [u8]) -> Result<(usize, Option<SocketAddrAny>), Errno> {
    let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
    let (_, length, sender) = recvfrom(fd, bytes, flags)?;
    Ok((length, sender))
}

/// The kernel's port ID is 0, which no program can have (netlink(7)).
fn is_kernel(sender: &SocketAddrAny) -> bool {
    let sender = SocketAddrNetlink::try_from(sender.clone());
    sender.is_ok_and(|sender| sender.pid() == 0)
}

/// Implements [`NetlinkSocket::snapshot`] on top of single attempts.
fn merge_attempts<T>(
    attempt: &mut dyn FnMut() -> io::Result<(Vec<T>, ReplyEnd)>,
    key: &dyn Fn(&T) -> u32,
) -> io::Result<(Vec<T>, bool)> {
    let mut merged = BTreeMap::new();
    for number in 0..ATTEMPTS {
        let (values, end) = attempt()?;
        match end {
            ReplyEnd::Whole => return Ok((values, true)),
            // After the first attempt, partial results are kept: a container that changes the list all the time must
            // not hide its interfaces.
            ReplyEnd::Late if number == 0 => return Err(timeout_error()),
            ReplyEnd::Changed | ReplyEnd::Late => {
                merged.extend(values.into_iter().map(|value| (key(&value), value)));
            }
        }
        if end == ReplyEnd::Late {
            break;
        }
    }
    Ok((merged.into_values().collect(), false))
}

fn inconsistent_error() -> io::Error {
    io::Error::other("the list changed during each attempt to read it")
}

fn timeout_error() -> io::Error {
    let seconds = LIST_TIMEOUT.as_secs();
    io::Error::other(format!("the kernel did not finish its list within {seconds} seconds"))
}

#[cfg(test)]
mod tests {
    use onload_test_tree::netlink::{fed, feed};
    use rustix::net::netlink::{RDMA, USERSOCK};
    use rustix::net::{getsockname, sendto};

    use super::super::link;
    use super::*;

    fn address(socket: &OwnedFd) -> SocketAddrNetlink {
        let name = getsockname(socket).unwrap();
        SocketAddrNetlink::try_from(name).unwrap()
    }

    /// Everybody may send to a socket of USERSOCK; to one of the others, root may.
    #[test]
    fn nobody_but_the_kernel_writes_into_a_socket() {
        let is_root = onload_test_needs::root("writing into another's netlink socket");
        let of_root = [None, Some(RDMA)].into_iter().filter(|_| is_root);
        for protocol in of_root.chain([Some(USERSOCK)]) {
            let socket = match NetlinkSocket::open(protocol) {
                // Kernels without RDMA have no such sockets.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::PROTONOSUPPORT) => {
                    assert_eq!(protocol, Some(RDMA));
                    continue;
                }
                socket => socket.unwrap(),
            };
            let stranger = open(protocol, SocketFlags::empty()).unwrap();
            let bytes = encode_message(16, 0, 1, b"abcd");
            let sent = sendto(&stranger, &bytes, SendFlags::empty(), &address(&socket.fd));
            assert_eq!(sent, Err(Errno::CONNREFUSED), "{protocol:?}");
        }
    }

    /// Every machine has a loopback interface.
    #[test]
    fn one_socket_is_asked_and_refuses_again_and_again() {
        let socket = NetlinkSocket::open(None).unwrap().with_timeout();
        for _ in 0..3 {
            let links = socket.list(link::GET, &link::dump_payload(), &link::parse).unwrap();
            assert!(links.iter().any(|link| link.has_name(b"lo")));
            // It names none.
            let refused = socket.execute(link::GET, 0, &link::dump_payload()).unwrap_err();
            assert_eq!(Errno::from_io_error(&refused), Some(Errno::INVAL));
        }
    }

    /// Returns the result of attempts, each with these messages and this end.
    fn gathered(attempts: &[(&[(u32, char)], ReplyEnd)]) -> io::Result<(Vec<(u32, char)>, bool)> {
        let mut attempts = attempts.iter().map(|(seen, end)| (seen.to_vec(), *end));
        let gathered = merge_attempts(&mut || Ok(attempts.next().unwrap()), &|(key, _)| *key);
        assert_eq!(attempts.next(), None, "looked too few times");
        gathered
    }

    #[test]
    fn what_any_look_at_a_list_saw_that_never_stands_still_is_kept_as_it_was_last() {
        let torn: &[(u32, char)] = &[(1, 'a'), (2, 'b')];
        let later: &[(u32, char)] = &[(2, 'c'), (3, 'd')];
        let mut attempts = vec![(torn, ReplyEnd::Changed); 7];
        attempts.push((later, ReplyEnd::Changed));
        let (seen, is_whole) = gathered(&attempts).unwrap();
        assert_eq!(seen, [(1, 'a'), (2, 'c'), (3, 'd')]);
        assert!(!is_whole);
        let whole = gathered(&[(torn, ReplyEnd::Changed), (later, ReplyEnd::Whole)]).unwrap();
        assert_eq!(whole, (later.to_vec(), true));
    }

    #[test]
    fn a_list_that_had_an_end_once_is_of_use_when_there_is_no_more_time() {
        let torn: &[(u32, char)] = &[(1, 'a'), (2, 'b')];
        let late: &[(u32, char)] = &[(3, 'd')];
        let (seen, is_whole) =
            gathered(&[(torn, ReplyEnd::Changed), (late, ReplyEnd::Late)]).unwrap();
        assert_eq!(seen, [(1, 'a'), (2, 'b'), (3, 'd')]);
        assert!(!is_whole);
        let none = gathered(&[(late, ReplyEnd::Late)]).unwrap_err().to_string();
        assert_eq!(none, "the kernel did not finish its list within 2 seconds");
    }

    fn heard(listener: &mut NetlinkListener) -> (Vec<Vec<u8>>, bool) {
        let mut messages = Vec::new();
        let is_lost = listener.read(|bytes| messages.push(bytes.to_vec())).unwrap();
        (messages, is_lost)
    }

    #[test]
    fn messages_are_heard_until_there_is_none() {
        let (reader, feeder) = fed();
        let mut listener = NetlinkListener::with(reader, |_| true);
        assert_eq!(heard(&mut listener), (vec![], false));
        feed(&feeder, b"one");
        feed(&feeder, b"two");
        let both = vec![b"one".to_vec(), b"two".to_vec()];
        assert_eq!(heard(&mut listener), (both, false));
        assert_eq!(heard(&mut listener), (vec![], false));
    }

    #[test]
    fn a_message_that_is_cut_short_counts_as_lost() {
        let (reader, feeder) = fed();
        let mut listener = NetlinkListener::with(reader, |_| true);
        feed(&feeder, &[b'a'; MAX_NOTIFICATION + 1]);
        feed(&feeder, b"whole");
        assert_eq!(heard(&mut listener), (vec![b"whole".to_vec()], true));
    }

    #[test]
    fn what_the_kernel_did_not_send_is_passed_over() {
        let (reader, feeder) = fed();
        let mut listener = NetlinkListener::with(reader, is_kernel);
        feed(&feeder, b"a program's");
        assert_eq!(heard(&mut listener), (vec![], false));
    }

    /// Every program may send to another's netlink socket of this family: to oneself works without rights.
    #[test]
    fn a_program_on_netlink_is_not_the_kernel() {
        let mut listener = NetlinkListener::open(Some(USERSOCK), 0).unwrap();
        let own = address(&listener.fd);
        assert_ne!(own.pid(), 0);
        let sent = sendto(&listener.fd, b"add@/x", SendFlags::empty(), &own);
        assert_eq!(sent, Ok(6));
        assert_eq!(heard(&mut listener), (vec![], false));
    }
}
