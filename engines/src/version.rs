//! Versions of engines, and what each reads of CDI.

use std::fmt;

use onload_cdi::Version as Cdi;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

impl Version {
    /// Reads the first number with a dot in what a program says (`Docker version 26.1.5+dfsg1, build
    /// 411e817`, `containerd github.com/containerd/containerd 1.7.24~ds1 …`), or in the version of a package
    /// (`5:27.3.1-1~debian.12`).
    pub(crate) fn parse(text: &str) -> Option<Version> {
        let words = text.split(|c: char| c.is_whitespace() || c == ':' || c == ',');
        words.filter_map(Version::of_word).next()
    }

    fn of_word(word: &str) -> Option<Version> {
        let word = word.strip_prefix('v').unwrap_or(word);
        let mut numbers = word.splitn(3, '.').map(|part| {
            let end = part.find(|c: char| !c.is_ascii_digit());
            part.get(..end.unwrap_or(part.len())).and_then(|digits| digits.parse::<u32>().ok())
        });
        let (major, minor) = (numbers.next()??, numbers.next()??);
        let patch = numbers.next().flatten().unwrap_or(0);
        Some(Version(major, minor, patch))
    }
}

/// From which version on an engine reads which CDI, as the library says that its release was built with.
pub(crate) type Readers = &'static [(Version, Cdi)];

pub const DOCKER_CDI: Version = Version(28, 2, 0);

pub const CONTAINERD_CDI: Version = Version(2, 0, 0);

/// docker (moby, `vendor.mod`).
pub(crate) const DOCKER: Readers = &[
    (Version(25, 0, 0), Cdi::V0_6_0),
    (Version(26, 1, 0), Cdi::V0_7_0),
    (Version(27, 4, 0), Cdi::V0_8_0),
    (Version(28, 1, 0), Cdi::V1_0_0),
    (Version(29, 2, 0), Cdi::V1_1_0),
];
/// containerd (`go.mod`).
pub(crate) const CONTAINERD: Readers = &[
    (Version(1, 7, 0), Cdi::V0_5_0),
    (Version(1, 7, 12), Cdi::V0_6_0),
    (Version(1, 7, 16), Cdi::V0_7_0),
    (Version(1, 7, 27), Cdi::V0_8_0),
    (Version(2, 0, 5), Cdi::V1_0_0),
    (Version(2, 2, 1), Cdi::V1_1_0),
];
/// podman (`go.mod`).
pub(crate) const PODMAN: Readers = &[
    (Version(4, 1, 0), Cdi::V0_4_0),
    (Version(4, 3, 0), Cdi::V0_5_0),
    (Version(4, 7, 0), Cdi::V0_6_0),
    (Version(5, 1, 0), Cdi::V0_7_0),
    (Version(5, 2, 0), Cdi::V0_8_0),
    (Version(5, 5, 0), Cdi::V1_0_0),
    (Version(6, 0, 0), Cdi::V1_1_0),
];
/// CRI-O (`go.mod`).
pub(crate) const CRIO: Readers = &[
    (Version(1, 24, 0), Cdi::V0_3_0),
    (Version(1, 25, 0), Cdi::V0_5_0),
    (Version(1, 28, 0), Cdi::V0_6_0),
    (Version(1, 30, 0), Cdi::V0_7_0),
    (Version(1, 31, 0), Cdi::V0_8_0),
    (Version(1, 33, 0), Cdi::V1_0_0),
    (Version(1, 35, 0), Cdi::V1_1_0),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Kind;

    #[test]
    fn a_version_is_found_in_what_programs_and_packages_say() {
        for (text, version) in [
            ("Docker version 26.1.5+dfsg1, build 411e817", Version(26, 1, 5)),
            (
                "containerd github.com/containerd/containerd/v2 v2.0.5 fb4c30d4ede3531652d86197bf3fc9515e5276d9",
                Version(2, 0, 5),
            ),
            (
                "containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-6",
                Version(1, 7, 24),
            ),
            ("podman version 5.4.2", Version(5, 4, 2)),
            ("crio version 1.31.0\nGitCommit: 1", Version(1, 31, 0)),
            ("Nomad v1.9.3\nBuildDate 2024-11-11", Version(1, 9, 3)),
            ("Kubernetes v1.30", Version(1, 30, 0)),
            ("k3s version v1.32.2+k3s1 (381620ef)", Version(1, 32, 2)),
            ("5:27.3.1-1~debian.12~bookworm", Version(27, 3, 1)),
        ] {
            assert_eq!(Version::parse(text), Some(version), "{text}");
        }
        for text in ["", "unknown", "1", "a.b.c", "99999999999.1"] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
    }

    #[test]
    fn an_engine_reads_what_its_library_does_and_an_old_one_nothing() {
        assert_eq!(Kind::Docker.newest_cdi(Version(24, 0, 9)), None);
        assert_eq!(Kind::Docker.newest_cdi(Version(26, 0, 2)), Some(Cdi::V0_6_0));
        assert_eq!(Kind::Containerd.newest_cdi(Version(2, 0, 4)), Some(Cdi::V0_8_0));
        assert_eq!(Kind::Podman.newest_cdi(Version(4, 3, 1)), Some(Cdi::V0_5_0));
        assert_eq!(Kind::Crio.newest_cdi(Version(1, 40, 0)), Some(Cdi::V1_1_0));
    }
}
