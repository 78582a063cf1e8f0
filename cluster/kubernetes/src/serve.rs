//! Serves gRPC at a socket. After running out of file descriptors it continues once there are some again.

use std::future::pending;
use std::io;
use std::mem;
use std::time::{Duration, Instant};

use onload_sys::text::ErrorChain;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::server::Router;

/// Pause after an error, since the next attempt would fail at once too.
const PAUSE: Duration = Duration::from_millis(200);
/// Time limit for completing calls at the end.
const GRACE: Duration = Duration::from_secs(5);

pub(crate) async fn wait_stopped(stop: &watch::Receiver<bool>) {
    // A dropped sender also means stop.
    let _ = stop.clone().wait_for(|stop| *stop).await;
}

/// Sleeps until a time, or forever without one.
pub(crate) async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => pending().await,
    }
}

pub(crate) async fn serve(router: Router, listener: UnixListener, stop: watch::Receiver<bool>) {
    let connections = accept_connections(UnixListenerStream::new(listener));
    let served = router.serve_with_incoming_shutdown(connections, wait_stopped(&stop));
    if let Err(error) = served.await {
        tracing::error!(error = %ErrorChain(&error), "serving ended");
    }
}

/// Stops servers and waits for their end.
pub(crate) async fn end(stop: watch::Sender<bool>, servers: JoinSet<()>) {
    stop.send_replace(true);
    let _ = timeout(GRACE, servers.join_all()).await;
}

/// Streams the connections of a listener, with a pause after an error.
pub(crate) fn accept_connections<S>(
    listener: impl Stream<Item = io::Result<S>>,
) -> impl Stream<Item = io::Result<S>> {
    let mut is_failing = false;
    let accepted = listener.then(move |taken| {
        let was_failing = mem::replace(&mut is_failing, taken.is_err());
        async move {
            if let Err(error) = &taken {
                if !was_failing {
                    tracing::error!(%error, "accepting a connection failed; trying again");
                }
                sleep(PAUSE).await;
            }
            taken
        }
    });
    accepted.filter(Result::is_ok)
}
