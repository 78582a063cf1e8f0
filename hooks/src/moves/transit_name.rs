//! The temporary name of a device during a move: random, so that no other device has it.

use onload_sys::text::is_lower_hex;

/// Prefix of transit names, and the number of random bytes that follow in hexadecimal.
const PREFIX: &str = "ctk";
const RANDOM: usize = 6;

pub(super) fn transit_name() -> String {
    let mut bytes = [0; RANDOM];
    // Without random bytes the name may be taken. The move then fails and is repeated.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    bytes
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .fold(PREFIX.to_owned(), |name, pair| name + &pair)
}

/// Returns whether a name is a transit name.
pub(super) fn is_transit_name(name: &[u8]) -> bool {
    let digits = name.strip_prefix(PREFIX.as_bytes());
    digits.is_some_and(|digits| digits.len() == 2 * RANDOM && is_lower_hex(digits))
}
