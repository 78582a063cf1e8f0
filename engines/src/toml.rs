//! A TOML document in which single keys are set and removed. Comments and order stay.

use anyhow::{Context, Result, anyhow, bail};
use toml_edit::{Array, DocumentMut, Item, Table, TableLike, Value};

use crate::files::RelatedFile;
use crate::our_runtime::wrong_form_error;

/// A document that is only read. The error has no lines of the file; people have those.
pub(crate) fn read(text: &str) -> Result<DocumentMut, String> {
    text.parse::<DocumentMut>().map_err(|error| error.message().to_owned())
}

/// It is an error if serialising it would change it (toml_edit writes only line feeds).
pub(crate) fn parse(text: &str) -> Result<DocumentMut> {
    let error = |error: toml_edit::TomlError| {
        let start = error.span().map_or(0, |span| span.start);
        let above = text.get(..start).unwrap_or_default();
        let line = above.matches('\n').count() + 1;
        let message = error.message().lines().next().unwrap_or_default();
        anyhow!("line {line}: {message}")
    };
    let document = text.parse::<DocumentMut>().map_err(error)?;
    if render(&document, text) != text {
        bail!("its line ends or marks would change; use plain line feeds");
    }
    Ok(document)
}

pub(crate) fn parse_all(texts: &[&str]) -> Result<Vec<DocumentMut>> {
    texts.iter().map(|text| parse(text)).collect()
}

/// Parses other files of an engine. Fails if one of them registers our runtime, at this path.
pub(crate) fn parse_others_without<'o>(
    other_files: &'o [RelatedFile],
    runtime: &[&str],
) -> Result<Vec<(&'o RelatedFile, DocumentMut)>> {
    let mut documents = Vec::new();
    for other in other_files {
        documents.push((other, parse_other(other)?));
    }
    match documents.iter().find(|(_, document)| get(document, runtime).is_some()) {
        Some((other, _)) => Err(other.registered_error()),
        None => Ok(documents),
    }
}

pub(crate) fn parse_other(other: &RelatedFile) -> Result<DocumentMut> {
    parse(&other.text).with_context(|| other.describe())
}

/// A value as a line about it shows it.
pub(crate) fn format_item(item: &Item) -> String {
    item.to_string().trim().to_owned()
}

/// The text of a document made from `old`. Comments at the end of `old` belong to what is above
/// them, so they stay there when a section is added at the end.
pub(crate) fn render(document: &DocumentMut, old: &str) -> String {
    let text = document.to_string();
    if text == old || text.strip_suffix('\n') == Some(old) {
        return old.to_owned();
    }
    let trailing = document.trailing().as_str().unwrap_or_default();
    let (Some(old_body), Some(body)) = (old.strip_suffix(trailing), text.strip_suffix(trailing))
    else {
        return text;
    };
    let index = edited_end(old_body, body);
    let (above, below) = body.split_at_checked(index).unwrap_or((body, ""));
    let line_end =
        if below.is_empty() || trailing.is_empty() || trailing.ends_with('\n') { "" } else { "\n" };
    format!("{above}{trailing}{line_end}{below}")
}

fn edited_end(old: &str, new: &str) -> usize {
    let diff = similar::TextDiff::from_lines(old, new);
    let lines = diff
        .ops()
        .iter()
        .filter(|op| !op.old_range().is_empty())
        .map(|op| op.new_range().end)
        .next_back()
        .unwrap_or(0);
    new.split_inclusive('\n').take(lines).map(str::len).sum()
}

/// Sections whose keys are names, which their readers compare exactly.
const NAMED_SECTIONS: [&str; 2] = ["plugins", "runtimes"];

/// Returns a key of a section as the file spells it. The engines decode sections into structs of Go, and their TOML
/// libraries then ignore case (`fieldByName` of go-toml, `unifyStruct` of BurntSushi/toml).
fn spelled(table: &dyn TableLike, section: Option<&&str>, key: &str) -> String {
    let is_exact = section.is_some_and(|section| NAMED_SECTIONS.contains(section));
    let mut keys = table.iter().map(|(other, _)| other);
    let other = keys.find(|other| !is_exact && other.eq_ignore_ascii_case(key));
    let is_there = table.contains_key(key);
    other.filter(|_| !is_there).unwrap_or(key).to_owned()
}

/// Returns the keys of a path, each with the section that it is in.
fn with_sections<'p, 'k>(
    path: &'p [&'k str],
) -> impl Iterator<Item = (Option<&'p &'k str>, &'p &'k str)> {
    [None].into_iter().chain(path.iter().map(Some)).zip(path)
}

pub(crate) fn get<'a>(table: &'a Table, path: &[&str]) -> Option<&'a Item> {
    let mut keys = with_sections(path);
    let (_, first) = keys.next()?;
    let first = table.get(&spelled(table, None, first))?;
    keys.try_fold(first, |item, (section, key)| get_key(item, section, key))
}

fn get_key<'a>(item: &'a Item, section: Option<&&str>, key: &str) -> Option<&'a Item> {
    let table = item.as_table_like()?;
    table.get(&spelled(table, section, key))
}

/// The value below a section that is no part of a path.
pub(crate) fn get_in<'a>(item: &'a Item, path: &[&str]) -> Option<&'a Item> {
    path.iter().try_fold(item, |item, key| get_key(item, None, key))
}

/// Changes a value in place, so that the comments around it stay.
pub(crate) fn set_value(table: &mut Table, key: &str, mut value: Value) {
    let key = spelled(table, None, key);
    match table.get_mut(&key).and_then(Item::as_value_mut) {
        Some(old) => {
            *value.decor_mut() = old.decor().clone();
            *old = value;
        }
        None => {
            let indent = key_indent(table);
            set_indented(table, &key, value, &indent);
        }
    }
}

/// Replaces the rest of a value's line.
pub(crate) fn set_comment(table: &mut Table, key: &str, new: impl FnOnce(&str) -> String) {
    let key = spelled(table, None, key);
    if let Some(value) = table.get_mut(&key).and_then(Item::as_value_mut) {
        let old = value.decor().suffix().and_then(|suffix| suffix.as_str());
        let comment = new(old.unwrap_or_default());
        value.decor_mut().set_suffix(comment);
    }
}

fn key_indent(table: &Table) -> String {
    let Some((first, _)) = table.iter().find(|(_, item)| item.is_value()) else {
        return String::new();
    };
    let decor = table.key(first).map(toml_edit::Key::leaf_decor);
    let prefix = decor.and_then(|decor| decor.prefix()?.as_str());
    let line = prefix.unwrap_or_default().rsplit('\n').next();
    line.unwrap_or_default().to_owned()
}

pub(crate) fn set_indented(table: &mut Table, key: &str, mut value: Value, indent: &str) {
    *value.decor_mut() = toml_edit::Decor::new(" ", "");
    table.insert(key, Item::Value(value));
    indent_key(table, key, indent);
}

pub(crate) fn indent_key(table: &mut Table, key: &str, indent: &str) {
    if let Some(mut key) = table.key_mut(key) {
        key.leaf_decor_mut().set_prefix(indent);
    }
}

/// Returns a table, creating it if necessary. Fails if an inline table, a value or an array is in its place.
pub(crate) fn get_or_create_section<'a>(
    mut table: &'a mut Table,
    path: &[&str],
) -> Result<&'a mut Table> {
    for (depth, (section, key)) in with_sections(path).enumerate() {
        let key = spelled(table, section, key);
        let item = table.entry(&key).or_insert_with(|| {
            let mut section = Table::new();
            section.set_implicit(true);
            Item::Table(section)
        });
        table = item.as_table_mut().ok_or_else(|| {
            let key = path.get(..=depth).unwrap_or_default().join(".");
            wrong_form_error(&key, "a section")
        })?;
    }
    Ok(table)
}

/// Whether it existed.
pub(crate) fn remove(table: &mut Table, path: &[&str]) -> bool {
    let Some((key, parents)) = path.split_last() else { return false };
    let mut parent: &mut dyn TableLike = table;
    for (section, key) in with_sections(parents) {
        let key = spelled(parent, section, key);
        match parent.get_mut(&key).and_then(Item::as_table_like_mut) {
            Some(next) => parent = next,
            None => return false,
        }
    }
    let key = spelled(parent, parents.last(), key);
    parent.remove(&key).is_some()
}

/// Removes a section. The comments above it may be about what precedes them, so they stay.
pub(crate) fn remove_section(document: &mut DocumentMut, path: &[&str]) {
    let section = get(document, path).and_then(Item::as_table).cloned();
    remove(document, path);
    if let Some(section) = section {
        move_comments(document, &section);
    }
}

/// Moves the comments above a section that is no longer printed to the next section, or to the end.
fn move_comments(document: &mut DocumentMut, section: &Table) {
    let comments = text_above(section).trim_end();
    let Some(position) = section.position().filter(|_| comments.contains('#')) else { return };
    match next_position(document, position).and_then(|next| table_at(document, next)) {
        Some(next) => {
            let prefix = format!("{comments}\n{}", text_above(next));
            next.decor_mut().set_prefix(prefix);
        }
        None => {
            let trailing = document.trailing().as_str().unwrap_or_default();
            document.set_trailing(format!("{comments}\n{trailing}"));
        }
    }
}

/// Returns the comments and empty lines above a section's heading.
fn text_above(section: &Table) -> &str {
    section.decor().prefix().and_then(|prefix| prefix.as_str()).unwrap_or_default()
}

fn next_position(table: &Table, position: isize) -> Option<isize> {
    let below = table.iter().filter_map(|(_, item)| item.as_table());
    below
        .flat_map(|table| [table.position(), next_position(table, position)])
        .flatten()
        .filter(|own| *own > position)
        .min()
}

fn table_at(table: &mut Table, position: isize) -> Option<&mut Table> {
    for table in table.iter_mut().filter_map(|(_, item)| item.as_table_mut()) {
        if table.position() == Some(position) {
            return Some(table);
        }
        if next_position(table, position - 1) == Some(position) {
            return table_at(table, position);
        }
    }
    None
}

/// Removes the sections on a path that are empty now and were not there before.
pub(crate) fn prune(document: &mut DocumentMut, path: &[&str], before: Option<&Table>) {
    for length in (1..=path.len()).rev() {
        let parent_path = path.get(..length).unwrap_or_default();
        let empty = get(document, parent_path)
            .and_then(Item::as_table_like)
            .is_some_and(TableLike::is_empty);
        let was_there = before.is_some_and(|before| get(before, parent_path).is_some());
        if !empty || was_there {
            return;
        }
        remove_section(document, parent_path);
    }
}

/// Removes a key, the sections that are empty without it, and the heading of one in which only sections are left.
/// Existing entries are kept.
pub(crate) fn remove_value(document: &mut DocumentMut, path: &[&str], before: Option<&Table>) {
    remove(document, path);
    if let Some((_, above)) = path.split_last() {
        prune(document, above, before);
        hide_heading(document, above, before);
    }
}

/// Hides the heading of a section in which only sections are left, if it had none before.
pub(crate) fn hide_heading(document: &mut DocumentMut, path: &[&str], before: Option<&Table>) {
    let was_open = before
        .and_then(|before| get(before, path)?.as_table())
        .is_some_and(|section| !section.is_implicit());
    let Some(section) = get(document, path).and_then(Item::as_table).cloned() else { return };
    // A comment in a file of the operator's may be about the heading.
    let has_comment = before.is_some() && text_above(&section).contains('#');
    let has_values = section.iter().any(|(_, item)| !item.is_table());
    if was_open || section.is_implicit() || has_comment || has_values {
        return;
    }
    if let Ok(hidden) = get_or_create_section(document, path) {
        hidden.set_implicit(true);
        move_comments(document, &section);
    }
}

/// Renders a drop-in without our entries and header. Returns `None` if we created it and nothing is left.
pub(crate) fn render_remaining(document: &DocumentMut, now: &str, header: &str) -> Option<String> {
    let text = render(document, now).replacen(header, "", 1);
    let has_content = !document.is_empty() || text.contains('#');
    (has_content || !now.contains(header)).then_some(text)
}

pub(crate) fn strings(item: Option<&Item>) -> impl Iterator<Item = &str> {
    let array = item.and_then(Item::as_array);
    array.into_iter().flatten().filter_map(Value::as_str)
}

/// Returns the strings of an array, or none without an array.
pub(crate) fn list(item: Option<&Item>) -> Option<Vec<String>> {
    item?.as_array()?;
    Some(strings(item).map(str::to_owned).collect())
}

pub(crate) fn add_text(array: &mut Array, text: &str) {
    if !array.iter().any(|value| value.as_str() == Some(text)) {
        array.push(text);
    }
}

/// Created if necessary.
pub(crate) fn get_or_create_array<'a>(table: &'a mut Table, key: &str) -> Result<&'a mut Array> {
    let spelled = spelled(table, None, key);
    let item = table.entry(&spelled).or_insert_with(|| toml_edit::value(Array::new()));
    item.as_array_mut().ok_or_else(|| wrong_form_error(key, "an array"))
}
