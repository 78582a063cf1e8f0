//! The name of an interface in a container.

use std::str::FromStr;

use onload_sys::error::{Error, Result, bail, shown_as_text};
use onload_sys::text::Quoted;

/// Names with a meaning in a container: engines name their own interface `eth0`, each network
/// namespace has `lo`, and no interface can have its sysctl settings below `all` or `default`
/// (`sysctl_dev_name_is_allowed`, net/core/sysctl_net_core.c).
const RESERVED: [&str; 4] = ["eth0", "lo", "all", "default"];

/// A name that a container's interface may get.
///
/// Stricter than the kernel (`dev_valid_name`, net/core/dev.c): no name needs quotes, and none is a
/// pattern such as `net%d`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NewInterfaceName(String);

shown_as_text!(NewInterfaceName);

impl FromStr for NewInterfaceName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        if name.starts_with(|first: char| first.is_ascii_alphanumeric())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c))
            && name.len() < 16
            && !RESERVED.contains(&name)
        {
            return Ok(NewInterfaceName(name.to_owned()));
        }
        bail!(
            "{} is not a valid name for an interface in a container: use at most 15 letters, digits, \".\", \"-\" and \"_\", starting with a letter or digit, and none of {}",
            Quoted(name),
            RESERVED.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_names_are_accepted() {
        for name in ["net1", "a", "Feed.0-b_c", "0a", "fifteen-letters"] {
            assert_eq!(name.parse::<NewInterfaceName>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn reserved_and_unusual_names_are_rejected() {
        for name in [
            "",
            ".",
            "..",
            "eth0",
            "lo",
            "all",
            "default",
            "net%d",
            "a b",
            "a/b",
            "a:b",
            "a=b",
            "-a",
            "_a",
            "a\n",
            "é",
            "a@b",
            "sixteen-letters-",
        ] {
            let refused = name.parse::<NewInterfaceName>().unwrap_err().to_string();
            assert!(refused.contains(" is not a valid name for an interface"), "{refused}");
        }
    }
}
