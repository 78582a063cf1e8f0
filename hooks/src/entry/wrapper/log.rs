//! Reports this program's own errors like runc: in the file of `--log`, in the format of
//! `--log-format`, and on standard error. Engines read the last line of that file to tell their
//! user why a container did not start.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use onload_core::config::LogLevel;
use onload_core::timestamp::{format_rfc3339, unix_seconds};
use onload_sys::text::to_one_line;

use crate::entry::program::print_line;
use crate::entry::wrapper::args::LogTarget;

/// Writes one line. A warning goes to standard error only if there is no log file, since that
/// descriptor belongs to the container.
pub(crate) fn write(target: &LogTarget, level: LogLevel, message: &str) {
    let is_logged = target.path.as_deref().is_some_and(|path| {
        let line = format(target.is_json, level, message, unix_seconds());
        OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o644)
            .open(path)
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .is_ok()
    });
    if level == LogLevel::Error {
        print_line(message);
    } else if !is_logged {
        print_line(&format!("warning: {message}"));
    }
}

fn format(is_json: bool, level: LogLevel, message: &str, time: u64) -> String {
    let time = format_rfc3339(time);
    let message = serde_json::Value::from(to_one_line(message));
    if is_json {
        format!("{{\"level\":\"{level}\",\"msg\":{message},\"time\":\"{time}\"}}\n")
    } else {
        format!("time=\"{time}\" level={level} msg={message}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_what_runc_would_write() {
        assert_eq!(
            format(true, LogLevel::Error, "a \"b\"\nc", 0),
            "{\"level\":\"error\",\"msg\":\"a \\\"b\\\"\\\\nc\",\"time\":\"1970-01-01T00:00:00Z\"}\n"
        );
        assert_eq!(
            format(false, LogLevel::Warning, "x", 0),
            "time=\"1970-01-01T00:00:00Z\" level=warning msg=\"x\"\n"
        );
    }

    #[test]
    fn the_file_is_appended_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "before\n").unwrap();
        let target = LogTarget { path: Some(path.clone()), is_json: true };
        write(&target, LogLevel::Warning, "x");
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(serde_json::from_str::<serde_json::Value>(lines[1]).unwrap()["msg"] == "x");
    }
}
