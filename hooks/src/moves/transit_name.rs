//! The temporary name of a device during a move: random, so that no other device has it.

use onload_core::token::Token;
use onload_sys::text::is_lower_hex;

/// Prefix of transit names, and the number of random hexadecimal digits that follow.
const PREFIX: &str = "ctk";
const DIGITS: usize = 12;

pub(super) fn transit_name() -> String {
    // Without random bytes the name may be taken. The move then fails and is repeated.
    let token = Token::new().unwrap_or_else(|_| Token::from([0; 16]));
    format!("{PREFIX}{}", &token.as_str()[..DIGITS])
}

/// Returns whether a name is a transit name.
pub(super) fn is_transit_name(name: &[u8]) -> bool {
    let digits = name.strip_prefix(PREFIX.as_bytes());
    digits.is_some_and(|digits| digits.len() == DIGITS && is_lower_hex(digits))
}
