//! The reservations and leases of a container.

use std::fs::canonicalize;
use std::path::{Path, PathBuf};
use std::slice;
use std::time::{Duration, Instant};

use onload_core::container_id::ContainerId;
use onload_core::device_id::DeviceId;
use onload_core::hook_arguments::HookArguments;
use onload_core::pool::Numa;
use onload_core::token::Token;
use onload_lease::run_dir::{RUN_DIR, RunDir};
use onload_lease::tickets::{self, Ticket, TicketUser, Tickets};
use onload_lease::users::{facts, find_user, find_user_in_proc, group_members};
use onload_lease::{
    Holder, LeaseError, LeaseRequest, LeasedContainer, Leases, MemberRequest, MoveRecord, POD,
    choose_without_leases,
};
use onload_sys::error::{Context as _, Result, bail, error};
use onload_sys::fs::lock::START_TIMEOUT;
use onload_sys::processes::Processes;

use super::container_dir::open_run;
use super::init::ended_error;
use super::{pod, runtime_record};
use crate::decide::host_view::{HostView, LocalHost};
use crate::decide::pools::{PoolChoice, PoolRequest, Pools, Reservation};
use crate::decide::subject;

/// Limit for searching /proc for processes that have nodes open, at a container's end. A search may take long, since a
/// process may have very many descriptors.
pub(crate) const END_SEARCH_TIMEOUT: Duration = Duration::from_secs(2);
/// The same limit at a container's start, which searches up to three times: in the wrapper, for the lease, and for an
/// interface.
pub(crate) const START_SEARCH_TIMEOUT: Duration = Duration::from_millis(500);
/// The same limit before an answer that an engine or runtime waits for. The container's hook searches again.
const ANSWER_SEARCH_TIMEOUT: Duration = Duration::from_millis(300);
/// Limit for the locks, the search and the decision of an NRI plugin's answer. A runtime waits 2 s for the answer and
/// then creates the container without its devices. If the plugin rejects the container in time, the runtime does not
/// create it. The 2 s do not include the wait for the creation of another container (containerd/nri,
/// pkg/adaptation/adaptation.go, `CreateContainer`).
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1500);
/// Time after which no further device of an exited container is restored. The hook times out after ten seconds, and
/// restoring the last device may take four.
const FETCHING: Duration = Duration::from_secs(6);

/// Chooses and reserves devices of pools for containers that are about to be created.
#[derive(Clone)]
pub struct Reserver<'a> {
    host: &'a LocalHost,
    entry_point: &'static str,
    /// Whether this process still exists when the container's hooks run. If so, the reservation ends when it exits.
    stays: bool,
    /// The deadline of the answer, if a runtime waits for one.
    answer_deadline: Option<Instant>,
    /// The directory where the runtime that this process becomes keeps its containers (`--root`).
    pub(crate) root: Option<&'a Path>,
    /// `None` if this process may not restore devices left behind by exited containers.
    pub(crate) fetch: Option<Fetch<'a>>,
    processes: Processes,
    /// The container's reservation, for a decision that is repeated because another container was faster.
    reserved: Option<&'a Reservation>,
}

/// A function that returns how long to wait for a device that must be restored, or `None` if the device is not to be
/// restored.
pub(crate) type DeviceTimeout<'l> = &'l dyn Fn(&DeviceId) -> Option<Duration>;
/// A function that restores devices that exited containers have left behind.
pub(crate) type Fetch<'a> = &'a dyn Fn(&Leases, DeviceTimeout<'_>);

impl<'a> Reserver<'a> {
    /// For a process that still exists when the container's hooks run: the wrapper, which becomes the runtime,
    /// or a hook.
    pub(crate) fn creating(host: &'a LocalHost, entry_point: &'static str) -> Self {
        Reserver { stays: true, ..Reserver::before(host, entry_point) }
    }

    /// For a daemon that answers a runtime. The decision, the locks and the search share one deadline, which
    /// this call sets.
    #[must_use]
    pub fn answering(host: &'a LocalHost, entry_point: &'static str) -> Self {
        let answer_deadline = Some(Instant::now() + ANSWER_TIMEOUT);
        Reserver { answer_deadline, ..Reserver::before(host, entry_point) }
    }

    /// For a process that exits before the runtime starts.
    #[must_use]
    pub fn before(host: &'a LocalHost, entry_point: &'static str) -> Self {
        Reserver {
            host,
            entry_point,
            stays: false,
            answer_deadline: None,
            root: None,
            fetch: None,
            processes: Processes::default(),
            reserved: None,
        }
    }

    /// Reserves the devices that were chosen for a container, or others if another container was faster.
    fn reserve(&self, choice: Option<&PoolChoice>) -> Result<Option<Reservation>> {
        self.check_in_time()?;
        let Some(PoolChoice { request, reservation }) = choice else {
            return Ok(None);
        };
        if !self.host.is_initial_namespace() {
            return Ok(Some(reservation.clone()));
        }
        let reserved = self.reserve_devices(request, reservation);
        let devices = reserved.with_context(|| request.origin.to_string())?;
        Ok(Some(Reservation { token: reservation.token.clone(), devices }))
    }

    fn reserve_devices(
        &self,
        request: &PoolRequest,
        choice: &Reservation,
    ) -> Result<Vec<DeviceId>> {
        let mut leases = Leases::open(&open_run(self.host.trusted())?, self.processes.clone())?;
        leases.timeout = self.lock_timeout();
        let maker = if self.stays { self.processes.find(std::process::id())? } else { None };
        let deadline = self.until();
        let find_user =
            |device: &DeviceId| find_user_without_lease(device, &self.processes, deadline);
        let holder = Holder::new_reservation(choice.token.clone(), maker);
        let members = MemberRequests::new(request, self.processes.root())?;
        let lease_request = members.lease_request(holder, self.entry_point);
        let acquire = || leases.acquire(&lease_request, &find_user);
        let mut reserved = acquire();
        // Since the choice, another container has leased members, or a process has started to use them without a lease.
        if matches!(&reserved, Err(LeaseError::NoneFree(_)))
            && self.fetch_requested(&leases, &lease_request, &|| false)
        {
            reserved = acquire();
        }
        Ok(reserved?)
    }

    /// Restores requested devices that exited containers have left behind, until `is_enough` returns true or the time
    /// limit has passed. Returns whether this process may restore devices.
    fn fetch_requested(
        &self,
        leases: &Leases,
        lease_request: &LeaseRequest<'_>,
        is_enough: &dyn Fn() -> bool,
    ) -> bool {
        let Some(fetch) = self.fetch else {
            return false;
        };
        let deadline = Instant::now() + FETCHING;
        fetch(leases, &|device| {
            let remaining = deadline.checked_duration_since(Instant::now())?;
            let is_requested = lease_request
                .devices
                .iter()
                .flat_map(MemberRequest::devices)
                .any(|requested| requested == *device);
            (is_requested && !is_enough()).then_some(remaining)
        });
        true
    }

    /// Decides, and reserves the devices that were chosen. If another container was faster and other devices were
    /// reserved instead, decides again with those.
    pub fn decide_and_reserve<T>(
        &self,
        decide: impl Fn(&dyn Pools) -> Result<T>,
        take_choice: impl Fn(&mut T) -> Option<PoolChoice>,
    ) -> Result<(T, Option<Reservation>)> {
        let mut decided = decide(self)?;
        let choice = take_choice(&mut decided);
        let reservation = self.reserve(choice.as_ref())?;
        if let (Some(choice), Some(reservation)) = (&choice, &reservation)
            && choice.reservation != *reservation
        {
            decided = decide(&Reserver { reserved: Some(reservation), ..self.clone() })
                .and_then(|decided| self.check_in_time().map(|()| decided))
                .inspect_err(|_| cancel_at(self.host, reservation))?;
            take_choice(&mut decided);
        }
        Ok((decided, reservation))
    }

    /// Returns the deadline for searching /proc for processes that have a device open.
    fn until(&self) -> Instant {
        let timeout = if self.stays { START_SEARCH_TIMEOUT } else { ANSWER_SEARCH_TIMEOUT };
        let deadline = Instant::now() + timeout;
        self.answer_deadline.map_or(deadline, |answer_deadline| answer_deadline.min(deadline))
    }

    /// Returns the time to wait for a lock.
    fn lock_timeout(&self) -> Duration {
        self.answer_deadline.map_or(START_TIMEOUT, |deadline| {
            deadline.saturating_duration_since(Instant::now()).min(START_TIMEOUT)
        })
    }

    /// Fails if the deadline has passed. The runtime still waits then, and does not create the container. Without
    /// an answer, it would create the container without its devices.
    fn check_in_time(&self) -> Result<()> {
        match self.answer_deadline {
            Some(deadline) if Instant::now() >= deadline => {
                bail!("the decision took more than {ANSWER_TIMEOUT:?}; create the container again")
            }
            _ => Ok(()),
        }
    }
}

/// The requests of a container that is not created yet, for members of pools and for devices that tickets
/// name.
struct MemberRequests<'a> {
    request: &'a PoolRequest,
    devices: Vec<MemberRequest>,
    bundle: PathBuf,
}

impl<'a> MemberRequests<'a> {
    /// Makes devices of tickets exclusive, whatever the configuration says: the engine that issued the ticket
    /// decides which tasks use a device, since it knows which tasks share a network namespace.
    fn new(request: &'a PoolRequest, root: &Path) -> Result<Self> {
        let mut devices = request.devices.clone();
        for (device, ticket) in &request.named {
            let ticket = Some(ticket.clone());
            devices.push(MemberRequest { ticket, ..device_request(root, device, 1) });
        }
        Ok(MemberRequests { request, devices, bundle: canonical(&request.bundle)? })
    }

    fn lease_request<'r>(&'r self, holder: Holder, entry_point: &'r str) -> LeaseRequest<'r> {
        LeaseRequest {
            devices: &self.devices,
            numa: self.request.numa,
            container: &self.request.id,
            bundle: &self.bundle,
            holder,
            token: None,
            claim: None,
            entry_point,
        }
    }
}

/// Finds a process that uses a device without a lease. Returns `None` if the search timed out: only one process can bind
/// a function.
fn find_user_without_lease(
    device: &DeviceId,
    processes: &Processes,
    deadline: Instant,
) -> Option<String> {
    find_user(processes.root(), device, processes, deadline).ok()?
}

/// Returns the request for a device by name. Up to `max` containers may have the device at once.
fn device_request(root: &Path, device: &DeviceId, max: u32) -> MemberRequest {
    MemberRequest {
        aliases: group_members(root, device),
        facts: facts(root, device),
        ..MemberRequest::for_device(device.clone(), max)
    }
}

impl Pools for Reserver<'_> {
    fn choose(&self, request: &PoolRequest) -> Result<Reservation> {
        if let Some(reserved) = self.reserved {
            return Ok(reserved.clone());
        }
        let token = Token::new().map_err(|error| error!("{error}"))?;
        if !self.host.is_initial_namespace() {
            // A rootless engine writes no leases and has no tickets.
            let deadline = self.until();
            let find_user =
                |device: &DeviceId| find_user_without_lease(device, &self.processes, deadline);
            let devices = choose_without_leases(&request.devices, request.numa, &find_user)?;
            return Ok(Reservation { token, devices });
        }
        let leases = Leases::open(&open_run(self.host.trusted())?, self.processes.clone())?;
        let members = MemberRequests::new(request, self.processes.root())?;
        let holder = Holder::new_reservation(token.clone(), None);
        let lease_request = members.lease_request(holder, self.entry_point);
        let mut devices = leases.choose(&lease_request, None);
        let is_enough = || leases.choose(&lease_request, None).is_ok();
        if matches!(&devices, Err(LeaseError::NoneFree(_) | LeaseError::Other(_)))
            && self.fetch_requested(&leases, &lease_request, &is_enough)
        {
            devices = leases.choose(&lease_request, None);
        }
        Ok(Reservation { token, devices: devices? })
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
        let run = open_run(self.host.trusted())?;
        let user = ticket_user(container, self.root, task)?;
        Tickets::open(&run, Processes::default())?.redeem(id, user, self.lock_timeout())
    }
}

/// Returns the record of a container that this process starts with a ticket.
fn ticket_user(
    container: subject::ContainerRef<'_>,
    root: Option<&Path>,
    task: Option<&Path>,
) -> Result<TicketUser> {
    let Some(id) = container.id else {
        bail!("the container's id is unknown, so the ticket's user could not be recorded");
    };
    let own = std::process::id();
    Ok(TicketUser {
        container: id.clone(),
        bundle: canonical(container.bundle)?,
        maker: Processes::default().find(own)?.ok_or_else(|| ended_error(own))?,
        state: runtime_record::state_directories(root.map(Path::as_os_str), id.as_str()).collect(),
        task: task.map(Path::to_owned),
        ended_ms: None,
    })
}

/// Cancels the reservation of a container that will not be created. If this fails, the reservation expires.
pub(crate) fn cancel(reservation: &Reservation) {
    if let Ok(Some(leases)) = find() {
        let _ = leases.cancel_reservation(&reservation.devices, &reservation.token);
    }
}

/// Like [`cancel`], on a host that may be another one than this.
pub fn cancel_at(host: &LocalHost, reservation: &Reservation) {
    if let Ok(run) = open_run(host.trusted())
        && let Ok(Some(leases)) = find_in(&run)
    {
        let _ = leases.cancel_reservation(&reservation.devices, &reservation.token);
    }
}

/// Chooses devices for `container explain`, and reserves none.
#[derive(Debug)]
pub struct Viewer {
    leases: Option<Leases>,
    tickets: Option<Tickets>,
    processes: Processes,
}

impl Viewer {
    /// Reads the host whose root directory is `root`.
    #[must_use]
    pub fn below(root: &Path) -> Self {
        let processes = Processes::at_root(root);
        let Ok(Some(run)) = RunDir::find(&root.join(RUN_DIR.trim_start_matches('/'))) else {
            return Viewer { leases: None, tickets: None, processes };
        };
        Viewer {
            leases: Leases::find(&run, processes.clone()).ok().flatten(),
            tickets: Tickets::find(&run, processes.clone()).ok().flatten(),
            processes,
        }
    }
}

impl Pools for Viewer {
    fn choose(&self, request: &PoolRequest) -> Result<Reservation> {
        let token = Token::from([0; 16]);
        let deadline = Instant::now() + END_SEARCH_TIMEOUT;
        let find_user = |device: &DeviceId| {
            find_user_in_proc(self.processes.root(), device, &self.processes, deadline).ok()?
        };
        let named = request.named.iter().map(|(device, _)| device.clone());
        let Some(leases) = &self.leases else {
            let mut devices = choose_without_leases(&request.devices, request.numa, &find_user)?;
            devices.extend(named);
            return Ok(Reservation { token, devices });
        };
        // The container may be running and have the devices of its tickets.
        let is_own = |device: &DeviceId| {
            leases.holds_any(slice::from_ref(device), &request.id).unwrap_or(false)
        };
        let own: Vec<DeviceId> = named.filter(|device| is_own(device)).collect();
        let mut members = MemberRequests::new(request, self.processes.root())?;
        members.devices.retain(|member| !member.devices().any(|device| own.contains(&device)));
        let holder = Holder::new_reservation(token.clone(), None);
        let lease_request = members.lease_request(holder, "container explain");
        let devices = leases.choose(&lease_request, Some(&find_user))?;
        Ok(Reservation { token, devices: [devices, own].concat() })
    }

    fn ticket(
        &self,
        id: &Token,
        container: subject::ContainerRef<'_>,
        task: Option<&Path>,
    ) -> Result<Ticket> {
        let tickets = self.tickets.as_ref().ok_or_else(|| tickets::unknown_error(id))?;
        tickets.check_redeemable(id, &ticket_user(container, None, task)?)
    }
}

/// A request for leases of a container whose init process exists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InitLeaseRequest<'a> {
    pub(crate) container: ContainerInit<'a>,
    pub(crate) devices: &'a [DeviceId],
    /// The hook's arguments: the token of the reservation, and the ResourceClaim.
    pub(crate) arguments: &'a HookArguments,
    /// The program and stage.
    pub(crate) entry_point: &'a str,
    /// The record of the move, if the request is for a device that moves to the container. Such a request
    /// has no other device.
    pub(crate) move_record: Option<&'a MoveRecord>,
    /// Whether the devices are exclusive, whatever the configuration says about their class.
    pub(crate) alone: bool,
}

impl<'a> InitLeaseRequest<'a> {
    /// Returns a request without devices.
    pub(crate) fn new(
        container: ContainerInit<'a>,
        arguments: &'a HookArguments,
        entry_point: &'a str,
    ) -> Self {
        let (devices, move_record, alone) = (&[], None, false);
        InitLeaseRequest { container, devices, arguments, entry_point, move_record, alone }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ContainerInit<'a> {
    pub(crate) id: &'a ContainerId,
    /// Without symbolic links.
    pub(crate) bundle: &'a Path,
    pub(crate) init: u32,
    pub(crate) host: &'a LocalHost,
}

impl<'a> ContainerInit<'a> {
    pub(crate) fn to_leased(self) -> LeasedContainer<'a> {
        LeasedContainer { id: self.id, bundle: self.bundle, token: None }
    }
}

/// Leases devices to the init process of a container. For a rootless engine, writes no lease, since other
/// engines could not see it, and returns a warning.
pub(crate) fn claim(init_request: InitLeaseRequest<'_>) -> Result<Option<String>> {
    let ContainerInit { id, bundle, init, host } = init_request.container;
    if !host.is_initial_namespace() {
        let devices: Vec<String> = init_request.devices.iter().map(ToString::to_string).collect();
        return Ok(Some(format!(
            "{} may be given to another container too: leases need root",
            devices.join(", ")
        )));
    }
    let run = open_run(host.trusted())?;
    let processes = Processes::default();
    let leases = Leases::open(&run, processes.clone())?;
    let process = processes.find(init)?.ok_or_else(|| ended_error(init))?;
    let cgroup = processes.own_cgroup(init, std::process::id())?;
    let shares = host.settings()?.config.leases;
    let pod = pod::find_pod(id, bundle);
    let mut device_requests = Vec::new();
    for device in init_request.devices {
        // The specification that requires this lease may be older than the configuration, in which the class
        // may have no limit.
        let share = if init_request.alone { Some(1) } else { shares.share(device.class) };
        let mut request = device_request(processes.root(), device, share.unwrap_or(u32::MAX));
        request.facts.extend(pod.clone().map(|pod| (POD.to_owned(), pod)));
        request.moved = init_request.move_record.cloned();
        device_requests.push(request);
    }
    let request = LeaseRequest {
        devices: &device_requests,
        numa: Numa::Any,
        container: id,
        bundle,
        holder: Holder::Init { process, cgroup },
        token: init_request.arguments.token.as_ref(),
        claim: init_request.arguments.claim.as_ref(),
        entry_point: init_request.entry_point,
    };
    let deadline = Instant::now() + START_SEARCH_TIMEOUT;
    let user = |device: &DeviceId| find_user_without_lease(device, &processes, deadline);
    leases.acquire(&request, &user)?;
    Ok(None)
}

/// Ends the leases of a container whose start has failed. Its init process may still be alive.
pub(crate) fn abandon(devices: &[DeviceId], container: ContainerInit<'_>) {
    if let Ok(Some(leases)) = find() {
        // If this fails, the leases end with the init process.
        let _ = leases.release_unmoved(devices, &container.to_leased());
    }
}

/// Resolves symbolic links in the path of a bundle. Returns an empty path unchanged: the engine has not created
/// the bundle yet.
pub(crate) fn canonical(bundle: &Path) -> Result<PathBuf> {
    if bundle.as_os_str().is_empty() {
        return Ok(PathBuf::new());
    }
    canonicalize(bundle).with_context(|| format!("looking at the bundle {bundle:?}"))
}

/// Ends the leases of an exited container, except those of devices that have to return.
pub(crate) fn release(devices: &[DeviceId], exited: &LeasedContainer<'_>) -> Result<()> {
    match find()? {
        Some(leases) => leases.release(devices, exited),
        None => Ok(()),
    }
}

/// Opens the leases. Returns `None` if there are none, or if this user has no access to them.
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

/// Like [`canonical`], but returns the path unchanged if the bundle no longer exists.
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
        let search_time = |reserver: &Reserver<'_>| reserver.until().duration_since(Instant::now());
        let creating = Reserver::creating(&host, "onload-hook");
        assert!(search_time(&creating) <= START_SEARCH_TIMEOUT);
        assert_eq!(creating.lock_timeout(), START_TIMEOUT);
        let mut answering = Reserver::answering(&host, "onload-nri");
        assert!(search_time(&answering) <= ANSWER_SEARCH_TIMEOUT);
        assert_eq!(answering.reserve(None), Ok(None));
        answering.answer_deadline = Some(Instant::now() + Duration::from_millis(100));
        assert!(search_time(&answering) <= Duration::from_millis(100));
        assert!(answering.lock_timeout() <= Duration::from_millis(100));
        answering.answer_deadline = Some(Instant::now());
        assert_eq!(search_time(&answering), Duration::ZERO);
        let late = answering.reserve(None).unwrap_err().to_string();
        assert!(late.starts_with("the decision took more than 1.5s; "), "{late}");
    }
}
