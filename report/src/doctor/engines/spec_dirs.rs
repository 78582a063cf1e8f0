//! Where engines look for specifications.

use std::path::Path;

use onload_engines::kind::EngineKind;
use onload_engines::reader::K3S;
use onload_engines::settings::{EngineSettings, EngineSpecDirs};
use onload_host::specdir::{OUTPUT_DIR, SPEC_DIRS};

use super::installed::InstalledEngine;
use crate::doctor::check::{Finding, Remedy};
use crate::doctor::context::{CheckContext, Findings};

pub(in super::super) fn check_spec_dirs(
    _: &CheckContext<'_>,
    engines: &[InstalledEngine],
) -> Findings {
    let findings = engines.iter().filter_map(|engine| {
        let settings = engine.settings.as_ref().ok()?;
        let spec_dirs = settings.spec_dirs.as_ref()?;
        let is_ours = |dir: &String| SPEC_DIRS.contains(&dir.trim_end_matches('/'));
        let finding = if spec_dirs.dirs.iter().any(is_ours) {
            Finding::pass(format!("looks into {}", spec_dirs.dirs.join(", ")))
        } else {
            let text = format!(
                "does not look into {OUTPUT_DIR}, where specifications are written: the line replaces the one that is there"
            );
            Finding::fail(text, add_dir_remedy(engine.kind, settings, spec_dirs))
        };
        Some(finding.with_path(&spec_dirs.file).with_subject(engine.kind.name()))
    });
    Ok(findings.collect())
}

/// The list as it is and our directory, in the place where the list stands: an engine does not join lists.
fn add_dir_remedy(
    kind: EngineKind,
    settings: &EngineSettings,
    spec_dirs: &EngineSpecDirs,
) -> Remedy {
    let dirs = spec_dirs.dirs.iter().map(String::as_str).chain([OUTPUT_DIR]);
    // TOML takes the strings of JSON.
    let dirs: Vec<String> = dirs.map(|dir| serde_json::Value::from(dir).to_string()).collect();
    let list = dirs.join(", ");
    let line = match kind {
        EngineKind::Docker => format!("\"cdi-spec-dirs\": [{list}]"),
        _ => format!("cdi_spec_dirs = [{list}]"),
    };
    let file = if spec_dirs.file == Path::new(K3S) {
        Path::new(settings.k3s_template())
    } else {
        &spec_dirs.file
    };
    match &spec_dirs.section {
        Some(section) => Remedy::write_under(file, section, line),
        None => Remedy::write(file, line),
    }
}
