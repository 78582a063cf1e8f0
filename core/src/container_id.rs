//! Container ids, as OCI runtimes define them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, error};
use crate::text::Quoted;

/// A container's name: letters, digits, `_`, `+`, `-`, `.`, and no name of a directory's own. The
/// rule is runc's (`libcontainer/factory_linux.go`, `validateID`); it makes the name a file name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContainerId(String);

impl ContainerId {
    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ContainerId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '+' | '-' | '.');
        let named = !matches!(text, "" | "." | "..") && text.len() <= 255;
        if named && text.chars().all(legal) {
            Ok(ContainerId(text.to_owned()))
        } else {
            Err(error!(
                "{0} is not a container id: want letters, digits, '_', '+', '-' and '.'",
                Quoted(text)
            ))
        }
    }
}

impl TryFrom<String> for ContainerId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<ContainerId> for String {
    fn from(id: ContainerId) -> String {
        id.0
    }
}
