//! Enables NRI in an engine's file for `onload-nri`, whose pods do not need our runtime.
//!
//! It is off by default in containerd 1.7, and on in 2.x and CRI-O 1.30. From 2.2 on a pod can name plugins that it
//! does not start without, if the validator that looks at that is on.

use anyhow::{Result, bail};
use toml_edit::{DocumentMut, Item, Value};

use crate::files::RelatedFile;
use crate::our_runtime::WRITTEN;
use crate::toml::{
    get, get_or_create_section, parse, parse_other, prune, remove, render, set_comment, set_value,
    strings,
};

pub(crate) type NriSwitch = (&'static [&'static str], bool);

/// containerd's plugin, in every format of its file.
const CONTAINERD: [&str; 2] = ["plugins", "io.containerd.nri.v1.nri"];
/// Off, if true.
pub(crate) const DISABLE: [&str; 3] = [CONTAINERD[0], CONTAINERD[1], "disable"];
pub(crate) const VALIDATE: [&str; 4] =
    [CONTAINERD[0], CONTAINERD[1], "default_validator", "enable"];
pub(crate) const ENABLE: [&str; 3] = ["crio", "nri", "enable_nri"];

/// Follows a value that we set in a file that is not ours and has no backup, with the previous value.
const MARK: &str = " # onload-ctk";
const WAS_OFF_NOTE: &str = ": it was off";

pub(crate) const CONTAINERD_SWITCHES: &[NriSwitch] = &[(&DISABLE, false)];
pub(crate) const NEWEST_CONTAINERD_SWITCHES: &[NriSwitch] = &[(&DISABLE, false), (&VALIDATE, true)];
pub(crate) const CRIO_SWITCHES: &[NriSwitch] = &[(&ENABLE, true)];

/// A text with NRI on, and with the validator on where a file names it, as what `containerd config default` printed
/// does. A setting that another file already has is not repeated. Settings in a file without a backup are marked.
pub(crate) fn enable(
    text: &str,
    other_files: &[RelatedFile],
    switches: &[NriSwitch],
    has_backup: bool,
) -> Result<String> {
    let mut document = parse(text)?;
    let other_documents = other_files.iter().map(parse_other).collect::<Result<Vec<_>, _>>()?;
    if [&document].into_iter().chain(&other_documents).any(is_disabled) {
        let [_, id] = CONTAINERD;
        bail!("disabled_plugins turns NRI off; remove {id:?} from it");
    }
    let [plugins, id, validator, _] = VALIDATE;
    let has = |file: &DocumentMut| get(file, &[plugins, id, validator]).is_some();
    let has_validator = has(&document) || other_documents.iter().any(has);
    let validate: Option<NriSwitch> = has_validator.then_some((&VALIDATE, true));
    for (path, on) in switches.iter().chain(&validate) {
        if find_switch(&document, &other_documents, path) == Some(*on) {
            continue;
        }
        if let Some((key, above)) = path.split_last() {
            let table = get_or_create_section(&mut document, above)?;
            let was_off = if get(table, &[*key]).is_some() { WAS_OFF_NOTE } else { "" };
            set_value(table, key, Value::from(*on));
            if !has_backup && !text.contains(WRITTEN) {
                set_comment(table, key, |comment| format!("{comment}{MARK}{was_off}"));
            }
        }
    }
    Ok(render(&document, text))
}

/// Whether containerd's file leaves the plugin out.
pub(crate) fn is_disabled(document: &DocumentMut) -> bool {
    strings(get(document, &["disabled_plugins"])).any(|id| id == CONTAINERD[1])
}

fn find_switch(
    document: &DocumentMut,
    other_documents: &[DocumentMut],
    path: &[&str],
) -> Option<bool> {
    let mut all = [document].into_iter().chain(other_documents.iter().rev());
    all.find_map(|file| get(file, path).and_then(Item::as_bool))
}

/// Removes our settings from a file without a backup: all settings if the whole file is ours, or else the marked ones.
pub(crate) fn remove_nri(document: &mut DocumentMut, is_ours_alone: bool) -> Result<()> {
    for (path, on) in NEWEST_CONTAINERD_SWITCHES.iter().rev().chain(CRIO_SWITCHES) {
        let value = get(document, path).and_then(Item::as_value);
        let Some(value) = value.filter(|value| value.as_bool() == Some(*on)) else { continue };
        let suffix = value.decor().suffix().and_then(|suffix| suffix.as_str());
        let marked = suffix.and_then(|suffix| suffix.split_once(MARK));
        let Some((key, above)) = path.split_last() else { continue };
        match marked {
            Some((comment, WAS_OFF_NOTE)) => {
                let comment = comment.to_owned();
                let table = get_or_create_section(document, above)?;
                set_value(table, key, Value::from(!on));
                set_comment(table, key, |_| comment);
            }
            None if !is_ours_alone => {}
            _ => {
                remove(document, path);
                prune(document, above, None);
            }
        }
    }
    Ok(())
}
