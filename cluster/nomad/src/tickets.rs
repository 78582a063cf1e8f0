//! Tickets of this plugin, by which our OCI runtime gives a task the edits that Nomad does not support.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use onload_cdi::QualifiedName;
use onload_core::class::Class;
use onload_core::container_id::ContainerId;
use onload_core::device_id::DeviceId;
use onload_core::token::Token;
use onload_host::host::Host;
use onload_lease::Lease;
use onload_lease::run_dir::{RUN_DIR, RUN_DIR_MODE, RunDir, set_mode};
use onload_lease::tickets::{Ticket, Tickets};
use onload_sys::processes::Processes;

use crate::devices::group::OwnSlots;

const ENGINE: &str = "nomad";
/// Separator of the device ids in a ticket's description.
pub const SEPARATOR: &str = ", ";
/// Time limit for another program to release the lock of the tickets.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Writes a ticket for devices. Earlier tickets become invalid for those in `exclusive`.
pub fn write(
    host: &Host,
    devices: &BTreeSet<(Class, QualifiedName)>,
    exclusive: &[DeviceId],
    description: &str,
) -> Result<Token> {
    let path = host.outside_path(Path::new(RUN_DIR));
    let opened = host.create_directory(Path::new(RUN_DIR))?;
    set_mode(&opened, RUN_DIR_MODE).with_context(|| format!("opening {path:?}"))?;
    let run = RunDir::new(opened, &path);
    let tickets = Tickets::open(&run, host_processes(host))?;
    let new = Ticket {
        request: format_request(devices),
        exclusive: exclusive.to_vec(),
        engine: ENGINE.to_owned(),
        description: Some(description.to_owned()),
        ..Ticket::default()
    };
    Ok(tickets.write(new, LOCK_TIMEOUT)?)
}

/// Returns whether a lease names a valid ticket of this plugin. [`OwnTasks`] lacks tickets that were written since the last
/// survey.
pub fn is_of_ours(host: &Host, lease: &Lease) -> bool {
    let ticket = lease.ticket.as_ref().and_then(|id| find(host)?.read(id).ok());
    ticket.is_some_and(|ticket| ticket.engine == ENGINE)
}

fn find(host: &Host) -> Option<Tickets> {
    let run = RunDir::find(&host.outside_path(Path::new(RUN_DIR))).ok()??;
    Tickets::find(&run, host_processes(host)).ok()?
}

fn host_processes(host: &Host) -> Processes {
    Processes::at_root(&host.outside_path(Path::new("/")))
}

/// Formats devices as a request: `nic=ens1;vfio=0000:81:10.0,0000:81:10.2`.
fn format_request(devices: &BTreeSet<(Class, QualifiedName)>) -> String {
    let mut names: BTreeMap<Class, Vec<&str>> = BTreeMap::new();
    for (class, name) in devices {
        names.entry(*class).or_default().push(name.device.as_str());
    }
    let words: Vec<String> =
        names.iter().map(|(class, names)| format!("{class}={}", names.join(","))).collect();
    words.join(";")
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnTasks {
    tickets: BTreeSet<String>,
    /// The containers that were started with a ticket, and their bundles, since leases of shared devices name no
    /// ticket.
    containers: BTreeSet<(ContainerId, PathBuf)>,
    /// The slots reserved for Nomad tasks.
    pub slots: OwnSlots,
    /// Devices of a task that was started with a ticket that is still valid.
    started: BTreeSet<DeviceId>,
}

impl OwnTasks {
    /// Reads the tickets of a host. If they cannot be read, a task's device counts as held outside of Nomad, so no
    /// other task gets it.
    pub fn read(host: &Host) -> OwnTasks {
        let entries = find(host).and_then(|tickets| {
            let entries = tickets.list().ok()?;
            // On failure the next survey repeats this.
            let _ = tickets.prune(&entries, LOCK_TIMEOUT);
            Some(entries)
        });
        let mut own_tasks = OwnTasks::default();
        for entry in entries.into_iter().flatten() {
            let Ok(ticket) = entry.ticket else {
                continue;
            };
            if ticket.engine != ENGINE {
                continue;
            }
            own_tasks.tickets.insert(entry.id.into());
            for id in ticket.description.iter().flat_map(|ids| ids.split(SEPARATOR)) {
                *own_tasks.slots.entry(id.to_owned()).or_default() |= entry.is_used;
            }
            if let Some(user) = ticket.user {
                own_tasks.started.extend(ticket.exclusive);
                own_tasks.containers.insert((user.container, user.bundle));
            }
        }
        own_tasks
    }

    /// Adds tickets of an earlier survey that a lease still names: a reservation for the next task replaces the ticket
    /// of the previous one, which may still run. After a task was started with the later ticket, a container with the
    /// earlier one no longer counts as a Nomad task.
    pub fn merge_earlier<'l>(
        mut self,
        earlier: &OwnTasks,
        leases: impl Iterator<Item = (DeviceId, &'l Lease)>,
    ) -> OwnTasks {
        let held_tickets = leases
            .filter(|(_, lease)| earlier.holds_lease(lease))
            .filter_map(|(device, lease)| Some((device, String::from(lease.ticket.clone()?))));
        let (late, retained): (Vec<_>, Vec<_>) =
            held_tickets.partition(|(device, _)| self.started.contains(device));
        let late: BTreeSet<String> = late.into_iter().map(|(_, ticket)| ticket).collect();
        let retained = retained.into_iter().map(|(_, ticket)| ticket);
        self.tickets.extend(retained.filter(|ticket| !late.contains(ticket)));
        self
    }

    /// Returns whether a lease belongs to a container that was started with one of these tickets.
    pub fn holds_lease(&self, lease: &Lease) -> bool {
        match &lease.ticket {
            Some(ticket) => self.tickets.contains(ticket.as_str()),
            None => {
                let container = (lease.container.clone(), lease.bundle.clone());
                self.containers.contains(&container)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use onload_lease::Holder;
    use onload_test_tree::Tree;

    use super::*;

    fn host() -> (Tree, Host) {
        let tree = Tree::new();
        tree.boot("a");
        let host = Host::open(tree.root()).unwrap();
        (tree, host)
    }

    fn names(names: &[&str]) -> BTreeSet<(Class, QualifiedName)> {
        let names = names.iter().map(|name| {
            let name: QualifiedName = name.parse().unwrap();
            (name.kind.class().parse().unwrap(), name)
        });
        names.collect()
    }

    fn lease(ticket: Option<Token>) -> Lease {
        Lease {
            boot: "a".to_owned(),
            container: "redis".parse().unwrap(),
            bundle: "/bundles/redis".into(),
            holder: Holder::Reservation { token: [7; 16].into(), expires_ms: 5, maker: None },
            claim: None,
            entry_point: "create".to_owned(),
            since: 0,
            facts: BTreeMap::new(),
            ticket,
            moved: None,
        }
    }

    #[test]
    fn a_ticket_asks_for_its_devices_class_by_class() {
        let (_root, host) = host();
        let devices = names(&[
            "onload.dev/vfio=0000:81:10.2",
            "onload.dev/rdma=mlx5_0",
            "onload.dev/vfio=0000:81:10.0",
        ]);
        let exclusive = ["vfio:0000:81:10.0".parse().unwrap()];
        let id = write(&host, &devices, &exclusive, "vfio").unwrap();
        let run = RunDir::find(&host.outside_path(Path::new(RUN_DIR))).unwrap().unwrap();
        let tickets = Tickets::find(&run, host_processes(&host)).unwrap().unwrap();
        let ticket = tickets.read(&id).unwrap();
        assert_eq!(ticket.request, "rdma=mlx5_0;vfio=0000:81:10.0,0000:81:10.2");
        assert_eq!((ticket.engine.as_str(), ticket.exclusive.len()), ("nomad", 1));
        let later =
            write(&host, &names(&["onload.dev/vfio=0000:81:10.0"]), &exclusive, "vfio").unwrap();
        assert!(tickets.read(&id).is_err());
        assert!(tickets.read(&later).is_ok());
    }

    #[test]
    fn without_tickets_no_task_is_ours() {
        let (_root, host) = host();
        assert_eq!(OwnTasks::read(&host), OwnTasks::default());
    }

    #[test]
    fn a_task_that_holds_a_device_is_ours_after_a_later_reservation_too() {
        let (_root, host) = host();
        let devices = names(&["onload.dev/vfio=0000:81:10.0"]);
        let exclusive = ["vfio:0000:81:10.0".parse().unwrap()];
        let id = write(&host, &devices, &exclusive, "vfio").unwrap();
        let (of_task, of_another) = (lease(Some(id)), lease(None));
        let before = OwnTasks::read(&host);
        assert!(before.holds_lease(&of_task) && !before.holds_lease(&of_another));
        assert!(!before.holds_lease(&lease(Some([9; 16].into()))), "a ticket of nobody's");
        write(&host, &devices, &exclusive, "vfio").unwrap();
        assert!(!OwnTasks::read(&host).holds_lease(&of_task));
        let both = || [&of_task, &of_another].map(|lease| (exclusive[0].clone(), lease));
        let after = OwnTasks::read(&host).merge_earlier(&before, both().into_iter());
        assert!(after.holds_lease(&of_task) && !after.holds_lease(&of_another));
        // It is forgotten when it holds nothing any more.
        let later = OwnTasks::read(&host).merge_earlier(&after, [].into_iter());
        assert!(!later.holds_lease(&of_task));
    }

    #[test]
    fn the_container_that_was_started_with_a_ticket_holds_what_several_may_have_too() {
        let (root, host) = host();
        let id = write(&host, &names(&["onload.dev/nic=ens1"]), &[], "nic").unwrap();
        assert!(!OwnTasks::read(&host).holds_lease(&lease(None)), "it is not started");
        start(&root, &id, "redis", "/bundles/redis");
        let own = OwnTasks::read(&host);
        assert!(own.holds_lease(&lease(None)));
        let another = Lease { container: "another".parse().unwrap(), ..lease(None) };
        let of_another_engine = Lease { bundle: "/pods/redis".into(), ..lease(None) };
        assert!(!own.holds_lease(&another) && !own.holds_lease(&of_another_engine));
    }

    /// Writes down which container was started with a ticket.
    fn start(root: &Tree, ticket: &Token, container: &str, bundle: &str) {
        let file = root.path("run/onload-ctk/@requests").join(ticket.as_str());
        let text = fs::read_to_string(&file).unwrap();
        let user = format!(
            "\"user\":{{\"container\":\"{container}\",\"bundle\":\"{bundle}\",\"state\":[],\"maker\":\
             {{\"pid\":9,\"startTime\":1,\"pidNamespace\":1}}}}}}\n"
        );
        fs::write(&file, text.replace("}\n", &format!(",{user}"))).unwrap();
    }

    #[test]
    fn who_keeps_a_device_from_the_task_that_has_it_now_is_not_ours() {
        let (root, host) = host();
        let devices = names(&["onload.dev/vfio=0000:81:10.0"]);
        let exclusive = ["vfio:0000:81:10.0".parse().unwrap()];
        let old = write(&host, &devices, &exclusive, "vfio").unwrap();
        let before = OwnTasks::read(&host);
        let by_old = lease(Some(old));
        let new = write(&host, &devices, &exclusive, "vfio").unwrap();
        let now = || {
            let held = [(exclusive[0].clone(), &by_old)];
            OwnTasks::read(&host).merge_earlier(&before, held.into_iter())
        };
        assert!(now().holds_lease(&by_old), "its task may run");
        start(&root, &new, "b", "/b");
        assert!(!now().holds_lease(&by_old), "another task was started for it");
        assert!(now().holds_lease(&lease(Some(new))));
    }
}
