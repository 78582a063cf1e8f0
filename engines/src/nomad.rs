//! A drop-in for Nomad: its docker driver may use the runtime `onload`, which docker knows.
//!
//! Nomad merges files by plugin and takes the `config` block of the file that was read last as a
//! whole (`PluginConfig.Merge`, nomad/structs/config/plugins.go), so a second one
//! beside an operator's own would switch that off.

use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::file::{Beside, Other, Wanted};
use crate::hcl::{block, list_holds, tokens};
use crate::ours::{CHANGED, RUNTIME_NAME, WRITTEN};

pub(crate) const FILE: &str = "/etc/nomad.d/onload-ctk.hcl";

const PLUGIN: &str = "docker";
const ALLOWED: &str = "allow_runtimes";
/// The first two are Nomad's default, which the list replaces.
const TEXT: &str = "\
# Written by \"onload-ctk runtime configure --runtime nomad\"; --remove takes it away.
plugin \"docker\" {
  config {
    allow_runtimes = [\"runc\", \"nvidia\", \"onload\"]
  }
}
";

pub(crate) fn beside(file: &Path) -> Vec<Beside> {
    let directory = file.parent().unwrap_or(Path::new("/"));
    ["*.hcl", "*.json"]
        .map(|pattern| Beside::Directories(vec![directory.to_owned()], pattern.to_owned()))
        .into()
}

pub(crate) fn wanted(
    old: Option<&str>,
    others: &[Other],
    set_default: bool,
) -> anyhow::Result<Wanted> {
    if set_default {
        bail!(
            "--set-default: Nomad has no default runtime, its docker driver takes docker's; run this with --runtime docker, or write runtime = \"onload\" in the task's config"
        );
    }
    for other in others {
        match allows(&other.path, &other.text).with_context(|| other.beside_it())? {
            None => {}
            // The operator allows it already; a file of ours would replace theirs.
            Some(true) => return Ok(Wanted::default()),
            Some(false) => {
                let advice = format!("add \"{RUNTIME_NAME}\" to {ALLOWED} there");
                return Err(other.decides(&advice));
            }
        }
    }
    let text = match old {
        Some(old) if is_ours(old) => old,
        Some(old) if old.contains(WRITTEN) => bail!(CHANGED),
        Some(_) => bail!(
            "onload-ctk did not write it, and Nomad reads the config of a plugin from one file only; add allow_runtimes = [\"runc\", \"{RUNTIME_NAME}\"] to the docker plugin's config yourself, or name a file that is not there"
        ),
        None => TEXT,
    };
    Ok(Wanted { text: Some(text.to_owned()), warnings: Vec::new() })
}

/// Whether docker's plugin may use our runtime; none where the file does not configure that plugin.
pub(crate) fn allows(file: &Path, text: &str) -> Result<Option<bool>, serde_json::Error> {
    if file.extension().is_some_and(|end| end == "json") {
        return allows_json(text);
    }
    Ok(allows_hcl(text))
}

fn allows_hcl(text: &str) -> Option<bool> {
    let tokens = tokens(text);
    let inside = block(&tokens, "plugin", PLUGIN)?;
    Some(list_holds(inside, ALLOWED, RUNTIME_NAME))
}

/// `"plugin": {"docker": {"config": …}}`, each object also as a list of objects.
fn allows_json(text: &str) -> Result<Option<bool>, serde_json::Error> {
    let value: Value = serde_json::from_str(text)?;
    let inside = members(vec![&value], "plugin");
    let docker = members(inside, PLUGIN);
    if docker.is_empty() {
        return Ok(None);
    }
    let lists = members(members(docker, "config"), ALLOWED);
    let allowed = lists.iter().any(|name| name.as_str() == Some(RUNTIME_NAME));
    Ok(Some(allowed))
}

fn members<'a>(values: Vec<&'a Value>, key: &str) -> Vec<&'a Value> {
    let found = values.into_iter().filter_map(|value| value.get(key));
    let flat = found.flat_map(|value| match value {
        Value::Array(values) => values.iter().collect(),
        value => vec![value],
    });
    flat.collect()
}

pub(crate) fn is_ours(text: &str) -> bool {
    allows_hcl(text) == Some(true)
}

pub(crate) fn is_theirs(text: &str) -> bool {
    is_ours(text) && !text.contains(WRITTEN)
}

pub(crate) fn without_ours(now: &str) -> anyhow::Result<Option<String>> {
    if is_theirs(now) {
        return Ok(Some(now.to_owned()));
    }
    if !now.contains(TEXT) {
        bail!(CHANGED);
    }
    let left = now.replacen(TEXT, "", 1);
    Ok((!left.trim().is_empty()).then_some(left))
}
