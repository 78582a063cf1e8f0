//! containerd's `config.toml`, edited in place. To containerd 1.x, a section of a drop-in replaces
//! the whole section of the plugin, including the runtimes of other programs. containerd 1.3 and
//! later read format version 2. containerd 2.x also has formats 3 and 4, which name the plugin
//! differently and enable CDI by default.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use toml_edit::{DocumentMut, InlineTable, Item, Table, Value};

use crate::default_runtime;
use crate::files::{KeptPart, NewText, OriginalText, RelatedFile, RelatedFiles};
use crate::nri;
use crate::oci_runtime::DefaultRuntime;
use crate::our_runtime::{
    POD_ANNOTATIONS, RUNTIME_NAME, RUNTIME_PATH, taken_error, warn_of_spec_dirs, wrong_form_error,
};
use crate::settings::{EngineSettings, RuntimeNames};
use crate::toml::{
    add_text, format_item, get, get_in, get_or_create_array, get_or_create_section, indent_key,
    list, parse, parse_all, parse_other, prune, read, remove, remove_section, remove_value, render,
    set_indented, set_value, strings,
};

pub(crate) const FILE: &str = "/etc/containerd/config.toml";

/// The directory of drop-ins that the default file of containerd 2.2 imports
/// (`defaults/defaults_unix.go`). The operator may rely on a drop-in there, and a file that we
/// create would not import it.
const DROP_INS: &str = "conf.d";
/// The plugin as files of format version 1 call it.
const CRI_1: &str = "cri";
pub(crate) const CRI_2: &str = "io.containerd.grpc.v1.cri";
pub(crate) const CRI_3: &str = "io.containerd.cri.v1.runtime";
pub(crate) const CRI_PLUGINS: [&str; 2] = [CRI_2, CRI_3];
/// The version of a new file: the only one that every supported containerd reads.
const NEW_VERSION: i64 = 2;
const NEWEST_VERSION: i64 = 4;
/// The shim that runs runc and whatever has its command line.
pub(crate) const RUNTIME_TYPE: &str = "io.containerd.runc.v2";
pub(crate) const DEFAULT: &str = "default_runtime_name";
/// containerd's built-in runtime, which is its default unless a file names another.
pub(crate) const BUILT_IN: &str = "runc";
/// The text that MicroK8s replaces with runc in its template (`microk8s-resources/wrappers/run-containerd-with-args`).
const MICROK8S_DEFAULT: &str = "${RUNTIME}";
/// Annotations of the pod, and of its containers, that a runtime gets to see.
const ANNOTATIONS: [&str; 2] = ["pod_annotations", "container_annotations"];
/// Settings that are not copied from the runtime that ours replaces.
const OWN_OPTIONS: [&str; 3] = ["BinaryName", "runtime_type", "runtime_path"];

pub(crate) struct ConfigLayout {
    pub(crate) version: i64,
    pub(crate) plugin: &'static str,
}

impl ConfigLayout {
    pub(crate) fn detect(document: &DocumentMut) -> Result<ConfigLayout> {
        let version = match get(document, &["version"]) {
            None if document.is_empty() => NEW_VERSION,
            None => 1,
            Some(version) => {
                version.as_integer().ok_or_else(|| wrong_form_error("version", "a number"))?
            }
        };
        let plugin = match version {
            ..NEW_VERSION => bail!(
                "it is of format version 1, whose sections have other names; convert it to version \
                 2 (containerd 2 prints it with \"containerd config migrate\")"
            ),
            NEW_VERSION => CRI_2,
            3..=NEWEST_VERSION => CRI_3,
            _ => bail!("unsupported format version {version}"),
        };
        Ok(ConfigLayout { version, plugin })
    }

    pub(crate) fn cri_path(&self) -> [&'static str; 2] {
        ["plugins", self.plugin]
    }

    pub(crate) fn enable_cdi(&self) -> [&'static str; 3] {
        ["plugins", self.plugin, "enable_cdi"]
    }

    pub(crate) fn default_name(&self) -> [&'static str; 4] {
        ["plugins", self.plugin, "containerd", DEFAULT]
    }

    pub(crate) fn runtime_path<'a>(&self, name: &'a str) -> [&'a str; 5] {
        ["plugins", self.plugin, "containerd", "runtimes", name]
    }
}

pub(crate) fn related_files(file: &Path, now: Option<&str>) -> Result<Vec<RelatedFiles>> {
    let Some(now) = now else {
        let drop_ins = file.with_file_name(DROP_INS);
        return Ok(vec![RelatedFiles::Directories(vec![drop_ins], "*.toml".to_owned())]);
    };
    Ok(import_files(file, &parse(now)?))
}

/// containerd-config.toml(5); gives the files that it imports.
pub(crate) fn read_settings(
    settings: &mut EngineSettings,
    file: &Path,
    text: &str,
) -> Result<Vec<RelatedFiles>, String> {
    let document = read(text)?;
    let format = get(&document, &["version"]).and_then(Item::as_integer);
    settings.format = settings.format.or(Some(format.unwrap_or(1)));
    settings.is_off |= disabled_name(&document).is_some();
    let state = get(&document, &["state"]).and_then(Item::as_str);
    settings.state_dir = state.map(PathBuf::from).or(settings.state_dir.take());
    let is_nri_off = get(&document, &nri::DISABLE).and_then(Item::as_bool);
    settings.nri = is_nri_off.map(|is_off| !is_off).or(settings.nri);
    if nri::is_disabled(&document) {
        settings.nri = Some(false);
    }
    for plugin in [CRI_1, CRI_2, CRI_3] {
        if get(&document, &["plugins", plugin]).is_some() {
            read_plugin(settings, file, &document, plugin);
        }
    }
    Ok(import_files(file, &document))
}

fn read_plugin(
    settings: &mut EngineSettings,
    file: &Path,
    document: &DocumentMut,
    plugin: &'static str,
) {
    let item_at = |key: &[&str]| get(document, &[&["plugins", plugin], key].concat());
    let cdi = item_at(&["enable_cdi"]).and_then(Item::as_bool);
    settings.cdi = cdi.or(settings.cdi);
    let section = format!("[plugins.\"{plugin}\"]");
    settings.set_spec_dirs(list(item_at(&["cdi_spec_dirs"])), file, Some(section));
    let runtimes = item_at(&["containerd", "runtimes"]).and_then(Item::as_table_like);
    let names = runtimes.map(|runtimes| {
        let names: BTreeSet<&str> = runtimes.iter().map(|(name, _)| name).collect();
        names.into_iter().map(str::to_owned).collect()
    });
    settings.has_runtime |= runtimes.is_some_and(|runtimes| runtimes.contains_key(RUNTIME_NAME));
    let default = item_at(&["containerd", DEFAULT]).and_then(Item::as_str);
    settings.runtimes.push(RuntimeNames {
        file: file.to_owned(),
        plugin,
        names,
        default: default.map(str::to_owned),
    });
}

fn import_files(file: &Path, document: &DocumentMut) -> Vec<RelatedFiles> {
    let directory = file.parent().unwrap_or(Path::new("/"));
    let patterns = strings(get(document, &["imports"]));
    patterns.map(|pattern| import_file(directory, pattern)).collect()
}

/// An import may be relative to the importing file, and its last part a pattern.
fn import_file(directory: &Path, pattern: &str) -> RelatedFiles {
    let path: PathBuf = directory.join(pattern);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match path.parent() {
        Some(parent) if name.contains('*') => {
            RelatedFiles::Directories(vec![parent.to_owned()], name.into_owned())
        }
        _ => RelatedFiles::File(path),
    }
}

pub(crate) fn configure(
    file: &Path,
    old: Option<&str>,
    other_files: &[RelatedFile],
    set_default: bool,
) -> Result<NewText> {
    let mut document = parse(old.unwrap_or_default())?;
    refuse_disabled(&document)?;
    let layout = ConfigLayout::detect(&document)?;
    let other_documents = parse_related_files(file, old.is_some(), &layout, other_files)?;
    if document.is_empty() {
        document.insert("version", toml_edit::value(NEW_VERSION));
    }
    let mut warnings = Vec::new();
    if let Some(dirs) = get(&document, &["plugins", layout.plugin, "cdi_spec_dirs"]) {
        warn_of_spec_dirs("cdi_spec_dirs", strings(Some(dirs)), &mut warnings);
    }
    enable_cdi(&mut document, &layout)?;
    register_built_in(&mut document, &layout)?;
    let files = [&document].into_iter().chain(other_documents.iter().map(|(_, document)| document));
    let settings = replaced_runtime(&layout, &files.collect::<Vec<_>>());
    register(&mut document, &layout, settings)?;
    if set_default {
        set_default_name(&mut document, &layout)?;
    }
    refuse_without_default(
        &document,
        &layout,
        other_documents.iter().map(|(_, document)| document),
    )?;
    if set_default {
        warnings.extend(default_runtime::later_file_warnings(
            other_documents.iter(),
            &layout.default_name(),
        ));
    }
    let text = Some(render(&document, old.unwrap_or_default()));
    Ok(NewText { text, warnings })
}

pub(crate) fn set_default_name(document: &mut DocumentMut, layout: &ConfigLayout) -> Result<()> {
    if default_runtime::is_our_runtime(document, &layout.default_name()) {
        return Ok(());
    }
    let [.., key] = layout.default_name();
    let containerd = get_or_create_section(document, &layout.default_name()[..3])?;
    set_value(containerd, key, Value::from(RUNTIME_NAME));
    Ok(())
}

/// Writes containerd's own runtime down where ours would take its place: to containerd 1 a list of runtimes
/// replaces the built-in one, and its plugin does not load without the default runtime (`ValidatePluginConfig`,
/// pkg/cri/config/config.go). Without options, the entry is the built-in one in every version; containerd 2 merges
/// the two.
fn register_built_in(document: &mut DocumentMut, layout: &ConfigLayout) -> Result<()> {
    let is_replaced = layout.version == NEW_VERSION;
    let is_there = get(document, &layout.runtime_path(BUILT_IN)).is_some();
    let is_list_theirs = runtime_names(document, layout).any(|name| name != RUNTIME_NAME);
    let is_needed = !is_list_theirs || default_name(document, layout) == BUILT_IN;
    if is_replaced && !is_there && is_needed {
        new_runtime(document, layout, BUILT_IN)?;
    }
    Ok(())
}

/// Refuses a file whose default runtime is registered nowhere.
pub(crate) fn refuse_without_default<'d>(
    document: &'d DocumentMut,
    layout: &ConfigLayout,
    other_documents: impl Iterator<Item = &'d DocumentMut>,
) -> Result<()> {
    let documents: Vec<_> = [document].into_iter().chain(other_documents).collect();
    for name in documents.iter().map(|d| default_name(d, layout)) {
        let is_built_in = name == BUILT_IN && layout.version > NEW_VERSION;
        if !is_built_in && !documents.iter().any(|file| has_runtime(file, layout, name)) {
            bail!(
                "{DEFAULT} is {name:?}, but no runtime of that name is registered, so the CRI \
                 plugin would not load; register it, or remove {DEFAULT}"
            );
        }
    }
    Ok(())
}

fn has_runtime(document: &DocumentMut, layout: &ConfigLayout, name: &str) -> bool {
    get(document, &layout.runtime_path(name)).is_some()
}

fn default_name<'d>(document: &'d DocumentMut, layout: &ConfigLayout) -> &'d str {
    let name = get(document, &layout.default_name()).and_then(Item::as_str);
    name.filter(|name| *name != MICROK8S_DEFAULT).unwrap_or(BUILT_IN)
}

fn runtime_names<'d>(
    document: &'d DocumentMut,
    layout: &ConfigLayout,
) -> impl Iterator<Item = &'d str> {
    let runtimes =
        get(document, &layout.runtime_path(RUNTIME_NAME)[..4]).and_then(Item::as_table_like);
    runtimes.into_iter().flat_map(|runtimes| runtimes.iter().map(|(name, _)| name))
}

/// Docker packages a file that turns the plugin off, in the format of version 1.
pub(crate) fn refuse_disabled(document: &DocumentMut) -> Result<()> {
    if let Some(id) = disabled_name(document) {
        bail!(
            "disabled_plugins turns the CRI plugin off, so its runtimes cannot be used; remove \
             {id:?} from it for Kubernetes; for ctr alone only write allow = [\"CLASS\"] under \
             [annotations] in /etc/onload-ctk/config.toml"
        );
    }
    Ok(())
}

/// Returns the CRI plugin's entry in `disabled_plugins`, if it has one.
fn disabled_name(document: &DocumentMut) -> Option<&str> {
    strings(get(document, &["disabled_plugins"]))
        .find(|id| *id == "cri" || id.starts_with("io.containerd.") && id.contains(".cri"))
}

/// Parses the other files that containerd reads. Fails if one of them takes precedence over our
/// settings. containerd 2 merges what it imports (mergo, key by key). containerd 1 takes the
/// plugin's section from the file that it reads last, and reads a file of version 2 as containerd 2
/// does.
fn parse_related_files<'o>(
    file: &Path,
    exists: bool,
    layout: &ConfigLayout,
    other_files: &'o [RelatedFile],
) -> Result<Vec<(&'o RelatedFile, DocumentMut)>> {
    let file = file.display();
    let mut parsed = Vec::new();
    for other in other_files {
        let document = parse_other(other)?;
        let advice = if !exists {
            format!("create {file} first, with \"containerd config default\"")
        } else if layout.version == NEW_VERSION && get(&document, &layout.cri_path()).is_some() {
            format!("register the runtime there, or move that section to {file} and run this again")
        } else if get(&document, &layout.runtime_path(RUNTIME_NAME)).is_some() {
            return Err(other.registered_error());
        } else {
            parsed.push((other, document));
            continue;
        };
        return Err(other.conflict_error(&advice));
    }
    Ok(parsed)
}

/// Enables CDI, which containerd 1.7 disables by default and containerd 2 enables by default.
fn enable_cdi(document: &mut DocumentMut, layout: &ConfigLayout) -> Result<()> {
    let value = get(document, &layout.enable_cdi()).map(Item::as_bool);
    match value {
        Some(Some(true)) => return Ok(()),
        None if layout.version > NEW_VERSION => return Ok(()),
        None | Some(Some(false)) => {}
        Some(None) => {
            let key = layout.enable_cdi().join(".");
            return Err(wrong_form_error(&key, "true or false"));
        }
    }
    let cri = get_or_create_section(document, &layout.cri_path())?;
    set_value(cri, "enable_cdi", Value::from(true));
    Ok(())
}

/// Adds our runtime, with the settings of the one that it replaces.
pub(crate) fn register(
    document: &mut DocumentMut,
    layout: &ConfigLayout,
    (values, options): (InlineTable, InlineTable),
) -> Result<()> {
    let path = layout.runtime_path(RUNTIME_NAME);
    if let Some(existing) = get(document, &path) {
        if !is_our_runtime(existing) {
            let binary = get_in(existing, &["options", "BinaryName"]);
            let registered = binary.or(get_in(existing, &["runtime_type"])).unwrap_or(existing);
            return Err(taken_error(format_item(registered)));
        }
        let runtime = get_or_create_section(document, &path)?;
        for key in ANNOTATIONS {
            add_text(get_or_create_array(runtime, key)?, POD_ANNOTATIONS);
        }
        return Ok(());
    }
    let (runtime, inner) = new_runtime(document, layout, RUNTIME_NAME)?;
    for (key, value) in values {
        set_indented(runtime, &key, value, &inner);
    }
    for key in ANNOTATIONS {
        add_text(get_or_create_array(runtime, key)?, POD_ANNOTATIONS);
        indent_key(runtime, key, &inner);
    }
    let table = get_or_create_section(runtime, &["options"])?;
    table.set_implicit(false);
    table.decor_mut().set_prefix(format!("\n{inner}"));
    let innermost = inner_indent(&inner);
    set_indented(table, "BinaryName", Value::from(RUNTIME_PATH), &innermost);
    for (key, value) in options {
        set_indented(table, &key, value, &innermost);
    }
    Ok(())
}

fn new_runtime<'d>(
    document: &'d mut DocumentMut,
    layout: &ConfigLayout,
    name: &str,
) -> Result<(&'d mut Table, String)> {
    let path = layout.runtime_path(name);
    get_or_create_section(document, &path[..4])?;
    let indent = runtime_indent(document, layout);
    let runtime = get_or_create_section(document, &path)?;
    runtime.set_implicit(false);
    runtime.decor_mut().set_prefix(format!("\n{indent}"));
    let inner = inner_indent(&indent);
    set_indented(runtime, "runtime_type", Value::from(RUNTIME_TYPE), &inner);
    Ok((runtime, inner))
}

/// Returns the settings of the runtime that ours replaces, and its options, so that our pods use
/// the same cgroup driver (`SystemdCgroup`) as all others. The files are in the order in which
/// containerd reads them, and the last one with a key takes precedence. If no file defines runc, it
/// is containerd's built-in one.
pub(crate) fn replaced_runtime(
    layout: &ConfigLayout,
    files: &[&DocumentMut],
) -> (InlineTable, InlineTable) {
    let default = default_runtime::find_other(files, &layout.default_name());
    for name in [BUILT_IN].into_iter().chain(default) {
        let entries: Vec<&Item> =
            files.iter().filter_map(|d| get(d, &layout.runtime_path(name))).collect();
        let mut last_first = entries.iter().rev();
        let is_runc = match last_first.find_map(|entry| get_in(entry, &["runtime_type"])) {
            None => name == BUILT_IN && !entries.is_empty(),
            Some(kind) => kind.as_str() == Some(RUNTIME_TYPE),
        };
        if is_runc {
            let options =
                entries.iter().filter_map(|entry| get_in(entry, &["options"])).collect::<Vec<_>>();
            return (merge_tables(&entries), merge_tables(&options));
        }
    }
    Default::default()
}

/// Returns the default runtime other than ours, from files in the order of reading. `None` if it is containerd's own
/// runc.
pub(crate) fn default_runtime(texts: &[&str]) -> Result<Option<DefaultRuntime>> {
    let documents = parse_all(texts)?;
    let Some(first) = documents.first() else { return Ok(None) };
    let layout = ConfigLayout::detect(first)?;
    let default = default_runtime::find_other(&documents, &layout.default_name());
    let name = default.unwrap_or(BUILT_IN);
    let find_text = |path: &[&str]| {
        let path = [&layout.runtime_path(name)[..], path].concat();
        default_runtime::find_last(&documents, &path, |text| !text.is_empty())
    };
    // containerd's plugin does not load with a default that is registered nowhere, so nothing was started by it.
    if !documents.iter().any(|file| has_runtime(file, &layout, name)) {
        return Ok(None);
    }
    let kind = find_text(&["runtime_type"]);
    let program = find_text(&["options", "BinaryName"]);
    if name == BUILT_IN && kind.is_none_or(|kind| kind == RUNTIME_TYPE) && program.is_none() {
        return Ok(None);
    }
    let is_runc = kind == Some(RUNTIME_TYPE) || name == BUILT_IN && kind.is_none();
    let program = is_runc.then(|| program.unwrap_or(BUILT_IN).into());
    Ok(Some(DefaultRuntime { name: name.to_owned(), program }))
}

fn merge_tables(tables: &[&Item]) -> InlineTable {
    let mut merged = InlineTable::new();
    for (key, item) in
        tables.iter().filter_map(|table| table.as_table_like()).flat_map(|t| t.iter())
    {
        if let Some(value) = item.as_value()
            && !value.is_inline_table()
            && !OWN_OPTIONS.iter().any(|own| own.eq_ignore_ascii_case(key))
        {
            merged.insert(key, value.clone());
        }
    }
    merged
}

/// "containerd config default" indents sections, so ours is indented like its neighbours.
fn runtime_indent(document: &DocumentMut, layout: &ConfigLayout) -> String {
    let runtimes =
        get(document, &layout.runtime_path(RUNTIME_NAME)[..4]).and_then(Item::as_table_like);
    runtimes
        .into_iter()
        .flat_map(|table| table.iter())
        .filter_map(|(_, item)| item.as_table()?.decor().prefix()?.as_str())
        .map(|prefix| prefix.rsplit('\n').next().unwrap_or_default())
        .find(|indent| indent.chars().all(|c| c == ' ' || c == '\t'))
        .unwrap_or_default()
        .to_owned()
}

fn inner_indent(indent: &str) -> String {
    if indent.is_empty() { String::new() } else { format!("{indent}  ") }
}

pub(crate) fn is_our_runtime(runtime: &Item) -> bool {
    let binary = get_in(runtime, &["options", "BinaryName"]);
    binary.and_then(Item::as_str) == Some(RUNTIME_PATH)
}

pub(crate) fn has_our_runtime(text: &str) -> Result<bool> {
    let document = parse(text)?;
    let layout = ConfigLayout::detect(&document)?;
    let runtime = get(&document, &layout.runtime_path(RUNTIME_NAME));
    Ok(runtime.is_some_and(is_our_runtime))
}

pub(crate) fn is_default_runtime(text: &str) -> Result<bool> {
    let document = parse(text)?;
    let layout = ConfigLayout::detect(&document)?;
    Ok(default_runtime::is_our_runtime(&document, &layout.default_name()))
}

pub(crate) fn state_dir(now: &str) -> Result<Option<String>> {
    let document = parse(now)?;
    Ok(get(&document, &["state"]).and_then(Item::as_str).map(str::to_owned))
}

pub(crate) fn unconfigure(
    now: &str,
    original: OriginalText<'_>,
    keep: KeptPart,
) -> Result<Option<String>> {
    let mut document = parse(now)?;
    let layout = ConfigLayout::detect(&document)?;
    let before = original.text().map(parse).transpose()?;
    let in_before = |path: &[&str]| before.as_ref().and_then(|before| get(before, path));
    let runtime = layout.runtime_path(RUNTIME_NAME);
    if keep == KeptPart::Nothing && has_our_runtime(now)? && in_before(&runtime).is_none() {
        remove_section(&mut document, &runtime);
        prune(&mut document, &runtime[..4], before.as_deref());
    }
    let restorer = TextRestorer { before: before.as_ref(), original };
    restorer.restore_key(&mut document, &layout.enable_cdi(), &Value::from(true))?;
    restorer.restore_key(&mut document, &layout.default_name(), &Value::from(RUNTIME_NAME))?;
    restorer.restore_key(&mut document, &nri::DISABLE, &Value::from(false))?;
    restorer.restore_key(&mut document, &nri::VALIDATE, &Value::from(true))?;
    // The earlier default may no longer exist.
    if is_default_runtime(now)?
        && refuse_without_default(&document, &layout, [].into_iter()).is_err()
    {
        remove(&mut document, &layout.default_name());
        register_built_in(&mut document, &layout)?;
    }
    restorer.restore_built_in(&mut document, &layout);
    let only_version = document.len() == 1 && get(&document, &["version"]).is_some();
    if only_version && original != OriginalText::Unknown && in_before(&["version"]).is_none() {
        let prefix = document.key("version").and_then(|key| key.leaf_decor().prefix()?.as_str());
        let comments = prefix.unwrap_or_default();
        let trailing = format!("{comments}{}", document.trailing().as_str().unwrap_or_default());
        remove(&mut document, &["version"]);
        document.set_trailing(trailing);
    }
    let text = render(&document, now);
    let is_ours_alone = before.is_none() && document.is_empty() && !text.contains('#');
    Ok((!is_ours_alone).then_some(text))
}

struct TextRestorer<'b> {
    before: Option<&'b DocumentMut>,
    original: OriginalText<'b>,
}

impl TextRestorer<'_> {
    /// A key that has our value gets the one that it had, or goes.
    fn restore_key(&self, document: &mut DocumentMut, path: &[&str], ours: &Value) -> Result<()> {
        let Some((key, above)) = path.split_last() else { return Ok(()) };
        let is_ours =
            |value: &Value| value.as_str() == ours.as_str() && value.as_bool() == ours.as_bool();
        let now = get(document, path).and_then(Item::as_value);
        if !now.is_some_and(is_ours) {
            return Ok(());
        }
        let old = self.before.and_then(|before| get(before, path));
        match old.and_then(Item::as_value) {
            None if self.original == OriginalText::Unknown => {}
            None => {
                remove_value(document, path, self.before.map(DocumentMut::as_table));
            }
            Some(old) if is_ours(old) => {}
            Some(old) => set_value(get_or_create_section(document, above)?, key, old.clone()),
        }
        Ok(())
    }

    /// Takes containerd's own runtime out again, where its entry is as we wrote it and no other one was added
    /// since, which would take its place.
    fn restore_built_in(&self, document: &mut DocumentMut, layout: &ConfigLayout) {
        let in_before = |name| {
            let before = self.before;
            before.is_some_and(|before| get(before, &layout.runtime_path(name)).is_some())
        };
        let path = layout.runtime_path(BUILT_IN);
        let entry = get(document, &path).and_then(Item::as_table_like);
        let is_ours = entry.is_some_and(|entry| {
            let kind =
                get(document, &[&path[..], &["runtime_type"]].concat()).and_then(Item::as_str);
            entry.len() == 1 && kind == Some(RUNTIME_TYPE)
        });
        let is_needed =
            runtime_names(document, layout).any(|name| name != BUILT_IN && !in_before(name));
        if self.original != OriginalText::Unknown && is_ours && !is_needed && !in_before(BUILT_IN) {
            remove_section(document, &path);
            prune(document, &path[..4], self.before.map(DocumentMut::as_table));
        }
    }
}
