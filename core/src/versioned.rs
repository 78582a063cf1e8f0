//! Files of ours that say their version: a program of an earlier version may find one of a later.

use onload_sys::error::{Context as _, Result, bail};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

/// Reads a file that says its version, which may be newer than `known`. One that is cut short or damaged is `no`.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8], supported: u32, problem: &str) -> Result<T> {
    #[derive(Deserialize)]
    struct VersionOnly {
        version: u32,
    }
    let VersionOnly { version } = serde_json::from_slice(bytes).context(problem)?;
    if version > supported {
        bail!("it is of version {version}, and this program understands {supported}");
    }
    serde_json::from_slice(bytes).context(problem)
}

/// The line of a file that says its version before what it holds.
pub fn to_bytes(version: u32, content: impl Serialize) -> serde_json::Result<Vec<u8>> {
    #[derive(Serialize)]
    struct VersionedFile<T> {
        version: u32,
        #[serde(flatten)]
        content: T,
    }
    let mut bytes = serde_json::to_vec(&VersionedFile { version, content })?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// A value that this version understands, or not.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum LenientValue<T> {
    Yes(T),
    No(IgnoredAny),
}

impl<T> LenientValue<T> {
    pub(crate) fn value(self) -> Option<T> {
        match self {
            LenientValue::Yes(value) => Some(value),
            LenientValue::No(IgnoredAny) => None,
        }
    }
}
