//! Which engines a host has.

use std::path::PathBuf;

use onload_engines::daemon::DaemonFlags;
use onload_engines::installed::find_installed;
use onload_engines::kind::EngineKind;
use onload_engines::reader::{self, SettingsError};
use onload_engines::settings::EngineSettings;
use onload_engines::version::EngineVersion;
use strum::VariantArray;

use super::daemon;
use crate::doctor::check::Finding;
use crate::doctor::context::{CheckContext, Findings, HostResult};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InstalledEngine {
    pub(super) kind: EngineKind,
    pub(super) program: PathBuf,
    /// Its service runs or starts at boot, or nothing tells that it does not.
    pub(crate) is_used: bool,
    /// Its service, if that is enabled and does not run.
    pub(super) stopped_service: Option<&'static str>,
    pub(super) version: Option<EngineVersion>,
    pub(super) settings: Result<EngineSettings, SettingsError>,
}

pub(crate) fn find_engines(context: &CheckContext<'_>) -> HostResult<Vec<InstalledEngine>> {
    let mut engines = Vec::new();
    for &kind in EngineKind::VARIANTS {
        if let Some((program, version)) = find_installed(context.host, kind, context.version_of)? {
            let flags = DaemonFlags::read(context.host, kind)?;
            let (is_used, stopped_service) = daemon::find_use(context, kind)?;
            engines.push(InstalledEngine {
                kind,
                program,
                is_used,
                stopped_service,
                version,
                settings: reader::read(context.host, kind, &flags)?,
            });
        }
    }
    Ok(engines)
}

/// Returns the findings of a check for each engine whose files can be parsed.
pub(super) fn check_each(
    engines: &[InstalledEngine],
    check: impl Fn(&InstalledEngine, &EngineSettings) -> HostResult<Option<Finding>>,
) -> Findings {
    let findings = engines.iter().filter_map(|engine| {
        let settings = engine.settings.as_ref().ok()?;
        let result = check(engine, settings).transpose()?;
        Some(result.map(|mut finding| {
            finding.looked_at.splice(..0, settings.files.iter().cloned());
            finding.with_subject(engine.kind.name())
        }))
    });
    findings.collect()
}
