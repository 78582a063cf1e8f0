//! Prepares and unprepares claims for kubelet.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail};
use k8s_openapi::api::resource::v1::AllocatedDeviceStatus;
use onload_core::claim_uid::ClaimUid;
use onload_core::kubernetes_settings::is_dns_label;
use onload_lease::Leases;
use onload_lease::run_dir::{RUN_DIR, RunDir};
use onload_sys::processes::Processes;
use onload_sys::text::{ErrorChain, Quoted, to_one_line};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::allocation::allocated_devices;
use super::claim_locks::ClaimLocks;
use super::claim_spec::{ClaimDevice, ClaimSpecs, PreparedClaim, build_spec};
use super::decision::{PrepareContext, decide};
use super::metadata::{DeviceMetadata, MetadataFiles, read_hardware_address};
use crate::dra::api::{Api, ClaimObject};
use crate::dra::classes::DeviceClasses;
use crate::names::NodeName;
use crate::snapshot::{KubernetesSnapshot, SpecNames};
use crate::wire::dra::{Claim, Device};

/// kubelet waits for 45 s, and its next attempt is a minute later.
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Preparer {
    pub(crate) node: NodeName,
    pub(crate) api: Api,
    pub(crate) device_classes: watch::Receiver<DeviceClasses>,
    pub(crate) host: watch::Receiver<Arc<KubernetesSnapshot>>,
    pub(crate) specs: Arc<SpecNames>,
    pub(crate) claim_specs: ClaimSpecs,
    pub(crate) metadata: MetadataFiles,
    pub(crate) host_root: PathBuf,
    pub(crate) reports: mpsc::UnboundedSender<ClaimReport>,
    pub(crate) claim_locks: ClaimLocks,
    /// The number of kubelet's calls in progress. Receivers notice when it reaches 0.
    pub(crate) calls: watch::Sender<usize>,
}

/// The result for a claim, for the report to the API server.
#[derive(Debug)]
pub(crate) enum ClaimReport {
    Prepared(ClaimUid, PreparedClaim),
    /// The claim was prepared before this start. The devices in its status are those at the API server.
    Found(ClaimUid, PreparedClaim, Vec<AllocatedDeviceStatus>),
    Unprepared(ClaimUid, PreparedClaim),
    Refused(Claim, String),
}

impl Preparer {
    /// Queues a report for the API server without waiting.
    pub(crate) fn report(&self, report: ClaimReport) {
        // During shutdown there is no receiver.
        let _ = self.reports.send(report);
    }

    /// Removes the files of a claim. Returns whether it had a specification.
    pub(crate) fn remove(&self, uid: &ClaimUid) -> Result<bool> {
        self.metadata.remove(uid)?;
        self.claim_specs.remove(uid)
    }

    /// Returns the present snapshot of the node.
    pub(crate) fn snapshot(&self) -> Arc<KubernetesSnapshot> {
        Arc::clone(&self.host.borrow())
    }

    /// Marks a call of kubelet as in progress until the result is dropped.
    pub(crate) fn begin_call(&self) -> CallGuard<'_> {
        self.calls.send_if_modified(|calls| {
            *calls += 1;
            false
        });
        CallGuard(&self.calls)
    }

    /// Prepares a claim. Repeated calls give the same answer as long as the host does not change.
    pub(crate) async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, String> {
        let prepared = self.try_prepare(claim).await;
        match prepared {
            Ok(devices) => {
                let cdi: Vec<&str> = devices
                    .iter()
                    .flat_map(|device| device.cdi_device_ids.iter().map(String::as_str))
                    .collect();
                tracing::info!(
                    namespace = %claim.namespace,
                    claim = %claim.name,
                    uid = %claim.uid,
                    devices = devices.len(),
                    cdi = %cdi.join(","),
                    "prepared"
                );
                Ok(devices)
            }
            Err(error) => Err(log_failure("not prepared", claim, &error)),
        }
    }

    async fn try_prepare(&self, claim: &Claim) -> Result<Vec<Device>> {
        let uid: ClaimUid = claim.uid.parse()?;
        let _lock = self.claim_locks.acquire(&uid).await;
        let resource_claim = self
            .find(claim)
            .await?
            .context("the API server no longer has this claim; delete the pod")?;
        self.prepare_found(claim, &uid, resource_claim)
    }

    /// Prepares a claim that was read from the API server. The caller holds its lock.
    pub(crate) fn prepare_found(
        &self,
        claim: &Claim,
        uid: &ClaimUid,
        resource_claim: ClaimObject,
    ) -> Result<Vec<Device>> {
        let prepared = self.prepare_claim(claim, uid, resource_claim);
        let report = match &prepared {
            Ok((prepared_claim, _)) => ClaimReport::Prepared(uid.clone(), prepared_claim.clone()),
            Err(error) => ClaimReport::Refused(claim.clone(), to_one_line(&format!("{error:#}"))),
        };
        self.report(report);
        prepared.map(|(_, devices)| devices)
    }

    fn prepare_claim(
        &self,
        claim: &Claim,
        uid: &ClaimUid,
        resource_claim: ClaimObject,
    ) -> Result<(PreparedClaim, Vec<Device>)> {
        let pod_claim = pod_claim_name(&resource_claim);
        let allocated = allocated_devices(resource_claim, uid, |class: &str| {
            self.device_classes.borrow().resource_of(class)
        })?;
        let snapshot = self.snapshot();
        let context =
            PrepareContext { node: &self.node, snapshot: &snapshot, specs: &self.specs.current() };
        let mut decision = decide(allocated, uid, context)?;
        for device in &decision.leased {
            let refused = refuse_held(&self.host_root, device, uid);
            refused.with_context(|| format!("request {}", Quoted(&device.request)))?;
        }
        self.add_host_data(&mut decision.metadata);
        let devices = decision.metadata.iter();
        let prepared_claim = PreparedClaim {
            namespace: claim.namespace.clone(),
            name: claim.name.clone(),
            pod_claim,
            devices: devices.map(|device| device.prepared.clone()).collect(),
        };
        // Written first, because a sweep of another instance removes metadata of claims that are not prepared.
        self.claim_specs.write_owner(uid, &prepared_claim)?;
        let metadata = &decision.metadata;
        let mounts = self.metadata.write(uid, &prepared_claim, metadata)?;
        let (hooks, variables) = (&snapshot.lease_hooks, &decision.variables);
        if let Some(spec) = build_spec(uid, &decision.leased, hooks, variables, &mounts) {
            self.claim_specs.write(uid, &spec)?;
        }
        Ok((prepared_claim, decision.devices))
    }

    /// Adds data that only the host has, for interfaces that have not moved yet.
    fn add_host_data(&self, metadata: &mut [DeviceMetadata]) {
        for device in metadata {
            // Uses the name on the host, since the name in the pod may be another interface's here.
            let name = device.attributes.get("interface").and_then(|name| name.string.as_deref());
            if let (Some(network), Some(name)) = (&mut device.prepared.network, name)
                && network.hardware_address.is_none()
            {
                network.hardware_address = read_hardware_address(&self.host_root, name);
            }
        }
    }

    pub(crate) async fn find(&self, claim: &Claim) -> Result<Option<ClaimObject>> {
        let request = self.api.get_claim(&claim.namespace, &claim.name);
        let Ok(answer) = timeout(TIMEOUT, request).await else {
            let seconds = TIMEOUT.as_secs();
            bail!(
                "reading the claim from the API server took more than {seconds} s; kubelet tries \
                 again"
            );
        };
        answer.map_err(|error| anyhow!("{}; kubelet tries again", ErrorChain(&error)))
    }

    /// Unprepares a claim. Succeeds if it was not prepared. Does not query the API server, since the claim may be gone.
    pub(crate) async fn unprepare(&self, claim: &Claim) -> Result<(), String> {
        // A claim without a uid was not prepared.
        let Ok(uid) = claim.uid.parse::<ClaimUid>() else {
            return Ok(());
        };
        let _lock = self.claim_locks.acquire(&uid).await;
        let prepared_claim = self.claim_specs.read_claim(&uid);
        match self.remove(&uid) {
            Ok(was_there) => {
                if let Some(prepared_claim) = prepared_claim {
                    self.report(ClaimReport::Unprepared(uid, prepared_claim));
                }
                tracing::info!(
                    namespace = %claim.namespace,
                    claim = %claim.name,
                    uid = %claim.uid,
                    had_specification = was_there,
                    "unprepared"
                );
                Ok(())
            }
            Err(error) => Err(log_failure("not unprepared", claim, &error)),
        }
    }
}

pub(crate) struct CallGuard<'a>(&'a watch::Sender<usize>);

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        self.0.send_if_modified(|calls| {
            *calls -= 1;
            *calls == 0
        });
    }
}

/// Returns the pod's name for a claim that was created from a template. The creator of a claim can set this too.
fn pod_claim_name(claim: &ClaimObject) -> Option<String> {
    let annotations = claim.metadata.annotations.as_ref()?;
    annotations.pod_claim_name.clone().filter(|name| is_dns_label(name))
}

/// Fails if a device is leased to another container or claim, since the claim's containers would not start. They lease
/// the device when they start.
fn refuse_held(host_root: &Path, device: &ClaimDevice, uid: &ClaimUid) -> Result<()> {
    let reading = || format!("reading who has {}", device.device);
    let run = host_root.join(RUN_DIR.trim_start_matches('/'));
    // Without the directory there has been no lease since boot.
    let Some(run) = RunDir::find(&run).with_context(reading)? else {
        return Ok(());
    };
    let leases = Leases::find(&run, Processes::at_root(host_root));
    let Some(leases) = leases.with_context(reading)? else {
        return Ok(());
    };
    let names = [device.device.clone()];
    let held = leases.check_claim(&names, device.max_holders, uid);
    match held.with_context(reading)? {
        None => Ok(()),
        Some(held) => Err(Error::new(held).context(device.device.to_string())),
    }
}

/// Logs a failure and returns its text for kubelet.
fn log_failure(what: &'static str, claim: &Claim, error: &Error) -> String {
    let reason = to_one_line(&format!("{error:#}"));
    tracing::warn!(
        namespace = %claim.namespace,
        claim = %claim.name,
        uid = %claim.uid,
        %reason,
        message = what
    );
    reason
}
