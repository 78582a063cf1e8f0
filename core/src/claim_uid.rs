//! The UID of a Kubernetes ResourceClaim.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use onload_sys::error::{Error, Result, bail, read_as_text, shown_as_text, written_as_text};
use onload_sys::text::Quoted;

read_as_text!(ClaimUid);
shown_as_text!(ClaimUid);
written_as_text!(ClaimUid);

/// The UID of a ResourceClaim: at most 63 letters, digits and `-` (Kubernetes generates UUIDs,
/// RFC 9562), so that it is safe in a file name and on a command line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClaimUid(String);

impl FromStr for ClaimUid {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_uid = (1..=63).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !text.starts_with('-')
            && !text.ends_with('-');
        if is_uid {
            return Ok(ClaimUid(text.to_owned()));
        }
        bail!(
            "{} is not a claim uid: it may have at most 63 letters, digits and \"-\", which do not \
             begin or end it",
            Quoted(text)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_letters_digits_and_inner_hyphens_only() {
        let uid = "0d7e3c1a-5c0f-4c57-9a4e-2b1f8f0f8f11";
        assert_eq!(uid.parse::<ClaimUid>().unwrap().to_string(), uid);
        for bad in ["", "-a", "a-", "a/b", "../a", "a b", "a\n", "é", &"a".repeat(64)] {
            assert!(bad.parse::<ClaimUid>().is_err(), "{bad}");
        }
    }
}
