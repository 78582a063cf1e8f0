//! Reports this program's own failures the way runc does: in the file of `--log`, in the format of
//! `--log-format`, and on standard error. Engines read the last line of that file to tell their
//! user why a container did not start.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{SystemTime, UNIX_EPOCH};

use onload_core::text::one_line;

use crate::entry::program::say;
use crate::entry::wrapper::args::{LogFormat, LogTarget};

/// The severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// The container starts all the same.
    Warning,
    /// The container does not start.
    Error,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }
}

/// Writes one line. A warning goes to standard error only if there is no log file, since that
/// descriptor belongs to the container.
pub(crate) fn write(target: &LogTarget, level: Level, message: &str) {
    let logged = target.path.as_deref().is_some_and(|path| {
        let line = format(target.format, level, message, now());
        append(path).is_some_and(|mut file| file.write_all(line.as_bytes()).is_ok())
    });
    match level {
        Level::Error => say(message),
        Level::Warning if !logged => say(&format!("warning: {message}")),
        Level::Warning => {}
    }
}

fn append(path: &std::path::Path) -> Option<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o644)
        .open(path)
        .ok()
}

fn format(format: LogFormat, level: Level, message: &str, time: u64) -> String {
    let level = level.as_str();
    let time = rfc3339(time);
    let message = serde_json::Value::from(one_line(message));
    match format {
        LogFormat::Json => {
            format!("{{\"level\":\"{level}\",\"msg\":{message},\"time\":\"{time}\"}}\n")
        }
        LogFormat::Text => format!("time=\"{time}\" level={level} msg={message}\n"),
    }
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Seconds since 1970 in RFC 3339 form, in UTC. The date is counted in years that start in March,
/// so that the leap day comes last (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn rfc3339(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(rfc3339(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(rfc3339(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn a_line_is_what_runc_would_write() {
        assert_eq!(
            format(LogFormat::Json, Level::Error, "a \"b\"\nc", 0),
            "{\"level\":\"error\",\"msg\":\"a \\\"b\\\"\\\\nc\",\"time\":\"1970-01-01T00:00:00Z\"}\n"
        );
        assert_eq!(
            format(LogFormat::Text, Level::Warning, "x", 0),
            "time=\"1970-01-01T00:00:00Z\" level=warning msg=\"x\"\n"
        );
    }

    #[test]
    fn the_file_is_appended_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "before\n").unwrap();
        let target = LogTarget {
            path: Some(path.clone()),
            format: LogFormat::Json,
        };
        write(&target, Level::Warning, "x");
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(serde_json::from_str::<serde_json::Value>(lines[1]).unwrap()["msg"] == "x");
    }
}
