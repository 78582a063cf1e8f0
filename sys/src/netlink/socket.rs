//! Sockets of netlink(7), each of the network namespace that it was made in: one to ask the kernel on, and one to hear what it
//! tells a group. In a container's network namespace a process with CAP_NET_ADMIN can send messages to them too
//! (net/netlink/af_netlink.c, `netlink_allowed`): only the kernel's own are read.

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

/// Bytes of one datagram of an answer. The kernel makes none larger of a list, and one interface has less: the list of its
/// virtual functions is an attribute, whose length has 16 bits.
const DATAGRAM: usize = 128 * 1024;
/// Bytes of a whole list: a router has a million routes.
const LIST: usize = 256 * 1024 * 1024;
/// How often a list is read that changes while it is read.
const ATTEMPTS: u32 = 8;
/// How long one list may take that others may fill.
const LIST_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes of a message to a group: a uevent has up to 2 KiB (`UEVENT_BUFFER_SIZE`), an interface with many virtual
/// functions more.
const MAX_NOTIFICATION: usize = 64 * 1024;
/// Bytes that the kernel keeps until they are read. Thousands of virtual functions that are made at once are
/// told one by one; what does not fit is lost, and the kernel says so.
const RECEIVE_BUFFER: usize = 1024 * 1024;
const MAX_AT_ONCE: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyEnd {
    /// It is one state of the kernel.
    Whole,
    /// It has its end, and changed meanwhile.
    Changed,
    /// There is no time for the rest.
    Late,
}

/// A question at a time, and its answer.
#[derive(Debug)]
pub struct NetlinkSocket {
    fd: OwnedFd,
    has_timeout: bool,
    sequence: AtomicU32,
}

impl NetlinkSocket {
    /// In the namespace of the calling thread. Without a protocol, it is one of rtnetlink(7).
    pub fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        let fd = open(protocol, SocketFlags::empty())?;
        // From here on nobody but the kernel can write into it, and no stranger's messages leave no room for answers
        // (net/netlink/af_netlink.c, `netlink_getsockbyportid`).
        connect(&fd, &SocketAddrNetlink::new(0, 0))?;
        Ok(NetlinkSocket {
            fd,
            has_timeout: false,
            // 0 is the kernel's own.
            sequence: AtomicU32::new(1),
        })
    }

    /// Gives up a list after two seconds: who is in a network namespace may fill it with interfaces.
    #[must_use]
    pub fn with_timeout(self) -> Self {
        NetlinkSocket { has_timeout: true, ..self }
    }

    pub fn execute(&self, kind: u16, flags: u16, payload: &[u8]) -> io::Result<()> {
        let flags = flags | ACKNOWLEDGE;
        self.query(kind, flags, payload, &|_| None::<()>).map(drop)
    }

    /// Reads an answer that is no list; `part` is called for its message.
    pub fn get<T>(
        &self,
        kind: u16,
        payload: &[u8],
        parse: &dyn Fn(&[u8]) -> Option<T>,
    ) -> io::Result<Option<T>> {
        let mut values = self.query(kind, ACKNOWLEDGE, payload, parse)?;
        Ok(values.pop())
    }

    /// Reads a whole list; `part` is called for each message of it.
    pub fn list<P: IntoIterator>(
        &self,
        kind: u16,
        payload: &[u8],
        parse: &dyn Fn(&[u8]) -> P,
    ) -> io::Result<Vec<P::Item>> {
        self.query(kind, DUMP, payload, parse)
    }

    /// Sends a request, whose flags say how the answer ends. What changed while it was read is asked for again.
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

    /// All routes of the namespace, with the interfaces that each leads over.
    pub fn list_routes(&self) -> io::Result<Vec<Route>> {
        for _ in 0..ATTEMPTS {
            let mut routes = self.list(route::GET, &route::dump_payload(), &route::parse)?;
            let mut unresolved = routes.iter_mut().filter(|route| route.is_unresolved()).peekable();
            if unresolved.peek().is_none() {
                return Ok(routes);
            }
            let payload = route::dump_next_hops_payload();
            let next_hops = self.list(route::GET_NEXT_HOPS, &payload, &route::parse_next_hop)?;
            // Whoever removes a next hop in between removes the route.
            if unresolved.all(|route| route.resolve(&next_hops).is_some()) {
                return Ok(routes);
            }
        }
        Err(inconsistent_error())
    }

    /// Reads a list, and says whether it is one state of the kernel. If others change it all the time, it is what any
    /// attempt saw, each `key` once and as it was seen last.
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

    /// Sends a request and reads the answer to its end, or for as long as there is time.
    fn exchange(
        &self,
        kind: u16,
        flags: u16,
        payload: &[u8],
        deadline: Option<Instant>,
        visit: &mut dyn FnMut(&[u8]),
    ) -> io::Result<ReplyEnd> {
        // Answers to an earlier request that was given up may still come.
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let request = encode_message(kind, flags | REQUEST, sequence, payload);
        send(&self.fd, &request, SendFlags::empty())?;
        let mut bytes = vec![0; DATAGRAM];
        let (mut received, mut has_changed) = (0, false);
        loop {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(ReplyEnd::Late);
            }
            // The kernel answers while it is asked, so nothing is waited for.
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

/// Hears what the kernel tells groups of listeners. Connected or not, it hears what programs tell them too.
#[derive(Debug)]
pub struct NetlinkListener {
    fd: OwnedFd,
    is_kernel: fn(&SocketAddrAny) -> bool,
    buffer: Vec<u8>,
}

impl NetlinkListener {
    /// In the namespace of the calling thread. `groups` has a bit for each group.
    pub fn open(protocol: Option<Protocol>, groups: u32) -> io::Result<Self> {
        let fd = open(protocol, SocketFlags::NONBLOCK)?;
        // With the usual size more is lost, and nothing else.
        let _ = set_socket_recv_buffer_size(&fd, RECEIVE_BUFFER);
        bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(NetlinkListener::with(fd, is_kernel))
    }

    /// One whose kernel is somebody else: no test can make the kernel say something.
    #[must_use]
    pub fn with(fd: OwnedFd, is_kernel: fn(&SocketAddrAny) -> bool) -> Self {
        NetlinkListener { fd, is_kernel, buffer: vec![0; MAX_NOTIFICATION] }
    }

    /// Reads what has come; whether some of it was lost.
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

/// The next datagram and its sender. The length is above that of the buffer where it is cut short.
fn receive(fd: &OwnedFd, bytes: &mut [u8]) -> Result<(usize, Option<SocketAddrAny>), Errno> {
    let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
    let (_, length, sender) = recvfrom(fd, bytes, flags)?;
    Ok((length, sender))
}

/// The kernel has number 0 on netlink, and no program gets it (netlink(7)).
fn is_kernel(sender: &SocketAddrAny) -> bool {
    let sender = SocketAddrNetlink::try_from(sender.clone());
    sender.is_ok_and(|sender| sender.pid() == 0)
}

/// What [`NetlinkSocket::snapshot`] makes of its attempts.
fn merge_attempts<T>(
    attempt: &mut dyn FnMut() -> io::Result<(Vec<T>, ReplyEnd)>,
    key: &dyn Fn(&T) -> u32,
) -> io::Result<(Vec<T>, bool)> {
    let mut merged = BTreeMap::new();
    for number in 0..ATTEMPTS {
        let (values, end) = attempt()?;
        match end {
            ReplyEnd::Whole => return Ok((values, true)),
            // Whoever changes it all the time must not make what was seen of it useless.
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
    io::Error::other("what the kernel lists does not stand still")
}

fn timeout_error() -> io::Error {
    let seconds = LIST_TIMEOUT.as_secs();
    io::Error::other(format!("the kernel's list has no end within {seconds} seconds"))
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

    /// What comes of attempts, each of which saw these and ended so.
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
        assert_eq!(none, "the kernel's list has no end within 2 seconds");
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
