//! A drop-in for CRI-O: a runtime handler. CDI is always on there.
//!
//! CRI-O hands all annotations of a pod on to its containers, and `allowed_annotations` takes none
//! but CRI-O's own: another one there keeps CRI-O from starting.

use std::path::{Path, PathBuf};

use anyhow::Result;
use toml_edit::{DocumentMut, Item, Value};

use crate::daemon::DaemonFlags;
use crate::default_runtime;
use crate::files::{KeptPart, NewText, RelatedFile, RelatedFiles};
use crate::nri;
use crate::oci_runtime::DefaultRuntime;
use crate::our_runtime::{RUNTIME_NAME, RUNTIME_PATH, taken_error};
use crate::settings::EngineSettings;
use crate::toml::{
    format_item, get, get_in, get_or_create_section, parse, parse_all, parse_others_without, prune,
    read, remove_section, render, render_remaining,
};

pub(crate) const FILE: &str = "/etc/crio/crio.conf.d/99-onload-ctk.conf";
const MAIN_FILE: &str = "/etc/crio/crio.conf";

const HEADER: &str =
    "# Written by \"onload-ctk runtime configure --runtime crio\"; --remove takes it away.
# A \
     RuntimeClass with the handler \"onload\" gives its pods the devices that their annotations \
     request.
";
const RUNTIMES: [&str; 3] = ["crio", "runtime", "runtimes"];
const RUNTIME: [&str; 4] = ["crio", "runtime", "runtimes", RUNTIME_NAME];
/// `oci` has conmon as its monitor and `pod` conmonrs; both start an OCI runtime.
const TYPE: &str = "runtime_type";
const OCI: &str = "oci";
const POD: &str = "pod";
/// Settings that are not copied from the runtime that ours replaces. A separate root directory, so that two programs do
/// not share their state.
const OWN_KEYS: [&str; 5] =
    ["runtime_path", TYPE, "runtime_root", "runtime_config_path", "inherit_default_runtime"];

pub(crate) const DEFAULT: &str = "default_runtime";
const DEFAULT_NAME: [&str; 3] = ["crio", "runtime", DEFAULT];

pub(crate) fn read_settings(
    settings: &mut EngineSettings,
    file: &Path,
    text: &str,
) -> Result<(), String> {
    let document = read(text)?;
    let nri = get(&document, &nri::ENABLE).and_then(Item::as_bool);
    settings.nri = nri.or(settings.nri);
    settings.read_section(&document, &["crio", "runtime"], file);
    let path_at = |key| get(&document, &["crio", key]).and_then(Item::as_str).map(PathBuf::from);
    settings.data_dir = path_at("root").or(settings.data_dir.take());
    settings.state_dir = path_at("runroot").or(settings.state_dir.take());
    Ok(())
}

/// Adds what the daemon's flags say to what its files say (crio(8)).
pub(crate) fn read_flags(settings: &mut EngineSettings, flags: &DaemonFlags) {
    settings.data_dir = flags.path(&["root", "r"]).or(settings.data_dir.take());
    settings.state_dir = flags.path(&["runroot"]).or(settings.state_dir.take());
}

/// The directory of the drop-ins that CRI-O reads.
pub(crate) fn drop_in_file(flags: &DaemonFlags) -> PathBuf {
    let dir = flags.path(&["config-dir", "d"]);
    let file = Path::new(FILE);
    dir.map_or(file.to_owned(), |dir| dir.join(file.file_name().unwrap_or_default()))
}

pub(crate) fn is_default_runtime(text: &str) -> Result<bool> {
    Ok(default_runtime::is_our_runtime(&*parse(text)?, &DEFAULT_NAME))
}

/// The default runtime of files in the order in which they are read; `None` if none names it.
pub(crate) fn default_runtime(texts: &[&str]) -> Result<Option<DefaultRuntime>> {
    let documents = parse_all(texts)?;
    let Some(name) = default_runtime::find_other(&documents, &DEFAULT_NAME) else {
        return Ok(None);
    };
    let [crio, runtime, runtimes] = RUNTIMES;
    let find_text = |key| {
        let path = [crio, runtime, runtimes, name, key];
        default_runtime::find_last(&documents, &path, |text| !text.is_empty())
    };
    let is_oci = find_text(TYPE).is_none_or(|kind| [OCI, POD].contains(&kind));
    let program = is_oci.then(|| find_text("runtime_path").unwrap_or(name).into());
    Ok(Some(DefaultRuntime { name: name.to_owned(), program }))
}

pub(crate) fn related_files(file: &Path, flags: &DaemonFlags) -> Vec<RelatedFiles> {
    let directory = file.parent().unwrap_or(Path::new("/"));
    vec![
        RelatedFiles::File(flags.path(&["config", "c"]).unwrap_or_else(|| MAIN_FILE.into())),
        RelatedFiles::Directories(vec![directory.to_owned()], "*".to_owned()),
    ]
}

pub(crate) fn configure(
    file: &Path,
    old: Option<&str>,
    other_files: &[RelatedFile],
    set_default: bool,
) -> Result<NewText> {
    let other_documents = parse_others_without(other_files, &RUNTIME)?;
    let mut document = parse(old.unwrap_or(HEADER))?;
    match get(&document, &RUNTIME) {
        Some(existing) if !is_our_runtime(existing) => {
            let registered = get_in(existing, &["runtime_path"]).unwrap_or(existing);
            return Err(taken_error(format_item(registered)));
        }
        Some(_) => {}
        None => {
            let documents = other_documents.iter().map(|(_, document)| document);
            let settings = replaced_runtime(&documents.collect::<Vec<_>>());
            register(&mut document, settings)?;
        }
    }
    let mut warnings = Vec::new();
    if set_default {
        default_runtime::set(&mut document, &DEFAULT_NAME)?;
        let later = other_documents.iter().filter(|(other, _)| other.is_read_after(file));
        warnings.extend(default_runtime::later_file_warnings(later, &DEFAULT_NAME));
    }
    Ok(NewText { text: Some(render(&document, old.unwrap_or(HEADER))), warnings })
}

fn register(document: &mut DocumentMut, settings: Vec<(String, Value)>) -> Result<()> {
    let runtime = get_or_create_section(document, &RUNTIME)?;
    runtime.set_implicit(false);
    runtime.insert("runtime_path", toml_edit::value(RUNTIME_PATH));
    runtime.insert(TYPE, toml_edit::value(OCI));
    for (key, mut value) in settings {
        *value.decor_mut() = toml_edit::Decor::new(" ", "");
        runtime.insert(&key, Item::Value(value));
    }
    Ok(())
}

/// The settings of CRI-O's default runtime: its monitor, the annotations that it may act on.
fn replaced_runtime(documents: &[&DocumentMut]) -> Vec<(String, Value)> {
    let find_last = |path: &[&str]| documents.iter().rev().find_map(|d| get(d, path));
    let default = find_last(&DEFAULT_NAME).and_then(Item::as_str);
    let [crio, runtime, runtimes] = RUNTIMES;
    let Some(replaced) = default
        .into_iter()
        .chain(["crun", "runc"])
        .find_map(|name| find_last(&[crio, runtime, runtimes, name]))
    else {
        return Vec::new();
    };
    let has_conmonrs = get_in(replaced, &[TYPE]).and_then(Item::as_str) == Some(POD);
    replaced
        .as_table_like()
        .into_iter()
        .flat_map(|table| table.iter())
        .filter(|(key, _)| !OWN_KEYS.iter().any(|own| own.eq_ignore_ascii_case(key)))
        .filter_map(|(key, item)| Some((key.to_owned(), item.as_value()?.clone())))
        .chain(has_conmonrs.then(|| (TYPE.to_owned(), Value::from(POD))))
        .collect()
}

fn is_our_runtime(runtime: &Item) -> bool {
    get_in(runtime, &["runtime_path"]).and_then(Item::as_str) == Some(RUNTIME_PATH)
}

pub(crate) fn has_our_runtime(text: &str) -> Result<bool> {
    Ok(get(&*parse(text)?, &RUNTIME).is_some_and(is_our_runtime))
}

pub(crate) fn unconfigure(now: &str, keep: KeptPart) -> Result<Option<String>> {
    let mut document = parse(now)?;
    let is_ours_alone = now.contains(HEADER);
    default_runtime::remove_default(&mut document, &DEFAULT_NAME, is_ours_alone);
    nri::remove_nri(&mut document, is_ours_alone)?;
    if keep == KeptPart::Runtime {
        return Ok(Some(render(&document, now)));
    }
    if get(&document, &RUNTIME).is_some_and(is_our_runtime) {
        remove_section(&mut document, &RUNTIME);
        prune(&mut document, &RUNTIMES, None);
    }
    Ok(render_remaining(&document, now, HEADER))
}
