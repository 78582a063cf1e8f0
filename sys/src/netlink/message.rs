//! What messages of netlink are made of (include/uapi/linux/netlink.h). Numbers are of the host's byte order.

use rustix::io::Errno;

pub const HEADER: usize = 16; // struct nlmsghdr
const ATTRIBUTE_HEADER: usize = 4; // struct nlattr
/// The upper two bits of an attribute's type are flags.
const TYPE_MASK: u16 = 0x3fff;
const NESTED: u16 = 0x8000; // NLA_F_NESTED
pub const ERROR: u16 = 2; // NLMSG_ERROR
pub const DONE: u16 = 3; // NLMSG_DONE
/// `NLM_F_DUMP_INTR`: the list changed while it was read.
pub const INTERRUPTED: u16 = 0x10;
pub const REQUEST: u16 = 0x1; // NLM_F_REQUEST
pub const ACKNOWLEDGE: u16 = 0x4; // NLM_F_ACK
pub const DUMP: u16 = 0x300; // NLM_F_ROOT | NLM_F_MATCH: all there are
pub const EXCLUSIVE: u16 = 0x200; // NLM_F_EXCL
pub const CREATE: u16 = 0x400; // NLM_F_CREATE

pub fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + payload.len()).unwrap_or(u32::MAX);
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0u32.to_ne_bytes());
    bytes.extend(payload);
    bytes
}

/// An attribute with its header, filled up to four bytes.
pub fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(ATTRIBUTE_HEADER + payload.len()).unwrap_or(u16::MAX);
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(payload);
    bytes.resize(padded(bytes.len()), 0);
    bytes
}

pub fn nest(kind: u16, payload: &[u8]) -> Vec<u8> {
    attribute(kind | NESTED, payload)
}

/// A text with the null byte that ends it.
pub fn text(kind: u16, text: &[u8]) -> Vec<u8> {
    attribute(kind, &[text, &[0]].concat())
}

/// A length with what fills it up to four bytes.
pub fn padded(length: usize) -> usize {
    length.next_multiple_of(4)
}

pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// What stands before the null byte.
pub fn until_null(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// The attributes in a payload; those behind one that is cut short are left out.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & TYPE_MASK;
        let value = bytes.get(ATTRIBUTE_HEADER..length)?;
        bytes = bytes.get(padded(length)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of the first attribute of a type.
pub(super) fn value(payload: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut all = attributes(payload);
    Some(all.find(|(kind, _)| *kind == wanted)?.1)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// `nlmsg_type`.
    pub kind: u16,
    /// `nlmsg_flags`.
    pub flags: u16,
    /// `nlmsg_seq`, that of the request.
    pub sequence: u32,
    pub payload: &'a [u8],
}

impl Message<'_> {
    /// What an `NLMSG_ERROR` or `NLMSG_DONE` says: the end of a list may carry an error too. `None` where it says
    /// nothing that Linux does.
    pub fn result(&self) -> Option<Result<(), Errno>> {
        // A negative number, and 0 for none.
        let error = u32_at(self.payload, 0)?.cast_signed();
        match error.checked_neg()? {
            0 => Some(Ok(())),
            // `MAX_ERRNO` (include/linux/err.h).
            number @ 1..=4095 => Some(Err(Errno::from_raw_os_error(number))),
            _ => None,
        }
    }
}

/// The messages of a datagram; `None` for one that is cut short, behind which there is none.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Option<Message<'_>>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let found = first(bytes);
        let length = found.map_or(bytes.len(), |message| HEADER + message.payload.len());
        bytes = bytes.get(padded(length)..).unwrap_or_default();
        Some(found)
    })
}

fn first(bytes: &[u8]) -> Option<Message<'_>> {
    let length = usize::try_from(u32_at(bytes, 0)?).ok()?;
    Some(Message {
        kind: u16_at(bytes, 4)?,
        flags: u16_at(bytes, 6)?,
        sequence: u32_at(bytes, 8)?,
        payload: bytes.get(HEADER..length)?,
    })
}

/// One message of an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// What was asked for, or a part of it.
    Part(&'a [u8]),
    End,
    Changed,
    Failed(Errno),
}

/// The messages of a datagram that answer a request. What answers another is left out; none stands behind one that
/// is cut short.
pub fn answers(bytes: &[u8], sequence: u32) -> impl Iterator<Item = Answer<'_>> {
    let whole = messages(bytes).map_while(|message| message);
    let ours = whole.filter(move |message| message.sequence == sequence);
    ours.map_while(said).flatten().flatten()
}

/// What one message says: that the list changed, beside a part or its end. The kernel marks the first message of a
/// datagram, which is as true as the others (`nl_dump_check_consistent` in include/net/netlink.h).
fn said(message: Message<'_>) -> Option<[Option<Answer<'_>>; 2]> {
    let changed = (message.flags & INTERRUPTED != 0).then_some(Answer::Changed);
    let said = match message.kind {
        ERROR | DONE => Some(match message.result()? {
            Ok(()) => Answer::End,
            Err(error) => Answer::Failed(error),
        }),
        _ => Some(Answer::Part(message.payload)),
    };
    Some([changed, said])
}

/// Properties that hold for all bytes.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    let values: usize = attributes(bytes).map(|(_, value)| value.len() + 4).sum();
    assert!(values <= bytes.len());
    // A part or an end may say beside itself that the list changed.
    let said = answers(bytes, 1).filter(|answer| *answer != Answer::Changed);
    assert!(said.count() <= bytes.len() / HEADER);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Vec<Answer<'_>> {
        answers(bytes, 7).collect()
    }

    #[test]
    fn an_answer_is_a_list_with_an_end_an_acknowledgement_or_an_error() {
        let error = |number: i32| message(ERROR, 0, 7, &number.to_ne_bytes());
        assert_eq!(read(&error(0)), [Answer::End]);
        let busy = Errno::BUSY.raw_os_error();
        assert_eq!(read(&error(-busy)), [Answer::Failed(Errno::BUSY)]);
        for no_error in [i32::MIN, -4096, 1] {
            assert_eq!(read(&error(no_error)), []);
        }
        let list = [
            message(16, 2, 7, b"abcd"),
            message(16, 2, 7, b"efgh"),
            message(DONE, 2, 7, &[0; 4]),
        ];
        let (one, two) = (Answer::Part(b"abcd"), Answer::Part(b"efgh"));
        assert_eq!(read(&list.concat()), [one, two, Answer::End]);
    }

    #[test]
    fn a_list_that_changed_says_so_on_a_part_which_counts_all_the_same() {
        let part = message(16, INTERRUPTED, 7, b"abcd");
        assert_eq!(read(&part), [Answer::Changed, Answer::Part(b"abcd")]);
    }

    #[test]
    fn a_list_that_changed_before_its_end_has_one_all_the_same() {
        let end = message(DONE, INTERRUPTED, 7, &[0; 4]);
        assert_eq!(read(&end), [Answer::Changed, Answer::End]);
    }

    #[test]
    fn an_answer_to_another_request_is_left_out() {
        let both = [message(16, 0, 6, b"abcd"), message(16, 0, 7, b"efgh")].concat();
        assert_eq!(read(&both), [Answer::Part(b"efgh")]);
    }

    #[test]
    fn what_is_cut_short_is_left_out() {
        let whole = message(16, 0, 7, &attribute(1, b"abcdef"));
        for end in 0..whole.len() {
            assert_eq!(read(&whole[..end]), [], "{end}");
        }
        for bytes in [&[0, 0, 1, 0][..], &[3, 0, 1, 0], &[255, 255, 1, 0]] {
            assert_eq!(attributes(bytes).count(), 0);
        }
        let two = [nest(1, &text(2, b"ab")), attribute(3, &[1])].concat();
        let found: Vec<_> = attributes(&two).collect();
        assert_eq!(found[1], (3, &[1][..]));
        assert_eq!(attributes(found[0].1).next(), Some((2, &b"ab\0"[..])));
    }
}
