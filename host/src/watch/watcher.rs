use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use onload_core::config::CONFIG_PATH;
use onload_lease::run_dir::{LEASES, RUN_DIR};
use onload_sys::netlink::socket::NetlinkListener;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::netlink;

use super::directories::DirectoryWatches;
use super::{link, uevent};
use crate::host::Host;
use crate::spec_index::SpecIndex;

/// The minimum time between two results caused only by links. A link may change all the time, and each result causes a
/// discovery of the whole host.
const MIN_PAUSE: Duration = Duration::from_secs(1);

/// How long to wait for further events of the same change: loading a driver causes thousands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damping {
    /// A burst ends after this long without an event.
    pub quiet: Duration,
    /// The maximum duration of a burst.
    pub longest: Duration,
}

#[derive(Clone, Debug)]
pub struct WatchSources {
    /// Directories, by absolute paths; they need not exist yet.
    pub directories: Vec<PathBuf>,
    /// Likewise, but only changes of files that the index finds relevant count.
    pub spec_dirs: Vec<PathBuf>,
    pub spec_index: Arc<SpecIndex>,
    pub kernel: bool,
    /// Interval after which everything counts as changed, since some changes cause no event.
    pub interval: Duration,
    pub damping: Damping,
}

impl WatchSources {
    /// Returns everything that the offers of a host depend on: its devices, its leases, its configuration, and the
    /// directories of specifications. A captured host has no kernel events.
    pub fn for_host(host: &Host, spec_dirs: &[PathBuf]) -> WatchSources {
        let own = [Path::new(CONFIG_PATH).parent(), Some(Path::new(RUN_DIR))];
        let [configuration, run] =
            own.map(|path| host.outside_path(path.unwrap_or(Path::new("/"))));
        WatchSources {
            directories: vec![configuration, run.join(LEASES)],
            spec_dirs: spec_dirs.to_vec(),
            spec_index: Arc::clone(host.spec_index()),
            kernel: host.is_live(),
            interval: Duration::from_secs(60),
            damping: Damping { quiet: Duration::from_millis(200), longest: Duration::from_secs(2) },
        }
    }
}

pub struct Watcher {
    directories: Option<DirectoryWatches>,
    uevents: Option<NetlinkListener>,
    links: Option<NetlinkListener>,
    waker: Waker,
    interval: Duration,
    damping: Damping,
    next: Instant,
    /// Until then, events about links do not end a wait.
    links_after: Option<Instant>,
    missing_sources: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
struct Burst {
    first: Instant,
    last: Instant,
}

/// The events received during a wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PendingEvents {
    links: bool,
    /// Another thread called [`Waker`].
    woken: bool,
    /// Other events, or lost ones.
    more: bool,
}

/// Lets another thread end [`Watcher::wait`], for instance to stop.
#[derive(Clone, Debug)]
pub struct Waker {
    descriptor: Arc<OwnedFd>,
}

impl Waker {
    fn new() -> io::Result<Waker> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Waker { descriptor: Arc::new(descriptor) })
    }

    pub fn wake(&self) -> io::Result<()> {
        match rustix::io::write(&self.descriptor, &1u64.to_ne_bytes()) {
            // The counter is at its maximum and has not been read since.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn reset(&self) -> bool {
        rustix::io::read(&self.descriptor, &mut [0; 8]).is_ok()
    }
}

impl Watcher {
    /// Creates a watcher. Sources that cannot be watched are in [`Watcher::missing_sources`]; their changes are found
    /// at the next interval.
    pub fn new(sources: WatchSources) -> io::Result<Watcher> {
        let mut watcher = Watcher {
            directories: None,
            uevents: None,
            links: None,
            waker: Waker::new()?,
            interval: sources.interval,
            damping: sources.damping,
            next: deadline_after(Instant::now(), sources.interval),
            links_after: None,
            missing_sources: Vec::new(),
        };
        let directories =
            DirectoryWatches::watch(sources.directories, sources.spec_dirs, sources.spec_index);
        watcher.directories = watcher.ok_or_record("watching directories", directories);
        if sources.kernel {
            let uevents = NetlinkListener::open(Some(netlink::KOBJECT_UEVENT), uevent::GROUP);
            watcher.uevents = watcher.ok_or_record("hearing of devices", uevents);
            let links = NetlinkListener::open(None, link::GROUP);
            watcher.links = watcher.ok_or_record("hearing of interfaces", links);
        }
        Ok(watcher)
    }

    fn ok_or_record<T>(&mut self, doing: &str, result: io::Result<T>) -> Option<T> {
        result.map_err(|error| self.missing_sources.push(format!("{doing}: {error}"))).ok()
    }

    pub fn missing_sources(&self) -> Vec<String> {
        let directories = self.directories.iter().flat_map(DirectoryWatches::missing_sources);
        let mut missing = self.missing_sources.clone();
        missing.extend(directories.map(str::to_owned));
        missing
    }

    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Waits until something may have changed and no further events arrived for a while, or until the interval has
    /// passed.
    pub fn wait(&mut self) -> io::Result<()> {
        self.wait_for_events(self.next)?;
        self.next = deadline_after(Instant::now(), self.interval);
        Ok(())
    }

    /// Collects events until the deadline, and until no further events arrive for a while.
    fn wait_for_events(&mut self, deadline: Instant) -> io::Result<PendingEvents> {
        let mut events = PendingEvents::default();
        let mut burst: Option<Burst> = None;
        loop {
            let end = burst.map_or(deadline, |burst| self.end(burst, events));
            self.poll(end.saturating_duration_since(Instant::now()))?;
            let read = self.read()?;
            let now = Instant::now();
            if read != PendingEvents::default() {
                burst.get_or_insert(Burst { first: now, last: now }).last = now;
            }
            events.links |= read.links;
            events.woken |= read.woken;
            events.more |= read.more;
            let end = burst.map_or(deadline, |burst| self.end(burst, events));
            if events.woken || now >= end {
                break;
            }
        }
        if events.links {
            self.links_after = Some(deadline_after(Instant::now(), MIN_PAUSE));
        }
        Ok(events)
    }

    /// Returns when a burst ends if no further event arrives.
    fn end(&self, burst: Burst, events: PendingEvents) -> Instant {
        let end = (burst.last + self.damping.quiet).min(burst.first + self.damping.longest);
        match self.links_after {
            Some(earliest) if !events.more => end.max(earliest),
            _ => end,
        }
    }

    fn poll(&self, timeout: Duration) -> io::Result<()> {
        let directories = self.directories.iter().map(AsFd::as_fd);
        let sockets = self.uevents.iter().chain(&self.links);
        let mut polled: Vec<PollFd<'_>> = directories
            .chain(sockets.map(AsFd::as_fd))
            .chain([self.waker.descriptor.as_fd()])
            .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
            .collect();
        let timeout = Timespec::try_from(timeout).ok();
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn read(&mut self) -> io::Result<PendingEvents> {
        let mut read = PendingEvents { woken: self.waker.reset(), ..PendingEvents::default() };
        if let Some(directories) = &mut self.directories {
            read.more |= directories.read()?;
        }
        if let Some(uevents) = &mut self.uevents {
            let is_lost = uevents.read(|bytes| read.more |= uevent::is_relevant(bytes))?;
            read.more |= is_lost;
        }
        if let Some(links) = &mut self.links {
            let is_lost = links.read(|bytes| read.links |= link::is_relevant(bytes))?;
            read.more |= is_lost;
        }
        Ok(read)
    }
}

fn deadline_after(now: Instant, time: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    now.checked_add(time).unwrap_or_else(|| now + YEAR)
}

#[cfg(test)]
mod tests {
    use std::{fs, thread};

    use onload_test_tree::netlink::{fed as fed_socket, feed};

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn sources(directories: Vec<PathBuf>) -> WatchSources {
        WatchSources {
            directories,
            spec_dirs: Vec::new(),
            spec_index: Arc::default(),
            kernel: false,
            interval: LONG,
            damping: Damping { quiet: Duration::from_millis(1), longest: LONG },
        }
    }

    /// A listener and what feeds it, which is taken for the kernel.
    fn fed() -> (NetlinkListener, OwnedFd) {
        let (reader, feeder) = fed_socket();
        (NetlinkListener::with(reader, |_| true), feeder)
    }

    fn watcher() -> Watcher {
        Watcher::new(sources(Vec::new())).unwrap()
    }

    /// What comes in a wait, which has an end.
    fn news(watcher: &mut Watcher) -> PendingEvents {
        watcher.wait_for_events(deadline_after(Instant::now(), LONG)).unwrap()
    }

    fn news_now(watcher: &mut Watcher) -> PendingEvents {
        watcher.wait_for_events(Instant::now()).unwrap()
    }

    #[test]
    fn nothing_is_told_where_nothing_changes() {
        let mut watcher = watcher();
        assert_eq!(watcher.missing_sources(), [""; 0]);
        assert_eq!(news_now(&mut watcher), PendingEvents::default());
    }

    #[test]
    fn files_that_change_together_are_told_together() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("cdi");
        let mut watcher = Watcher::new(sources(vec![directory.clone()])).unwrap();
        fs::create_dir(&directory).unwrap();
        assert!(news(&mut watcher).more);
        let files = [directory.join("a"), directory.join("b")];
        files.iter().for_each(|file| fs::write(file, "").unwrap());
        assert!(news(&mut watcher).more);
        assert_eq!(news_now(&mut watcher), PendingEvents::default());
    }

    #[test]
    fn devices_and_links_are_told_and_what_is_of_no_interest_is_not() {
        let (mut watcher, (uevents, devices), (links, interfaces)) = (watcher(), fed(), fed());
        (watcher.uevents, watcher.links) = (Some(uevents), Some(links));
        let veth = uevent::tests::message("add", "/devices/virtual/net/veth0", "net");
        feed(&devices, &veth);
        feed(&devices, b"hostile");
        feed(&interfaces, b"hostile");
        assert_eq!(news_now(&mut watcher), PendingEvents::default());
        let path = "/devices/pci0000:80/0000:81:10.0";
        feed(&devices, &uevent::tests::message("bind", path, "pci"));
        let of_devices = PendingEvents { more: true, ..PendingEvents::default() };
        assert_eq!(news(&mut watcher), of_devices);
        feed(&interfaces, &link::tests::of_device());
        let of_links = PendingEvents { links: true, ..PendingEvents::default() };
        assert_eq!(news(&mut watcher), of_links);
    }

    #[test]
    fn a_burst_ends_when_it_is_quiet_or_has_lasted_too_long() {
        let ms = Duration::from_millis;
        let mut watcher = watcher();
        watcher.damping = Damping { quiet: ms(200), longest: ms(2000) };
        let first = Instant::now();
        for (last, end) in [(0, 200), (150, 350), (1900, 2000)] {
            let burst = Burst { first, last: first + ms(last) };
            assert_eq!(watcher.end(burst, PendingEvents::default()), first + ms(end));
        }
    }

    #[test]
    fn links_alone_are_told_at_most_once_a_second() {
        let mut watcher = watcher();
        let (now, minute) = (Instant::now(), Duration::from_secs(60));
        let burst = Burst { first: now, last: now };
        let links = PendingEvents { links: true, ..PendingEvents::default() };
        let soon = now + watcher.damping.quiet;
        assert_eq!(watcher.end(burst, links), soon, "the first are told at once");
        watcher.links_after = Some(now + minute);
        assert_eq!(watcher.end(burst, links), now + minute);
        let devices = PendingEvents { more: true, ..links };
        assert_eq!(watcher.end(burst, devices), soon, "what matters is not held up");
        // Each answer with links begins the time anew.
        let (socket, interfaces) = fed();
        watcher.links = Some(socket);
        watcher.links_after = None;
        feed(&interfaces, &link::tests::of_device());
        assert!(news(&mut watcher).links);
        assert!(watcher.links_after.unwrap() > now + MIN_PAUSE);
    }

    #[test]
    fn lost_events_mean_everything() {
        let (mut watcher, (uevents, devices)) = (watcher(), fed());
        watcher.uevents = Some(uevents);
        feed(&devices, &[b'a'; 100_000]);
        assert!(news(&mut watcher).more);
    }

    #[test]
    fn a_wait_is_ended_from_another_thread() {
        let mut watcher = watcher();
        let waker = watcher.waker();
        let thread = thread::spawn(move || waker.wake());
        let of_waker = PendingEvents { woken: true, ..PendingEvents::default() };
        assert_eq!(news(&mut watcher), of_waker);
        thread.join().unwrap().unwrap();
        // Before there is a wait, and however often.
        watcher.waker().wake().unwrap();
        watcher.waker().wake().unwrap();
        assert!(news(&mut watcher).woken);
        assert_eq!(news_now(&mut watcher), PendingEvents::default());
    }

    #[test]
    fn everything_is_looked_at_again_after_a_while() {
        let mut often = Watcher::new(WatchSources {
            interval: Duration::from_millis(1),
            ..sources(Vec::new())
        });
        let often = often.as_mut().unwrap();
        for _ in 0..2 {
            often.wait().unwrap();
        }
        let never = WatchSources { interval: Duration::MAX, ..sources(Vec::new()) };
        let never = Watcher::new(never).unwrap();
        assert!(never.next > Instant::now() + LONG);
    }

    #[test]
    fn what_cannot_be_watched_is_said() {
        let long = PathBuf::from(format!("/{}", "a".repeat(300)));
        let without = Watcher::new(sources(vec![long])).unwrap().missing_sources();
        assert_eq!(without.len(), 1);
        let message = &without[0];
        assert!(message.starts_with("watching /aaa") && message.contains("too long"), "{message}");
    }

    #[test]
    fn a_host_is_watched_where_its_offers_come_from() {
        let root = tempfile::tempdir().unwrap();
        let host = Host::open(root.path()).unwrap();
        let specs = [root.path().join("var/run/cdi")];
        let sources = WatchSources::for_host(&host, &specs);
        assert_eq!(sources.spec_dirs, specs);
        let inside: Vec<&Path> = sources
            .directories
            .iter()
            .map(|path| path.strip_prefix(root.path()).unwrap())
            .collect();
        let expected = ["etc/onload-ctk", "run/onload-ctk/@leases"];
        assert_eq!(inside, expected.map(Path::new));
        assert!(!sources.kernel);
        let running = WatchSources::for_host(&Host::open(Path::new("/")).unwrap(), &[]);
        assert!(running.kernel);
        // As a container sees it that has the host's root at a path of its own.
        let mounted = Host::open(Path::new("/proc/self/root")).unwrap();
        assert!(!mounted.is_running() && WatchSources::for_host(&mounted, &[]).kernel);
        assert!(running.directories.contains(&PathBuf::from("/run/onload-ctk/@leases")));
    }
}
