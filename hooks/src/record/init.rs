//! The container's init as /proc shows it. All files are read through one descriptor of its /proc directory, which
//! never refers to another process (proc(5)).

use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::OwnedFd;

use onload_sys::error::{Context as _, Error, Result, bail, error};
use onload_sys::fs::regular::read_at_most;
use onload_sys::mountinfo::MountTable;
use onload_sys::processes::start_time;
use rustix::fs::{AtFlags, Mode, OFlags, openat, statat};

/// Bytes of a small file of /proc: `cgroup` has a path of up to 4096 bytes for each hierarchy.
const MAX_BYTES: u64 = 1024 * 1024;

/// The ids outside the container of its user 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RootUser {
    pub uid: u32,
    pub gid: u32,
}

/// Reads a small file of /proc, completely or not at all. It is no text: names in it may be arbitrary bytes.
pub(crate) fn read_whole(file: File) -> io::Result<Vec<u8>> {
    // Most fit into one read.
    read_at_most(BufReader::with_capacity(4096, file), MAX_BYTES)
}

/// For a state without the number of the container's init.
pub(crate) fn no_pid_error() -> Error {
    Error::new(
        "the container's state has no pid; this hook has to run as createRuntime or prestart, when the container's init exists",
    )
}

pub(crate) fn ended_error(pid: u32) -> Error {
    error!("process {pid}, the container's init, has ended")
}

#[derive(Debug)]
pub(crate) struct InitProcess {
    pid: u32,
    dir: OwnedFd,
}

impl InitProcess {
    pub(crate) fn open(pid: Option<u32>) -> Result<Self> {
        let pid = pid.filter(|pid| *pid != 0).ok_or_else(no_pid_error)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(format!("/proc/{pid}"), flags, Mode::empty())
            .with_context(|| format!("reading \"/proc/{pid}\""))?;
        Ok(InitProcess { pid, dir })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    fn read_context(&self, name: &str) -> String {
        format!("reading \"/proc/{}/{name}\"", self.pid)
    }

    fn open_file(&self, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
        Ok(openat(&self.dir, name, flags | OFlags::CLOEXEC, Mode::empty())?)
    }

    pub(crate) fn read_file(&self, name: &str) -> io::Result<Vec<u8>> {
        read_whole(self.open_file(name, OFlags::RDONLY)?.into())
    }

    /// Reads one of its small files, completely or not at all.
    pub(crate) fn read(&self, name: &str) -> Result<Vec<u8>> {
        self.read_file(name).with_context(|| self.read_context(name))
    }

    pub(crate) fn read_mounts(&self) -> Result<MountTable> {
        let name = "mountinfo";
        let file = self.open_file(name, OFlags::RDONLY);
        let table = file.and_then(|file| MountTable::read(File::from(file)));
        table.with_context(|| self.read_context(name))
    }

    /// When it started, in clock ticks since boot. Together with its number, that identifies it among all processes since
    /// boot.
    pub(crate) fn start_time(&self) -> Result<u64> {
        start_time(&self.read("stat")?)
            .ok_or_else(|| error!("{}: no start time in it", self.read_context("stat")))
    }

    /// Opens its mount namespace. Fails if that is this process's own.
    pub(crate) fn mount_namespace(&self) -> Result<OwnedFd> {
        let name = "ns/mnt";
        if self.shares_namespace(name)? {
            bail!(
                "process {} shares this host's mount namespace: mounts for the container would appear on the host; give the container a mount namespace",
                self.pid
            );
        }
        self.open_file(name, OFlags::RDONLY).with_context(|| self.read_context(name))
    }

    /// Its network namespace, which may be this process's own.
    pub(crate) fn network_namespace(&self) -> Result<File> {
        let file = self.open_file("ns/net", OFlags::RDONLY);
        Ok(file.with_context(|| self.read_context("ns/net"))?.into())
    }

    fn shares_namespace(&self, name: &str) -> Result<bool> {
        let failed = || self.read_context(name);
        let theirs = statat(&self.dir, name, AtFlags::empty()).with_context(failed)?;
        let own = rustix::fs::stat(format!("/proc/self/{name}")).with_context(failed)?;
        Ok((theirs.st_dev, theirs.st_ino) == (own.st_dev, own.st_ino))
    }

    /// Its root directory. Before pivot_root(2), that is the host's root in the container's mount namespace.
    pub(crate) fn open_root(&self) -> Result<OwnedFd> {
        self.open_file("root", OFlags::PATH | OFlags::DIRECTORY)
            .with_context(|| self.read_context("root"))
    }

    /// Whether it is in a user namespace other than this process's.
    pub(crate) fn has_own_users(&self) -> Result<bool> {
        Ok(!self.shares_namespace("ns/user")?)
    }

    /// The owner for files that are created for the container; `None` if it shares its users with this process, or if its
    /// user 0 is not mapped.
    pub(crate) fn root_user(&self) -> Result<Option<RootUser>> {
        if !self.has_own_users()? {
            return Ok(None);
        }
        let uid = map_root_id(&self.read("uid_map")?);
        let gid = map_root_id(&self.read("gid_map")?);
        Ok(uid.zip(gid).map(|(uid, gid)| RootUser { uid, gid }))
    }
}

/// The id outside the user namespace of its user 0 (user_namespaces(7), "/proc/PID/uid_map").
fn map_root_id(map: &[u8]) -> Option<u32> {
    std::str::from_utf8(map).ok()?.lines().find_map(|line| {
        let mut numbers = line.split_whitespace().map(str::parse);
        let (inside, outside): (u32, u32) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        (inside == 0).then_some(outside)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outside_id_of_user_0_is_read() {
        assert_eq!(map_root_id(b"         0     100000      65536\n"), Some(100_000));
        assert_eq!(map_root_id(b"1 5 1\n0 7 1\n"), Some(7));
        assert_eq!(map_root_id(b"1 5 1\n"), None);
        assert_eq!(map_root_id(b"0 x 1\n"), None);
    }

    #[test]
    fn this_process_is_no_container() {
        let own = InitProcess::open(Some(std::process::id())).unwrap();
        let refused = own.mount_namespace().unwrap_err().to_string();
        assert!(refused.contains("shares this host's mount namespace"), "{refused}");
        assert_eq!(own.root_user().unwrap(), None);
        assert!(own.start_time().unwrap() > 0);
        for none in [None, Some(0)] {
            let refused = InitProcess::open(none).unwrap_err().to_string();
            assert!(refused.contains("has no pid"), "{refused}");
        }
    }
}
