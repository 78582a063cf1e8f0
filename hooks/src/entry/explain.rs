//! Shows what the filter would do to a configuration.

use std::ffi::OsStr;
use std::path::Path;

use memchr::memmem;
use onload_sys::error::Result;
use onload_sys::text::{escape_controls, to_one_line};

use crate::config::config_file::{OciConfigFile, podman_container_id};
use crate::config::decision_input::DecisionInput;
use crate::config::filter::{self, FilterOutcome};
use crate::config::scan::ScanScope;
use crate::decide::host_view::HostView;
use crate::decide::pools::Pools;
use crate::decide::subject::ContainerRef;
use crate::live;

/// Explains what the filter would do to a bundle's configuration. If the bundle or the host cannot
/// be read, this is an error; a rejection is part of the result.
pub fn explain(bundle: &Path, host: &dyn HostView, pools: &dyn Pools) -> Result<Explanation> {
    let file = OciConfigFile::open(bundle, None)?;
    let scan_result = file.scan(ScanScope::VariableToo)?;
    let before = format_json(&scan_result.kept);
    let has_libraries = memmem::find(&scan_result.kept, b"\"--rdma-libraries\"").is_some();
    let name = bundle.file_name().and_then(OsStr::to_str);
    let id = podman_container_id(bundle).or_else(|| name?.parse().ok());
    let container = ContainerRef { bundle, id: id.as_ref(), sees_exec: true };
    let result = match DecisionInput::read(scan_result) {
        Ok(Some(input)) => {
            host.settings()?;
            filter::apply_request(&input, container, host, pools)
        }
        other => other.map(|_| FilterOutcome::default()),
    };
    let (mut outcome, refusal) = match result {
        Ok(outcome) => (outcome, None),
        Err(error) => (FilterOutcome::default(), Some(to_one_line(&format!("{error:#}")))),
    };
    if has_libraries {
        let by_hooks = live::explain_libraries(bundle, host)?;
        outcome.report.warnings.extend(by_hooks.warnings);
        outcome.report.reasons.extend(by_hooks.reasons);
    }
    let to_lines = |texts: &[String]| texts.iter().map(|text| to_one_line(text)).collect();
    Ok(Explanation {
        after: outcome.config.as_deref().map_or_else(|| before.clone(), format_json),
        before,
        reasons: to_lines(&outcome.report.reasons),
        warnings: to_lines(&outcome.report.warnings),
        refusal,
    })
}

/// The changes that the filter would make to a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// The current configuration, one value per line.
    pub before: String,
    /// The configuration after the changes.
    pub after: String,
    /// The devices and settings that the container would get, with reasons.
    pub reasons: Vec<String>,
    pub warnings: Vec<String>,
    pub refusal: Option<String>,
}

/// The largest configuration that is shown. Real ones have some ten thousand bytes, and line breaks
/// and indentation make them many times as long.
const MAX_SHOWN: usize = 1024 * 1024;

fn format_json(json: &[u8]) -> String {
    if json.len() > MAX_SHOWN {
        return format!("{} bytes, which is too long to be shown\n", json.len());
    }
    indent(json)
}

/// Formats JSON with one value per line and every value spelled as before. Text that is not JSON is
/// formatted in some way too.
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
            byte => {
                in_string = byte == b'"';
                text.push(byte);
            }
        }
    }
    text.push(b'\n');
    escape_controls(&String::from_utf8_lossy(&text))
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
        assert_eq!(format_json(&long), "1048577 bytes, which is too long to be shown\n");
        let deep = format_json(&long[..MAX_SHOWN]);
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
