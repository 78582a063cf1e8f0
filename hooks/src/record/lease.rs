//! The leases of a container, claimed when its init exists and released when it is gone.

use std::cell::{OnceCell, RefCell};
use std::fs::canonicalize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use onload_core::container_id::ContainerId;
use onload_core::device_id::DeviceId;
use onload_core::expectation::Expectation;
use onload_core::hook_arguments::HookArguments;
use onload_core::pool::Numa;
use onload_core::request::Origin;
use onload_core::token::Token;
use onload_lease::run_dir::{RUN_DIR, RunDir};
use onload_lease::tickets::{self, StartingContainer, Ticket, TicketUser, Tickets};
use onload_lease::users::{facts, find_user, find_user_in_proc, group_members};
use onload_lease::{
    Holder, LeaseError, LeaseRequest, Leases, MemberRequest, MoveRecord, POD, UsedMembers,
    choose_without_leases,
};
use onload_sys::bail;
use onload_sys::error::{Context as _, Error, Result};
use onload_sys::fs::lock::START_TIMEOUT;
use onload_sys::processes::{ProcessId, Processes};

use super::container_dir::open_run;
use super::init::ended_error;
use super::pod;
use super::runtime_record;
use crate::decide::host_view::{HostView, LocalHost};
use crate::decide::pools::{PoolRequest, Pools, Reservation};
use crate::decide::subject;

/// Time for searching /proc for processes that have nodes open, at a container's end: any process may have very many
/// descriptors.
pub(crate) const END_SEARCH_TIMEOUT: Duration = Duration::from_secs(2);
/// The same at a container's start, which searches up to three times: in the wrapper, for the lease, and for an interface.
pub(crate) const START_SEARCH_TIMEOUT: Duration = Duration::from_millis(500);
/// The same before an answer that a runtime waits for. The container's hook searches again.
const ANSWER_SEARCH_TIMEOUT: Duration = Duration::from_millis(300);
/// Time for the locks, the search and the decision of such an answer: a runtime gives up on NRI's after 2 s, and creates the
/// container without its devices, while it does not create one that is refused. Containers that wait for the one before them
/// lose none of it (containerd/nri, pkg/adaptation/adaptation.go, `CreateContainer`).
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1500);
/// How long before the next device is fetched that an ended container has left: the hook has ten seconds for all, and the last
/// one may take four.
const FETCHING: Duration = Duration::from_secs(6);

/// Keeps members of pools for containers that are about to be created.
pub struct Keeper<'a> {
    host: &'a LocalHost,
    entry_point: &'static str,
    /// Whether this process is still there when the container's hooks run.
    stays: bool,
    /// When the answer is due, if a runtime waits for one.
    answer_deadline: Option<Instant>,
    /// Where the runtime that this process becomes keeps its containers (`--root`).
    pub(crate) root: Option<&'a Path>,
    /// None where this process has no right to bring back members that ended containers have left.
    pub(crate) fetch: Option<Fetch<'a>>,
    /// Until when they are brought back, however often it is decided.
    fetching: OnceCell<Instant>,
    processes: Processes,
    chosen: RefCell<Option<Chosen>>,
    /// Who was found to use members without a lease.
    used: RefCell<UsedMembers>,
}

/// What was chosen for a container, and is kept for it last.
#[derive(Debug)]
struct Chosen {
    leases: Leases,
    token: Token,
    devices: Vec<MemberRequest>,
    numa: Numa,
    id: ContainerId,
    bundle: PathBuf,
    expect: Vec<Expectation>,
    origin: Origin,
}

/// How long somebody else may still move a device that is to come back; none where it is not wanted.
pub(crate) type Left<'l> = &'l dyn Fn(&DeviceId) -> Option<Duration>;
/// Brings back devices that ended containers have left.
pub(crate) type Fetch<'a> = &'a dyn Fn(&Leases, Left<'_>);

impl<'a> Keeper<'a> {
    /// For a process that creates the container itself, or becomes the runtime that does.
    pub(crate) fn creating(host: &'a LocalHost, entry_point: &'static str) -> Self {
        Keeper { stays: true, ..Keeper::before(host, entry_point) }
    }

    /// For a daemon that answers a runtime within its deadline. The locks, the search and the decision share what is left
    /// of it from here on.
    #[must_use]
    pub fn answering(host: &'a LocalHost, entry_point: &'static str) -> Self {
        let answer_deadline = Some(Instant::now() + ANSWER_TIMEOUT);
        Keeper { answer_deadline, ..Keeper::before(host, entry_point) }
    }

    /// For a process that does not become the runtime, and has ended when that starts.
    #[must_use]
    pub fn before(host: &'a LocalHost, entry_point: &'static str) -> Self {
        Keeper {
            host,
            entry_point,
            stays: false,
            answer_deadline: None,
            root: None,
            fetch: None,
            fetching: OnceCell::new(),
            processes: Processes::default(),
            chosen: RefCell::default(),
            used: RefCell::default(),
        }
    }

    /// Decides, and then keeps what was chosen on the way: again, with others, where another container was faster. From
    /// there on a container that is not created gives it back.
    pub fn keep_what<T>(&self, decide: impl Fn() -> Result<T>) -> Result<T> {
        let mut until = None;
        loop {
            let decided = decide()?;
            self.check_in_time()?;
            let is_kept = match self.chosen.take() {
                Some(mut chosen) => {
                    chosen.leases.timeout = self.lock_timeout();
                    let kept = self.keep(&chosen, *until.get_or_insert_with(|| self.until()));
                    kept.with_context(|| chosen.origin.to_string())?
                }
                None => true,
            };
            if is_kept {
                return Ok(decided);
            }
        }
    }

    /// Deadline for searching /proc for processes that have a device open.
    fn until(&self) -> Instant {
        let timeout = if self.stays { START_SEARCH_TIMEOUT } else { ANSWER_SEARCH_TIMEOUT };
        let deadline = Instant::now() + timeout;
        self.answer_deadline.map_or(deadline, |answer_deadline| answer_deadline.min(deadline))
    }

    /// Time for waiting for a lock.
    fn lock_timeout(&self) -> Duration {
        self.answer_deadline.map_or(START_TIMEOUT, |deadline| {
            deadline.saturating_duration_since(Instant::now()).min(START_TIMEOUT)
        })
    }

    /// Refuses a container while the runtime still waits: it would create the container without an answer.
    fn check_in_time(&self) -> Result<()> {
        match self.answer_deadline {
            Some(deadline) if Instant::now() >= deadline => bail!(
                "the decision took more than {ANSWER_TIMEOUT:?}, and the runtime does not wait for long; create the container again"
            ),
            _ => Ok(()),
        }
    }

    /// Whether all of it was free still.
    fn keep(&self, chosen: &Chosen, until: Instant) -> Result<bool> {
        let maker = if self.stays { self.processes.find(std::process::id())? } else { None };
        let request = chosen.lease_request(maker, self.entry_point);
        let find_user =
            |device: &DeviceId| find_user(device, &chosen.expect, &self.processes, until);
        let mut used = self.used.borrow_mut();
        match chosen.leases.acquire_unused(&request, &mut used, &find_user) {
            Err(LeaseError::NoneFree(_)) => Ok(false),
            kept => Ok(kept.map(|_| true)?),
        }
    }

    /// Gives back what was kept: the container is not created.
    pub fn give_back(&self, reserved: &Reservation) {
        if let Ok(run) = open_run(self.host) {
            give_back_in(&run, reserved);
        }
    }
}

impl Chosen {
    fn lease_request(
        &self,
        maker: Option<ProcessId>,
        entry_point: &'static str,
    ) -> LeaseRequest<'_> {
        LeaseRequest {
            devices: &self.devices,
            numa: self.numa,
            container: &self.id,
            bundle: &self.bundle,
            holder: Holder::new_reservation(self.token.clone(), maker),
            token: None,
            claim: None,
            entry_point,
        }
    }
}

/// The members of pools and the devices that tickets name, which a task has for itself: its engine knows what belongs to
/// one network namespace, or has one holder in a pool, and the configuration may count nobody.
fn all_device_requests(wanted: PoolRequest<'_>, root: &Path) -> Vec<MemberRequest> {
    let mut device_requests = wanted.devices.to_vec();
    let named = wanted.named.iter();
    device_requests.extend(named.map(|(device, ticket)| MemberRequest {
        ticket: Some(ticket.clone()),
        ..device_request(root, device, 1)
    }));
    device_requests
}

/// A device by its name, which so many containers may have at once.
fn device_request(root: &Path, device: &DeviceId, max: u32) -> MemberRequest {
    MemberRequest {
        aliases: group_members(root, device),
        facts: facts(root, device),
        ..MemberRequest::for_device(device.clone(), max)
    }
}

impl Pools for Keeper<'_> {
    fn choose(&self, wanted: PoolRequest<'_>) -> Result<Reservation> {
        let token = Token::new().map_err(|error| onload_sys::error!("{error}"))?;
        if !self.host.is_initial_namespace() {
            // A user without root keeps no leases, and has no ticket.
            let until = self.until();
            let user = |device: &DeviceId| {
                find_user(device, &(wanted.expect)(device), &self.processes, until)
            };
            let devices = choose_without_leases(wanted.devices, wanted.numa, &user)?;
            return Ok(Reservation { token, devices });
        }
        let mut chosen = Chosen {
            leases: Leases::open(&open_run(self.host)?, self.processes.clone())?,
            token: token.clone(),
            devices: all_device_requests(wanted, self.processes.root()),
            numa: wanted.numa,
            id: wanted.id.clone(),
            bundle: canonical(wanted.bundle)?,
            expect: Vec::new(),
            origin: wanted.origin.clone(),
        };
        let request = chosen.lease_request(None, self.entry_point);
        let used = self.used.borrow();
        let mut device_requests = chosen.leases.choose(&request, &used);
        let is_refused =
            matches!(&device_requests, Err(LeaseError::NoneFree(_) | LeaseError::Other(_)));
        if let Some(fetch) = self.fetch.filter(|_| is_refused) {
            // Those that ended containers have left may come back now, until there are enough or the time is over.
            let until = *self.fetching.get_or_init(|| Instant::now() + FETCHING);
            fetch(&chosen.leases, &|device| {
                let left = until.checked_duration_since(Instant::now())?;
                let mut wanted = request.devices.iter().flat_map(MemberRequest::devices);
                let is_wanted = wanted.any(|one| one == *device)
                    && chosen.leases.choose(&request, &used).is_err();
                is_wanted.then_some(left)
            });
            device_requests = chosen.leases.choose(&request, &used);
        }
        (chosen.devices, chosen.numa) = (device_requests?, Numa::Any);
        let devices: Vec<DeviceId> =
            chosen.devices.iter().flat_map(MemberRequest::devices).collect();
        chosen.expect = devices.iter().flat_map(wanted.expect).collect();
        self.chosen.replace(Some(chosen));
        Ok(Reservation { token, devices })
    }

    fn ticket(
        &self,
        id: &Token,
        container: subject::ContainerRef<'_>,
        task: Option<&Path>,
    ) -> Result<Ticket> {
        if !self.host.is_initial_namespace() {
            bail!("only root can start a container with a ticket");
        }
        let run = open_run(self.host)?;
        let processes = Processes::default();
        let id_of_container = container.id.ok_or_else(no_id)?;
        let own = std::process::id();
        let root = self.root.map(Path::as_os_str);
        let user = TicketUser {
            container: id_of_container.clone(),
            bundle: canonical(container.bundle)?,
            maker: processes.find(own)?.ok_or_else(|| ended_error(own))?,
            state: runtime_record::state_directories(root, id_of_container.as_str()).collect(),
            task: task.map(Path::to_owned),
            ended_ms: None,
        };
        let tickets = Tickets::open(&run, processes)?;
        tickets.redeem(id, user, self.lock_timeout())
    }
}

/// Gives back what was reserved for a container that is not created. What this does not reach expires.
pub(crate) fn give_back(reservation: &Reservation) {
    if let Ok(Some(run)) = RunDir::find(Path::new(RUN_DIR)) {
        give_back_in(&run, reservation);
    }
}

fn give_back_in(run: &RunDir, reservation: &Reservation) {
    if let Ok(Some(leases)) = Leases::find(run, Processes::default()) {
        let _ = leases.cancel_reservation(&reservation.devices, &reservation.token);
    }
}

/// Says which members of pools a container would get now, and keeps none.
#[derive(Debug)]
pub struct Viewer {
    leases: Option<Leases>,
    tickets: Option<Tickets>,
    processes: Processes,
}

impl Viewer {
    /// On the host whose root is `root`.
    #[must_use]
    pub fn below(root: &Path) -> Self {
        let processes = Processes::at_root(root);
        let run = RUN_DIR.trim_start_matches('/');
        let run = RunDir::find(&root.join(run)).ok().flatten();
        let leases = run.as_ref();
        let leases = leases.and_then(|run| Leases::find(run, processes.clone()).ok().flatten());
        let tickets = run.as_ref();
        let tickets = tickets.and_then(|run| Tickets::find(run, processes.clone()).ok().flatten());
        Viewer { leases, tickets, processes }
    }
}

impl Pools for Viewer {
    fn choose(&self, wanted: PoolRequest<'_>) -> Result<Reservation> {
        let token = Token::from([0; 16]);
        let until = Instant::now() + END_SEARCH_TIMEOUT;
        let user = |device: &DeviceId| {
            find_user_in_proc(device, &(wanted.expect)(device), &self.processes, until)
        };
        let Some(leases) = &self.leases else {
            let mut devices = choose_without_leases(wanted.devices, wanted.numa, &user)?;
            devices.extend(wanted.named.iter().map(|(device, _)| device.clone()));
            return Ok(Reservation { token, devices });
        };
        let request = LeaseRequest {
            devices: &all_device_requests(wanted, self.processes.root()),
            numa: wanted.numa,
            container: wanted.id,
            bundle: &canonical(wanted.bundle)?,
            holder: Holder::new_reservation(token.clone(), None),
            token: None,
            claim: None,
            entry_point: "container explain",
        };
        let devices = leases.preview(&request, &user)?;
        Ok(Reservation { token, devices })
    }

    fn ticket(
        &self,
        id: &Token,
        container: subject::ContainerRef<'_>,
        task: Option<&Path>,
    ) -> Result<Ticket> {
        let tickets = self.tickets.as_ref();
        let tickets = tickets.ok_or_else(|| tickets::unknown_error(id))?;
        let starting = StartingContainer {
            container: container.id.ok_or_else(no_id)?,
            bundle: &canonical(container.bundle)?,
            creator: None,
            task,
        };
        tickets.check_redeemable(id, starting)
    }
}

fn no_id() -> Error {
    Error::new("the container's id is not known here, so nobody could tell who uses the ticket")
}

/// What a container has to have for itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InitLeaseRequest<'a> {
    pub(crate) devices: &'a [DeviceId],
    /// What names them: with the nodes that the container gets, the reservation that they were chosen with, and the claim of
    /// a cluster engine that the container is for.
    pub(crate) arguments: &'a HookArguments,
    /// The program and stage, for people.
    pub(crate) entry_point: &'a str,
    /// What the only device was, if it moves to the container.
    pub(crate) move_record: Option<&'a MoveRecord>,
    /// Whether one container has them at a time, whatever the configuration says of their class.
    pub(crate) alone: bool,
}

impl<'a> InitLeaseRequest<'a> {
    /// No device yet.
    pub(crate) fn by(arguments: &'a HookArguments, entry_point: &'a str) -> Self {
        InitLeaseRequest { devices: &[], arguments, entry_point, move_record: None, alone: false }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ContainerInit<'a> {
    pub(crate) id: &'a ContainerId,
    pub(crate) bundle: &'a Path,
    pub(crate) init: u32,
}

/// Leases devices to the init of a container. Without root of the initial user namespace nobody keeps leases that other
/// engines would see, and the container goes without: that gives a warning.
pub(crate) fn claim(
    init_request: InitLeaseRequest<'_>,
    container: ContainerInit<'_>,
    host: &LocalHost,
) -> Result<Option<String>> {
    if !host.is_initial_namespace() {
        let devices: Vec<String> = init_request.devices.iter().map(ToString::to_string).collect();
        return Ok(Some(format!(
            "{} may be given to another container too: only root keeps leases",
            devices.join(", ")
        )));
    }
    let run = open_run(host)?;
    let processes = Processes::default();
    let leases = Leases::open(&run, processes.clone())?;
    let init = container.init;
    let process = processes.find(init)?.ok_or_else(|| ended_error(init))?;
    let cgroup = processes.own_cgroup(init, std::process::id())?;
    let shares = host.settings()?.config.leases;
    // The specification may be older than the configuration.
    let max_holders = |device: &DeviceId| match shares.share(device.class) {
        _ if init_request.alone => 1,
        share => share.unwrap_or(u32::MAX),
    };
    let devices = init_request.devices.iter();
    let mut device_requests: Vec<MemberRequest> = devices
        .map(|device| device_request(processes.root(), device, max_holders(device)))
        .collect();
    let pod = pod::find_pod(container.id, container.bundle);
    for device_request in &mut device_requests {
        device_request.facts.extend(pod.clone().map(|pod| (POD.to_owned(), pod)));
        device_request.moved = init_request.move_record.cloned();
    }
    let request = LeaseRequest {
        devices: &device_requests,
        numa: Numa::Any,
        container: container.id,
        bundle: &canonical(container.bundle)?,
        holder: Holder::Init { process, cgroup },
        token: init_request.arguments.token.as_ref(),
        claim: init_request.arguments.claim.as_ref(),
        entry_point: init_request.entry_point,
    };
    let deadline = Instant::now() + START_SEARCH_TIMEOUT;
    let user =
        |device: &DeviceId| find_user(device, &init_request.arguments.expect, &processes, deadline);
    leases.acquire(&request, &user)?;
    Ok(None)
}

/// Gives up what a container was leased just now, though its init lives: the container is not to run.
pub(crate) fn abandon(devices: &[DeviceId], container: ContainerInit<'_>) {
    if let (Ok(Some(leases)), Ok(bundle)) = (find(), canonical(container.bundle)) {
        for device in devices {
            // Where that fails, the lease ends with the init.
            let _ = leases.release_unmoved(device, container.id, &bundle);
        }
    }
}

/// A bundle without symbolic links. An empty path stands for one that the engine has not made yet.
pub(crate) fn canonical(bundle: &Path) -> Result<PathBuf> {
    if bundle.as_os_str().is_empty() {
        return Ok(PathBuf::new());
    }
    canonicalize(bundle).with_context(|| format!("looking at the bundle {bundle:?}"))
}

pub(crate) fn release(
    devices: &[DeviceId],
    token: Option<&Token>,
    container: &ContainerId,
    bundle: &Path,
) -> Result<()> {
    let Some(leases) = find()? else {
        return Ok(());
    };
    let bundle = was_canonical(bundle);
    for device in devices {
        leases.release(device, container, &bundle, token)?;
    }
    Ok(())
}

/// The leases, where there are any; a user without root has none.
pub(crate) fn find() -> Result<Option<Leases>> {
    match RunDir::find(Path::new(RUN_DIR)) {
        Ok(Some(run)) => find_in(&run),
        _ => Ok(None),
    }
}

pub(crate) fn find_in(run: &RunDir) -> Result<Option<Leases>> {
    match Leases::find(run, Processes::default()) {
        Err(LeaseError::Denied(_)) => Ok(None),
        found => Ok(found?),
    }
}

/// A bundle that may be gone already; then its path is what it was.
pub(crate) fn was_canonical(bundle: &Path) -> PathBuf {
    canonicalize(bundle).unwrap_or_else(|_| bundle.to_owned())
}

#[cfg(test)]
mod tests {
    use onload_core::config::CONFIG_PATH;
    use onload_test_tree::Tree;

    use super::*;

    #[test]
    fn searches_of_a_start_are_short_and_an_answer_has_one_deadline() {
        let tree = Tree::new();
        tree.directory("run");
        let host = LocalHost::for_tree(tree.root(), Path::new(CONFIG_PATH)).unwrap();
        let search_time = |keeper: &Keeper<'_>| keeper.until().duration_since(Instant::now());
        let creating = Keeper::creating(&host, "onload-hook");
        assert!(search_time(&creating) <= START_SEARCH_TIMEOUT);
        assert_eq!(creating.lock_timeout(), START_TIMEOUT);
        let mut answering = Keeper::answering(&host, "onload-nri");
        assert!(search_time(&answering) <= ANSWER_SEARCH_TIMEOUT);
        answering.keep_what(|| Ok(())).unwrap();
        answering.answer_deadline = Some(Instant::now() + Duration::from_millis(100));
        assert!(search_time(&answering) <= Duration::from_millis(100));
        assert!(answering.lock_timeout() <= Duration::from_millis(100));
        answering.answer_deadline = Some(Instant::now());
        assert_eq!(search_time(&answering), Duration::ZERO);
        let late = answering.keep_what(|| Ok(())).unwrap_err().to_string();
        assert!(late.starts_with("the decision took more than 1.5s, "), "{late}");
    }

    #[test]
    fn whatever_is_decided_anew_the_time_for_bringing_devices_back_goes_on() {
        let tree = Tree::new();
        tree.directory("run");
        let host = LocalHost::for_tree(tree.root(), Path::new(CONFIG_PATH)).unwrap();
        let device_requests = [MemberRequest::for_device("vfio:0000:81:10.0".parse().unwrap(), 1)];
        let choose = |keeper: &Keeper<'_>, id: &str| {
            keeper.choose(PoolRequest {
                devices: &device_requests,
                numa: Numa::Any,
                named: &[],
                id: &id.parse().unwrap(),
                bundle: tree.root(),
                expect: &|_| Vec::new(),
                origin: &Origin::Annotation("a".to_owned()),
            })
        };
        let first = Keeper::creating(&host, "onload-hook");
        first.keep_what(|| choose(&first, "c1")).unwrap();
        let left = RefCell::new(Vec::new());
        let fetch = |_: &Leases, left_for: Left<'_>| {
            let one = &device_requests[0].devices().next().unwrap();
            left.borrow_mut().extend(left_for(one));
        };
        let mut second = Keeper::creating(&host, "onload-hook");
        second.fetch = Some(&fetch);
        for _ in 0..2 {
            assert!(choose(&second, "c2").is_err());
            std::thread::sleep(Duration::from_millis(50));
        }
        let left = left.into_inner();
        assert_eq!(left.len(), 2);
        assert!(left[0] <= FETCHING && left[1] <= left[0] - Duration::from_millis(50), "{left:?}");
    }
}
