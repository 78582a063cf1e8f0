//! The template from which k3s and RKE2 generate containerd's `config.toml`. It is a Go
//! `text/template` and cannot be parsed as TOML, so our block is appended and removed as text.
//!
//! `{{ template "base" . }}` inserts everything that k3s writes without a template. TOML does not
//! allow a table to be defined twice, so our block cannot change the tables of the base. For this
//! reason CDI and the default runtime are not configured here: they are settings of k3s itself.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::containerd::{CRI_2, CRI_3, RUNTIME_TYPE};
use crate::files::{NewText, OriginalText};
use crate::our_runtime::{CHANGED, POD_ANNOTATIONS, RUNTIME_NAME, RUNTIME_PATH, taken_error};

const BASE: &str = "{{ template \"base\" . }}\n";
const BEGIN: &str = "# onload-ctk: begin; \"runtime configure --remove\" takes it away\n";
const END: &str = "# onload-ctk: end\n";

pub(crate) fn is_template(file: &Path) -> bool {
    file.extension().is_some_and(|end| end == "tmpl")
}

/// Returns the name of containerd's CRI plugin, which depends on the format of the configuration: k3s
/// uses `config-v3.toml.tmpl` for version 3 and `config.toml.tmpl` for version 2.
pub fn plugin_name(file: &Path) -> &'static str {
    let name = file.file_name().unwrap_or_default();
    if name == "config-v3.toml.tmpl" { CRI_3 } else { CRI_2 }
}

/// Returns our block. Its cgroup driver is the one that k3s sets for its own runtimes.
fn runtime_block(file: &Path) -> String {
    let runtime = format!("plugins.\"{}\".containerd.runtimes.{RUNTIME_NAME}", plugin_name(file));
    format!(
        r#"{BEGIN}[{runtime}]
  runtime_type = "{RUNTIME_TYPE}"
  pod_annotations = ["{POD_ANNOTATIONS}"]
  container_annotations = ["{POD_ANNOTATIONS}"]

[{runtime}.options]
  BinaryName = "{RUNTIME_PATH}"
  SystemdCgroup = {{{{ .SystemdCgroup }}}}
{END}"#
    )
}

pub(crate) fn configure(file: &Path, old: Option<&str>, set_default: bool) -> Result<NewText> {
    if set_default {
        bail!(
            "--set-default: a template cannot set it in addition to k3s's own; put \
             \"default-runtime: onload\" in config.yaml of k3s or RKE2"
        );
    }
    let old = old.unwrap_or(BASE);
    let (above, ours, below) = split(old)?;
    if let Some(foreign) = [above, below].into_iter().find_map(find_foreign) {
        return Err(taken_error(foreign));
    }
    if ours.is_some() {
        return Ok(NewText { text: Some(old.to_owned()), warnings: Vec::new() });
    }
    let line_end = if old.ends_with('\n') { "" } else { "\n" };
    Ok(NewText {
        text: Some(format!("{old}{line_end}\n{}", runtime_block(file))),
        warnings: Vec::new(),
    })
}

/// Splits a template into the text above our block, the block, and the text below it. Without a block
/// all text counts as above.
fn split(text: &str) -> Result<(&str, Option<&str>, &str)> {
    let Some((above, rest)) = text.split_once(BEGIN) else { return Ok((text, None, "")) };
    let (ours, below) = rest.split_once(END).context(CHANGED)?;
    Ok((above, Some(ours), below))
}

/// Finds the header of a table for a runtime named `onload` in text that is not our block.
fn find_foreign(text: &str) -> Option<&str> {
    let mut lines = text.lines().map(str::trim);
    lines.find(|line| {
        let plain = line.replace(['"', '\'', ' '], "");
        let name = plain.split_once(".runtimes.").map(|(_, name)| name);
        let rest = name.and_then(|name| name.strip_prefix(RUNTIME_NAME));
        plain.starts_with('[') && rest.is_some_and(|rest| rest.starts_with([']', '.']))
    })
}

pub(crate) fn has_our_runtime(text: &str) -> Result<bool> {
    Ok(split(text)?.1.is_some())
}

pub(crate) fn unconfigure(now: &str, original: OriginalText<'_>) -> Result<Option<String>> {
    let (above, ours, below) = split(now)?;
    if ours.is_none() {
        return Ok(Some(now.to_owned()));
    }
    // Also removes the empty line that `configure` added above the block.
    let above =
        above.strip_suffix("\n\n").map_or_else(|| above.to_owned(), |above| format!("{above}\n"));
    let remaining = format!("{above}{below}");
    let is_made_by_us = remaining == BASE && original.text().is_none();
    Ok((!is_made_by_us).then_some(remaining))
}
