//! The token of a reservation or ticket.

use std::io;
use std::str::FromStr;

use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

use onload_sys::error::{Error, Result, bail, read_as_text};
use onload_sys::text::is_lower_hex;

read_as_text!(Token);

/// 128 random bits as lower-case hexadecimal digits. It does not implement `Display`, so that no
/// message shows it by accident.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Token(String);

impl Token {
    /// Returns a new token that cannot be guessed.
    pub fn new() -> io::Result<Token> {
        let mut bytes = [0; 16];
        if getrandom(&mut bytes, GetRandomFlags::empty())? != bytes.len() {
            return Err(io::Error::other("the kernel gave too few random bytes"));
        }
        Ok(bytes.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<[u8; 16]> for Token {
    fn from(bytes: [u8; 16]) -> Self {
        Token(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

impl FromStr for Token {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.len() == 32 && is_lower_hex(text) {
            return Ok(Token(text.to_owned()));
        }
        bail!("a token has 32 lower-case hexadecimal digits")
    }
}

impl From<Token> for String {
    fn from(token: Token) -> String {
        token.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_32_lower_case_digits_only() {
        assert_eq!(Token::from([0x0f; 16]).as_str(), "0f".repeat(16));
        for bad in ["", "0f", &"0F".repeat(16), &"0g".repeat(16), &"0".repeat(33)] {
            assert!(bad.parse::<Token>().is_err(), "{bad}");
        }
    }
}
