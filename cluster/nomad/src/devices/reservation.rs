//! A reservation for a task: variables, bind mounts and device nodes. Nomad supports no hooks, other mounts or
//! interfaces.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use onload_cdi::{ContainerEdits, DeviceNode, Mount};
use onload_core::hook_arguments::HookArguments;
use onload_core::onload::LIBRARY;

use crate::wire::device::{self, ContainerReservation, DeviceSpec};

const PRELOAD: &str = "LD_PRELOAD";
/// Default permissions of a node.
const ALL_PERMISSIONS: &str = "rwm";

/// An edit that Nomad does not support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnsupportedEdit {
    Memlock,
    /// A lease, which shows other programs on the host that the device is in use.
    Lease,
    FileSystem,
    /// Other edits: an operator's hook, an interface, a group.
    Other,
}

impl UnsupportedEdit {
    pub fn as_str(self) -> &'static str {
        match self {
            UnsupportedEdit::Memlock => "memlock",
            UnsupportedEdit::Lease => "lease",
            UnsupportedEdit::FileSystem => "its own file system",
            UnsupportedEdit::Other => "a hook, an interface or a group",
        }
    }

    /// Returns whether a task works without it.
    pub fn is_optional(self) -> bool {
        matches!(self, UnsupportedEdit::Memlock | UnsupportedEdit::Lease)
    }
}

pub fn unsupported_edits(edits: &ContainerEdits) -> BTreeSet<UnsupportedEdit> {
    let mut unsupported = BTreeSet::new();
    for hook in &edits.hooks {
        match HookArguments::from_command(&hook.args) {
            // The hook's node expectations were checked before the device was reported as healthy.
            Some((_, arguments)) => {
                unsupported.extend(arguments.memlock.map(|_| UnsupportedEdit::Memlock));
                let leases = !arguments.lease.is_empty() || !arguments.take.is_empty();
                unsupported.extend(leases.then_some(UnsupportedEdit::Lease));
            }
            None => drop(unsupported.insert(UnsupportedEdit::Other)),
        }
    }
    let is_mounted = edits.mounts.iter().any(|mount| !is_bind(mount));
    unsupported.extend(is_mounted.then_some(UnsupportedEdit::FileSystem));
    let is_more = !edits.net_devices.is_empty()
        || !edits.additional_gids.is_empty()
        || edits.intel_rdt.is_some();
    unsupported.extend(is_more.then_some(UnsupportedEdit::Other));
    unsupported
}

fn is_bind(mount: &Mount) -> bool {
    mount.options.iter().any(|option| option == "bind" || option == "rbind")
        || mount.type_.as_deref() == Some("bind")
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationOptions {
    /// The directory of libonload.so in the task, if a loader does not search it.
    pub library_dir: Option<PathBuf>,
    /// Whether device nodes are left out.
    pub without_nodes: bool,
}

/// Builds a reservation without duplicates: docker rejects a second mount at the same path.
#[derive(Debug, Default)]
pub struct NomadReservation {
    envs: BTreeMap<String, String>,
    mounts: BTreeMap<String, device::Mount>,
    devices: BTreeMap<String, DeviceSpec>,
}

impl NomadReservation {
    pub fn add(&mut self, edits: &ContainerEdits, options: &ReservationOptions) {
        for assignment in &edits.env {
            if let Some((name, value)) = assignment.split_once('=') {
                self.add_variable(name, value, options);
            }
        }
        for mount in edits.mounts.iter().filter(|mount| is_bind(mount)) {
            let key = mount.container_path.clone();
            self.mounts.entry(key).or_insert_with(|| to_mount(mount));
        }
        for node in edits.device_nodes.iter().filter(|_| !options.without_nodes) {
            let key = node.path.clone();
            self.devices.entry(key).or_insert_with(|| to_device(node));
        }
    }

    fn add_variable(&mut self, name: &str, value: &str, options: &ReservationOptions) {
        let value = match &options.library_dir {
            Some(dir) if name == PRELOAD && value == LIBRARY => {
                dir.join(LIBRARY).display().to_string()
            }
            _ => value.to_owned(),
        };
        self.envs.insert(name.to_owned(), value);
    }

    pub fn set(&mut self, name: &str, value: String) {
        self.envs.insert(name.to_owned(), value);
    }

    pub fn into_wire(self) -> ContainerReservation {
        ContainerReservation {
            envs: self.envs,
            mounts: self.mounts.into_values().collect(),
            devices: self.devices.into_values().collect(),
        }
    }
}

fn to_mount(mount: &Mount) -> device::Mount {
    device::Mount {
        task_path: mount.container_path.clone(),
        host_path: mount.host_path.clone(),
        read_only: mount.options.iter().any(|option| option == "ro"),
    }
}

fn to_device(node: &DeviceNode) -> DeviceSpec {
    let permissions = node.permissions.as_deref();
    DeviceSpec {
        task_path: node.path.clone(),
        host_path: node.source().to_owned(),
        permissions: permissions.unwrap_or(ALL_PERMISSIONS).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use onload_cdi::{Hook, HookName};

    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn hook(args: &[&str]) -> ContainerEdits {
        let hook = Hook {
            hook_name: HookName::CreateRuntime.into(),
            path: format!("/usr/bin/{}", args[0]),
            args: words(args),
            ..Hook::default()
        };
        ContainerEdits { hooks: vec![hook], ..ContainerEdits::default() }
    }

    fn mount(from: &str, to: &str, options: &[&str]) -> Mount {
        Mount {
            host_path: from.to_owned(),
            container_path: to.to_owned(),
            options: words(options),
            ..Mount::default()
        }
    }

    #[test]
    fn what_nomad_cannot_carry_is_found_in_the_edits() {
        let edits_for =
            |args: &[&str]| unsupported_edits(&hook(args)).into_iter().collect::<Vec<_>>();
        assert_eq!(
            edits_for(&["onload-hook", "createRuntime", "--expect", "/dev/onload=nic:onload"]),
            []
        );
        assert_eq!(
            edits_for(&["onload-hook", "createRuntime", "--memlock", "unlimited"]),
            [UnsupportedEdit::Memlock]
        );
        assert_eq!(
            edits_for(&[
                "onload-hook",
                "createRuntime",
                "--memlock",
                "4096",
                "--lease",
                "vfio:0000:81:10.0"
            ]),
            [UnsupportedEdit::Memlock, UnsupportedEdit::Lease]
        );
        assert_eq!(
            edits_for(&["onload-hook", "createRuntime", "--take", "vfio:fast"]),
            [UnsupportedEdit::Lease]
        );
        assert_eq!(edits_for(&["other-hook", "createRuntime"]), [UnsupportedEdit::Other]);
        let huge = ContainerEdits {
            mounts: vec![Mount {
                type_: Some("hugetlbfs".to_owned()),
                ..mount("hugetlbfs", "/dev/hugepages-2Mi", &["nosuid", "pagesize=2M"])
            }],
            additional_gids: vec![7],
            ..ContainerEdits::default()
        };
        assert!(
            unsupported_edits(&huge)
                .into_iter()
                .eq([UnsupportedEdit::FileSystem, UnsupportedEdit::Other])
        );
        assert!(
            UnsupportedEdit::Memlock.is_optional() && !UnsupportedEdit::FileSystem.is_optional()
        );
    }

    #[test]
    fn what_several_devices_share_is_given_once() {
        let node = |path: &str, host: Option<&str>, permissions: Option<&str>| DeviceNode {
            path: path.to_owned(),
            host_path: host.map(str::to_owned),
            permissions: permissions.map(str::to_owned),
            ..DeviceNode::default()
        };
        let edits = |name: &str| ContainerEdits {
            env: words(&[&format!("ONLOAD_CTK_NIC_{name}={name}"), "A=1", "broken"]),
            mounts: vec![
                mount("/usr/lib/libonload.so", "/usr/lib64/libonload.so", &["ro", "bind"]),
                mount("/run/onload", "/run/onload", &["rw", "rbind"]),
            ],
            device_nodes: vec![
                node("/dev/onload", None, Some("rw")),
                node("/dev/a", Some("/opt/a"), None),
            ],
            ..ContainerEdits::default()
        };
        let mut reservation = NomadReservation::default();
        reservation.add(&edits("X"), &ReservationOptions::default());
        reservation.add(&edits("Y"), &ReservationOptions::default());
        let wire = reservation.into_wire();
        let names: Vec<&str> = wire.envs.keys().map(String::as_str).collect();
        assert_eq!(names, ["A", "ONLOAD_CTK_NIC_X", "ONLOAD_CTK_NIC_Y"]);
        let mounts: Vec<_> =
            wire.mounts.iter().map(|mount| (mount.task_path.as_str(), mount.read_only)).collect();
        assert_eq!(mounts, [("/run/onload", false), ("/usr/lib64/libonload.so", true)]);
        let devices: Vec<_> = wire
            .devices
            .iter()
            .map(|device| {
                (device.task_path.as_str(), device.host_path.as_str(), device.permissions.as_str())
            })
            .collect();
        assert_eq!(devices, [("/dev/a", "/opt/a", "rwm"), ("/dev/onload", "/dev/onload", "rw")]);
    }

    #[test]
    fn the_preload_names_the_library_where_the_task_has_it() {
        let edits = ContainerEdits {
            env: words(&["LD_PRELOAD=libonload.so"]),
            ..ContainerEdits::default()
        };
        let preload = |manner: &ReservationOptions| {
            let mut reservation = NomadReservation::default();
            reservation.add(&edits, manner);
            reservation.into_wire().envs.remove("LD_PRELOAD")
        };
        assert_eq!(preload(&ReservationOptions::default()).as_deref(), Some("libonload.so"));
        let elsewhere = ReservationOptions {
            library_dir: Some("/opt/onload/usr/lib64".into()),
            ..ReservationOptions::default()
        };
        assert_eq!(preload(&elsewhere).as_deref(), Some("/opt/onload/usr/lib64/libonload.so"));
    }
}
