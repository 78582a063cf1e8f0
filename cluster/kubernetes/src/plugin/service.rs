//! Registration of a resource with kubelet, and the device plugin service.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use onload_core::kubernetes_settings::ResourceName;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Request, Response, Status};

use crate::observe::metrics::DaemonMetrics;
use crate::resources::{AllocateContext, Resource, allocate, choose_preferred};
use crate::snapshot::{KubernetesSnapshot, SpecNames};
use crate::wire::device_plugin::device_plugin_server::DevicePlugin;
use crate::wire::device_plugin::registration_client::RegistrationClient;
use crate::wire::device_plugin::{
    AllocateRequest, AllocateResponse, ContainerPreferredAllocationResponse, Device,
    DevicePluginOptions, Empty, ListAndWatchResponse, NumaNode, PreStartContainerRequest,
    PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse,
    RegisterRequest, TopologyInfo,
};
use crate::wire::{HEALTHY, KUBELET_SOCKET, UNHEALTHY, VERSION};

/// During Register kubelet connects to us and gives up after 10 s.
const TIMEOUT: Duration = Duration::from_secs(15);

const OPTIONS: DevicePluginOptions =
    DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true };

/// Registers a resource that is served at a socket in kubelet's directory.
pub(super) async fn register(directory: &Path, socket: &str, name: &ResourceName) -> Result<()> {
    let path = directory.join(KUBELET_SOCKET);
    let endpoint = Endpoint::from_shared(format!("unix:{}", path.display()))?
        .connect_timeout(TIMEOUT)
        .timeout(TIMEOUT);
    let channel =
        endpoint.connect().await.with_context(|| format!("dialling kubelet at {path:?}"))?;
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: socket.to_owned(),
        resource_name: name.to_string(),
        options: Some(OPTIONS),
    };
    let answer = RegistrationClient::new(channel).register(request).await;
    answer.map_err(|status| anyhow!("kubelet refused it: {}", status.message()))?;
    Ok(())
}

#[derive(Debug)]
pub struct PluginHost {
    pub host: watch::Receiver<Arc<KubernetesSnapshot>>,
    pub specs: Arc<SpecNames>,
    pub metrics: Arc<DaemonMetrics>,
}

/// The service of a resource, until `stop` holds true.
#[derive(Clone, Debug)]
pub(crate) struct PluginService {
    pub(crate) node: Arc<PluginHost>,
    pub(crate) resource: watch::Receiver<Arc<Resource>>,
    pub(crate) stop: watch::Receiver<bool>,
    /// The number of open streams. `None` before the first one, which may end before it is noticed.
    pub(crate) streams: watch::Sender<Option<usize>>,
}

fn list_devices(resource: &Resource) -> ListAndWatchResponse {
    let devices = resource.ids.iter().filter_map(|(id, index)| {
        let device = resource.devices.get(*index)?;
        let health = match resource.unhealthy_reason(id) {
            None => HEALTHY,
            Some(_) => UNHEALTHY,
        };
        let topology = device
            .numa_node
            .map(|node| TopologyInfo { nodes: vec![NumaNode { id: i64::from(node) }] });
        Some(Device { id: id.clone(), health: health.to_owned(), topology })
    });
    ListAndWatchResponse { devices: devices.collect() }
}

impl PluginService {
    fn resource(&self) -> Arc<Resource> {
        Arc::clone(&self.resource.borrow())
    }

    fn build_allocation(&self, request: &AllocateRequest) -> Result<AllocateResponse, Status> {
        let resource = self.resource();
        let snapshot = Arc::clone(&self.node.host.borrow());
        let context = AllocateContext {
            specs: &self.node.specs.current(),
            written_by: snapshot.written_by,
            exclusion_reason: &|resource, id| snapshot.exclusion_reason(resource, id),
        };
        let ids: Vec<Vec<String>> = request
            .container_requests
            .iter()
            .map(|container| container.devices_ids.clone())
            .collect();
        let responses = allocate(&resource, &ids, context).map_err(|refused| {
            let reason = refused.message();
            tracing::warn!(resource = %resource.name, %reason, "not allocated");
            Status::new(refused.code(), format!("{}: {reason}", resource.name))
        })?;
        let metrics = &self.node.metrics;
        metrics.set_allocated(&resource.name, ids.iter().flatten());
        for (ids, response) in ids.iter().zip(&responses) {
            let cdi: Vec<&str> =
                response.cdi_devices.iter().map(|device| device.name.as_str()).collect();
            tracing::info!(
                resource = %resource.name,
                ids = %ids.join(","),
                cdi = %cdi.join(","),
                "allocated"
            );
        }
        Ok(AllocateResponse { container_responses: responses })
    }

    fn build_preference(
        &self,
        request: &PreferredAllocationRequest,
    ) -> Result<PreferredAllocationResponse, Status> {
        let resource = self.resource();
        let answers = request.container_requests.iter().map(|container| {
            let device_ids = choose_preferred(&resource, container)
                .map_err(|error| Status::invalid_argument(format!("{}: {error}", resource.name)))?;
            tracing::debug!(resource = %resource.name, ids = %device_ids.join(","), "preferred");
            Ok(ContainerPreferredAllocationResponse { device_i_ds: device_ids })
        });
        let container_responses = answers.collect::<Result<_, Status>>()?;
        Ok(PreferredAllocationResponse { container_responses })
    }

    /// Sends the devices now, and whenever the resource changes.
    async fn send(mut self, to: mpsc::Sender<Result<ListAndWatchResponse, Status>>) {
        loop {
            let resource = Arc::clone(&self.resource.borrow_and_update());
            let response = list_devices(&resource);
            let (name, ids) = (resource.name.clone(), response.devices.len());
            drop(resource);
            if to.send(Ok(response)).await.is_err() {
                return;
            }
            tracing::debug!(resource = %name, ids, "devices sent");
            tokio::select! {
                changed = self.resource.changed() => if changed.is_err() { return },
                _ = self.stop.wait_for(|stop| *stop) => return,
                () = to.closed() => return,
            }
        }
    }

    fn measure<T>(
        &self,
        method: &'static str,
        answer: impl FnOnce() -> Result<T, Status>,
    ) -> Result<Response<T>, Status> {
        let begin = Instant::now();
        let answer = answer();
        let metrics = &self.node.metrics;
        metrics.count_request(method, answer.is_ok(), begin.elapsed());
        answer.map(Response::new)
    }
}

#[tonic::async_trait]
impl DevicePlugin for PluginService {
    async fn get_device_plugin_options(
        &self,
        _request: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        self.measure("GetDevicePluginOptions", || Ok(OPTIONS))
    }

    type ListAndWatchStream = ReceiverStream<Result<ListAndWatchResponse, Status>>;

    async fn list_and_watch(
        &self,
        _request: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        self.measure("ListAndWatch", || {
            let (sender, receiver) = mpsc::channel(1);
            let service = self.clone();
            tokio::spawn(async move {
                let streams = service.streams.clone();
                streams.send_modify(|open| *open.get_or_insert_default() += 1);
                service.send(sender).await;
                streams.send_modify(|open| *open.get_or_insert_default() -= 1);
            });
            Ok(ReceiverStream::new(receiver))
        })
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        self.measure("GetPreferredAllocation", || self.build_preference(request.get_ref()))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        self.measure("Allocate", || self.build_allocation(request.get_ref()))
    }

    async fn pre_start_container(
        &self,
        _request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        self.measure("PreStartContainer", || Ok(PreStartContainerResponse {}))
    }
}
