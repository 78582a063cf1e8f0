//! The connections of a socket. A process that has no file descriptor left goes on when it has one again.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Sleep, sleep};
use tokio_stream::Stream;

/// The error would come again at once.
const PAUSE: Duration = Duration::from_millis(200);

/// The connections of a listener.
#[derive(Debug)]
pub(crate) struct Accept {
    listener: UnixListener,
    pause: Option<Pin<Box<Sleep>>>,
    failed: bool,
}

impl Accept {
    pub(crate) fn new(listener: UnixListener) -> Self {
        Accept {
            listener,
            pause: None,
            failed: false,
        }
    }
}

impl Stream for Accept {
    type Item = io::Result<UnixStream>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(pause) = &mut this.pause {
                if pause.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                this.pause = None;
            }
            match this.listener.poll_accept(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok((stream, _))) => {
                    this.failed = false;
                    return Poll::Ready(Some(Ok(stream)));
                }
                Poll::Ready(Err(error)) => {
                    if !this.failed {
                        tracing::error!(%error, "taking a connection failed; trying on");
                    }
                    this.failed = true;
                    this.pause = Some(Box::pin(sleep(PAUSE)));
                }
            }
        }
    }
}
