//! A socket of rtnetlink(7) or of RDMA's netlink. In a container's network namespace a process with CAP_NET_ADMIN can send
//! messages to it too (net/netlink/af_netlink.c, `netlink_allowed`), so it is connected to the kernel, and only the
//! kernel's own are read.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recvfrom,
    sendto, socket_with,
};

use super::message::{ACKNOWLEDGE, Answer, DUMP, REQUEST, answers, message};

/// Bytes of one datagram. The kernel makes none larger of a list, and one interface has less.
const DATAGRAM: usize = 128 * 1024;
/// How often a list is read that changes while it is read.
const ATTEMPTS: u32 = 8;
/// How long one list may take: who is in a network namespace may fill it with interfaces.
const PATIENCE: Duration = Duration::from_secs(2);
/// Datagrams that are not the kernel's, after which somebody is in the way on purpose.
const STRANGERS: u32 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It is one state of the kernel.
    Whole,
    /// It has its end, and changed meanwhile.
    Changed,
    /// There is no time for the rest.
    Late,
}

#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
}

impl Socket {
    /// For network interfaces, addresses and routes, in the namespace of the calling thread.
    pub(crate) fn route() -> io::Result<Self> {
        let fd = open(None)?;
        Ok(Socket { fd })
    }

    /// For RDMA devices, in the namespace of the calling thread.
    pub(crate) fn rdma() -> io::Result<Self> {
        let fd = open(Some(netlink::RDMA))?;
        Ok(Socket { fd })
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub(crate) fn tell(&self, kind: u16, flags: u16, payload: &[u8]) -> io::Result<()> {
        if self.exchange(kind, flags | ACKNOWLEDGE, payload, &mut |_| ())? {
            return Ok(());
        }
        Err(changing())
    }

    /// Reads a whole list; `part` is called for each message of it.
    pub(crate) fn list<T>(
        &self,
        kind: u16,
        payload: &[u8],
        part: &dyn Fn(&[u8]) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let until = Instant::now() + PATIENCE;
        for _ in 0..ATTEMPTS {
            match self.attempt(kind, payload, part, until)? {
                (found, End::Whole) => return Ok(found),
                (_, End::Changed) => {}
                (_, End::Late) => return Err(too_long()),
            }
        }
        Err(changing())
    }

    /// Reads a list, and says whether it is one state of the kernel. If others change it all the time, it is what any
    /// attempt saw, each `key` once and as it was seen last.
    pub(crate) fn look<T>(
        &self,
        kind: u16,
        payload: &[u8],
        part: &dyn Fn(&[u8]) -> Option<T>,
        key: &dyn Fn(&T) -> u32,
    ) -> io::Result<(Vec<T>, bool)> {
        let until = Instant::now() + PATIENCE;
        gather(&mut || self.attempt(kind, payload, part, until), key)
    }

    fn attempt<T>(
        &self,
        kind: u16,
        payload: &[u8],
        part: &dyn Fn(&[u8]) -> Option<T>,
        until: Instant,
    ) -> io::Result<(Vec<T>, End)> {
        let mut found = Vec::new();
        let end = self.exchange_until(kind, DUMP, payload, Some(until), &mut |bytes| {
            found.extend(part(bytes));
        })?;
        Ok((found, end))
    }

    /// Reads an answer that is no list; `part` is called for its message.
    pub(crate) fn ask<T>(
        &self,
        kind: u16,
        payload: &[u8],
        part: &dyn Fn(&[u8]) -> Option<T>,
    ) -> io::Result<Option<T>> {
        let mut found = None;
        self.exchange(kind, ACKNOWLEDGE, payload, &mut |bytes| {
            found = part(bytes);
        })?;
        Ok(found)
    }

    /// Sends a request, whose flags say how the answer ends; the payloads of the answer.
    pub(crate) fn payloads(
        &self,
        kind: u16,
        flags: u16,
        payload: &[u8],
    ) -> io::Result<Vec<Vec<u8>>> {
        for _ in 0..ATTEMPTS {
            let mut found = Vec::new();
            let is_whole = self.exchange(kind, flags, payload, &mut |bytes| {
                found.push(bytes.to_vec());
            })?;
            if is_whole {
                return Ok(found);
            }
        }
        Err(changing())
    }

    /// Sends a request and reads the answer to its end; whether the answer is one state of the kernel.
    fn exchange(
        &self,
        kind: u16,
        flags: u16,
        payload: &[u8],
        part: &mut dyn FnMut(&[u8]),
    ) -> io::Result<bool> {
        let end = self.exchange_until(kind, flags, payload, None, part)?;
        Ok(end == End::Whole)
    }

    /// Sends a request and reads the answer to its end, or for as long as there is time.
    fn exchange_until(
        &self,
        kind: u16,
        flags: u16,
        payload: &[u8],
        until: Option<Instant>,
        part: &mut dyn FnMut(&[u8]),
    ) -> io::Result<End> {
        // Answers to an earlier request that was given up may still come.
        let sequence = sequence()?;
        let request = message(kind, flags | REQUEST, sequence, payload);
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.fd, &request, SendFlags::empty(), &kernel)?;
        let mut bytes = vec![0; DATAGRAM];
        let mut end = End::Whole;
        let mut strangers = 0;
        loop {
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(End::Late);
            }
            let Some(length) = self.receive(&mut bytes)? else {
                strangers += 1;
                if strangers > STRANGERS {
                    return Err(io::Error::other("others keep writing into the socket"));
                }
                continue;
            };
            for answer in answers(bytes.get(..length).unwrap_or_default(), sequence) {
                match answer {
                    Answer::Part(payload) => part(payload),
                    Answer::Changed => end = End::Changed,
                    Answer::End => return Ok(end),
                    Answer::Failed(error) => return Err(error.into()),
                }
            }
        }
    }

    /// The length of the next datagram; none where somebody else than the kernel sent it. The kernel answers while
    /// it is asked, so nothing is waited for.
    fn receive(&self, bytes: &mut [u8]) -> io::Result<Option<usize>> {
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        let (_, length, from) = recvfrom(&self.fd, &mut *bytes, flags)?;
        if length > bytes.len() {
            return Err(io::Error::other("the kernel's answer is cut short"));
        }
        let from = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
        Ok(from.is_some_and(|from| from.pid() == 0).then_some(length))
    }
}

/// What [`Socket::look`] makes of its attempts.
fn gather<T>(
    attempt: &mut dyn FnMut() -> io::Result<(Vec<T>, End)>,
    key: &dyn Fn(&T) -> u32,
) -> io::Result<(Vec<T>, bool)> {
    let mut seen = BTreeMap::new();
    for number in 0..ATTEMPTS {
        let (found, end) = attempt()?;
        match end {
            End::Whole => return Ok((found, true)),
            // Whoever changes it all the time must not make what was seen of it useless.
            End::Late if number == 0 => return Err(too_long()),
            End::Changed | End::Late => {
                seen.extend(found.into_iter().map(|one| (key(&one), one)));
            }
        }
        if end == End::Late {
            break;
        }
    }
    Ok((seen.into_values().collect(), false))
}

fn open(protocol: Option<Protocol>) -> io::Result<OwnedFd> {
    let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
    let fd = socket_with(family, SocketType::RAW, flags, protocol)?;
    // From here on nobody but the kernel can write into it, and no stranger's messages leave no room for answers
    // (net/netlink/af_netlink.c, `netlink_getsockbyportid`).
    connect(&fd, &SocketAddrNetlink::new(0, 0))?;
    Ok(fd)
}

fn too_long() -> io::Error {
    let seconds = PATIENCE.as_secs();
    io::Error::other(format!(
        "the kernel's list has no end within {seconds} seconds"
    ))
}

fn changing() -> io::Error {
    io::Error::other("what the kernel lists does not stand still")
}

/// A number that nobody else knows. 0 is the kernel's own.
fn sequence() -> io::Result<u32> {
    let mut bytes = [0; 4];
    let flags = rustix::rand::GetRandomFlags::empty();
    if rustix::rand::getrandom(&mut bytes, flags)? != bytes.len() {
        return Err(Errno::AGAIN.into());
    }
    Ok(u32::from_ne_bytes(bytes) | 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::getsockname;

    #[test]
    fn nobody_but_the_kernel_writes_into_a_socket() {
        if !onload_test_needs::root("writing into another's netlink socket") {
            return;
        }
        // Kernels without RDMA have no such sockets; every socket is opened in one place.
        for protocol in [None, Some(netlink::USERSOCK), Some(netlink::RDMA)] {
            let socket = match open(protocol) {
                Err(error) if Errno::from_io_error(&error) == Some(Errno::PROTONOSUPPORT) => {
                    assert_eq!(protocol, Some(netlink::RDMA));
                    continue;
                }
                socket => socket.unwrap(),
            };
            let name = getsockname(&socket).unwrap();
            let name = SocketAddrNetlink::try_from(name).unwrap();
            let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
            let stranger = socket_with(family, SocketType::RAW, flags, protocol).unwrap();
            let bytes = message(16, 0, 1, b"abcd");
            let sent = sendto(&stranger, &bytes, SendFlags::empty(), &name);
            assert_eq!(sent, Err(Errno::CONNREFUSED), "{protocol:?}");
        }
    }

    /// What comes of attempts, each of which saw these and ended so.
    fn gathered(attempts: &[(&[(u32, char)], End)]) -> io::Result<(Vec<(u32, char)>, bool)> {
        let mut attempts = attempts.iter().map(|(seen, end)| (seen.to_vec(), *end));
        let gathered = gather(&mut || Ok(attempts.next().unwrap()), &|(key, _)| *key);
        assert_eq!(attempts.next(), None, "looked too few times");
        gathered
    }

    #[test]
    fn what_any_look_at_a_list_saw_that_never_stands_still_is_kept_as_it_was_last() {
        let torn: &[(u32, char)] = &[(1, 'a'), (2, 'b')];
        let later: &[(u32, char)] = &[(2, 'c'), (3, 'd')];
        let mut attempts = vec![(torn, End::Changed); 7];
        attempts.push((later, End::Changed));
        let (seen, is_whole) = gathered(&attempts).unwrap();
        assert_eq!(seen, [(1, 'a'), (2, 'c'), (3, 'd')]);
        assert!(!is_whole);
        let whole = gathered(&[(torn, End::Changed), (later, End::Whole)]).unwrap();
        assert_eq!(whole, (later.to_vec(), true));
    }

    #[test]
    fn a_list_that_had_an_end_once_is_of_use_when_there_is_no_more_time() {
        let torn: &[(u32, char)] = &[(1, 'a'), (2, 'b')];
        let late: &[(u32, char)] = &[(3, 'd')];
        let (seen, is_whole) = gathered(&[(torn, End::Changed), (late, End::Late)]).unwrap();
        assert_eq!(seen, [(1, 'a'), (2, 'b'), (3, 'd')]);
        assert!(!is_whole);
        let none = gathered(&[(late, End::Late)]).unwrap_err().to_string();
        assert_eq!(none, "the kernel's list has no end within 2 seconds");
    }
}
