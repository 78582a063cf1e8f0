//! A session: from listing the slices to the loss of their watch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube_client::core::PartialObjectMeta;
use onload_agent::{Backoff, LastMessage};
use onload_core::class::Class;
use onload_host::offers::{HostDevice, Sharing};
use onload_sys::text::ErrorChain;
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::server::ServerSlices;
use crate::dra::DraClasses;
use crate::dra::api::{Api, ApiError, ApiWatch, WriteMode};
use crate::dra::classes::DeviceClasses;
use crate::dra::slices::{
    DraFeatures, SliceInput, SlicePool, SliceSummary, fingerprint, lost_features, probe,
};
use crate::names::{NodeName, find_device, parse_slot};
use crate::observe::metrics::DaemonMetrics;
use crate::serve::sleep_until;
use crate::snapshot::KubernetesSnapshot;

/// Interval for checking whether claims still hold devices under names that must change. The server lists all claims
/// for this.
const HELD_INTERVAL: Duration = Duration::from_secs(300);
/// Minimum interval between writes of a pool's slices, since each write is an event for every scheduler.
pub const WRITE_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Publisher {
    pub api: Api,
    pub node: NodeName,
    pub snapshots: watch::Receiver<Arc<KubernetesSnapshot>>,
    pub registered: watch::Receiver<bool>,
    pub dra_classes: watch::Receiver<DraClasses>,
    /// The DeviceClasses. A server that rejects listing them has granted this program no permissions.
    pub device_classes: watch::Receiver<DeviceClasses>,
    pub metrics: Arc<DaemonMetrics>,
    /// [`WRITE_INTERVAL`].
    pub write_interval: Duration,
    /// Whether the program ends. Its slices stay for a successor, which may already run. Without one, kubelet deletes
    /// them.
    pub stop: watch::Receiver<bool>,
}

/// The data of a slice in the watch.
type SliceMetadata = PartialObjectMeta<ResourceSlice>;

pub(super) struct PublishSession<'p> {
    publisher: &'p mut Publisher,
    /// The uid of the Node; `None` if it must be read. The garbage collector deletes the slices of a deleted Node, and
    /// a Node that is registered again has another uid.
    uid: Option<String>,
    server: ServerSlices,
    features: DraFeatures,
    /// Classes whose devices keep names that do not match the server's features, because claims hold some of them.
    waiting: BTreeMap<Class, ClassWait>,
    /// The devices that claims hold, read when the first class without slices is handled. Handling a class removes its
    /// entry.
    claimed: Option<BTreeMap<Class, BTreeSet<String>>>,
    written: BTreeMap<Class, Instant>,
    /// The time of the next check without an event.
    due: Option<Instant>,
    /// Back-off against another client that writes our slices too.
    foreign_backoff: Backoff,
    foreign_since: Option<Instant>,
    /// The time of the next check after a foreign change.
    foreign_due: Option<Instant>,
    again: Backoff,
    /// End of the server's Retry-After, during which nothing is sent.
    quiet_until: Option<Instant>,
    left_out: BTreeSet<String>,
    last_message: LastMessage,
}

#[derive(Clone, Copy, Debug)]
struct ClassWait {
    /// Whether slots are devices in the meantime.
    is_numbered: bool,
    deadline: Instant,
}

enum RoundResult {
    Done,
    Changed,
}

impl<'p> PublishSession<'p> {
    pub(super) fn new(publisher: &'p mut Publisher) -> PublishSession<'p> {
        PublishSession {
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

    /// Runs until the thread that surveys the host has ended.
    pub(super) async fn run(mut self) -> Result<(), ApiError> {
        let node = self.publisher.node.clone();
        self.features = self.probe_features().await?;
        let (features, missing) = (self.features, DraFeatures::ALL.without(self.features));
        tracing::info!(%features, %missing, "features of the API server for ResourceSlices");
        let server = &mut self.server;
        let each = |slice: ResourceSlice| {
            server.record(slice_name(&slice), SliceSummary::from_slice(&slice));
        };
        let version = self.publisher.api.visit_slices(&node, each).await?;
        let mut watch = self.publisher.api.watch_slices(&node, &version).await?;
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
        let uid = self.publisher.api.node_uid(node).await?.with_context(|| {
            format!(
                "publishing devices: Node {node} not found; set --node-name to the metadata.name \
                 of this node"
            )
        })?;
        self.uid = Some(uid.clone());
        Ok(uid)
    }

    /// Determines the server's features. This happens before anything is written, since no device may be offered in two
    /// ways even for a moment.
    async fn probe_features(&mut self) -> Result<DraFeatures, ApiError> {
        let uid = self.uid().await?;
        let slice = probe(&self.publisher.node, &uid);
        let stored = self.publisher.api.apply_slice(&slice, WriteMode::Dry).await?;
        let (lost, _) = lost_features(&slice.spec, &stored.spec);
        Ok(DraFeatures::ALL.without(lost))
    }

    /// Probes the features again, since an updated server may have more. This happens when a watch is started again,
    /// normally at most every half hour. Lost features show when a slice is written.
    async fn probe_again(&mut self) -> Result<(), ApiError> {
        if self.quiet_until.is_some_and(|deadline| deadline > Instant::now()) {
            return Ok(());
        }
        let gained = self.probe_features().await?.without(self.features);
        if gained != DraFeatures::NONE {
            tracing::info!(%gained, "the API server now supports more features for ResourceSlices");
            self.features = self.features.union(gained);
            self.claimed = None;
            self.schedule(Duration::ZERO);
        }
        Ok(())
    }

    /// Waits until there may be something to do. Returns `None` if the thread that surveys the host has ended.
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
                    tracing::debug!(error = %ErrorChain(&error), "the watch was interrupted; \
                        starting it again");
                }
            }
            // Continues where the watch has ended, so that not all slices are listed again.
            sleep(Backoff::default().next()).await;
            let node = &self.publisher.node;
            *watch = self.publisher.api.watch_slices(node, watch.version()).await?;
            self.probe_again().await?;
        }
    }

    /// Handles a slice that another client changed or deleted: kubelet at its start, or another instance of this
    /// driver. Waits longer each time, since two instances may undo each other's changes.
    fn handle_foreign_change(&mut self) {
        self.uid = None;
        if let Some(since) = self.foreign_since.replace(Instant::now()) {
            self.foreign_backoff.record_success(since.elapsed());
        }
        // A single check covers all slices that kubelet deletes at once, even if another check is due in some minutes.
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
                    let message = "a ResourceSlice differs from what was written; trying again";
                    error.warn_once(&mut self.last_message, message);
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
            devices: &snapshot.devices,
            settings: &snapshot.config.kubernetes,
        };
        // A class that is written later keeps its present number.
        let mut published = BTreeMap::from(Class::ALL.map(|class| (class, 0)));
        let mut left_out = BTreeSet::new();
        let mut wanted_names = BTreeSet::new();
        let mut refused = Ok(RoundResult::Done);
        for class in dra_classes.classes.iter().copied() {
            let Some(features) = self.writable_features(class, input).await? else {
                left_out.insert(format!(
                    "class {class} is not offered: this cluster no longer supports consumable \
                     capacity, but claims hold shared devices; delete their pods"
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
                    // A rejection concerns one class; the server may accept the others.
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
        let strays = self.server.stray_slices(&wanted_names, |pool| match pool {
            // The slices of a pool count together, so a pool that is written later keeps all of them.
            Some(pool) => node
                .parse_pool(pool)
                .is_some_and(|class| undecided.contains(&class) || !published.contains_key(&class)),
            None => !undecided.is_empty(),
        });
        for stray in strays {
            self.publisher.api.delete_slice(&stray).await?;
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

    /// Returns how long until the slices of a class may be written. `None` if they may be written now.
    fn write_delay(&self, class: Class) -> Option<Duration> {
        let written = self.written.get(&class)?.elapsed();
        let interval = self.publisher.write_interval;
        interval.checked_sub(written).filter(|remaining| !remaining.is_zero())
    }

    /// Returns the features with which the devices of a class are written. `None` if they cannot be written now. While
    /// a claim holds a device, slots remain devices, or not, as published.
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
            let by_class = self.publisher.api.list_claimed_devices(input.node).await?;
            let claimed = by_class.get(&class).map_or(0, BTreeSet::len);
            if claimed == 0 {
                self.waiting.remove(&class);
                return Ok(Some(features));
            }
            tracing::info!(%class, claimed, "devices keep their names while claims hold them");
            let deadline = now + HELD_INTERVAL;
            self.waiting.insert(class, ClassWait { is_numbered, deadline });
        }
        if let Some(waiting) = self.waiting.get(&class) {
            self.schedule(waiting.deadline.saturating_duration_since(now));
        }
        // Without sharing, devices that claims share would be exclusive. Slots that were devices remain.
        let numbered = DraFeatures { sharing: false, ..features };
        Ok(is_numbered.then_some(numbered))
    }

    /// Returns whether claims hold slots of a class as devices, or `None` if they hold no shared device. Needed because
    /// kubelet deletes the slices of its node at its start while claims remain. Later allocations use the names in our
    /// slices.
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
            None => self.claimed.insert(self.publisher.api.list_claimed_devices(input.node).await?),
        };
        let pool = input.node.pool_name(class);
        let mut has_shared = false;
        for device in claimed.remove(&class).unwrap_or_default() {
            if parse_slot(&device).is_some() {
                return Ok(Some(true));
            }
            let held = find_device(input.devices, input.node, &pool, &device);
            has_shared |= held.is_some_and(is_shared);
        }
        Ok(has_shared.then_some(false))
    }

    /// Writes all slices of a pool.
    async fn write(
        &mut self,
        pool: &SlicePool<'_>,
        generation: i64,
    ) -> Result<RoundResult, ApiError> {
        let mut lost = DraFeatures::NONE;
        let mut is_changed = false;
        for index in 0..pool.slices() {
            let slice = pool.slice(index, generation);
            let stored = self.publisher.api.apply_slice(&slice, WriteMode::Real).await?;
            let (lost_here, is_changed_here) = lost_features(&slice.spec, &stored.spec);
            lost = lost_here.union(lost);
            is_changed |= is_changed_here;
            let version = stored.metadata.resource_version.unwrap_or_default();
            let summary = SliceSummary { version, ..SliceSummary::from_slice(&slice) };
            self.server.record(slice_name(&slice), summary);
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
                "the API server changes what is written; check its admission webhooks"
            );
        }
        if lost == DraFeatures::NONE {
            return Ok(RoundResult::Done);
        }
        tracing::warn!(%lost, "the API server no longer stores all fields of a ResourceSlice; \
            writing it without them");
        self.features = self.features.without(lost);
        Ok(RoundResult::Changed)
    }
}

/// Returns the names and fingerprints of a pool's slices. Builds one slice at a time to save memory, and lets other tasks
/// answer kubelet in between.
async fn pool_slices(pool: &SlicePool<'_>) -> Vec<(String, String)> {
    let mut slices = Vec::new();
    for index in 0..pool.slices() {
        let fingerprint = fingerprint(&pool.slice(index, 0));
        slices.push((pool.slice_name(index), fingerprint));
        yield_now().await;
    }
    slices
}

fn slice_name(slice: &ResourceSlice) -> String {
    slice.metadata.name.clone().unwrap_or_default()
}
