//! A kubelet made for tests. It does at the sockets what kubelet does: it empties the directory when it starts,
//! makes `kubelet.sock`, and dials each plugin that registers back, inside Register, with the authority
//! `localhost`; it then reads the devices, and asks for some when a test says so.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onload_kubernetes::wire::device_plugin::device_plugin_client::DevicePluginClient;
use onload_kubernetes::wire::device_plugin::registration_server::{
    Registration, RegistrationServer,
};
use onload_kubernetes::wire::device_plugin::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest,
    ContainerPreferredAllocationRequest, Device, DevicePluginOptions, Empty,
    PreferredAllocationRequest, RegisterRequest,
};
use tokio::net::UnixSocket;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

use super::PATIENCE;

const DIAL: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(crate) struct Plugin {
    pub(crate) request: RegisterRequest,
    pub(crate) options: DevicePluginOptions,
    pub(crate) client: DevicePluginClient<Channel>,
    /// The devices that were sent last, and how many lists there were.
    pub(crate) devices: (Vec<Device>, usize),
    pub(crate) attempt: usize,
}

type Plugins = BTreeMap<String, Plugin>;

#[derive(Debug)]
struct Shared {
    directory: PathBuf,
    plugins: watch::Sender<Plugins>,
    /// What the next attempts to register are answered with, the last first.
    refusals: Mutex<Vec<String>>,
    attempts: watch::Sender<usize>,
}

pub(crate) struct MockKubelet {
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

struct Registry(Arc<Shared>);

impl MockKubelet {
    /// Starts as kubelet does: what other plugins left in the directory is removed first.
    pub(crate) fn start(directory: &Path) -> MockKubelet {
        MockKubelet::refusing(directory, &[])
    }

    /// As [`MockKubelet::start`], and the first attempts to register are refused with these texts.
    pub(crate) fn refusing(directory: &Path, texts: &[&str]) -> MockKubelet {
        MockKubelet::made(directory, texts, Duration::ZERO)
    }

    /// As [`MockKubelet::start`], with a socket that refuses connections for so long: a busy kubelet was seen to have one
    /// before it listens.
    pub(crate) fn listening_after(directory: &Path, time: Duration) -> MockKubelet {
        MockKubelet::made(directory, &[], time)
    }

    fn made(directory: &Path, texts: &[&str], deaf: Duration) -> MockKubelet {
        fs::create_dir_all(directory).unwrap();
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let kind = fs::symlink_metadata(&path).map(|metadata| metadata.file_type());
            // The checkpoint stays.
            if kind.is_ok_and(|kind| kind.is_socket()) {
                // A daemon that looks at the same time removes its own.
                let removed = fs::remove_file(path);
                let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
                removed.or_else(|error| is_gone(&error).then_some(()).ok_or(error)).unwrap();
            }
        }
        let refusals = texts.iter().rev().map(|text| (*text).to_owned()).collect();
        let shared = Arc::new(Shared {
            directory: directory.to_owned(),
            plugins: watch::channel(Plugins::new()).0,
            refusals: Mutex::new(refusals),
            attempts: watch::channel(0).0,
        });
        let socket = UnixSocket::new_stream().unwrap();
        socket.bind(directory.join("kubelet.sock")).unwrap();
        let (ready, later) = match deaf.is_zero() {
            true => (Some(socket.listen(128).unwrap()), None),
            false => (None, Some(socket)),
        };
        let service = RegistrationServer::new(Registry(Arc::clone(&shared)));
        let server = tokio::spawn(async move {
            let listener = match later {
                None => ready.unwrap(),
                Some(socket) => {
                    sleep(deaf).await;
                    socket.listen(128).unwrap()
                }
            };
            let mut server = Server::builder();
            let server = server.add_service(service);
            let _ = server.serve_with_incoming(UnixListenerStream::new(listener)).await;
        });
        MockKubelet { shared, server }
    }

    /// Ends as a killed process does: its socket stays.
    pub(crate) async fn kill(mut self) {
        self.server.abort();
        let _ = (&mut self.server).await;
        // Connections end with a process.
        self.shared.plugins.send_replace(Plugins::new());
    }

    /// Waits until a resource is as wanted.
    pub(crate) async fn until(&self, resource: &str, is: impl Fn(&Plugin) -> bool) -> Plugin {
        let mut plugins = self.shared.plugins.subscribe();
        let found = plugins.wait_for(|plugins| plugins.get(resource).is_some_and(&is));
        match timeout(PATIENCE, found).await {
            Ok(plugins) => plugins.unwrap()[resource].clone(),
            Err(_) => panic!("{resource}: {:?}", self.shared.plugins.borrow().get(resource)),
        }
    }

    /// Waits until a resource has sent its devices.
    pub(crate) async fn registered(&self, resource: &str) -> Plugin {
        self.until(resource, |plugin| plugin.devices.1 > 0).await
    }

    /// Waits until a resource has registered once more, and has sent its devices.
    pub(crate) async fn registered_again(&self, resource: &str, attempt: usize) -> Plugin {
        let is = |plugin: &Plugin| plugin.attempt >= attempt && plugin.devices.1 > 0;
        self.until(resource, is).await
    }

    pub(crate) async fn attempts(&self, wanted: usize) {
        let mut attempts = self.shared.attempts.subscribe();
        let reached = attempts.wait_for(|attempts| *attempts >= wanted);
        timeout(PATIENCE, reached).await.unwrap().unwrap();
    }

    pub(crate) fn resources(&self) -> Vec<String> {
        self.shared.plugins.borrow().keys().cloned().collect()
    }

    pub(crate) fn forget(&self, resource: &str) {
        self.shared.plugins.send_modify(|plugins| {
            plugins.remove(resource);
        });
    }
}

impl Drop for MockKubelet {
    fn drop(&mut self) {
        self.server.abort();
    }
}

#[tonic::async_trait]
impl Registration for Registry {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let shared = &self.0;
        shared.attempts.send_modify(|attempts| *attempts += 1);
        let refusal = shared.refusals.lock().unwrap().pop();
        if let Some(text) = refusal {
            return Err(Status::unknown(text));
        }
        let request = request.into_inner();
        let name = request.resource_name.clone();
        let dialled = timeout(DIAL, dial(&shared.directory.join(&request.endpoint))).await;
        let failed = || Status::unknown("failed to dial device plugin: context deadline exceeded");
        let mut client = dialled.map_err(|_| failed())?.ok_or_else(failed)?;
        let options = client.get_device_plugin_options(Empty {}).await?.into_inner();
        let plugin = Plugin {
            request,
            options,
            client: client.clone(),
            devices: (Vec::new(), 0),
            attempt: *shared.attempts.borrow(),
        };
        shared.plugins.send_modify(|plugins| {
            plugins.insert(name.clone(), plugin);
        });
        tokio::spawn(read(Arc::clone(shared), name, client));
        Ok(Response::new(Empty {}))
    }
}

async fn dial(path: &Path) -> Option<DevicePluginClient<Channel>> {
    let endpoint = Endpoint::from_shared(format!("unix:{}", path.display()))
        .unwrap()
        .origin("http://localhost".parse().unwrap());
    Some(DevicePluginClient::new(endpoint.connect().await.ok()?))
}

/// Reads the devices of a resource until it, or kubelet, is gone.
async fn read(shared: Arc<Shared>, name: String, mut client: DevicePluginClient<Channel>) {
    let Ok(stream) = client.list_and_watch(Empty {}).await else {
        return;
    };
    let mut stream = stream.into_inner();
    let mut plugins = shared.plugins.subscribe();
    loop {
        tokio::select! {
            devices = stream.message() => {
                let Ok(Some(devices)) = devices else { return };
                shared.plugins.send_modify(|plugins| {
                    if let Some(plugin) = plugins.get_mut(&name) {
                        plugin.devices = (devices.devices, plugin.devices.1 + 1);
                    }
                });
            }
            _ = plugins.wait_for(|plugins| !plugins.contains_key(&name)) => return,
        }
    }
}

pub(crate) fn allocation(containers: &[&[&str]]) -> AllocateRequest {
    let container = |ids: &&[&str]| ContainerAllocateRequest {
        devices_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    };
    AllocateRequest { container_requests: containers.iter().map(container).collect() }
}

impl Plugin {
    pub(crate) fn ids(&self) -> Vec<&str> {
        self.devices.0.iter().map(|device| device.id.as_str()).collect()
    }

    pub(crate) fn unhealthy(&self) -> Vec<&str> {
        self.devices
            .0
            .iter()
            .filter(|device| device.health == "Unhealthy")
            .map(|device| device.id.as_str())
            .collect()
    }

    pub(crate) async fn allocate(&self, ids: &[&str]) -> Result<AllocateResponse, Status> {
        let mut client = self.client.clone();
        Ok(client.allocate(allocation(&[ids])).await?.into_inner())
    }

    pub(crate) async fn cdi(&self, ids: &[&str]) -> Vec<String> {
        let answer = self.allocate(ids).await.unwrap();
        answer
            .container_responses
            .into_iter()
            .flat_map(|container| container.cdi_devices)
            .map(|device| device.name)
            .collect()
    }

    pub(crate) async fn preferred(&self, available: &[&str], size: i32) -> Vec<String> {
        let owned = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
        let request = PreferredAllocationRequest {
            container_requests: vec![ContainerPreferredAllocationRequest {
                available_device_i_ds: owned(available),
                must_include_device_i_ds: Vec::new(),
                allocation_size: size,
            }],
        };
        let mut client = self.client.clone();
        let answer = client.get_preferred_allocation(request).await.unwrap();
        let mut containers = answer.into_inner().container_responses;
        containers.remove(0).device_i_ds
    }
}
