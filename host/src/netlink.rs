//! What messages of rtnetlink(7) are made of. Numbers are of the host's byte order.

/// The upper two bits of an attribute's type are flags (include/uapi/linux/netlink.h).
const TYPE_MASK: u16 = 0x3fff;

/// A length with what fills it up to four bytes.
pub(crate) fn padded(length: usize) -> usize {
    length.next_multiple_of(4)
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The attributes in a payload (`struct nlattr`); those behind one that is cut short are left out.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & TYPE_MASK;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(padded(length)..).unwrap_or_default();
        Some((kind, value))
    })
}
