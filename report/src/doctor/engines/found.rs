//! Which engines a host has.

use std::path::{Path, PathBuf};

use onload_host::host::{EntryKind, Host, HostError};

use super::daemon;
use super::kind::Kind;
use super::settings::{self, NotUnderstood, Settings};
use super::version::{DOCKER_CDI, Version};
use crate::doctor::examined::{Examined, VersionOf};

/// Where programs of engines are installed.
pub const PROGRAM_DIRS: [&str; 5] = [
    "/usr/bin",
    "/usr/sbin",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/opt/bin",
];
const PACKAGES: &str = "/var/lib/dpkg/status";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Engine {
    pub(super) kind: Kind,
    pub(super) program: PathBuf,
    /// Its service runs or starts at boot, or nothing tells that it does not.
    pub(crate) is_used: bool,
    pub(super) version: Option<Version>,
    pub(super) settings: Result<Settings, NotUnderstood>,
}

pub(crate) fn engines(examined: &Examined<'_>) -> Result<Vec<Engine>, HostError> {
    let mut engines = Vec::new();
    for kind in Kind::ALL {
        if let Some((program, version)) = installed(examined.host, kind, examined.version_of)? {
            engines.push(Engine {
                kind,
                program,
                is_used: daemon::is_used(examined, kind)?,
                version,
                settings: settings::read(examined, kind)?,
            });
        }
    }
    Ok(engines)
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CdiOfEngine {
    /// Why containers cannot ask it for devices; none where they can, or where its version is unknown.
    pub too_old: Option<String>,
    pub is_on: bool,
}

impl CdiOfEngine {
    pub fn of(host: &Host, engine: &str, version_of: VersionOf<'_>) -> Result<Self, HostError> {
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == engine);
        let Some(kind) = kind else {
            return Ok(CdiOfEngine::default());
        };
        let version = installed(host, kind, version_of)?.and_then(|(_, version)| version);
        Ok(CdiOfEngine {
            too_old: version.and_then(|version| kind.too_old(version)),
            is_on: kind == Kind::Docker && version.is_some_and(|version| version >= DOCKER_CDI),
        })
    }
}

fn installed(
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
