//! The key by which a TOML file of an engine names its default runtime.

use toml_edit::{DocumentMut, Item, Table};

use super::error::EngineError;
use super::file::Other;
use super::ours::RUNTIME_NAME;
use super::toml::{get, remove, section, shown};

fn name<'a>(table: &'a Table, key: &[&str]) -> Option<&'a str> {
    get(table, key).and_then(Item::as_str)
}

/// Whether it names our runtime.
pub(super) fn is_ours(table: &Table, key: &[&str]) -> bool {
    name(table, key) == Some(RUNTIME_NAME)
}

/// Refuses a file of ours in which somebody named another runtime.
///
/// # Errors
/// [`EngineError::DefaultTaken`].
pub(super) fn refuse_other(table: &Table, key: &[&str]) -> Result<(), EngineError> {
    match get(table, key) {
        Some(found) if !is_ours(table, key) => Err(EngineError::DefaultTaken {
            found: shown(found),
        }),
        _ => Ok(()),
    }
}

/// Names our runtime in a file of ours.
///
/// # Errors
/// Somebody named another one there, or something else is in the place of a section.
pub(super) fn set(document: &mut DocumentMut, key: &[&str]) -> Result<(), EngineError> {
    refuse_other(document, key)?;
    if let (None, Some((last, parents))) = (get(document, key), key.split_last()) {
        let section = section(document, parents)?;
        section.insert(last, toml_edit::value(RUNTIME_NAME));
    }
    Ok(())
}

/// Takes our runtime away from it.
pub(super) fn forget(document: &mut DocumentMut, key: &[&str]) {
    if is_ours(document, key) {
        remove(document, key);
    }
}

/// The warning about a file that the engine reads after ours, where it names another runtime.
pub(super) fn later(other: &Other, table: &Table, key: &[&str]) -> Option<String> {
    let is_other = name(table, key).is_some_and(|name| name != RUNTIME_NAME);
    let last = key.last().filter(|_| is_other)?;
    Some(EngineError::later_default(&other.path, last))
}
