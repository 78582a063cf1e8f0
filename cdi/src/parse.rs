//! Converts bytes to a [`Spec`] and back. It is strict: an unknown field, a duplicate key or a
//! wrong type refuses the file, as in the engines' library. It is stricter in one respect: JSON
//! must be JSON, where the library reads both formats as YAML.

use thiserror::Error;

use crate::json::value_path::value_path;
use crate::messages::reword;
use crate::spec::Spec;
#[cfg(feature = "yaml")]
use crate::yaml::YamlValue;

/// Why bytes are not a specification.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Not JSON, or not of the form of a specification; the source says key, line and column.
    #[error("parsing JSON")]
    Json(#[source] JsonError),
    /// Not YAML, or not of the form of a specification; the source says line and column, or the key.
    #[cfg(feature = "yaml")]
    #[error("parsing YAML")]
    Yaml(#[source] YamlError),
    /// Not UTF-8.
    #[error("reading text: not UTF-8 from byte {0} on")]
    Utf8(usize),
}

/// U+FEFF in UTF-8, which some editors put before a text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// What is wrong with an empty text.
const NOTHING: &str = "there is nothing in it";

/// What is wrong with a text that should be JSON, in one line: at which key, what, at which line and
/// column.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct JsonError(String);

impl JsonError {
    fn new(bytes: &[u8], error: &serde_json::Error) -> Self {
        if bytes.trim_ascii().is_empty() {
            return Self(NOTHING.to_owned());
        }
        if bytes.starts_with(BYTE_ORDER_MARK) {
            return Self("it begins with a byte order mark; save it without".to_owned());
        }
        let message = reword(&error.to_string());
        // Where the text is no JSON, what came before tells little of what was meant.
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

/// The text up to a line, from 1, and a column, in bytes.
fn text_before(bytes: &[u8], line: usize, column: usize) -> &[u8] {
    let before = bytes.split_inclusive(|byte| *byte == b'\n');
    let before: usize = before.take(line.saturating_sub(1)).map(<[u8]>::len).sum();
    &bytes[..bytes.len().min(before + column)]
}

/// What is wrong with a text that should be YAML, in one line.
#[cfg(feature = "yaml")]
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct YamlError(String);

#[cfg(feature = "yaml")]
impl YamlError {
    /// The first line of what the parser says, without its advice for programmers; an excerpt of the
    /// text follows it.
    fn new(error: &serde_saphyr::Error) -> Self {
        let message = error.to_string();
        let line = message.lines().next().unwrap_or_default();
        let line = line.strip_prefix("error: ").unwrap_or(line);
        let advice = [", set DuplicateKeyPolicy", "; use from_str_multiple"];
        let ends = advice.iter().filter_map(|advice| line.find(advice));
        Self(line[..ends.min().unwrap_or(line.len())].to_owned())
    }
}

/// Reads JSON.
///
/// # Errors
/// [`ParseError::Json`], with key, line and column.
pub fn from_json(bytes: &[u8]) -> Result<Spec, ParseError> {
    let spec = serde_json::from_slice(bytes);
    spec.map_err(|error| ParseError::Json(JsonError::new(bytes, &error)))
}

/// Writes JSON: indented by two, fields in fixed order, a newline at the end. The same
/// specification always gives the same bytes.
#[must_use]
pub fn to_json(spec: &Spec) -> String {
    // Maps have string keys, and nothing else in the model can fail to be serialised.
    let mut text = serde_json::to_string_pretty(spec).unwrap_or_default();
    text.push('\n');
    text
}

/// Reads YAML, one document, as the engines' library does: plain scalars by the rules of YAML 1.1 (`0666` is
/// octal, `on` is true), and a number or truth value where a text is wanted becomes that text.
///
/// # Errors
/// [`ParseError::Utf8`] and [`ParseError::Yaml`].
#[cfg(feature = "yaml")]
pub fn from_yaml(bytes: &[u8]) -> Result<Spec, ParseError> {
    let text = std::str::from_utf8(bytes).map_err(|error| ParseError::Utf8(error.valid_up_to()))?;
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
    };
    let document: YamlValue = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| ParseError::Yaml(YamlError::new(&error)))?;
    if document == YamlValue::Null {
        return Err(ParseError::Yaml(YamlError(NOTHING.to_owned())));
    }
    // Not the derived function with the same name, which accepts a list too.
    let spec = <Spec as serde::Deserialize>::deserialize(document);
    spec.map_err(|error| ParseError::Yaml(YamlError(reword(&error.to_string()))))
}

/// Writes YAML, fields in the order of [`to_json`].
#[cfg(feature = "yaml")]
#[must_use]
pub fn to_yaml(spec: &Spec) -> String {
    serde_saphyr::to_string(spec).unwrap_or_default()
}
