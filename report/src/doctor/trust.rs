//! Who could change the files that the hook and the wrapper ask for: they run as root, and refuse a file
//! that belongs to somebody else or that others may write to.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use onload_cdi::DEFAULT_DIRS;
use onload_core::config::{CONFIG_PATH, Preload};
use onload_core::onload::PRELOAD_FILE;
use onload_core::onload::RUNTIMES;
use onload_host::host::HostError;
use onload_host::specdir::FILE_PREFIX;
use onload_sys::fs::trust::TrustError;
use onload_sys::text::{ErrorChain, format_count, quote_for_shell};

use super::check::{Finding, Remedy};
use super::context::{CheckContext, Findings};

const WRAPPER: &str = "/usr/bin/onload-container-runtime";

/// Whether root alone could have changed each of them, and every directory above.
pub(super) fn check_files(examined: &CheckContext<'_>) -> Findings {
    let paths = trusted_paths(examined)?;
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let trusted = match examined.host.trusted() {
        Ok(trusted) => trusted,
        Err(error) => {
            let why = ErrorChain(&error).to_string();
            let again = Remedy::run("sudo onload-ctk doctor");
            return Ok(vec![Finding::unknown(why, again).with_path("/")]);
        }
    };
    let mut wrong = BTreeSet::new();
    let judged = paths.iter().filter_map(|path| {
        let error = trusted.check(path).err()?;
        trust_finding(&error, path, &mut wrong)
    });
    let mut findings: Vec<Finding> = judged.collect();
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
    let fails = |command: &str, place: &Path| {
        let run = Remedy::run(format!("{command} {}", quote_for_shell(place)));
        Finding::fail(text.clone(), run)
    };
    let (place, finding) = match error {
        TrustError::Owner { path: place, .. } => (place, fails("chown root:root", place)),
        TrustError::Writable { path: place, .. } => (place, fails("chmod go-w", place)),
        TrustError::Open { path: place, source }
            if source.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            let again = Remedy::run("sudo onload-ctk doctor");
            (place, Finding::unknown(text, again))
        }
        _ => return None,
    };
    let is_new = wrong.insert(place.clone());
    is_new.then(|| finding.with_path(path).with_subject(place.display().to_string()))
}

fn trusted_paths(examined: &CheckContext<'_>) -> Result<Vec<PathBuf>, HostError> {
    let config = examined.config;
    let mut wanted: Vec<PathBuf> = vec![CONFIG_PATH.into(), config.cdi.hook_path.clone()];
    if config.runtime.path.as_os_str().is_empty() {
        wanted.push(WRAPPER.into());
        wanted.extend(RUNTIMES.map(PathBuf::from));
    } else {
        wanted.extend([WRAPPER.into(), config.runtime.path.clone()]);
    }
    if config.cdi.preload == Preload::File {
        wanted.push(PRELOAD_FILE.into());
    }
    for directory in DEFAULT_DIRS.map(Path::new) {
        let names = examined.host.list(directory)?.names;
        let names = names.into_iter().filter(|name| name.starts_with(FILE_PREFIX));
        wanted.extend(names.map(|name| directory.join(name)));
    }
    let mut there = Vec::new();
    for path in wanted {
        if examined.is_file(&path)? {
            there.push(path);
        }
    }
    Ok(there)
}
