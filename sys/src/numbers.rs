//! Numbers of a device node.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result, error};
use crate::text::digits;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Numbers {
    pub major: u32,
    pub minor: u32,
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl FromStr for Numbers {
    type Err = Error;

    /// Parses the format of the kernel's `print_dev_t` (include/linux/kdev_t.h).
    fn from_str(text: &str) -> Result<Self> {
        let numbers = text.split_once(':').and_then(|(major, minor)| {
            let (major, minor) = (digits(major)?, digits(minor)?);
            Some(Numbers { major, minor })
        });
        numbers.ok_or_else(|| error!("not MAJOR:MINOR"))
    }
}
