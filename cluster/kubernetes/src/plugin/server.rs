//! Serves a resource and registers it with each new kubelet.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use onload_agent::{Backoff, LastMessage};
use onload_core::kubernetes_settings::ResourceName;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tonic::transport::Server;

use super::directory::KubeletState;
use super::service::{PluginHost, PluginService, register};
use crate::names::hash;
use crate::resources::Resource;
use crate::serve::{end, serve, wait_stopped};
use crate::socket::{self, SocketFile};
use crate::wire::device_plugin::device_plugin_server::DevicePluginServer;

/// Prefix of our socket names, to avoid those of other plugins.
const PREFIX: &str = "onload-kubernetes.";
/// Limit for the path of a Unix socket in bytes (`UNIX_PATH_MAX`, without the final 0).
const MAX_PATH_BYTES: usize = 107;
/// Limit for a request in bytes: twice the size of all ids that a resource can have.
const MAX_REQUEST_BYTES: usize = 8 * 1024 * 1024;

/// The context for serving resources, until `stop` holds true.
#[derive(Clone, Debug)]
pub struct PluginContext {
    pub directory: PathBuf,
    pub node: Arc<PluginHost>,
    pub kubelet: watch::Receiver<KubeletState>,
    pub stop: watch::Receiver<bool>,
}

impl PluginContext {
    fn is_stopped(&self) -> bool {
        *self.stop.borrow() || self.stop.has_changed().is_err()
    }

    /// Returns the file name of a resource's socket, with `_` instead of the slash. There is no `_` before it in a
    /// resource name.
    fn socket_name(&self, name: &ResourceName) -> String {
        let readable = format!("{PREFIX}{}.sock", name.as_str().replacen('/', "_", 1));
        let directory = self.directory.as_os_str().len();
        if directory + 1 + readable.len() <= MAX_PATH_BYTES {
            return readable;
        }
        format!("{PREFIX}{}.sock", hash(name.as_str(), 16))
    }
}

/// Offers a resource to each new kubelet until the program ends.
pub async fn serve_resource(context: PluginContext, resource: watch::Receiver<Arc<Resource>>) {
    let name = resource.borrow().name.clone();
    let mut kubelet = context.kubelet.clone();
    let mut backoff = Backoff::default();
    let mut last_message = LastMessage::default();
    let mut last = None;
    while !context.is_stopped() {
        let start = tokio::select! {
            found = kubelet.wait_for(|kubelet| kubelet.socket.is_some()) => match found {
                Ok(found) => found.starts,
                Err(_) => return,
            },
            () = wait_stopped(&context.stop) => return,
        };
        // Resets the back-off for a new kubelet. Its socket exists before it listens, so the first attempt may be
        // refused and the next must follow soon.
        if last.replace(start) != Some(start) {
            backoff = Backoff::default();
        }
        let begin = Instant::now();
        let served = serve_and_register(&context, &name, &resource, start).await;
        context.node.metrics.set_registered(&name, false);
        let wait = match served {
            Ok(Some(reason)) => {
                tracing::info!(resource = %name, reason, "registering again");
                last_message.clear();
                backoff.record_success(begin.elapsed());
                backoff.next()
            }
            Ok(None) => continue,
            Err(error) => {
                // kubelet is starting or temporarily away.
                let is_deaf = error.is::<tonic::transport::Error>();
                let reason = match is_deaf {
                    // All layers of the library have the same message, so only the cause is added.
                    true => format!("{error}: {}", error.root_cause()),
                    false => format!("{error:#}"),
                };
                let is_new = last_message.is_new(&reason);
                if is_new && is_deaf {
                    tracing::info!(resource = %name, %reason, "offering it failed; trying again");
                } else if is_new {
                    tracing::error!(resource = %name, %reason, "offering it failed; trying again");
                }
                backoff.next()
            }
        };
        tokio::select! {
            () = sleep(wait) => {}
            changed = wait_for_restart(&mut kubelet, start) => if !changed { return },
            () = wait_stopped(&context.stop) => return,
        }
    }
}

/// Waits for another kubelet. Returns `false` if the watch has ended.
async fn wait_for_restart(kubelet: &mut watch::Receiver<KubeletState>, start: u64) -> bool {
    kubelet.wait_for(|kubelet| kubelet.starts != start).await.is_ok()
}

/// Serves and registers a resource until kubelet no longer has it, and returns why. `None` if another kubelet came
/// first, or at the end.
async fn serve_and_register(
    context: &PluginContext,
    name: &ResourceName,
    resource: &watch::Receiver<Arc<Resource>>,
    start: u64,
) -> Result<Option<&'static str>> {
    let metrics = &context.node.metrics;
    let socket = context.socket_name(name);
    let mut server = PluginServer::start(context, &socket, resource)?;
    let mut kubelet = context.kubelet.clone();
    let registered = tokio::select! {
        registered = register(&context.directory, &socket, name) => registered,
        _ = wait_for_restart(&mut kubelet, start) => return Ok(None),
        () = wait_stopped(&context.stop) => return Ok(None),
    };
    metrics.count_registration(name, registered.is_ok());
    if let Err(error) = registered {
        server.end().await;
        return Err(error);
    }
    metrics.set_registered(name, true);
    let (healthy, unhealthy) = resource.borrow().count();
    tracing::info!(resource = %name, healthy, unhealthy, "registered with kubelet");
    let lost = server.wait_until_lost(context, start).await;
    server.end().await;
    Ok(lost)
}

struct PluginServer {
    socket_file: SocketFile,
    stop: watch::Sender<bool>,
    streams: watch::Receiver<Option<usize>>,
    server: JoinSet<()>,
}

impl PluginServer {
    fn start(
        context: &PluginContext,
        socket: &str,
        resource: &watch::Receiver<Arc<Resource>>,
    ) -> Result<Self> {
        let (listener, socket_file) = socket::bind(&context.directory.join(socket))?;
        let (stop, stopped) = watch::channel(false);
        let (streams_sender, streams) = watch::channel(None);
        let service = PluginService {
            node: Arc::clone(&context.node),
            resource: resource.clone(),
            stop: stopped.clone(),
            streams: streams_sender,
        };
        let service = DevicePluginServer::new(service).max_decoding_message_size(MAX_REQUEST_BYTES);
        let router = Server::builder().add_service(service);
        let mut server = JoinSet::new();
        server.spawn(serve(router, listener, stopped));
        Ok(PluginServer { socket_file, stop, streams, server })
    }

    /// Waits until kubelet no longer has the resource. Returns `None` at the end.
    async fn wait_until_lost(
        &mut self,
        context: &PluginContext,
        start: u64,
    ) -> Option<&'static str> {
        let mut kubelet = context.kubelet.clone();
        loop {
            // The program's end closes the streams too, which is not a loss.
            if context.is_stopped() {
                return None;
            }
            let now = *kubelet.borrow_and_update();
            if now.starts != start {
                return Some("kubelet started again");
            }
            // If kubelet's socket is missing too, kubelet has ended or is starting and empties the directory.
            if !self.socket_file.exists() && now.socket.is_some() {
                return Some("its socket was removed");
            }
            let open = *self.streams.borrow_and_update();
            if open == Some(0) && now.socket.is_some() {
                return Some("kubelet closed the list of devices");
            }
            tokio::select! {
                changed = kubelet.changed() => if changed.is_err() { return None },
                changed = self.streams.changed() => if changed.is_err() { return None },
                () = wait_stopped(&context.stop) => return None,
            }
        }
    }

    async fn end(self) {
        drop(self.socket_file);
        end(self.stop, self.server).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{KubernetesSnapshot, SpecNames};

    fn offering(directory: &str) -> PluginContext {
        let snapshot = KubernetesSnapshot {
            plan: crate::resources::ResourcePlan::default(),
            devices: Vec::new(),
            config: onload_core::config::Config::default(),
            written_by: crate::resources::SpecAuthor::Operator,
            lease_hooks: std::collections::BTreeMap::new(),
            nodes: std::collections::BTreeMap::new(),
            vf: std::collections::BTreeMap::new(),
            exclusions: Vec::new(),
            taken: std::time::Instant::now(),
        };
        let (_, host) = watch::channel(Arc::new(snapshot));
        let specs = Arc::new(SpecNames::new(Vec::new()));
        let metrics = Arc::default();
        PluginContext {
            directory: PathBuf::from(directory),
            node: Arc::new(PluginHost { host, specs, metrics }),
            kubelet: watch::channel(KubeletState::default()).1,
            stop: watch::channel(false).1,
        }
    }

    #[test]
    fn sockets_of_two_resources_have_two_names_that_fit_into_a_path() {
        let offering = offering("/var/lib/kubelet/device-plugins");
        let socket = |name: String| offering.socket_name(&name.try_into().unwrap());
        let nic = socket("onload.dev/nic".to_owned());
        assert_eq!(nic, "onload-kubernetes.onload.dev_nic.sock");
        let long = |end: &str| format!("{}/{}{end}", ["a"; 100].join("."), "b".repeat(60));
        let (one, two) = (socket(long("1")), socket(long("2")));
        assert_ne!(one, two);
        assert!(one.len() < 60 && one.starts_with(PREFIX), "{one}");
    }
}
