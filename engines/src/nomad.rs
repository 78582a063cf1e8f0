//! A configuration file for Nomad that allows its docker driver to use the runtime `onload`. The
//! runtime itself is registered in docker.
//!
//! If several files configure a plugin, Nomad uses only the `config` block of the file that it reads
//! last (`PluginConfig.Merge`, nomad/structs/config/plugins.go). A block in our file could therefore
//! disable the operator's own.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::files::{NewText, RelatedFile, RelatedFiles};
use crate::hcl::{find_block, list_holds, tokenize};
use crate::our_runtime::{CHANGED, RUNTIME_NAME, WRITTEN};

pub(crate) const FILE: &str = "/etc/nomad.d/onload-ctk.hcl";

const PLUGIN: &str = "docker";
const ALLOWED: &str = "allow_runtimes";
/// Our file. `runc` and `nvidia` are Nomad's default for `allow_runtimes`, which this list replaces.
const TEXT: &str = "\
# Written by \"onload-ctk runtime configure --runtime nomad\"; --remove takes it away.
plugin \"docker\" {
  config {
    allow_runtimes = [\"runc\", \"nvidia\", \"onload\"]
  }
}
";

pub(crate) fn related_files(file: &Path) -> Vec<RelatedFiles> {
    let directory = file.parent().unwrap_or(Path::new("/"));
    ["*.hcl", "*.json"]
        .map(|pattern| RelatedFiles::Directories(vec![directory.to_owned()], pattern.to_owned()))
        .into()
}

pub(crate) fn configure(
    old: Option<&str>,
    other_files: &[RelatedFile],
    set_default: bool,
) -> Result<NewText> {
    if set_default {
        bail!(
            "--set-default: Nomad has no default runtime, its docker driver uses docker's; run \
             this with --runtime docker, or write runtime = \"onload\" in the task's config"
        );
    }
    for other in other_files {
        match allows_runtime(&other.path, &other.text).with_context(|| other.describe())? {
            None => {}
            // The operator already allows it, and our file would replace theirs.
            Some(true) => return Ok(NewText::default()),
            Some(false) => {
                let advice = format!("add \"{RUNTIME_NAME}\" to {ALLOWED} there");
                return Err(other.conflict_error(&advice));
            }
        }
    }
    let text = match old {
        Some(old) if has_our_runtime(old) => old,
        Some(old) if old.contains(WRITTEN) => bail!(CHANGED),
        Some(_) => bail!(
            "onload-ctk did not write it, and Nomad reads the config of a plugin from one file \
             only; add allow_runtimes = [\"runc\", \"{RUNTIME_NAME}\"] to the docker plugin's \
             config yourself, or use a file that does not exist"
        ),
        None => TEXT,
    };
    Ok(NewText { text: Some(text.to_owned()), warnings: Vec::new() })
}

/// Returns whether the docker plugin may use our runtime, or `None` if the file does not configure
/// that plugin.
pub(crate) fn allows_runtime(file: &Path, text: &str) -> Result<Option<bool>, serde_json::Error> {
    if file.extension().is_some_and(|end| end == "json") {
        return allows_json(text);
    }
    Ok(allows_hcl(text))
}

fn allows_hcl(text: &str) -> Option<bool> {
    let tokens = tokenize(text);
    let inside = find_block(&tokens, "plugin", PLUGIN)?;
    Some(list_holds(inside, ALLOWED, RUNTIME_NAME))
}

/// Like [`allows_runtime`], for `{"plugin": {"docker": {"config": …}}}`. In the place of each object
/// there may be a list of objects.
fn allows_json(text: &str) -> Result<Option<bool>, serde_json::Error> {
    let value: Value = serde_json::from_str(text)?;
    let inside = find_members(vec![&value], "plugin");
    let docker = find_members(inside, PLUGIN);
    if docker.is_empty() {
        return Ok(None);
    }
    let lists = find_members(find_members(docker, "config"), ALLOWED);
    let allowed = lists.iter().any(|name| name.as_str() == Some(RUNTIME_NAME));
    Ok(Some(allowed))
}

/// Returns the members `key` of all `values`, with lists replaced by their elements.
fn find_members<'a>(values: Vec<&'a Value>, key: &str) -> Vec<&'a Value> {
    let flat =
        values.into_iter().filter_map(|value| value.get(key)).flat_map(|value| match value {
            Value::Array(values) => values.iter().collect(),
            value => vec![value],
        });
    flat.collect()
}

pub(crate) fn has_our_runtime(text: &str) -> bool {
    allows_hcl(text) == Some(true)
}

/// Returns whether the file allows our runtime, but was not written by onload-ctk.
pub(crate) fn is_from_others(text: &str) -> bool {
    has_our_runtime(text) && !text.contains(WRITTEN)
}

pub(crate) fn unconfigure(now: &str) -> Result<Option<String>> {
    if is_from_others(now) {
        return Ok(Some(now.to_owned()));
    }
    if !now.contains(TEXT) {
        bail!(CHANGED);
    }
    let remaining = now.replacen(TEXT, "", 1);
    Ok((!remaining.trim().is_empty()).then_some(remaining))
}
