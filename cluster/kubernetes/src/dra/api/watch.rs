//! A watch: what changes of objects, as it happens.

use std::time::Duration;

use anyhow::Context;
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::timeout;

use super::error::ApiError;
use super::transport::{not_understood, one_line, slow, too_long, unreachable};

/// Objects without their contents: their names and versions are enough. What garbage collectors ask for.
pub(super) const HEADS: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
/// The server sends a bookmark each minute; if nothing came for so long, the connection is dead.
const SILENCE: Duration = Duration::from_secs(600);
/// The most bytes of one event.
const MOST: usize = 4 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Applied,
    Deleted,
    Bookmark,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Applied { name: String, version: String },
    Deleted { name: String, version: String },
    Bookmark,
}

#[derive(Debug)]
pub struct Watch {
    body: Incoming,
    read: Vec<u8>,
    /// Up to where lines have been looked for.
    looked: usize,
    version: String,
    what: String,
}

#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

impl Watch {
    pub(super) fn new(body: Incoming, version: String, what: String) -> Watch {
        Watch {
            body,
            read: Vec::new(),
            looked: 0,
            version,
            what,
        }
    }

    /// The resource version that was told last: another watch begins there.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// What happens next; none when the server has ended the watch, as it does after a while. Nothing is lost
    /// if the caller stops waiting. [`ApiError::is_gone`] if the server no longer knows what happened since.
    pub async fn next(&mut self) -> Result<Option<Event>, ApiError> {
        let next = self.next_object().await?;
        Ok(next.map(|(change, object)| {
            let (name, version) = (text(&object, "name"), text(&object, "resourceVersion"));
            match change {
                Change::Applied => Event::Applied { name, version },
                Change::Deleted => Event::Deleted { name, version },
                Change::Bookmark => Event::Bookmark,
            }
        }))
    }

    /// The same, with the object as the server tells it.
    pub async fn next_object(&mut self) -> Result<Option<(Change, Value)>, ApiError> {
        loop {
            if let Some(line) = self.line() {
                return self.event(&line).map(Some);
            }
            let Some(data) = self.more().await? else {
                return Ok(None);
            };
            self.read.extend_from_slice(&data);
            if self.read.len() > MOST {
                return Err(too_long(&self.what, MOST));
            }
        }
    }

    async fn more(&mut self) -> Result<Option<Bytes>, ApiError> {
        loop {
            let frame = timeout(SILENCE, self.body.frame()).await;
            let Some(frame) = frame.map_err(|_| slow(&self.what, SILENCE))? else {
                return Ok(None);
            };
            let frame = frame.with_context(|| unreachable(&self.what))?;
            // Else they are trailers.
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
    }

    /// The next line, if all of it is there.
    fn line(&mut self) -> Option<Vec<u8>> {
        let end = memchr::memchr(b'\n', self.read.get(self.looked..)?);
        let Some(end) = end else {
            self.looked = self.read.len();
            return None;
        };
        let rest = self.read.split_off(self.looked + end + 1);
        self.looked = 0;
        Some(std::mem::replace(&mut self.read, rest))
    }

    fn event(&mut self, line: &[u8]) -> Result<(Change, Value), ApiError> {
        let line: Line =
            serde_json::from_slice(line).with_context(|| not_understood(&self.what))?;
        let version = text(&line.object, "resourceVersion");
        if !version.is_empty() {
            self.version = version;
        }
        let change = match line.kind.as_str() {
            "ADDED" | "MODIFIED" => Change::Applied,
            "DELETED" => Change::Deleted,
            "BOOKMARK" => Change::Bookmark,
            _ => return Err(self.error(&line.object)),
        };
        Ok((change, line.object))
    }

    /// What the server says in place of an event (`Status` of apimachinery).
    fn error(&self, status: &Value) -> ApiError {
        let code = status["code"].as_u64();
        let code = code.and_then(|code| StatusCode::from_u16(u16::try_from(code).ok()?).ok());
        ApiError::Refused {
            what: self.what.clone(),
            status: code.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            message: one_line(status["message"].as_str().unwrap_or_default()),
            absent: None,
            retry_after: None,
        }
    }
}

/// A text of an object's metadata; empty if it has none.
fn text(object: &Value, of: &str) -> String {
    let value = object["metadata"][of].as_str();
    value.unwrap_or_default().to_owned()
}
