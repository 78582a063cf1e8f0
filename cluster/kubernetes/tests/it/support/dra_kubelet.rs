//! What kubelet does with DRA drivers: it finds sockets in its directory, asks who is there, and dials where they
//! say.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use onload_kubernetes::wire::dra::dra_plugin_client::DraPluginClient;
use onload_kubernetes::wire::dra::{
    Claim, Device, NodePrepareResourceResponse, NodePrepareResourcesRequest,
    NodeUnprepareResourcesRequest,
};
use onload_kubernetes::wire::dra_health::dra_resource_health_client::DraResourceHealthClient;
use onload_kubernetes::wire::dra_health::{
    DeviceHealth, NodeWatchResourcesRequest, NodeWatchResourcesResponse,
};
use onload_kubernetes::wire::dra_v1beta1::dra_plugin_client::DraPluginClient as BetaClient;
use onload_kubernetes::wire::registration::registration_client::RegistrationClient;
use onload_kubernetes::wire::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use tokio::time::{sleep, timeout};
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use super::PATIENCE;

/// How often the directory is looked at; kubelet has inotify.
const LOOK: Duration = Duration::from_millis(20);

pub(crate) struct KubeletDir(pub(crate) PathBuf);

#[derive(Clone)]
pub(crate) struct Registered {
    pub(crate) info: PluginInfo,
    registration: RegistrationClient<Channel>,
    v1: DraPluginClient<Channel>,
    beta: BetaClient<Channel>,
    health: DraResourceHealthClient<Channel>,
}

impl KubeletDir {
    pub(crate) fn make(dir: &Path) -> Self {
        fs::create_dir_all(dir.join("plugins_registry")).unwrap();
        fs::create_dir_all(dir.join("plugins")).unwrap();
        KubeletDir(dir.to_owned())
    }

    pub(crate) fn registry(&self) -> PathBuf {
        self.0.join("plugins_registry")
    }

    pub(crate) fn sockets(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.registry())
            .unwrap()
            .filter_map(Result::ok)
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()))
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    pub(crate) async fn until_sockets(&self, count: usize) -> Vec<String> {
        let end = Instant::now() + PATIENCE;
        loop {
            let sockets = self.sockets();
            if sockets.len() == count {
                return sockets;
            }
            assert!(Instant::now() < end, "{sockets:?}");
            sleep(LOOK).await;
        }
    }

    /// Waits for the driver, and takes it without calling it: in a container its socket has another path.
    pub(crate) async fn take(&self) -> PluginInfo {
        let sockets = self.until_sockets(1).await;
        let channel = dial(&self.registry().join(&sockets[0])).await;
        let mut registration = RegistrationClient::new(channel);
        let info = registration.get_info(InfoRequest {}).await.unwrap();
        let status = RegistrationStatus { plugin_registered: true, error: String::new() };
        let notified = registration.notify_registration_status(status).await;
        notified.unwrap();
        info.into_inner()
    }

    pub(crate) async fn driver(&self) -> Registered {
        let sockets = self.until_sockets(1).await;
        self.register(&sockets[0]).await
    }

    pub(crate) async fn register(&self, socket: &str) -> Registered {
        let mut registration = RegistrationClient::new(dial(&self.registry().join(socket)).await);
        let info = registration.get_info(InfoRequest {}).await.unwrap().into_inner();
        let channel = dial(Path::new(&info.endpoint)).await;
        let mut registered = Registered {
            info,
            registration,
            v1: DraPluginClient::new(channel.clone()),
            beta: BetaClient::new(channel.clone()),
            health: DraResourceHealthClient::new(channel),
        };
        registered.notify(true, "").await;
        registered
    }
}

async fn dial(path: &Path) -> Channel {
    let endpoint = Endpoint::from_shared(format!("unix:{}", path.display()))
        .unwrap()
        .origin("http://localhost".parse().unwrap());
    let end = Instant::now() + PATIENCE;
    loop {
        match endpoint.connect().await {
            Ok(channel) => return channel,
            // kubelet dials again too: a socket has its name before it listens.
            Err(error) => assert!(Instant::now() < end, "{}: {error:?}", path.display()),
        }
        sleep(LOOK).await;
    }
}

pub(crate) fn claim(name: &str, uid: &str) -> Claim {
    Claim { namespace: "default".to_owned(), uid: uid.to_owned(), name: name.to_owned() }
}

impl Registered {
    pub(crate) async fn notify(&mut self, plugin_registered: bool, error: &str) {
        let status = RegistrationStatus { plugin_registered, error: error.to_owned() };
        self.registration.notify_registration_status(status).await.unwrap();
    }

    pub(crate) async fn prepare_all(
        &self,
        claims: Vec<Claim>,
    ) -> BTreeMap<String, NodePrepareResourceResponse> {
        let request = NodePrepareResourcesRequest { claims };
        let answer = self.v1.clone().node_prepare_resources(request).await;
        answer.unwrap().into_inner().claims
    }

    pub(crate) async fn prepare_beta(&self, claim: Claim) -> Result<Vec<Device>, String> {
        let request = NodePrepareResourcesRequest { claims: vec![claim] };
        let answer = self.beta.clone().node_prepare_resources(request).await;
        one(answer.unwrap().into_inner().claims)
    }

    pub(crate) async fn prepare(&self, claim: Claim) -> Result<Vec<Device>, String> {
        one(self.prepare_all(vec![claim]).await)
    }

    pub(crate) async fn cdi(&self, claim: Claim) -> Result<Vec<String>, String> {
        let devices = self.prepare(claim).await?.into_iter();
        Ok(devices.flat_map(|device| device.cdi_device_ids).collect())
    }

    pub(crate) async fn unprepare(&self, claim: Claim) -> String {
        let uid = claim.uid.clone();
        let request = NodeUnprepareResourcesRequest { claims: vec![claim] };
        let answer = self.v1.clone().node_unprepare_resources(request).await;
        let mut claims = answer.unwrap().into_inner().claims;
        assert_eq!(claims.len(), 1);
        claims.remove(&uid).unwrap().error
    }

    pub(crate) async fn watch_health(&self) -> Health {
        let mut client = self.health.clone();
        let stream = client.node_watch_resources(NodeWatchResourcesRequest {});
        Health(stream.await.unwrap().into_inner())
    }
}

fn one(mut claims: BTreeMap<String, NodePrepareResourceResponse>) -> Result<Vec<Device>, String> {
    assert_eq!(claims.len(), 1, "{claims:?}");
    let (_, answer) = claims.pop_first().unwrap();
    match answer.error.is_empty() {
        true => Ok(answer.devices),
        false => {
            assert!(answer.devices.is_empty());
            Err(answer.error)
        }
    }
}

pub(crate) struct Health(Streaming<NodeWatchResourcesResponse>);

impl Health {
    pub(crate) async fn until(
        &mut self,
        device: &str,
        is: impl Fn(&DeviceHealth) -> bool,
    ) -> DeviceHealth {
        let found = async {
            loop {
                let listing = self.0.message().await.unwrap().unwrap();
                let mut devices = listing.devices.into_iter();
                let is_it = |health: &DeviceHealth| {
                    let device_of = health.device.as_ref().unwrap();
                    device_of.device_name == device && is(health)
                };
                if let Some(found) = devices.find(is_it) {
                    return found;
                }
            }
        };
        timeout(PATIENCE, found).await.unwrap()
    }

    pub(crate) async fn has_ended(&mut self) -> bool {
        loop {
            match self.0.message().await {
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return true,
            }
        }
    }
}
