//! Encoding of netlink messages (include/uapi/linux/netlink.h). Numbers are in host byte order.

use std::io;

use rustix::io::Errno;

const HEADER: usize = 16; // struct nlmsghdr
const ATTRIBUTE_HEADER: usize = 4; // struct nlattr
/// The upper two bits of an attribute's type are flags.
const TYPE_MASK: u16 = 0x3fff;
const NESTED: u16 = 0x8000; // NLA_F_NESTED
const ERROR: u16 = 2; // NLMSG_ERROR
const DONE: u16 = 3; // NLMSG_DONE
/// `NLM_F_DUMP_INTR`: the list changed while the kernel sent it.
const INTERRUPTED: u16 = 0x10;
pub const REQUEST: u16 = 0x1; // NLM_F_REQUEST
pub const ACKNOWLEDGE: u16 = 0x4; // NLM_F_ACK
pub const DUMP: u16 = 0x300; // NLM_F_ROOT | NLM_F_MATCH: all there are
pub const EXCLUSIVE: u16 = 0x200; // NLM_F_EXCL
pub const CREATE: u16 = 0x400; // NLM_F_CREATE

pub fn encode_message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + payload.len()).unwrap_or(u32::MAX);
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0u32.to_ne_bytes());
    bytes.extend(payload);
    bytes
}

/// Returns an attribute with its header, padded to four bytes.
pub fn encode_attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(ATTRIBUTE_HEADER + payload.len()).unwrap_or(u16::MAX);
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(payload);
    bytes.resize(align(bytes.len()), 0);
    bytes
}

pub fn encode_nested(kind: u16, payload: &[u8]) -> Vec<u8> {
    encode_attribute(kind | NESTED, payload)
}

/// Returns an attribute with a null-terminated string.
pub fn encode_text(kind: u16, text: &[u8]) -> Vec<u8> {
    encode_attribute(kind, &[text, &[0]].concat())
}

/// Rounds a length up to four bytes.
pub fn align(length: usize) -> usize {
    length.next_multiple_of(4)
}

pub fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

pub fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

pub fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// Returns the bytes before the first null byte.
pub fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Iterates over the attributes in a payload, up to the first truncated one.
pub fn parse_attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & TYPE_MASK;
        let value = bytes.get(ATTRIBUTE_HEADER..length)?;
        bytes = bytes.get(align(length)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Returns the value of the first attribute of a type.
pub fn find_attribute(payload: &[u8], wanted_kind: u16) -> Option<&[u8]> {
    let mut all = parse_attributes(payload);
    Some(all.find(|(kind, _)| *kind == wanted_kind)?.1)
}

#[derive(Clone, Copy)]
pub struct NetlinkMessage<'a> {
    /// `nlmsg_type`.
    pub kind: u16,
    /// `nlmsg_flags`.
    flags: u16,
    /// `nlmsg_seq`, that of the request.
    sequence: u32,
    pub payload: &'a [u8],
}

impl NetlinkMessage<'_> {
    /// Returns the result in an `NLMSG_ERROR` or `NLMSG_DONE` message: the end of a list may carry an error too.
    /// Returns `None` for values that Linux does not send.
    fn result(&self) -> Option<Result<(), Errno>> {
        // The negative error number, or 0 for success.
        let error = u32_at(self.payload, 0)?.cast_signed();
        match error.checked_neg()? {
            0 => Some(Ok(())),
            // `MAX_ERRNO` (include/linux/err.h).
            number @ 1..=4095 => Some(Err(Errno::from_raw_os_error(number))),
            _ => None,
        }
    }
}

/// Iterates over the messages of a datagram. A truncated message gives `None` and ends the iteration.
pub fn parse_messages(mut bytes: &[u8]) -> impl Iterator<Item = Option<NetlinkMessage<'_>>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let first = parse_first(bytes);
        let length = first.map_or(bytes.len(), |message| HEADER + message.payload.len());
        bytes = bytes.get(align(length)..).unwrap_or_default();
        Some(first)
    })
}

fn parse_first(bytes: &[u8]) -> Option<NetlinkMessage<'_>> {
    let length = usize::try_from(u32_at(bytes, 0)?).ok()?;
    Some(NetlinkMessage {
        kind: u16_at(bytes, 4)?,
        flags: u16_at(bytes, 6)?,
        sequence: u32_at(bytes, 8)?,
        payload: bytes.get(HEADER..length)?,
    })
}

/// The state of an answer after one of its datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyProgress {
    pub is_complete: bool,
    /// The list changed while the kernel sent it. The kernel marks only the first message of a datagram
    /// (`nl_dump_check_consistent` in include/net/netlink.h).
    pub has_changed: bool,
}

/// Calls `visit` with the payload of each message in a datagram that answers the request `sequence`. Fails with the
/// kernel's error, or if a message is truncated.
pub fn read_datagram(
    bytes: &[u8],
    sequence: u32,
    visit: &mut dyn FnMut(&[u8]),
) -> io::Result<ReplyProgress> {
    let mut progress = ReplyProgress::default();
    for message in parse_messages(bytes) {
        let message = message.ok_or_else(truncated_error)?;
        if message.sequence != sequence {
            continue;
        }
        progress.has_changed |= message.flags & INTERRUPTED != 0;
        if matches!(message.kind, ERROR | DONE) {
            message.result().ok_or_else(truncated_error)??;
            progress.is_complete = true;
            break;
        }
        visit(message.payload);
    }
    Ok(progress)
}

pub(super) fn truncated_error() -> io::Error {
    io::Error::other("the kernel's answer is cut short")
}

/// Properties that hold for all bytes.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    let values: usize = parse_attributes(bytes).map(|(_, value)| value.len() + 4).sum();
    assert!(values <= bytes.len());
    let mut seen = 0;
    let _ = read_datagram(bytes, 1, &mut |payload| seen += HEADER + payload.len());
    assert!(seen <= bytes.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGED: ReplyProgress = ReplyProgress { is_complete: false, has_changed: true };

    fn read(messages: &[Vec<u8>]) -> (io::Result<ReplyProgress>, Vec<Vec<u8>>) {
        let mut parts = Vec::new();
        let progress = read_datagram(&messages.concat(), 7, &mut |part| parts.push(part.to_vec()));
        (progress, parts)
    }

    fn part(flags: u16, payload: &[u8]) -> Vec<u8> {
        encode_message(16, flags, 7, payload)
    }

    fn end(kind: u16, flags: u16, number: i32) -> Vec<u8> {
        encode_message(kind, flags, 7, &number.to_ne_bytes())
    }

    #[test]
    fn an_answer_is_a_list_with_an_end_an_acknowledgement_or_an_error() {
        let complete = ReplyProgress { is_complete: true, has_changed: false };
        let (progress, parts) = read(&[end(ERROR, 0, 0)]);
        assert_eq!((progress.unwrap(), parts.len()), (complete, 0));
        let list = [part(2, b"abcd"), part(2, b"efgh"), end(DONE, 2, 0)];
        let (progress, parts) = read(&list);
        assert_eq!(progress.unwrap(), complete);
        assert_eq!(parts, [b"abcd", b"efgh"]);
        let (progress, parts) = read(&list[..2]);
        assert_eq!((progress.unwrap(), parts.len()), (ReplyProgress::default(), 2));
        let (progress, parts) = read(&[end(DONE, 2, 0), part(2, b"none")]);
        assert_eq!((progress.unwrap(), parts.len()), (complete, 0));
        for kind in [ERROR, DONE] {
            let (progress, _) = read(&[end(kind, 0, -Errno::BUSY.raw_os_error())]);
            let error = Errno::from_io_error(&progress.unwrap_err());
            assert_eq!(error, Some(Errno::BUSY));
            for no_error in [i32::MIN, -4096, 1] {
                let error = read(&[end(kind, 0, no_error)]).0.unwrap_err();
                assert_eq!(error.to_string(), "the kernel's answer is cut short");
            }
        }
    }

    #[test]
    fn a_list_that_changed_says_so_on_a_part_which_counts_all_the_same() {
        let (progress, parts) = read(&[part(INTERRUPTED, b"abcd"), part(0, b"efgh")]);
        assert_eq!((progress.unwrap(), parts.len()), (CHANGED, 2));
    }

    #[test]
    fn a_list_that_changed_before_its_end_has_one_all_the_same() {
        let (progress, _) = read(&[part(0, b"abcd"), end(DONE, INTERRUPTED, 0)]);
        let is_complete = true;
        let wanted = ReplyProgress { is_complete, ..CHANGED };
        assert_eq!(progress.unwrap(), wanted);
    }

    #[test]
    fn an_answer_to_another_request_is_left_out() {
        let of_other = encode_message(ERROR, INTERRUPTED, 6, &(-1_i32).to_ne_bytes());
        let (progress, parts) = read(&[of_other, part(0, b"efgh")]);
        assert_eq!(progress.unwrap(), ReplyProgress::default());
        assert_eq!(parts, [b"efgh"]);
    }

    #[test]
    fn what_is_cut_short_is_an_error_and_an_attribute_that_is_left_out() {
        let whole = part(0, &encode_attribute(1, b"abcdef"));
        for end in 1..whole.len() {
            let (progress, parts) = read(&[whole[..end].to_vec()]);
            assert!(progress.is_err() && parts.is_empty(), "{end}");
        }
        assert!(read(&[vec![0; 16]]).0.is_err());
        assert!(read(&[vec![0xff; 16]]).0.is_err());
        for bytes in [&[0, 0, 1, 0][..], &[3, 0, 1, 0], &[255, 255, 1, 0]] {
            assert_eq!(parse_attributes(bytes).count(), 0);
        }
        let two = [encode_nested(1, &encode_text(2, b"ab")), encode_attribute(3, &[1])].concat();
        let found: Vec<_> = parse_attributes(&two).collect();
        assert_eq!(found[1], (3, &[1][..]));
        assert_eq!(parse_attributes(found[0].1).next(), Some((2, &b"ab\0"[..])));
    }
}
