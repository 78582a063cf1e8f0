//! Searches for a network namespace by its cookie, among the files of engines and the namespaces of all processes. Any
//! process in a namespace keeps it alive, with the devices that moved there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::ops::{ControlFlow, RangeInclusive};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{io, iter};

use onload_sys::netns;
use onload_sys::processes::{list_descriptors, other_threads};
use onload_sys::text::Quoted;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, statx};
use rustix::io::Errno;

use super::namespace::{Inode, Netns, inode, open};

/// Directories in which engines and users keep namespaces as files (ip-netns(8), podman, containerd; docker).
const NAMED_DIRS: [&str; 2] = ["/run/netns", "/run/docker/netns"];
const PROC: &str = "/proc";
const OWN_DESCRIPTORS: &str = "/proc/self/fd";
const OWN_USER_NAMESPACE: &str = "/proc/self/ns/user";
const OWN_NAMESPACE: &str = "/proc/self/ns/net";
/// Inode numbers of namespaces (fs/proc/generic.c, `PROC_DYNAMIC_FIRST`).
const INODES: RangeInclusive<u64> = 0xF000_0000..=0xFFFF_FFFF;
/// Prefixes of link targets of descriptors that are no namespaces (`d_dname` in the kernel's source).
const NO_NAMESPACE: [&[u8]; 3] = [b"socket:[", b"pipe:[", b"anon_inode:"];
/// Time limit for the host's own namespaces. A process in one may fill it with interfaces.
const HOST_TIMEOUT: Duration = Duration::from_secs(6);
/// Time limit for finding a namespace by its cookie.
const FINDING: Duration = Duration::from_secs(2);
/// Time limit for finding the namespace that has a device.
const HOLDER: Duration = Duration::from_secs(6);
const DESCRIPTORS: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct FoundNetns {
    pub(crate) netns: Netns,
    /// The process or file that keeps it alive, for messages.
    pub(crate) keeper: String,
}

/// Returns the namespace with a cookie. Fails if the search timed out. `hint` is a file that may refer to it, and is
/// tried after the files of engines.
pub(crate) fn find_by_cookie(cookie: u64, hint: Option<&Path>) -> io::Result<Option<FoundNetns>> {
    let depth = SearchDepth::Processes;
    find_first(None, hint, depth, [FINDING, FINDING], &|netns| netns.cookie() == cookie)
}

/// Finds the namespace for which `is_it` is true, other than `host_netns`. Fails if the search timed out.
pub(crate) fn find_netns(
    host_netns: &Netns,
    is_it: &dyn Fn(&Netns) -> bool,
) -> io::Result<Option<FoundNetns>> {
    find_first(Some(host_netns), None, SearchDepth::Descriptors, [HOST_TIMEOUT, HOLDER], is_it)
}

fn find_first(
    except: Option<&Netns>,
    hint: Option<&Path>,
    depth: SearchDepth,
    timeouts: [Duration; 2],
    is_it: &dyn Fn(&Netns) -> bool,
) -> io::Result<Option<FoundNetns>> {
    let mut found = None;
    let mut visit = |candidate: FoundNetns| {
        if is_it(&candidate.netns) {
            found = Some(candidate);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    };
    let incomplete = search(except, hint, depth, timeouts, &mut visit)?;
    incomplete.map_or(Ok(found), Err)
}

/// Calls `visit` once for each namespace except `host_netns`: the host's, then those in user namespaces of root, then all
/// others, until it returns `Break`. `timeout` limits the search of all but the host's, counted from the start.
///
/// Fails if not all of the host's could be examined, since creating one requires privileges on the host. Returns why not
/// all of other user namespaces were examined, where any user can create any number of them.
pub(crate) fn visit_other_netns(
    host_netns: &Netns,
    depth: SearchDepth,
    timeout: Duration,
    visit: &mut dyn FnMut(FoundNetns) -> ControlFlow<()>,
) -> io::Result<Option<io::Error>> {
    search(Some(host_netns), None, depth, [HOST_TIMEOUT, timeout], visit)
}

/// See [`visit_other_netns`] for the result.
fn search(
    except: Option<&Netns>,
    hint: Option<&Path>,
    depth: SearchDepth,
    timeouts: [Duration; 2],
    visit: &mut dyn FnMut(FoundNetns) -> ControlFlow<()>,
) -> io::Result<Option<io::Error>> {
    let excepted = except.and_then(|netns| inode(netns.fd()).ok());
    let mut search = NetnsSearch {
        visit,
        depth,
        started: Instant::now(),
        timeouts,
        turn: NetnsOwner::Host,
        later: BTreeMap::new(),
        seen: excepted.into_iter().map(|inode| (inode, None)).collect(),
    };
    match search.visit_all(hint) {
        Ok(()) | Err(End::Stopped) => Ok(None),
        Err(End::Failed(error)) if search.turn == NetnsOwner::Host => Err(error),
        Err(End::Failed(error)) => Ok(Some(error)),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SearchDepth {
    /// Namespaces owned by the host's or another user namespace of root that have a file, or that the main thread of a
    /// process is in.
    Root,
    /// Also those owned by user namespaces of other users.
    Processes,
    /// Also those that processes keep only by another thread or by a descriptor.
    Descriptors,
}

/// The owner of a network namespace, ordered by the privileges needed to create one: it belongs to a user namespace, which
/// belongs to the user who created it (ioctl_nsfs(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NetnsOwner {
    /// This process's user namespace, in which creating one requires a capability. Also used if the owner is unknown.
    Host,
    /// A user namespace of user 0 other than this process's. Any process of that user can create one, also in a
    /// container.
    Root,
    Other,
}

fn find_owner(namespace: &File) -> NetnsOwner {
    let Some(users) = netns::user_namespace(namespace.as_fd()) else {
        return NetnsOwner::Host;
    };
    let own = open(Path::new(OWN_USER_NAMESPACE)).and_then(inode);
    let is_another = matches!((own, inode(&users)), (Ok(own), Ok(its)) if own != its);
    match netns::owner_uid(users.as_fd()) {
        Some(0) if is_another => NetnsOwner::Root,
        Some(_) if is_another => NetnsOwner::Other,
        _ => NetnsOwner::Host,
    }
}

/// Why a search ended early.
enum End {
    Stopped,
    Failed(io::Error),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        End::Failed(error)
    }
}

/// Visits all namespaces that have a path somewhere, each of them once.
struct NetnsSearch<'v> {
    visit: &'v mut dyn FnMut(FoundNetns) -> ControlFlow<()>,
    depth: SearchDepth,
    started: Instant,
    /// Time limits for the host's namespaces and for the others.
    timeouts: [Duration; 2],
    turn: NetnsOwner,
    /// All paths of namespaces to be examined later, since any path may vanish by then.
    later: BTreeMap<NetnsOwner, Vec<PathBuf>>,
    /// The owners of namespaces to be examined later, and `None` for those that have been examined. The kernel may reuse
    /// a number for a namespace that is created during the search. It is then skipped, which does no harm: the search is
    /// for older ones.
    seen: BTreeMap<Inode, Option<NetnsOwner>>,
}

impl NetnsSearch<'_> {
    fn visit_all(&mut self, hint: Option<&Path>) -> Result<(), End> {
        for dir in NAMED_DIRS {
            for path in entries(Path::new(dir))? {
                self.visit_path(&path)?;
            }
        }
        if let Some(path) = hint {
            self.visit_path(path)?;
        }
        for process in list_processes()? {
            self.visit_path(&process.join("ns/net"))?;
        }
        for turn in [NetnsOwner::Root, NetnsOwner::Other] {
            if turn == NetnsOwner::Other && self.depth == SearchDepth::Root {
                return Ok(());
            }
            self.turn = turn;
            for path in self.later.remove(&turn).unwrap_or_default() {
                self.visit_path(&path)?;
            }
        }
        if self.depth == SearchDepth::Descriptors {
            // Collected at once, so that the time for examining each does not count as time for descriptors.
            let mut paths = Vec::new();
            let end = collect_descriptors(DESCRIPTORS, &mut paths);
            for path in paths {
                self.visit_path(&path)?;
            }
            end?;
        }
        Ok(())
    }

    fn visit_path(&mut self, path: &Path) -> Result<(), End> {
        let Some(file) = if_present(open_candidate(path))? else {
            return Ok(());
        };
        let inode_number = inode(&file)?;
        let owner = match self.seen.get(&inode_number) {
            Some(None) => return Ok(()),
            Some(Some(owner)) => *owner,
            None => find_owner(&file),
        };
        if owner > self.turn {
            self.seen.insert(inode_number, Some(owner));
            self.later.entry(owner).or_default().push(path.to_owned());
            return Ok(());
        }
        self.seen.insert(inode_number, None);
        self.check_time(path)?;
        if let Some(netns) = if_present(Netns::from_file(file))?
            && (self.visit)(FoundNetns { netns, keeper: describe_source(path) }).is_break()
        {
            return Err(End::Stopped);
        }
        Ok(())
    }

    fn check_time(&self, path: &Path) -> io::Result<()> {
        let [of_host, of_others] = self.timeouts;
        let timeout = if self.turn == NetnsOwner::Host { of_host } else { of_others };
        if self.started.elapsed() < timeout {
            return Ok(());
        }
        let keeper = describe_source(path);
        Err(timeout_error(timeout, &format!("the network namespace that {keeper} keeps")))
    }
}

fn timeout_error(timeout: Duration, position: &str) -> io::Error {
    let seconds = timeout.as_secs();
    io::Error::other(format!("not done within {seconds} seconds; it was at {position}"))
}

/// Turns errors into `None`, since a process may have exited or a file be no namespace. Fails only if there may be a
/// namespace that cannot be examined for lack of descriptors, threads or memory.
fn if_present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    const SHORT: [Errno; 5] =
        [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::AGAIN];
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if Errno::from_io_error(&error).is_some_and(|errno| SHORT.contains(&errno)) => {
            Err(error)
        }
        Err(_) => Ok(None),
    }
}

/// Lists the directories of all processes.
fn list_processes() -> io::Result<Vec<PathBuf>> {
    let mut paths = entries(Path::new(PROC))?;
    paths.retain(|path| {
        path.file_name().unwrap_or_default().as_bytes().iter().all(u8::is_ascii_digit)
    });
    Ok(paths)
}

/// Adds the network namespaces of threads, each once, and the descriptors of network namespaces. Fails if this timed out:
/// any process may have very many descriptors.
fn collect_descriptors(timeout: Duration, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    let deadline = Instant::now() + timeout;
    let mut names = BTreeSet::new();
    for process in list_processes()? {
        for path in process_namespaces(&process) {
            if Instant::now() >= deadline {
                let keeper = describe_source(&path);
                return Err(timeout_error(timeout, &format!("the descriptors of {keeper}")));
            }
            let is_one = if path.ends_with("ns/net") {
                fs::read_link(&path).is_ok_and(|name| names.insert(name))
            } else {
                may_be_netns(&path)?
            };
            if is_one {
                paths.push(path);
            }
        }
    }
    Ok(())
}

/// Lists the namespaces of a process's threads, each of which may be in another one (unshare(2)), and its descriptors.
/// This includes the main thread, since the process may be newer than the first pass.
fn process_namespaces(process: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let threads = iter::once(process.to_owned()).chain(other_threads(process));
    threads.map(|thread| thread.join("ns/net")).chain(list_descriptors(process))
}

/// Returns whether a descriptor may refer to a network namespace, judging by its link and inode number. The file itself
/// is not accessed, because it may be on a server that never answers.
fn may_be_netns(path: &Path) -> io::Result<bool> {
    // This call alone decides most cases. Paths of files start with a slash.
    let link = fs::read_link(path).unwrap_or_default();
    if NO_NAMESPACE.iter().any(|kind| link.as_os_str().as_bytes().starts_with(kind)) {
        return Ok(false);
    }
    let (Some(process), Some(descriptor)) = (path.ancestors().nth(2), path.file_name()) else {
        return Ok(false);
    };
    let info_path = process.join("fdinfo").join(descriptor);
    let info = if_present(fs::read_to_string(info_path))?.unwrap_or_default();
    let inode: Option<u64> =
        info.lines().find_map(|line| line.strip_prefix("ino:")?.trim().parse().ok());
    Ok(inode.is_some_and(|inode| INODES.contains(&inode)))
}

/// Opens a candidate. Skips a descriptor that is not on the file system of namespaces, whatever its inode number.
fn open_candidate(path: &Path) -> io::Result<File> {
    if !path.starts_with(PROC) || path.ends_with("ns/net") {
        return open(path);
    }
    let descriptor = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    if file_system_id(&descriptor, "")? != file_system_id(CWD, OWN_NAMESPACE)? {
        return Err(io::ErrorKind::NotFound.into());
    }
    open(&Path::new(OWN_DESCRIPTORS).join(descriptor.as_raw_fd().to_string()))
}

/// Returns the device number of a file's file system without contacting a server.
fn file_system_id(dir: impl AsFd, path: &str) -> io::Result<(u32, u32)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(dir, path, flags, StatxFlags::BASIC_STATS)?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor))
}

/// Lists the paths in a directory, sorted. A directory that does not exist has none.
fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = if_present(fs::read_dir(dir))?.into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort_unstable();
    Ok(paths)
}

/// Describes a path as a process with its PID and program, or as a file.
fn describe_source(path: &Path) -> String {
    let process = path.strip_prefix(PROC).ok().and_then(|below| below.iter().next()?.to_str());
    let Some(pid) = process else {
        return format!("{path:?}");
    };
    let program = fs::read(Path::new(PROC).join(pid).join("comm")).unwrap_or_default();
    let program = String::from_utf8_lossy(program.trim_ascii_end());
    format!("process {pid} ({})", Quoted(&program))
}

#[cfg(test)]
mod tests {
    use std::process::{self, Command, Stdio};
    use std::sync::mpsc;
    use std::thread;

    use onload_test_tree::network::{self, Child};
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

    use super::*;
    use crate::moves::netns::test_namespace::{netns, without_first_thread};

    /// A process of a user that makes so many network namespaces, each with a user namespace as anybody may make it, keeps
    /// them open, and ends with this.
    struct Stranger(process::Child);

    impl Stranger {
        const USER: &str = "65534";

        fn for_user(user: &str, many: usize) -> Self {
            let script = format!("for i in $(seq {many}); do unshare -Urn sleep 1000 & done; wait");
            let mut command = Command::new("setpriv");
            let command = command
                .args(["--reuid", user, "--regid", user])
                .args(["--clear-groups", "--pdeathsig", "KILL"])
                .args(["sh", "-c", &script]);
            let child = command.stdin(Stdio::null()).spawn().unwrap();
            let stranger = Stranger(child);
            let until = Instant::now() + Duration::from_secs(60);
            while stranger.namespaces() < many {
                assert!(Instant::now() < until, "the namespaces were not made");
                thread::sleep(Duration::from_millis(5));
            }
            stranger
        }

        fn children(&self) -> Vec<u32> {
            let pid = self.0.id();
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            let children = children.unwrap_or_default();
            children.split(' ').filter_map(|one| one.parse().ok()).collect()
        }

        fn paths(&self) -> Vec<PathBuf> {
            self.children()
                .into_iter()
                .map(|pid| PathBuf::from(format!("/proc/{pid}/ns/net")))
                .collect()
        }

        fn cookies(&self) -> Vec<u64> {
            self.paths()
                .iter()
                .map(|path| Netns::enter(open(path).unwrap(), path).unwrap().cookie())
                .collect()
        }

        fn namespaces(&self) -> usize {
            let own = fs::read_link(OWN_NAMESPACE).unwrap();
            let other = |path: &PathBuf| fs::read_link(path).is_ok_and(|target| target != own);
            self.paths().iter().filter(|path| other(path)).count()
        }
    }

    impl Drop for Stranger {
        fn drop(&mut self) {
            for pid in self.children() {
                let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
            }
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn can_be() -> bool {
        onload_test_needs::root("network namespaces of other users")
            && onload_test_needs::programs(&["unshare", "setpriv", "kill"])
            && onload_test_needs::on_this_machine(
                Command::new("setpriv")
                    .args(["--reuid", Stranger::USER, "--clear-groups", "unshare", "-Urn", "true"])
                    .status()
                    .is_ok_and(|status| status.success()),
                "only root may make user namespaces here",
            )
    }

    #[test]
    fn the_host_s_namespaces_come_first_and_all_of_them_and_those_that_user_0_can_make_before_others()
     {
        if !can_be() {
            return;
        }
        // Any process of user 0 can, without a capability.
        let (strangers, rootlings) =
            (Stranger::for_user(Stranger::USER, 10), Stranger::for_user("0", 10));
        // Its number in /proc is above all of the others'.
        let child = Child::of_root();
        let (own, here) = (netns(&child), Netns::open_own().unwrap());
        let cookies = |depth, timeout| {
            let mut found: Vec<u64> = Vec::new();
            let incomplete = visit_other_netns(&here, depth, timeout, &mut |one| {
                found.push(one.netns.cookie());
                ControlFlow::Continue(())
            });
            (found, incomplete.unwrap())
        };
        let (of_others, of_root) = (strangers.cookies(), rootlings.cookies());
        let (all, end) = cookies(SearchDepth::Processes, Duration::from_secs(60));
        assert!(end.is_none(), "{end:?}");
        let place = |cookie: &u64| all.iter().position(|one| one == cookie).unwrap();
        for root_s in &of_root {
            assert!(place(&own.cookie()) < place(root_s));
            assert!(of_others.iter().all(|other| place(root_s) < place(other)));
        }
        let (some, end) = cookies(SearchDepth::Root, Duration::from_secs(60));
        assert!(end.is_none() && some.contains(&own.cookie()));
        assert!(of_root.iter().all(|root_s| some.contains(root_s)));
        assert!(of_others.iter().all(|other| !some.contains(other)));
        // No time for the others: the host's are all there.
        for depth in [SearchDepth::Root, SearchDepth::Processes] {
            let (some, end) = cookies(depth, Duration::ZERO);
            assert!(some.contains(&own.cookie()));
            assert!(of_root.iter().all(|root_s| !some.contains(root_s)));
            let late = end.unwrap().to_string();
            let begin = "not done within 0 seconds; it was at the network namespace that process ";
            assert!(late.starts_with(begin), "{late}");
        }
    }

    #[test]
    fn a_namespace_that_there_is_no_time_to_find_is_not_gone() {
        if !can_be() {
            return;
        }
        let child = Child::of_root();
        let own = netns(&child);
        let found = find_by_cookie(own.cookie(), None).unwrap();
        assert!(found.is_some());
        assert!(find_by_cookie(u64::MAX, None).unwrap().is_none());
        let mut never = |_: FoundNetns| unreachable!();
        let timeouts = [Duration::ZERO; 2];
        let late = search(None, None, SearchDepth::Processes, timeouts, &mut never);
        assert!(late.is_err());
    }

    /// Who keeps a namespace that its own process is gone from.
    fn keeper_of(child: Child) -> Option<String> {
        let cookie = netns(&child).cookie();
        drop(child);
        let here = Netns::open_own().unwrap();
        let found = find_netns(&here, &|netns| netns.cookie() == cookie).unwrap();
        found.map(|found| found.keeper)
    }

    #[test]
    fn a_namespace_is_found_that_another_thread_than_the_first_is_in() {
        if !network::can_be("network namespaces of threads") {
            return;
        }
        let child = Child::of_root();
        let file = open(&child.path()).unwrap();
        let (entered, has_entered) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(file.as_fd(), kind).unwrap();
            drop(file);
            entered.send(()).unwrap();
            let _ = ended.recv();
        });
        has_entered.recv().unwrap();
        let keeper = keeper_of(child);
        drop(end);
        thread.join().unwrap();
        let own = format!("process {} (", process::id());
        assert!(keeper.is_some_and(|keeper| keeper.starts_with(&own)));
        assert_eq!(keeper_of(Child::of_root()), None);
    }

    #[test]
    fn a_namespace_is_found_or_that_is_an_error_however_few_files_may_be_opened() {
        const LIMITED: &str = "ONLOAD_CTK_TEST_LIMITED";
        const NAME: &str = "moves::netns::search::tests::a_namespace_is_found_or_that_is_an_error_however_few_files_may_be_opened";
        if !network::can_be("descriptors of network namespaces") {
            return;
        }
        if std::env::var_os(LIMITED).is_none() {
            let script = "ulimit -n 64 && exec \"$1\" --exact \"$2\"";
            let mut limited = Command::new("sh");
            limited.args(["-c", script, "sh"]).env(LIMITED, "");
            let output = limited.arg(std::env::current_exe().unwrap()).arg(NAME).output().unwrap();
            let output_text = String::from_utf8_lossy(&output.stdout);
            assert!(output_text.contains("1 passed"), "{output_text}");
            return;
        }
        let (child, here) = (Child::of_root(), Netns::open_own().unwrap());
        let kept = netns(&child);
        drop(child);
        // This process keeps it, by its descriptor alone.
        let is_it = |netns: &Netns| netns.cookie() == kept.cookie();
        let mut open: Vec<File> = iter::from_fn(|| File::open("/dev/null").ok()).collect();
        let mut refused = 0;
        let found = loop {
            match find_netns(&here, &is_it) {
                Err(error) if Errno::from_io_error(&error) == Some(Errno::MFILE) => refused += 1,
                found => break found,
            }
            open.pop().unwrap();
        };
        assert!(found.unwrap().is_some(), "with {refused} files");
        assert!(refused > 0);
    }

    #[test]
    fn a_descriptor_is_found_of_a_process_whose_first_thread_has_ended() {
        if !network::can_be("descriptors of network namespaces")
            || !onload_test_needs::programs(&["python3"])
        {
            return;
        }
        let child = Child::of_root();
        let mut holder = without_first_thread(&child.path());
        let pid = holder.id();
        let keeper = keeper_of(child);
        drop(holder.stdin.take());
        holder.wait().unwrap();
        let own = format!("process {pid} (");
        assert!(keeper.is_some_and(|keeper| keeper.starts_with(&own)));
    }

    #[test]
    fn descriptors_that_there_is_no_time_for_are_an_error_and_not_left_out() {
        let mut paths = Vec::new();
        let end = collect_descriptors(Duration::ZERO, &mut paths);
        assert!(paths.is_empty());
        let message = end.unwrap_err().to_string();
        let begin = "not done within 0 seconds; it was at the descriptors of process ";
        assert!(message.starts_with(begin), "{message}");
    }
}
