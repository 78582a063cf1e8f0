//! Whether an engine is installed, and which version of it.

use std::path::{Path, PathBuf};

use onload_host::host::{EntryKind, Host, HostError};

use crate::kind::EngineKind;
use crate::version::EngineVersion;

/// The version that a program reports, or `None` if unknown.
pub type VersionLookup<'v> = &'v dyn Fn(&Path) -> Option<String>;

/// The directories of engines' programs.
pub const PROGRAM_DIRS: [&str; 5] =
    ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/opt/bin"];
/// The program in docker's snap.
pub const DOCKER_SNAP: &str = "/snap/docker/current/bin/dockerd";
/// The program of RKE2 if /usr/local is read-only (`install.sh`).
const RKE2_IN_OPT: &str = "/opt/rke2/bin/rke2";
const MICROK8S_SNAP: &str = "/snap/microk8s/current/bin/containerd";
const PACKAGES: &str = "/var/lib/dpkg/status";

/// Its program, and its version where that is known.
pub fn find_installed(
    host: &Host,
    kind: EngineKind,
    version_of: VersionLookup<'_>,
) -> Result<Option<(PathBuf, Option<EngineVersion>)>, HostError> {
    let Some(program) = find_program(host, kind)? else { return Ok(None) };
    let version = version_of(&program)
        .as_deref()
        .and_then(EngineVersion::parse)
        .map_or_else(|| packaged_version(host, kind), |version| Ok(Some(version)))?;
    Ok(Some((program, version)))
}

/// Finds an engine's program. A docker that is no snap takes precedence.
pub fn find_program(host: &Host, kind: EngineKind) -> Result<Option<PathBuf>, HostError> {
    let programs = PROGRAM_DIRS.map(|directory| Path::new(directory).join(kind.program()));
    let other = match kind {
        EngineKind::Docker => Some(DOCKER_SNAP),
        EngineKind::Rke2 => Some(RKE2_IN_OPT),
        EngineKind::MicroK8s => Some(MICROK8S_SNAP),
        _ => None,
    };
    for program in programs.into_iter().chain(other.map(PathBuf::from)) {
        if matches!(host.entry(&program)?, Some(EntryKind::File { .. })) {
            return Ok(Some(program));
        }
    }
    Ok(None)
}

fn packaged_version(host: &Host, kind: EngineKind) -> Result<Option<EngineVersion>, HostError> {
    let bytes = host.lines(Path::new(PACKAGES), &|line| {
        line.starts_with(b"Package: ") || line.starts_with(b"Version: ")
    })?;
    let text = String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let name = line.strip_prefix("Package: ");
        if !kind.packages().iter().any(|package| name == Some(*package)) {
            continue;
        }
        let version = lines.next().and_then(|line| line.strip_prefix("Version: "));
        if let Some(version) = version.and_then(EngineVersion::parse) {
            return Ok(Some(version));
        }
    }
    Ok(None)
}
