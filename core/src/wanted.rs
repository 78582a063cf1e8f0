//! A device, or members of a pool, as people name them.

use crate::error::{Error, Result, bail};
use std::fmt;
use std::str::FromStr;

/// Devices that one container may request.
pub const MAX_NAMES: u32 = 128;

/// A device, or members of a pool, as an annotation names them: `NAME`, `POOL` or `POOL*N`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The name of the device or pool.
    pub name: String,
    /// How many members of the pool, if that is said; from 1 to [`MAX_NAMES`].
    pub count: Option<u32>,
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.count.map_or(Ok(()), |count| write!(f, "*{count}"))
    }
}

impl FromStr for Wanted {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, count) = match text.split_once('*') {
            None => (text, Some(None)),
            Some((name, count)) => {
                let count = number(count).filter(|count| (1..=MAX_NAMES).contains(count));
                (name, count.map(Some))
            }
        };
        match (onload_cdi::DeviceName::try_from(name), count) {
            (Ok(_), Some(count)) => Ok(Wanted {
                name: name.to_owned(),
                count,
            }),
            _ => bail!(
                "expected the name of a device or pool, or POOL*N with N from 1 to {MAX_NAMES}"
            ),
        }
    }
}

/// A number as it is written, without a sign or leading zeros.
pub(crate) fn number(text: &str) -> Option<u32> {
    let number: u32 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}
