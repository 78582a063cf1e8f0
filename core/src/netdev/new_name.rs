//! The name that an interface gets in a container.

use std::fmt;
use std::str::FromStr;

use onload_sys::error::{Error, Result, bail};
use onload_sys::text::Quoted;

/// What has a meaning there already: engines call their own interface `eth0`, each network has `lo`, and the kernel keeps
/// the settings of no interface below `all` and `default` (`sysctl_dev_name_is_allowed` in net/core/sysctl_net_core.c).
const RESERVED: [&str; 4] = ["eth0", "lo", "all", "default"];

/// Fewer names than the kernel takes (`dev_valid_name` in net/core/dev.c): none needs quotes, and none is a pattern, as
/// `net%d` is to the kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NewInterfaceName(String);

impl NewInterfaceName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NewInterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for NewInterfaceName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let begins = name.starts_with(|first: char| first.is_ascii_alphanumeric());
        let is_legal = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        if begins && name.len() < 16 && name.chars().all(is_legal) && !RESERVED.contains(&name) {
            return Ok(NewInterfaceName(name.to_owned()));
        }
        bail!(
            "{} is no name for an interface in a container: it has at most 15 letters, digits, \".\", \"-\" and \"_\", begins with a letter or digit, and is none of {}",
            Quoted(name),
            RESERVED.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_as_it_is() {
        for name in ["net1", "a", "Feed.0-b_c", "0a", "fifteen-letters"] {
            assert_eq!(name.parse::<NewInterfaceName>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn what_the_kernel_or_an_engine_takes_for_something_else_is_refused() {
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
            assert!(refused.contains(" is no name for an interface"), "{refused}");
        }
    }
}
