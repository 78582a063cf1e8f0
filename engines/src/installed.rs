//! Whether an engine is installed, and which version of it.

use std::path::{Path, PathBuf};

use onload_host::host::{EntryKind, Host, HostError};

use crate::kind::Kind;
use crate::version::{DOCKER_CDI, Version};

/// Which version a program says it is; none where that is unknown.
pub type VersionOf<'v> = &'v dyn Fn(&Path) -> Option<String>;

/// Where programs of engines are installed.
pub const PROGRAM_DIRS: [&str; 5] = [
    "/usr/bin",
    "/usr/sbin",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/opt/bin",
];
const PACKAGES: &str = "/var/lib/dpkg/status";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CdiOfEngine {
    /// Why containers cannot ask it for devices; none where they can, or where its version is unknown.
    pub too_old: Option<String>,
    pub is_on: bool,
}

impl CdiOfEngine {
    pub fn of(host: &Host, kind: Kind, version_of: VersionOf<'_>) -> Result<Self, HostError> {
        let version = installed(host, kind, version_of)?.and_then(|(_, version)| version);
        Ok(CdiOfEngine {
            too_old: version.and_then(|version| kind.too_old(version)),
            is_on: kind == Kind::Docker && version.is_some_and(|version| version >= DOCKER_CDI),
        })
    }
}

/// Its program, and its version where that is known.
pub fn installed(
    host: &Host,
    kind: Kind,
    version_of: VersionOf<'_>,
) -> Result<Option<(PathBuf, Option<Version>)>, HostError> {
    for directory in PROGRAM_DIRS {
        let program = Path::new(directory).join(kind.program());
        if matches!(host.entry(&program)?, Some(EntryKind::File { .. })) {
            let version = version_of(&program).as_deref().and_then(Version::parse);
            let version = version.map_or_else(|| packaged(host, kind), |said| Ok(Some(said)))?;
            return Ok(Some((program, version)));
        }
    }
    Ok(None)
}

fn packaged(host: &Host, kind: Kind) -> Result<Option<Version>, HostError> {
    let wanted = |line: &[u8]| line.starts_with(b"Package: ") || line.starts_with(b"Version: ");
    let lines = host.lines(Path::new(PACKAGES), &wanted)?;
    let text = String::from_utf8_lossy(&lines.unwrap_or_default()).into_owned();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let name = line.strip_prefix("Package: ");
        if !kind.packages().iter().any(|package| name == Some(*package)) {
            continue;
        }
        let version = lines.next().and_then(|line| line.strip_prefix("Version: "));
        if let Some(version) = version.and_then(Version::parse) {
            return Ok(Some(version));
        }
    }
    Ok(None)
}
