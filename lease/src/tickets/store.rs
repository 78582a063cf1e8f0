//! The files of tickets. A single lock protects writing, redeeming and removing them.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::Deserialize;

use super::file::{Ticket, TicketUser};
use super::name::short_id;
use crate::run_dir::{REQUESTS, RunDir, list_names, open_private};
use onload_core::device_id::DeviceId;
use onload_core::timestamp;
use onload_core::token::Token;
use onload_sys::error::{Context as _, Error, Result, bail, error};
use onload_sys::fs::atomic::{self, WriteError, is_temporary_name};
use onload_sys::fs::lock::{Lock, LockMode};
use onload_sys::fs::open::may_exist;
use onload_sys::fs::regular;
use onload_sys::processes::{ProcessId, Processes};

/// How long a ticket can be redeemed again after its container has ended. This is enough for a task that
/// its engine restarts. Afterwards a copy of the ticket is worthless.
const RESTART: Duration = Duration::from_secs(3600);
/// How long a ticket can be redeemed for the first time. A task may wait for its image or a template.
const FIRST_START: Duration = Duration::from_secs(24 * 3600);

/// The lock of all tickets.
const LOCK: &str = ".lock";
const MAX_BYTES: u64 = 64 * 1024;
/// The files in which runc (libcontainer/factory_linux.go) and crun (src/libcrun/status.c) record a
/// container's init process.
const STATE_FILES: [&str; 2] = ["state.json", "status"];
/// Maximum size of such a file.
const MAX_STATE_BYTES: u64 = 1024 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketEntry {
    pub id: Token,
    /// The ticket, or the reason why its file is invalid.
    pub ticket: Result<Ticket, String>,
    /// Whether the last container that was started with the ticket exists, or may exist.
    pub is_used: bool,
    /// Whether the ticket can never be redeemed again.
    pub has_expired: bool,
}

/// A container's init process, as its runtime recorded it.
#[derive(Deserialize)]
struct InitState {
    #[serde(rename = "init_process_pid", alias = "pid")]
    pid: u32,
    /// In clock ticks since boot.
    #[serde(rename = "init_process_start", alias = "process-start-time")]
    start_time: u64,
}

#[derive(Debug)]
pub struct Tickets {
    dir: OwnedFd,
    path: PathBuf,
    processes: Processes,
    /// Returns the milliseconds since boot.
    clock: fn() -> u64,
}

fn short_name(id: &Token) -> String {
    format!("{}…", short_id(id))
}

pub fn unknown_error(id: &Token) -> Error {
    error!(
        "ticket {} is unknown: a later reservation has its devices, it expired, the host was \
         rebooted, or the ticket is invalid; let the engine place the task again",
        short_name(id)
    )
}

impl Tickets {
    /// Opens the directory in [`crate::run_dir::RUN_DIR`]. Creates it if necessary.
    pub fn open(run: &RunDir, processes: Processes) -> Result<Self> {
        let dir = open_private(run, REQUESTS).with_context(|| open_context(run))?;
        Tickets::from_dir(run, dir, processes)
    }

    /// Opens the directory if it exists.
    pub fn find(run: &RunDir, processes: Processes) -> Result<Option<Self>> {
        match run.open(REQUESTS) {
            Ok(dir) => Tickets::from_dir(run, dir, processes).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error).with_context(|| open_context(run)),
        }
    }

    fn from_dir(run: &RunDir, dir: OwnedFd, processes: Processes) -> Result<Self> {
        let stat = fstat(&dir).with_context(|| open_context(run))?;
        let path = run.path().join(REQUESTS);
        if stat.st_uid != geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
            bail!(
                "{path:?} does not belong only to root; remove it, and let the engine place its \
                 tasks again"
            );
        }
        Ok(Tickets { dir, path, processes, clock: timestamp::since_boot_ms })
    }

    /// Writes a new ticket with the time of now, and removes earlier tickets for its exclusive devices. Does not read
    /// other tickets, since there may be thousands.
    pub fn write(&self, new: Ticket, timeout: Duration) -> Result<Token> {
        let ticket = Ticket {
            boot: self.processes.boot_id()?,
            since: timestamp::unix_seconds(),
            made_ms: (self.clock)(),
            ..new
        };
        let id = Token::new().context("making a ticket")?;
        let _lock = self.lock(timeout)?;
        for device in &ticket.exclusive {
            if let Some(earlier) = self.read_index(device) {
                self.unlink(&earlier)?;
            }
            self.write_index(device, &id)?;
        }
        self.publish(&id, &ticket)?;
        Ok(id)
    }

    /// Reads a ticket of this boot. Does not check whether it has expired or is in use.
    pub fn read(&self, id: &Token) -> Result<Ticket> {
        let bytes = self.read_file(id)?.ok_or_else(|| unknown_error(id))?;
        let ticket = parse(id, &bytes)?;
        if ticket.boot != self.processes.boot_id()? {
            bail!(
                "ticket {} is from before the last boot; let the engine place the task again",
                short_name(id)
            );
        }
        Ok(ticket)
    }

    /// Reads a ticket for a container that starts with it, and records the container.
    pub fn redeem(&self, id: &Token, user: TicketUser, timeout: Duration) -> Result<Ticket> {
        let _lock = self.lock(timeout)?;
        let mut ticket = self.check_redeemable(id, &user)?;
        ticket.user = Some(user);
        self.publish(id, &ticket)?;
        Ok(ticket)
    }

    /// Like [`Tickets::redeem`], but records nothing.
    pub fn check_redeemable(&self, id: &Token, user: &TicketUser) -> Result<Ticket> {
        let ticket = self.read(id)?;
        self.check_user(id, &ticket, user)?;
        Ok(ticket)
    }

    /// Records which containers of the listed tickets have ended. [`RESTART`] counts from this record.
    /// Removes expired tickets, and temporary files that a killed process left.
    pub fn prune(&self, entries: &[TicketEntry], timeout: Duration) -> Result<()> {
        let mut temporary_names = self.file_names()?;
        temporary_names.retain(|name| is_temporary_name(name.as_ref()));
        let changed: Vec<&Token> = entries
            .iter()
            .filter(|entry| entry.has_expired || entry.has_just_ended())
            .map(|entry| &entry.id)
            .collect();
        if changed.is_empty() && temporary_names.is_empty() {
            return Ok(());
        }
        // The tickets were listed without the lock, since listing takes long, so each one is read again.
        let _lock = self.lock(timeout)?;
        for name in temporary_names {
            // Failing is harmless: no ticket has such a name.
            let _ = atomic::remove(&self.dir, name.as_ref());
        }
        let boot = self.processes.boot_id()?;
        for id in changed {
            match self.read_entry(id.clone(), &boot) {
                Some(entry) if entry.has_just_ended() => self.record_end(entry)?,
                Some(entry) if entry.has_expired => drop(self.unlink(id)?),
                _ => {}
            }
        }
        Ok(())
    }

    fn record_end(&self, entry: TicketEntry) -> Result<()> {
        let Ok(mut ticket) = entry.ticket else {
            return Ok(());
        };
        if let Some(user) = &mut ticket.user {
            user.ended_ms = Some((self.clock)());
        }
        self.publish(&entry.id, &ticket)
    }

    /// Lists all tickets, invalid ones first, then the oldest first. Changes during the call may or
    /// may not be included.
    pub fn list(&self) -> Result<Vec<TicketEntry>> {
        let boot = self.processes.boot_id()?;
        let mut entries = Vec::new();
        for name in self.file_names()? {
            if let Ok(id) = name.parse() {
                entries.extend(self.read_entry(id, &boot));
            }
        }
        entries.sort_unstable_by(|a, b| {
            (a.created(), a.id.as_str()).cmp(&(b.created(), b.id.as_str()))
        });
        Ok(entries)
    }

    /// Reads a ticket. Returns `None` if it does not exist.
    fn read_entry(&self, id: Token, boot: &str) -> Option<TicketEntry> {
        let ticket = match self.read_file(&id).transpose()? {
            Ok(bytes) => parse(&id, &bytes),
            Err(error) => Err(error),
        };
        let is_used = ticket
            .as_ref()
            .is_ok_and(|ticket| ticket.user.as_ref().is_some_and(|user| self.is_alive(user)));
        let has_expired = ticket
            .as_ref()
            .is_ok_and(|ticket| ticket.boot != boot || (!is_used && self.is_late(ticket)));
        Some(TicketEntry {
            id,
            is_used,
            has_expired,
            ticket: ticket.map_err(|error| format!("{error:#}")),
        })
    }

    /// Records which ticket has an exclusive device.
    fn write_index(&self, device: &DeviceId, id: &Token) -> Result<()> {
        let (name, text) = (device.to_string(), id.as_str());
        atomic::write_atomic(&self.dir, name.as_ref(), text.as_bytes(), 0o600)
            .with_context(|| format!("writing which ticket has a device, in {:?}", self.path))
    }

    /// Returns the ticket that has an exclusive device. It may no longer exist.
    fn read_index(&self, device: &DeviceId) -> Option<Token> {
        let text = regular::read(&self.path.join(device.to_string()), MAX_BYTES).ok()?;
        str::from_utf8(&text).ok()?.parse().ok()
    }

    /// Fails if the ticket has expired, if another container uses it, or if it is valid only for another
    /// task.
    fn check_user(&self, id: &Token, ticket: &Ticket, user: &TicketUser) -> Result<()> {
        let is_alive = ticket.user.as_ref().is_some_and(|user| self.is_alive(user));
        if !is_alive && self.is_late(ticket) {
            bail!(
                "ticket {} has expired: its task did not start within {} h, or within {} h after \
                 its last container ended; let the engine place the task again",
                short_name(id),
                FIRST_START.as_secs() / 3600,
                RESTART.as_secs() / 3600
            );
        }
        let Some(last_user) = &ticket.user else {
            return Ok(());
        };
        if is_alive && !user.is_same(last_user) {
            bail!(
                "ticket {} is in use by container {}, and a ticket is valid for one container at a \
                 time",
                short_name(id),
                last_user.container
            );
        }
        if last_user.task.is_some() && last_user.task != user.task {
            bail!(
                "ticket {} is valid only for the task that used it first, and this container \
                 belongs to another; let the engine place the task again",
                short_name(id)
            );
        }
        Ok(())
    }

    /// Returns whether the time to start a container with the ticket has passed. The caller has checked that
    /// no container uses the ticket now.
    fn is_late(&self, ticket: &Ticket) -> bool {
        let (since, limit) = match &ticket.user {
            None => (ticket.made_ms, FIRST_START),
            // If the end of the last container is not recorded yet, it counts as just ended.
            Some(user) => (user.ended_ms.unwrap_or(u64::MAX), RESTART),
        };
        u128::from((self.clock)().saturating_sub(since)) > limit.as_millis()
    }

    /// Returns whether a container exists, or may exist: its creator has not ended, or its runtime
    /// keeps its state and its init process has not ended.
    fn is_alive(&self, user: &TicketUser) -> bool {
        let is_being_created = self.processes.has_ended(user.maker).ok().flatten() != Some(true);
        is_being_created
            || user.state.iter().any(|state| {
                may_exist(state) && !self.init_has_ended(state, user.maker.pid_namespace)
            })
    }

    /// Returns whether the init process of a container is known to have ended. The container's
    /// runtime keeps its state in `state`, with process IDs of this PID namespace.
    fn init_has_ended(&self, state: &Path, pid_namespace: u64) -> bool {
        let Some(text) = STATE_FILES
            .iter()
            .find_map(|name| regular::read(&state.join(name), MAX_STATE_BYTES).ok())
        else {
            return false;
        };
        let Ok(InitState { pid, start_time }) = serde_json::from_slice(&text) else {
            return false;
        };
        let init = ProcessId { pid, start_time, pid_namespace };
        self.processes.has_ended(init).ok().flatten() == Some(true)
    }

    fn lock(&self, timeout: Duration) -> Result<Lock> {
        Ok(Lock::acquire(&self.dir, &self.path, LOCK, LockMode::Exclusive, timeout)?)
    }

    fn file_names(&self) -> Result<Vec<String>> {
        list_names(&self.dir).with_context(|| format!("listing {:?}", self.path))
    }

    /// Reads the file of a ticket. Fails if another user may have written it. Returns `None` if the ticket
    /// does not exist.
    fn read_file(&self, id: &Token) -> Result<Option<Vec<u8>>> {
        let context = || format!("reading ticket {}", short_name(id));
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.dir, id.as_str(), flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            opened => File::from(opened.with_context(context)?),
        };
        let stat = fstat(&file).with_context(context)?;
        let is_private = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && stat.st_uid == geteuid().as_raw()
            && stat.st_mode & 0o7777 == 0o600
            && stat.st_nlink == 1;
        let mut bytes = Vec::new();
        (&file).take(MAX_BYTES + 1).read_to_end(&mut bytes).with_context(context)?;
        if !is_private || bytes.len() as u64 > MAX_BYTES {
            bail!(
                "ticket {}: its file is too large, or other users may have accessed it; let the \
                 engine place the task again",
                short_name(id)
            );
        }
        Ok(Some(bytes))
    }

    fn publish(&self, id: &Token, ticket: &Ticket) -> Result<()> {
        let name = OsStr::new(id.as_str());
        let written = match ticket.to_bytes() {
            Ok(bytes) => atomic::write_atomic(&self.dir, name, &bytes, 0o600),
            Err(error) => {
                Err(WriteError { action: "writing", name: name.to_owned(), source: error.into() })
            }
        };
        self.add_context(id, written)
    }

    fn unlink(&self, id: &Token) -> Result<bool> {
        self.add_context(id, atomic::remove(&self.dir, OsStr::new(id.as_str())))
    }

    fn add_context<T>(&self, id: &Token, result: Result<T, WriteError>) -> Result<T> {
        // The file's name is the ticket itself, which must stay secret.
        let name = short_name(id);
        result
            .map_err(|error| WriteError { name: name.clone().into(), ..error })
            .with_context(|| format!("writing ticket {name} in {:?}", self.path))
    }
}

impl TicketEntry {
    fn created(&self) -> u64 {
        self.ticket.as_ref().map_or(0, |ticket| ticket.since)
    }

    fn user(&self) -> Option<&TicketUser> {
        self.ticket.as_ref().ok()?.user.as_ref()
    }

    /// Returns whether the container has ended, and this is not recorded yet.
    fn has_just_ended(&self) -> bool {
        !self.is_used
            && !self.has_expired
            && self.user().is_some_and(|user| user.ended_ms.is_none())
    }
}

fn open_context(run: &RunDir) -> String {
    format!("opening {:?}", run.path().join(REQUESTS))
}

fn parse(id: &Token, bytes: &[u8]) -> Result<Ticket> {
    Ticket::parse(bytes).map_err(|error| {
        error!("ticket {}: {error:#}; let the engine place the task again", short_name(id))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use onload_test_tree::Tree;
    use std::cell::Cell;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    const TIMEOUT: Duration = Duration::from_secs(10);
    const SECOND: u64 = 1000;

    thread_local! {
        static NOW: Cell<u64> = const { Cell::new(0) };
    }

    fn advance_clock(seconds: u64) {
        NOW.set(NOW.get() + seconds * SECOND);
    }

    /// A host with a boot ID, processes and tickets.
    struct Host {
        tree: Tree,
        tickets: Tickets,
    }

    impl Host {
        fn new() -> Self {
            let tree = Tree::new();
            tree.boot("this boot").file("proc/self/ns/pid", "");
            tree.directory("run");
            let run = RunDir::find(&tree.path("run")).unwrap().unwrap();
            let mut tickets = Tickets::open(&run, Processes::at_root(tree.root())).unwrap();
            tickets.clock = || NOW.get();
            Host { tree, tickets }
        }

        fn path(&self, path: &str) -> PathBuf {
            self.tree.path(path)
        }

        fn file(&self, id: &Token) -> PathBuf {
            self.path("run/@requests").join(id.as_str())
        }

        fn reboot(&mut self) {
            self.tree.boot("the next");
            self.tickets.processes = Processes::at_root(self.tree.root());
        }

        /// Returns a container whose runtime is process `pid` and keeps its state in `state/ID`.
        fn user(&self, id: &str, pid: u32) -> TicketUser {
            self.tree.process(pid, 10);
            TicketUser {
                container: id.parse().unwrap(),
                bundle: Path::new("/bundles").join(id),
                maker: self.tickets.processes.find(pid).unwrap().unwrap(),
                state: vec![self.path(&format!("state/{id}"))],
                task: None,
                ended_ms: None,
            }
        }

        /// Like [`Host::user`], for a task with a directory.
        fn user_of_task(&self, id: &str, pid: u32, task: &str) -> TicketUser {
            TicketUser { task: Some(task.into()), ..self.user(id, pid) }
        }

        fn prune(&self) {
            let listed = self.tickets.list().unwrap();
            self.tickets.prune(&listed, TIMEOUT).unwrap();
        }

        /// Records ended containers, and lets the seconds pass.
        fn prune_and_wait(&self, seconds: u64) {
            self.prune();
            advance_clock(seconds);
        }

        /// Simulates that the runtime has created the container: its process ends, and its state exists.
        fn create(&self, user: &TicketUser) {
            self.end(user);
            fs::create_dir_all(&user.state[0]).unwrap();
        }

        fn end(&self, user: &TicketUser) {
            self.tree.remove(&format!("proc/{}", user.maker.pid));
        }

        fn write(&self, request: &str, exclusive: &[&str]) -> Token {
            let new = Ticket {
                request: request.to_owned(),
                exclusive: exclusive.iter().map(|device| device.parse().unwrap()).collect(),
                engine: "nomad".to_owned(),
                description: Some("job redis".to_owned()),
                ..Ticket::default()
            };
            self.tickets.write(new, TIMEOUT).unwrap()
        }

        fn vfio(&self) -> Token {
            self.write("vfio=0000:81:10.0;nic=ens1", &["vfio:0000:81:10.0"])
        }

        fn redeem(&self, id: &Token, user: &TicketUser) -> Result<Ticket, String> {
            let checked = self.tickets.check_redeemable(id, user);
            let redeemed = self
                .tickets
                .redeem(id, user.clone(), TIMEOUT)
                .map_err(|error| format!("{error:#}"));
            assert_eq!(checked.is_ok(), redeemed.is_ok());
            redeemed
        }

        fn refusal(&self, id: &Token) -> String {
            let read = format!("{:#}", self.tickets.read(id).unwrap_err());
            let user = self.user("web", 7);
            assert_eq!(self.redeem(id, &user).unwrap_err(), read);
            assert!(!read.contains(id.as_str()), "{read}");
            read
        }
    }

    #[test]
    fn a_ticket_contains_the_reservation() {
        let host = Host::new();
        let id = host.vfio();
        let ticket = host.tickets.read(&id).unwrap();
        assert_eq!(ticket.request, "vfio=0000:81:10.0;nic=ens1");
        assert_eq!(ticket.exclusive, ["vfio:0000:81:10.0".parse().unwrap()]);
        assert_eq!(ticket.boot, "this boot");
        assert_eq!(ticket.parse_request().unwrap().devices.len(), 2);
        assert_ne!(host.vfio(), id);
    }

    #[test]
    fn other_users_can_neither_read_nor_list_tickets() {
        let host = Host::new();
        let id = host.vfio();
        let mode = |path: PathBuf| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!(mode(host.path("run/@requests")), 0o700);
        assert_eq!(mode(host.file(&id)), 0o600);
    }

    #[test]
    fn a_guessed_ticket_is_rejected_without_showing_it() {
        let host = Host::new();
        host.vfio();
        let message = host.refusal(&[0xab; 16].into());
        assert!(message.starts_with("ticket abababab… is unknown: "), "{message}");
    }

    #[test]
    fn only_32_lower_case_digits_become_a_file_name() {
        for bad in ["", "../x", "..", "/etc/passwd", ".lock", "0F", "abababab"] {
            assert!(bad.parse::<Token>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_ticket_is_valid_until_a_later_one_has_its_device() {
        let host = Host::new();
        let (first, other) = (host.vfio(), host.write("vfio=b;rdma=a", &["vfio:b"]));
        let shared = host.write("vfio=0000:81:10.0", &[]);
        host.tickets.read(&first).unwrap();
        let second = host.vfio();
        assert!(host.refusal(&first).contains("is unknown: a later reservation"));
        for good in [other, shared, second] {
            host.tickets.read(&good).unwrap();
        }
    }

    #[test]
    fn a_ticket_of_an_earlier_boot_is_rejected_and_removed() {
        let mut host = Host::new();
        let (old, older) = (host.vfio(), host.write("rdma=a", &[]));
        host.reboot();
        assert!(host.refusal(&old).contains("from before the last boot"));
        let new = host.write("rdma=a", &[]);
        host.prune();
        assert!(host.refusal(&older).contains("is unknown"));
        host.tickets.read(&new).unwrap();
    }

    #[test]
    fn a_copied_ticket_is_rejected_while_its_container_exists() {
        let host = Host::new();
        let id = host.write("nic=all", &[]);
        let (own, other) = (host.user("own", 1), host.user("other", 2));
        host.redeem(&id, &own).unwrap();
        let refused = |by: &TicketUser| host.redeem(&id, by).unwrap_err();
        assert!(refused(&other).ends_with(
            "is in use by container own, and a ticket is valid for one container at a time"
        ));
        host.create(&own);
        assert!(refused(&other).contains("in use by container own"));
        // The same name in another engine is another container.
        let mut elsewhere = host.user("own", 3);
        elsewhere.bundle = "/elsewhere/own".into();
        assert!(refused(&elsewhere).contains("in use by container own"));
        fs::remove_dir(&own.state[0]).unwrap();
        host.redeem(&id, &other).unwrap();
        assert!(refused(&own).contains("in use by container other"));
    }

    #[test]
    fn a_restarted_task_uses_the_same_ticket() {
        let host = Host::new();
        let id = host.vfio();
        for pid in 1..4 {
            let user = host.user(&format!("start{pid}"), pid);
            assert_eq!(host.redeem(&id, &user).unwrap().user.unwrap(), user);
            host.create(&user);
            // An engine may call the runtime again for the same container.
            let again = host.user(&format!("start{pid}"), 10 + pid);
            host.redeem(&id, &again).unwrap();
            host.end(&again);
            fs::remove_dir(&user.state[0]).unwrap();
        }
    }

    #[test]
    fn a_ticket_is_bound_to_the_first_task() {
        let host = Host::new();
        let id = host.write("nic=all", &[]);
        let first = host.user_of_task("own", 1, "/alloc/1/redis/secrets");
        host.redeem(&id, &first).unwrap();
        host.end(&first);
        for other in [
            host.user("other", 2),
            host.user_of_task("own", 3, "/alloc/2/redis/secrets"),
            host.user_of_task("again", 4, "/alloc/1/redis/secrets"),
        ] {
            let is_its_own = other.task == first.task;
            let redeemed = host.redeem(&id, &other);
            assert_eq!(redeemed.is_ok(), is_its_own, "{other:?}");
            if let Err(said) = redeemed {
                assert!(said.contains("is valid only for the task that used it first"), "{said}");
            }
            host.end(&other);
        }
    }

    #[test]
    fn a_ticket_expires_an_hour_after_its_task_ended() {
        let host = Host::new();
        let id = host.vfio();
        let (first, second) = (host.user("one", 1), host.user("two", 2));
        let ended = || {
            host.prune();
            host.tickets.read(&id).unwrap().user?.ended_ms
        };
        assert_eq!(ended(), None, "not used yet");
        host.redeem(&id, &first).unwrap();
        assert_eq!(ended(), None, "it is there");
        host.end(&first);
        host.prune_and_wait(RESTART.as_secs() - 60);
        host.redeem(&id, &second).unwrap();
        host.end(&second);
        host.prune_and_wait(RESTART.as_secs() + 1);
        for late in [host.user("two", 3), host.user("three", 4)] {
            let said = host.redeem(&id, &late).unwrap_err();
            assert!(said.contains("within 1 h after its last container ended"), "{said}");
        }
    }

    #[test]
    fn a_ticket_is_free_again_if_the_init_process_was_killed() {
        for (file, text) in [
            (
                "state.json",
                r#"{"id":"own","init_process_pid":9,"init_process_start":10,"created":"x"}"#,
            ),
            ("status", r#"{"pid":9,"process-start-time":10,"rootfs":"/x"}"#),
        ] {
            let host = Host::new();
            let id = host.write("nic=all", &[]);
            let (own, other) = (host.user("own", 1), host.user("other", 2));
            host.redeem(&id, &own).unwrap();
            host.create(&own);
            let init = host.user("init", 9);
            fs::write(own.state[0].join(file), text).unwrap();
            assert!(host.redeem(&id, &other).is_err(), "{file}");
            host.end(&init);
            host.redeem(&id, &other).unwrap();
        }
    }

    #[test]
    fn a_container_with_an_invalid_state_file_counts_as_alive() {
        let host = Host::new();
        let id = host.write("nic=all", &[]);
        let (own, other) = (host.user("own", 1), host.user("other", 2));
        host.redeem(&id, &own).unwrap();
        host.create(&own);
        for text in ["", "{}", "{\"init_process_pid\":9}", "[1]"] {
            fs::write(own.state[0].join("state.json"), text).unwrap();
            assert!(host.redeem(&id, &other).is_err(), "{text}");
        }
    }

    #[test]
    fn a_ticket_is_free_again_if_its_container_was_never_created() {
        let host = Host::new();
        let id = host.vfio();
        let (own, other) = (host.user("own", 1), host.user("other", 2));
        host.redeem(&id, &own).unwrap();
        host.end(&own);
        host.redeem(&id, &other).unwrap();
    }

    #[test]
    fn only_a_private_regular_file_is_a_ticket() {
        let host = Host::new();
        let id = host.vfio();
        let file = host.file(&id);
        let elsewhere = host.path("elsewhere");
        fs::rename(&file, &elsewhere).unwrap();
        symlink(&elsewhere, &file).unwrap();
        host.refusal(&id);
        fs::remove_file(&file).unwrap();
        fs::hard_link(&elsewhere, &file).unwrap();
        assert!(host.refusal(&id).contains("other users may have accessed it"));
        fs::remove_file(&elsewhere).unwrap();
        host.tickets.read(&id).unwrap();
        for mode in [0o640, 0o604, 0o620, 0o700, 0o400] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            let message = host.refusal(&id);
            assert!(message.contains("other users may have accessed it"), "{mode:o}: {message}");
        }
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        host.refusal(&id);
    }

    #[test]
    fn a_file_of_another_user_is_rejected() {
        if !geteuid().is_root() {
            eprintln!("skipped: giving a file away needs root");
            return;
        }
        let host = Host::new();
        let id = host.vfio();
        std::os::unix::fs::chown(host.file(&id), Some(1234), None).unwrap();
        assert!(host.refusal(&id).contains("other users may have accessed it"));
    }

    #[test]
    fn a_directory_that_others_can_enter_is_rejected() {
        let host = Host::new();
        let run = RunDir::find(&host.path("run")).unwrap().unwrap();
        let find = || Tickets::find(&run, Processes::at_root(host.tree.root()));
        assert!(find().unwrap().is_some());
        let open = fs::Permissions::from_mode(0o711);
        fs::set_permissions(host.path("run/@requests"), open).unwrap();
        let message = find().unwrap_err().to_string();
        assert!(message.contains("does not belong only to root"), "{message}");
        fs::remove_dir_all(host.path("run/@requests")).unwrap();
        assert!(find().unwrap().is_none());
        symlink(host.path("proc"), host.path("run/@requests")).unwrap();
        assert!(find().unwrap_err().to_string().starts_with("opening "));
    }

    #[test]
    fn a_damaged_or_newer_file_is_rejected_with_the_reason() {
        let host = Host::new();
        let id = host.vfio();
        let whole = fs::read_to_string(host.file(&id)).unwrap();
        for (text, why) in [
            (whole[..whole.len() / 2].to_owned(), "it is not a ticket: "),
            (String::new(), "it is not a ticket: "),
            (
                whole.replacen("\"version\":1", "\"version\":7", 1),
                "it is of version 7, and this program understands 1; let the engine",
            ),
            (whole.replacen("nic=ens1", "gpu=a", 1), "cannot be parsed: "),
            (format!("{whole}{}", " ".repeat(70_000)), "its file is too large"),
        ] {
            fs::write(host.file(&id), text).unwrap();
            let message = host.refusal(&id);
            assert!(message.contains(why), "{message}");
            let listed = host.tickets.list().unwrap();
            assert!(listed[0].ticket.as_ref().unwrap_err().contains(why));
        }
    }

    #[test]
    fn tickets_are_listed() {
        let host = Host::new();
        let (vfio, rdma) = (host.vfio(), host.write("rdma=a", &[]));
        host.redeem(&rdma, &host.user("web", 1)).unwrap();
        let listed = host.tickets.list().unwrap();
        let used = |id: &Token| listed.iter().find(|one| one.id == *id).unwrap().is_used;
        assert_eq!((listed.len(), used(&vfio), used(&rdma)), (2, false, true));
    }

    #[test]
    fn a_new_ticket_replaces_a_damaged_one_without_reading_others() {
        let host = Host::new();
        let (damaged, other) = (host.vfio(), host.write("vfio=b", &["vfio:b"]));
        for id in [&damaged, &other] {
            fs::write(host.file(id), "{").unwrap();
        }
        host.vfio();
        assert!(!host.file(&damaged).exists());
        assert!(host.file(&other).exists());
    }

    #[test]
    fn a_ticket_is_replaced_by_a_later_one_for_any_of_its_devices() {
        let host = Host::new();
        let both = || host.write("vfio=a,b", &["vfio:a", "vfio:b"]);
        let first = both();
        let second = host.write("vfio=b", &["vfio:b"]);
        assert!(!host.file(&first).exists());
        let third = host.write("vfio=a", &["vfio:a"]);
        host.tickets.read(&second).unwrap();
        both();
        assert!(!host.file(&second).exists() && !host.file(&third).exists());
    }

    #[test]
    fn temporary_files_are_removed() {
        let host = Host::new();
        let left = host.path("run/@requests/.onload-ctk-0000000000000000.tmp");
        fs::write(&left, "{").unwrap();
        host.prune();
        assert!(!left.exists());
    }

    #[test]
    fn tickets_that_expired_are_removed_and_no_others() {
        let host = Host::new();
        let (unused, ended, running) =
            (host.write("nic=a", &[]), host.write("nic=b", &[]), host.write("nic=c", &[]));
        let users = [host.user("ended", 1), host.user("running", 2)];
        host.redeem(&ended, &users[0]).unwrap();
        host.redeem(&running, &users[1]).unwrap();
        host.end(&users[0]);
        let listed = || {
            host.prune();
            let listed = host.tickets.list().unwrap();
            [&unused, &ended, &running].map(|id| listed.iter().any(|entry| entry.id == *id))
        };
        assert_eq!(listed(), [true; 3]);
        advance_clock(RESTART.as_secs() + 1);
        assert_eq!(listed(), [true, false, true]);
        advance_clock(FIRST_START.as_secs());
        assert!(host.redeem(&unused, &host.user("late", 3)).unwrap_err().contains("within 24 h"));
        assert_eq!(listed(), [false, false, true]);
    }
}
