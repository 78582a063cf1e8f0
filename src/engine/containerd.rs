//! containerd's `config.toml`, edited in place: to containerd 1.x a section of a drop-in replaces the
//! whole section of the plugin, everybody else's runtimes with it.
//!
//! Format version 2 is what containerd 1.3 and later read; 2.x reads it too and has 3 and 4 of its
//! own, which name the plugin differently and have CDI on.

use std::path::{Path, PathBuf};

use toml_edit::{DocumentMut, Item, Table, Value};

use super::error::EngineError;
use super::file::{Before, Beside, Keep, Other, Wanted};
use super::ours::{POD_ANNOTATIONS, RUNTIME_NAME, RUNTIME_PATH, warn_of_spec_dirs};
use super::toml::{
    add_text, array, get, parse, prune, remove, remove_section, render, section, texts,
};

pub(super) const FILE: &str = "/etc/containerd/config.toml";

/// Drop-ins that containerd 2.2 reads where there is no configuration file.
const DROP_INS: &str = "/etc/containerd/conf.d";
/// The version of a new file: the only one that every supported containerd reads.
const NEW_VERSION: i64 = 2;
const NEWEST_VERSION: i64 = 4;
/// The shim that runs runc and whatever has its command line.
const RUNTIME_TYPE: &str = "io.containerd.runc.v2";
pub(super) const DEFAULT: &str = "default_runtime_name";
/// Annotations of the pod, and of its containers, that a runtime gets to see.
const ANNOTATIONS: [&str; 2] = ["pod_annotations", "container_annotations"];
/// What is not taken over from the runtime that ours stands in for.
const OWN_OPTIONS: [&str; 3] = ["BinaryName", "runtime_type", "runtime_path"];

/// Where things stand in a file of one version.
struct Layout {
    version: i64,
    plugin: &'static str,
}

impl Layout {
    fn of(document: &DocumentMut) -> Result<Layout, EngineError> {
        let version = match document.get("version") {
            None if document.is_empty() => NEW_VERSION,
            None => 1,
            Some(version) => version.as_integer().ok_or_else(|| EngineError::Form {
                key: "version".to_owned(),
                expected: "number",
            })?,
        };
        let plugin = match version {
            ..NEW_VERSION => return Err(EngineError::OldFormat),
            NEW_VERSION => "io.containerd.grpc.v1.cri",
            3..=NEWEST_VERSION => "io.containerd.cri.v1.runtime",
            _ => return Err(EngineError::NewFormat(version)),
        };
        Ok(Layout { version, plugin })
    }

    fn cri(&self) -> [&'static str; 2] {
        ["plugins", self.plugin]
    }

    fn enable_cdi(&self) -> [&'static str; 3] {
        ["plugins", self.plugin, "enable_cdi"]
    }

    fn runtime<'a>(&self, name: &'a str) -> [&'a str; 5] {
        ["plugins", self.plugin, "containerd", "runtimes", name]
    }
}

pub(super) fn beside(now: Option<&str>) -> Result<Vec<Beside>, EngineError> {
    let Some(now) = now else {
        return Ok(vec![Beside::Directory(
            DROP_INS.into(),
            "*.toml".to_owned(),
        )]);
    };
    let document = parse(now)?;
    let imports = texts(document.get("imports"));
    Ok(imports.map(import).collect())
}

/// An import may be relative to the importing file, and its last part a pattern.
fn import(pattern: &str) -> Beside {
    let directory = Path::new(FILE).parent().unwrap_or(Path::new("/"));
    let path: PathBuf = directory.join(pattern);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match path.parent() {
        Some(parent) if name.contains('*') => {
            Beside::Directory(parent.to_owned(), name.into_owned())
        }
        _ => Beside::File(path),
    }
}

pub(super) fn wanted(old: Option<&str>, others: &[Other]) -> Result<Wanted, EngineError> {
    let mut document = parse(old.unwrap_or_default())?;
    refuse_disabled(&document)?;
    let layout = Layout::of(&document)?;
    refuse_decided(old.is_some(), &layout, others)?;
    if document.is_empty() {
        document.insert("version", toml_edit::value(NEW_VERSION));
    }
    let mut warnings = Vec::new();
    if let Some(dirs) = get(&document, &["plugins", layout.plugin, "cdi_spec_dirs"]) {
        warn_of_spec_dirs("cdi_spec_dirs", texts(Some(dirs)), &mut warnings);
    }
    enable_cdi(&mut document, &layout)?;
    register(&mut document, &layout)?;
    let text = Some(render(&document, old.unwrap_or_default()));
    Ok(Wanted { text, warnings })
}

/// Docker packages a file that turns the plugin off, in the format of version 1.
fn refuse_disabled(document: &DocumentMut) -> Result<(), EngineError> {
    let mut disabled = texts(document.get("disabled_plugins"));
    let cri = |id: &&str| *id == "cri" || id.starts_with("io.containerd.") && id.contains(".cri");
    match disabled.find(cri) {
        Some(id) => Err(EngineError::Disabled(id.to_owned())),
        None => Ok(()),
    }
}

/// containerd 2 merges what it imports (mergo, key by key); containerd 1 takes the plugin's section
/// from the file that was read last, and reads a file of version 2 as containerd 2 does.
fn refuse_decided(exists: bool, layout: &Layout, others: &[Other]) -> Result<(), EngineError> {
    for other in others {
        let path = other.path.clone();
        let document = parse(&other.text).map_err(|source| EngineError::Other {
            path: path.clone(),
            source: Box::new(source),
        })?;
        let advice = if !exists {
            format!("make {FILE} first, with \"containerd config default\"")
        } else if layout.version == NEW_VERSION && get(&document, &layout.cri()).is_some() {
            format!("register the runtime there, or move that section to {FILE} and run this again")
        } else {
            continue;
        };
        return Err(EngineError::Decided { path, advice });
    }
    Ok(())
}

/// Off unless said otherwise in containerd 1.7, on unless said otherwise in 2.
fn enable_cdi(document: &mut DocumentMut, layout: &Layout) -> Result<(), EngineError> {
    let value = get(document, &layout.enable_cdi()).map(Item::as_bool);
    match value {
        Some(Some(true)) => return Ok(()),
        None if layout.version > NEW_VERSION => return Ok(()),
        None | Some(Some(false)) => {}
        Some(None) => {
            return Err(EngineError::Form {
                key: layout.enable_cdi().join("."),
                expected: "true or false",
            });
        }
    }
    let cri = section(document, &layout.cri())?;
    set_value(cri, "enable_cdi", Value::from(true));
    Ok(())
}

fn register(document: &mut DocumentMut, layout: &Layout) -> Result<(), EngineError> {
    let path = layout.runtime(RUNTIME_NAME);
    if let Some(found) = get(document, &path) {
        if !is_our_runtime(found) {
            let binary = found.get("options").and_then(|o| o.get("BinaryName"));
            let found = binary.or(found.get("runtime_type")).unwrap_or(found);
            let found = found.to_string().trim().to_owned();
            return Err(EngineError::Taken { found });
        }
        let runtime = section(document, &path)?;
        for key in ANNOTATIONS {
            add_text(array(runtime, key)?, POD_ANNOTATIONS);
        }
        return Ok(());
    }
    let (values, options) = stood_in_for(document, layout);
    section(document, &layout.runtime(RUNTIME_NAME)[..4])?;
    let indent = runtime_indent(document, layout);
    let runtime = section(document, &path)?;
    runtime.set_implicit(false);
    runtime.decor_mut().set_prefix(format!("\n{indent}"));
    let inner = inner_indent(&indent);
    set_indented(runtime, "runtime_type", Value::from(RUNTIME_TYPE), &inner);
    for (key, value) in values {
        set_indented(runtime, &key, value, &inner);
    }
    for key in ANNOTATIONS {
        add_text(array(runtime, key)?, POD_ANNOTATIONS);
        indent_key(runtime, key, &inner);
    }
    let table = section(runtime, &["options"])?;
    table.set_implicit(false);
    table.decor_mut().set_prefix(format!("\n{inner}"));
    let innermost = inner_indent(&inner);
    set_indented(table, "BinaryName", Value::from(RUNTIME_PATH), &innermost);
    for (key, value) in options {
        set_indented(table, &key, value, &innermost);
    }
    Ok(())
}

type Values = Vec<(String, Value)>;

/// The settings of the runtime that ours stands in for, runc where there is such a one: a pod of ours
/// must not differ in its cgroup driver (`SystemdCgroup`) from all others.
fn stood_in_for(document: &DocumentMut, layout: &Layout) -> (Values, Values) {
    let default = ["plugins", layout.plugin, "containerd", DEFAULT];
    let default = get(document, &default).and_then(Item::as_str);
    let names = ["runc"].into_iter().chain(default);
    let found = names
        .filter_map(|name| get(document, &layout.runtime(name)))
        .find(|runtime| runtime.get("runtime_type").and_then(Item::as_str) == Some(RUNTIME_TYPE));
    let values = |item: Option<&Item>| -> Values {
        let table = item.and_then(Item::as_table_like);
        let pairs = table.into_iter().flat_map(|table| table.iter());
        pairs
            .filter(|(key, _)| !OWN_OPTIONS.contains(key))
            .filter_map(|(key, item)| Some((key.to_owned(), item.as_value()?.clone())))
            .filter(|(_, value)| !value.is_inline_table())
            .collect()
    };
    (
        values(found),
        values(found.and_then(|found| found.get("options"))),
    )
}

/// "containerd config default" indents sections; ours follows the runtimes beside it.
fn runtime_indent(document: &DocumentMut, layout: &Layout) -> String {
    let runtimes = get(document, &layout.runtime(RUNTIME_NAME)[..4]);
    let runtimes = runtimes.and_then(Item::as_table_like);
    let tables = runtimes.into_iter().flat_map(|table| table.iter());
    tables
        .filter_map(|(_, item)| item.as_table()?.decor().prefix()?.as_str())
        .map(|prefix| prefix.rsplit('\n').next().unwrap_or_default())
        .find(|indent| indent.chars().all(|c| c == ' ' || c == '\t'))
        .unwrap_or_default()
        .to_owned()
}

fn inner_indent(indent: &str) -> String {
    if indent.is_empty() {
        String::new()
    } else {
        format!("{indent}  ")
    }
}

/// Changes a value in place, so that the comments around it stay.
fn set_value(table: &mut Table, key: &str, value: Value) {
    match table.get_mut(key).and_then(Item::as_value_mut) {
        Some(old) => {
            let decor = old.decor().clone();
            *old = value;
            *old.decor_mut() = decor;
        }
        None => {
            let indent = key_indent(table);
            set_indented(table, key, value, &indent);
        }
    }
}

/// The indentation of the keys of a section.
fn key_indent(table: &Table) -> String {
    let Some((first, _)) = table.iter().find(|(_, item)| item.is_value()) else {
        return String::new();
    };
    let decor = table.key(first).map(toml_edit::Key::leaf_decor);
    let prefix = decor.and_then(|decor| decor.prefix()?.as_str());
    let line = prefix.unwrap_or_default().rsplit('\n').next();
    line.unwrap_or_default().to_owned()
}

fn set_indented(table: &mut Table, key: &str, mut value: Value, indent: &str) {
    *value.decor_mut() = toml_edit::Decor::new(" ", "");
    table.insert(key, Item::Value(value));
    indent_key(table, key, indent);
}

fn indent_key(table: &mut Table, key: &str, indent: &str) {
    if let Some(mut key) = table.key_mut(key) {
        key.leaf_decor_mut().set_prefix(indent);
    }
}

fn is_our_runtime(runtime: &Item) -> bool {
    let options = runtime.get("options");
    let binary = options.and_then(|options| options.get("BinaryName"));
    binary.and_then(Item::as_str) == Some(RUNTIME_PATH)
}

pub(super) fn is_ours(text: &str) -> Result<bool, EngineError> {
    let document = parse(text)?;
    let layout = Layout::of(&document)?;
    let runtime = get(&document, &layout.runtime(RUNTIME_NAME));
    Ok(runtime.is_some_and(is_our_runtime))
}

/// Whether our runtime is the default one of the CRI plugin.
pub(super) fn is_default(text: &str) -> Result<bool, EngineError> {
    let document = parse(text)?;
    let layout = Layout::of(&document)?;
    let key = ["plugins", layout.plugin, "containerd", DEFAULT];
    Ok(get(&document, &key).and_then(Item::as_str) == Some(RUNTIME_NAME))
}

/// Where shims keep their bundles, as the file says it.
pub(super) fn state_dir(now: &str) -> Result<Option<String>, EngineError> {
    let state = parse(now)?;
    let state = state.get("state").and_then(Item::as_str);
    Ok(state.map(str::to_owned))
}

pub(super) fn without_ours(
    now: &str,
    was: Before<'_>,
    keep: Keep,
) -> Result<Option<String>, EngineError> {
    let mut document = parse(now)?;
    let layout = Layout::of(&document)?;
    let before = was.text().map(parse).transpose()?;
    let in_before = |path: &[&str]| before.as_ref().and_then(|before| get(before, path));
    let runtime = layout.runtime(RUNTIME_NAME);
    if keep == Keep::Nothing && is_ours(now)? && in_before(&runtime).is_none() {
        remove_section(&mut document, &runtime);
        prune(&mut document, &runtime[..4], before.as_deref());
    }
    let key = layout.enable_cdi();
    if get(&document, &key).and_then(Item::as_bool) == Some(true) {
        match in_before(&key).and_then(Item::as_value) {
            None if was == Before::Unknown => {}
            None => {
                remove(&mut document, &key);
                prune(&mut document, &layout.cri(), before.as_deref());
            }
            Some(value) if value.as_bool() == Some(true) => {}
            Some(value) => {
                let value = value.clone();
                set_value(section(&mut document, &layout.cri())?, "enable_cdi", value);
            }
        }
    }
    let only_version = document.len() == 1 && document.contains_key("version");
    if only_version && was != Before::Unknown && in_before(&["version"]).is_none() {
        document.remove("version");
    }
    if before.is_none() && document.is_empty() {
        return Ok(None);
    }
    Ok(Some(render(&document, now)))
}
