//! Files of ours that say their version: a program of an earlier version may find one of a later.

use onload_sys::error::{Context as _, Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Reads a file that says its version, which may be newer than `known`. One that is cut short or damaged is `no`.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8], known: u32, no: &str) -> Result<T> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let Version { version } = serde_json::from_slice(bytes).context(no)?;
    if version > known {
        bail!("it is of version {version}, and this program understands {known}");
    }
    serde_json::from_slice(bytes).context(no)
}
