//! A watch: what changes of objects, as it happens.

use std::pin::Pin;
use std::time::Duration;

use kube_client::Resource;
use kube_client::core::WatchEvent;
use tokio::time::timeout;
use tokio_stream::{Stream, StreamExt};

use super::error::ApiError;

/// The server sends a bookmark each minute; if nothing came for so long, the connection is dead.
const MAX_SILENCE: Duration = Duration::from_secs(600);

pub struct ApiWatch<K> {
    events: Pin<Box<dyn Stream<Item = kube_client::Result<WatchEvent<K>>> + Send>>,
    version: String,
    what: String,
}

impl<K: Resource> ApiWatch<K> {
    pub(super) fn new(
        events: impl Stream<Item = kube_client::Result<WatchEvent<K>>> + Send + 'static,
        version: &str,
        what: String,
    ) -> ApiWatch<K> {
        ApiWatch { events: Box::pin(events), version: version.to_owned(), what }
    }

    /// The resource version that was told last: another watch begins there.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// What happens next, which is no error; none when the server has ended the watch, as it does after a while.
    /// Nothing is lost if the caller stops waiting. [`ApiError::is_gone`] if the server no longer knows what happened
    /// since.
    pub async fn next(&mut self) -> Result<Option<WatchEvent<K>>, ApiError> {
        let next = timeout(MAX_SILENCE, self.events.next()).await;
        let what = &self.what;
        let next =
            next.map_err(|_| ApiError::TimedOut { what: what.clone(), after: MAX_SILENCE })?;
        let failed = |error| ApiError::from_client(&self.what, error);
        let Some(event) = next.transpose().map_err(failed)? else {
            return Ok(None);
        };
        let version = match &event {
            WatchEvent::Added(object)
            | WatchEvent::Modified(object)
            | WatchEvent::Deleted(object) => object.meta().resource_version.as_ref(),
            WatchEvent::Bookmark(mark) => Some(&mark.metadata.resource_version),
            WatchEvent::Error(status) => {
                return Err(failed(kube_client::Error::Api(status.clone())));
            }
        };
        if let Some(version) = version.filter(|version| !version.is_empty()) {
            self.version.clone_from(version);
        }
        Ok(Some(event))
    }
}
