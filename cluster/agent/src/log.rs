//! Converts the configured log level.

use onload_core::config::LogLevel;
use tracing::level_filters::LevelFilter;

/// Returns the filter for `[log] level` of the host's configuration.
pub fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warning => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    }
}
