//! The state that a runtime writes to a hook's standard input (runtime-spec, runtime.md "State").

use std::io::Read;
use std::path::PathBuf;

use onload_core::container_id::ContainerId;
use onload_sys::error::{Result, bail, error};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// The part of the state that a hook needs. It skips annotations, which may be long; code that needs them finds them in
/// the bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OciState {
    pub id: ContainerId,
    /// The container's init as the runtime's PID namespace counts it; `None` in stages without a running init, for which
    /// runtimes write 0, null or nothing.
    pub pid: Option<u32>,
    pub bundle: PathBuf,
    /// Whether the container's process has ended (`status` is `stopped`).
    pub is_stopped: bool,
}

#[derive(Deserialize)]
struct RawState {
    id: Option<String>,
    pid: Option<i64>,
    bundle: Option<PathBuf>,
    status: Option<String>,
    /// A configuration's.
    process: Option<IgnoredAny>,
}

impl OciState {
    /// Reads a state and ignores its other fields. A missing bundle is accepted if `bundle_wanted` is false, since
    /// cleaning up needs none.
    pub fn read(from: impl Read, bundle_wanted: bool) -> Result<OciState> {
        let raw: RawState = serde_json::from_reader(from).map_err(|error| {
            error!(
                "reading the container's state from standard input: {error}; expected the state \
                 JSON of the OCI runtime specification"
            )
        })?;
        OciState::from_raw(raw, bundle_wanted)
    }

    fn from_raw(raw: RawState, bundle_wanted: bool) -> Result<OciState> {
        let missing = |field| {
            error!(
                "the container's state has no {field}; expected the state JSON of the OCI runtime \
                 specification"
            )
        };
        let id: ContainerId = raw.id.ok_or_else(|| missing("id"))?.parse()?;
        let pid = match raw.pid {
            None | Some(0) => None,
            Some(pid) => match i32::try_from(pid) {
                Ok(small) if small > 0 => Some(small.unsigned_abs()),
                _ => bail!("{pid} in the container's state is not a process id"),
            },
        };
        let bundle = raw.bundle.unwrap_or_default();
        if bundle_wanted && bundle.as_os_str().is_empty() {
            return Err(missing("bundle"));
        }
        if bundle_wanted && !bundle.is_absolute() {
            bail!("the bundle {bundle:?} in the container's state is not an absolute path");
        }
        Ok(OciState { id, pid, bundle, is_stopped: raw.status.as_deref() == Some("stopped") })
    }

    /// Recognises a state where a configuration may arrive as well: one file of podman's hooks.d serves several stages with
    /// the same arguments, and only standard input differs. A configuration has no id, status or bundle.
    #[must_use]
    pub fn recognise(json: &[u8]) -> Option<OciState> {
        let raw: RawState = serde_json::from_slice(json).ok()?;
        let is_state = raw.status.is_some() && raw.bundle.is_some() && raw.process.is_none();
        is_state.then(|| OciState::from_raw(raw, false).ok())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<OciState> {
        OciState::read(json.as_bytes(), true)
    }

    fn refusal(json: &str) -> String {
        read(json).unwrap_err().to_string()
    }

    #[test]
    fn runc_and_crun_states_are_read() {
        let runc = r#"{"ociVersion":"1.0.2-dev","id":"c1","status":"creating","pid":4711,"bundle":"/b","annotations":null}"#;
        let state = read(runc).unwrap();
        assert_eq!((state.id.as_str(), state.pid), ("c1", Some(4711)));
        assert_eq!(state.bundle, PathBuf::from("/b"));
        let crun = r#"{"ociVersion":"1.0","id":"c-1_x.y+z","pid":0,"root":"/r","bundle":"/b","status":"created","annotations":{"a":"b","n":7}}"#;
        assert_eq!(read(crun).unwrap().pid, None);
    }

    #[test]
    fn what_is_no_json_is_said_once() {
        let line = format!("{:#}", read("").unwrap_err());
        assert_eq!(line.matches("EOF while parsing").count(), 1, "{line}");
    }

    #[test]
    fn a_null_or_missing_pid_is_none() {
        assert_eq!(read(r#"{"id":"a","pid":null,"bundle":"/b"}"#).unwrap().pid, None);
        assert_eq!(read(r#"{"id":"a","bundle":"/b"}"#).unwrap().pid, None);
    }

    #[test]
    fn a_pid_that_no_process_can_have_is_refused() {
        assert_eq!(
            refusal(r#"{"id":"a","pid":-1,"bundle":"/b"}"#),
            "-1 in the container's state is not a process id"
        );
        assert!(refusal(r#"{"id":"a","pid":4294967297,"bundle":"/b"}"#).contains("process id"));
        assert!(refusal(r#"{"id":"a","pid":"1","bundle":"/b"}"#).contains("invalid type"));
    }

    #[test]
    fn an_id_that_is_no_file_name_is_refused() {
        for id in ["", ".", "..", "a/b", "../x", "a b", "a\\u0000b", "a\\n", "\\u00e4"] {
            let json = format!(r#"{{"id":"{id}","bundle":"/b"}}"#);
            assert!(refusal(&json).contains("is not a container id"), "{id}");
        }
        assert!(refusal(r#"{"bundle":"/b"}"#).contains("has no id"));
    }

    #[test]
    fn a_bundle_must_be_absolute() {
        assert!(refusal(r#"{"id":"a"}"#).contains("has no bundle"));
        assert!(refusal(r#"{"id":"a","bundle":"b"}"#).contains("not an absolute path"));
        assert!(OciState::read(&br#"{"id":"a"}"#[..], false).is_ok());
    }

    #[test]
    fn duplicate_keys_and_broken_json_are_refused() {
        assert!(refusal(r#"{"id":"a","id":"b","bundle":"/b"}"#).contains("duplicate field"));
        for json in ["", "{", "[]", "null", r#"{"id":"a","bundle":"/b"} x"#] {
            assert!(read(json).is_err(), "{json}");
        }
    }

    #[test]
    fn a_state_is_told_from_a_configuration() {
        let state = br#"{"id":"c1","status":"stopped","bundle":"/b","pid":0,"root":"/r"}"#;
        assert!(OciState::recognise(state).unwrap().is_stopped);
        for config in [
            &br#"{"ociVersion":"1.0.2","process":{},"root":{}}"#[..],
            br#"{"ociVersion":"1.0.2"}"#,
            br#"{"id":"c1","status":"stopped","bundle":"/b","process":{}}"#,
            b"[]",
            b"",
        ] {
            assert_eq!(OciState::recognise(config), None);
        }
        assert!(!read(r#"{"id":"a","bundle":"/b","status":"creating"}"#).unwrap().is_stopped);
    }

    #[test]
    fn deep_and_long_annotations_are_passed_over() {
        let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
        let json = format!(r#"{{"id":"a","bundle":"/b","annotations":{deep}}}"#);
        assert_eq!(read(&json).unwrap().id.as_str(), "a");
        let long = "x".repeat(1 << 20);
        let json = format!(r#"{{"annotations":{{"k":"{long}"}},"id":"a","bundle":"/b"}}"#);
        assert_eq!(read(&json).unwrap().id.as_str(), "a");
    }
}
