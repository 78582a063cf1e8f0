//! Errors in TOML texts, worded for the operator who edits the file.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use onload_sys::error::Error;

/// Returns a parser's error with the line, counted from 1, and the key.
pub fn describe_toml_error(text: &str, error: &toml::de::Error) -> Error {
    let offset = error.span().map(|span| span.start);
    // The parser reports the next token, which may be several lines below.
    if let Some(before) = offset.and_then(|offset| text.get(..offset))
        && error.message().starts_with("missing comma")
    {
        let end = before.trim_end().len();
        return error_at(text, end, None, "a comma is missing, or the ] of this array");
    }
    let (key, mistake) = match (DeTable::parse(text), offset) {
        (Ok(table), Some(offset)) => (key_at(table.get_ref(), offset), None),
        (Err(_), Some(offset)) => (None, find_mistake(text, offset)),
        (_, None) => (None, None),
    };
    let message = mistake.unwrap_or_else(|| match error.message().lines().next() {
        Some("duplicate key") => {
            let duplicate = error.span().and_then(|span| text.get(span)).unwrap_or("it");
            let first = offset
                .and_then(|offset| find_first_line(text, offset))
                .map(|line| format!(" in line {line}"))
                .unwrap_or_default();
            format!(
                "{} already exists{first}; write each key and section only once",
                duplicate.trim()
            )
        }
        first => reword_for_toml(first.unwrap_or_default()),
    });
    let is_page_count = key.as_deref().is_some_and(|key| key.starts_with("host.hugepages."));
    let message = match message.strip_prefix("expected a table, found integer `") {
        Some(count) if is_page_count => format!(
            "{message}; give each NUMA node its pages, for example {{ 0 = {} }}",
            count.trim_end_matches('`')
        ),
        _ => message,
    };
    error_at(text, offset.unwrap_or_default(), key.as_deref(), &message)
}

/// Returns an error about the key whose value is at a byte offset of the text.
pub(super) fn error_at(text: &str, offset: usize, key: Option<&str>, message: &str) -> Error {
    let line = 1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count();
    match key {
        Some(key) => onload_sys::error!("line {line}: {key}: {message}"),
        None => onload_sys::error!("line {line}: {message}"),
    }
}

/// Finds the key, with its section, whose value is at a byte offset of the text.
fn key_at(table: &DeTable<'_>, offset: usize) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        let name = key.get_ref();
        // Only searching the value finds a key of a section: the section's span is that of its header.
        let inner_key = match Spanned::get_ref(value) {
            DeValue::Table(table) => key_at(table, offset),
            DeValue::Array(entries) => {
                entries.iter().find_map(|entry| match Spanned::get_ref(entry) {
                    DeValue::Table(table) => key_at(table, offset),
                    _ => None,
                })
            }
            _ => None,
        };
        match inner_key {
            Some(inner_key) => Some(format!("{name}.{inner_key}")),
            None if value.span().contains(&offset) || key.span().contains(&offset) => {
                Some(name.to_string())
            }
            None => None,
        }
    })
}

/// Returns the line, counted from 1, of an earlier header or key like that at the offset.
fn find_first_line(text: &str, offset: usize) -> Option<usize> {
    fn head(line: &str) -> &str {
        line.split([']', '=']).next().unwrap_or_default().trim()
    }
    let start = text.get(..offset)?.rfind('\n').map_or(0, |newline| newline + 1);
    let duplicate = head(text.get(start..)?.lines().next()?);
    let earlier = text.get(..start)?.lines().zip(1..);
    earlier.filter(|(line, _)| head(line) == duplicate).last().map(|(_, number)| number)
}

/// Recognizes a common mistake at the offset where the parser failed, and returns the message with
/// its remedy.
fn find_mistake(text: &str, offset: usize) -> Option<String> {
    let (before, after) = text.split_at_checked(offset)?;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = text.get(start..)?.lines().next()?.trim();
    let is_yaml_pair = line.split_once(':').is_some_and(|(key, value)| {
        !key.is_empty()
            && !key.contains(['=', '[', '"', '\'', '#', ' '])
            && (value.is_empty() || value.starts_with(' '))
    });
    if is_yaml_pair || line == "---" || line.starts_with("- ") {
        return Some(
            "this is YAML, and the file is TOML: write [section], and key = value".to_owned(),
        );
    }
    if line.starts_with('{') {
        return Some(
            "this is JSON, and the file is TOML: write [section], and key = value".to_owned(),
        );
    }
    let word = after.split(|c: char| !c.is_alphanumeric() && !"-_./:*".contains(c)).next()?;
    let is_header = line.starts_with('[') && !line.contains('=');
    let is_value = before.trim_end().ends_with(['=', '[', ',']) && !is_header;
    if !is_value || !word.starts_with(char::is_alphabetic) {
        return None;
    }
    Some(format!(
        "{word} is not a number, and neither true nor false; a string needs quotes: \"{word}\""
    ))
}

/// Rewords an error of serde in the terms of TOML.
fn reword_for_toml(message: &str) -> String {
    let Some((found, expected)) = message
        .strip_prefix("invalid type: ")
        .or_else(|| message.strip_prefix("invalid value: "))
        .and_then(|rest| rest.rsplit_once(", expected "))
    else {
        return match message {
            // serde also accepts a table for an enumeration. Ours have no variants that are tables.
            "wanted string or table" => "expected a string".to_owned(),
            other => other.to_owned(),
        };
    };
    let expected = match expected {
        "a sequence" => "an array",
        "path string" => "a string",
        "u16" | "u32" | "u64" | "i64" => match found.strip_prefix("integer `") {
            Some(number) if number.starts_with('-') => "a whole number from 0 on",
            Some(_) => "a smaller number",
            None => "a whole number",
        },
        // For leases.share and the pools.
        "a map" => "a table",
        section if section.starts_with("struct ") => "a table",
        other => other,
    };
    let found = match found {
        "sequence" => "an array",
        "map" => "a table",
        other => other,
    };
    format!("expected {expected}, found {found}")
}
