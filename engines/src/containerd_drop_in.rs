//! A drop-in for containerd 2, which merges what its `config.toml` imports into it key by key (commit
//! a21e379b6, in 2.0.0; `mergeConfig` in `cmd/containerd/server/config/config.go`). To containerd 1, a
//! section of a drop-in replaces the whole section of the plugin.
//!
//! It is of the format of the file that imports it: of a newer one containerd 2.3 refuses it, and 2.0 no
//! longer migrates that file.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use toml_edit::{DocumentMut, Item, Value};

use crate::containerd::{
    CRI_PLUGINS, ConfigLayout, is_our_runtime, refuse_disabled, refuse_without_default, register,
    related_files as imports, replaced_runtime, set_default_name,
};
use crate::default_runtime;
use crate::files::{KeptPart, NewText, RelatedFile, RelatedFiles};
use crate::kind::EngineKind;
use crate::kubernetes::is_k0s_managed;
use crate::nri;
use crate::our_runtime::{RUNTIME_NAME, warn_of_spec_dirs};
use crate::toml::{
    get, get_or_create_section, parse, parse_others_without, prune, remove_section, remove_value,
    render, set_value, strings,
};
use crate::variant::EngineVariant;

/// The drop-in in the directory that the default file of containerd 2.2 and later imports (commit
/// 9ca659a53).
pub(crate) const FILE: &str = "/etc/containerd/conf.d/99-onload-ctk.toml";

const HEADER: &str = "\
# Written by \"onload-ctk runtime configure --runtime containerd\"; --remove takes it away.
";
/// The first format that only containerd 2 reads, which merges its sections.
const FIRST_VERSION: i64 = 3;

/// Whether a file is a drop-in by its place: `conf.d/NAME.toml`, `config-v3.toml.d/NAME.toml`.
pub(crate) fn is_drop_in(file: &Path) -> bool {
    let directory = file.parent().and_then(Path::file_name);
    directory.is_some_and(|name| name.as_encoded_bytes().ends_with(b".d"))
}

pub(crate) fn main_file(file: &Path) -> PathBuf {
    let directory = file.parent().unwrap_or(Path::new("/"));
    // k0s imports containerd.d into containerd.toml.
    let name = if directory.ends_with("containerd.d") { "containerd.toml" } else { "config.toml" };
    directory.with_file_name(name)
}

pub(crate) fn related_files(file: &Path) -> Vec<RelatedFiles> {
    let directory = file.parent().unwrap_or(Path::new("/")).to_owned();
    vec![
        RelatedFiles::File(main_file(file)),
        RelatedFiles::Directories(vec![directory], "*.toml".to_owned()),
    ]
}

/// Returns whether `config.toml` imports the usual drop-in and does not register our runtime
/// itself. Returns false for a text that cannot be parsed: configuring that file directly reports
/// its error.
pub(crate) fn is_read_by(main: &str) -> bool {
    let Ok(document) = parse(main) else { return false };
    let has_ours = CRI_PLUGINS.iter().any(|plugin| {
        let path = ["plugins", plugin, "containerd", "runtimes", RUNTIME_NAME];
        get(&document, &path).is_some()
    });
    !has_ours && find_layout(main, Path::new(FILE)).is_ok()
}

/// The layout of the main file, which has to have a drop-in read and merged.
fn find_layout(main: &str, file: &Path) -> Result<ConfigLayout> {
    let path = main_file(file);
    let document = parse(main)?;
    refuse_disabled(&document)?;
    let layout = ConfigLayout::detect(&document)?;
    // k0s imports what is in this directory, and merges it itself for containerd 1.
    if is_k0s_managed(main) {
        return Ok(layout);
    }
    if layout.version < FIRST_VERSION {
        bail!(
            "it is of format version 2, so containerd 1 may read it, for which a drop-in replaces \
             the whole CRI plugin; use --file {}",
            editable(&path, "config.toml.tmpl").display()
        );
    }
    let imports = imports(&path, Some(main))?;
    if !imports.iter().any(|import| import.contains(file)) {
        bail!(
            "its \"imports\" does not include the drop-in, so it would not be read; add it there, \
             or use --file {}",
            editable(&path, "config-v3.toml.tmpl").display()
        );
    }
    Ok(layout)
}

fn editable(main: &Path, template: &str) -> PathBuf {
    match EngineVariant::from_path(main) {
        Some(EngineVariant::Bundled(EngineKind::K3s | EngineKind::Rke2)) => {
            main.with_file_name(template)
        }
        _ => main.to_owned(),
    }
}

pub(crate) fn configure(
    file: &Path,
    old: Option<&str>,
    other_files: &[RelatedFile],
    set_default: bool,
) -> Result<NewText> {
    let main = main_file(file);
    let Some(importing) = other_files.iter().find(|other| other.path == main) else {
        bail!(
            "{} does not exist, so a drop-in would not be read; start containerd (or k3s) once, or \
             use another file",
            main.display()
        );
    };
    let layout = find_layout(&importing.text, file).with_context(|| importing.describe())?;
    // Two files with a runtime of one name are merged into one that is neither.
    let documents = parse_others_without(other_files, &layout.runtime_path(RUNTIME_NAME))?;
    let old = old.unwrap_or(HEADER);
    let mut document = parse(old)?;
    if document.is_empty() {
        document.insert("version", toml_edit::value(layout.version));
    }
    enable_cdi(&mut document, &layout, &documents)?;
    let files = documents.iter().map(|(_, other)| other).chain([&document]);
    let settings = replaced_runtime(&layout, &files.collect::<Vec<_>>());
    register(&mut document, &layout, settings)?;
    let mut warnings = Vec::new();
    let dirs = ["plugins", layout.plugin, "cdi_spec_dirs"];
    if let Some(dirs) = find_last(&documents, &dirs) {
        warn_of_spec_dirs("cdi_spec_dirs", strings(Some(dirs)), &mut warnings);
    }
    if set_default {
        let key = layout.default_name();
        default_runtime::refuse_other(&document, &key)?;
        set_default_name(&mut document, &layout)?;
        let later = documents.iter().filter(|(other, _)| other.is_read_after(file));
        warnings.extend(default_runtime::later_file_warnings(later, &key));
    }
    // With containerd 1, the runtimes are in a file that only k0s writes.
    if layout.version >= FIRST_VERSION {
        let other_documents = documents.iter().map(|(_, other)| other);
        refuse_without_default(&document, &layout, other_documents)?;
    }
    let text = Some(render(&document, old));
    Ok(NewText { text, warnings })
}

/// Enables CDI if another file disables it, and in containerd 1, which disables it by default.
fn enable_cdi(
    document: &mut DocumentMut,
    layout: &ConfigLayout,
    documents: &[(&RelatedFile, DocumentMut)],
) -> Result<()> {
    let is_on_by_default = layout.version >= FIRST_VERSION;
    let is_on = find_last(documents, &layout.enable_cdi()).and_then(Item::as_bool);
    if !is_on.unwrap_or(is_on_by_default) {
        let cri = get_or_create_section(document, &layout.cri_path())?;
        set_value(cri, "enable_cdi", Value::from(true));
    }
    Ok(())
}

fn find_last<'d>(documents: &'d [(&RelatedFile, DocumentMut)], path: &[&str]) -> Option<&'d Item> {
    documents.iter().rev().find_map(|(_, document)| get(document, path))
}

pub(crate) fn unconfigure(now: &str, keep: KeptPart) -> Result<Option<String>> {
    let mut document = parse(now)?;
    let layout = ConfigLayout::detect(&document)?;
    let runtime = layout.runtime_path(RUNTIME_NAME);
    let is_ours_alone = now.contains(HEADER);
    default_runtime::remove_default(&mut document, &layout.default_name(), is_ours_alone);
    nri::remove_nri(&mut document, is_ours_alone)?;
    // We created this file, so we enabled CDI in it.
    if is_ours_alone && get(&document, &layout.enable_cdi()).and_then(Item::as_bool) == Some(true) {
        remove_value(&mut document, &layout.enable_cdi(), None);
    }
    if keep == KeptPart::Runtime {
        return Ok(Some(render(&document, now)));
    }
    if get(&document, &runtime).is_some_and(is_our_runtime) {
        remove_section(&mut document, &runtime);
    }
    prune(&mut document, &runtime[..4], None);
    let only_version = document.len() == 1 && get(&document, &["version"]).is_some();
    let text = render(&document, now).replacen(HEADER, "", 1);
    let has_content = !document.is_empty() && !only_version || text.contains('#');
    Ok((has_content || !is_ours_alone).then_some(text))
}
