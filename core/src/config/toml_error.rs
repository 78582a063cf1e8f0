//! What is wrong with a text of TOML, in words for people who edit it.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use onload_sys::error::Error;

/// What a parser of TOML says of a text, with the line, counted from 1, and the key.
pub fn describe_toml_error(text: &str, error: &toml::de::Error) -> Error {
    let offset = error.span().map(|span| span.start);
    // The parser is at what follows, which may be lines below.
    if let Some(before) = offset.and_then(|offset| text.get(..offset))
        && error.message().starts_with("missing comma")
    {
        let end = before.trim_end().len();
        return error_at(text, end, None, "a comma is missing, or the ] of this array");
    }
    let table = DeTable::parse(text);
    let key = offset.and_then(|offset| key_at(table.as_ref().ok()?.get_ref(), offset));
    let mistake = offset.filter(|_| table.is_err());
    let mistake = mistake.and_then(|offset| find_mistake(text, offset));
    let source_text = error.span().and_then(|span| text.get(span));
    let message = mistake.unwrap_or_else(|| match error.message().lines().next() {
        Some("duplicate key") => format!(
            "{} is there already; write each key and section once",
            source_text.unwrap_or("it").trim()
        ),
        first => reword_for_toml(first.unwrap_or_default()),
    });
    error_at(text, offset.unwrap_or_default(), key.as_deref(), &message)
}

/// A message about a key whose value stands at that byte of a text.
pub(super) fn error_at(text: &str, offset: usize, key: Option<&str>, message: &str) -> Error {
    let before = text.as_bytes().iter().take(offset);
    let line = 1 + before.filter(|byte| **byte == b'\n').count();
    match key {
        Some(key) => onload_sys::error!("line {line}: {key}: {message}"),
        None => onload_sys::error!("line {line}: {message}"),
    }
}

/// The key, with its section, whose value stands at that place of a text.
fn key_at(table: &DeTable<'_>, offset: usize) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        let name = key.get_ref();
        // What is known of a section is where its head stands.
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
        let contains_offset = || value.span().contains(&offset) || key.span().contains(&offset);
        inner_key
            .map(|inner_key| format!("{name}.{inner_key}"))
            .or_else(|| contains_offset().then(|| name.to_string()))
    })
}

/// What people often write where the parser finds no TOML, and what to write; `None` if it is something else.
fn find_mistake(text: &str, offset: usize) -> Option<String> {
    let (before, after) = text.split_at_checked(offset)?;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = text.get(start..)?.lines().next()?.trim();
    let (key, rest) = line.split_once(':').unwrap_or_default();
    let is_key = |key: &str| !key.is_empty() && !key.contains(['=', '[', '"', '\'', '#', ' ']);
    let is_pair = is_key(key) && (rest.is_empty() || rest.starts_with(' '));
    if is_pair || line == "---" || line.starts_with("- ") {
        return Some(
            "this is YAML, and the file is TOML: write [section], and key = value".to_owned(),
        );
    }
    if line.starts_with('{') {
        return Some(
            "this is JSON, and the file is TOML: write [section], and key = value".to_owned(),
        );
    }
    let is_of_word = |c: char| c.is_alphanumeric() || "-_./:*".contains(c);
    let word = after.split(|c| !is_of_word(c)).next()?;
    let is_head = line.starts_with('[') && !line.contains('=');
    let begins_value = before.trim_end().ends_with(['=', '[', ',']) && !is_head;
    (begins_value && word.starts_with(char::is_alphabetic)).then(|| {
        format!(
            "{word} is no number, and neither true nor false; a string wants quotes: \"{word}\""
        )
    })
}

/// What serde says of a value, in the words of TOML.
fn reword_for_toml(message: &str) -> String {
    let prefixes = ["invalid type: ", "invalid value: "];
    let rest = prefixes.iter().find_map(|prefix| message.strip_prefix(prefix));
    let Some((found, expected)) = rest.and_then(|rest| rest.rsplit_once(", expected ")) else {
        return match message {
            // Of an enumeration, no variant of which is a table.
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
        // Of the classes that `leases.share` counts and of the pools.
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
