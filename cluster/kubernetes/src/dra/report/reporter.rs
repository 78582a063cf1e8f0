//! Keeps the status of claims up to date.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::resource::v1::AllocatedDeviceStatus;
use onload_agent::{Backoff, LastMessage};
use onload_core::claim_uid::ClaimUid;
use tokio::sync::{mpsc, watch};

use super::events::{DEVICE_UNHEALTHY, EventLog, EventReason, EventWrite, PREPARE_REFUSED};
use super::status;
use crate::dra::api::{Api, ApiError, ClaimObject};
use crate::dra::engine::REFUSED;
use crate::dra::prepare::{ClaimReport, PreparedClaim, Preparer};
use crate::serve::sleep_until;
use crate::snapshot::KubernetesSnapshot;
use crate::wire::dra::Claim;

/// Time without changes after which the next change of a claim's devices is written at once.
const QUIET: Duration = Duration::from_secs(120);
/// Limit for queued Events; further ones are dropped.
const MAX_WAITING: usize = 64;
/// Wait after a rejected Event, which may concern only its namespace.
const EVENTS_REFUSED: Duration = Duration::from_secs(60);
/// Limit for the pods of a claim that get an Event about a device; a claim has at most 256.
const MAX_PODS: usize = 8;

pub(crate) struct Reporter {
    preparer: Arc<Preparer>,
    host: watch::Receiver<Arc<KubernetesSnapshot>>,
    calls: watch::Receiver<usize>,
    reports: mpsc::UnboundedReceiver<ClaimReport>,
    claims: BTreeMap<ClaimUid, TrackedClaim>,
    events: EventLog,
    waiting: VecDeque<EventWrite>,
    /// Times until which no status or no Event is sent, after a rejection or Retry-After.
    no_status: Option<Instant>,
    no_events: Option<Instant>,
    last_status_error: LastMessage,
    last_event_error: LastMessage,
}

/// A claim that is or was prepared.
#[derive(Default)]
struct TrackedClaim {
    prepared_claim: PreparedClaim,
    /// The devices in the status at the server; `None` if unknown.
    reported: Option<Vec<AllocatedDeviceStatus>>,
    /// Whether these may have changed.
    is_stale: bool,
    /// Whether it is unprepared, so that its devices must be removed from the status.
    has_ended: bool,
    last: Option<Instant>,
    not_before: Option<Instant>,
    wait: Backoff,
}

impl TrackedClaim {
    fn new(
        prepared_claim: PreparedClaim,
        reported: Option<Vec<AllocatedDeviceStatus>>,
    ) -> TrackedClaim {
        TrackedClaim { prepared_claim, reported, is_stale: true, ..TrackedClaim::default() }
    }

    /// Returns whether its devices were removed from the status after it had ended.
    fn is_done(&self) -> bool {
        self.has_ended && self.reported.as_ref().is_some_and(Vec::is_empty)
    }
}

impl Reporter {
    pub(crate) fn new(
        preparer: Arc<Preparer>,
        reports: mpsc::UnboundedReceiver<ClaimReport>,
    ) -> Reporter {
        Reporter {
            host: preparer.host.clone(),
            calls: preparer.calls.subscribe(),
            reports,
            claims: BTreeMap::new(),
            events: EventLog::new(&preparer.node, Instant::now()),
            preparer,
            waiting: VecDeque::new(),
            no_status: None,
            no_events: None,
            last_status_error: LastMessage::default(),
            last_event_error: LastMessage::default(),
        }
    }

    /// Runs until the thread that surveys the host has ended.
    pub(crate) async fn run(mut self) {
        loop {
            let next = self.write_due().await;
            tokio::select! {
                report = self.reports.recv() => match report {
                    Some(report) => self.handle_report(report),
                    None => return,
                },
                changed = self.host.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.claims.values_mut().for_each(|claim| claim.is_stale = true);
                }
                Ok(()) = self.calls.changed() => {}
                () = sleep_until(next) => {}
            }
        }
    }

    fn handle_report(&mut self, report: ClaimReport) {
        match report {
            ClaimReport::Prepared(uid, prepared_claim) => {
                let claim = self
                    .claims
                    .entry(uid)
                    .or_insert_with(|| TrackedClaim::new(prepared_claim.clone(), None));
                claim.prepared_claim = prepared_claim;
                claim.has_ended = false;
                claim.is_stale = true;
            }
            ClaimReport::Found(uid, prepared_claim, devices) => {
                let claim = self.claims.entry(uid);
                claim.or_insert_with(|| TrackedClaim::new(prepared_claim, Some(devices)));
            }
            ClaimReport::Unprepared(uid, prepared_claim) => {
                let known = self.claims.get(&uid);
                if known.is_some_and(|claim| claim.reported.is_none()) {
                    self.claims.remove(&uid);
                    return;
                }
                let claim = self
                    .claims
                    .entry(uid)
                    .or_insert_with(|| TrackedClaim::new(prepared_claim, None));
                claim.has_ended = true;
                claim.is_stale = true;
                // A single change is not delayed.
                claim.not_before = None;
            }
            ClaimReport::Refused(claim, reason) => {
                self.send_event(claim_reference(&claim), None, PREPARE_REFUSED, &reason);
            }
        }
    }

    /// Sends due requests one after the other. Returns when the next one is due. Nothing is sent while kubelet waits for
    /// an answer.
    async fn write_due(&mut self) -> Option<Instant> {
        while *self.calls.borrow() == 0 {
            if let Some(write) = self.waiting.pop_front() {
                self.write_event(write).await;
                continue;
            }
            let now = Instant::now();
            if let Some(deadline) = self.no_status.filter(|deadline| now < *deadline) {
                return Some(deadline);
            }
            let stale = self.claims.iter().filter(|(_, claim)| claim.is_stale);
            let next = stale.min_by_key(|(_, claim)| claim.not_before);
            let (uid, not_before) = next.map(|(uid, claim)| (uid.clone(), claim.not_before))?;
            if not_before.is_some_and(|later| now < later) {
                return not_before;
            }
            self.write_status(&uid).await;
            self.claims.retain(|_, claim| !claim.is_done());
        }
        None
    }

    async fn write_event(&mut self, write: EventWrite) {
        let api = &self.preparer.api;
        let (name, written) = match write {
            EventWrite::New(event) => {
                let namespace = event.metadata.namespace.clone().unwrap_or_default();
                let written = api.create_event(&namespace, &event).await;
                (event.metadata.name.unwrap_or_default(), written)
            }
            EventWrite::Again(namespace, name, change) => {
                let written = api.patch_event(&namespace, &name, &change).await;
                (name, written)
            }
        };
        match written {
            Ok(()) => self.last_event_error.clear(),
            Err(error) => {
                self.events.forget(&name);
                self.no_events = retry_time(&error, Some(EVENTS_REFUSED));
                error.warn_once(&mut self.last_event_error, "writing an Event failed");
            }
        }
    }

    /// Writes the devices of a claim, if they differ from what the server has.
    async fn write_status(&mut self, uid: &ClaimUid) {
        let Some(claim) = self.claims.get_mut(uid) else {
            return;
        };
        claim.is_stale = false;
        let before = claim.reported.as_deref().unwrap_or_default();
        let (prepared, node) = (&claim.prepared_claim, &self.preparer.node);
        let devices = if claim.has_ended {
            Vec::new()
        } else {
            status::device_statuses(uid, prepared, &self.preparer.snapshot(), node, before)
        };
        if claim.reported.as_ref() == Some(&devices) {
            return;
        }
        let answer = apply_devices(&self.preparer.api, uid, prepared, &devices).await;
        let now = Instant::now();
        if claim.last.is_some_and(|last| now - last >= QUIET) {
            claim.wait.reset();
        }
        claim.last = Some(now);
        claim.not_before = Some(now + claim.wait.next());
        match answer {
            Ok(Some(resource_claim)) => {
                self.last_status_error.clear();
                let before = claim.reported.replace(devices);
                self.report_unhealthy(uid, &before.unwrap_or_default(), &resource_claim);
            }
            // The claim is gone, so kubelet unprepares it or has done so.
            Ok(None) => claim.reported = Some(devices),
            Err(error) => {
                claim.is_stale = true;
                if is_refused(&error) {
                    // The claim may belong to another node by now. The server removes the devices itself when a
                    // claim is deallocated.
                    claim.not_before = Some(now + REFUSED);
                    if claim.has_ended {
                        claim.reported = Some(Vec::new());
                    }
                }
                self.no_status = retry_time(&error, None).max(self.no_status);
                let message = "writing the status of claims failed; trying again";
                error.warn_once(&mut self.last_status_error, message);
            }
        }
    }

    /// Queues Events for the pods of a claim about unhealthy devices.
    fn report_unhealthy(
        &mut self,
        uid: &ClaimUid,
        before: &[AllocatedDeviceStatus],
        resource_claim: &ClaimObject,
    ) {
        let Some(claim) = self.claims.get(uid) else {
            return;
        };
        let now = claim.reported.as_deref().unwrap_or_default();
        let notes: Vec<String> = status::newly_unhealthy(before, now)
            .into_iter()
            .map(|(device, why)| format!("device {} of pool {}: {why}", device.device, device.pool))
            .collect();
        let claim = claim_reference(&claim.prepared_claim.claim(uid));
        let pods = pod_references(resource_claim);
        for note in notes {
            for pod in &pods {
                self.send_event(pod.clone(), Some(claim.clone()), DEVICE_UNHEALTHY, &note);
            }
        }
    }

    fn send_event(
        &mut self,
        regarding: ObjectReference,
        related: Option<ObjectReference>,
        reason: EventReason,
        note: &str,
    ) {
        let now = Instant::now();
        let is_left_alone = self.no_events.is_some_and(|deadline| now < deadline);
        if is_left_alone || self.waiting.len() >= MAX_WAITING {
            return;
        }
        let write = self.events.record(regarding, related, reason, note, now);
        self.waiting.extend(write);
    }
}

/// Writes the devices of a claim. Returns the claim, or `None` if it no longer exists.
async fn apply_devices(
    api: &Api,
    uid: &ClaimUid,
    claim: &PreparedClaim,
    devices: &[AllocatedDeviceStatus],
) -> Result<Option<ClaimObject>, ApiError> {
    let (namespace, name) = (&claim.namespace, &claim.name);
    match api.apply_claim_devices(namespace, name, uid.as_str(), devices).await {
        Ok(resource_claim) => Ok(Some(resource_claim)),
        Err(error) if error.is_absent(name) => Ok(None),
        // Either another claim has this name now, or another client changed the claim at the same time.
        Err(error) if error.status() == Some(StatusCode::CONFLICT) => {
            match api.get_claim(namespace, name).await {
                Ok(Some(resource_claim)) if resource_claim.has_uid(uid.as_str()) => Err(error),
                Ok(_) => Ok(None),
                Err(_) => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

/// Returns the time until which no further request is sent, after Retry-After or a rejection of all such requests.
fn retry_time(error: &ApiError, refused: Option<Duration>) -> Option<Instant> {
    let wait = refused.filter(|_| is_refused(error)).or(error.retry_after());
    wait.map(|wait| Instant::now() + wait)
}

fn is_refused(error: &ApiError) -> bool {
    error.status() == Some(StatusCode::FORBIDDEN)
}

fn claim_reference(claim: &Claim) -> ObjectReference {
    ObjectReference {
        api_version: Some("resource.k8s.io/v1".to_owned()),
        kind: Some("ResourceClaim".to_owned()),
        namespace: Some(claim.namespace.clone()),
        name: Some(claim.name.clone()),
        uid: Some(claim.uid.clone()),
        ..ObjectReference::default()
    }
}

/// Returns the pods that a claim is reserved for.
fn pod_references(claim: &ClaimObject) -> Vec<ObjectReference> {
    let pods = claim
        .status
        .iter()
        .flat_map(|status| status.reserved_for.iter().flatten())
        .filter(|user| user.resource == "pods" && user.api_group.is_none())
        .map(|pod| ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: claim.metadata.namespace.clone(),
            name: Some(pod.name.clone()),
            uid: Some(pod.uid.clone()),
            ..ObjectReference::default()
        });
    pods.take(MAX_PODS).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use onload_core::kubernetes_settings::KubernetesSettings;
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::TcpListener;
    use tokio::task::yield_now;
    use tonic::Request;

    use super::*;
    use crate::dra::api::AccessSource;
    use crate::dra::prepare::{ClaimLocks, ClaimSpecs, MetadataFiles};
    use crate::dra::service::DraService;
    use crate::dra::test_offers::snapshot;
    use crate::snapshot::SpecNames;
    use crate::wire::dra::NodePrepareResourcesRequest;
    use crate::wire::dra::dra_plugin_server::DraPlugin;

    /// A server that answers no GET, refuses other requests, and tells how each begins; what accesses it.
    async fn server(dir: &Path) -> (Api, mpsc::UnboundedReceiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let kubeconfig = serde_json::json!({"current-context": "n1",
            "clusters": [{"name": "n1", "cluster": {"server": format!("http://{}", listener.local_addr().unwrap())}}],
            "contexts": [{"name": "n1", "context": {"cluster": "n1", "user": "n1"}}],
            "users": [{"name": "n1", "user": {"token": "t"}}]});
        let path = dir.join("kubeconfig");
        std::fs::write(&path, kubeconfig.to_string()).unwrap();
        let (sender, asked) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut streams = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                let mut stream = BufReader::new(stream);
                let mut line = String::new();
                stream.read_line(&mut line).await.unwrap();
                let is_get = line.starts_with("GET ");
                sender.send(line).unwrap();
                if is_get {
                    streams.push(stream);
                } else {
                    let refusal =
                        "HTTP/1.1 500 Refused\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                    stream.write_all(refusal.as_bytes()).await.unwrap();
                }
            }
        });
        (Api::new(AccessSource::Kubeconfig(path), Arc::default()), asked)
    }

    #[tokio::test]
    async fn nothing_is_written_while_kubelet_waits_for_an_answer() {
        let dir = tempfile::tempdir().unwrap();
        let (api, mut asked) = server(dir.path()).await;
        let (_host, host) =
            watch::channel(Arc::new(snapshot(Vec::new(), KubernetesSettings::default())));
        let (_classes, device_classes) =
            watch::channel(crate::dra::classes::DeviceClasses::default());
        let (sender, reports) = mpsc::unbounded_channel();
        let preparer = Arc::new(Preparer {
            node: "n1".parse().unwrap(),
            api,
            device_classes,
            host,
            specs: Arc::new(SpecNames::new(Vec::new())),
            claim_specs: ClaimSpecs::new(dir.path().to_owned()),
            metadata: MetadataFiles::for_driver(dir.path()),
            host_root: dir.path().to_owned(),
            reports: sender,
            claim_locks: ClaimLocks::default(),
            calls: watch::Sender::default(),
        });
        let claim = |name: &str| Claim {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            uid: format!("uid-of-{name}"),
        };
        let mut reporter = Reporter::new(Arc::clone(&preparer), reports);
        let service =
            DraService { preparer, metrics: Arc::default(), stop: watch::channel(false).1 };
        let claims = vec![claim("asked")];
        let prepare = tokio::spawn(async move {
            let request = Request::new(NodePrepareResourcesRequest { claims });
            service.node_prepare_resources(request).await
        });
        assert!(asked.recv().await.unwrap().starts_with("GET "));
        let owner = PreparedClaim {
            namespace: "default".to_owned(),
            name: "prepared".to_owned(),
            ..PreparedClaim::default()
        };
        reporter.handle_report(ClaimReport::Prepared("u".parse().unwrap(), owner));
        reporter.handle_report(ClaimReport::Refused(claim("refused"), "no".to_owned()));
        assert_eq!(reporter.write_due().await, None);
        let reporting = tokio::spawn(reporter.run());
        yield_now().await;
        // kubelet gives up, which ends the call as an answer does.
        prepare.abort();
        let mut verbs = Vec::new();
        while verbs.len() < 2 {
            let line = asked.recv().await.unwrap();
            verbs.push(line.split(' ').next().unwrap().to_owned());
        }
        verbs.sort();
        assert_eq!(verbs, ["PATCH", "POST"]);
        reporting.abort();
    }
}
