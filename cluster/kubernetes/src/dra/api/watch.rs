//! A watch of objects.

use std::pin::Pin;
use std::time::Duration;

use kube_client::Resource;
use kube_client::core::WatchEvent;
use tokio::time::{Instant, timeout_at};
use tokio_stream::{Stream, StreamExt};

use super::error::ApiError;

/// The server sends a bookmark each minute, so a connection that is silent for this long is dead.
const MAX_SILENCE: Duration = Duration::from_secs(600);

pub struct ApiWatch<K> {
    events: Pin<Box<dyn Stream<Item = kube_client::Result<WatchEvent<K>>> + Send>>,
    version: String,
    what: String,
    /// The time at which the connection counts as dead, even if the caller stops waiting in between.
    deadline: Instant,
}

impl<K: Resource> ApiWatch<K> {
    pub(super) fn new(
        events: impl Stream<Item = kube_client::Result<WatchEvent<K>>> + Send + 'static,
        version: &str,
        what: String,
    ) -> ApiWatch<K> {
        ApiWatch {
            events: Box::pin(events),
            version: version.to_owned(),
            what,
            deadline: Instant::now() + MAX_SILENCE,
        }
    }

    /// Returns the last resource version, from which another watch can continue.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns the next event, or `None` when the server has ended the watch, as it does after a while. Nothing is lost
    /// if the caller stops waiting. Fails with [`ApiError::is_gone`] if the server no longer has the events since the
    /// resource version.
    pub async fn next(&mut self) -> Result<Option<WatchEvent<K>>, ApiError> {
        let Ok(next) = timeout_at(self.deadline, self.events.next()).await else {
            return Err(ApiError::TimedOut { what: self.what.clone(), after: MAX_SILENCE });
        };
        self.deadline = Instant::now() + MAX_SILENCE;
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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use tokio::time::timeout;
    use tokio_stream::pending;

    use super::*;

    #[tokio::test]
    async fn a_silent_watch_ends_although_its_caller_keeps_leaving_it() {
        let mut watch: ApiWatch<Node> = ApiWatch::new(pending(), "1", "watching".to_owned());
        watch.deadline = Instant::now() + Duration::from_millis(200);
        let calls = async {
            loop {
                if let Ok(next) = timeout(Duration::from_millis(20), watch.next()).await {
                    return next.unwrap_err();
                }
            }
        };
        let error = timeout(Duration::from_secs(20), calls).await.unwrap();
        assert!(matches!(error, ApiError::TimedOut { .. }), "{error}");
    }
}
