//! The key by which a TOML file of an engine names its default runtime.

use std::borrow::Borrow;

use anyhow::{Result, bail};
use toml_edit::{DocumentMut, Item, Table};

use crate::files::RelatedFile;
use crate::our_runtime::RUNTIME_NAME;
use crate::toml::{format_item, get, get_or_create_section, remove, remove_value};

fn runtime_name<'a>(table: &'a Table, key: &[&str]) -> Option<&'a str> {
    get(table, key).and_then(Item::as_str)
}

/// The default runtime other than ours. The files are in the order in which they are read, and the last one takes
/// precedence.
pub(crate) fn find_other<'d>(
    files: &'d [impl Borrow<DocumentMut>],
    key: &[&str],
) -> Option<&'d str> {
    find_last(files, key, |name| name != RUNTIME_NAME)
}

/// The last text that files have at a key, and that is accepted.
pub(crate) fn find_last<'d>(
    files: &'d [impl Borrow<DocumentMut>],
    key: &[&str],
    is_accepted: impl Fn(&str) -> bool,
) -> Option<&'d str> {
    files
        .iter()
        .rev()
        .filter_map(|file| get(file.borrow(), key)?.as_str())
        .find(|text| is_accepted(text))
}

pub(crate) fn is_our_runtime(table: &Table, key: &[&str]) -> bool {
    runtime_name(table, key) == Some(RUNTIME_NAME)
}

pub(crate) fn refuse_other(table: &Table, key: &[&str]) -> Result<()> {
    if let Some(item) = get(table, key)
        && !is_our_runtime(table, key)
    {
        let other_runtime = format_item(item);
        bail!(
            "it sets another default runtime, {other_runtime}; remove that from it, or omit \
             --set-default"
        );
    }
    Ok(())
}

pub(crate) fn set(document: &mut DocumentMut, key: &[&str]) -> Result<()> {
    refuse_other(document, key)?;
    if let (None, Some((last, parents))) = (get(document, key), key.split_last()) {
        let section = get_or_create_section(document, parents)?;
        section.insert(last, toml_edit::value(RUNTIME_NAME));
    }
    Ok(())
}

/// Removes the setting if it names our runtime. Removes headings that are left without values only
/// from a file that we created.
pub(crate) fn remove_default(document: &mut DocumentMut, key: &[&str], is_ours_alone: bool) {
    if !is_our_runtime(document, key) {
        return;
    }
    if is_ours_alone {
        remove_value(document, key, None);
    } else {
        remove(document, key);
    }
}

/// Warns about files that the engine reads after ours and that name another runtime.
pub(crate) fn later_file_warnings<'d, 'o: 'd>(
    later: impl Iterator<Item = &'d (&'o RelatedFile, DocumentMut)>,
    key: &[&str],
) -> Vec<String> {
    later.filter_map(|(other, document)| later_file_warning(other, document, key)).collect()
}

pub(crate) fn later_file_warning(
    other: &RelatedFile,
    table: &Table,
    key: &[&str],
) -> Option<String> {
    let is_other = runtime_name(table, key).is_some_and(|name| name != RUNTIME_NAME);
    let last = key.last().filter(|_| is_other)?;
    Some(format!(
        "{} is read later and sets {last} to another runtime; remove it there",
        other.path.display()
    ))
}
