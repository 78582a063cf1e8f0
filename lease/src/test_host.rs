//! A host for tests: processes, their cgroups, and leases.

use std::fs;
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use onload_test_tree::Tree;

use super::file::Holder;
use super::request::{LeaseRequest, LeasedContainer, MemberRequest};
use super::store::Leases;
use crate::run_dir::RunDir;
use onload_core::container_id::ContainerId;
use onload_core::device_id::DeviceId;
use onload_core::pool::Numa;
use onload_core::token::Token;
use onload_sys::processes::{Cgroup, Processes};

const TIMEOUT: Duration = Duration::from_secs(10);

/// A host with files of /proc and /sys/fs/cgroup, and its leases.
pub(super) struct Host {
    tree: Tree,
    pub(super) leases: Leases,
}

impl Deref for Host {
    type Target = Tree;

    fn deref(&self) -> &Tree {
        &self.tree
    }
}

fn open_leases(tree: &Tree) -> Leases {
    let run = RunDir::find(&tree.path("run")).unwrap().unwrap();
    let mut leases = Leases::open(&run, Processes::at_root(tree.root())).unwrap();
    leases.timeout = TIMEOUT;
    leases
}

impl Host {
    pub(super) fn new() -> Self {
        let tree = Tree::new();
        tree.boot("this boot").file("proc/self/ns/pid", "");
        tree.file("sys/fs/cgroup/cgroup.procs", "").directory("run");
        let leases = open_leases(&tree);
        Host { tree, leases }
    }

    /// The leases as another process opens them: a directory that is open once is read by one thread at a time.
    pub(super) fn open_leases(&self) -> Leases {
        open_leases(&self.tree)
    }

    /// A process with this number and start time, in a cgroup of its own.
    pub(super) fn start(&self, pid: u32, start_time: u64) -> Holder {
        self.process(pid, start_time);
        let events = format!("sys/fs/cgroup/{pid}/cgroup.events");
        self.attribute(&events, "populated 1");
        let process = self.leases.processes.find(pid).unwrap().unwrap();
        let path = PathBuf::from(format!("/sys/fs/cgroup/{pid}"));
        let inode = fs::metadata(self.path(&format!("sys/fs/cgroup/{pid}"))).unwrap().ino();
        let cgroup = Some(Cgroup { path, inode });
        Holder::Init { process, cgroup }
    }

    /// As if the process that looks were in another PID namespace.
    pub(super) fn enter_another_namespace(&mut self) {
        self.file("proc/self/ns/another", "");
        fs::rename(self.path("proc/self/ns/another"), self.path("proc/self/ns/pid")).unwrap();
        self.leases.processes = Processes::at_root(self.root());
    }

    pub(super) fn boot_again(&mut self) {
        self.boot("the next");
        self.leases.processes = Processes::at_root(self.root());
    }

    pub(super) fn end_process(&self, pid: u32) {
        self.remove(&format!("proc/{pid}"));
    }

    pub(super) fn end(&self, pid: u32) {
        self.end_process(pid);
        self.remove(&format!("sys/fs/cgroup/{pid}"));
    }

    pub(super) fn claim_by(
        &self,
        id: &str,
        holder: Holder,
        token: Option<&Token>,
    ) -> Result<(), String> {
        self.claim_all(id, holder, token, &[claimed(vfio())])
    }

    pub(super) fn claim_all(
        &self,
        id: &str,
        holder: Holder,
        token: Option<&Token>,
        device_requests: &[MemberRequest],
    ) -> Result<(), String> {
        let request = LeaseRequest {
            devices: device_requests,
            numa: Numa::Any,
            container: &id.parse().unwrap(),
            bundle: &bundle(id),
            holder,
            token,
            claim: None,
            entry_point: "createRuntime",
        };
        self.leases.acquire(&request, &|_| None).map(drop).map_err(|error| format!("{error:#}"))
    }

    pub(super) fn claim(&self, id: &str, holder: &Holder) -> Result<(), String> {
        self.claim_by(id, holder.clone(), None)
    }

    pub(super) fn release(&self, id: &str) -> bool {
        self.release_by(id, None)
    }

    pub(super) fn release_by(&self, id: &str, token: Option<&Token>) -> bool {
        let files = self.files();
        let (container, bundle) = (id.parse().unwrap(), bundle(id));
        let container = LeasedContainer { token, ..leased(&container, &bundle) };
        self.leases.release(&[vfio()], &container).unwrap();
        self.files() != files
    }

    /// The holder by the file alone.
    pub(super) fn holder(&self) -> Option<String> {
        let listed = self.leases.list().unwrap();
        let lease = listed.first()?.lease.as_ref().unwrap();
        Some(lease.container.to_string())
    }

    pub(super) fn files(&self) -> Vec<String> {
        let mut names = self.names("run/@leases");
        names.retain(|name| !name.starts_with(".lock") && !name.starts_with(".moving"));
        names
    }
}

pub(super) fn vfio() -> DeviceId {
    "vfio:0000:81:10.0".parse().unwrap()
}

pub(super) fn bundle(id: &str) -> PathBuf {
    Path::new("/bundles").join(id)
}

/// A container without a token.
pub(super) fn leased<'a>(id: &'a ContainerId, bundle: &'a Path) -> LeasedContainer<'a> {
    LeasedContainer { id, bundle, token: None }
}

/// A device that one container may have.
pub(super) fn claimed(device: DeviceId) -> MemberRequest {
    MemberRequest::for_device(device, 1)
}
