//! A configuration with a request for this container, parsed as far as possible before anything
//! else is read.

use std::sync::Arc;

use onload_cdi::json::RawError;
use onload_cdi::oci::{OciConfig, OciConfigError};
use onload_core::request::{Request, is_sandbox};
use onload_sys::error::{Context, Error, Result, error};

use super::scan::{MAX_BYTES, ScanResult, ScanScope};
use crate::decide::subject::CONFIG_JSON;
use crate::decide::variable::RequestVariables;

#[derive(Debug)]
pub(crate) struct DecisionInput {
    /// The unchanged text. The parsed parts refer to it without copying.
    pub text: Arc<String>,
    pub config: OciConfig,
    /// The request of its annotations, which may be empty if there is a variable.
    pub request: Request,
    pub variables: RequestVariables,
    /// Whether `linux.netDevices` moves interfaces.
    pub moves_interfaces: bool,
}

impl DecisionInput {
    /// Parses the result of a scan; `None` if it requests nothing after all.
    pub(crate) fn read(scan_result: ScanResult) -> Result<Option<DecisionInput>> {
        if !scan_result.may_hold_request {
            return Ok(None);
        }
        if scan_result.more {
            return Err(too_large_error());
        }
        DecisionInput::parse(into_text(scan_result.kept)?, scan_result.scope)
    }

    /// Parses a text; `None` if it requests nothing after all.
    pub(crate) fn parse(text: Arc<String>, scope: ScanScope) -> Result<Option<DecisionInput>> {
        let config = OciConfig::parse_text(Arc::clone(&text)).context(CONFIG_JSON)?;
        let request = Request::parse(&config)?;
        let variables = match scope {
            ScanScope::VariableToo if !is_sandbox(&config) => {
                RequestVariables::from_config(&config).context(CONFIG_JSON)?
            }
            _ => RequestVariables::default(),
        };
        let moves_interfaces = !config.net_devices().context(CONFIG_JSON)?.is_empty();
        if request.is_none() && variables == RequestVariables::default() && !moves_interfaces {
            return Ok(None);
        }
        Ok(Some(DecisionInput {
            text,
            config,
            request: request.unwrap_or_default(),
            variables,
            moves_interfaces,
        }))
    }
}

pub(crate) fn too_large_error() -> Error {
    error!(
        "config.json has onload.dev annotations, the variable ONLOAD_CTK_REQUEST or linux.netDevices, and is larger than {MAX_BYTES} bytes"
    )
}

pub(crate) fn into_text(json: Vec<u8>) -> Result<Arc<String>> {
    String::from_utf8(json)
        .map(Arc::new)
        .map_err(|error| OciConfigError::Read(RawError::Utf8(error.utf8_error().valid_up_to())))
        .context(CONFIG_JSON)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_that_runc_would_move_are_seen_however_the_key_is_spelled() {
        let read = |key: &str| {
            let text = format!(r#"{{"linux":{{"{key}":{{"ens1":{{}}}}}}}}"#);
            let read = super::super::scan::read(
                text.as_bytes(),
                0,
                ScanScope::Annotations,
                &mut |_, _| Ok(()),
            );
            DecisionInput::read(read.unwrap()).map(|input| input.unwrap().moves_interfaces)
        };
        assert!(read("netDevices").unwrap());
        assert!(read(r"net\u0044evices").unwrap());
        for key in ["NetDevices", "NETDEVICE\u{17f}", r"netDevice\u017f"] {
            let error = format!("{:#}", read(key).unwrap_err());
            assert!(error.contains("differs from \"netDevices\" only in case"), "{error}");
        }
    }
}
