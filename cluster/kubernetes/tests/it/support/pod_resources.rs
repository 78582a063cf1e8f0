//! kubelet's pod-resources socket, made for tests.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use onload_kubernetes::dra::pod_resources::socket;
use onload_kubernetes::wire::pod_resources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use onload_kubernetes::wire::pod_resources::{
    ContainerDevices, ContainerResources, ListPodResourcesRequest, ListPodResourcesResponse,
    PodResources,
};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// The resources of which pods called `default/p0`, `default/p1` and so on have a device each.
#[derive(Clone, Debug, Default)]
pub(crate) struct MockPodResources(Arc<Mutex<Vec<String>>>);

impl MockPodResources {
    pub(crate) fn start(kubelet_dir: &Path) -> (MockPodResources, PathBuf) {
        let path = socket(kubelet_dir);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let listener = UnixListenerStream::new(UnixListener::bind(&path).unwrap());
        let pods = MockPodResources::default();
        let service = PodResourcesListerServer::new(pods.clone());
        tokio::spawn(Server::builder().add_service(service).serve_with_incoming(listener));
        (pods, path)
    }

    pub(crate) fn set(&self, resources: &[&str]) {
        *self.0.lock().unwrap() = resources.iter().map(|name| (*name).to_owned()).collect();
    }
}

#[tonic::async_trait]
impl PodResourcesLister for MockPodResources {
    async fn list(
        &self,
        _request: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        let resources = self.0.lock().unwrap().clone();
        let pods = resources.into_iter().enumerate().map(|(index, resource_name)| PodResources {
            name: format!("p{index}"),
            namespace: "default".to_owned(),
            containers: vec![ContainerResources {
                devices: vec![ContainerDevices { resource_name }],
            }],
        });
        Ok(Response::new(ListPodResourcesResponse { pod_resources: pods.collect() }))
    }
}
