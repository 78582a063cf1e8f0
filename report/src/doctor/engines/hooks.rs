//! The directories of hooks that podman, CRI-O and buildah read.

use std::path::Path;

use onload_engines::kind::EngineKind;
use onload_engines::our_runtime::HOOKS_DIR;
use onload_sys::text::quote_for_shell;

use super::installed::InstalledEngine;
use crate::doctor::check::{Finding, Remedy};
use crate::doctor::context::{CheckContext, Findings, HostResult};

/// Directories of hooks that podman shares with CRI-O and buildah.
const SHARED: [&str; 2] = ["/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d"];
const MAX_BYTES: u64 = 1024 * 1024;

/// Whether the directories of hooks hold what their readers understand: `precreate` in a shared one keeps
/// CRI-O from starting and buildah from running.
pub(crate) fn check_hook_dirs(context: &CheckContext<'_>, engines: &[InstalledEngine]) -> Findings {
    let reads_hooks =
        |engine: &&InstalledEngine| matches!(engine.kind, EngineKind::Crio | EngineKind::Podman);
    if !engines.iter().any(|engine| reads_hooks(&engine)) {
        return Ok(Vec::new());
    }
    let mut findings = Vec::new();
    for directory in SHARED.map(Path::new) {
        for name in context.host.list(directory)?.names {
            findings.extend(check_precreate(context, &directory.join(name))?);
        }
    }
    for engine in engines.iter().filter(reads_hooks) {
        findings.extend(missing_dir_finding(context, engine)?);
    }
    if findings.is_empty() {
        let text = "hook directories are valid";
        let finding = Finding::pass(text);
        findings.push(SHARED.iter().fold(finding, Finding::with_path));
    }
    Ok(findings)
}

pub(super) fn answers_annotations(
    context: &CheckContext<'_>,
    engine: &InstalledEngine,
) -> HostResult<bool> {
    Ok(has_hook_dir(engine) && context.exists(HOOKS_DIR)?)
}

fn has_hook_dir(engine: &InstalledEngine) -> bool {
    let settings = engine.settings.as_ref();
    settings.is_ok_and(|settings| {
        settings.hook_dirs.iter().any(|dir| dir.trim_end_matches('/') == HOOKS_DIR)
    })
}

fn check_precreate(context: &CheckContext<'_>, path: &Path) -> HostResult<Option<Finding>> {
    // Other endings are no hooks to those who read the directory (containers/common, pkg/hooks/read.go).
    let is_hook = path.as_os_str().as_encoded_bytes().ends_with(b".json");
    if !is_hook || !context.is_file(path)? {
        return Ok(None);
    }
    let text = context.host.bytes(path, MAX_BYTES)?.unwrap_or_default();
    if !String::from_utf8_lossy(&text).contains("\"precreate\"") {
        return Ok(None);
    }
    let move_remedy = Remedy::run(format!("mv {} {HOOKS_DIR}/", quote_for_shell(path)));
    let text = "it has the stage precreate, which prevents CRI-O and buildah from starting";
    let finding = Finding::fail(text, move_remedy).with_path(path);
    Ok(Some(finding.with_subject(path.display().to_string())))
}

fn missing_dir_finding(
    context: &CheckContext<'_>,
    engine: &InstalledEngine,
) -> HostResult<Option<Finding>> {
    if !has_hook_dir(engine) || context.exists(HOOKS_DIR)? {
        return Ok(None);
    }
    let text = format!("hooks_dir {HOOKS_DIR} is configured but missing: annotations are ignored");
    let finding = Finding::fail(text, context.reinstall_remedy()).with_path(HOOKS_DIR);
    Ok(Some(finding.with_subject(engine.kind.name())))
}
