//! Which engines a host has.

use std::path::{Path, PathBuf};

use super::daemon;
use super::kind::Kind;
use super::settings::{self, NotUnderstood, Settings};
use super::version::Version;
use crate::doctor::examined::Examined;
use crate::host::HostError;

/// Where programs of engines are installed.
const PROGRAM_DIRS: [&str; 5] = [
    "/usr/bin",
    "/usr/sbin",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/opt/bin",
];
/// What dpkg knows of packages.
const PACKAGES: &str = "/var/lib/dpkg/status";

/// An engine of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Engine {
    pub(super) kind: Kind,
    pub(super) program: PathBuf,
    /// The package that dpkg says it is in; none where dpkg knows none.
    pub(super) package: Option<&'static str>,
    /// Its service runs or starts at boot, or nothing tells that it does not.
    pub(crate) is_used: bool,
    /// None where it cannot be told.
    pub(super) version: Option<Version>,
    pub(super) settings: Result<Settings, NotUnderstood>,
}

/// The engines that are installed.
pub(crate) fn engines(examined: &Examined<'_>) -> Result<Vec<Engine>, HostError> {
    let mut engines = Vec::new();
    for kind in Kind::ALL {
        let mut program = None;
        for directory in PROGRAM_DIRS {
            let path = Path::new(directory).join(kind.program());
            if examined.is_file(&path)? {
                program = Some(path);
                break;
            }
        }
        let Some(program) = program else {
            continue;
        };
        let said = (examined.version_of)(&program);
        let said = said.as_deref().and_then(Version::parse);
        let packaged = packaged(examined, kind)?;
        engines.push(Engine {
            kind,
            program,
            package: packaged.map(|(package, _)| package),
            is_used: daemon::is_used(examined, kind)?,
            version: said.or(packaged.map(|(_, version)| version)),
            settings: settings::read(examined, kind)?,
        });
    }
    Ok(engines)
}

/// The package that an engine comes in, and its version.
fn packaged(
    examined: &Examined<'_>,
    kind: Kind,
) -> Result<Option<(&'static str, Version)>, HostError> {
    let wanted = |line: &[u8]| line.starts_with(b"Package: ") || line.starts_with(b"Version: ");
    let lines = examined.host.lines(Path::new(PACKAGES), &wanted)?;
    let text = String::from_utf8_lossy(&lines.unwrap_or_default()).into_owned();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let name = line.strip_prefix("Package: ");
        let mut ours = kind.packages().iter();
        let Some(package) = ours.find(|package| name == Some(**package)) else {
            continue;
        };
        let version = lines.next().and_then(|line| line.strip_prefix("Version: "));
        if let Some(version) = version.and_then(Version::parse) {
            return Ok(Some((*package, version)));
        }
    }
    Ok(None)
}
