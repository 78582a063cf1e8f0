//! The log: lines of JSON on standard error, as go-plugin's hosts read them (hclog). They pass them on to the
//! agent's log, with the level that they have here.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use onload_core::config::LogLevel;
use onload_core::timestamp::rfc3339;
use serde_json::json;

/// The least important level that is written, as a number.
static LEVEL: AtomicU8 = AtomicU8::new(2);

/// How important a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Something does not work.
    Error = 0,
    Warn = 1,
    Info = 2,
    Debug = 3,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
        }
    }
}

/// Sets what is written, by `[log] level` of the host's configuration.
pub fn set_level(level: LogLevel) {
    let level = match level {
        LogLevel::Error => Level::Error,
        LogLevel::Warning => Level::Warn,
        LogLevel::Info => Level::Info,
        LogLevel::Debug => Level::Debug,
    };
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// Writes a line. One that cannot be written is lost: a full pipe stops no task.
pub fn log(level: Level, message: &str) {
    if level as u8 > LEVEL.load(Ordering::Relaxed) {
        return;
    }
    let _ = io::stderr().write_all(line(level, message, SystemTime::now()).as_bytes());
}

pub fn error(message: &str) {
    log(Level::Error, message);
}

pub fn warn(message: &str) {
    log(Level::Warn, message);
}

pub fn info(message: &str) {
    log(Level::Info, message);
}

pub fn debug(message: &str) {
    log(Level::Debug, message);
}

fn line(level: Level, message: &str, now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = rfc3339(since.as_secs());
    let time = format!(
        "{}.{:06}Z",
        seconds.trim_end_matches('Z'),
        since.subsec_micros()
    );
    let line = json!({
        "@level": level.as_str(),
        "@message": message,
        "@module": "onload",
        "@timestamp": time,
    });
    format!("{line}\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_line_is_what_hclog_reads_whatever_stands_in_the_message() {
        let now = UNIX_EPOCH + Duration::from_micros(1_700_000_000_000_042);
        let line = line(Level::Warn, "a \"b\"\n{c}", now);
        assert_eq!(
            line,
            "{\"@level\":\"warn\",\"@message\":\"a \\\"b\\\"\\n{c}\",\"@module\":\"onload\",\"@timestamp\":\"2023-11-14T22:13:20.000042Z\"}\n"
        );
    }
}
