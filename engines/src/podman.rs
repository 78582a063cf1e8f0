//! A drop-in for podman: our runtime, and the directory of our `precreate` hook.
//!
//! CDI is always on there. A list of hook directories replaces those of earlier files, so ours
//! repeats them, starting with podman's default. Our hook has a separate directory because CRI-O
//! and buildah reject its stage in the default one.

use std::path::{Path, PathBuf};

use anyhow::Result;
use onload_host::host::Host;
use toml_edit::{Array, DocumentMut, Item, Value};

use crate::default_runtime;
use crate::files::{KeptPart, NewText, RelatedFile, RelatedFiles};
use crate::oci_runtime::DefaultRuntime;
use crate::our_runtime::{HOOKS_DIR, RUNTIME_NAME, RUNTIME_PATH, taken_error};
use crate::settings::EngineSettings;
use crate::toml::{
    add_text, format_item, get, get_or_create_array, get_or_create_section, hide_heading, list,
    parse, parse_all, parse_other, prune, read, remove, render, render_remaining, strings,
};

pub(crate) const FILE: &str = "/etc/containers/containers.conf.d/99-onload-ctk.conf";

const DIRECTORY: &str = "/etc/containers/containers.conf.d";
/// The drop-in directories that podman 6 reads for root. Earlier versions read only [`DIRECTORY`]
/// (containers.conf(5) of containers-common 0.67 and 0.69).
const DROP_INS: [&str; 4] = [
    "/usr/share/containers/containers.conf.d",
    "/usr/share/containers/containers.rootful.conf.d",
    DIRECTORY,
    "/etc/containers/containers.rootful.conf.d",
];
const PATTERN: &str = "*.conf";
/// podman's default.
const DEFAULT_HOOKS_DIR: &str = "/usr/share/containers/oci/hooks.d";
const HEADER: &str = "\
# Written by \"onload-ctk runtime configure --runtime podman\"; --remove takes it away.
";
const HOOKS: [&str; 2] = ["engine", "hooks_dir"];
const RUNTIMES: [&str; 2] = ["engine", "runtimes"];
const RUNTIME: [&str; 3] = ["engine", "runtimes", RUNTIME_NAME];

pub(crate) const DEFAULT: &str = "runtime";
const DEFAULT_NAME: [&str; 2] = ["engine", DEFAULT];

pub(crate) fn read_settings(
    settings: &mut EngineSettings,
    file: &Path,
    text: &str,
) -> Result<(), String> {
    let document = read(text)?;
    settings.read_section(&document, &["engine"], file);
    Ok(())
}

pub(crate) fn is_default_runtime(text: &str) -> Result<bool> {
    Ok(default_runtime::is_our_runtime(&*parse(text)?, &DEFAULT_NAME))
}

/// The default runtime of files in the order in which they are read; `None` if none names it.
pub(crate) fn default_runtime(host: &Host, texts: &[&str]) -> Result<Option<DefaultRuntime>> {
    let documents = parse_all(texts)?;
    let Some(name) = default_runtime::find_other(&documents, &DEFAULT_NAME) else {
        return Ok(None);
    };
    let [engine, runtimes] = RUNTIMES;
    let list = documents.iter().rev().find_map(|file| list(get(file, &[engine, runtimes, name])));
    // The first that exists.
    for path in list.into_iter().flatten() {
        if host.entry(Path::new(&path))?.is_some() {
            return Ok(Some(DefaultRuntime { name: name.to_owned(), program: Some(path.into()) }));
        }
    }
    Ok(Some(DefaultRuntime { name: name.to_owned(), program: Some(name.into()) }))
}

/// A user's files are read after the host's (containers.conf(5)).
pub(crate) fn related_files(file: &Path) -> Vec<RelatedFiles> {
    let mut related = vec![
        RelatedFiles::File("/usr/share/containers/containers.conf".into()),
        RelatedFiles::File("/etc/containers/containers.conf".into()),
        RelatedFiles::Directories(DROP_INS.map(PathBuf::from).to_vec(), PATTERN.to_owned()),
    ];
    let directory = file.parent().unwrap_or(Path::new("/"));
    if directory != Path::new(DIRECTORY) {
        let above = directory.parent().unwrap_or(directory);
        related.push(RelatedFiles::File(above.join("containers.conf")));
        related.push(RelatedFiles::Directories(vec![directory.to_owned()], PATTERN.to_owned()));
    }
    related
}

/// podman 6 reads the drop-ins of all directories in the order of their names.
fn is_read_after(other: &RelatedFile, file: &Path) -> bool {
    let is_drop_in = |path: &Path| {
        let mut all = DROP_INS.iter().map(Path::new);
        path.parent().is_some_and(|parent| all.any(|directory| directory == parent))
    };
    other.is_read_after(file)
        || is_drop_in(&other.path) && is_drop_in(file) && other.path.file_name() > file.file_name()
}

#[derive(Debug)]
struct MergedSettings {
    /// The hook directories of the files that are read before ours.
    hooks: Vec<String>,
    warnings: Vec<String>,
    other_default: Option<String>,
}

/// A file's list of hooks replaces those of earlier files, or is added to them.
fn merge_settings(file: &Path, other_files: &[RelatedFile]) -> Result<MergedSettings> {
    let mut settings = MergedSettings {
        hooks: vec![DEFAULT_HOOKS_DIR.to_owned()],
        warnings: Vec::new(),
        other_default: None,
    };
    for other in other_files {
        let document = parse_other(other)?;
        if let Some(runtime) = get(&document, &RUNTIME)
            && !is_our_runtime(runtime)
        {
            return Err(other.registered_error());
        }
        let later = default_runtime::later_file_warning(other, &document, &DEFAULT_NAME);
        settings.other_default =
            later.filter(|_| is_read_after(other, file)).or(settings.other_default);
        let Some(hooks) = get(&document, &HOOKS) else { continue };
        let replaces = !appends(hooks);
        if !is_read_after(other, file) {
            if replaces {
                settings.hooks.clear();
            }
            settings.hooks.extend(strings(Some(hooks)).map(str::to_owned));
        } else if replaces && !strings(Some(hooks)).any(|dir| dir == HOOKS_DIR) {
            settings.warnings.push(format!(
                "{} is read after {} and replaces hooks_dir; add {HOOKS_DIR} there",
                other.path.display(),
                file.display()
            ));
        }
    }
    Ok(settings)
}

/// From podman 4.8 on an array that holds `{append = true}` adds to what earlier files say.
fn appends(hooks: &Item) -> bool {
    let mut marks = hooks.as_array().into_iter().flatten().filter_map(Value::as_inline_table);
    marks.any(|mark| mark.get("append").and_then(Value::as_bool) == Some(true))
}

pub(crate) fn configure(
    file: &Path,
    old: Option<&str>,
    other_files: &[RelatedFile],
    set_default: bool,
) -> Result<NewText> {
    let mut settings = merge_settings(file, other_files)?;
    let old = old.unwrap_or(HEADER);
    let mut document = parse(old)?;
    if let Some(existing) = get(&document, &RUNTIME)
        && !is_our_runtime(existing)
    {
        return Err(taken_error(format_item(existing)));
    }
    let has_list = get(&document, &HOOKS).is_some();
    let engine = get_or_create_section(&mut document, &["engine"])?;
    engine.set_implicit(false);
    let hooks = get_or_create_array(engine, HOOKS[1])?;
    if !has_list {
        *hooks = settings.hooks.iter().collect::<Array>();
    }
    add_text(hooks, HOOKS_DIR);
    if set_default {
        default_runtime::set(&mut document, &DEFAULT_NAME)?;
        settings.warnings.extend(settings.other_default);
    }
    if get(&document, &RUNTIME).is_none() {
        let runtimes = get_or_create_section(&mut document, &RUNTIMES)?;
        runtimes.set_implicit(false);
        let path: Array = [RUNTIME_PATH].into_iter().collect();
        runtimes.insert(RUNTIME_NAME, toml_edit::value(path));
    }
    Ok(NewText { text: Some(render(&document, old)), warnings: settings.warnings })
}

fn is_our_runtime(runtime: &Item) -> bool {
    strings(Some(runtime)).any(|path| path == RUNTIME_PATH)
}

pub(crate) fn registers_runtime(text: &str) -> Result<bool> {
    Ok(get(&*parse(text)?, &RUNTIME).is_some_and(is_our_runtime))
}

pub(crate) fn has_our_settings(text: &str) -> Result<bool> {
    let document = parse(text)?;
    let hooks = strings(get(&document, &HOOKS)).any(|dir| dir == HOOKS_DIR);
    Ok(hooks || get(&document, &RUNTIME).is_some_and(is_our_runtime))
}

pub(crate) fn unconfigure(
    file: &Path,
    now: &str,
    other_files: &[RelatedFile],
    keep: KeptPart,
) -> Result<Option<String>> {
    let mut document = parse(now)?;
    if keep == KeptPart::Nothing && get(&document, &RUNTIME).is_some_and(is_our_runtime) {
        remove(&mut document, &RUNTIME);
        prune(&mut document, &RUNTIMES, None);
    }
    let is_ours_alone = now.contains(HEADER);
    default_runtime::remove_default(&mut document, &DEFAULT_NAME, is_ours_alone);
    remove_hooks(file, &mut document, other_files)?;
    prune(&mut document, &["engine"], None);
    if is_ours_alone {
        hide_heading(&mut document, &["engine"], None);
    }
    if keep == KeptPart::Runtime {
        return Ok(Some(render(&document, now)));
    }
    Ok(render_remaining(&document, now, HEADER))
}

/// Removes our directory from the list of hooks. Removes the list too if it is the same as without
/// our file, or has no other directory.
fn remove_hooks(
    file: &Path,
    document: &mut DocumentMut,
    other_files: &[RelatedFile],
) -> Result<()> {
    if get(document, &HOOKS).is_none() {
        return Ok(());
    }
    let engine = get_or_create_section(document, &["engine"])?;
    let hooks = get_or_create_array(engine, HOOKS[1])?;
    hooks.retain(|dir| dir.as_str() != Some(HOOKS_DIR));
    let dirs: Vec<String> = hooks.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    // An empty list would turn all hooks off.
    if dirs.is_empty() || dirs == merge_settings(file, other_files)?.hooks {
        remove(document, &HOOKS);
    }
    Ok(())
}
