//! The specifications on disk: whether they describe the host, and whether engines can read them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use onload_host::discover::unread::UnreadEntry;
use onload_host::drift::find_drift;
use onload_host::generate::InstalledFiles;
use onload_host::specdir::{FileAction, Manifest, OUTPUT_DIR, SpecDir};
use onload_lease::drain::DRAIN_PATH;
use onload_sys::text::{ErrorChain, format_count, quote_for_shell};

use super::check::{Finding, Remedy};
use super::context::{CheckContext, Findings, HostResult};

const MAX_DRAINED: usize = 16;
const OTHERS_READ: u32 = 0o004;
const OTHERS_SEARCH: u32 = 0o005;

fn regenerate_remedy(context: &CheckContext<'_>) -> HostResult<Remedy> {
    Ok(Remedy::run(if context.has_units()? {
        "systemctl start onload-cdi.service"
    } else {
        "onload-ctk cdi generate"
    }))
}

/// A reminder of drained devices.
pub(super) fn check_drained(context: &CheckContext<'_>) -> Findings {
    let drain = &context.inventory.drain;
    if drain.is_empty() {
        return Ok(vec![Finding::pass("nothing is drained").with_path(DRAIN_PATH)]);
    }
    let findings = drain.iter().take(MAX_DRAINED).map(|entry| {
        let target = entry.target.to_string();
        let undrain = format!("onload-ctk undrain {}", quote_for_shell(target.clone()));
        let finding = format!("drained {}: no container gets it", entry.describe());
        let finding = Finding::warn(finding, Remedy::run(undrain));
        finding.with_subject(target).with_path(DRAIN_PATH)
    });
    Ok(findings.collect())
}

pub(super) fn check_up_to_date(context: &CheckContext<'_>) -> Findings {
    let output = Path::new(OUTPUT_DIR);
    let shown = context.host.outside_path(output);
    let recheck = Remedy::run("onload-ctk cdi check");
    let directory = context.host.directory(output)?.map(|open| SpecDir::new(shown, open));
    let (existing, manifest) = match directory.as_ref().map(read) {
        None => Default::default(),
        Some(Ok(read)) => read,
        Some(Err(reason)) => {
            return Ok(vec![Finding::unknown(reason, recheck).with_path(OUTPUT_DIR)]);
        }
    };
    let result = find_drift(
        &existing,
        manifest.as_ref(),
        context.inventory,
        context.pools,
        context.config,
        InstalledFiles::read(context.host, context.config)?,
    );
    let drift = match result {
        Ok(drift) => drift,
        Err(error) => {
            let reason = format!("{error:#}");
            let generate = Remedy::run("onload-ctk cdi generate");
            return Ok(vec![Finding::fail(reason, generate).with_path(OUTPUT_DIR)]);
        }
    };
    let stale: Vec<&str> = drift
        .plan
        .steps
        .iter()
        .filter(|step| matches!(step.action, FileAction::Write(_) | FileAction::Remove))
        .map(|step| step.name.as_str())
        .collect();
    let foreign: Vec<&str> = drift.plan.left_files().collect();
    let undecided = |unread: &&UnreadEntry| {
        unread.kinds.iter().any(|class| drift.manifest.kinds.contains(class))
    };
    if stale.is_empty()
        && foreign.is_empty()
        && let Some(unread) = context.inventory.unread.iter().find(undecided)
    {
        let text = format!("could not determine whether they are up to date: {}", unread.reason);
        let finding = Finding::unknown(text, Remedy::for_unread()).with_path(&unread.path);
        return Ok(vec![finding.with_path(OUTPUT_DIR)]);
    }
    let (finding, named): (Finding, &[&str]) = match (stale.as_slice(), foreign.as_slice()) {
        ([], []) if existing.is_empty() => {
            (Finding::pass("no devices, no CDI specifications"), &[])
        }
        ([], []) => {
            let files = format_count(existing.len(), "file", "files");
            (Finding::pass(format!("{files}, up to date")), &[])
        }
        ([], foreign) => {
            let files = format_count(foreign.len(), "file", "files");
            let text = format!("{files} changed by another program or user");
            (Finding::warn(text, Remedy::run("onload-ctk cdi generate --force")), foreign)
        }
        (stale, _) if existing.is_empty() && manifest.is_none() => {
            let text = format_count(stale.len(), "file missing", "files missing");
            (Finding::fail(text, regenerate_remedy(context)?), &[])
        }
        (stale, _) => {
            let text = format_count(stale.len(), "file out of date", "files out of date");
            (Finding::fail(text, regenerate_remedy(context)?), stale)
        }
    };
    let finding = finding.with_path(OUTPUT_DIR);
    Ok(vec![named.iter().fold(finding, |finding, name| finding.with_path(output.join(name)))])
}

type SpecDirContent = (BTreeMap<String, Option<Vec<u8>>>, Option<Manifest>);

fn read(directory: &SpecDir) -> Result<SpecDirContent, String> {
    let to_reason = |error: anyhow::Error| format!("{error:#}");
    let existing = directory.read_files().map_err(to_reason)?;
    let manifest = directory.read_manifest().map_err(to_reason)??;
    Ok((existing, manifest))
}

pub(super) fn check_valid(context: &CheckContext<'_>) -> Findings {
    let conflicts = context.specs.conflicts();
    let mut findings = Vec::new();
    for (path, errors) in context.specs.errors() {
        let Some(error) = errors.first() else { continue };
        // Conflicts have another check.
        if conflicts.iter().any(|conflict| conflict.paths.contains(path)) {
            continue;
        }
        let validate = format!("onload-ctk cdi validate {}", quote_for_shell(path));
        let text =
            format!("engines do not read it: {}; correct it, or move it away", ErrorChain(error));
        let finding = Finding::fail(text, Remedy::run(validate))
            .with_remedy(Remedy::run(rename_command(path)))
            .with_path(path);
        findings.push(finding.with_subject(path.display().to_string()));
    }
    let files = context.specs.paths().len();
    if findings.is_empty() && files > 0 {
        findings.push(
            Finding::pass(format_count(files, "file is valid", "files are valid"))
                .with_path(OUTPUT_DIR),
        );
    }
    Ok(findings)
}

/// Checks that no device is in two files, which engines reject, and that no file hides another.
pub(super) fn check_conflicts(context: &CheckContext<'_>) -> Findings {
    let mut findings = Vec::new();
    let mut files: BTreeSet<Vec<PathBuf>> = BTreeSet::new();
    for conflict in context.specs.conflicts() {
        let Some(last) = conflict.paths.last().filter(|_| files.insert(conflict.paths.clone()))
        else {
            continue;
        };
        let text = format!("{} is in two files, so no container gets it", conflict.name);
        let finding = Finding::fail(text, Remedy::run(rename_command(last)));
        let finding = conflict.paths.iter().fold(finding, Finding::with_path);
        findings.push(finding.with_subject(last.display().to_string()));
    }
    let mut hidden: BTreeSet<&Path> = BTreeSet::new();
    for shadowed in context.specs.shadowed() {
        if !hidden.insert(&shadowed.path) {
            continue;
        }
        let shadowing_path = shadowed.by.display();
        let text =
            format!("its {} has no effect: {shadowing_path} takes precedence", shadowed.name);
        let finding = Finding::warn(text, Remedy::run(rename_command(&shadowed.path)))
            .with_path(&shadowed.path)
            .with_path(&shadowed.by);
        findings.push(finding.with_subject(shadowed.path.display().to_string()));
    }
    if findings.is_empty() && context.specs.devices().next().is_some() {
        let count = context.specs.devices().count();
        let singular = "device name, no duplicates";
        let text = format_count(count, singular, "device names, no duplicates");
        findings.push(Finding::pass(text).with_path(OUTPUT_DIR));
    }
    Ok(findings)
}

/// No reader takes a file with that ending.
fn rename_command(path: &Path) -> String {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".off");
    format!("mv {} {}", quote_for_shell(path), quote_for_shell(aside))
}

/// Whether users other than root can read the files, as rootless engines do.
pub(super) fn check_readable(context: &CheckContext<'_>) -> Findings {
    let paths = context.specs.paths();
    let mut requirements = BTreeSet::new();
    for path in &paths {
        requirements.insert((*path, OTHERS_READ, "o+r"));
        requirements.extend(path.parent().map(|parent| (parent, OTHERS_SEARCH, "o+rx")));
    }
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let findings = requirements.into_iter().filter_map(|(path, required, change)| {
        // A file that was removed in the meantime causes no conflict.
        let mode = fs::metadata(path).ok()?.permissions().mode();
        let open = Remedy::run(format!("chmod {change} {}", quote_for_shell(path)));
        let finding = Finding::warn("rootless engines cannot read it", open).with_path(path);
        (mode & required != required).then(|| finding.with_subject(path.display().to_string()))
    });
    let mut findings: Vec<Finding> = findings.collect();
    if findings.is_empty() {
        let text = format!("every user can read {}", format_count(paths.len(), "file", "files"));
        findings.push(Finding::pass(text).with_path(OUTPUT_DIR));
    }
    Ok(findings)
}
