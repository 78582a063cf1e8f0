//! Checks the directories in which engines look for specifications.

use std::path::Path;

use onload_engines::kind::EngineKind;
use onload_engines::settings::{EngineSettings, EngineSpecDirs};
use onload_engines::version::EngineVersion;
use onload_host::specdir::{OUTPUT_DIR, SPEC_DIRS};
use onload_sys::text::quote_for_shell;

use super::installed::InstalledEngine;
use crate::doctor::check::{Finding, Remedy};
use crate::doctor::context::{CheckContext, Findings, HostResult};

const STATIC_DIR: &str = "/etc/cdi";
/// The first CRI-O whose CDI library skips a directory that is missing (`scanSpecDirs`).
const CRIO_SKIPS_MISSING: EngineVersion = EngineVersion(1, 25, 0);

pub(crate) fn check_spec_dirs(context: &CheckContext<'_>, engines: &[InstalledEngine]) -> Findings {
    let mut findings = Vec::new();
    for engine in engines {
        findings.extend(missing_dir_finding(context, engine)?);
    }
    findings.extend(engines.iter().filter_map(|engine| {
        let settings = engine.settings.as_ref().ok()?;
        let spec_dirs = settings.spec_dirs.as_ref()?;
        let mut dirs = spec_dirs.dirs.iter().map(|dir| dir.trim_end_matches('/'));
        let finding = if dirs.any(|dir| SPEC_DIRS.contains(&dir)) {
            Finding::pass(format!("looks into {}", spec_dirs.dirs.join(", ")))
        } else {
            let change = match spec_dirs.flag {
                Some(flag) => format!("add a second flag --{flag}, and restart it"),
                None => "the line replaces the existing one".to_owned(),
            };
            let text =
                format!("does not read {OUTPUT_DIR}, which contains the specifications: {change}");
            Finding::fail(text, add_dir_remedy(engine.kind, settings, spec_dirs))
        };
        Some(finding.with_path(&spec_dirs.file).with_subject(engine.kind.name()))
    }));
    Ok(findings)
}

/// Fails if an old CRI-O finds no device because one of its directories is missing.
fn missing_dir_finding(
    context: &CheckContext<'_>,
    engine: &InstalledEngine,
) -> HostResult<Option<Finding>> {
    let version = engine.version.filter(|version| *version < CRIO_SKIPS_MISSING);
    let (EngineKind::Crio, Some(version), Ok(settings)) = (engine.kind, version, &engine.settings)
    else {
        return Ok(None);
    };
    let named = settings.spec_dirs.as_ref().map(|spec_dirs| spec_dirs.dirs.clone());
    for dir in named.unwrap_or_else(|| [STATIC_DIR, OUTPUT_DIR].map(str::to_owned).to_vec()) {
        if !context.exists(&dir)? {
            let text = format!("CRI-O {version} resolves no CDI name while {dir} is missing");
            let create = Remedy::run(format!("mkdir -p {}", quote_for_shell(Path::new(&dir))));
            let finding = Finding::fail(text, create).with_path(&dir);
            return Ok(Some(finding.with_subject(engine.kind.name())));
        }
    }
    Ok(None)
}

/// Returns the remedy: a further flag, or the present list with our directory in the same file, since engines do not
/// merge lists.
fn add_dir_remedy(
    kind: EngineKind,
    settings: &EngineSettings,
    spec_dirs: &EngineSpecDirs,
) -> Remedy {
    if let Some(flag) = spec_dirs.flag {
        return Remedy::write(&spec_dirs.file, format!("--{flag}={OUTPUT_DIR}"));
    }
    // TOML takes the strings of JSON.
    let dirs: Vec<String> = spec_dirs
        .dirs
        .iter()
        .map(String::as_str)
        .chain([OUTPUT_DIR])
        .map(|dir| serde_json::Value::from(dir).to_string())
        .collect();
    let list = dirs.join(", ");
    let line = match kind {
        EngineKind::Docker => format!("\"cdi-spec-dirs\": [{list}]"),
        _ => format!("cdi_spec_dirs = [{list}]"),
    };
    let is_rancher = matches!(kind, EngineKind::K3s | EngineKind::Rke2);
    let file = if is_rancher && settings.files.first() == Some(&spec_dirs.file) {
        settings.k3s_template()
    } else {
        spec_dirs.file.clone()
    };
    match &spec_dirs.section {
        Some(section) => Remedy::write_under(file, section, line),
        None => Remedy::write(file, line),
    }
}
