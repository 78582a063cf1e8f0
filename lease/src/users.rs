//! Finds processes that use vfio devices without a lease, and describes devices by what sysfs shows.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use onload_cdi::DeviceName;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::file::NODES;
use onload_core::device_id::DeviceId;
use onload_sys::processes::Processes;
use onload_sys::text::Quoted;

/// The nodes of vfio groups (drivers/vfio/group.c, `vfio_devnode`).
const GROUPS: &str = "/dev/vfio";
/// The nodes of single functions (drivers/vfio/device_cdev.c).
const FUNCTIONS: &str = "/dev/vfio/devices";
pub const PCI_FUNCTIONS: &str = "/sys/bus/pci/devices";
/// The kernel's class of vfio groups.
const VFIO: &str = "/sys/class/vfio";

/// Finds a process that uses a device: a virtual machine, or a container that was given only the node. Fails if the
/// search of /proc timed out.
///
/// The kernel lets one process open a group at a time (`vfio_group_fops_open`), so this opens the
/// group's node. That also fails if a process has bound a function's node. Several processes can open the node of a
/// function, and the group stays free until one of them binds it (`vfio_df_open` in drivers/vfio/vfio_main.c), so those
/// are searched for in /proc.
pub fn find_user(
    root: &Path,
    device: &DeviceId,
    processes: &Processes,
    deadline: Instant,
) -> io::Result<Option<String>> {
    let (groups, mut nodes) = device_nodes(root, device);
    if let Some(user) = find_group_user(&groups, processes, deadline) {
        return Ok(Some(user));
    }
    // Without CAP_SYS_RAWIO, opening a group without IOMMU does not show whether it is in use.
    nodes.extend(groups.into_iter().filter(|group| try_open(group) == Err(Errno::PERM)));
    find_opener(&nodes, processes, deadline)
}

/// Like [`find_user`], but opens no node: a container that opens the group at that moment would fail with EBUSY.
pub fn find_user_in_proc(
    root: &Path,
    device: &DeviceId,
    processes: &Processes,
    deadline: Instant,
) -> io::Result<Option<String>> {
    let (groups, nodes) = device_nodes(root, device);
    find_opener(&[groups, nodes].concat(), processes, deadline)
}

/// Returns whether a process has the device's group open.
pub fn is_group_busy(root: &Path, device: &DeviceId) -> bool {
    find_busy_group(&device_nodes(root, device).0).is_some()
}

/// Finds the process that has one of these groups open. The kernel lets one process open a group at a
/// time, so /proc is searched only for its name.
fn find_group_user(groups: &[PathBuf], processes: &Processes, deadline: Instant) -> Option<String> {
    let busy = find_busy_group(groups)?;
    Some(match processes.find_opener(busy, deadline) {
        Ok(Some(opener)) => describe_process(opener),
        Ok(None) => "a process that /proc does not show".to_owned(),
        Err(_) => "a process that was not found in time".to_owned(),
    })
}

fn find_busy_group(groups: &[PathBuf]) -> Option<&PathBuf> {
    groups.iter().find(|node| try_open(node) == Err(Errno::BUSY))
}

/// Opens the node of a group, and closes it again.
fn try_open(node: &Path) -> Result<(), Errno> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(node, flags, Mode::empty()).map(drop)
}

pub fn describe_process((pid, program): (u32, String)) -> String {
    format!("process {pid} ({})", Quoted(&program))
}

/// Returns the devices under whose names the device's IOMMU group may have been leased. A group is
/// named after its lowest function that is bound to vfio, which may change while a container has it.
pub fn group_members(root: &Path, device: &DeviceId) -> Vec<DeviceId> {
    let Some(group) = group_link(root, device) else {
        return Vec::new();
    };
    let Ok(entries) = std::fs::read_dir(group.join("devices")) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            Some(DeviceId { class: device.class, name: DeviceName::try_from(name.as_str()).ok()? })
        })
        .collect()
}

/// Returns the facts that a lease records about a device: its IOMMU group, and the numbers of its
/// nodes.
pub fn facts(root: &Path, device: &DeviceId) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    let Some(group) = group_number(root, device) else {
        return facts;
    };
    let numbers = node_numbers(root, &group, device);
    if !numbers.is_empty() {
        facts.insert(NODES.to_owned(), numbers.join(" "));
    }
    facts.insert("iommu-group".to_owned(), group);
    facts
}

/// Returns the numbers of the nodes through which a device can be opened: that of its group, and
/// those of the group's functions.
fn node_numbers(root: &Path, group: &str, device: &DeviceId) -> Vec<String> {
    let classes = resolve(root, VFIO);
    let mut dirs = vec![classes.join(group), classes.join(format!("noiommu-{group}"))];
    dirs.extend(function_dirs(root, device));
    dirs.iter()
        .filter_map(|dir| std::fs::read_to_string(dir.join("dev")).ok())
        .map(|number| number.trim().to_owned())
        .collect()
}

/// Returns the number of the device's IOMMU group.
fn group_number(root: &Path, device: &DeviceId) -> Option<String> {
    let target = std::fs::read_link(group_link(root, device)?).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

/// Returns the link to the device's IOMMU group. Returns `None` if the class has none.
fn group_link(root: &Path, device: &DeviceId) -> Option<PathBuf> {
    let function = resolve(root, PCI_FUNCTIONS).join(device.name.as_str());
    device.class.is_iommu_group().then(|| function.join("iommu_group"))
}

/// Returns the nodes of a device's IOMMU group, with and without an IOMMU, and those of single functions: its own and
/// those of its group.
fn device_nodes(root: &Path, device: &DeviceId) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let groups = group_number(root, device)
        .into_iter()
        .flat_map(|group| [format!("noiommu-{group}"), group])
        .map(|name| resolve(root, GROUPS).join(name))
        .collect();
    let functions = function_dirs(root, device)
        .filter_map(|dir| Some(resolve(root, FUNCTIONS).join(dir.file_name()?)))
        .collect();
    (groups, functions)
}

/// Returns the directories in sysfs of the nodes of a device's function and of those in its group.
fn function_dirs(root: &Path, device: &DeviceId) -> impl Iterator<Item = PathBuf> {
    let mut members = group_members(root, device);
    if device.class.is_iommu_group() && !members.contains(device) {
        members.push(device.clone());
    }
    let functions = resolve(root, PCI_FUNCTIONS);
    members.into_iter().flat_map(move |member| {
        let entries = std::fs::read_dir(functions.join(member.name.as_str()).join("vfio-dev"));
        entries.into_iter().flatten().flatten().map(|entry| entry.path())
    })
}

fn find_opener(
    nodes: &[PathBuf],
    processes: &Processes,
    deadline: Instant,
) -> io::Result<Option<String>> {
    for node in nodes {
        if let Some(opener) = processes.find_opener(node, deadline)? {
            return Ok(Some(describe_process(opener)));
        }
    }
    Ok(None)
}

fn resolve(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::time::Duration;

    use onload_test_tree::Tree;
    use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

    use super::*;

    const VFIO: &str = "vfio:0000:81:10.0";

    fn deadline() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    type Search = fn(&Path, &DeviceId, &Processes, Instant) -> io::Result<Option<String>>;

    fn search(search: Search, tree: &Tree) -> Option<String> {
        let processes = Processes::at_root(tree.root());
        search(tree.root(), &VFIO.parse().unwrap(), &processes, deadline()).unwrap()
    }

    /// A function in the group 15.
    fn tree() -> Tree {
        let tree = Tree::new();
        tree.link(
            "sys/bus/pci/devices/0000:81:10.0/iommu_group",
            "../../../../kernel/iommu_groups/15",
        );
        tree.directory("sys/kernel/iommu_groups/15/devices/0000:81:10.0");
        tree.file("sys/bus/pci/devices/0000:81:10.0/vfio-dev/vfio0/dev", "511:3\n");
        tree
    }

    #[test]
    fn the_search_of_proc_opens_no_node() {
        let tree = tree();
        tree.file("dev/vfio/15", "").file("proc/7/comm", "qemu\n");
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&events, tree.path("dev/vfio"), WatchFlags::OPEN).unwrap();
        let mut buffer = [MaybeUninit::<u8>::uninit(); 1024];
        let mut is_opened = |by: Search| {
            assert_eq!(search(by, &tree), None);
            inotify::Reader::new(&events, &mut buffer).next().is_ok()
        };
        assert!(!is_opened(find_user_in_proc));
        assert!(is_opened(find_user));
    }

    #[test]
    fn finds_the_process_that_has_a_node_open() {
        let qemu = Some("process 7 (\"qemu\")".to_owned());
        for (node, opened, in_proc, user) in [
            ("devices/vfio0", "/dev/null", &qemu, &qemu),
            ("devices/vfio0", "/dev/zero", &None, &None),
            ("devices/vfio1", "/dev/null", &None, &None),
            ("15", "/dev/null", &qemu, &None),
        ] {
            let tree = tree();
            tree.file("proc/7/comm", "qemu\n").link("proc/7/fd/3", "/dev/null");
            tree.link(&format!("dev/vfio/{node}"), opened);
            assert_eq!(search(find_user_in_proc, &tree), *in_proc, "{node} {opened}");
            assert_eq!(search(find_user, &tree), *user, "{node} {opened}");
        }
    }

    #[test]
    fn records_the_group_and_the_numbers_of_its_nodes() {
        let tree = tree();
        tree.file("sys/class/vfio/15/dev", "241:0\n");
        let device: DeviceId = VFIO.parse().unwrap();
        assert_eq!(group_members(tree.root(), &device), std::slice::from_ref(&device));
        let recorded = facts(tree.root(), &device);
        assert_eq!(recorded["iommu-group"], "15");
        assert_eq!(recorded[NODES], "241:0 511:3");
        assert!(facts(tree.root(), &"rdma:mlx5_0".parse().unwrap()).is_empty());
    }
}
