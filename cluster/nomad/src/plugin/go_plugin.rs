//! The services that go-plugin requires of every plugin. Its broker is left out, since this plugin opens no connections to
//! Nomad.

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::wire::go_plugin::grpc_controller_server::GrpcController;
use crate::wire::go_plugin::grpc_stdio_server::GrpcStdio;
use crate::wire::go_plugin::{Empty, StdioData};

pub type Messages<T> = ReceiverStream<Result<T, Status>>;

#[derive(Debug)]
pub struct Controller {
    pub stop: mpsc::Sender<()>,
}

#[tonic::async_trait]
impl GrpcController for Controller {
    async fn shutdown(&self, _request: Request<Empty>) -> Result<Response<Empty>, Status> {
        // If the channel is full, the stop was already requested.
        let _ = self.stop.try_send(());
        Ok(Response::new(Empty {}))
    }
}

/// Streams the plugin's standard output, which is empty.
#[derive(Clone, Copy, Debug)]
pub struct Stdio;

#[tonic::async_trait]
impl GrpcStdio for Stdio {
    type StreamStdioStream = Messages<StdioData>;

    async fn stream_stdio(
        &self,
        _request: Request<()>,
    ) -> Result<Response<Self::StreamStdioStream>, Status> {
        let (sender, receiver) = mpsc::channel(1);
        // The stream stays open without messages until Nomad closes it.
        tokio::spawn(async move { sender.closed().await });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}
