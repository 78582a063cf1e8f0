//! The members of a pool, stored in annotations of the pool's device in a specification.
//!
//! The generator writes them. Hook and wrapper read them and choose a free member.

use std::collections::BTreeMap;
use std::fmt;

use onload_cdi::DeviceName;

use onload_sys::error::{Context as _, Result, bail};
use onload_sys::text::{Quoted, parse_decimal};

/// The pool of all devices of a class.
pub const ANY: &str = "any";
/// The annotation with the members, as `NAME` or `NAME@NODE`, separated by one space.
pub const MEMBERS: &str = "onload.dev/pool-members";
/// The annotation that says how many containers may hold one member at once.
pub const SHARE: &str = "onload.dev/pool-share";
pub const MAX_MEMBERS: usize = 65_536;
/// Maximum size of all annotations of one device, keys and values (schema of CDI 1.1.0, and
/// `TotalAnnotationSizeLimitB` of Kubernetes).
pub const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

/// The share of a pool without a limit.
pub const UNCOUNTED: u32 = u32::MAX;

/// A pool: devices of one class, any of which will do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The devices in the order in which they are listed; at least one, each once.
    pub members: Vec<PoolMember>,
    /// How many containers may hold one member at once; at least 1.
    pub share: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolMember {
    /// The name of the device in the pool's class.
    pub name: DeviceName,
    /// The device's NUMA node, if it has one.
    pub numa_node: Option<u32>,
}

/// The NUMA node that members are chosen from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numa {
    #[default]
    Any,
    /// Any node, but the same one for all members.
    Same,
    Node(u32),
}

impl Pool {
    /// Parses the annotations of a device. Returns `None` if it has neither, since then it is not a
    /// pool.
    pub fn from_annotations(annotations: &BTreeMap<String, String>) -> Result<Option<Pool>> {
        match (annotations.get(MEMBERS), annotations.get(SHARE)) {
            (None, None) => Ok(None),
            (None, Some(_)) => bail!("annotation {MEMBERS} is missing"),
            (Some(_), None) => bail!("annotation {SHARE} is missing"),
            (Some(members), Some(share)) => {
                Ok(Some(Pool { members: parse_members(members)?, share: parse_share(share)? }))
            }
        }
    }

    pub fn to_annotations(&self) -> BTreeMap<String, String> {
        let members: Vec<String> = self.members.iter().map(ToString::to_string).collect();
        BTreeMap::from([
            (MEMBERS.to_owned(), members.join(" ")),
            (SHARE.to_owned(), self.share.to_string()),
        ])
    }
}

impl fmt::Display for PoolMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name.as_str())?;
        self.numa_node.map_or(Ok(()), |node| write!(f, "@{node}"))
    }
}

fn parse_members(text: &str) -> Result<Vec<PoolMember>> {
    if text.is_empty() {
        bail!("{MEMBERS} lists no device");
    }
    let mut members = Vec::new();
    for (index, word) in text.split(' ').enumerate() {
        if index == MAX_MEMBERS {
            bail!("{MEMBERS} lists more than {MAX_MEMBERS} devices");
        }
        members.push(parse_member(word, index + 1)?);
    }
    let mut names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        bail!("{MEMBERS} lists {} twice", Quoted(pair[0]));
    }
    Ok(members)
}

fn parse_member(word: &str, position: usize) -> Result<PoolMember> {
    let quoted = Quoted(word);
    let (name, numa_node) = match word.split_once('@') {
        None => (word, None),
        Some((name, node)) => match parse_decimal(node) {
            Some(node) => (name, Some(node)),
            None => bail!(
                "word {position} of {MEMBERS} is {quoted}, with no number after the \"@\"; \
                 expected NAME or NAME@NODE"
            ),
        },
    };
    let name = DeviceName::try_from(name)
        .with_context(|| format!("word {position} of {MEMBERS} is {quoted}"))?;
    Ok(PoolMember { name, numa_node })
}

fn parse_share(text: &str) -> Result<u32> {
    match parse_decimal(text) {
        Some(share @ 1..) => Ok(share),
        _ => bail!("{SHARE} is a number of containers from 1, not {}", Quoted(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotations(members: &str, share: &str) -> BTreeMap<String, String> {
        [(MEMBERS, members), (SHARE, share)]
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    fn refusal(members: &str, share: &str) -> String {
        let read = Pool::from_annotations(&annotations(members, share));
        format!("{:#}", read.unwrap_err())
    }

    fn member(name: &str, numa_node: Option<u32>) -> PoolMember {
        let name = name.parse().unwrap();
        PoolMember { name, numa_node }
    }

    #[test]
    fn members_keep_their_order() {
        let pool = Pool {
            members: vec![
                member("0000:81:10.2", Some(1)),
                member("0000:81:10.0", Some(0)),
                member("mlx5_0", None),
            ],
            share: 500,
        };
        let written = pool.to_annotations();
        let wanted = annotations("0000:81:10.2@1 0000:81:10.0@0 mlx5_0", "500");
        assert_eq!(written, wanted);
        assert_eq!(Pool::from_annotations(&written), Ok(Some(pool)));
    }

    #[test]
    fn a_device_without_pool_annotations_is_not_a_pool() {
        let other = BTreeMap::from([("vendor.com/x".to_owned(), "y".to_owned())]);
        assert_eq!(Pool::from_annotations(&other), Ok(None));
        assert_eq!(Pool::from_annotations(&BTreeMap::new()), Ok(None));
    }

    #[test]
    fn both_annotations_are_required() {
        for (left_out, says) in [
            (MEMBERS, "annotation onload.dev/pool-members is missing"),
            (SHARE, "annotation onload.dev/pool-share is missing"),
        ] {
            let mut one = annotations("a", "1");
            one.remove(left_out);
            let error = Pool::from_annotations(&one).unwrap_err();
            assert_eq!(error.to_string(), says);
        }
    }

    #[test]
    fn an_invalid_member_is_rejected_with_its_position() {
        let no_number = "no number after the \"@\"";
        for (members, says) in [
            ("", "onload.dev/pool-members lists no device"),
            ("a b/c", "word 2 of onload.dev/pool-members is \"b/c\": invalid device name \"b/c\""),
            ("a  b", "word 2 of onload.dev/pool-members is \"\": "),
            (" a", "word 1 of onload.dev/pool-members is \"\": "),
            ("a ", "word 2 of onload.dev/pool-members is \"\": "),
            ("a\tb", "word 1 of onload.dev/pool-members is \"a\\tb\": "),
            ("@1", "word 1 of onload.dev/pool-members is \"@1\": "),
            (
                "a b@x",
                "word 2 of onload.dev/pool-members is \"b@x\", with no number after the \"@\"",
            ),
            ("a@", no_number),
            ("a@-1", no_number),
            ("a@01", no_number),
            ("a@+1", no_number),
            ("a@4294967296", no_number),
            ("a@1@2", no_number),
            ("a b@1 a@1", "onload.dev/pool-members lists \"a\" twice"),
        ] {
            let message = refusal(members, "1");
            assert!(message.contains(says), "{members:?}: {message}");
        }
    }

    #[test]
    fn a_share_is_a_number_of_containers() {
        let read = |share| {
            Pool::from_annotations(&annotations("a", share)).map(|pool| pool.unwrap().share)
        };
        assert_eq!(read("1"), Ok(1));
        assert_eq!(read("4294967295"), Ok(u32::MAX));
        for bad in ["", "0", "-1", "+1", "01", "4294967296", "1 ", "many"] {
            let message = refusal("a", bad);
            let wanted =
                format!("onload.dev/pool-share is a number of containers from 1, not {bad:?}");
            assert_eq!(message, wanted);
        }
    }

    #[test]
    fn a_list_has_a_maximum_length() {
        let names: Vec<String> = (0..=MAX_MEMBERS).map(|n| format!("d{n}")).collect();
        let most = annotations(&names[..MAX_MEMBERS].join(" "), "1");
        let pool = Pool::from_annotations(&most).unwrap().unwrap();
        assert_eq!(pool.members.len(), MAX_MEMBERS);
        let message = refusal(&names.join(" "), "1");
        assert_eq!(message, "onload.dev/pool-members lists more than 65536 devices");
    }
}
