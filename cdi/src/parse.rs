//! Converts bytes to a [`Spec`] and back. It is strict: an unknown field, a duplicate key or a
//! wrong type refuses the file, as in the engines' library. It is stricter in one respect: JSON
//! must be JSON, where the library reads both formats as YAML.

use thiserror::Error;

use crate::spec::Spec;
#[cfg(feature = "yaml")]
use crate::yaml::Value;

/// Why bytes are not a specification.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Not JSON, or without the form of a specification; the source has line and column.
    #[error("parsing JSON")]
    Json(#[from] serde_json::Error),
    /// Not YAML, or without the form of a specification; the source has line and column, or the
    /// key.
    #[cfg(feature = "yaml")]
    #[error("parsing YAML")]
    Yaml(#[source] YamlError),
    /// Not UTF-8.
    #[error("reading text: not UTF-8 from byte {0} on")]
    Utf8(usize),
}

/// What is wrong with a YAML text, in one line.
#[cfg(feature = "yaml")]
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct YamlError(String);

#[cfg(feature = "yaml")]
impl YamlError {
    /// The first line of the parser's message; an excerpt of the text follows it.
    fn of(error: &serde_saphyr::Error) -> Self {
        let message = error.to_string();
        Self(message.lines().next().unwrap_or_default().to_owned())
    }
}

/// Reads JSON.
///
/// # Errors
/// [`ParseError::Json`], with line and column.
pub fn from_json(bytes: &[u8]) -> Result<Spec, ParseError> {
    Ok(serde_json::from_slice(bytes)?)
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
    let document: Value = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| ParseError::Yaml(YamlError::of(&error)))?;
    if document == Value::Null {
        return Err(ParseError::Yaml(YamlError(
            "there is nothing in it".to_owned(),
        )));
    }
    // Not the derived function with the same name, which accepts a list too.
    let spec = <Spec as serde::Deserialize>::deserialize(document);
    spec.map_err(|error| ParseError::Yaml(YamlError(error.to_string())))
}

/// Writes YAML, fields in the order of [`to_json`].
#[cfg(feature = "yaml")]
#[must_use]
pub fn to_yaml(spec: &Spec) -> String {
    serde_saphyr::to_string(spec).unwrap_or_default()
}
