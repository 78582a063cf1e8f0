//! A socket of one of netlink's protocols: one question, and its answer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[cfg(fuzzing)]
use onload_sys::netlink::message::HEADER;
use onload_sys::netlink::message::{
    DONE, DUMP, ERROR, INTERRUPTED, Message, REQUEST, message, messages,
};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, sendto,
    socket_with,
};

/// Bytes of an answer: the list of virtual functions is an attribute, whose length has 16 bits.
const ANSWER: usize = 128 * 1024;
/// The number of the only message that is under way on a socket.
const SEQUENCE: u32 = 1;
/// Bytes of all that the kernel has of a kind: a router has a million routes.
const DUMP_LIMIT: usize = 256 * 1024 * 1024;
/// How often what changes all the time is asked for.
const ATTEMPTS: u32 = 8;

pub(crate) struct Socket(OwnedFd);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    is_last: bool,
    is_torn: bool,
}

impl Socket {
    /// Without a protocol, one of rtnetlink(7).
    pub(crate) fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
        let socket = socket_with(family, SocketType::RAW, flags, protocol)?;
        // From here on nobody but the kernel can write into it (net/netlink/af_netlink.c, `netlink_getsockbyportid`): it
        // may be in a container's network namespace.
        connect(&socket, &SocketAddrNetlink::new(0, 0))?;
        Ok(Socket(socket))
    }

    /// The payload of the answer. The kernel has answered when sendto(2) returns.
    pub(crate) fn ask(&self, kind: u16, flags: u16, payload: &[u8]) -> io::Result<Vec<u8>> {
        self.send(kind, flags, payload)?;
        let mut bytes = vec![0; ANSWER];
        let answer = self.receive(&mut bytes)?;
        parse_answer(answer)
            .ok_or_else(cut)?
            .map(<[u8]>::to_vec)
            .map_err(io::Error::from)
    }

    /// Gives each message about all that there is of a kind to `add`, into a value that is begun anew where it
    /// changed meanwhile.
    pub(crate) fn dump<T: Default>(
        &self,
        kind: u16,
        payload: &[u8],
        add: &dyn Fn(&mut T, Message<'_>),
    ) -> io::Result<T> {
        let mut bytes = vec![0; ANSWER];
        for _ in 0..ATTEMPTS {
            self.send(kind, REQUEST | DUMP, payload)?;
            let (mut all, mut received, mut is_torn) = (T::default(), 0, false);
            loop {
                let part = self.receive(&mut bytes)?;
                received += part.len();
                let part = read_part(part, &mut |message| add(&mut all, message))?;
                is_torn |= part.is_torn;
                if part.is_last {
                    break;
                }
                if received > DUMP_LIMIT {
                    return Err(io::ErrorKind::FileTooLarge.into());
                }
            }
            if !is_torn {
                return Ok(all);
            }
        }
        Err(io::Error::other(
            "the kernel's answer changed each time while it was read",
        ))
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn send(&self, kind: u16, flags: u16, payload: &[u8]) -> io::Result<()> {
        let message = message(kind, flags, SEQUENCE, payload);
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.0, &message, SendFlags::empty(), &kernel)?;
        Ok(())
    }

    fn receive<'b>(&self, bytes: &'b mut [u8]) -> io::Result<&'b [u8]> {
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        let (_, length) = recv(&self.0, &mut *bytes, flags)?;
        bytes.get(..length).ok_or_else(cut)
    }
}

fn cut() -> io::Error {
    io::Error::other("the kernel's answer is cut short")
}

fn read_part(bytes: &[u8], add: &mut dyn FnMut(Message<'_>)) -> io::Result<Part> {
    let mut is_torn = false;
    for message in messages(bytes) {
        let message = message.ok_or_else(cut)?;
        is_torn |= message.flags & INTERRUPTED != 0;
        match message.kind {
            // A number of its own says what went wrong after all.
            DONE | ERROR => {
                message.result().ok_or_else(cut)??;
                let is_last = true;
                return Ok(Part { is_last, is_torn });
            }
            _ => add(message),
        }
    }
    let is_last = false;
    Ok(Part { is_last, is_torn })
}

fn parse_answer(bytes: &[u8]) -> Option<Result<&[u8], Errno>> {
    let message = messages(bytes).next()??;
    match message.kind {
        ERROR => Some(message.result()?.map(|()| &[][..])),
        _ => Some(Ok(message.payload)),
    }
}

#[cfg(fuzzing)]
pub(super) fn fuzz(bytes: &[u8]) {
    let _ = parse_answer(bytes);
    let mut seen = 0;
    let _ = read_part(bytes, &mut |message| seen += HEADER + message.payload.len());
    assert!(seen <= bytes.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW_LINK: u16 = 16;

    #[test]
    fn nobody_but_the_kernel_writes_into_a_socket() {
        // Everybody may send to a socket of this protocol.
        let protocol = Some(rustix::net::netlink::USERSOCK);
        let socket = Socket::open(protocol).unwrap();
        let name = rustix::net::getsockname(&socket.0).unwrap();
        let name = SocketAddrNetlink::try_from(name).unwrap();
        let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
        let stranger = socket_with(family, SocketType::RAW, flags, protocol).unwrap();
        let bytes = message(NEW_LINK, 0, SEQUENCE, b"abcd");
        let sent = sendto(&stranger, &bytes, SendFlags::empty(), &name);
        assert_eq!(sent, Err(Errno::CONNREFUSED));
    }

    fn part(messages: &[Vec<u8>]) -> (io::Result<(bool, bool)>, Vec<Vec<u8>>) {
        let mut seen = Vec::new();
        let part = read_part(&messages.concat(), &mut |message| {
            seen.push(message.payload.to_vec());
        });
        (part.map(|part| (part.is_last, part.is_torn)), seen)
    }

    #[test]
    fn an_answer_is_an_error_an_acknowledgement_or_a_message() {
        let error = |number: i32| message(ERROR, 0, 1, &number.to_ne_bytes());
        assert_eq!(parse_answer(&error(0)), Some(Ok(&[][..])));
        let busy = Errno::BUSY.raw_os_error();
        assert_eq!(parse_answer(&error(-busy)), Some(Err(Errno::BUSY)));
        for no_error in [i32::MIN, -4096, 1] {
            assert_eq!(parse_answer(&error(no_error)), None);
        }
        assert_eq!(
            parse_answer(&message(NEW_LINK, 0, 1, b"abcd")),
            Some(Ok(&b"abcd"[..]))
        );
        let whole = message(NEW_LINK, 0, 1, b"abcdefgh");
        for end in 0..whole.len() {
            assert_eq!(parse_answer(&whole[..end]), None);
        }
    }

    #[test]
    fn a_dump_ends_with_its_last_message_and_not_before() {
        let link = |text: &[u8]| message(NEW_LINK, 0, 1, text);
        let done = |flags, number: i32| message(DONE, flags, 1, &number.to_ne_bytes());
        let (found, seen) = part(&[link(b"abcd"), link(b"efgh")]);
        assert_eq!(found.unwrap(), (false, false));
        assert_eq!(seen, [b"abcd", b"efgh"]);
        let (found, seen) = part(&[link(b"abcd"), done(0, 0), link(b"none")]);
        assert_eq!((found.unwrap(), seen.len()), ((true, false), 1));
        let (found, _) = part(&[link(b"abcd"), done(INTERRUPTED, 0)]);
        assert_eq!(found.unwrap(), (true, true));
        let (found, _) = part(&[message(NEW_LINK, INTERRUPTED, 1, b"abcd"), link(b"efgh")]);
        assert_eq!(found.unwrap(), (false, true));
        let (found, _) = part(&[done(0, -1)]);
        assert_eq!(found.unwrap_err().raw_os_error(), Some(1));
        let (found, _) = part(&[message(ERROR, 0, 1, &(-95i32).to_ne_bytes())]);
        assert_eq!(found.unwrap_err().raw_os_error(), Some(95));
    }

    #[test]
    fn a_part_that_is_cut_short_is_an_error() {
        let whole = message(NEW_LINK, 0, 1, b"abcdefgh");
        for end in 1..whole.len() {
            assert!(part(&[whole[..end].to_vec()]).0.is_err(), "{end}");
        }
        assert!(part(&[vec![0; 16]]).0.is_err());
        assert!(part(&[vec![0xff; 16]]).0.is_err());
    }
}
