//! A socket of one of netlink's protocols: one question, and its answer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use onload_core::netlink::message::{ERROR, HEADER, message, u16_at, u32_at};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto,
    socket_with,
};

/// Bytes of an answer: the list of virtual functions is an attribute, whose length has 16 bits.
const ANSWER: usize = 128 * 1024;
/// The number of the only message that is under way on a socket.
const SEQUENCE: u32 = 1;

/// A socket.
pub(crate) struct Socket(OwnedFd);

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message<'b> {
    /// `nlmsg_type`.
    pub(crate) kind: u16,
    /// What follows the header.
    pub(crate) payload: &'b [u8],
}

impl Socket {
    /// A socket of that protocol; without one of rtnetlink(7).
    pub(crate) fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
        let socket = socket_with(family, SocketType::RAW, flags, protocol)?;
        Ok(Socket(socket))
    }

    /// Sends a message; the payload of the answer. The kernel has answered when sendto(2) returns.
    pub(crate) fn ask(&self, kind: u16, flags: u16, payload: &[u8]) -> io::Result<Vec<u8>> {
        self.send(kind, flags, payload)?;
        let mut bytes = vec![0; ANSWER];
        let answer = self.receive(&mut bytes)?;
        parse_answer(answer)
            .ok_or_else(cut)?
            .map(<[u8]>::to_vec)
            .map_err(io::Error::from)
    }

    /// The socket itself, for ioctl(2).
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

fn first(bytes: &[u8]) -> Option<Message<'_>> {
    let length = usize::try_from(u32_at(bytes, 0)?).ok()?;
    Some(Message {
        kind: u16_at(bytes, 4)?,
        payload: bytes.get(HEADER..length)?,
    })
}

/// The error in a payload: a negative number, and 0 for none.
fn errno(payload: &[u8]) -> Option<Option<Errno>> {
    let error = i32::from_ne_bytes(payload.get(..4)?.try_into().ok()?);
    Some(match error.checked_neg()? {
        0 => None,
        // `MAX_ERRNO` (include/linux/err.h).
        number @ 1..=4095 => Some(Errno::from_raw_os_error(number)),
        _ => return None,
    })
}

/// The payload of an answer, or the error in it; none where it is no answer.
fn parse_answer(bytes: &[u8]) -> Option<Result<&[u8], Errno>> {
    let message = first(bytes)?;
    if message.kind != ERROR {
        return Some(Ok(message.payload));
    }
    Some(match errno(message.payload)? {
        None => Ok(&[]),
        Some(errno) => Err(errno),
    })
}

/// Properties that hold for all bytes.
#[cfg(fuzzing)]
pub(super) fn fuzz(bytes: &[u8]) {
    let _ = parse_answer(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW_LINK: u16 = 16;

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
}
