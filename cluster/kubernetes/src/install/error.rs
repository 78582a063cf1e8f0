//! Why something was not installed or removed.

use std::io;
use std::path::{Path, PathBuf};

use onload_core::config::ConfigError;
use onload_core::fs::atomic::WriteError;
use onload_core::fs::lock::LockError;
use onload_core::fs::trust::TrustError;
use onload_host::host::HostError;
use rustix::io::Errno;

use crate::spec_writer::SpecWriterError;

/// Why something was not installed or removed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The host cannot be read.
    #[error(transparent)]
    Host(#[from] HostError),
    /// Specifications cannot be removed, or it cannot be told who writes them.
    #[error(transparent)]
    Specs(#[from] SpecWriterError),
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A path cannot be used.
    #[error("{action} {}", .path.display())]
    Path {
        /// What was being done.
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// Somebody else could change what is there.
    #[error("looking at {}", .path.display())]
    Trust {
        /// The path that was asked for.
        path: PathBuf,
        /// What is wrong, and with which part of it.
        source: TrustError,
    },
    /// The process is root of a user namespace alone.
    #[error(
        "installing the hook: this is not root of the host but of a user namespace, so no runtime would trust its files; remove hostUsers from the pod, or set it to true"
    )]
    UserNamespace,
    /// Nothing can be written to the directory.
    #[error(
        "installing the hook: {} is on a file system that is mounted read-only; name a directory that is not with --hook-dir", .0.display()
    )]
    ReadOnly(PathBuf),
    /// No program of the directory can be executed.
    #[error(
        "installing the hook: {} is on a file system that is mounted noexec, so no runtime could execute it; name another directory with --hook-dir", .0.display()
    )]
    NoExec(PathBuf),
    /// The file to install is not this version's hook.
    #[error("installing the hook: {} is not the hook of version {version}: it says {says:?}", .path.display())]
    NotHook {
        path: PathBuf,
        /// The version of this program.
        version: &'static str,
        /// What it prints with --version.
        says: String,
    },
    /// A program does not run.
    #[error("executing {}", .path.display())]
    Execute { path: PathBuf, source: io::Error },
    /// Another file has the name of this version's hook.
    #[error(
        "installing the hook: {} is another file than this version's hook, and containers may have been given it; remove it when none is left, or replace it with --force", .0.display()
    )]
    OtherHook(PathBuf),
    /// The label of SELinux cannot be set.
    #[error("giving {} the security label of {like}", .path.display())]
    Label {
        path: PathBuf,
        /// The program that has the right label.
        like: &'static str,
        source: Errno,
    },
    /// The configuration to install is none.
    #[error("reading the configuration {}", .path.display())]
    Config {
        path: PathBuf,
        /// Where and why.
        source: ConfigError,
    },
    /// The record of what was installed is not understood.
    #[error("reading {}: {why}; nothing is changed", .path.display())]
    Record { path: PathBuf, why: String },
    #[error(
        "removing what was installed: the daemon of this node still runs and would write specifications anew; delete its DaemonSet first"
    )]
    DaemonRuns,
}

impl InstallError {
    /// An error of a path.
    pub(super) fn path(
        action: &'static str,
        path: &Path,
    ) -> impl FnOnce(io::Error) -> InstallError + use<> {
        let path = path.to_owned();
        move |source| InstallError::Path {
            action,
            path,
            source,
        }
    }

    /// An error of a replaced file, whose directory this is.
    pub(super) fn write(dir: &Path) -> impl FnOnce(WriteError) -> InstallError + use<> {
        let dir = dir.to_owned();
        move |failed| InstallError::Path {
            action: failed.action,
            path: dir.join(&failed.name),
            source: failed.source,
        }
    }

    /// An error of a path that was to be looked at.
    pub(super) fn trust(path: &Path) -> impl FnOnce(TrustError) -> InstallError + use<> {
        let path = path.to_owned();
        move |source| InstallError::Trust { path, source }
    }
}
