//! Which of the two interfaces of Kubernetes offers a class: the device plugin, or DRA. Never both.
//!
//! By `[kubernetes] offer = "auto"` it is DRA where all pods go on as before: kubelet knows the driver, the server kept
//! the extendedResourceName of our DeviceClass and has one for each resource of the operator's, and [`kubelet`] has
//! nothing against it. A class that changes is offered by nobody for a moment, and stays where it is while a pod of this
//! node has a device of it.
//!
//! [`kubelet`]: super::kubelet

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceSlice;
use onload_agent::{Backoff, LastMessage};
use onload_core::class::Class;
use onload_core::kubernetes_settings::OfferMethod;
use onload_sys::text::ErrorChain;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::api::{Api, ApiError, pools_of};
use super::choice::{Choice, Moment, Way, Why, classes_of, missing, say};
use super::classes::{DeviceClasses, is_refused, send, watch_classes};
use super::kubelet::{Findings, KubeletFiles, against};
use super::prepare::{has_claims, may_have_claims};
use super::resource_names::is_offered;
use super::{DraClasses, DraRegistration};
use crate::names::NodeName;
use crate::serve::sleep_until;
use crate::snapshot::KubernetesSnapshot;

/// How long is waited for kubelet to ask who the driver is, before the device plugin offers what is "auto". A pod that
/// gets a device from the device plugin meanwhile keeps DRA away from this node, and kubelet may be slow: it waits up to
/// two minutes before it tries a socket again. One without DRA says so at once.
pub const GRACE: Duration = Duration::from_secs(300);
/// How long a class is offered by nobody when it changes: until kubelet and scheduler have heard of it.
pub const SETTLE: Duration = Duration::from_secs(10);
/// How often it is asked whether the last pod has ended that has a device of a class which is to change.
const HELD: Duration = Duration::from_secs(60);
/// How often a server is asked for its DeviceClasses that refuses to tell: packaging/kubernetes/dra may come; and for
/// the version of a kubelet that was too old.
pub const REFUSED: Duration = Duration::from_secs(300);

/// The shortest time until a class that nobody offers is looked at again.
const AGAIN: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct Engine {
    pub api: Api,
    pub node: NodeName,
    pub snapshots: watch::Receiver<Arc<KubernetesSnapshot>>,
    pub registered: watch::Receiver<DraRegistration>,
    pub kubelet: KubeletFiles,
    pub device_classes: watch::Sender<DeviceClasses>,
    /// Where the specifications of claims are.
    pub spec_dir: PathBuf,
    /// [`GRACE`].
    pub grace: Duration,
    /// [`SETTLE`].
    pub settle: Duration,
    /// [`REFUSED`].
    pub refused: Duration,
    /// Whether a class was offered by DRA since the start, on a server that has DRA; false there.
    pub has_offered: bool,
}

/// The classes of which pods of the node have devices, or may get some.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Held {
    by_plugin: BTreeSet<Class>,
    by_claims: BTreeSet<Class>,
    /// Those whose slices the server still has: the scheduler may give a device of them to a claim.
    by_slices: BTreeSet<Class>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    way: Way,
    /// Since when nobody offers it; none at the start.
    since: Option<Instant>,
}

/// What the version of a kubelet has against DRA.
#[derive(Debug)]
struct Version {
    pid: u32,
    against: Option<Findings>,
    /// When it is asked for again; none where nothing is against DRA.
    until: Option<Instant>,
}

fn way_of(states: &BTreeMap<Class, State>, class: Class) -> Way {
    states.get(&class).map_or(Way::Nobody, |state| state.way)
}

/// What becomes of a class that is to be offered in one way. Before anybody offers it, those who had it have to
/// be gone; it is looked at again after it was taken away, since a pod may have been quicker.
fn step(
    state: State,
    wanted: Way,
    held: &Held,
    class: Class,
    now: Instant,
    settle: Duration,
) -> State {
    let held_by = |way| match way {
        Way::Plugin => held.by_plugin.contains(&class),
        Way::Dra => held.by_claims.contains(&class),
        Way::Nobody => false,
    };
    let other = match wanted {
        Way::Plugin => Way::Dra,
        Way::Dra | Way::Nobody => Way::Plugin,
    };
    let offered = |way| State { way, since: None };
    match state.way {
        way if way == wanted => state,
        Way::Nobody if held_by(other) => offered(other),
        Way::Nobody if wanted == Way::Plugin && held.by_slices.contains(&class) => state,
        Way::Nobody if state.since.is_some_and(|since| now < since + settle) => state,
        Way::Nobody => offered(wanted),
        _ if held_by(state.way) => state,
        _ => State { way: Way::Nobody, since: Some(now) },
    }
}

impl Engine {
    /// Until the program ends.
    pub async fn run(
        mut self,
        by_dra: watch::Sender<DraClasses>,
        by_plugin: watch::Sender<BTreeSet<Class>>,
    ) {
        let begun = Instant::now();
        let mut states: BTreeMap<Class, State> = BTreeMap::new();
        let mut told = self.device_classes.subscribe();
        let mut telling = JoinSet::new();
        let mut backoff = Backoff::default();
        let mut said = LastMessage::default();
        let mut said_why = BTreeMap::new();
        let mut version = None;
        loop {
            let interfaces = interfaces(&self.snapshots.borrow());
            let is_by_plugin = |interface: &OfferMethod| *interface == OfferMethod::DevicePlugin;
            if telling.is_empty() && !interfaces.iter().all(is_by_plugin) {
                let to = self.device_classes.clone();
                telling.spawn(watch_classes(self.api.clone(), self.refused, to));
            }
            let registered = *self.registered.borrow_and_update();
            let kept = told.borrow_and_update().clone();
            let left = self.grace.saturating_sub(begun.elapsed());
            let round =
                self.round(&mut states, &kept, registered, left, &mut said_why, &mut version);
            let round = round.await;
            let there = classes(&self.snapshots.borrow());
            let has_dra = states.values().any(|state| state.way == Way::Dra);
            self.has_offered |= has_dra && matches!(kept, DeviceClasses::Classes(_));
            let of = |way: Way| -> BTreeSet<Class> {
                let of_way = states.iter().filter(|(_, state)| state.way == way);
                of_way.map(|(class, _)| *class).collect()
            };
            let undecided = there.into_iter();
            let offered = DraClasses {
                classes: of(Way::Dra),
                undecided: undecided.filter(|class| !states.contains_key(class)).collect(),
            };
            send(&by_dra, offered);
            send(&by_plugin, of(Way::Plugin));
            let next = match round {
                Ok(next) => {
                    backoff = Backoff::default();
                    said.clear();
                    next
                }
                Err(error) => {
                    let text = ErrorChain(&error).to_string();
                    if said.is_new(&text) {
                        tracing::warn!(error = %text, "who offers which class is not decided; trying again");
                    }
                    Some(backoff.next().max(error.retry_after().unwrap_or_default()))
                }
            };
            if !self.is_changed(next, &mut told).await {
                return;
            }
        }
    }

    /// Waits until there may be something to decide; false if nobody looks at the host any more.
    async fn is_changed(
        &mut self,
        next: Option<Duration>,
        told: &mut watch::Receiver<DeviceClasses>,
    ) -> bool {
        let until = next.map(|next| Instant::now() + next);
        tokio::select! {
            changed = self.snapshots.changed() => changed.is_ok(),
            changed = self.registered.changed() => changed.is_ok(),
            Ok(()) = told.changed() => true,
            () = sleep_until(until) => true,
        }
    }

    /// Decides what can be decided now; when it is to be looked at again without being told.
    async fn round(
        &mut self,
        states: &mut BTreeMap<Class, State>,
        told: &DeviceClasses,
        registered: DraRegistration,
        grace_left: Duration,
        said: &mut BTreeMap<Why, Vec<Class>>,
        version: &mut Option<Version>,
    ) -> Result<Option<Duration>, ApiError> {
        let snapshot = Arc::clone(&self.snapshots.borrow_and_update());
        let mut next = None;
        let mut soon = |wait: Duration| {
            next = Some(next.map_or(wait, |other: Duration| other.min(wait)));
        };
        begin_as_told(&snapshot, states, has_claims(&self.spec_dir));
        let findings = self.findings(&snapshot, told, registered, version).await?;
        if let Some(until) = version.as_ref().and_then(|version| version.until) {
            soon(until.saturating_duration_since(Instant::now()));
        }
        let moment = Moment {
            snapshot: &snapshot,
            told,
            findings: &findings,
            registered,
            is_late: grace_left.is_zero(),
        };
        let mut wanted: Vec<(Class, Way)> = Vec::new();
        let mut why: BTreeMap<Why, Vec<Class>> = BTreeMap::new();
        for class in classes(&snapshot) {
            let now = way_of(states, class);
            let way = match snapshot.config.kubernetes.offer.method(class) {
                OfferMethod::DevicePlugin => Way::Plugin,
                OfferMethod::Dra => {
                    if let Some(missing) = missing(&snapshot, told, class) {
                        why.entry(missing).or_default().push(class);
                    }
                    Way::Dra
                }
                // kubelet starts anew; what was said of the class holds.
                OfferMethod::Auto if now != Way::Nobody && !registered.now => {
                    let before = said.iter().find(|(_, of)| of.contains(&class));
                    if let Some((before, _)) = before {
                        why.entry(before.clone()).or_default().push(class);
                    }
                    now
                }
                OfferMethod::Auto => match told {
                    // Whatever the server says of DeviceClasses.
                    DeviceClasses::Nothing
                        if now == Way::Nobody && self.was_plugins(&snapshot, class) =>
                    {
                        Way::Plugin
                    }
                    DeviceClasses::Nothing => continue,
                    DeviceClasses::Classes(_) if told.has_class(class) => {
                        match moment.choose(class, now) {
                            Choice::Way(way) => way,
                            Choice::Plugin(reason) => {
                                why.entry(reason).or_default().push(class);
                                Way::Plugin
                            }
                            Choice::Wait => {
                                // One that knows the driver and does not listen is starting.
                                soon(if registered.now { AGAIN } else { grace_left });
                                continue;
                            }
                        }
                    }
                    DeviceClasses::Refused if now != Way::Nobody => now,
                    DeviceClasses::Refused | DeviceClasses::Classes(_) => Way::Plugin,
                },
            };
            wanted.push((class, way));
        }
        say(&why, said, &snapshot);
        wanted.retain(|(class, way)| way_of(states, *class) != *way);
        if wanted.is_empty() {
            return Ok(next);
        }
        let held = match self.held(&snapshot, states, &wanted).await {
            Err(error) if !is_refused(&error) => {
                self.begin_as_before(&snapshot, states, &wanted);
                return Err(error);
            }
            held => held?,
        };
        for (class, way) in wanted {
            let before = states.get(&class).copied().unwrap_or_default();
            let after = step(before, way, &held, class, Instant::now(), self.settle);
            if after.way != before.way {
                tracing::info!(%class, by = %after.way, "who offers a class");
            }
            states.insert(class, after);
            match after.way {
                done if done == way => {}
                Way::Nobody => soon(self.settle.max(AGAIN)),
                Way::Plugin | Way::Dra => soon(HELD),
            }
        }
        Ok(next)
    }

    /// What kubelet has against DRA. Where its version decides, the server is asked for it: once, but for one that is too
    /// old, since a kubelet that was updated tells it only after it has started.
    async fn findings(
        &self,
        snapshot: &KubernetesSnapshot,
        told: &DeviceClasses,
        registered: DraRegistration,
        version: &mut Option<Version>,
    ) -> Result<Findings, ApiError> {
        if !interfaces(snapshot).contains(&OfferMethod::Auto) {
            return Ok(Findings::Absent);
        }
        let (findings, kubelet) = self.kubelet.look().await;
        let may_be_dra =
            registered.now && classes(snapshot).into_iter().any(|class| told.has_class(class));
        let Some(pid) = kubelet.filter(|_| may_be_dra) else {
            *version = None;
            return Ok(findings);
        };
        let holds = |version: &Version| {
            version.pid == pid && version.until.is_none_or(|until| Instant::now() < until)
        };
        let known = match version.take().filter(holds) {
            Some(known) => known,
            None => {
                let against = against(&self.api.kubelet_version(&self.node).await?);
                let until = against.is_some().then(|| Instant::now() + self.refused);
                Version { pid, against, until }
            }
        };
        let against = version.insert(known).against.clone();
        Ok(against.unwrap_or(findings))
    }

    /// Whether kubelet remembers that a pod had a device of a class from the device plugin, and no claim may have one.
    fn was_plugins(&self, snapshot: &KubernetesSnapshot, class: Class) -> bool {
        let remembered = self.kubelet.remembered();
        let mut names = remembered.iter();
        names.any(|name| classes_of(name, snapshot).contains(&class))
            && !may_have_claims(&self.spec_dir, &self.node, class)
    }

    /// At the start, where the server cannot be asked, the device plugin has again what it had: after five minutes
    /// without it, kubelet starts no container of its pods again.
    fn begin_as_before(
        &self,
        snapshot: &KubernetesSnapshot,
        states: &mut BTreeMap<Class, State>,
        wanted: &[(Class, Way)],
    ) {
        for (class, way) in wanted.iter().copied() {
            let is_new = way == Way::Plugin && !states.contains_key(&class);
            if is_new && self.was_plugins(snapshot, class) {
                tracing::info!(%class, by = %way, "who offers a class, as before; the API server cannot be asked");
                states.insert(class, State { way, since: None });
            }
        }
    }

    /// What is to be known of the classes that are to change.
    async fn held(
        &self,
        snapshot: &KubernetesSnapshot,
        states: &BTreeMap<Class, State>,
        wanted: &[(Class, Way)],
    ) -> Result<Held, ApiError> {
        let mut held = self.held_by_pods(snapshot).await?;
        let may_be_published = |(class, way): &(Class, Way)| {
            *way == Way::Plugin && way_of(states, *class) == Way::Nobody
        };
        if wanted.iter().any(may_be_published) {
            held.by_slices = self.published().await?;
        }
        Ok(held)
    }

    async fn held_by_pods(&self, snapshot: &KubernetesSnapshot) -> Result<Held, ApiError> {
        let mut held = Held::default();
        let mut claims: BTreeSet<(String, String)> = BTreeSet::new();
        let each = |pod: Pod| {
            if !is_over(&pod) {
                held.by_plugin.extend(by_plugin(&pod, snapshot));
                claims.extend(claims_of(&pod));
            }
        };
        match self.api.visit_pods(&self.node, each).await {
            Err(error) if is_refused(&error) => {
                self.refuse_traces(error).await?;
                return Ok(Held::default());
            }
            listed => listed?,
        }
        for (namespace, name) in claims {
            let claim = match self.api.get_claim(&namespace, &name).await {
                // Without v1 of claims this driver has served none.
                Err(error) if is_refused(&error) => {
                    self.refuse_traces(error).await?;
                    None
                }
                claim => claim?,
            };
            let pools = claim.iter().flat_map(pools_of);
            held.by_claims.extend(pools.filter_map(|pool| self.node.parse_pool(pool)));
        }
        Ok(held)
    }

    /// The classes whose slices the server has. Where nobody may list slices, and nobody ever could, none were written.
    async fn published(&self) -> Result<BTreeSet<Class>, ApiError> {
        let mut classes = BTreeSet::new();
        let each =
            |slice: ResourceSlice| classes.extend(self.node.parse_pool(&slice.spec.pool.name));
        match self.api.visit_slices(&self.node, each).await {
            // Those that this program has written may be there still, also where its rights were taken away.
            Err(error) if is_refused(&error) && self.has_offered => return Err(error),
            Err(error) if is_refused(&error) => self.refuse_claims(error)?,
            listed => drop(listed?),
        }
        Ok(classes)
    }

    /// Who cannot see what is held takes it that nothing is only where this driver has left no trace.
    async fn refuse_traces(&self, refused: ApiError) -> Result<(), ApiError> {
        if self.published().await?.is_empty() { self.refuse_claims(refused) } else { Err(refused) }
    }

    fn refuse_claims(&self, refused: ApiError) -> Result<(), ApiError> {
        if has_claims(&self.spec_dir) {
            return Err(refused);
        }
        Ok(())
    }
}

/// At the start what the operator says is done, whoever can be asked. Where pods have claims it is asked which classes
/// they are of before the device plugin offers them.
fn begin_as_told(
    snapshot: &KubernetesSnapshot,
    states: &mut BTreeMap<Class, State>,
    has_claims: bool,
) {
    for class in classes(snapshot) {
        let way = match snapshot.config.kubernetes.offer.method(class) {
            OfferMethod::DevicePlugin if !has_claims => Way::Plugin,
            OfferMethod::Dra => Way::Dra,
            OfferMethod::DevicePlugin | OfferMethod::Auto => continue,
        };
        states.entry(class).or_insert(State { way, since: None });
    }
}

/// The interfaces by which they are to be offered.
fn interfaces(snapshot: &KubernetesSnapshot) -> Vec<OfferMethod> {
    let classes = classes(snapshot).into_iter();
    classes.map(|class| snapshot.config.kubernetes.offer.method(class)).collect()
}

/// The classes of which pods may be given a device of the host.
fn classes(snapshot: &KubernetesSnapshot) -> BTreeSet<Class> {
    let settings = &snapshot.config.kubernetes;
    let offers = snapshot.devices.iter();
    let offers = offers.filter(|offer| is_offered(offer, settings));
    offers.map(|offer| offer.class).collect()
}

fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// The claims of a pod, by namespace and name; that which the scheduler made for its resources too.
fn claims_of(pod: &Pod) -> Vec<(String, String)> {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let spec = pod.spec.iter();
    let named = spec.flat_map(|spec| spec.resource_claims.iter().flatten());
    let named = named.filter_map(|claim| claim.resource_claim_name.clone());
    let status = pod.status.iter();
    let made = status.clone().flat_map(|status| status.resource_claim_statuses.iter().flatten());
    let made = made.filter_map(|claim| claim.resource_claim_name.clone());
    let extended = status.filter_map(|status| status.extended_resource_claim_status.as_ref());
    let extended = extended.map(|claim| claim.resource_claim_name.clone());
    let all = named.chain(made).chain(extended);
    all.map(|name| (namespace.clone(), name)).collect()
}

/// The classes of which a pod has devices by the device plugin. Resources that DRA has served do not count.
fn by_plugin(pod: &Pod, snapshot: &KubernetesSnapshot) -> BTreeSet<Class> {
    let status = pod.status.iter();
    let extended = status.filter_map(|status| status.extended_resource_claim_status.as_ref());
    let by_dra: BTreeSet<&str> = extended
        .flat_map(|claim| &claim.request_mappings)
        .map(|mapping| mapping.resource_name.as_str())
        .collect();
    let mut classes = BTreeSet::new();
    if let Some(spec) = &pod.spec {
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        let resources = containers.filter_map(|container| container.resources.as_ref());
        for (name, _) in resources.flat_map(|resources| resources.limits.iter().flatten()) {
            if !by_dra.contains(name.as_str()) {
                classes.extend(classes_of(name, snapshot));
            }
        }
    }
    classes
}

#[cfg(test)]
mod tests {
    use onload_core::kubernetes_settings::KubernetesSettings;

    use super::*;
    use crate::dra::test_offers::{offer, snapshot};

    /// A kubeconfig of a server that is never asked.
    const ELSEWHERE: &str = r#"{"current-context": "t",
        "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
        "clusters": [{"name": "t", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "t", "user": {}}]}"#;

    const SETTLES: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn why_a_class_is_left_is_not_forgotten_while_kubelet_starts() {
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        std::fs::write(&kubeconfig, ELSEWHERE).unwrap();
        let snapshot = snapshot(vec![offer(Class::Nic, "ens1")], KubernetesSettings::default());
        let mut engine = Engine {
            api: Api::find(Some(&kubeconfig), Arc::default()).unwrap(),
            node: "n1".parse().unwrap(),
            snapshots: watch::channel(Arc::new(snapshot)).1,
            registered: watch::channel(DraRegistration::default()).1,
            kubelet: KubeletFiles {
                host_root: dir.path().to_owned(),
                device_plugins: dir.path().to_owned(),
            },
            device_classes: watch::channel(DeviceClasses::Nothing).0,
            spec_dir: PathBuf::new(),
            grace: GRACE,
            settle: SETTLE,
            refused: REFUSED,
            has_offered: false,
        };
        let nic = ("nic.onload.dev".to_owned(), "onload.dev/nic".to_owned());
        let told = DeviceClasses::Classes(BTreeMap::from([nic]));
        let mut states = BTreeMap::from([(Class::Nic, state(Way::Plugin))]);
        let why = Why::of("kubelet has a topology policy".to_owned());
        let before = BTreeMap::from([(why, vec![Class::Nic])]);
        let mut said = before.clone();
        let starting = DraRegistration::default();
        let mut version = None;
        let round = engine.round(&mut states, &told, starting, GRACE, &mut said, &mut version);
        round.await.unwrap();
        assert_eq!(said, before);
    }

    fn held(by_plugin: bool, by_claims: bool) -> Held {
        let nic = |is_held: bool| is_held.then_some(Class::Nic).into_iter().collect();
        Held { by_plugin: nic(by_plugin), by_claims: nic(by_claims), by_slices: BTreeSet::new() }
    }

    fn stepped(state: State, wanted: Way, held: &Held, now: Instant) -> State {
        step(state, wanted, held, Class::Nic, now, SETTLES)
    }

    fn state(way: Way) -> State {
        State { way, since: None }
    }

    #[test]
    fn a_class_goes_over_by_nobody_when_the_last_pod_has_ended() {
        let start = Instant::now();
        for (from, to) in [(Way::Plugin, Way::Dra), (Way::Dra, Way::Plugin)] {
            let is_plugin = from == Way::Plugin;
            let busy = held(is_plugin, !is_plugin);
            assert_eq!(stepped(state(from), to, &busy, start), state(from));
            let left = stepped(state(from), to, &held(false, false), start);
            assert_eq!((left.way, left.since), (Way::Nobody, Some(start)));
            let early = stepped(left, to, &held(false, false), start + SETTLES / 2);
            assert_eq!(early, left);
            // A pod was quicker.
            assert_eq!(stepped(left, to, &busy, start + SETTLES), state(from));
            let later = stepped(left, to, &held(false, false), start + SETTLES);
            assert_eq!(later, state(to));
        }
    }

    #[test]
    fn the_device_plugin_has_a_class_when_its_slices_are_gone() {
        let start = Instant::now();
        let left = State { way: Way::Nobody, since: Some(start) };
        let published = Held { by_slices: BTreeSet::from([Class::Nic]), ..Held::default() };
        let later = start + SETTLES * 9;
        assert_eq!(stepped(left, Way::Plugin, &published, later), left);
        assert_eq!(stepped(left, Way::Dra, &published, later).way, Way::Dra, "they are its own");
        let gone = Held::default();
        assert_eq!(stepped(left, Way::Plugin, &gone, later).way, Way::Plugin);
    }

    #[test]
    fn at_the_start_a_class_is_where_its_pods_have_it_from() {
        let now = Instant::now();
        let nobody = state(Way::Nobody);
        assert_eq!(stepped(nobody, Way::Dra, &held(true, false), now).way, Way::Plugin);
        assert_eq!(stepped(nobody, Way::Plugin, &held(false, true), now).way, Way::Dra);
        assert_eq!(stepped(nobody, Way::Dra, &held(false, true), now).way, Way::Dra);
        assert_eq!(stepped(nobody, Way::Plugin, &held(false, false), now).way, Way::Plugin);
    }

    #[test]
    fn what_is_as_it_is_to_be_stays_whoever_holds_it() {
        let now = Instant::now();
        for way in [Way::Plugin, Way::Dra] {
            assert_eq!(stepped(state(way), way, &held(true, true), now), state(way));
        }
    }
}
