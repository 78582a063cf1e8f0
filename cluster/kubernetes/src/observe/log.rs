//! The log: JSON on standard error, a line for each decision.

use std::io::stderr;

use onload_core::config::LogLevel;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;

/// What was said last, so that what is tried again is said once.
#[derive(Debug, Default)]
pub(crate) struct Said(String);

impl Said {
    /// Whether this is something else. It counts as said then.
    pub(crate) fn is_news(&mut self, text: &str) -> bool {
        let is_news = self.0 != text;
        if is_news {
            text.clone_into(&mut self.0);
        }
        is_news
    }

    /// What was wrong is right again: it is said when it comes back.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Begins to log. Lines that cannot be written are lost: a full disk stops no container.
pub fn init(level: LogLevel) {
    let level: LevelFilter = onload_agent::log::filter(level);
    let subscriber = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_span_list(false)
        .with_max_level(level)
        .with_writer(stderr)
        // It would print what it could not write to standard error again, and panic.
        .log_internal_errors(false)
        .finish();
    // It warns of answers with their whole text, and of each watch that ends; what fails is in lines of our own.
    let targets = Targets::new()
        .with_default(level)
        .with_target("kube_client", LevelFilter::OFF);
    // A second daemon in one process, as in tests, logs with the first one's.
    let _ = tracing::subscriber::set_global_default(subscriber.with(targets));
}
