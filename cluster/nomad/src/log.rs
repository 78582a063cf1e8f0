//! The log: lines of JSON on standard error in hclog's format, which go-plugin's host passes to the agent's log with
//! their level.

use std::fmt::{self, Debug};
use std::io;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use onload_core::config::LogLevel;
use onload_core::timestamp::format_rfc3339;
use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::{LookupSpan, Registry};
use tracing_subscriber::reload::{self, Handle};

/// The filter of the log; unset before it is started.
static FILTER: OnceLock<Handle<Targets, Registry>> = OnceLock::new();

/// Starts the log for this crate at level `info`. A line that cannot be written is dropped, so that a full pipe does
/// not block tasks.
pub fn start() {
    let (filter, handle) = reload::Layer::new(from(LevelFilter::INFO));
    let lines = tracing_subscriber::fmt::layer()
        .event_format(Hclog)
        .with_writer(io::stderr)
        .log_internal_errors(false);
    let log = tracing_subscriber::registry().with(filter).with(lines);
    if tracing::subscriber::set_global_default(log).is_ok() {
        let _ = FILTER.set(handle);
    }
}

/// Sets the level to `[log] level` of the host's configuration.
pub fn set_level(level: LogLevel) {
    if let Some(filter) = FILTER.get() {
        // This fails only if the log was not started.
        let _ = filter.reload(from(onload_agent::log::filter(level)));
    }
}

/// Messages of libraries are left out.
fn from(level: LevelFilter) -> Targets {
    Targets::new().with_target("onload_nomad", level)
}

struct Hclog;

impl<S, N> FormatEvent<S, N> for Hclog
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut message = LogMessage::default();
        event.record(&mut message);
        to.write_str(&format_line(*event.metadata().level(), &message.0, SystemTime::now()))
    }
}

#[derive(Default)]
struct LogMessage(String);

impl Visit for LogMessage {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

fn format_line(level: Level, message: &str, now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = format_rfc3339(since.as_secs());
    let time = format!("{}.{:06}Z", seconds.trim_end_matches('Z'), since.subsec_micros());
    let line = json!({
        "@level": level.as_str().to_ascii_lowercase(),
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
        let line = format_line(Level::WARN, "a \"b\"\n{c}", now);
        assert_eq!(
            line,
            "{\"@level\":\"warn\",\"@message\":\"a \\\"b\\\"\\n{c}\",\"@module\":\"onload\",\"@timestamp\":\"2023-11-14T22:13:20.000042Z\"}\n"
        );
    }
}
