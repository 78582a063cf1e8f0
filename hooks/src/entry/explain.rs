//! What would be done to a configuration, for people.

use std::ffi::OsStr;
use std::path::Path;

use onload_core::text::{Chain, one_line};

use super::edit::EntryError;
use crate::config_json::bundle::{ConfigFile, podman_id};
use crate::decision::error::DecisionError;
use crate::filter::{self, Container, FilterError, Outcome};
use crate::host::Host;

/// What would be done to the configuration of a bundle, for people.
///
/// # Errors
/// [`EntryError::Bundle`] and [`EntryError::Host`] where it cannot be told; a refusal is part of the
/// answer.
pub fn explain(bundle: &Path, host: &dyn Host) -> Result<Explanation, EntryError> {
    let file = ConfigFile::open(bundle, None)?;
    let scanned = file.scan()?;
    let before = shown(&scanned.kept);
    let name = bundle.file_name().and_then(OsStr::to_str);
    let id = podman_id(bundle).or_else(|| name?.parse().ok());
    let container = Container {
        bundle,
        id: id.as_ref(),
        sees_exec: true,
    };
    let (outcome, refusal) = match filter::apply_scanned(scanned, container, host) {
        Ok(outcome) => (outcome, None),
        Err(FilterError::Decision(DecisionError::Host(error))) => return Err(error.into()),
        Err(error) => (Outcome::default(), Some(Chain(&error).to_string())),
    };
    Ok(Explanation {
        after: outcome
            .config
            .as_deref()
            .map_or_else(|| before.clone(), shown),
        before,
        reasons: outcome.reasons.iter().map(|line| one_line(line)).collect(),
        warnings: outcome.warnings.iter().map(|line| one_line(line)).collect(),
        refusal: refusal.map(|line| one_line(&line)),
    })
}

/// What would be done to a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// The configuration as it is, one value a line.
    pub before: String,
    /// The configuration as it would be.
    pub after: String,
    /// What would be given, and why.
    pub reasons: Vec<String>,
    /// What the person at the host should know.
    pub warnings: Vec<String>,
    /// Why the container would not start.
    pub refusal: Option<String>,
}

/// Bytes of a configuration that is shown; real ones have some ten thousand, and with its lines and
/// indentation one takes many times as much.
const MAX_SHOWN: usize = 1024 * 1024;

fn shown(json: &[u8]) -> String {
    if json.len() > MAX_SHOWN {
        return format!("{} bytes, which is too long to be shown\n", json.len());
    }
    indent(json)
}

/// JSON with one value a line, every value spelled as it was. What is no JSON comes out as some
/// text, no more.
#[must_use]
pub(crate) fn indent(json: &[u8]) -> String {
    let mut text = Vec::with_capacity(json.len() * 2);
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut escaped = false;
    let line = |text: &mut Vec<u8>, depth: usize| {
        text.push(b'\n');
        text.resize(text.len() + 2 * depth.min(16), b' ');
    };
    for &byte in json {
        if in_string {
            text.push(byte);
            in_string = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
            continue;
        }
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => {}
            b'{' | b'[' => {
                text.push(byte);
                depth += 1;
                line(&mut text, depth);
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                let content = text.trim_ascii_end().len();
                text.truncate(content);
                if !text.ends_with(b"{") && !text.ends_with(b"[") {
                    line(&mut text, depth);
                }
                text.push(byte);
            }
            b',' => {
                text.push(byte);
                line(&mut text, depth);
            }
            b':' => text.extend(b": "),
            b'"' => {
                in_string = true;
                text.push(byte);
            }
            byte => text.push(byte),
        }
    }
    text.push(b'\n');
    // Bytes that a terminal would obey are shown as they would be escaped.
    let mut shown = String::with_capacity(text.len());
    for character in String::from_utf8_lossy(&text).chars() {
        if character.is_control() && character != '\n' {
            shown.extend(character.escape_debug());
        } else {
            shown.push(character);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_indented_and_keeps_its_spelling() {
        let json = br#"{"a":1e3,"b":[],"c":{"d":"x,{\"","e":[0.10, true]} }"#;
        assert_eq!(
            indent(json),
            "{\n  \"a\": 1e3,\n  \"b\": [],\n  \"c\": {\n    \"d\": \"x,{\\\"\",\n    \"e\": [\n      0.10,\n      true\n    ]\n  }\n}\n"
        );
    }

    #[test]
    fn a_configuration_too_long_to_be_shown_is_told_by_its_length() {
        let long = vec![b'['; MAX_SHOWN + 1];
        assert_eq!(
            shown(&long),
            "1048577 bytes, which is too long to be shown\n"
        );
        let deep = shown(&long[..MAX_SHOWN]);
        assert!(deep.len() < 40 * MAX_SHOWN, "{} bytes", deep.len());
    }

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        assert_eq!(
            indent("[\"\u{9b}31m\u{7f}\",\u{1b}]0;x]".as_bytes()),
            "[\n  \"\\u{9b}31m\\u{7f}\",\n  \\u{1b}\n]0;x\n]\n"
        );
    }
}
