//! Files with a version number, since an older program may find a file that a newer one wrote.

use onload_sys::error::{Context as _, Result, bail};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

/// Parses a file. Fails if its version is higher than `supported`. `problem` is the context of the
/// error for a damaged file.
pub fn parse<T: DeserializeOwned>(bytes: &[u8], supported: u32, problem: &str) -> Result<T> {
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

/// Serializes the content and its version as one line.
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

/// A value that another version may have written in an unsupported form. Deserializing it then
/// returns [`LenientValue::No`] instead of an error.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum LenientValue<T> {
    Yes(T),
    No(IgnoredAny),
}

impl<T> LenientValue<T> {
    pub fn value(self) -> Option<T> {
        match self {
            LenientValue::Yes(value) => Some(value),
            LenientValue::No(IgnoredAny) => None,
        }
    }
}
