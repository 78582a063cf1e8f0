//! Numbers of a device node.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result, error};
use crate::text::parse_digits;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

impl DeviceNumber {
    /// The first device of the driver with this name among the character devices of `/proc/devices`
    /// (`chrdev_show` in fs/char_dev.c of Linux).
    pub fn find_character_driver(devices: &str, name: &str) -> Option<DeviceNumber> {
        let mut listed = devices
            .lines()
            .map(str::trim)
            .skip_while(|line| *line != "Character devices:")
            .skip(1)
            .take_while(|line| !line.is_empty());
        listed.find_map(|line| {
            let (major, _) = line.split_once(' ').filter(|(_, driver)| *driver == name)?;
            let major = parse_digits(major)?;
            Some(DeviceNumber { major, minor: 0 })
        })
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl FromStr for DeviceNumber {
    type Err = Error;

    /// Parses the format of the kernel's `print_dev_t` (include/linux/kdev_t.h).
    fn from_str(text: &str) -> Result<Self> {
        let numbers = text.split_once(':').and_then(|(major, minor)| {
            let (major, minor) = (parse_digits(major)?, parse_digits(minor)?);
            Some(DeviceNumber { major, minor })
        });
        numbers.ok_or_else(|| error!("not MAJOR:MINOR"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_number_of_a_driver_is_that_of_its_character_device() {
        let devices = "Character devices:\n  1 mem\n 10 misc\n510 gdrdrv\n511 gdrdrv2\n\n\
                       Block devices:\n259 blkext\n254 virtblk\n  7 loop\n";
        let find = |name| {
            DeviceNumber::find_character_driver(devices, name).map(|found| found.to_string())
        };
        assert_eq!(find("gdrdrv").as_deref(), Some("510:0"));
        assert_eq!(find("mem").as_deref(), Some("1:0"));
        for other in ["loop", "gdr", "devices:", "", "x 510"] {
            assert_eq!(find(other), None, "{other}");
        }
    }

    #[test]
    fn a_list_that_is_none_has_no_driver() {
        for text in
            ["", "510 gdrdrv", "Character devices:\n\n510 gdrdrv", "Character devices:\nx gdrdrv"]
        {
            assert_eq!(DeviceNumber::find_character_driver(text, "gdrdrv"), None, "{text}");
        }
    }
}
