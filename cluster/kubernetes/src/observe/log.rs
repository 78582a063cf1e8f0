//! The log: JSON on standard error, a line for each decision.

use std::io::stderr;

use onload_core::config::LogLevel;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;

/// Starts logging. Lines that cannot be written are dropped, so that a full disk does not block containers.
pub fn init(level: LogLevel) {
    let level: LevelFilter = onload_agent::log::filter(level);
    let subscriber = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        // Module names are left out, since they change with the source.
        .with_target(false)
        .with_current_span(false)
        .with_span_list(false)
        .with_max_level(level)
        .with_writer(stderr)
        // The layer would print a failed write to standard error again, and panic.
        .log_internal_errors(false)
        .finish();
    // kube_client logs whole answers and the end of each watch; our own lines report failures.
    let targets = Targets::new().with_default(level).with_target("kube_client", LevelFilter::OFF);
    // A second daemon in the same process, as in tests, uses the first one's log.
    let _ = tracing::subscriber::set_global_default(subscriber.with(targets));
}
