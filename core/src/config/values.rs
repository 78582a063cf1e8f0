//! Types for values of the configuration file.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::class::Class;
use onload_sys::error::{Error, Result, bail, bounded_number, shown_as_serialized};
use onload_sys::text::Quoted;

/// A number of containers, from 1 to [`Share::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[cfg_attr(feature = "schema", derive(serde::Serialize))]
#[serde(try_from = "i64")]
pub struct Share(u32);

impl Share {
    /// Greater than the number of containers that any host runs.
    pub const MAX: u32 = 65_536;
}

bounded_number!(Share, 1..=Share::MAX, "containers");

/// How libonload.so gets into the processes of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum Preload {
    /// `LD_PRELOAD` in the environment.
    #[default]
    Env,
    /// A one-line file mounted at `/etc/ld.so.preload`.
    File,
    Off,
}

/// The policy for containers that request Onload and whose user 0 is the host's user 0, which can
/// map every Onload stack of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum RootWithOnload {
    Allow,
    #[default]
    Warn,
    Refuse,
}

/// The policy for containers whose libc cannot load libonload.so, or whose RDMA devices have no
/// compatible provider library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum OnIncompatible {
    /// The container does not start.
    #[default]
    Fail,
    /// The container starts without the library.
    Skip,
}

/// The provider libraries that programs of a container with RDMA devices load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum RdmaLibraries {
    /// The image's libraries if they are compatible, else the host's.
    #[default]
    Auto,
    /// The image's libraries, which are examined.
    Image,
    /// The image's libraries, which are not examined.
    Off,
}

impl FromStr for RdmaLibraries {
    type Err = Error;

    /// Parses the value of a hook argument. The hook has no argument for [`RdmaLibraries::Off`].
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(RdmaLibraries::Auto),
            "image" => Ok(RdmaLibraries::Image),
            _ => bail!("{} expected auto, image or off", Quoted(text)),
        }
    }
}

shown_as_serialized!(RdmaLibraries);

/// A value of RLIMIT_MEMLOCK (getrlimit(2)), in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memlock {
    /// `RLIM_INFINITY`.
    #[default]
    Unlimited,
    Bytes(u64),
}

impl Memlock {
    /// Returns the bytes, or `None` for no limit.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Memlock::Unlimited => None,
            Memlock::Bytes(bytes) => Some(bytes),
        }
    }

    /// Parses a limit from the configuration: `unlimited`, or a number of bytes with an optional
    /// suffix `K`, `M`, `G` or `T`, or `Ki` and so on, for powers of 1024.
    pub fn from_setting(text: &str) -> Result<Memlock> {
        if text == "unlimited" {
            return Ok(Memlock::Unlimited);
        }
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let shift = match unit {
            "" => Some(0),
            "K" | "Ki" => Some(10),
            "M" | "Mi" => Some(20),
            "G" | "Gi" => Some(30),
            "T" | "Ti" => Some(40),
            _ => None,
        };
        let Some(shift) = shift.filter(|_| !number.is_empty()) else {
            bail!(
                "expected \"unlimited\" or a number of bytes, which may end in K, M, G or T (powers of 1024) as \"8G\" does, found {text:?}"
            );
        };
        match number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift)) {
            Some(bytes) => Ok(Memlock::Bytes(bytes)),
            None => bail!("{text:?} exceeds 64 bits; use \"unlimited\""),
        }
    }
}

impl<'de> Deserialize<'de> for Memlock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MemlockVisitor;
        impl Visitor<'_> for MemlockVisitor {
            type Value = Memlock;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an integer")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Memlock, E> {
                Memlock::from_setting(text).map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Memlock, E> {
                Ok(Memlock::Bytes(bytes))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Memlock, E> {
                match u64::try_from(bytes) {
                    Ok(bytes) => Ok(Memlock::Bytes(bytes)),
                    Err(_) => self.visit_str(&bytes.to_string()),
                }
            }
        }
        deserializer.deserialize_any(MemlockVisitor)
    }
}

impl FromStr for Memlock {
    type Err = Error;

    /// Parses a limit from a hook argument: `unlimited`, or a number of bytes.
    fn from_str(text: &str) -> Result<Self> {
        if text == "unlimited" {
            return Ok(Memlock::Unlimited);
        }
        match text.parse() {
            // u64::from_str accepts a leading plus sign.
            Ok(bytes) if !text.starts_with('+') => Ok(Memlock::Bytes(bytes)),
            _ => bail!("memlock is \"unlimited\" or a number of bytes, not {text:?}"),
        }
    }
}

impl fmt::Display for Memlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Memlock::Unlimited => f.write_str("unlimited"),
            Memlock::Bytes(bytes) => write!(f, "{bytes}"),
        }
    }
}

/// Parses the classes that `cdi generate` writes: `all`, or their names.
pub fn parse_kinds(words: &[String]) -> Result<Vec<Class>> {
    if words.is_empty() {
        bail!("the list of kinds is empty; use \"all\" or list classes");
    }
    Class::parse_list(words, &Class::ALL, Ok)
}

pub(super) fn read_kinds<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Class>, D::Error> {
    parse_kinds(&Vec::deserialize(deserializer)?).map_err(de::Error::custom)
}
