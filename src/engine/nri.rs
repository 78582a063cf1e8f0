//! NRI in an engine's file: it is to be on, for `onload-nri`, whose pods need no runtime of ours.
//!
//! containerd 1.7 has it off unless told otherwise, 2.x and CRI-O 1.30 have it on. From 2.2 on a pod can
//! name plugins that it does not start without, if the validator that looks at that is on.

use toml_edit::{DocumentMut, Item};

use super::error::EngineError;
use super::file::Other;
use super::toml::{get, parse, parse_other, prune, remove, render, section};

/// A setting, and the value with which NRI is on.
pub(super) type Switch = (&'static [&'static str], bool);

/// containerd's plugin, in every format of its file.
const CONTAINERD: [&str; 2] = ["plugins", "io.containerd.nri.v1.nri"];
/// Off, if true.
pub(super) const DISABLE: [&str; 3] = [CONTAINERD[0], CONTAINERD[1], "disable"];
const VALIDATE: [&str; 4] = [CONTAINERD[0], CONTAINERD[1], "default_validator", "enable"];
const ENABLE: [&str; 3] = ["crio", "nri", "enable_nri"];

/// What every containerd has.
pub(super) const OF_CONTAINERD: &[Switch] = &[(&DISABLE, false)];
/// What containerd 2.2 and later have.
pub(super) const OF_NEWEST_CONTAINERD: &[Switch] = &[(&DISABLE, false), (&VALIDATE, true)];
/// What CRI-O has.
pub(super) const OF_CRIO: &[Switch] = &[(&ENABLE, true)];

/// A text with NRI on. What another file has on already is not repeated.
pub(super) fn turned_on(
    text: &str,
    others: &[Other],
    switches: &[Switch],
) -> Result<String, EngineError> {
    let mut document = parse(text)?;
    let others = others.iter().map(parse_other);
    let others = others.collect::<Result<Vec<_>, _>>()?;
    let is_disabled = |file: &DocumentMut| {
        let disabled = get(file, &["disabled_plugins"]).and_then(Item::as_array);
        let [_, id] = CONTAINERD;
        disabled.is_some_and(|ids| ids.iter().any(|own| own.as_str() == Some(id)))
    };
    if [&document].into_iter().chain(&others).any(is_disabled) {
        return Err(EngineError::NriDisabled(CONTAINERD[1]));
    }
    for (path, on) in switches {
        if said(&document, &others, path) == Some(*on) {
            continue;
        }
        if let Some((key, above)) = path.split_last() {
            let table = section(&mut document, above)?;
            table.insert(key, toml_edit::value(*on));
        }
    }
    Ok(render(&document, text))
}

/// What the files say of a setting: this one, else the one that is read last.
fn said(document: &DocumentMut, others: &[DocumentMut], path: &[&str]) -> Option<bool> {
    let mut all = [document].into_iter().chain(others.iter().rev());
    all.find_map(|file| get(file, path).and_then(Item::as_bool))
}

/// Takes the settings out of a file that is ours alone.
pub(super) fn forget(document: &mut DocumentMut) {
    for (path, on) in OF_NEWEST_CONTAINERD.iter().rev().chain(OF_CRIO) {
        let is_ours = get(document, path).and_then(Item::as_bool) == Some(*on);
        if let (true, Some((_, above))) = (is_ours, path.split_last()) {
            remove(document, path);
            prune(document, above, None);
        }
    }
}
