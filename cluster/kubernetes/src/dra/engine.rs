//! Decides which Kubernetes interface offers a class, the device plugin or DRA. Never both.
//!
//! `[kubernetes] offer` selects the interface. A class changes once no container of the node holds a device of it.
//! Leases show that for exclusive devices, kubelet's [`pod_resources`] and the record of prepared claims for all.
//! Objects that a user can write are not consulted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use onload_agent::{Backoff, LastMessage};
use onload_core::class::Class;
use onload_core::kubernetes_settings::OfferMethod;
use onload_host::offers::Sharing;
use onload_lease::Lease;
use onload_sys::text::ErrorChain;
use tokio::sync::{OnceCell, watch};
use tokio::task::JoinSet;

use super::api::{Api, ApiError};
use super::classes::{DeviceClasses, is_refused, send, watch_classes};
use super::prepare::claim_with_device;
use super::published::{PublishedClasses, delete_command};
use super::resource_names::{MissingClasses, class_resources, is_offered, log_missing};
use super::{DraClasses, pod_resources};
use crate::names::NodeName;
use crate::resources::is_pod_lease;
use crate::serve::sleep_until;
use crate::snapshot::KubernetesSnapshot;

/// Time during which neither interface offers a changing class, until kubelet and the scheduler have noticed.
pub const SETTLE: Duration = Duration::from_secs(10);
/// How often to check whether a class that a container holds can change.
const HELD: Duration = Duration::from_secs(60);
/// How often to list DeviceClasses again at a server that refuses it: packaging/kubernetes/dra may be applied later.
pub const REFUSED: Duration = Duration::from_secs(300);
/// The shortest time until a class that neither interface offers is examined again.
const AGAIN: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct Engine {
    pub api: Api,
    pub node: NodeName,
    pub snapshots: watch::Receiver<Arc<KubernetesSnapshot>>,
    pub device_classes: watch::Sender<DeviceClasses>,
    /// kubelet's [`pod_resources::socket`].
    pub pod_resources: PathBuf,
    pub published: PublishedClasses,
    /// The directory for the specifications of claims.
    pub spec_dir: PathBuf,
    /// [`SETTLE`].
    pub settle: Duration,
    /// [`REFUSED`].
    pub refused: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Offered(OfferMethod),
    /// The class has been offered by neither interface since this time.
    Changing(Instant),
}

/// Data that is read at most once for all classes.
struct Round<'s> {
    snapshot: &'s KubernetesSnapshot,
    amounts: OnceCell<BTreeMap<String, bool>>,
    pods: OnceCell<Result<BTreeMap<Class, String>>>,
}

/// The next state of a class, and what it waits for.
type Step = (State, Option<String>);

impl Engine {
    /// Runs until the program ends.
    pub async fn run(
        mut self,
        by_dra: watch::Sender<DraClasses>,
        by_plugin: watch::Sender<BTreeSet<Class>>,
    ) {
        let mut states: BTreeMap<Class, State> = BTreeMap::new();
        let mut waits: BTreeMap<Class, String> = BTreeMap::new();
        let mut missing = MissingClasses::new();
        let mut device_classes = self.device_classes.subscribe();
        let mut watching = JoinSet::new();
        watching.spawn(watch_classes(self.api.clone(), self.refused, self.device_classes.clone()));
        let mut backoff = Backoff::default();
        let mut last_message = LastMessage::default();
        loop {
            let snapshot = Arc::clone(&self.snapshots.borrow_and_update());
            log_missing(&snapshot, &device_classes.borrow_and_update(), &mut missing);
            let next = match self.advance_all(&snapshot, &mut states, &mut waits).await {
                Ok(next) => {
                    backoff = Backoff::default();
                    last_message.clear();
                    next
                }
                Err(error) => {
                    let text = format!("{error:#}");
                    let api_error = error.downcast_ref::<ApiError>();
                    let is_logged =
                        api_error.is_some_and(|error| error.no_access_reason().is_some());
                    if last_message.is_new(&text) && !is_logged {
                        tracing::warn!(error = %text, "a class is not offered yet; trying again");
                    }
                    let server = api_error.and_then(ApiError::retry_after);
                    Some(backoff.next().max(server.unwrap_or_default()))
                }
            };
            send_offered(&snapshot, &states, &by_dra, &by_plugin);
            drop(snapshot);
            let deadline = next.map(|next| Instant::now() + next);
            tokio::select! {
                changed = self.snapshots.changed() => if changed.is_err() { return },
                Ok(()) = device_classes.changed() => {}
                () = sleep_until(deadline) => {}
            }
        }
    }

    /// Advances each class to the interface that the configuration says. Returns how soon to do so again.
    async fn advance_all(
        &self,
        snapshot: &KubernetesSnapshot,
        states: &mut BTreeMap<Class, State>,
        waits: &mut BTreeMap<Class, String>,
    ) -> Result<Option<Duration>> {
        let mut next: Option<Duration> = None;
        let mut failed = None;
        let round = Round { snapshot, amounts: OnceCell::new(), pods: OnceCell::new() };
        for class in classes(snapshot) {
            let wanted = snapshot.config.kubernetes.offer.method(class);
            let before = states.get(&class).copied();
            if before == Some(State::Offered(wanted)) {
                waits.remove(&class);
                continue;
            }
            let (state, waits_for) = match self.advance(class, before, wanted, &round).await {
                Ok(step) => step,
                Err(error) => {
                    failed = Some(error);
                    continue;
                }
            };
            if before != Some(state) {
                match state {
                    State::Offered(by) => tracing::info!(%class, by = name(by), "class offered"),
                    State::Changing(_) => {
                        tracing::info!(%class, to = name(wanted), "class changes");
                    }
                }
            }
            states.insert(class, state);
            match waits_for {
                Some(reason) if waits.get(&class) != Some(&reason) => {
                    tracing::info!(%class, to = name(wanted), %reason, "class waits");
                    waits.insert(class, reason);
                }
                Some(_) => {}
                None => drop(waits.remove(&class)),
            }
            let wait = match state {
                State::Offered(method) if method == wanted => continue,
                State::Offered(_) => HELD,
                State::Changing(_) => self.settle.max(AGAIN),
            };
            next = Some(next.map_or(wait, |other| other.min(wait)));
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(next),
        }
    }

    /// Decides what becomes of a class that is to be offered by `wanted`. A class without a state has just been found.
    async fn advance(
        &self,
        class: Class,
        before: Option<State>,
        wanted: OfferMethod,
        round: &Round<'_>,
    ) -> Result<Step> {
        let other = match wanted {
            OfferMethod::DevicePlugin => OfferMethod::Dra,
            OfferMethod::Dra => OfferMethod::DevicePlugin,
        };
        if before.is_none() && !self.may_have_been_offered(class, other, round).await? {
            return self.finish(class, wanted);
        }
        if let Some(holder) = self.find_holder(class, other, round).await {
            if other == OfferMethod::Dra {
                self.published.add(class)?;
            }
            return Ok((State::Offered(other), Some(holder)));
        }
        let now = Instant::now();
        let since = match before {
            Some(State::Changing(since)) => since,
            Some(State::Offered(_)) | None => now,
        };
        let changing = State::Changing(since);
        if now < since + self.settle {
            return Ok((changing, None));
        }
        let remaining = match wanted {
            OfferMethod::DevicePlugin => self.find_slices(class).await?,
            OfferMethod::Dra => self.find_amount(class, round).await?,
        };
        match remaining {
            Some(_) => Ok((changing, remaining)),
            None => self.finish(class, wanted),
        }
    }

    /// Returns whether pods may have received devices of a class by an interface before this program started.
    async fn may_have_been_offered(
        &self,
        class: Class,
        by: OfferMethod,
        round: &Round<'_>,
    ) -> Result<bool, ApiError> {
        let is_by_dra = self.published.contains(class)
            || claim_with_device(&self.spec_dir, &self.node, class).is_some();
        if by == OfferMethod::Dra {
            return Ok(is_by_dra);
        }
        if is_by_dra {
            return Ok(false);
        }
        // kubelet never removes a resource of a device plugin from its Node: it sets its amount to 0.
        let amounts = self.node_amounts(round).await?;
        let names = class_resources(round.snapshot, class);
        Ok(names.iter().any(|name| amounts.contains_key(name.as_str())))
    }

    async fn node_amounts<'r>(
        &self,
        round: &'r Round<'_>,
    ) -> Result<&'r BTreeMap<String, bool>, ApiError> {
        round.amounts.get_or_try_init(|| self.api.node_amounts(&self.node)).await
    }

    /// Records that an interface offers a class.
    fn finish(&self, class: Class, method: OfferMethod) -> Result<Step> {
        match method {
            OfferMethod::DevicePlugin => self.published.remove(class)?,
            OfferMethod::Dra => self.published.add(class)?,
        }
        Ok((State::Offered(method), None))
    }

    /// Returns what holds a device of a class by an interface. An unreadable pod-resources socket counts as a holder, except
    /// of classes whose devices are all leased.
    async fn find_holder(
        &self,
        class: Class,
        by: OfferMethod,
        round: &Round<'_>,
    ) -> Option<String> {
        let mut devices = round.snapshot.devices.iter().filter(|device| device.class == class);
        let mut leases = devices.clone().flat_map(|device| &device.leases);
        if let Some(lease) = leases.find(|lease| may_be_held_by(lease.lease.as_ref(), by)) {
            return Some(lease.text.clone());
        }
        if by == OfferMethod::Dra {
            return claim_with_device(&self.spec_dir, &self.node, class);
        }
        let pods = round
            .pods
            .get_or_init(|| pod_resources::pods_by_class(&self.pod_resources, round.snapshot));
        match pods.await {
            Ok(pods) => pods.get(&class).map(|pod| format!("pod {pod}")),
            Err(_) if devices.all(|device| device.sharing == Sharing::Exclusive) => None,
            Err(error) => Some(format!("{error:#}; mount kubelet's pod-resources directory")),
        }
    }

    /// Returns what to do if the server still has slices of a class, of which the scheduler may give devices to claims.
    async fn find_slices(&self, class: Class) -> Result<Option<String>, ApiError> {
        if !self.published.contains(class) {
            return Ok(None);
        }
        let (pool, node) = (self.node.pool_name(class), &self.node);
        let mut has_slices = false;
        let listed =
            self.api.visit_slices(node, |slice| has_slices |= slice.spec.pool.name == pool).await;
        match listed {
            Err(error) if is_refused(&error) || error.no_access_reason().is_some() => {
                let (error, remedy) =
                    (ErrorChain(&error), self.published.remedy(class, node.as_str()));
                Ok(Some(format!("{error}; delete the ResourceSlices of pool {pool}: {remedy}")))
            }
            Err(error) => Err(error),
            Ok(_) if has_slices => {
                let delete = delete_command(node.as_str());
                Ok(Some(format!("ResourceSlices of pool {pool}: {delete}")))
            }
            Ok(_) => Ok(None),
        }
    }

    /// Returns a resource of a class of which the Node still reports an amount. The scheduler makes no claim for it, so that
    /// a pod would run without its device.
    async fn find_amount(
        &self,
        class: Class,
        round: &Round<'_>,
    ) -> Result<Option<String>, ApiError> {
        let amounts = self.node_amounts(round).await?;
        let names = class_resources(round.snapshot, class);
        let remaining = names.iter().find(|name| amounts.get(name.as_str()) == Some(&true));
        Ok(remaining.map(|name| format!("the Node still reports an amount of {name}")))
    }
}

fn send_offered(
    snapshot: &KubernetesSnapshot,
    states: &BTreeMap<Class, State>,
    by_dra: &watch::Sender<DraClasses>,
    by_plugin: &watch::Sender<BTreeSet<Class>>,
) {
    let mut dra_classes = DraClasses { undecided: classes(snapshot), ..DraClasses::default() };
    let mut plugin_classes = BTreeSet::new();
    for (class, state) in states {
        dra_classes.undecided.remove(class);
        let is_for_dra = snapshot.config.kubernetes.offer.method(*class) == OfferMethod::Dra;
        match state {
            State::Offered(OfferMethod::Dra) => dra_classes.classes.insert(*class),
            State::Offered(OfferMethod::DevicePlugin) => plugin_classes.insert(*class),
            State::Changing(_) => is_for_dra && dra_classes.awaited.insert(*class),
        };
    }
    send(by_dra, dra_classes);
    send(by_plugin, plugin_classes);
}

/// Returns the interface's name for the log.
fn name(method: OfferMethod) -> &'static str {
    match method {
        OfferMethod::DevicePlugin => "the device plugin",
        OfferMethod::Dra => "DRA",
    }
}

/// Returns whether the holder of a lease may have received its device by an interface. An unreadable lease may have any
/// holder.
fn may_be_held_by(lease: Option<&Lease>, by: OfferMethod) -> bool {
    match (lease, by) {
        (None, _) => true,
        (Some(lease), OfferMethod::DevicePlugin) => lease.claim.is_none() && is_pod_lease(lease),
        (Some(lease), OfferMethod::Dra) => lease.claim.is_some(),
    }
}

/// Returns the classes of the host's devices that pods may get.
fn classes(snapshot: &KubernetesSnapshot) -> BTreeSet<Class> {
    let settings = &snapshot.config.kubernetes;
    snapshot
        .devices
        .iter()
        .filter(|device| is_offered(device, settings))
        .map(|device| device.class)
        .collect()
}
