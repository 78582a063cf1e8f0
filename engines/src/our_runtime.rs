//! The data about this package for all engines, and reasons for not changing a file.

use std::fmt::Display;

use anyhow::anyhow;
use onload_host::specdir::{OUTPUT_DIR, SPEC_DIRS};

pub const RUNTIME_NAME: &str = "onload";
pub const RUNTIME_PATH: &str = "/usr/bin/onload-container-runtime";
/// Our hook for podman; that of other engines is in another directory.
pub const HOOKS_DIR: &str = "/usr/share/onload-ctk/hooks.d/podman";
/// The annotations that an engine passes on from a pod to its containers, as a pattern of Go's
/// `path.Match`, whose `*` stops at a slash: no onload.dev annotation has a second one.
pub(crate) const POD_ANNOTATIONS: &str = "onload.dev/*";
/// How each file begins that we made and that has no backup.
pub(crate) const WRITTEN: &str = "# Written by \"onload-ctk runtime configure";
pub(crate) fn warn_of_spec_dirs<'a>(
    key: &str,
    mut dirs: impl Iterator<Item = &'a str>,
    warnings: &mut Vec<String>,
) {
    if !dirs.any(|dir| SPEC_DIRS.contains(&dir.trim_end_matches('/'))) {
        warnings.push(format!(
            "{key} does not contain {OUTPUT_DIR}, to which specifications are written; add it \
             there"
        ));
    }
}

/// The toolkit's drop-in or block was edited.
pub(crate) const CHANGED: &str = "it was edited, so the entries of onload-ctk cannot be told apart \
    from the rest; edit it manually";

/// A setting has another form than the engine gives it.
pub(crate) fn wrong_form_error(key: &str, expected: &str) -> anyhow::Error {
    anyhow!("{key} is not {expected}; correct it")
}

pub(crate) fn taken_error(registered: impl Display) -> anyhow::Error {
    anyhow!(
        "a runtime {RUNTIME_NAME} is registered already, and not as {RUNTIME_PATH} but as {registered}; rename or remove it"
    )
}
