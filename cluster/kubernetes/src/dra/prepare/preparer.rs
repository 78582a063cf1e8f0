//! Prepares claims for kubelet, and takes that back.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail};
use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, ResourceClaim};
use onload_core::lease::{ClaimUid, Leases};
use onload_core::run_dir::{RUN_DIR, RunDir};
use onload_sys::processes::Processes;
use onload_sys::text::{ErrorChain, Quoted, to_one_line};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::allocation::allocated_devices;
use super::claim_locks::ClaimLocks;
use super::claim_spec::{ClaimDevice, ClaimSpecs, PreparedClaim};
use super::decision::{PrepareContext, decide};
use super::metadata::{DeviceMetadata, MetadataFiles, read_hardware_address};
use crate::dra::api::Api;
use crate::dra::classes::DeviceClasses;
use crate::names::{NodeName, is_label};
use crate::snapshot::{KubernetesSnapshot, SpecNames};
use crate::wire::dra::{Claim, Device};

/// kubelet waits for 45 s, and its next attempt is a minute later.
const PATIENCE: Duration = Duration::from_secs(30);
/// `PodResourceClaimAnnotation` of k8s.io/api/resource.
const POD_CLAIM: &str = "resource.kubernetes.io/pod-claim-name";

#[derive(Debug)]
pub(crate) struct Preparer {
    pub(crate) node: NodeName,
    pub(crate) api: Api,
    pub(crate) device_classes: watch::Receiver<DeviceClasses>,
    pub(crate) host: watch::Receiver<Arc<KubernetesSnapshot>>,
    pub(crate) specs: Arc<SpecNames>,
    pub(crate) own: ClaimSpecs,
    pub(crate) metadata: MetadataFiles,
    pub(crate) host_root: PathBuf,
    pub(crate) reports: mpsc::UnboundedSender<ClaimReport>,
    pub(crate) turns: ClaimLocks,
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
        self.own.remove(uid)
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
        let _turn = self.turns.acquire(&uid).await;
        let found = self.find(claim).await?;
        let found = found.context("the API server knows no such claim any more; delete the pod")?;
        let prepared = self.prepare_found(claim, &uid, found);
        let report = match &prepared {
            Ok((owner, _)) => ClaimReport::Prepared(uid, owner.clone()),
            Err(error) => ClaimReport::Refused(claim.clone(), to_one_line(&format!("{error:#}"))),
        };
        self.report(report);
        prepared.map(|(_, devices)| devices)
    }

    fn prepare_found(
        &self,
        claim: &Claim,
        uid: &ClaimUid,
        found: ResourceClaim,
    ) -> Result<(PreparedClaim, Vec<Device>)> {
        let pod_claim = pod_claim_name(&found);
        let resource = |class: &str| self.device_classes.borrow().resource_of(class);
        let allocated = allocated_devices(found, uid, resource)?;
        let snapshot = self.snapshot();
        let around = PrepareContext {
            node: &self.node,
            names: &snapshot.names,
            snapshot: &snapshot,
            specs: &self.specs.now(),
        };
        let mut decision = decide(allocated, uid, around)?;
        for leased in decision.leased.iter().chain(&decision.beside) {
            let refused = refuse_held(&self.host_root, leased, uid);
            refused.with_context(|| format!("request {}", Quoted(&leased.request)))?;
        }
        self.add_host_data(&mut decision.described);
        let devices = decision.described.iter();
        let owner = PreparedClaim {
            namespace: claim.namespace.clone(),
            name: claim.name.clone(),
            pod_claim,
            devices: devices.map(|device| device.prepared.clone()).collect(),
        };
        // First of all: a sweep of another instance removes what describes a claim that is not prepared.
        self.own.write_owner(uid, &owner)?;
        let described = &decision.described;
        let mounts = self.metadata.write(uid, &owner, described)?;
        let hooks = &snapshot.lease_hooks;
        let (leased, variables) = (&decision.leased, &decision.variables);
        self.own.write(uid, leased, hooks, variables, &mounts)?;
        Ok((owner, decision.devices))
    }

    /// What only the host knows of interfaces that have not moved yet.
    fn add_host_data(&self, described: &mut [DeviceMetadata]) {
        for device in described {
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

    pub(crate) async fn find(&self, claim: &Claim) -> Result<Option<ResourceClaim>> {
        let asked = self.api.get_claim(&claim.namespace, &claim.name);
        let Ok(answer) = timeout(PATIENCE, asked).await else {
            let seconds = PATIENCE.as_secs();
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
        let _turn = self.turns.acquire(&uid).await;
        let owner = self.own.read_claim(&uid);
        match self.remove(&uid) {
            Ok(was_there) => {
                if let Some(owner) = owner {
                    self.report(ClaimReport::Unprepared(uid, owner));
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
fn pod_claim_name(claim: &ResourceClaim) -> Option<String> {
    let annotations = claim.metadata.annotations.as_ref()?;
    let name = annotations.get(POD_CLAIM)?;
    is_label(name).then(|| name.clone())
}

/// Refuses what others than a claim have: its containers would not start. They lease it when they do.
fn refuse_held(host_root: &Path, leased: &ClaimDevice, uid: &ClaimUid) -> Result<()> {
    let reading = || format!("reading who has {}", leased.device);
    let run = host_root.join(RUN_DIR.trim_start_matches('/'));
    // Without it there has been no lease since the boot.
    let Some(run) = RunDir::find(&run).with_context(reading)? else {
        return Ok(());
    };
    let leases = Leases::find(&run, Processes::at_root(host_root));
    let Some(leases) = leases.with_context(reading)? else {
        return Ok(());
    };
    let names = [leased.device.clone()];
    let held = leases.held_beside(&names, leased.most, uid);
    match held.with_context(reading)? {
        None => Ok(()),
        Some(held) => Err(Error::new(held).context(leased.device.to_string())),
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
