//! The log: JSON on standard error, a line for each decision.

use std::io::stderr;

use onload_core::config::LogLevel;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;

/// Begins to log. Lines that cannot be written are lost: a full disk stops no container.
pub fn init(level: LogLevel) {
    let level: LevelFilter = onload_agent::log::filter(level);
    let subscriber = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        // Names of modules are not part of the log's format: they change with the source.
        .with_target(false)
        .with_current_span(false)
        .with_span_list(false)
        .with_max_level(level)
        .with_writer(stderr)
        // It would print what it could not write to standard error again, and panic.
        .log_internal_errors(false)
        .finish();
    // It warns of answers with their whole text, and of each watch that ends; what fails is in lines of our own.
    let targets = Targets::new().with_default(level).with_target("kube_client", LevelFilter::OFF);
    // A second daemon in one process, as in tests, logs with the first one's.
    let _ = tracing::subscriber::set_global_default(subscriber.with(targets));
}
