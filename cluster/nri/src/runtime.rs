//! The parts of an answer that a runtime supports, by its name and version. Runtimes silently drop unknown fields
//! (protobuf), so this must be known here.

use std::fmt;

use onload_sys::text::Quoted;

use crate::wire::messages::ConfigureRequest;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NriRuntime {
    name: String,
    version: String,
    pub features: RuntimeFeatures,
}

/// The parts of an answer that a runtime supports. All runtimes but dockerd support edits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimeFeatures {
    pub limits: bool,
    pub names: bool,
}

/// The numbers of a version. The third may be missing.
type VersionNumbers = (u32, u32, u32);

impl NriRuntime {
    #[must_use]
    pub fn new(request: &ConfigureRequest) -> NriRuntime {
        let version = parse(&request.runtime_version);
        let since = |first: VersionNumbers| version.is_some_and(|version| version >= first);
        // containerd 2.0.0 reports the last part of its Go module's path as its name (internal/nri/nri.go).
        let name = match request.runtime_name.as_str() {
            "v2" => "containerd",
            name => name,
        };
        let features = match name {
            // moby, daemon/internal/nri: anything but variables and mounts makes the creation fail.
            "docker" => RuntimeFeatures { limits: false, names: false },
            // NRI 0.4 came with 1.7.7, the injection of names with 2.1.
            "containerd" => RuntimeFeatures { limits: since((1, 7, 7)), names: since((2, 1, 0)) },
            "cri-o" => RuntimeFeatures { limits: since((1, 29, 0)), names: since((1, 34, 0)) },
            // Runtimes that report an NRI version support limits. Names are resolved by the runtime itself, which not
            // every one does.
            _ => RuntimeFeatures { limits: !request.nri_version.is_empty(), names: false },
        };
        NriRuntime { name: name.to_owned(), version: request.runtime_version.clone(), features }
    }

    /// Returns whether its containers belong to pods.
    #[must_use]
    pub fn has_pods(&self) -> bool {
        self.name != "docker"
    }

    /// Returns whether it applies limits on huge pages. containerd drops them unless its configuration has
    /// `disable_hugetlb_controller = false`, which it does not report (internal/cri/config/config_unix.go).
    #[must_use]
    pub fn supports_hugepage_limits(&self) -> bool {
        self.name != "containerd"
    }
}

/// `containerd 2.1.9`.
impl fmt::Display for NriRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (separator, text) in [("", &self.name), (" ", &self.version)] {
            if text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_graphic()) {
                write!(f, "{separator}{text}")?;
            } else {
                write!(f, "{separator}{}", Quoted(text))?;
            }
        }
        Ok(())
    }
}

/// Reads `v2.1.9`, `2.1.9~ds1`, `2.2`, `2.1.0-rc.1`. A version before a release counts as that release.
fn parse(text: &str) -> Option<VersionNumbers> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut numbers = text.splitn(3, '.').map(|part| {
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part[..end].parse::<u32>().ok()
    });
    let (major, minor) = (numbers.next()??, numbers.next()??);
    Some((major, minor, numbers.next().flatten().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime(name: &str, version: &str, nri: &str) -> NriRuntime {
        NriRuntime::new(&ConfigureRequest {
            runtime_name: name.to_owned(),
            runtime_version: version.to_owned(),
            request_timeout: 0,
            nri_version: nri.to_owned(),
        })
    }

    #[test]
    fn names_and_limits_go_to_the_versions_that_take_them() {
        for (name, version, limits, names) in [
            ("containerd", "v1.7.0", false, false),
            ("containerd", "1.7.6", false, false),
            ("containerd", "1.7.7", true, false),
            ("containerd", "1.7.24~ds1", true, false),
            ("containerd", "v2.0.5", true, false),
            ("containerd", "v2.1.0-rc.1", true, true),
            ("containerd", "2.1.9", true, true),
            ("containerd", "10.0", true, true),
            ("cri-o", "1.28.11", false, false),
            ("cri-o", "1.29.0", true, false),
            ("cri-o", "1.34.1", true, true),
        ] {
            let abilities = runtime(name, version, "").features;
            assert_eq!((abilities.limits, abilities.names), (limits, names), "{name} {version}");
        }
    }

    #[test]
    fn containerd_is_known_by_the_name_that_its_first_version_2_gave_itself() {
        let first = runtime("v2", "v2.0.0", "");
        assert_eq!(first.to_string(), "containerd v2.0.0");
        assert!(first.features.limits && !first.features.names);
    }

    #[test]
    fn a_version_that_is_not_understood_is_an_old_one() {
        for version in ["", "unknown", "v", "2", "two.one", "-1.7", "99999999999.1"] {
            let abilities = runtime("containerd", version, "").features;
            assert!(!abilities.limits && !abilities.names, "{version:?}");
        }
    }

    #[test]
    fn docker_takes_neither_limits_nor_names() {
        let docker = runtime("docker", "29.0.0", "v0.10.0");
        let none = RuntimeFeatures { limits: false, names: false };
        assert_eq!(docker.features, none);
        assert!(!docker.has_pods());
    }

    #[test]
    fn another_runtime_takes_limits_if_its_nri_is_new_enough_to_tell_its_version() {
        let features = |nri| runtime("isulad", "2.1", nri).features;
        assert!(features("v0.10.0").limits && !features("v0.10.0").names);
        assert!(!features("").limits);
    }

    #[test]
    fn a_name_that_would_break_a_line_is_quoted() {
        assert_eq!(runtime("containerd", "v2.1.9", "").to_string(), "containerd v2.1.9");
        let odd = runtime("a\nb", "1", "").to_string();
        assert!(!odd.contains('\n'), "{odd}");
    }
}
