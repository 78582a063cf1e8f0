//! The ID of a device that containers lease: its class and its name in that class.

use std::fmt;
use std::str::FromStr;

use onload_cdi::DeviceName;
use serde::{Deserialize, Serialize};

use crate::class::Class;
use onload_sys::error::{Error, Result, error, read_as_text, written_as_text};
use onload_sys::text::Quoted;

read_as_text!(DeviceId);
written_as_text!(DeviceId);

/// A device, written as `CLASS:NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DeviceId {
    pub class: Class,
    pub name: DeviceName,
}

impl DeviceId {
    /// Parses a class and a name that are separated by the first `separator`.
    pub fn split(text: &str, separator: char) -> Option<DeviceId> {
        let (class, name) = text.split_once(separator)?;
        Some(DeviceId { class: Class::from_name(class)?, name: DeviceName::try_from(name).ok()? })
    }
}

impl FromStr for DeviceId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        DeviceId::split(text, ':').ok_or_else(|| error!("{} is not CLASS:NAME", Quoted(text)))
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.class, self.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_a_class_and_a_name() {
        let vfio: DeviceId = "vfio:0000:81:10.0".parse().unwrap();
        assert_eq!((vfio.class, vfio.name.as_str()), (Class::Vfio, "0000:81:10.0"));
        assert_eq!(vfio.to_string(), "vfio:0000:81:10.0");
        for bad in ["vfio", "vfio:", ":a", "disk:a", "vfio:a/b", "vfio:a=b", "vfio:a#1"] {
            assert!(bad.parse::<DeviceId>().is_err(), "{bad}");
        }
    }
}
