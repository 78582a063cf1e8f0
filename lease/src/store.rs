//! The lease files, their lock and the state of their holders.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use super::file::{Holder, Lease, file_name, parse_file_name};
use super::request::LeasedContainer;
use super::slot::{HolderState, LeaseEntry, SlotChoice};
use crate::run_dir::{LEASES, RunDir, list_names, open_private};
use onload_core::container_id::ContainerId;
use onload_core::device_id::DeviceId;
use onload_core::timestamp::since_boot_ms;
use onload_core::token::Token;
use onload_sys::error::{Context as _, Error, Result, TypedError, bail, error};
use onload_sys::fs::atomic::{self, TempFile};
use onload_sys::fs::lock::{Lock, LockMode, START_TIMEOUT};
use onload_sys::processes::{ProcessId, Processes};

/// The lock of all leases.
const LOCK: &str = ".lock";
/// The maximum size of a lease file. No larger one is written, since it could not be read.
const MAX_BYTES: u64 = 64 * 1024;
/// The size of a buffer that holds a usual lease file, so that one read is enough.
const USUAL_BYTES: usize = 2048;
/// The lifetime of a reservation. It must cover the time from the choice of the devices, for example in the wrapper, to
/// the container's createRuntime hook.
const RESERVED: Duration = Duration::from_secs(60);

/// Why a device could not be leased, or a lease could not be ended.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum LeaseError {
    /// This user has no access to the directory.
    Denied(Error),
    /// Too few members of a pool are free.
    NoneFree(Error),
    /// A container that may still be running has the device.
    InUse(Error),
    Other(#[from] Error),
}

impl TypedError for LeaseError {}

/// The directory of the leases.
#[derive(Debug)]
pub struct Leases {
    pub(super) dir: OwnedFd,
    pub(super) path: PathBuf,
    pub(super) processes: Processes,
    /// The time to wait for the lock of all leases.
    pub timeout: Duration,
}

impl Holder {
    /// Returns a new reservation. It is valid until it expires or `creator` has exited.
    pub fn new_reservation(token: Token, creator: Option<ProcessId>) -> Holder {
        let lifetime = u64::try_from(RESERVED.as_millis()).unwrap_or(u64::MAX);
        Holder::Reservation {
            token,
            expires_ms: since_boot_ms().saturating_add(lifetime),
            maker: creator,
        }
    }
}

impl Leases {
    /// Opens the directory in [`crate::run_dir::RUN_DIR`]. Creates it if necessary.
    pub fn open(run: &RunDir, processes: Processes) -> Result<Self> {
        let path = run.path().join(LEASES);
        let dir = open_private(run, LEASES).with_context(|| format!("opening {path:?}"))?;
        Ok(Leases { dir, path, processes, timeout: START_TIMEOUT })
    }

    /// Opens the directory for reading, if it exists.
    pub fn find(run: &RunDir, processes: Processes) -> Result<Option<Self>, LeaseError> {
        let path = run.path().join(LEASES);
        let opened = run.open(LEASES);
        let to_lease_error = match opened {
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::ACCESS | Errno::PERM) => LeaseError::Denied,
            _ => LeaseError::Other,
        };
        let dir = opened.with_context(|| format!("opening {path:?}"));
        Ok(Some(Leases {
            dir: dir.map_err(to_lease_error)?,
            path,
            processes,
            timeout: START_TIMEOUT,
        }))
    }

    /// Ends the leases that an exited container has of these devices.
    ///
    /// A lease whose init process is alive remains, since it belongs to a later start of a container with that
    /// ID. For the same reason, a reservation with another token remains. A lease with another bundle belongs to
    /// another engine's container with that ID, and remains unless its holder has ended.
    pub fn release(&self, devices: &[DeviceId], exited: &LeasedContainer<'_>) -> Result<()> {
        let LeasedContainer { id, bundle, token } = exited;
        self.remove_slots(devices, &|slot, lease| match slot.state {
            HolderState::Ended => lease.container == **id,
            // Such a lease ends when its device is restored.
            HolderState::Returning => false,
            HolderState::InitExited | HolderState::Alive => {
                lease.device_to_return().is_none()
                    && lease.belongs_to(id, bundle)
                    && self.is_same_start(lease, *token)
            }
        })
    }

    /// Returns whether a lease belongs to the start of the container that has ended: a reservation if it has
    /// this token, any other lease if its init process is not known to be alive. The state of a process in
    /// another PID namespace is unknown here, so the runtime that calls the poststop hook is trusted.
    pub(super) fn is_same_start(&self, lease: &Lease, token: Option<&Token>) -> bool {
        match &lease.holder {
            Holder::Reservation { token: held_token, .. } => Some(held_token) == token,
            Holder::Init { process, .. } => !self.is_alive(*process),
        }
    }

    /// Ends the reservations with a token, since their container will not be created.
    pub fn cancel_reservation(&self, devices: &[DeviceId], token: &Token) -> Result<()> {
        self.remove_slots(devices, &|_, lease| match &lease.holder {
            Holder::Reservation { token: held_token, .. } => held_token == token,
            Holder::Init { .. } => false,
        })
    }

    /// Removes the lease files of these devices for which `has_ended` is true. Reads the directory once,
    /// since a container may have thousands of leases.
    pub(super) fn remove_slots(
        &self,
        devices: &[DeviceId],
        has_ended: &dyn Fn(&LeaseEntry, &Lease) -> bool,
    ) -> Result<()> {
        // Taking the lock would create a file for nothing.
        if devices.is_empty() {
            return Ok(());
        }
        let _lock = self.lock()?;
        let mut ended = self.read_slots_of(devices)?;
        ended.retain(|slot| slot.parsed().is_some_and(|lease| has_ended(slot, lease)));
        self.remove_each(&ended)
    }

    /// Removes lease files. Continues after a file that cannot be removed, and returns that error.
    pub(super) fn remove_each(&self, slots: &[LeaseEntry]) -> Result<()> {
        let mut result = Ok(());
        for slot in slots {
            result = result.and(self.remove(&slot.device, slot.number));
        }
        result
    }

    /// Ends all leases of a device for an operator, and returns their number. Fails with
    /// [`LeaseError::InUse`] if a container that has the device may be running.
    pub fn release_all(&self, device: &DeviceId) -> Result<usize, LeaseError> {
        let _lock = self.lock()?;
        let slots = self.read_slots(device)?;
        if let Some(holder) = slots.iter().find_map(describe_running) {
            return Err(LeaseError::InUse(error!(
                "{device} is in use by {holder}; stop that container first"
            )));
        }
        for slot in &slots {
            self.remove(device, slot.number)?;
        }
        Ok(slots.len())
    }

    /// Lists all leases, by device. A lease that changes during the call may be listed in either state.
    pub fn list(&self) -> Result<Vec<LeaseEntry>> {
        self.read_slots_where(&|_| true)
    }

    /// Returns whether a container has one of these devices, or has exited and the device is not restored
    /// yet.
    pub fn holds_any(&self, devices: &[DeviceId], container: &ContainerId) -> Result<bool> {
        Ok(self.read_slots_of(devices)?.iter().any(|slot| {
            !slot.has_ended() && slot.parsed().is_some_and(|lease| lease.container == *container)
        }))
    }

    /// Blocks all leasing until the lock is dropped.
    pub fn lock(&self) -> Result<Lock> {
        self.lock_named(LOCK, self.timeout)
    }

    pub(super) fn lock_named(&self, name: &str, timeout: Duration) -> Result<Lock> {
        let mode = LockMode::Exclusive;
        Ok(Lock::acquire(&self.dir, &self.path, name, mode, timeout)?)
    }

    /// Lists the names of all files.
    pub(super) fn file_names(&self) -> Result<Vec<String>> {
        list_names(&self.dir).with_context(|| format!("listing {:?}", self.path))
    }

    /// Reads the slots of one device.
    pub(super) fn read_slots(&self, device: &DeviceId) -> Result<Vec<LeaseEntry>> {
        self.read_slots_where(&|candidate| candidate == device)
    }

    /// Reads the slots of these devices.
    pub(super) fn read_slots_of(&self, devices: &[DeviceId]) -> Result<Vec<LeaseEntry>> {
        let devices: BTreeSet<&DeviceId> = devices.iter().collect();
        self.read_slots_where(&|device| devices.contains(device))
    }

    /// Reads the slots of the devices that `is_wanted` accepts, by device.
    pub(super) fn read_slots_where(
        &self,
        is_wanted: &dyn Fn(&DeviceId) -> bool,
    ) -> Result<Vec<LeaseEntry>> {
        let boot = self.processes.boot_id()?;
        let mut slots = Vec::new();
        for name in self.file_names()? {
            if let Some((device, number)) = parse_file_name(&name)
                && is_wanted(&device)
            {
                slots.extend(self.read_slot(&device, number, &boot));
            }
        }
        slots.sort_unstable_by(|a, b| (&a.device, a.number).cmp(&(&b.device, b.number)));
        Ok(slots)
    }

    /// Reads a slot. Returns `None` if its file no longer exists.
    pub(super) fn read_slot(
        &self,
        device: &DeviceId,
        number: u32,
        boot: &str,
    ) -> Option<LeaseEntry> {
        let name = file_name(device, number);
        let bytes = self.read(&name).transpose()?;
        let (state, lease) = match bytes.map(|bytes| (Lease::parse(&bytes), bytes)) {
            Ok((Ok(lease), _)) => (self.holder_state(&lease, boot), Ok(lease)),
            Ok((Err(error), bytes)) => {
                let may_be_running =
                    Lease::parse_holder(&bytes).is_some_and(|(lease_boot, holder)| {
                        !self.has_holder_ended(&lease_boot, &holder, boot)
                    });
                let state =
                    if may_be_running { HolderState::Alive } else { HolderState::InitExited };
                (state, Err(format!("{name}: {error:#}")))
            }
            Err(error) => (HolderState::Alive, Err(format!("reading {name}: {error}"))),
        };
        Some(LeaseEntry { device: device.clone(), number, state, lease })
    }

    /// Returns the state of a lease's holder. After a reboot, no device has to be restored.
    fn holder_state(&self, lease: &Lease, boot: &str) -> HolderState {
        let has_ended = self.has_holder_ended(&lease.boot, &lease.holder, boot);
        match (lease.device_to_return(), &lease.holder) {
            (Some(moved), _) if lease.boot == boot && (has_ended || moved.returning) => {
                HolderState::Returning
            }
            _ if has_ended => HolderState::Ended,
            (_, Holder::Init { process, .. }) if self.has_ended(*process) => {
                HolderState::InitExited
            }
            _ => HolderState::Alive,
        }
    }

    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.dir, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut bytes = Vec::with_capacity(USUAL_BYTES);
        file.take(MAX_BYTES).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// Reads the lease in a slot. Returns `None` if it cannot be parsed.
    pub(super) fn read_lease(&self, device: &DeviceId, slot: u32) -> Option<Lease> {
        let bytes = self.read(&file_name(device, slot)).ok()??;
        Lease::parse(&bytes).ok()
    }

    /// Returns whether a holder has ended. Returns false if that cannot be determined.
    fn has_holder_ended(&self, lease_boot: &str, holder: &Holder, boot: &str) -> bool {
        if lease_boot != boot {
            return true;
        }
        match holder {
            Holder::Reservation { expires_ms, maker: creator, .. } => {
                since_boot_ms() >= *expires_ms
                    || creator.is_some_and(|creator| self.has_ended(creator))
            }
            Holder::Init { process, cgroup } => {
                self.has_ended(*process)
                    && !cgroup
                        .as_ref()
                        .is_some_and(|cgroup| self.processes.is_populated(cgroup).unwrap_or(true))
            }
        }
    }

    /// Returns whether a process has certainly exited.
    fn has_ended(&self, process: ProcessId) -> bool {
        self.processes.has_ended(process).ok().flatten() == Some(true)
    }

    /// Returns whether a process is certainly alive.
    pub(super) fn is_alive(&self, process: ProcessId) -> bool {
        self.processes.has_ended(process).ok().flatten() == Some(false)
    }

    pub(super) fn write_lease(
        &self,
        device: &DeviceId,
        choice: SlotChoice,
        lease: &Lease,
    ) -> Result<()> {
        self.write(device, choice, lease).with_context(|| self.write_context(device))
    }

    fn write(&self, device: &DeviceId, choice: SlotChoice, lease: &Lease) -> Result<()> {
        let name = file_name(device, choice.number());
        let bytes =
            lease.to_bytes(device, choice.number()).with_context(|| format!("writing {name}"))?;
        // A larger file could not be read, so the device would never be free.
        if bytes.len() as u64 > MAX_BYTES {
            bail!("writing {name}: longer than {MAX_BYTES} bytes");
        }
        let mut file = TempFile::create(self.dir.as_fd(), OsStr::new(&name), 0o600)?;
        file.write(&bytes)?;
        Ok(match choice {
            SlotChoice::Create(_) => file.commit_new(),
            SlotChoice::TakeOver(_) | SlotChoice::Keep(_) => file.commit_over(),
        }?)
    }

    pub(super) fn remove(&self, device: &DeviceId, number: u32) -> Result<()> {
        let removed = atomic::remove(&self.dir, OsStr::new(&file_name(device, number)));
        removed.map(drop).with_context(|| self.write_context(device))
    }

    fn write_context(&self, device: &DeviceId) -> String {
        format!("writing the lease of {device} in {:?}", self.path)
    }
}

/// Describes the container that has a slot, if it may be running.
fn describe_running(slot: &LeaseEntry) -> Option<String> {
    match &slot.lease {
        Ok(lease) => {
            let is_init = matches!(lease.holder, Holder::Init { .. });
            slot.live_lease().filter(|_| is_init).map(ToString::to_string)
        }
        Err(reason) => (slot.state == HolderState::Alive)
            .then(|| format!("a container of another version ({reason})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_host::{Host, bundle, claimed, leased, vfio};
    use crate::{FindUser, LeaseRequest, MemberRequest};
    use onload_core::pool::Numa;
    use rustix::fs::inotify;
    use std::fs;
    use std::mem::MaybeUninit;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    #[test]
    fn a_device_has_one_holder_until_that_releases_it() {
        let host = Host::new();
        let (one, two) = (host.start(1, 10), host.start(2, 20));
        host.claim("one", &one).unwrap();
        let line = host.claim("two", &two).unwrap_err();
        assert!(
            line.starts_with("vfio:0000:81:10.0: in use by container one (process 1, cgroup "),
            "{line}"
        );
        host.end(1);
        assert!(host.release("one"));
        assert_eq!(host.files(), [""; 0]);
        host.claim("two", &two).unwrap();
        assert_eq!(host.holder().unwrap(), "two");
    }

    #[test]
    fn a_holder_that_was_killed_loses_it_to_the_next() {
        let host = Host::new();
        host.claim("one", &host.start(1, 10)).unwrap();
        host.end(1);
        host.claim("two", &host.start(2, 20)).unwrap();
        assert_eq!(host.holder().unwrap(), "two");
        assert_eq!(host.files(), ["vfio=0000:81:10.0#0"]);
    }

    #[test]
    fn a_holder_whose_number_is_another_s_loses_it() {
        let host = Host::new();
        host.claim("one", &host.start(1, 10)).unwrap();
        host.end(1);
        host.start(1, 11);
        fs::remove_dir_all(host.path("sys/fs/cgroup/1")).unwrap();
        host.claim("two", &host.start(2, 20)).unwrap();
    }

    #[test]
    fn a_process_that_outlives_the_first_one_keeps_it() {
        let host = Host::new();
        host.claim("one", &host.start(1, 10)).unwrap();
        host.end_process(1);
        assert!(host.claim("two", &host.start(2, 20)).is_err());
        host.file("sys/fs/cgroup/1/cgroup.events", "populated 0\n");
        host.claim("two", &host.start(2, 20)).unwrap();
    }

    #[test]
    fn another_boot_ends_every_lease() {
        let mut host = Host::new();
        host.claim("one", &host.start(1, 10)).unwrap();
        host.boot_again();
        host.claim("two", &host.start(2, 20)).unwrap();
    }

    #[test]
    fn a_holder_of_another_pid_namespace_is_not_called_dead() {
        let mut host = Host::new();
        host.claim("one", &host.start(1, 10)).unwrap();
        host.end(1);
        host.enter_another_namespace();
        assert!(host.claim("two", &host.start(2, 20)).is_err());
        // An engine there judges its own containers.
        assert!(host.release("one"));
        host.claim("two", &host.start(2, 20)).unwrap();
        host.end(2);
        host.claim("three", &host.start(3, 30)).unwrap();
    }

    #[test]
    fn a_cgroup_that_was_made_again_is_not_the_holder_s() {
        let host = Host::new();
        host.claim("one", &host.start(1, 10)).unwrap();
        // Another container's, at the same path.
        host.file("sys/fs/cgroup/other/cgroup.events", "populated 1\n");
        host.end(1);
        fs::rename(host.path("sys/fs/cgroup/other"), host.path("sys/fs/cgroup/1")).unwrap();
        host.claim("two", &host.start(2, 20)).unwrap();
    }

    #[test]
    fn what_is_left_of_an_earlier_start_does_not_lock_a_container_out() {
        let host = Host::new();
        host.claim("one", &host.start(1, 10)).unwrap();
        host.end_process(1);
        assert!(host.claim("two", &host.start(2, 20)).is_err(), "its cgroup is populated");
        host.claim("one", &host.start(3, 30)).unwrap();
        assert_eq!(host.files().len(), 1);
    }

    #[test]
    fn the_late_end_of_an_earlier_start_keeps_its_hands_off_a_reservation() {
        let host = Host::new();
        let token = Token::new().unwrap();
        host.claim_by("one", Holder::new_reservation(token.clone(), None), None).unwrap();
        assert!(!host.release("one"));
        assert!(!host.release_by("one", Some(&[7; 16].into())));
        assert!(host.release_by("one", Some(&token)));
    }

    #[test]
    fn a_container_gets_all_its_devices_or_none() {
        let host = Host::new();
        let device = |name: &str| claimed(format!("vfio:{name}").parse().unwrap());
        let (one, two) = (host.start(1, 10), host.start(2, 20));
        host.claim_all("one", one, None, &[device("b")]).unwrap();
        let refused = host.claim_all("two", two.clone(), None, &[device("a"), device("b")]);
        assert!(refused.unwrap_err().starts_with("vfio:b: in use by container one"));
        assert_eq!(host.files(), ["vfio=b#0"]);
        host.claim_all("two", two, None, &[device("a"), device("c")]).unwrap();
    }

    #[test]
    fn a_device_that_is_held_under_another_name_is_refused() {
        let host = Host::new();
        let device = |name: &str| format!("vfio:{name}").parse::<DeviceId>().unwrap();
        host.claim_all("one", host.start(1, 10), None, &[claimed(device("10.1"))]).unwrap();
        let group = MemberRequest {
            aliases: vec![device("10.0"), device("10.1")],
            ..claimed(device("10.0"))
        };
        let line = host
            .claim_all("two", host.start(2, 20), None, std::slice::from_ref(&group))
            .unwrap_err();
        assert!(line.contains("vfio:10.0: in use by container one (process 1"), "{line}");
        assert!(line.contains(" as vfio:10.1;"), "{line}");
        host.end(1);
        host.claim_all("two", host.start(2, 20), None, &[group]).unwrap();
    }

    #[test]
    fn a_lease_that_stands_is_not_written_again() {
        let host = Host::new();
        let one = host.start(1, 10);
        host.claim("one", &one).unwrap();
        let inode = || {
            use std::os::unix::fs::MetadataExt;
            fs::metadata(host.path("run/@leases/vfio=0000:81:10.0#0")).unwrap().ino()
        };
        let before = inode();
        host.claim("one", &one).unwrap();
        assert_eq!(inode(), before);
    }

    #[test]
    fn the_operator_cannot_take_a_device_by_a_version_that_does_not_understand_its_lease() {
        let host = Host::new();
        host.claim("one", &host.start(1, 10)).unwrap();
        let path = host.path("run/@leases/vfio=0000:81:10.0#0");
        let newer =
            fs::read_to_string(&path).unwrap().replacen("\"version\":1", "\"version\":9", 1);
        fs::write(&path, newer).unwrap();
        let error = host.leases.release_all(&vfio()).unwrap_err().to_string();
        assert!(error.contains("a container of another version"), "{error}");
        host.end(1);
        assert_eq!(host.leases.release_all(&vfio()).unwrap(), 1);
    }

    #[test]
    fn a_holder_whose_cgroup_cannot_be_seen_may_live() {
        let host = Host::new();
        host.claim("one", &host.start(1, 10)).unwrap();
        host.end(1);
        fs::remove_dir_all(host.path("sys/fs/cgroup")).unwrap();
        assert!(host.claim("two", &host.start(2, 20)).is_err());
    }

    #[test]
    fn what_cannot_be_looked_at_may_live() {
        let host = Host::new();
        host.claim("one", &host.start(1, 10)).unwrap();
        host.remove("proc/1/stat").directory("proc/1/stat");
        fs::remove_dir_all(host.path("sys/fs/cgroup/1")).unwrap();
        assert!(host.claim("two", &host.start(2, 20)).is_err());
    }

    #[test]
    fn a_reservation_holds_until_its_token_turns_it_into_a_lease() {
        let host = Host::new();
        let token = Token::new().unwrap();
        let reservation = Holder::new_reservation(token.clone(), None);
        host.claim_by("one", reservation, None).unwrap();
        assert!(host.claim("two", &host.start(2, 20)).unwrap_err().contains("being made"));
        let other = [7; 16].into();
        assert!(host.claim_by("one", host.start(1, 10), Some(&other)).is_err());
        host.claim_by("one", host.start(1, 10), Some(&token)).unwrap();
        assert_eq!(host.files().len(), 1);
        assert!(host.claim("two", &host.start(2, 20)).unwrap_err().contains("process 1"));
    }

    #[test]
    fn the_ticket_of_a_reservation_stays_with_the_lease() {
        let host = Host::new();
        let token: Token = [5; 16].into();
        let ticket: Token = [6; 16].into();
        let given = MemberRequest { ticket: Some(ticket.clone()), ..claimed(vfio()) };
        let request = LeaseRequest {
            devices: &[given],
            numa: Numa::Any,
            container: &"one".parse().unwrap(),
            bundle: &bundle("one"),
            holder: Holder::new_reservation(token.clone(), None),
            token: None,
            claim: None,
            entry_point: "onload-container-runtime",
        };
        host.leases.acquire(&request, &|_| None).unwrap();
        let noted = || host.leases.list().unwrap()[0].lease.clone().unwrap().ticket;
        assert_eq!(noted(), Some(ticket.clone()));
        host.claim_by("one", host.start(1, 10), Some(&token)).unwrap();
        assert_eq!(noted(), Some(ticket.clone()));
        host.end(1);
        // The next holder's own start had none.
        host.claim("two", &host.start(2, 20)).unwrap();
        assert_eq!(noted(), None);
    }

    #[test]
    fn a_reservation_before_there_is_a_bundle_is_its_container_s_by_the_token() {
        let host = Host::new();
        let token = Token::new().unwrap();
        let reserve = || {
            let request = LeaseRequest {
                devices: &[claimed(vfio())],
                numa: Numa::Any,
                container: &"one".parse().unwrap(),
                bundle: Path::new(""),
                holder: Holder::new_reservation(token.clone(), None),
                token: None,
                claim: None,
                entry_point: "onload-nri",
            };
            host.leases.acquire(&request, &|_| None).unwrap();
        };
        reserve();
        let init = || host.start(1, 10);
        let other = [7; 16].into();
        for (id, named) in [("two", Some(&token)), ("one", Some(&other)), ("one", None)] {
            assert!(host.claim_by(id, init(), named).is_err(), "{id} {named:?}");
            assert!(!host.release_by(id, named), "{id} {named:?}");
        }
        host.claim_by("one", init(), Some(&token)).unwrap();
        // From here on it is a lease of that bundle.
        let lease = host.leases.list().unwrap().remove(0).lease.unwrap();
        assert_eq!(lease.bundle, bundle("one"));
        host.end(1);
        assert!(host.release_by("one", None));
        reserve();
        assert!(host.release_by("one", Some(&token)));
    }

    #[test]
    fn a_reservation_ends_with_the_process_that_was_to_create_the_container() {
        let host = Host::new();
        let Holder::Init { process, .. } = host.start(7, 70) else { unreachable!() };
        let reservation = Holder::new_reservation(Token::new().unwrap(), Some(process));
        host.claim_by("one", reservation, None).unwrap();
        assert!(host.claim("two", &host.start(2, 20)).is_err());
        host.end_process(7);
        host.claim("two", &host.start(2, 20)).unwrap();
    }

    #[test]
    fn a_reservation_is_given_back_by_its_token_alone() {
        let host = Host::new();
        let token = Token::new().unwrap();
        let reservation = Holder::new_reservation(token.clone(), None);
        host.claim_by("one", reservation, None).unwrap();
        let give_back = |token: &Token| host.leases.cancel_reservation(&[vfio()], token);
        give_back(&[7; 16].into()).unwrap();
        assert_eq!(host.files().len(), 1);
        give_back(&token).unwrap();
        assert_eq!(host.files().len(), 0);
        host.claim("one", &host.start(1, 10)).unwrap();
        give_back(&token).unwrap();
        assert_eq!(host.files().len(), 1, "a lease is no reservation");
    }

    #[test]
    fn a_reservation_that_expired_goes_to_the_next_and_its_container_is_refused() {
        let host = Host::new();
        let token: Token = [7; 16].into();
        let expired =
            Holder::Reservation { token: token.clone(), expires_ms: since_boot_ms(), maker: None };
        host.claim_by("one", expired, None).unwrap();
        host.claim("two", &host.start(2, 20)).unwrap();
        let line = host.claim_by("one", host.start(1, 10), Some(&token)).unwrap_err();
        assert!(line.contains("its reservation has expired"), "{line}");
    }

    #[test]
    fn the_end_of_another_container_releases_nothing() {
        let host = Host::new();
        host.claim("one", &host.start(1, 10)).unwrap();
        host.end_process(1);
        assert!(!host.release("two"));
        let one = "one".parse().unwrap();
        let elsewhere = Path::new("/elsewhere/one");
        host.leases.release(&[vfio()], &leased(&one, elsewhere)).unwrap();
        assert_eq!(host.holder().unwrap(), "one", "another engine's container of that name");
        assert!(host.release("one"));
    }

    #[test]
    fn a_lease_that_could_not_be_read_back_is_not_written() {
        let host = Host::new();
        let noted = |bytes: usize| {
            let mut device = claimed(vfio());
            device.facts.insert("note".to_owned(), "x".repeat(bytes));
            device
        };
        let claim = |bytes| host.claim_all("one", host.start(1, 10), None, &[noted(bytes)]);
        let line = claim(64 * 1024).unwrap_err();
        assert!(line.ends_with("longer than 65536 bytes"), "{line}");
        assert_eq!(host.files(), [""; 0]);
        claim(63 * 1024).unwrap();
        assert!(host.leases.list().unwrap()[0].lease.is_ok());
    }

    #[test]
    fn who_uses_a_device_without_a_lease_is_named() {
        let host = Host::new();
        let claim = |user: FindUser<'_>| {
            let request = LeaseRequest {
                devices: &[claimed(vfio())],
                numa: Numa::Any,
                container: &"one".parse().unwrap(),
                bundle: &bundle("one"),
                holder: host.start(1, 10),
                token: None,
                claim: None,
                entry_point: "createRuntime",
            };
            let claimed = host.leases.acquire(&request, user);
            claimed.map_err(|error| format!("{error:#}"))
        };
        let busy = |_: &DeviceId| Some("process 7 (\"qemu\")".to_owned());
        assert_eq!(
            claim(&busy).unwrap_err(),
            "vfio:0000:81:10.0 is in use by process 7 (\"qemu\"); stop that first"
        );
        assert_eq!(host.files(), [""; 0]);
        claim(&|_| None).unwrap();
        // It is its own user now.
        claim(&busy).unwrap();
    }

    #[test]
    fn a_container_with_many_leases_ends_after_one_listing() {
        let host = Host::new();
        let devices: Vec<DeviceId> =
            (0..2000).map(|number| format!("vfio:f{number}").parse().unwrap()).collect();
        let requests: Vec<MemberRequest> = devices.iter().cloned().map(claimed).collect();
        host.claim_all("one", host.start(1, 10), None, &requests).unwrap();
        host.claim("two", &host.start(2, 20)).unwrap();
        host.end(1);
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        // The kernel reports each getdents(2), of which a listing takes a few.
        inotify::add_watch(&watch, host.path("run/@leases"), inotify::WatchFlags::ACCESS).unwrap();
        host.leases.release(&devices, &leased(&"one".parse().unwrap(), &bundle("one"))).unwrap();
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&watch, &mut buffer);
        let mut reads = 0;
        while let Ok(event) = events.next() {
            reads += usize::from(event.events().contains(inotify::ReadFlags::ISDIR));
        }
        assert!((1..100).contains(&reads), "the directory was read {reads} times");
        assert_eq!(host.files(), ["vfio=0000:81:10.0#0"]);
    }

    #[test]
    fn a_late_end_of_an_earlier_start_releases_nothing_of_a_later_one() {
        let host = Host::new();
        host.claim("one", &host.start(1, 10)).unwrap();
        assert!(!host.release("one"), "its process lives");
        assert_eq!(host.holder().unwrap(), "one");
    }

    #[test]
    fn a_file_that_is_not_understood_holds_the_device_until_the_operator_says_otherwise() {
        for text in ["", "{\"version\":1", "{\"version\":9}"] {
            let host = Host::new();
            host.file("run/@leases/vfio=0000:81:10.0#0", text);
            let line = host.claim("one", &host.start(1, 10)).unwrap_err();
            assert!(line.contains("an unknown container"), "{line}");
            assert!(host.leases.list().unwrap()[0].lease.is_err());
            assert_eq!(host.leases.release_all(&vfio()).unwrap(), 1);
            host.claim("one", &host.start(1, 10)).unwrap();
        }
    }

    #[test]
    fn the_operator_cannot_take_a_device_from_a_container_that_runs() {
        let host = Host::new();
        host.claim("one", &host.start(1, 10)).unwrap();
        let error = host.leases.release_all(&vfio()).unwrap_err();
        let line = error.to_string();
        assert!(line.contains("in use by container one"), "{line}");
        assert!(line.ends_with("stop that container first"), "{line}");
        host.end(1);
        assert_eq!(host.leases.release_all(&vfio()).unwrap(), 1);
        assert_eq!(host.leases.release_all(&vfio()).unwrap(), 0);
    }

    #[test]
    fn what_a_killed_process_left_half_written_is_removed() {
        let host = Host::new();
        host.file("run/@leases/.onload-ctk-0123456789abcdef.tmp", "{");
        host.claim("one", &host.start(1, 10)).unwrap();
        assert_eq!(host.files(), ["vfio=0000:81:10.0#0"]);
    }

    #[test]
    fn nobody_else_can_see_the_leases() {
        let host = Host::new();
        host.claim("one", &host.start(1, 10)).unwrap();
        let mode = |path: &str| {
            let found = fs::metadata(host.path(path)).unwrap();
            found.permissions().mode() & 0o7777
        };
        assert_eq!(mode("run/@leases"), 0o700);
        assert_eq!(mode("run/@leases/.lock"), 0o600);
        assert_eq!(mode("run/@leases/vfio=0000:81:10.0#0"), 0o600);
    }

    #[test]
    fn leases_are_listed_by_device_with_what_has_ended() {
        let host = Host::new();
        host.claim("one", &host.start(1, 10)).unwrap();
        host.file("run/@leases/rdma=mlx5_0#1", "x");
        host.file("run/@leases/README", "x");
        host.end(1);
        let listed = host.leases.list().unwrap();
        let found: Vec<_> = listed
            .iter()
            .map(|each| (each.device.to_string(), each.number, each.has_ended()))
            .collect();
        assert_eq!(
            found,
            [("rdma:mlx5_0".to_owned(), 1, false), ("vfio:0000:81:10.0".to_owned(), 0, true)]
        );
    }

    #[test]
    fn of_many_that_claim_at_once_as_many_get_it_as_may() {
        let host = Host::new();
        let device: DeviceId = "rdma:mlx5_0".parse().unwrap();
        let holders: Vec<Holder> = (1..=40).map(|pid| host.start(pid, 10)).collect();
        let given = std::thread::scope(|scope| {
            let claims: Vec<_> = holders
                .iter()
                .enumerate()
                .map(|(index, holder)| {
                    let (leases, device) = (&host.leases, &device);
                    scope.spawn(move || {
                        let id = format!("c{index}");
                        let shared = MemberRequest::for_device(device.clone(), 16);
                        let request = LeaseRequest {
                            devices: &[shared],
                            numa: Numa::Any,
                            container: &id.parse().unwrap(),
                            bundle: &bundle(&id),
                            holder: holder.clone(),
                            token: None,
                            claim: None,
                            entry_point: "createRuntime",
                        };
                        match leases.acquire(&request, &|_| None) {
                            Ok(_) => 1,
                            Err(error) if format!("{error:#}").contains("in use by") => 0,
                            Err(error) => panic!("{error:#}"),
                        }
                    })
                })
                .collect();
            claims.into_iter().map(|claim| claim.join().unwrap()).sum::<usize>()
        });
        assert_eq!(given, 16);
        assert_eq!(host.files().len(), 16);
        let slots: Vec<u32> = host.leases.list().unwrap().iter().map(|each| each.number).collect();
        assert_eq!(slots, (0..16).collect::<Vec<_>>());
    }
}
