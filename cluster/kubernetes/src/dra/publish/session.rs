//! From one list of the slices to the loss of their watch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use http::StatusCode;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube_client::core::PartialObjectMeta;
use onload_agent::{Backoff, LastMessage};
use onload_core::class::Class;
use onload_host::offers::{HostDevice, Sharing};
use onload_sys::text::ErrorChain;
use tokio::sync::watch;
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;

use super::server::ServerSlices;
use crate::dra::DraClasses;
use crate::dra::api::{Api, ApiError, ApiWatch, WriteMode};
use crate::dra::classes::DeviceClasses;
use crate::dra::slices::{
    DraFeatures, SliceInput, SlicePool, SliceSummary, fingerprint, lost_features, probe,
};
use crate::names::{NodeName, parse_slot};
use crate::observe::metrics::DaemonMetrics;
use crate::serve::sleep_until;
use crate::snapshot::KubernetesSnapshot;

/// Requests that are under way at once: a change of 4096 devices is 64 of them.
const MAX_PARALLEL: usize = 4;
/// How often it is asked whether claims still hold devices under names that are to change. The server has to
/// list all claims for that.
const HELD_INTERVAL: Duration = Duration::from_secs(300);
/// Whoever changed a slice of ours and has not done it again for so long is forgotten.
const QUIET: Duration = Duration::from_secs(120);
/// How often a watch is begun where it has ended, before all is listed.
const MAX_TRIES: usize = 5;

/// How often the slices of a pool are written at most: each write is an event for each scheduler.
pub const WRITE_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Publisher {
    pub api: Api,
    pub node: NodeName,
    pub snapshots: watch::Receiver<Arc<KubernetesSnapshot>>,
    pub registered: watch::Receiver<bool>,
    pub dra_classes: watch::Receiver<DraClasses>,
    /// What is known of DeviceClasses: a server that refuses to tell has given this program no rights.
    pub device_classes: watch::Receiver<DeviceClasses>,
    pub metrics: Arc<DaemonMetrics>,
    /// [`WRITE_INTERVAL`].
    pub write_interval: Duration,
    /// Whether the program ends. The slices stay then: a successor may be there already, and if none comes,
    /// kubelet deletes them.
    pub stop: watch::Receiver<bool>,
}

/// What the watch tells of a slice.
type SliceMetadata = PartialObjectMeta<ResourceSlice>;

pub(super) struct PublishSession<'p> {
    publisher: &'p mut Publisher,
    api: Api,
    /// That of the Node; none while it is to be read. The garbage collector deletes the slices of a Node that is
    /// deleted, and one that is registered again has another.
    uid: Option<String>,
    server: ServerSlices,
    features: DraFeatures,
    /// Classes whose devices have other names than the server's features allow, since claims hold some of them.
    waiting: BTreeMap<Class, ClassWait>,
    /// What claims held when the first class without slices was met; each class is looked up once.
    claimed: Option<BTreeMap<Class, BTreeSet<String>>>,
    written: BTreeMap<Class, Instant>,
    /// What is looked at next without being told.
    due: Option<Instant>,
    /// Against somebody else who writes our slices too.
    foreign_backoff: Backoff,
    foreign_since: Option<Instant>,
    /// When that is looked at, whatever else is due later.
    foreign_due: Option<Instant>,
    again: Backoff,
    /// Until then the server wants to be left alone, whatever changes.
    quiet_until: Option<Instant>,
    left_out: BTreeSet<String>,
    last_message: LastMessage,
}

#[derive(Clone, Copy, Debug)]
struct ClassWait {
    /// Whether slots are devices until then.
    is_numbered: bool,
    deadline: Instant,
}

enum RoundResult {
    Done,
    Changed,
}

struct WrittenSlice {
    name: String,
    /// What it was told to be, with the version that this has there.
    summary: SliceSummary,
    lost: DraFeatures,
    is_changed: bool,
}

impl<'p> PublishSession<'p> {
    pub(super) fn new(publisher: &'p mut Publisher) -> PublishSession<'p> {
        PublishSession {
            api: publisher.api.clone(),
            publisher,
            uid: None,
            server: ServerSlices::default(),
            features: DraFeatures::NONE,
            waiting: BTreeMap::new(),
            claimed: None,
            written: BTreeMap::new(),
            due: None,
            foreign_backoff: Backoff::default(),
            foreign_since: None,
            foreign_due: None,
            again: Backoff::default(),
            quiet_until: None,
            left_out: BTreeSet::new(),
            last_message: LastMessage::default(),
        }
    }

    /// Until the thread that reads the host has ended.
    pub(super) async fn run(mut self) -> Result<(), ApiError> {
        let node = self.publisher.node.clone();
        self.features = self.probe_features().await?;
        let (features, missing) = (self.features, DraFeatures::ALL.without(self.features));
        tracing::info!(%features, %missing, "features of the API server for ResourceSlices");
        let server = &mut self.server;
        let each = |slice: ResourceSlice| {
            server.record(slice_name(&slice), SliceSummary::from_slice(&slice));
        };
        let version = self.api.visit_slices(&node, each).await?;
        let mut watch = self.api.watch_slices(&node, &version).await?;
        loop {
            self.publish_until_done().await;
            if self.wait(&mut watch).await?.is_none() {
                return Ok(());
            }
        }
    }

    async fn uid(&mut self) -> Result<String, ApiError> {
        if let Some(uid) = &self.uid {
            return Ok(uid.clone());
        }
        let node = &self.publisher.node;
        let uid = self.api.node_uid(node).await?.with_context(|| {
            format!(
                "publishing devices: the API server has no Node {node}; set --node-name to the metadata.name of this node"
            )
        })?;
        self.uid = Some(uid.clone());
        Ok(uid)
    }

    /// Which features the server has. Asked before anything is written: no device may be offered in two ways,
    /// not for a moment.
    async fn probe_features(&mut self) -> Result<DraFeatures, ApiError> {
        let uid = self.uid().await?;
        let mut slice = probe(&self.publisher.node, &uid);
        let mut answer = self.api.apply_slice(&slice, WriteMode::Dry).await;
        // Kubernetes 1.34 refuses a counter set that is in another slice than its devices.
        let is_invalid =
            |error: &ApiError| error.status() == Some(StatusCode::UNPROCESSABLE_ENTITY);
        let has_no_counters = answer.as_ref().is_err_and(is_invalid);
        if has_no_counters {
            for device in slice.spec.devices.iter_mut().flatten() {
                device.consumes_counters = None;
            }
            answer = self.api.apply_slice(&slice, WriteMode::Dry).await;
        }
        let (mut lost, _) = lost_features(&slice.spec, &answer?.spec);
        lost.counters |= has_no_counters;
        Ok(DraFeatures::ALL.without(lost))
    }

    /// A server that was updated may have more features. It is only asked when a watch begins anew, which is each half an
    /// hour at most where nothing breaks. Those that it has lost show when a slice is written.
    async fn probe_again(&mut self) {
        if self.quiet_until.is_some_and(|deadline| deadline > Instant::now()) {
            return;
        }
        let gained = match self.probe_features().await {
            Ok(features) => features.without(self.features),
            Err(error) => {
                tracing::debug!(error = %ErrorChain(&error), "features are asked for with the next watch");
                return;
            }
        };
        if gained != DraFeatures::NONE {
            tracing::info!(%gained, "the API server has more features for ResourceSlices now");
            self.features = self.features.union(gained);
            self.claimed = None;
            self.schedule(Duration::ZERO);
        }
    }

    /// Waits until there may be something to do; none if the thread that reads the host has ended.
    async fn wait(&mut self, watch: &mut ApiWatch<SliceMetadata>) -> Result<Option<()>, ApiError> {
        loop {
            let now = Instant::now();
            let quiet = self.quiet_until.filter(|deadline| *deadline > now);
            let due = match quiet {
                Some(deadline) => self.due.map(|due| due.max(deadline)),
                None => self.due,
            };
            let listens = quiet.is_none();
            let publisher = &mut *self.publisher;
            let event = tokio::select! {
                changed = publisher.snapshots.changed(), if listens => return Ok(changed.ok()),
                changed = publisher.dra_classes.changed(), if listens => return Ok(changed.ok()),
                () = sleep_until(due) => {
                    self.due = None;
                    self.foreign_due = None;
                    return Ok(Some(()));
                }
                event = watch.next() => event,
            };
            match event {
                Ok(Some(event)) => {
                    if self.server.apply_event(event) {
                        self.handle_foreign_change();
                    }
                    continue;
                }
                Ok(None) => {}
                Err(error) if error.is_gone() => return Err(error),
                Err(error) => {
                    tracing::debug!(error = %ErrorChain(&error), "the watch broke; it begins anew");
                }
            }
            self.watch_again(watch).await?;
            self.probe_again().await;
        }
    }

    /// The watch goes on where it has ended. A server that restarts is not asked for all slices again.
    async fn watch_again(&self, watch: &mut ApiWatch<SliceMetadata>) -> Result<(), ApiError> {
        let node = &self.publisher.node;
        let mut backoff = Backoff::default();
        for _ in 1..MAX_TRIES {
            sleep(backoff.next()).await;
            match self.api.watch_slices(node, watch.version()).await {
                Ok(again) => {
                    *watch = again;
                    return Ok(());
                }
                Err(error) if error.is_gone() => return Err(error),
                Err(error) => tracing::debug!(error = %ErrorChain(&error), "no watch"),
            }
        }
        sleep(backoff.next()).await;
        *watch = self.api.watch_slices(node, watch.version()).await?;
        Ok(())
    }

    /// Somebody else has changed or deleted a slice of ours: kubelet, at its start, or another instance of this
    /// driver. Two that undo each other's work have to tire.
    fn handle_foreign_change(&mut self) {
        self.uid = None;
        let is_quiet = self.foreign_since.is_none_or(|since| since.elapsed() > QUIET);
        if is_quiet {
            self.foreign_backoff = Backoff::default();
        }
        self.foreign_since = Some(Instant::now());
        // One look is enough for all that kubelet deletes at once. What is due in minutes does not count.
        if self.foreign_due.is_none() {
            let wait = self.foreign_backoff.next();
            self.foreign_due = Some(Instant::now() + wait);
            self.schedule(wait);
        }
    }

    fn schedule(&mut self, wait: Duration) {
        let due = Instant::now() + wait;
        self.due = Some(self.due.map_or(due, |other| other.min(due)));
    }

    async fn publish_until_done(&mut self) {
        loop {
            match self.publish_round().await {
                Ok(RoundResult::Done) => {
                    self.again = Backoff::default();
                    self.last_message.clear();
                    return;
                }
                Ok(RoundResult::Changed) => {}
                Err(error) => {
                    let wait = self.again.next();
                    let alone = error.retry_after();
                    self.quiet_until = alone.map(|alone| Instant::now() + alone);
                    self.schedule(wait.max(alone.unwrap_or_default()));
                    let text = ErrorChain(&error).to_string();
                    if self.last_message.is_new(&text) && error.no_access_reason().is_none() {
                        tracing::warn!(error = %text, "a ResourceSlice is not as it should be; trying again");
                    }
                    return;
                }
            }
        }
    }

    async fn publish_round(&mut self) -> Result<RoundResult, ApiError> {
        let snapshot = Arc::clone(&self.publisher.snapshots.borrow_and_update());
        let dra_classes = self.publisher.dra_classes.borrow_and_update().clone();
        let node = self.publisher.node.clone();
        let uid = self.uid().await?;
        let input = SliceInput {
            node: &node,
            uid: &uid,
            names: &snapshot.names,
            devices: &snapshot.devices,
            settings: &snapshot.config.kubernetes,
        };
        // A class that is written later keeps its number.
        let mut published = BTreeMap::from(Class::ALL.map(|class| (class, 0)));
        let mut left_out = BTreeSet::new();
        let mut wanted_names = BTreeSet::new();
        let mut refused = Ok(RoundResult::Done);
        for class in dra_classes.classes.iter().copied() {
            let Some(features) = self.writable_features(class, input).await? else {
                left_out.insert(format!(
                    "class {class} is not offered: this cluster has lost consumable capacity, and claims hold devices that are now one a slot; end their pods"
                ));
                continue;
            };
            let pool = SlicePool::new(input, class, features);
            left_out.extend(pool.left_out().iter().cloned());
            let slices = pool_slices(&pool).await;
            wanted_names.extend(slices.iter().map(|(name, _)| name.clone()));
            if let Some(generation) = self.server.generation(pool.name(), &slices) {
                if let Some(wait) = self.write_delay(class) {
                    self.schedule(wait);
                    published.remove(&class);
                    continue;
                }
                match self.write(&pool, generation).await {
                    Ok(RoundResult::Done) => self.written.insert(class, Instant::now()),
                    // What it refuses of one class it may take of others.
                    Err(error) if error.is_refusal() => {
                        refused = refused.and(Err(error));
                        published.remove(&class);
                        continue;
                    }
                    other => return other,
                };
            }
            published.insert(class, pool.devices());
        }
        let undecided = &dra_classes.undecided;
        let is_left = |pool: Option<&str>| match pool {
            // A pool counts its slices, so one that is written later keeps them all.
            Some(pool) => node
                .parse_pool(pool)
                .is_some_and(|class| undecided.contains(&class) || !published.contains_key(&class)),
            None => !undecided.is_empty(),
        };
        for stray in self.server.stray_slices(&wanted_names, is_left) {
            self.api.delete_slice(&stray).await?;
            self.server.remove(&stray);
            tracing::info!(slice = stray, "ResourceSlice deleted");
        }
        for reason in left_out.difference(&self.left_out) {
            tracing::warn!(%reason, "left out");
        }
        self.left_out = left_out;
        let metrics = &self.publisher.metrics;
        metrics.set_published(self.server.len(), &published);
        refused
    }

    /// How long until the slices of a class may be written; none if they may now.
    fn write_delay(&self, class: Class) -> Option<Duration> {
        let written = self.written.get(&class)?.elapsed();
        let interval = self.publisher.write_interval;
        interval.checked_sub(written).filter(|remaining| !remaining.is_zero())
    }

    /// With which features the devices of a class are written; none if they cannot be written at all now. Whether
    /// slots are devices stays as it is found while a claim holds one of them.
    async fn writable_features(
        &mut self,
        class: Class,
        input: SliceInput<'_>,
    ) -> Result<Option<DraFeatures>, ApiError> {
        let pool = &input.node.pool_name(class);
        let features = self.features;
        let wants_numbered = !features.sharing;
        let now = Instant::now();
        let waiting = self.waiting.get(&class).copied();
        let is_numbered = match (waiting, self.server.has_slot_devices(pool)) {
            (Some(waiting), _) => waiting.is_numbered,
            (None, Some(is_numbered)) => is_numbered,
            (None, None) => {
                let held = self.claims_hold_slots(class, input).await?;
                held.unwrap_or(wants_numbered)
            }
        };
        if is_numbered == wants_numbered {
            self.waiting.remove(&class);
            return Ok(Some(features));
        }
        if waiting.is_none_or(|waiting| waiting.deadline <= now) {
            let claimed = self.api.list_claimed_devices(input.node).await?;
            let claimed = claimed.get(&class).map_or(0, BTreeSet::len);
            if claimed == 0 {
                self.waiting.remove(&class);
                return Ok(Some(features));
            }
            tracing::info!(%class, claimed, "devices keep their names until no claim holds one");
            let deadline = now + HELD_INTERVAL;
            self.waiting.insert(class, ClassWait { is_numbered, deadline });
        }
        if let Some(waiting) = self.waiting.get(&class) {
            self.schedule(waiting.deadline.saturating_duration_since(now));
        }
        // Devices that claims share would be given to one at a time now; slots that were devices go on.
        let numbered = DraFeatures { sharing: false, ..features };
        Ok(is_numbered.then_some(numbered))
    }

    /// Whether claims hold slots of a class as devices; none if they hold nothing of devices that are shared. Kubelet
    /// deletes the slices of a node that starts, and its claims stay. What is held later has the names of our slices.
    async fn claims_hold_slots(
        &mut self,
        class: Class,
        input: SliceInput<'_>,
    ) -> Result<Option<bool>, ApiError> {
        let is_shared =
            |device: &HostDevice| device.class == class && device.sharing != Sharing::Exclusive;
        if !input.devices.iter().any(is_shared) {
            return Ok(None);
        }
        let claimed = match &mut self.claimed {
            Some(claimed) => claimed,
            None => self.claimed.insert(self.api.list_claimed_devices(input.node).await?),
        };
        let SliceInput { names, devices: offers, node, .. } = input;
        let pool = node.pool_name(class);
        let is_slot = |device: String| match parse_slot(&device) {
            Some(_) => Some(true),
            None => names
                .find_device(offers, node, &pool, &device)
                .filter(|host_device| is_shared(host_device))
                .map(|_| false),
        };
        let held = claimed.remove(&class).unwrap_or_default();
        Ok(held.into_iter().filter_map(is_slot).max())
    }

    /// Writes all slices of a pool.
    async fn write(
        &mut self,
        pool: &SlicePool<'_>,
        generation: i64,
    ) -> Result<RoundResult, ApiError> {
        let mut writing: JoinSet<Result<WrittenSlice, ApiError>> = JoinSet::new();
        let mut remaining = 0..pool.slices();
        let mut lost = DraFeatures::NONE;
        let mut is_changed = false;
        loop {
            while writing.len() < MAX_PARALLEL {
                let Some(index) = remaining.next() else { break };
                writing.spawn(apply(self.api.clone(), pool.slice(index, generation)));
            }
            // A write that panicked would end the program in a release build.
            let Some(Ok(written)) = writing.join_next().await else {
                break;
            };
            let written = written?;
            self.server.record(written.name, written.summary);
            lost = written.lost.union(lost);
            is_changed |= written.is_changed;
        }
        tracing::info!(
            pool = pool.name(),
            generation,
            slices = pool.slices(),
            devices = pool.devices(),
            "ResourceSlices written"
        );
        if is_changed {
            tracing::warn!(
                pool = pool.name(),
                "the API server changes what is written; look at its admission webhooks"
            );
        }
        if lost == DraFeatures::NONE {
            return Ok(RoundResult::Done);
        }
        tracing::warn!(%lost, "the API server no longer keeps all of a ResourceSlice; it is written without");
        self.features = self.features.without(lost);
        Ok(RoundResult::Changed)
    }
}

/// The names and contents of a pool's slices. Each is made and given back, and kubelet is answered between two.
async fn pool_slices(pool: &SlicePool<'_>) -> Vec<(String, String)> {
    let mut slices = Vec::new();
    for index in 0..pool.slices() {
        let fingerprint = fingerprint(&pool.slice(index, 0));
        slices.push((pool.slice_name(index), fingerprint));
        yield_now().await;
    }
    slices
}

async fn apply(api: Api, slice: ResourceSlice) -> Result<WrittenSlice, ApiError> {
    let stored = api.apply_slice(&slice, WriteMode::Real).await?;
    let (lost, is_changed) = lost_features(&slice.spec, &stored.spec);
    Ok(WrittenSlice {
        name: slice_name(&slice),
        summary: SliceSummary {
            version: stored.metadata.resource_version.unwrap_or_default(),
            ..SliceSummary::from_slice(&slice)
        },
        lost,
        is_changed,
    })
}

fn slice_name(slice: &ResourceSlice) -> String {
    slice.metadata.name.clone().unwrap_or_default()
}
