//! What every engine is told about this package.

/// The name under which engines know `onload-container-runtime`.
pub(crate) const RUNTIME_NAME: &str = "onload";
/// Where the package installs it.
pub(crate) const RUNTIME_PATH: &str = "/usr/bin/onload-container-runtime";
/// The annotations that an engine passes on from a pod to its containers, as a pattern of Go's
/// `path.Match`, whose `*` stops at a slash: no onload.dev annotation has a second one.
pub(super) const POD_ANNOTATIONS: &str = "onload.dev/*";
/// How each file begins that we made and that has no backup.
pub(super) const WRITTEN: &str = "# Written by \"onload-ctk runtime configure";
/// Where specifications are written at boot. An engine that looks elsewhere does not find them.
pub(super) const SPEC_DIRS: [&str; 2] = ["/var/run/cdi", "/run/cdi"];

/// Warns that an engine looks for specifications elsewhere.
pub(super) fn warn_of_spec_dirs<'a>(
    key: &str,
    mut dirs: impl Iterator<Item = &'a str>,
    warnings: &mut Vec<String>,
) {
    if !dirs.any(|dir| SPEC_DIRS.contains(&dir.trim_end_matches('/'))) {
        let [ours, _] = SPEC_DIRS;
        warnings.push(format!(
            "{key} does not name {ours}, where specifications are written; add it there"
        ));
    }
}
