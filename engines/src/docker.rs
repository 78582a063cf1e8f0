//! Docker's `daemon.json`: `features.cdi`, which Docker 25 to 28.1 require, and a member of
//! `runtimes`.
//!
//! Docker 28.2 and later enable CDI by default. We set it for these versions too, so that the file
//! also works if another version is installed later.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use onload_sys::text::ErrorChain;
use serde_json::{Value, json};

use crate::containerd::{BUILT_IN, RUNTIME_TYPE};
use crate::daemon::{DaemonFlags, Flag};
use crate::files::{KeptPart, NewText, OriginalText};
use crate::json::{JsonText, without_mark};
use crate::oci_runtime::DefaultRuntime;
use crate::our_runtime::{
    RUNTIME_NAME, RUNTIME_PATH, taken_error, warn_of_spec_dirs, wrong_form_error,
};
use crate::settings::{EngineSettings, EngineSpecDirs};

pub(crate) const FILE: &str = "/etc/docker/daemon.json";

const CDI: [&str; 2] = ["features", "cdi"];
const RUNTIME: [&str; 2] = ["runtimes", RUNTIME_NAME];
const SPEC_DIRS: &str = "cdi-spec-dirs";
const SPEC_DIR_FLAG: &str = "cdi-spec-dir";
pub(crate) const DEFAULT: &str = "default-runtime";

pub(crate) fn configure(
    old: Option<&str>,
    set_default: bool,
    flags: &DaemonFlags,
) -> Result<NewText> {
    let mut json = JsonText::parse(old.unwrap_or_default())?;
    refuse_spelling(&json)?;
    let mut warnings = Vec::new();
    if old.is_some_and(|old| without_mark(old) != old) {
        let text = "daemon.json begins with a byte order mark, which docker skips and other programs may refuse";
        warnings.push(text.to_owned());
    }
    if let Some(dirs) = json.get(&[SPEC_DIRS])? {
        let dirs = dirs.as_array().into_iter().flatten();
        warn_of_spec_dirs(SPEC_DIRS, dirs.filter_map(Value::as_str), &mut warnings);
    }
    match json.get(&CDI)? {
        Some(Value::Bool(true)) => {}
        None | Some(Value::Null | Value::Bool(false)) if !has_cdi_flag(flags)? => {
            json.set(&CDI, &json!(true))?;
        }
        None | Some(Value::Null | Value::Bool(false)) => {}
        Some(_) => {
            return Err(wrong_form_error(&CDI.join("."), "true or false"));
        }
    }
    let registered = flags.find_all(&["add-runtime"]);
    let registered_path = |flag: &Flag| flag.value.strip_prefix("onload=").map(str::to_owned);
    match json.get(&RUNTIME)? {
        _ if registered.iter().any(|flag| registered_path(flag).is_some()) => {
            let mut paths = registered.iter().filter_map(registered_path);
            if let Some(path) = paths.find(|path| path != RUNTIME_PATH) {
                return Err(taken_error(path));
            }
        }
        None => json.set(&RUNTIME, &json!({"path": RUNTIME_PATH}))?,
        Some(runtime) if is_our_runtime(&runtime) => {}
        Some(runtime) => {
            return Err(taken_error(runtime_path(&runtime).unwrap_or(&runtime)));
        }
    }
    if let Some(flag) = registered.first() {
        warnings.push(format!(
            "{} starts dockerd with --add-runtime; docker 20.10 and later read \"runtimes\" in daemon.json too, and an older one does not start then",
            flag.source
        ));
    }
    if set_default && !is_default_by_flag(flags)? {
        match json.get(&[DEFAULT])? {
            None | Some(Value::Null | Value::String(_)) => {
                json.set(&[DEFAULT], &json!(RUNTIME_NAME))?;
            }
            Some(_) => {
                return Err(wrong_form_error(DEFAULT, "text"));
            }
        }
    }
    Ok(NewText { text: Some(json.text), warnings })
}

/// Fails if `features` in the file would collide with a flag.
fn has_cdi_flag(flags: &DaemonFlags) -> Result<bool> {
    let features = flags.find_all(&["feature"]);
    if features.iter().any(|flag| ["cdi", "cdi=true", "cdi=1"].contains(&flag.value.as_str())) {
        return Ok(true);
    }
    match features.last() {
        None => Ok(false),
        Some(flag) => Err(collision_error(flag, CDI[0], "add --feature cdi=true there")),
    }
}

/// Fails if `default-runtime` in the file would collide with a flag.
fn is_default_by_flag(flags: &DaemonFlags) -> Result<bool> {
    match flags.find(&[DEFAULT]) {
        None => Ok(false),
        Some(flag) if flag.value == RUNTIME_NAME => Ok(true),
        Some(flag) => {
            let advice = "remove the flag there, or omit --set-default";
            Err(collision_error(&flag, DEFAULT, advice))
        }
    }
}

/// A directive that is a flag, too, keeps dockerd from starting (moby, `findConfigurationConflicts`); runtimes are joined.
fn collision_error(flag: &Flag, key: &str, advice: &str) -> anyhow::Error {
    anyhow!(
        "{} starts dockerd with --{}={}, and dockerd does not start if the file sets {key:?} too; {advice}",
        flag.source,
        flag.name,
        flag.value
    )
}

/// Adds what the daemon's flags say to what its file says.
pub(crate) fn read_flags(settings: &mut EngineSettings, flags: &DaemonFlags) {
    let spec_dirs = flags.find_all(&[SPEC_DIR_FLAG]);
    if let Some(flag) = spec_dirs.first() {
        settings.spec_dirs = Some(EngineSpecDirs {
            dirs: spec_dirs.iter().map(|flag| flag.value.clone()).collect(),
            file: PathBuf::from(&flag.source),
            flag: Some(SPEC_DIR_FLAG),
            section: None,
        });
    }
    settings.data_dir = flags.path(&["data-root", "graph", "g"]).or(settings.data_dir.take());
    settings.state_dir = flags.path(&["exec-root"]).or(settings.state_dir.take());
    let runtimes = flags.find_all(&["add-runtime"]);
    settings.has_runtime |= runtimes.iter().any(|flag| flag.value.starts_with("onload="));
    settings.is_default |= flags.find(&[DEFAULT]).is_some_and(|flag| flag.value == RUNTIME_NAME);
    let features = flags.find_all(&["feature"]);
    let cdi = features.iter().rev().find_map(|flag| flag.value.strip_prefix("cdi"));
    settings.cdi = cdi.map(|value| matches!(value, "" | "=true" | "=1")).or(settings.cdi);
    let collisions = settings.keys.iter().filter_map(|key| {
        // A flag that can be repeated has the singular name of its key. dockerd merges only
        // runtimes.
        let singular = match key.strip_suffix("ies") {
            Some(stem) => format!("{stem}y"),
            None => key.strip_suffix('s').unwrap_or(key).to_owned(),
        };
        let short = if key == "hosts" { "H" } else { key.as_str() };
        Some((flags.find(&[key.as_str(), singular.as_str(), short])?, key.clone()))
    });
    settings.collisions = collisions.collect();
}

pub(crate) fn read_settings(
    settings: &mut EngineSettings,
    file: &Path,
    text: &str,
) -> Result<(), String> {
    let text = without_mark(text);
    if text.trim().is_empty() {
        return Ok(());
    }
    let object: Value =
        serde_json::from_str(text).map_err(|error| ErrorChain(&error).to_string())?;
    settings.keys =
        object.as_object().into_iter().flat_map(|object| object.keys().cloned()).collect();
    let value_at = |path: &[&str]| path.iter().try_fold(&object, |value, key| value.get(*key));
    settings.cdi = value_at(&CDI).and_then(Value::as_bool);
    let spec_dirs = value_at(&[SPEC_DIRS])
        .and_then(Value::as_array)
        .map(|dirs| dirs.iter().filter_map(Value::as_str).map(str::to_owned).collect());
    settings.set_spec_dirs(spec_dirs, file, None);
    let path_at = |key| value_at(&[key]).and_then(Value::as_str).map(PathBuf::from);
    settings.data_dir = path_at("data-root");
    settings.state_dir = path_at("exec-root");
    settings.has_runtime = value_at(&RUNTIME).is_some();
    settings.is_default = value_at(&[DEFAULT]).and_then(Value::as_str) == Some(RUNTIME_NAME);
    Ok(())
}

pub(crate) fn has_our_runtime(text: &str) -> Result<bool> {
    let runtime = JsonText::parse(text)?.get(&RUNTIME)?;
    Ok(runtime.is_some_and(|runtime| is_our_runtime(&runtime)))
}

pub(crate) fn is_default_runtime(text: &str) -> Result<bool> {
    Ok(JsonText::parse(text)?.get(&[DEFAULT])? == Some(json!(RUNTIME_NAME)))
}

/// dockerd's default runtime; `None` if it is dockerd's own runc, or registered nowhere: dockerd does not start then.
pub(crate) fn default_runtime(text: &str) -> Result<Option<DefaultRuntime>> {
    let json = JsonText::parse(text)?;
    let default = json.get(&[DEFAULT])?;
    let name = default.as_ref().and_then(Value::as_str).unwrap_or(BUILT_IN);
    let entry = json.get(&[RUNTIME[0], name])?;
    let is_shim = name.starts_with("io.containerd.") && name != RUNTIME_TYPE;
    if entry.is_none() && !is_shim {
        return Ok(None);
    }
    let program = entry.as_ref().and_then(runtime_path).and_then(Value::as_str);
    Ok(Some(DefaultRuntime { name: name.to_owned(), program: program.map(PathBuf::from) }))
}

pub(crate) fn is_cdi_enabled(text: Option<&str>) -> Option<bool> {
    let json = JsonText::parse(text?).ok()?;
    json.get(&CDI).ok()??.as_bool()
}

pub(crate) fn data_root(now: &str) -> Result<Option<String>> {
    let root = JsonText::parse(now)?.get(&["data-root"])?;
    Ok(root.and_then(|root| root.as_str().map(str::to_owned)))
}

pub(crate) fn unconfigure(
    now: &str,
    original: OriginalText<'_>,
    keep: KeptPart,
) -> Result<Option<String>> {
    let mut json = JsonText::parse(now)?;
    let before = original.text().map(JsonText::parse).transpose()?;
    let in_before = |path: &[&str]| match &before {
        Some(before) => before.get(path),
        None => Ok(None),
    };
    if keep == KeptPart::Nothing && has_our_runtime(now)? && in_before(&RUNTIME)?.is_none() {
        json.remove(&RUNTIME)?;
    }
    let ours: [(&[&str], Value); 2] = [(&CDI, json!(true)), (&[DEFAULT], json!(RUNTIME_NAME))];
    for (path, ours) in ours {
        if json.get(path)?.as_ref() != Some(&ours) {
            continue;
        }
        match in_before(path)? {
            Some(value) if value == ours => {}
            Some(value) => json.set(path, &value)?,
            None if original == OriginalText::Unknown => {}
            None => {
                json.remove(path)?;
            }
        }
    }
    for [object, _] in [RUNTIME, CDI] {
        if json.get(&[object])? != Some(json!({})) {
            continue;
        }
        match in_before(&[object])? {
            None => _ = json.remove(&[object])?,
            Some(Value::Null) => json.set(&[object], &Value::Null)?,
            Some(_) => {}
        }
    }
    if before.is_none() && json.keys()?.is_empty() {
        return Ok(None);
    }
    Ok(Some(json.text))
}

fn is_our_runtime(runtime: &Value) -> bool {
    runtime_path(runtime).and_then(Value::as_str) == Some(RUNTIME_PATH)
}

/// The path of a runtime. Go ignores the case of a struct's keys (`encoding/json`).
fn runtime_path(runtime: &Value) -> Option<&Value> {
    let mut members = runtime.as_object()?.iter();
    members.find(|(key, _)| key.eq_ignore_ascii_case("path")).map(|(_, path)| path)
}

/// Refuses a key that differs from one that we set only in case. dockerd rejects the unknown
/// spelling, but could not tell the two apart if both were in the file.
fn refuse_spelling(json: &JsonText) -> Result<()> {
    for key in json.keys()? {
        for known in [CDI[0], RUNTIME[0], SPEC_DIRS, DEFAULT] {
            if known != key && known.eq_ignore_ascii_case(&key) {
                bail!("unknown key {key:?}; write {known:?}");
            }
        }
    }
    Ok(())
}
