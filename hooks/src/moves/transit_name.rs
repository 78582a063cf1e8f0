//! The name of a device on its way, which nobody has or can foresee.

/// What begins it, and how many random bytes follow, as digits.
const PREFIX: &str = "ctk";
const RANDOM: usize = 6;

pub(super) fn transit_name() -> String {
    let mut bytes = [0; RANDOM];
    // Without random bytes the name may be taken, and the move fails and is tried again.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    digits.fold(PREFIX.to_owned(), |name, pair| name + &pair)
}

/// Whether a name is one that [`transit_name`] makes.
pub(super) fn is_transit_name(name: &[u8]) -> bool {
    let digits = name.strip_prefix(PREFIX.as_bytes());
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    digits.is_some_and(|digits| digits.len() == 2 * RANDOM && digits.iter().all(is_digit))
}
