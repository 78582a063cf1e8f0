//! Container IDs, as OCI runtimes define them.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use onload_sys::error::{Error, Result, bail, read_as_text, shown_as_text, written_as_text};
use onload_sys::text::Quoted;

/// Returns the start of an ID, in the length that engines show.
pub fn short_id(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}

/// A container's ID. It follows runc's rules (`libcontainer/factory_linux.go`, `validateID`), so it
/// is a valid file name: letters, digits, `_`, `+`, `-` and `.`, but neither `.` nor `..`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContainerId(String);

read_as_text!(ContainerId);
shown_as_text!(ContainerId);
written_as_text!(ContainerId);

impl FromStr for ContainerId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if matches!(text, "" | "." | "..")
            || text.len() > 255
            || text.contains(|c: char| !c.is_ascii_alphanumeric() && !"_+-.".contains(c))
        {
            bail!(
                "{} is not a container id: want letters, digits, '_', '+', '-' and '.'",
                Quoted(text)
            );
        }
        Ok(ContainerId(text.to_owned()))
    }
}
