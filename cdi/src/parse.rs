//! Converts bytes to a [`Spec`] and back.
//!
//! A file with an unknown field, a duplicate key or a wrong type is rejected, as by the engines'
//! library. The library reads JSON files as YAML; here they must be JSON.

use thiserror::Error;

use crate::json::value_path::value_path;
use crate::messages::reword;
use crate::spec::Spec;
#[cfg(feature = "yaml")]
use crate::yaml::convert_scalars;

/// Why bytes are not a specification.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Not JSON, or not of the form of a specification. The source names key, line and column.
    #[error("parsing JSON")]
    Json(#[source] JsonError),
    /// Not YAML, or not of the form of a specification. The source names line and column, or the key.
    #[cfg(feature = "yaml")]
    #[error("parsing YAML")]
    Yaml(#[source] YamlError),
    /// Not UTF-8.
    #[error("reading text: not UTF-8 from byte {0} on")]
    Utf8(usize),
}

/// U+FEFF in UTF-8, which some editors put before a text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// The error of an empty text.
const EMPTY_TEXT: &str = "there is nothing in it";

/// An error in a JSON text, in one line, with its key, line and column.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct JsonError(String);

impl JsonError {
    fn new(bytes: &[u8], error: &serde_json::Error) -> Self {
        if bytes.trim_ascii().is_empty() {
            return Self(EMPTY_TEXT.to_owned());
        }
        if bytes.starts_with(BYTE_ORDER_MARK) {
            return Self("it begins with a byte order mark; save it without".to_owned());
        }
        let message = reword(&error.to_string());
        // After a syntax error, the path of the last key would mislead.
        let path = match error.is_data() {
            true => value_path(text_before(bytes, error.line(), error.column())),
            false => String::new(),
        };
        match path.as_str() {
            "" => Self(message),
            path => Self(format!("{path}: {message}")),
        }
    }
}

/// Returns the text before a position. Lines count from 1, columns in bytes.
fn text_before(bytes: &[u8], line: usize, column: usize) -> &[u8] {
    let line_start: usize = bytes
        .split_inclusive(|byte| *byte == b'\n')
        .take(line.saturating_sub(1))
        .map(<[u8]>::len)
        .sum();
    &bytes[..bytes.len().min(line_start + column)]
}

/// An error in a YAML text, in one line.
#[cfg(feature = "yaml")]
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct YamlError(String);

#[cfg(feature = "yaml")]
impl YamlError {
    /// Takes the first line of the parser's error, without its advice for programmers. An excerpt of
    /// the text follows in later lines.
    fn new(error: &serde_saphyr::Error) -> Self {
        let message = error.to_string();
        let first_line = message.lines().next().unwrap_or_default();
        let mut reason = first_line.strip_prefix("error: ").unwrap_or(first_line);
        for advice in [", set DuplicateKeyPolicy", "; use from_str_multiple"] {
            reason = reason.split_once(advice).map_or(reason, |(reason, _)| reason);
        }
        Self(reason.to_owned())
    }
}

/// Reads JSON.
///
/// # Errors
/// [`ParseError::Json`], with key, line and column.
pub fn from_json(bytes: &[u8]) -> Result<Spec, ParseError> {
    serde_json::from_slice(bytes).map_err(|error| ParseError::Json(JsonError::new(bytes, &error)))
}

/// Writes JSON, indented by two spaces, with a newline at the end. Equal specifications give equal
/// bytes.
#[must_use]
pub fn to_json(spec: &Spec) -> String {
    // Only a map with keys that are not strings could fail, and the model has none.
    let mut text = serde_json::to_string_pretty(spec).unwrap_or_default();
    text.push('\n');
    text
}

/// Reads one YAML document as the engines' library does: plain scalars follow YAML 1.1 (`0666` is
/// octal, `on` is true), and numbers and booleans are converted to text if a field requires text.
///
/// # Errors
/// [`ParseError::Utf8`] and [`ParseError::Yaml`].
#[cfg(feature = "yaml")]
pub fn from_yaml(bytes: &[u8]) -> Result<Spec, ParseError> {
    let text = std::str::from_utf8(bytes).map_err(|error| ParseError::Utf8(error.valid_up_to()))?;
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
    };
    let mut document: serde_json::Value = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| ParseError::Yaml(YamlError::new(&error)))?;
    if document.is_null() {
        return Err(ParseError::Yaml(YamlError(EMPTY_TEXT.to_owned())));
    }
    convert_scalars("", &mut document);
    let json = document.to_string();
    serde_json::from_str(&json).map_err(|error| {
        let JsonError(message) = JsonError::new(json.as_bytes(), &error);
        // The position is not that in the YAML text.
        let reason = message.rsplit_once(" at line ").map_or(&*message, |(reason, _)| reason);
        ParseError::Yaml(YamlError(reason.to_owned()))
    })
}

/// Writes YAML, with the fields in the order of [`to_json`].
#[cfg(feature = "yaml")]
#[must_use]
pub fn to_yaml(spec: &Spec) -> String {
    serde_saphyr::to_string(spec).unwrap_or_default()
}
