//! Which engines a host has.

use std::path::PathBuf;

use onload_engines::installed::installed;
use onload_engines::kind::Kind;
use onload_engines::reader::{self, NotUnderstood};
use onload_engines::settings::Settings;
use onload_engines::version::Version;
use onload_host::host::HostError;

use super::daemon;
use crate::doctor::examined::Examined;

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
                settings: reader::read(examined.host, kind)?,
            });
        }
    }
    Ok(engines)
}
