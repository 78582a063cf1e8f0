//! References to devices, and to members of pools, in requests.

use std::fmt;
use std::str::FromStr;

use onload_cdi::DeviceName;

use onload_sys::error::{Error, Result, bail};
use onload_sys::text::parse_decimal;

/// Maximum number of devices that a container may request.
pub const MAX_NAMES: u32 = 128;

/// A device or members of a pool in a request: `NAME`, `POOL` or `POOL*N`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRef {
    pub name: String,
    /// The number of members of the pool, from 1 to [`MAX_NAMES`], if it was specified.
    pub count: Option<u32>,
}

impl fmt::Display for DeviceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.count.map_or(Ok(()), |count| write!(f, "*{count}"))
    }
}

impl FromStr for DeviceRef {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match parse_numbered(text, '*') {
            Some((name, count)) => Ok(DeviceRef { name: name.to_string(), count }),
            None => bail!(
                "expected the name of a device or pool, or POOL*N with N from 1 to {MAX_NAMES}"
            ),
        }
    }
}

/// Parses a name, optionally followed by the separator and a number from 1 to [`MAX_NAMES`].
pub(crate) fn parse_numbered(text: &str, separator: char) -> Option<(DeviceName, Option<u32>)> {
    let Some((name, number)) = text.split_once(separator) else {
        return Some((DeviceName::try_from(text).ok()?, None));
    };
    let number = parse_decimal(number).filter(|number| (1..=MAX_NAMES).contains(number))?;
    Some((DeviceName::try_from(name).ok()?, Some(number)))
}
