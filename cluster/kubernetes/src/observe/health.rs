//! The daemon's health and readiness. The probes of its pod query them at a socket that other pods and users cannot
//! reach, so that they cannot cause the daemon to be killed.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use onload_core::class::Class;
use tokio::sync::watch;

use super::metrics::DaemonMetrics;
use crate::snapshot::KubernetesSnapshot;

/// A daemon without a survey of the host for this long counts as stuck.
const STUCK: Duration = Duration::from_secs(300);
/// Time limit for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Limit for an answer in bytes.
const MAX_BYTES: u64 = 64 * 1024;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonState {
    pub stuck: Option<String>,
    /// Why pods do not get the node's devices.
    pub not_ready: Option<String>,
}

impl DaemonState {
    /// Computes the state of a daemon that offers these classes by the device plugin, and the others by DRA.
    pub fn new(
        metrics: &DaemonMetrics,
        host: &KubernetesSnapshot,
        plugin: &BTreeSet<Class>,
    ) -> DaemonState {
        let (last_survey, was_read) = metrics.last_survey();
        let age = last_survey.elapsed();
        let stuck =
            (age >= STUCK).then(|| format!("the host was last read {} s ago", age.as_secs()));
        let unread = (!was_read).then(|| "the host cannot be read; the log says why".to_owned());
        let mut missing = Vec::new();
        let mut needs_dra = false;
        for resource in host.plan.resources.values() {
            if !resource.has_class(plugin) {
                needs_dra = true;
            } else if !metrics.is_registered(&resource.name) {
                missing.push(resource.name.as_str());
            }
        }
        if needs_dra && !metrics.is_dra_registered() {
            missing.push("the DRA driver");
        }
        let unregistered = (!missing.is_empty())
            .then(|| format!("kubelet has not accepted {}", missing.join(", ")));
        DaemonState { not_ready: stuck.clone().or(unread).or(unregistered), stuck }
    }
}

/// The daemon's state for probes and metrics.
#[derive(Clone, Debug)]
pub struct Daemon {
    pub metrics: Arc<DaemonMetrics>,
    pub host: watch::Receiver<Arc<KubernetesSnapshot>>,
    /// The classes that it offers by the device plugin.
    pub plugin: watch::Receiver<BTreeSet<Class>>,
}

impl Daemon {
    pub(crate) fn state(&self) -> DaemonState {
        DaemonState::new(&self.metrics, &self.host.borrow(), &self.plugin.borrow())
    }
}

/// Requests `/healthz` or `/readyz` of the daemon at its health socket. Returns whether the answer is good, and its text.
pub fn query(socket: &Path, path: &str) -> Result<(bool, String)> {
    let shown = socket.display();
    let answer = request(socket, path)
        .with_context(|| format!("reading the health of the daemon at {shown}"))?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .with_context(|| format!("the answer of the daemon at {shown} cannot be parsed"))?;
    Ok((head.starts_with("HTTP/1.1 200 "), body.to_owned()))
}

/// Returns the whole answer, after which the daemon closes the connection.
fn request(socket: &Path, path: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let text = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(text.as_bytes())?;
    let mut answer = String::new();
    stream.take(MAX_BYTES).read_to_string(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Instant;

    use onload_core::config::Config;
    use onload_core::kubernetes_settings::ResourceName;

    use super::*;
    use crate::resources::test_devices::exclusive;
    use crate::resources::{Resource, ResourcePlan, SpecAuthor};

    fn host(names: &[&str]) -> KubernetesSnapshot {
        let resource = |name: &&str| {
            let name = ResourceName::onload_dev(name).unwrap();
            (name.clone(), Arc::new(Resource::empty(name)))
        };
        KubernetesSnapshot {
            plan: ResourcePlan {
                resources: names.iter().map(resource).collect(),
                ..ResourcePlan::default()
            },
            devices: Vec::new(),
            config: Config::default(),
            written_by: SpecAuthor::Operator,
            lease_hooks: BTreeMap::new(),
            nodes: BTreeMap::new(),
            vf: BTreeMap::new(),
            exclusions: Vec::new(),
            taken: Instant::now(),
        }
    }

    fn by_plugin(metrics: &DaemonMetrics, host: &KubernetesSnapshot) -> DaemonState {
        DaemonState::new(metrics, host, &BTreeSet::from(Class::ALL))
    }

    #[test]
    fn a_daemon_with_classes_of_dra_is_ready_when_kubelet_has_taken_the_driver_and_the_rest() {
        let metrics = DaemonMetrics::default();
        metrics.record_survey(true);
        let mut host = host(&["nic"]);
        let name = ResourceName::onload_dev("vfio").unwrap();
        let mut vfio = Resource::empty(name.clone());
        vfio.devices = vec![exclusive("0000:81:10.0", None)];
        host.plan.resources.insert(name, Arc::new(vfio));
        let state = || DaemonState::new(&metrics, &host, &BTreeSet::from([Class::Nic]));
        assert_eq!(
            state().not_ready.unwrap(),
            "kubelet has not accepted onload.dev/nic, the DRA driver"
        );
        metrics.set_registered(&ResourceName::onload_dev("nic").unwrap(), true);
        assert_eq!(state().not_ready.unwrap(), "kubelet has not accepted the DRA driver");
        metrics.set_dra_registered(true);
        assert_eq!(state(), DaemonState::default());
    }

    #[test]
    fn a_daemon_is_ready_when_kubelet_has_taken_all_that_the_node_has() {
        let metrics = DaemonMetrics::default();
        let host = host(&["nic", "vfio"]);
        let unread = by_plugin(&metrics, &host).not_ready.unwrap();
        assert_eq!(unread, "the host cannot be read; the log says why");
        metrics.record_survey(true);
        metrics.set_registered(&ResourceName::onload_dev("nic").unwrap(), true);
        let missing = by_plugin(&metrics, &host);
        assert_eq!(missing.stuck, None, "it works, and is not killed");
        assert_eq!(missing.not_ready.unwrap(), "kubelet has not accepted onload.dev/vfio");
        metrics.set_registered(&ResourceName::onload_dev("vfio").unwrap(), true);
        assert_eq!(by_plugin(&metrics, &host), DaemonState::default());
        metrics.set_registered(&ResourceName::onload_dev("nic").unwrap(), false);
        assert!(by_plugin(&metrics, &host).not_ready.is_some());
    }

    #[test]
    fn a_node_without_devices_is_ready() {
        let metrics = DaemonMetrics::default();
        metrics.record_survey(true);
        assert_eq!(by_plugin(&metrics, &host(&[])), DaemonState::default());
    }

    #[test]
    fn a_host_that_cannot_be_looked_at_makes_no_daemon_stuck() {
        let metrics = DaemonMetrics::default();
        metrics.record_survey(true);
        metrics.record_survey(false);
        let state = by_plugin(&metrics, &host(&[]));
        assert_eq!(state.stuck, None);
        assert!(state.not_ready.is_some());
    }

    #[test]
    fn a_daemon_that_has_not_looked_for_minutes_is_stuck() {
        let metrics = DaemonMetrics::default();
        metrics.record_survey(true);
        metrics.backdate(STUCK);
        let state = by_plugin(&metrics, &host(&[]));
        assert!(state.stuck.unwrap().starts_with("the host was last read 30"));
        assert!(state.not_ready.is_some());
    }

    #[test]
    fn a_socket_that_nobody_serves_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("health.sock");
        let refusal = || query(&path, "/healthz").unwrap_err().to_string();
        assert_eq!(refusal(), format!("reading the health of the daemon at {}", path.display()));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let other = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
        });
        assert!(refusal().ends_with(" cannot be parsed"));
        other.join().unwrap();
    }
}
