//! Serves at a socket. A process that has no file descriptor left goes on when it has one again.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use onload_sys::text::Chain;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep, timeout};
use tokio_stream::Stream;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::Router;

/// The error would come again at once.
const PAUSE: Duration = Duration::from_millis(200);
/// Calls that have begun are completed within this time after the end was asked for.
const GRACE: Duration = Duration::from_secs(5);

pub(crate) async fn stopped(stop: &watch::Receiver<bool>) {
    // A sender that is gone has stopped everything.
    let _ = stop.clone().wait_for(|stop| *stop).await;
}

pub(crate) async fn serve(router: Router, listener: UnixListener, stop: watch::Receiver<bool>) {
    let connections = Accept::new(UnixListenerStream::new(listener));
    let served = router.serve_with_incoming_shutdown(connections, stopped(&stop));
    if let Err(error) = served.await {
        tracing::error!(error = %Chain(&error), "serving ended");
    }
}

/// Tells servers to stop, and waits until they have.
pub(crate) async fn end(stop: watch::Sender<bool>, servers: JoinSet<()>) {
    stop.send_replace(true);
    let _ = timeout(GRACE, servers.join_all()).await;
}

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
