//! The connections of a socket. A process that has no file descriptor left goes on when it has one again.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Sleep, sleep};
use tokio_stream::Stream;

/// The error would come again at once.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(crate) struct Accept<L> {
    listener: L,
    pause: Option<Pin<Box<Sleep>>>,
    failed: bool,
}

impl<L> Accept<L> {
    pub(crate) fn new(listener: L) -> Self {
        Accept {
            listener,
            pause: None,
            failed: false,
        }
    }
}

impl<S, L: Stream<Item = io::Result<S>> + Unpin> Stream for Accept<L> {
    type Item = io::Result<S>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(pause) = &mut this.pause {
                if pause.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                this.pause = None;
            }
            match Pin::new(&mut this.listener).poll_next(context) {
                Poll::Ready(Some(Err(error))) => {
                    if !this.failed {
                        tracing::error!(%error, "taking a connection failed; trying on");
                    }
                    this.failed = true;
                    this.pause = Some(Box::pin(sleep(PAUSE)));
                }
                ready_or_not => {
                    this.failed &= ready_or_not.is_pending();
                    return ready_or_not;
                }
            }
        }
    }
}
