//! The gRPC services for kubelet: the DRA plugin in versions v1 and v1beta1, and the health of the devices on the same
//! socket.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::health;
use super::prepare::Preparer;
use crate::observe::metrics::DaemonMetrics;
use crate::wire::dra::{
    Claim, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use crate::wire::dra_health::dra_resource_health_server::DraResourceHealth;
use crate::wire::dra_health::{NodeWatchResourcesRequest, NodeWatchResourcesResponse};
use crate::wire::{dra, dra_v1beta1};

/// The driver's services, until `stop` holds true.
#[derive(Clone, Debug)]
pub(super) struct DraService {
    pub(super) preparer: Arc<Preparer>,
    pub(super) metrics: Arc<DaemonMetrics>,
    pub(super) stop: watch::Receiver<bool>,
}

impl DraService {
    /// Prepares claims concurrently, so that none waits for another's request to the API server.
    async fn prepare(&self, claims: Vec<Claim>) -> NodePrepareResourcesResponse {
        let _call = self.preparer.begin_call();
        let begin = Instant::now();
        let mut tasks = JoinSet::new();
        for claim in claims {
            let preparer = Arc::clone(&self.preparer);
            tasks.spawn(async move {
                let prepared = preparer.prepare(&claim).await;
                (claim.uid, prepared)
            });
        }
        let mut answers = BTreeMap::new();
        while let Some(Ok((uid, prepared))) = tasks.join_next().await {
            let (devices, error) = match prepared {
                Ok(devices) => (devices, String::new()),
                Err(error) => (Vec::new(), error),
            };
            answers.insert(uid, NodePrepareResourceResponse { devices, error });
        }
        let is_good = answers.values().all(|answer| answer.error.is_empty());
        self.metrics.count_request("NodePrepareResources", is_good, begin.elapsed());
        NodePrepareResourcesResponse { claims: answers }
    }

    async fn unprepare(&self, claims: Vec<Claim>) -> NodeUnprepareResourcesResponse {
        let _call = self.preparer.begin_call();
        let begin = Instant::now();
        let mut answers = BTreeMap::new();
        for claim in claims {
            let error = self.preparer.unprepare(&claim).await.err().unwrap_or_default();
            answers.insert(claim.uid, NodeUnprepareResourceResponse { error });
        }
        let is_good = answers.values().all(|answer| answer.error.is_empty());
        self.metrics.count_request("NodeUnprepareResources", is_good, begin.elapsed());
        NodeUnprepareResourcesResponse { claims: answers }
    }

    /// Sends the health of all devices at each change, and again before kubelet's timeout.
    async fn stream_health(self, to: mpsc::Sender<Result<NodeWatchResourcesResponse, Status>>) {
        let (mut host, mut stop) = (self.preparer.host.clone(), self.stop.clone());
        loop {
            host.mark_unchanged();
            let now = self.health();
            if to.send(Ok(now.clone())).await.is_err() {
                return;
            }
            let changed = async {
                // A survey without changes is not sent.
                while host.changed().await.is_ok() {
                    if !health::is_same(&now, &self.health()) {
                        tracing::debug!("the health of devices has changed");
                        return;
                    }
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = changed => {}
                () = sleep(health::REPEAT_INTERVAL) => {}
                _ = stop.wait_for(|stop| *stop) => return,
                () = to.closed() => return,
            }
        }
    }

    fn health(&self) -> NodeWatchResourcesResponse {
        health::list_devices(&self.preparer.snapshot(), &self.preparer.node)
    }
}

/// Both versions have the same messages.
macro_rules! serve {
    ($version:ident) => {
        #[tonic::async_trait]
        impl $version::dra_plugin_server::DraPlugin for DraService {
            async fn node_prepare_resources(
                &self,
                request: Request<NodePrepareResourcesRequest>,
            ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
                let claims = request.into_inner().claims;
                Ok(Response::new(self.prepare(claims).await))
            }

            async fn node_unprepare_resources(
                &self,
                request: Request<NodeUnprepareResourcesRequest>,
            ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
                let claims = request.into_inner().claims;
                Ok(Response::new(self.unprepare(claims).await))
            }
        }
    };
}

serve!(dra);
serve!(dra_v1beta1);

#[tonic::async_trait]
impl DraResourceHealth for DraService {
    type NodeWatchResourcesStream = ReceiverStream<Result<NodeWatchResourcesResponse, Status>>;

    async fn node_watch_resources(
        &self,
        _request: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let begin = Instant::now();
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(self.clone().stream_health(sender));
        self.metrics.count_request("NodeWatchResources", true, begin.elapsed());
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}
