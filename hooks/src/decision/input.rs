//! A configuration with a request for this container, parsed as far as possible before anything
//! else is read.

use std::sync::Arc;

use onload_cdi::json::RawError;
use onload_cdi::oci::{OciConfig, OciConfigError};
use onload_core::request::{Request, is_sandbox};

use super::error::DecisionError;
use super::variable::Variables;
use crate::config_json::scan::{Places, Scanned};

/// A configuration that holds a request for this container.
#[derive(Debug)]
pub(crate) struct DecisionInput {
    /// The text as it was read. From here on, parts of it are not copied.
    pub text: Arc<String>,
    pub config: OciConfig,
    /// The request of its annotations, which may be empty if there is a variable.
    pub request: Request,
    /// What its environment has of the variable.
    pub variables: Variables,
}

impl DecisionInput {
    /// Parses the result of a scan; `None` if it requests nothing after all.
    ///
    /// # Errors
    /// [`DecisionError::TooLarge`], [`DecisionError::Config`] and [`DecisionError::Request`].
    pub(crate) fn read(scanned: Scanned) -> Result<Option<DecisionInput>, DecisionError> {
        if !scanned.may_ask {
            return Ok(None);
        }
        if scanned.more {
            return Err(DecisionError::TooLarge);
        }
        DecisionInput::parse(text(scanned.kept)?, scanned.places)
    }

    /// Parses a text; `None` if it requests nothing after all.
    ///
    /// # Errors
    /// [`DecisionError::Config`] and [`DecisionError::Request`].
    pub(crate) fn parse(
        text: Arc<String>,
        places: Places,
    ) -> Result<Option<DecisionInput>, DecisionError> {
        let config = OciConfig::parse_text(Arc::clone(&text))?;
        let request = Request::parse(&config)?;
        let variables = match places {
            Places::VariableToo if !is_sandbox(&config) => Variables::of(&config)?,
            _ => Variables::default(),
        };
        if request.is_none() && variables == Variables::default() {
            return Ok(None);
        }
        Ok(Some(DecisionInput {
            text,
            config,
            request: request.unwrap_or_default(),
            variables,
        }))
    }
}

/// Converts the bytes of a configuration to text.
///
/// # Errors
/// [`DecisionError::Config`].
pub(crate) fn text(json: Vec<u8>) -> Result<Arc<String>, DecisionError> {
    let text = String::from_utf8(json).map(Arc::new);
    text.map_err(|error| {
        let error = RawError::Utf8(error.utf8_error().valid_up_to());
        OciConfigError::Read(error).into()
    })
}
