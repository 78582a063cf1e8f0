//! Checks the owners and modes of files that the hook and the wrapper read: they run as root, and reject files that
//! another user owns or can write.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use onload_cdi::DEFAULT_DIRS;
use onload_core::config::Preload;
use onload_core::onload::PRELOAD_FILE;
use onload_core::onload::RUNTIMES;
use onload_host::specdir::FILE_PREFIX;
use onload_sys::fs::trust::TrustError;
use onload_sys::text::{ErrorChain, format_count, quote_for_shell};

use super::check::{Finding, Remedy};
use super::context::{CheckContext, Findings, HostResult};

const WRAPPER: &str = "/usr/bin/onload-container-runtime";

/// Checks that only root can have changed each file and every directory above it.
pub(super) fn check_files(context: &CheckContext<'_>) -> Findings {
    let paths = trusted_paths(context)?;
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let trusted = match context.host.trusted() {
        Ok(trusted) => trusted,
        Err(error) => {
            let reason = ErrorChain(&error).to_string();
            let retry = Remedy::run("sudo onload-ctk doctor");
            return Ok(vec![Finding::unknown(reason, retry).with_path("/")]);
        }
    };
    let mut wrong = BTreeSet::new();
    let results = paths.iter().filter_map(|path| {
        let error = trusted.check(path).err()?;
        trust_finding(&error, path, &mut wrong)
    });
    let mut findings: Vec<Finding> = results.collect();
    if findings.is_empty() {
        let text = format!(
            "only root can change {}",
            format_count(paths.len(), "security-relevant file", "security-relevant files")
        );
        let finding = Finding::pass(text);
        findings.push(paths.iter().fold(finding, Finding::with_path));
    }
    Ok(findings)
}

fn trust_finding(
    error: &TrustError,
    path: &Path,
    wrong: &mut BTreeSet<PathBuf>,
) -> Option<Finding> {
    let text = ErrorChain(error).to_string();
    let fails = |command: &str, target: &Path| {
        let run = Remedy::run(format!("{command} {}", quote_for_shell(target)));
        Finding::fail(text.clone(), run)
    };
    let (target, finding) = match error {
        TrustError::Owner { path: target, .. } => (target, fails("chown root:root", target)),
        TrustError::Writable { path: target, .. } => (target, fails("chmod go-w", target)),
        TrustError::Open { path: target, source }
            if source.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            let retry = Remedy::run("sudo onload-ctk doctor");
            (target, Finding::unknown(text, retry))
        }
        _ => return None,
    };
    let is_new = wrong.insert(target.clone());
    is_new.then(|| finding.with_path(path).with_subject(target.display().to_string()))
}

fn trusted_paths(context: &CheckContext<'_>) -> HostResult<Vec<PathBuf>> {
    let config = context.config;
    let mut paths: Vec<PathBuf> =
        vec![context.config_file.to_owned(), config.cdi.hook_path.clone()];
    if config.runtime.path.as_os_str().is_empty() {
        paths.push(WRAPPER.into());
        paths.extend(RUNTIMES.map(PathBuf::from));
    } else {
        paths.extend([WRAPPER.into(), config.runtime.path.clone()]);
    }
    if config.cdi.preload == Preload::File {
        paths.push(PRELOAD_FILE.into());
    }
    for directory in DEFAULT_DIRS.map(Path::new) {
        let names = context
            .host
            .list(directory)?
            .names
            .into_iter()
            .filter(|name| name.starts_with(FILE_PREFIX));
        paths.extend(names.map(|name| directory.join(name)));
    }
    let mut existing = Vec::new();
    for path in paths {
        if context.is_file(&path)? {
            existing.push(path);
        }
    }
    Ok(existing)
}
