//! The look at one container. What it has mounted, and what its programs are, may make who looks wait: each such
//! thing is asked for by itself, no longer than a moment, and only where it decides.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::cgroup::{self, Engine};
use super::container::{self, Facts, Program, Start, Within};
use super::groups::{Group, leases_of};
use super::looked::Looked;
use super::names::Names;
use super::patience::{PATIENCE, patiently};
use super::process::{self, Budget, Process, Reader};
use crate::host::Host;

/// The file of Onload's library in its directory.
const LIBRARY: &str = "libonload.so";

/// The look at all containers of a host.
pub(super) struct Look<'l> {
    looked: Looked<'l>,
    reader: Reader<'l>,
    names: Names<'l>,
    own_network: Option<PathBuf>,
    /// The numbers of the host's accelerated interfaces.
    accelerated: Vec<String>,
}

impl<'l> Look<'l> {
    pub(super) fn new(looked: Looked<'l>) -> Self {
        let host = looked.host;
        let onload = looked.inventory.onload.as_ref();
        let library = onload.and_then(|onload| onload.library_dir());
        let library = library.map(|directory| host.outside_path(&directory.join(LIBRARY)));
        let library = library.and_then(|path| rustix::fs::stat(path).ok());
        Look {
            looked,
            reader: Reader::new(host, library.map(|stat| stat.st_ino)),
            names: Names::new(host),
            own_network: process::own_namespace(host, "net"),
            accelerated: container::accelerated(host, looked.inventory),
        }
    }

    /// What is known of a container, and how many of its processes are not ours to see. None where all of them have
    /// ended, and where nothing of it is of interest.
    pub(super) fn facts(&mut self, group: Group, budget: &mut Budget) -> (Option<Facts>, usize) {
        let host = self.looked.host;
        let pids: BTreeSet<u32> = group.pids.iter().copied().collect();
        let mut read = |pid: &u32| self.reader.read(*pid, budget);
        let mut processes: Vec<Process> = pids.iter().filter_map(&mut read).collect();
        // The first of its pid namespace comes first.
        processes.sort_by_key(|process| !process.is_init);
        let unseen = processes.iter().filter(|one| one.open.is_none()).count();
        let Some(first) = processes.first() else {
            return (None, 0);
        };
        let network = processes.iter().find_map(|process| process.network.clone());
        let leases = leases_of(self.looked.leases.unwrap_or_default(), &group);
        let (within, is_stuck) = self.within(&processes, budget);
        let name = match group.engine {
            Engine::Unknown => {
                process::cgroup(host, first.pid).and_then(|table| cgroup::leaf(&table))
            }
            engine => self.names.of(engine, &group.id, group.user),
        };
        let has_host_network = network.zip(self.own_network.as_ref());
        let mut facts = Facts {
            engine: group.engine,
            name,
            id: group.id,
            user: group.user,
            is_named: group.is_named,
            is_seen: within.is_some(),
            is_stuck,
            within: within.unwrap_or_default(),
            has_host_network: has_host_network.map(|(its, own)| its == *own),
            start: Start::default(),
            leases,
            processes,
        };
        if !facts.is_of_interest() {
            return (None, unseen);
        }
        if facts.has_node("/dev/onload") && !facts.maps() {
            facts.start = self.start(&facts, budget);
        }
        (Some(facts), unseen)
    }

    /// What is in the root of a container, as the first of its processes sees it that lives; and whether that does not
    /// answer.
    fn within(&self, processes: &[Process], budget: &mut Budget) -> (Option<Within>, bool) {
        for process in processes {
            if container::may_wait(self.looked.host, process.pid) {
                return (None, true);
            }
            let (pid, accelerated) = (process.pid, self.accelerated.clone());
            let look = move |host: &Host| container::within(host, pid, &accelerated);
            let found = budget.wait(|left| patiently(self.looked.host, PATIENCE.min(left), look));
            match found.flatten() {
                Some(Some(within)) => return (Some(within), false),
                Some(None) => {}
                None => return (None, true),
            }
        }
        (None, false)
    }

    /// Looks for why no program has the library.
    fn start(&self, facts: &Facts, budget: &mut Budget) -> Start {
        let host = self.looked.host;
        let mut pids = facts.processes.iter().map(|process| process.pid);
        Start {
            was_given: self.names.preload(facts.engine, &facts.id),
            has_preload_file: pids.any(|pid| container::has_preload_file(host, pid)),
            ..self.judged(&facts.processes, budget)
        }
    }

    /// The program that was to have the library: the first one, but for a static one that starts others
    /// (`docker run --init`).
    fn judged(&self, processes: &[Process], budget: &mut Budget) -> Start {
        let mut found: Option<Start> = None;
        for process in processes {
            let Some(start) = budget.wait(|_| self.start_of(process)) else {
                break;
            };
            let was_told = found.is_some_and(|before| before.is_told);
            match (start.program, found) {
                (Program::Static, None) => found = Some(start),
                (Program::Static, Some(_)) => {}
                _ => {
                    let is_told = was_told || start.is_told;
                    return Start { is_told, ..start };
                }
            }
        }
        found.unwrap_or_default()
    }

    fn start_of(&self, process: &Process) -> Start {
        let (host, guarded) = (self.looked.host, self.looked.guarded);
        let environment = container::environment(host, process.pid, guarded);
        Start {
            program: container::program(host, process.pid, guarded),
            environment,
            is_secure: process.is_secure,
            is_told: environment.is_ours(),
            ..Start::default()
        }
    }
}
