//! A network namespace: entering it, and requests to the kernel in it.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::{io, thread};

use onload_sys::error::{Context as _, Result};
use onload_sys::netlink::address::{self, Address};
use onload_sys::netlink::link::{self, Link, LinkChange};
use onload_sys::netlink::message::{CREATE, EXCLUSIVE};
use onload_sys::netlink::route::{self, Route};
use onload_sys::netlink::socket::NetlinkSocket;
use onload_sys::netlink::vf::{self, VfChange, VfList};
use onload_sys::netns;
use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::record::init::InitProcess;

const STACK: usize = 128 * 1024;
/// The namespaces of this process and of the first process.
const OWN_NETNS: &str = "/proc/self/ns/net";
const FIRST: &str = "/proc/1/ns/net";
/// The PID namespace of this process, and the inode of the initial one (`PROC_PID_INIT_INO`, linux/proc_ns.h).
const OWN_PIDS: &str = "/proc/self/ns/pid";
const INITIAL_PIDS: u64 = 0xEFFF_FFFC;

#[derive(Debug)]
pub struct Netns {
    file: File,
    socket: NetlinkSocket,
    /// Unique since boot (SO_NETNS_COOKIE, Linux 5.14).
    cookie: u64,
}

/// Identifies a namespace while a file of it is open. The kernel reuses the number afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Inode(u64, u64);

/// Identifies the namespace that an open file refers to.
pub(crate) fn inode(file: impl AsFd) -> io::Result<Inode> {
    let stat = rustix::fs::fstat(file)?;
    Ok(Inode(stat.st_dev, stat.st_ino))
}

/// Opens a namespace's file without blocking.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

impl Netns {
    /// Returns the namespace of an open file. `path` is for messages.
    pub(crate) fn enter(file: File, path: &Path) -> Result<Self> {
        Netns::from_file(file).with_context(|| format!("entering the network namespace {path:?}"))
    }

    pub(super) fn from_file(file: File) -> io::Result<Self> {
        let (socket, cookie) = run_in_thread(file.as_fd(), || {
            let socket = NetlinkSocket::open(None)?.with_timeout();
            let cookie = netns::cookie(socket.as_fd())?;
            Ok((socket, cookie))
        })?;
        Ok(Netns { file, socket, cookie })
    }

    /// Opens the namespace of a container's running init, through a descriptor of its directory in /proc, so that it
    /// cannot be another process's.
    pub(crate) fn open_init(init: u32) -> Result<Self> {
        let file = InitProcess::open(Some(init))?.network_namespace()?;
        Netns::enter(file, Path::new(&format!("/proc/{init}/ns/net")))
    }

    pub(crate) fn open_own() -> Result<Self> {
        let path = Path::new(OWN_NETNS);
        let file = open(path).with_context(|| format!("opening the network namespace {path:?}"))?;
        Netns::enter(file, path)
    }

    /// Returns whether this process is in the initial PID namespace and in the network namespace of the first process.
    /// Engines elsewhere have no access to the host's interfaces.
    pub(crate) fn is_initial(&self) -> bool {
        let pids = rustix::fs::stat(OWN_PIDS).map(|stat| stat.st_ino);
        self.matches_file(FIRST) && pids == Ok(INITIAL_PIDS)
    }

    pub(crate) fn is_own(&self) -> bool {
        self.matches_file(OWN_NETNS)
    }

    /// Returns whether a process or thread, given its directory in /proc, is in this namespace.
    pub(crate) fn contains_process(&self, directory: &Path) -> bool {
        self.matches_file(directory.join("ns/net"))
    }

    fn matches_file(&self, path: impl AsRef<Path>) -> bool {
        let other = open(path.as_ref()).and_then(inode);
        other.is_ok_and(|other| inode(&self.file).is_ok_and(|this| this == other))
    }

    /// Runs `action` in a new thread that enters the namespace.
    pub(crate) fn run_inside<T: Send>(
        &self,
        act: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        run_in_thread(self.file.as_fd(), act)
    }

    pub(crate) fn is_same(&self, other: &Netns) -> bool {
        self.cookie == other.cookie
    }

    pub(crate) fn cookie(&self) -> u64 {
        self.cookie
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub fn links(&self) -> Result<Vec<Link>> {
        let listed = self.socket.list(link::GET, &link::dump_payload(), &link::parse);
        listed.context("listing network interfaces")
    }

    /// Returns the interfaces, and whether they are a consistent snapshot. If processes in the namespace change it all
    /// the time, the list also has interfaces that are gone by now.
    pub(crate) fn snapshot(&self) -> Result<(Vec<Link>, bool)> {
        self.socket
            .snapshot(link::GET, &link::dump_payload(), &link::parse, &|link: &Link| link.index)
            .context("listing network interfaces")
    }

    /// Returns the virtual functions of an interface.
    pub(crate) fn virtual_functions(&self, index: u32) -> io::Result<VfList> {
        let found = self.socket.get(link::GET, &vf::get_payload(index), &vf::parse)?;
        Ok(found.unwrap_or_default())
    }

    pub(crate) fn set_virtual_function(
        &self,
        index: u32,
        number: u32,
        change: VfChange,
    ) -> io::Result<()> {
        let payload = vf::set_payload(index, number, change);
        self.socket.execute(link::SET, 0, &payload)
    }

    pub(crate) fn addresses(&self) -> Result<Vec<Address>> {
        let listed = self.socket.list(address::GET, &address::dump_payload(), &address::parse);
        listed.context("listing addresses")
    }

    /// Returns the routes of the namespace.
    pub(crate) fn routes(&self) -> Result<Vec<Route>> {
        self.socket.list_routes().context("listing routes")
    }

    pub fn change_link(&self, index: u32, change: &LinkChange<'_>) -> io::Result<()> {
        let (kind, flags, payload) = change.request(index);
        self.socket.execute(kind, flags, &payload)
    }

    /// Moves an interface to another namespace and renames it if `name` is set. Fails with EEXIST if one of its names
    /// is taken there; it may have moved all the same, under its old name.
    pub(crate) fn move_link(&self, index: u32, to: &Netns, name: Option<&[u8]>) -> io::Result<()> {
        let payload = link::to_namespace(index, to.fd(), name);
        self.socket.execute(link::SET, 0, &payload)
    }

    /// Returns the `nsid` of another namespace in this one, or `None` if it has none yet.
    pub(crate) fn namespace_id(&self, other: &Netns) -> io::Result<Option<i32>> {
        let payload = link::namespace_id_payload(other.fd());
        self.socket.get(link::GET_NAMESPACE, &payload, &link::parse_namespace_number)
    }

    /// Deletes a virtual interface.
    pub(crate) fn delete(&self, index: u32) -> io::Result<()> {
        self.socket.execute(link::DELETE, 0, &link::delete_payload(index))
    }

    /// Deletes all interfaces of a group.
    pub(crate) fn delete_group(&self, group: u32) -> io::Result<()> {
        self.socket.execute(link::DELETE, 0, &link::delete_group_payload(group))
    }

    /// Adds an address to an interface. Succeeds if the interface already has it.
    pub(crate) fn add_address(&self, new: Address) -> io::Result<()> {
        let payload = address::add_payload(new);
        let result = self.socket.execute(address::NEW, CREATE | EXCLUSIVE, &payload);
        match result {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            result => result,
        }
    }

    /// Adds a route. Fails with EEXIST if there is one to the same network.
    pub(crate) fn add_route(&self, new: route::NewRoute) -> io::Result<()> {
        self.socket.execute(route::NEW, CREATE | EXCLUSIVE, &route::add_payload(new))
    }
}

/// Runs `action` in a new thread that enters the namespace and ends afterwards.
fn run_in_thread<T: Send>(
    namespace: BorrowedFd<'_>,
    act: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let enter = || {
        move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?;
        act()
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, enter)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread has died")))
    })
}
