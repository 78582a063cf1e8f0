//! Versions of engines, and the CDI version that each supports.

use std::fmt;

use onload_cdi::CdiVersion;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EngineVersion(pub u32, pub u32, pub u32);

impl fmt::Display for EngineVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

impl EngineVersion {
    /// Parses the first word that looks like a version: at least two numbers with dots between them. The text is the
    /// output of `--version` (`Docker version 26.1.5+dfsg1, build 411e817`, `containerd
    /// github.com/containerd/containerd 1.7.24~ds1 …`) or the version of a package (`5:27.3.1-1~debian.12`).
    pub fn parse(text: &str) -> Option<EngineVersion> {
        text.split(|c: char| c.is_whitespace() || c == ':' || c == ',')
            .find_map(EngineVersion::parse_word)
    }

    fn parse_word(word: &str) -> Option<EngineVersion> {
        let word = word.strip_prefix('v').unwrap_or(word);
        let mut numbers = word.splitn(3, '.').map(|part| {
            let end = part.find(|c: char| !c.is_ascii_digit());
            part.get(..end.unwrap_or(part.len())).and_then(|digits| digits.parse::<u32>().ok())
        });
        let (major, minor) = (numbers.next()??, numbers.next()??);
        let patch = numbers.next().flatten().unwrap_or(0);
        Some(EngineVersion(major, minor, patch))
    }
}

/// The CDI versions that an engine supports, each with the first engine version that was built with a CDI library of
/// that version.
pub(crate) type CdiReaders = &'static [(EngineVersion, CdiVersion)];

/// The first version of docker that enables CDI by default.
pub const DOCKER_CDI: EngineVersion = EngineVersion(28, 2, 0);

/// The first version of containerd that enables CDI by default.
pub const CONTAINERD_CDI: EngineVersion = EngineVersion(2, 0, 0);

/// docker (moby, `vendor.mod`).
pub(crate) const DOCKER: CdiReaders = &[
    (EngineVersion(25, 0, 0), CdiVersion::V0_6_0),
    (EngineVersion(26, 1, 0), CdiVersion::V0_7_0),
    (EngineVersion(27, 4, 0), CdiVersion::V0_8_0),
    (EngineVersion(28, 1, 0), CdiVersion::V1_0_0),
    (EngineVersion(29, 2, 0), CdiVersion::V1_1_0),
];
/// containerd (`go.mod`).
pub(crate) const CONTAINERD: CdiReaders = &[
    (EngineVersion(1, 7, 0), CdiVersion::V0_5_0),
    (EngineVersion(1, 7, 12), CdiVersion::V0_6_0),
    (EngineVersion(1, 7, 16), CdiVersion::V0_7_0),
    (EngineVersion(1, 7, 27), CdiVersion::V0_8_0),
    (EngineVersion(2, 0, 5), CdiVersion::V1_0_0),
    (EngineVersion(2, 2, 1), CdiVersion::V1_1_0),
];
/// podman (`go.mod`).
pub(crate) const PODMAN: CdiReaders = &[
    (EngineVersion(4, 1, 0), CdiVersion::V0_4_0),
    (EngineVersion(4, 3, 0), CdiVersion::V0_5_0),
    (EngineVersion(4, 7, 0), CdiVersion::V0_6_0),
    (EngineVersion(5, 1, 0), CdiVersion::V0_7_0),
    (EngineVersion(5, 2, 0), CdiVersion::V0_8_0),
    (EngineVersion(5, 5, 0), CdiVersion::V1_0_0),
    (EngineVersion(6, 0, 0), CdiVersion::V1_1_0),
];
/// CRI-O (`go.mod`).
pub(crate) const CRIO: CdiReaders = &[
    (EngineVersion(1, 24, 0), CdiVersion::V0_3_0),
    (EngineVersion(1, 25, 0), CdiVersion::V0_5_0),
    (EngineVersion(1, 28, 0), CdiVersion::V0_6_0),
    (EngineVersion(1, 30, 0), CdiVersion::V0_7_0),
    (EngineVersion(1, 31, 0), CdiVersion::V0_8_0),
    (EngineVersion(1, 33, 0), CdiVersion::V1_0_0),
    (EngineVersion(1, 35, 0), CdiVersion::V1_1_0),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::EngineKind;

    #[test]
    fn a_version_is_found_in_what_programs_and_packages_say() {
        for (text, version) in [
            ("Docker version 26.1.5+dfsg1, build 411e817", EngineVersion(26, 1, 5)),
            (
                "containerd github.com/containerd/containerd/v2 v2.0.5 fb4c30d4ede3531652d86197bf3fc9515e5276d9",
                EngineVersion(2, 0, 5),
            ),
            (
                "containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-6",
                EngineVersion(1, 7, 24),
            ),
            ("podman version 5.4.2", EngineVersion(5, 4, 2)),
            ("crio version 1.31.0\nGitCommit: 1", EngineVersion(1, 31, 0)),
            ("Nomad v1.9.3\nBuildDate 2024-11-11", EngineVersion(1, 9, 3)),
            ("Kubernetes v1.30", EngineVersion(1, 30, 0)),
            ("k3s version v1.32.2+k3s1 (381620ef)", EngineVersion(1, 32, 2)),
            ("5:27.3.1-1~debian.12~bookworm", EngineVersion(27, 3, 1)),
        ] {
            assert_eq!(EngineVersion::parse(text), Some(version), "{text}");
        }
        for text in ["", "unknown", "1", "a.b.c", "99999999999.1"] {
            assert_eq!(EngineVersion::parse(text), None, "{text}");
        }
    }

    #[test]
    fn an_engine_reads_what_its_library_does_and_an_old_one_nothing() {
        assert_eq!(EngineKind::Docker.newest_cdi(EngineVersion(24, 0, 9)), None);
        assert_eq!(
            EngineKind::Docker.newest_cdi(EngineVersion(26, 0, 2)),
            Some(CdiVersion::V0_6_0)
        );
        assert_eq!(
            EngineKind::Containerd.newest_cdi(EngineVersion(2, 0, 4)),
            Some(CdiVersion::V0_8_0)
        );
        assert_eq!(EngineKind::Podman.newest_cdi(EngineVersion(4, 3, 1)), Some(CdiVersion::V0_5_0));
        assert_eq!(EngineKind::Crio.newest_cdi(EngineVersion(1, 40, 0)), Some(CdiVersion::V1_1_0));
    }
}
