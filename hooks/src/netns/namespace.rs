//! One network namespace: the way in, and what is asked and told there.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::thread;

use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::cookie;
use crate::netlink::address::{self, Address};
use crate::netlink::link::{self, Change, Link};
use crate::netlink::message::{CREATE, EXCLUSIVE};
use crate::netlink::route::{self, Route};
use crate::netlink::socket::Socket;
use crate::process::init::{Init, InitError};

/// The stack of a thread that opens a socket.
const STACK: usize = 128 * 1024;
/// This process's own namespace, and that of the first process.
const OWN: &str = "/proc/self/ns/net";
const FIRST: &str = "/proc/1/ns/net";
/// The PID namespace of this process, and the inode of the initial one (`PROC_PID_INIT_INO`, linux/proc_ns.h).
const OWN_PIDS: &str = "/proc/self/ns/pid";
const INITIAL_PIDS: u64 = 0xEFFF_FFFC;

/// Why a network namespace is of no use.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// It cannot be opened or entered.
    #[error("{action} the network namespace {path:?}")]
    Enter {
        /// What was being done.
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The kernel does not do what it is told.
    #[error("{what} {name:?}")]
    Kernel {
        /// What was being done.
        what: &'static str,
        name: String,
        source: io::Error,
    },
    /// What is there cannot be listed.
    #[error("listing {0}")]
    List(&'static str, #[source] io::Error),
}

impl onload_core::error::Typed for NetnsError {}

/// A network namespace with a way in.
#[derive(Debug)]
pub(crate) struct Netns {
    file: File,
    socket: Socket,
    cookie: u64,
}

/// Which namespace a file is of, as long as it is open: the number is used again afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Inode(u64, u64);

/// The namespace that a file of /proc or of nsfs is of.
pub(crate) fn inode(file: impl AsFd) -> io::Result<Inode> {
    let stat = rustix::fs::fstat(file)?;
    Ok(Inode(stat.st_dev, stat.st_ino))
}

/// Opens a namespace's file without waiting for anybody.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

impl Netns {
    /// The namespace of an open file; `path` is for messages.
    ///
    /// # Errors
    /// [`NetnsError::Enter`], also where the file is of no network namespace.
    pub(crate) fn enter(file: File, path: &Path) -> Result<Self, NetnsError> {
        let failed = |source: io::Error| NetnsError::Enter {
            action: "entering",
            path: path.to_owned(),
            source,
        };
        let (socket, cookie) = in_namespace(file.as_fd()).map_err(failed)?;
        Ok(Netns {
            file,
            socket,
            cookie,
        })
    }

    /// That of a container's init, which lives: its file is opened through its directory in /proc, which is of no other
    /// process.
    ///
    /// # Errors
    /// [`InitError`] and [`NetnsError::Enter`].
    pub(crate) fn of_init<E: From<InitError> + From<NetnsError>>(init: u32) -> Result<Self, E> {
        let file = Init::open(Some(init))?.network_namespace()?;
        let path = Path::new("/proc").join(init.to_string());
        Ok(Netns::enter(file, &path.join("ns/net"))?)
    }

    /// This process's own.
    ///
    /// # Errors
    /// [`NetnsError::Enter`].
    pub(crate) fn own() -> Result<Self, NetnsError> {
        let path = Path::new(OWN);
        let file = open(path).map_err(|source| NetnsError::Enter {
            action: "opening",
            path: path.to_owned(),
            source,
        })?;
        Netns::enter(file, path)
    }

    /// Whether this process is in the namespaces that the host began with: that of the first process, as it is seen
    /// from the initial PID namespace. An engine elsewhere has no interface of the host.
    pub(crate) fn is_first(&self) -> bool {
        let first = open(Path::new(FIRST)).and_then(inode);
        let is_same = first.is_ok_and(|first| inode(&self.file).is_ok_and(|own| own == first));
        let pids = rustix::fs::stat(OWN_PIDS).map(|stat| stat.st_ino);
        is_same && pids == Ok(INITIAL_PIDS)
    }

    /// The same namespace with another way in.
    ///
    /// # Errors
    /// Those of open(2) and socket(2).
    pub(crate) fn again(&self) -> io::Result<Netns> {
        let file = self.file.try_clone()?;
        let (socket, cookie) = in_namespace(file.as_fd())?;
        Ok(Netns {
            file,
            socket,
            cookie,
        })
    }

    /// Whether this process is in it.
    pub(crate) fn is_own(&self) -> bool {
        let own = open(Path::new(OWN)).and_then(inode);
        own.is_ok_and(|own| inode(&self.file).is_ok_and(|this| this == own))
    }

    /// Does something in it, in a thread that enters it, does that and ends.
    ///
    /// # Errors
    /// Those of setns(2), and of what is done.
    pub(crate) fn inside<T: Send>(
        &self,
        act: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        in_thread(self.file.as_fd(), act)
    }

    /// Whether two are the same.
    pub(crate) fn is(&self, other: &Netns) -> bool {
        self.cookie == other.cookie
    }

    /// What no other namespace has since boot (SO_NETNS_COOKIE, Linux 5.14).
    pub(crate) fn cookie(&self) -> u64 {
        self.cookie
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Its interfaces.
    ///
    /// # Errors
    /// [`NetnsError::List`].
    pub(crate) fn links(&self) -> Result<Vec<Link>, NetnsError> {
        let listed = self.socket.list(link::GET, &link::all(), &link::parse);
        listed.map_err(|error| NetnsError::List("network interfaces", error))
    }

    /// Those that are seen, and whether that is one state of the namespace: whoever is in it may never let it stand
    /// still. Then it is also what has gone meanwhile.
    ///
    /// # Errors
    /// [`NetnsError::List`].
    pub(crate) fn look(&self) -> Result<(Vec<Link>, bool), NetnsError> {
        let key = |link: &Link| link.index;
        let listed = self
            .socket
            .look(link::GET, &link::all(), &link::parse, &key);
        listed.map_err(|error| NetnsError::List("network interfaces", error))
    }

    /// Their addresses.
    ///
    /// # Errors
    /// [`NetnsError::List`].
    pub(crate) fn addresses(&self) -> Result<Vec<Address>, NetnsError> {
        let listed = self
            .socket
            .list(address::GET, &address::all(), &address::parse);
        listed.map_err(|error| NetnsError::List("addresses", error))
    }

    /// Its routes that somebody made.
    ///
    /// # Errors
    /// [`NetnsError::List`].
    pub(crate) fn routes(&self) -> Result<Vec<Route>, NetnsError> {
        let listed = self.socket.list(route::GET, &route::all(), &route::parse);
        listed.map_err(|error| NetnsError::List("routes", error))
    }

    /// Changes an interface.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn change(&self, index: u32, change: &Change<'_>) -> io::Result<()> {
        self.socket.tell(link::SET, 0, &change.payload(index))
    }

    /// Moves an interface to another namespace: under the name that it has, or under another.
    ///
    /// # Errors
    /// The kernel's: EEXIST where one of its names is taken there. It may have moved all the same, under the name that
    /// it had.
    pub(crate) fn give(&self, index: u32, to: &Netns, name: Option<&[u8]>) -> io::Result<()> {
        let payload = link::to_namespace(index, to.fd(), name);
        self.socket.tell(link::SET, 0, &payload)
    }

    /// The number by which this namespace tells of another one; none where it has told nothing of it yet.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn number_of(&self, other: &Netns) -> io::Result<Option<i32>> {
        let payload = link::namespace_number(other.fd());
        self.socket
            .ask(link::GET_NAMESPACE, &payload, &link::parse_namespace_number)
    }

    /// Deletes an interface that is no device.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn delete(&self, index: u32) -> io::Result<()> {
        self.socket.tell(link::DELETE, 0, &link::deletion(index))
    }

    /// Gives an interface another name beside its own, or takes one away.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn set_alternative(&self, index: u32, name: &[u8], is_set: bool) -> io::Result<()> {
        let payload = link::alternative_name(index, name);
        match is_set {
            true => self
                .socket
                .tell(link::ADD_PROPERTY, CREATE | EXCLUSIVE, &payload),
            false => self.socket.tell(link::DELETE_PROPERTY, 0, &payload),
        }
    }

    /// Gives an interface an address; one that it has already is no error.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn add_address(&self, new: Address) -> io::Result<()> {
        let payload = address::payload(new);
        unless_there(self.socket.tell(address::NEW, CREATE | EXCLUSIVE, &payload))
    }

    /// Makes a route; one that is there already is no error.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn add_route(&self, new: route::New) -> io::Result<()> {
        self.socket
            .tell(route::NEW, CREATE | EXCLUSIVE, &route::payload(new))
    }
}

fn unless_there(told: io::Result<()>) -> io::Result<()> {
    match told {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        told => told,
    }
}

/// A socket in a namespace, and what names that.
fn in_namespace(namespace: BorrowedFd<'_>) -> io::Result<(Socket, u64)> {
    in_thread(namespace, || {
        let socket = Socket::route()?;
        let cookie = cookie::of_socket(socket.fd())?;
        Ok((socket, cookie))
    })
}

/// Does something in a namespace. The thread that enters it does nothing else, and ends.
fn in_thread<T: Send>(
    namespace: BorrowedFd<'_>,
    act: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let enter = || {
        move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?;
        act()
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(STACK);
        let thread = thread.spawn_scoped(scope, enter)?;
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("its thread has died")))
    })
}
