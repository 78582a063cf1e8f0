//! Parses answers while they are read, so that skipped parts take no memory regardless of their length.

use std::io::{self, BufReader, Read};

use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Buf, Bytes};
use kube_client::client::Body;
use kube_client::{Client, Error};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio_stream::StreamExt;

/// Sends a request and parses its answer.
pub(super) async fn request<T>(client: Client, request: Request<Vec<u8>>) -> Result<T, Error>
where
    T: DeserializeOwned + Send + 'static,
{
    parse(client.send(request.map(Body::from)).await?).await
}

async fn parse<T>(answer: Response<Body>) -> Result<T, Error>
where
    T: DeserializeOwned + Send + 'static,
{
    let (sender, parts) = mpsc::channel(1);
    let parsing = spawn_blocking(move || {
        serde_json::from_reader(BufReader::new(PartReader { parts, part: Bytes::new() }))
    });
    let mut parts = answer.into_body().into_data_stream();
    while let Some(part) = parts.next().await {
        // The parser stops at its first error.
        if sender.send(part?).await.is_err() {
            break;
        }
    }
    drop(sender);
    match parsing.await {
        Ok(parsed) => parsed.map_err(Error::SerdeError),
        Err(error) => Err(Error::Service(error.into())),
    }
}

struct PartReader {
    parts: mpsc::Receiver<Bytes>,
    part: Bytes,
}

impl Read for PartReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !self.part.has_remaining() {
            match self.parts.blocking_recv() {
                Some(part) => self.part = part,
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.part.len());
        self.part.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}
