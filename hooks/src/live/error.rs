//! Why a living container does not get what it requests.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

use super::cgroup::DeviceCgroupError;
use super::devices::DevicesError;
use super::plan::PlanError;
use super::target::TargetError;
use crate::config_json::bundle::BundleError;
use crate::host::HostFilesError;
use crate::host::sysfs::Numbers;
use crate::netdev::NetdevError;
use crate::process::init::InitError;
use crate::process::limits::LimitError;
use crate::rdma::RdmaError;
use crate::rootfs::container_root::RootError;
use crate::rootfs::overmount::OvermountError;
use crate::run::own_dir::OwnDirError;
use crate::run::record::RecordError;

/// Why the container must not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LiveError {
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The files of the host cannot be used.
    #[error(transparent)]
    Host(#[from] HostFilesError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The container's init cannot be used.
    #[error(transparent)]
    Init(#[from] InitError),
    /// The container's root cannot be used.
    #[error(transparent)]
    Root(#[from] RootError),
    /// A mount target in it cannot be used.
    #[error("{keys}")]
    Target {
        /// Where it is requested, for people.
        keys: String,
        source: TargetError,
    },
    /// A mount target lies on a file system that is not the container's own.
    #[error("{keys}")]
    Overmount {
        /// Where it is requested, for people.
        keys: String,
        source: OvermountError,
    },
    /// A mount could not be made.
    #[error("{keys}: {action} {path:?} {where_}: {error}{hint}", where_ = .side, hint = hint(.error))]
    Mount {
        /// Where it is requested, for people.
        keys: String,
        /// What was being done.
        action: &'static str,
        path: PathBuf,
        /// On the host, or in the container.
        side: &'static str,
        error: Errno,
    },
    /// A device node was replaced by another one.
    #[error("{keys}: device node {path:?} is no longer character device {wanted}")]
    Node {
        /// Where it is requested, for people.
        keys: String,
        /// The node on the host.
        path: PathBuf,
        wanted: Numbers,
    },
    /// A node that the container's users could not open.
    #[error(
        "{keys}: the container has a user namespace, in which nobody can open {path:?} of the host (mode {mode:04o}), and it cannot be given a node of its own there; run it without a user namespace, or give the host's node a mode for others by a udev rule"
    )]
    Users {
        /// Where it is requested, for people.
        keys: String,
        /// The node on the host.
        path: PathBuf,
        mode: u32,
    },
    /// The container's cgroup cannot be used.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The devices were not opened.
    #[error(transparent)]
    Devices(#[from] DevicesError),
    /// A limit could not be set.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A record could not be kept.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The container's directory on the host could not be used.
    #[error(transparent)]
    OwnDir(#[from] OwnDirError),
    /// Another container has a device that this one has to have for itself.
    #[error(transparent)]
    Claim(#[from] NetdevError),
    /// An RDMA device does not move.
    #[error(transparent)]
    Rdma(#[from] RdmaError),
    /// Returning to this process's mount namespace would be impossible.
    #[error("opening this process's own mount namespace")]
    Home(#[source] Errno),
    /// The user namespace maps no user that could create files.
    #[error("becoming the container's user {0} to make mount targets: the kernel refuses")]
    User(u32),
}

impl onload_core::error::Typed for LiveError {}

/// Why a container's cgroup cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CgroupError {
    /// The process cannot be examined.
    #[error(transparent)]
    Init(#[from] InitError),
    /// One of this process's own files cannot be read.
    #[error("reading {path:?}")]
    Own {
        path: &'static str,
        source: io::Error,
    },
    /// It is not found, or the container shares it.
    #[error(transparent)]
    DeviceCgroup(#[from] DeviceCgroupError),
}

impl onload_core::error::Typed for CgroupError {}

fn hint(error: &Errno) -> &'static str {
    if *error == Errno::NOSYS {
        " (Linux 5.12 or newer is needed)"
    } else {
        ""
    }
}
