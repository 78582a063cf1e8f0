//! Prepares claims for kubelet, and takes that back.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail};
use k8s_openapi::api::resource::v1::AllocatedDeviceStatus;
use onload_core::claim_uid::ClaimUid;
use onload_lease::Leases;
use onload_lease::run_dir::{RUN_DIR, RunDir};
use onload_sys::processes::Processes;
use onload_sys::text::{ErrorChain, Quoted, to_one_line};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::allocation::allocated_devices;
use super::claim_locks::ClaimLocks;
use super::claim_spec::{ClaimDevice, ClaimSpecs, PreparedClaim};
use super::decision::{PrepareContext, decide};
use super::metadata::{DeviceMetadata, MetadataFiles, read_hardware_address};
use crate::dra::api::{Api, ClaimObject};
use crate::dra::classes::DeviceClasses;
use crate::names::{NodeName, is_label};
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
    /// How many calls of kubelet are under way; whoever watches is told when there is none any more.
    pub(crate) calls: watch::Sender<usize>,
}

/// What became of a claim, for those who tell the API server.
#[derive(Debug)]
pub(crate) enum ClaimReport {
    Prepared(ClaimUid, PreparedClaim),
    /// It was prepared before this start. The devices in its status are those that the API server has.
    Found(ClaimUid, PreparedClaim, Vec<AllocatedDeviceStatus>),
    Unprepared(ClaimUid, PreparedClaim),
    Refused(Claim, String),
}

impl Preparer {
    /// Tells what the API server is to know; nobody waits for that.
    pub(crate) fn report(&self, report: ClaimReport) {
        // At the end nobody listens any more.
        let _ = self.reports.send(report);
    }

    /// Removes what there is of a claim; whether it had a specification.
    pub(crate) fn remove(&self, uid: &ClaimUid) -> Result<bool> {
        self.metadata.remove(uid)?;
        self.claim_specs.remove(uid)
    }

    /// What is known of the node.
    pub(crate) fn snapshot(&self) -> Arc<KubernetesSnapshot> {
        Arc::clone(&self.host.borrow())
    }

    /// A call of kubelet begins, which lasts as long as what this gives.
    pub(crate) fn begin_call(&self) -> CallGuard<'_> {
        self.calls.send_if_modified(|calls| {
            *calls += 1;
            false
        });
        CallGuard(&self.calls)
    }

    /// Prepares a claim, as often as kubelet asks. Its answer is the same as long as the host is.
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
        let resource_claim = self.find(claim).await?;
        let resource_claim = resource_claim
            .context("the API server knows no such claim any more; delete the pod")?;
        self.prepare_found(claim, &uid, resource_claim)
    }

    /// Prepares a claim that the API server has. The caller holds its lock.
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
        let resource = |class: &str| self.device_classes.borrow().resource_of(class);
        let allocated = allocated_devices(resource_claim, uid, resource)?;
        let snapshot = self.snapshot();
        let context = PrepareContext {
            node: &self.node,
            names: &snapshot.names,
            snapshot: &snapshot,
            specs: &self.specs.current(),
        };
        let mut decision = decide(allocated, uid, context)?;
        for device in decision.leased.iter().chain(&decision.other_functions) {
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
        // First of all: a sweep of another instance removes what describes a claim that is not prepared.
        self.claim_specs.write_owner(uid, &prepared_claim)?;
        let metadata = &decision.metadata;
        let mounts = self.metadata.write(uid, &prepared_claim, metadata)?;
        let hooks = &snapshot.lease_hooks;
        let (claim_devices, variables) = (&decision.leased, &decision.variables);
        self.claim_specs.write(uid, claim_devices, hooks, variables, &mounts)?;
        Ok((prepared_claim, decision.devices))
    }

    /// What only the host knows of interfaces that have not moved yet.
    fn add_host_data(&self, metadata: &mut [DeviceMetadata]) {
        for device in metadata {
            // By its name on the host: the claim chooses the one in the pod, which may be another interface's here.
            let name = device.attributes.get("interface");
            let name = name.and_then(|name| name.string.as_deref());
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
                "asking the API server for the claim took more than {seconds} s; kubelet tries again"
            );
        };
        answer.map_err(|error| anyhow!("{}; kubelet tries again", ErrorChain(&error)))
    }

    /// Takes back what was prepared. A claim that was not is no error, and the API server is not asked: the claim
    /// may be gone.
    pub(crate) async fn unprepare(&self, claim: &Claim) -> Result<(), String> {
        // What has no uid was not prepared.
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

/// What the pod of a claim calls it that was made from a template. Whoever makes a claim can write this too.
fn pod_claim_name(claim: &ClaimObject) -> Option<String> {
    let annotations = claim.metadata.annotations.as_ref()?;
    annotations.pod_claim_name.clone().filter(|name| is_label(name))
}

/// Refuses what others than a claim have: its containers would not start. They lease it when they do.
fn refuse_held(host_root: &Path, device: &ClaimDevice, uid: &ClaimUid) -> Result<()> {
    let reading = || format!("reading who has {}", device.device);
    let run = host_root.join(RUN_DIR.trim_start_matches('/'));
    // Without it there has been no lease since the boot.
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

/// Logs why something was not done, and says it again for kubelet.
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
