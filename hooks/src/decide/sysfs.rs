//! What the kernel says about a node now: does it still belong to the device that it belonged to
//! when the specification was written?
//!
//! Sources: Documentation/ABI/stable/sysfs-class-infiniband, drivers/vfio/group.c and
//! drivers/vfio/vfio_main.c (`vfio-dev`), Documentation/driver-api/vfio.rst,
//! Documentation/ABI/testing/sysfs-ptp and sysfs-pps, and for Onload's own classes
//! `src/include/ci/driver/chrdev.h`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use onload_core::class::Class;
use onload_core::expectation::{DriverNode, Expectation, ExpectedDevice, NumberSource};
use onload_core::kfd;
use onload_core::rdma_companion::CompanionNode;
pub use onload_sys::device_number::DeviceNumber;
use onload_sys::error::{Context, Result, bail, error};
use onload_sys::pci::PciAddress;
use rustix::fs::{FileType, Stat, major, minor};

/// Bytes of an attribute that are read; the ones read here hold a name or two numbers.
const MAX_ATTRIBUTE: u64 = 4096;

/// Bytes of a list of CPUs that are read. A CPU takes at most six of them.
const MAX_LIST: u64 = 512 * 1024;

/// The host's trees at /sys and /proc.
#[derive(Clone, Debug)]
pub struct Sysfs {
    root: PathBuf,
}

impl Default for Sysfs {
    fn default() -> Self {
        Sysfs::at_root("/sys")
    }
}

impl Sysfs {
    #[must_use]
    pub fn at_root(root: impl Into<PathBuf>) -> Self {
        Sysfs { root: root.into() }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Checks that a node with these numbers belongs to the device that its specification was written for. A refusal
    /// ends with the remedy.
    pub(crate) fn check(
        &self,
        expect: &Expectation,
        number: DeviceNumber,
        remedy: &str,
    ) -> Result<()> {
        let checked = self.check_number(expect, number).and_then(|()| self.check_owner(expect));
        checked.map_err(|error| error!("{expect}: {error:#}{remedy}"))
    }

    /// Checks that the kernel's node has these numbers.
    fn check_number(&self, expect: &Expectation, number: DeviceNumber) -> Result<()> {
        let node_name = expect.node_name();
        let (name, now) = match &expect.device {
            ExpectedDevice::Rdma { .. } => {
                let Some(node) = self.rdma_node(node_name) else {
                    bail!("{node_name} is not a node of an rdma device");
                };
                (node_name, read_device_number(&node.join("dev"))?)
            }
            ExpectedDevice::Vfio { pci } => {
                let nodes = if is_vfio_cdev(node_name) {
                    self.function(pci).join("vfio-dev")
                } else {
                    self.class("vfio")
                };
                (node_name, read_device_number(&nodes.join(node_name).join("dev"))?)
            }
            ExpectedDevice::Driver(node) => (node.name, self.driver_number(node)?),
            ExpectedDevice::Clock { class, name, .. } => {
                (name.as_str(), read_device_number(&self.class(class).join(name).join("dev"))?)
            }
        };
        match now {
            None => bail!("the kernel no longer has {name}"),
            Some(now) if now == number => Ok(()),
            Some(now) => bail!("the node is {number} but the kernel's {name} is {now}"),
        }
    }

    fn driver_number(&self, node: &DriverNode) -> Result<Option<DeviceNumber>> {
        match node.source {
            NumberSource::Sysfs { class, reserved } => {
                let device = self.class(class).join(node.name);
                Ok(read_device_number(&device.join("dev"))?.or(reserved))
            }
            NumberSource::ProcDevices => {
                let drivers =
                    read_if_present(&self.proc("devices"), |path| fs::read_to_string(path))?;
                Ok(drivers.and_then(|text| DeviceNumber::find_character_driver(&text, node.name)))
            }
        }
    }

    /// Checks that the kernel's node belongs to the same device on the same PCI function.
    fn check_owner(&self, expect: &Expectation) -> Result<()> {
        let node_name = expect.node_name();
        let (device, now, pci) = match &expect.device {
            ExpectedDevice::Driver(_) => return Ok(()),
            ExpectedDevice::Vfio { pci } => return self.check_group(node_name, pci),
            ExpectedDevice::Rdma { ibdev, pci } => {
                let attribute = self.rdma_node(node_name).unwrap_or_default().join("ibdev");
                let owner = match CompanionNode::find_by_node(node_name) {
                    Some((_, owner)) => owner,
                    None => read_attribute(&attribute).with_context(|| read_context(&attribute))?,
                };
                if owner != *ibdev {
                    bail!("the node now belongs to rdma:{owner}");
                }
                let device = self.class("infiniband").join(ibdev);
                let real = fs::canonicalize(&device).with_context(|| read_context(&device))?;
                (format!("rdma:{owner}"), pci_function(&real), pci)
            }
            ExpectedDevice::Clock { class, name, pci } => {
                (format!("{class}:{name}"), self.clock_function(class, name)?, pci)
            }
        };
        match now {
            now if now == *pci => Ok(()),
            Some(now) => bail!("the node now belongs to {device}@{now}"),
            None => bail!("the node now belongs to {device}, which has no PCI function"),
        }
    }

    /// Checks that a function is in the IOMMU group that a node is named after, unless it is the function's own node.
    fn check_group(&self, node_name: &str, pci: &PciAddress) -> Result<()> {
        if is_vfio_cdev(node_name) {
            return Ok(());
        }
        let link = self.function(pci).join("iommu_group");
        let Some(group) = read_if_present(&link, |link| fs::read_link(link))? else {
            bail!("the node now belongs to a group without that function");
        };
        let now = group.file_name().and_then(|name| name.to_str()).unwrap_or("?");
        if now != node_name.strip_prefix("noiommu-").unwrap_or(node_name) {
            bail!("the node now belongs to another group: that function is in group {now}");
        }
        Ok(())
    }

    fn function(&self, pci: &PciAddress) -> PathBuf {
        self.root.join("bus/pci/devices").join(pci.to_string())
    }

    pub(crate) fn text(&self, path: &Path) -> Option<String> {
        let mut text = String::new();
        fs::File::open(self.root.join(path)).ok()?.take(MAX_LIST).read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// The NUMA node that a device is on; `None` where the kernel names none
    /// (Documentation/ABI/testing/sysfs-bus-pci, `numa_node`).
    pub(crate) fn numa_node(&self, class: Class, name: &str) -> Option<u32> {
        let function = match class {
            _ if !class.can_be_on_function() => None,
            // A device whose name CDI does not allow goes by its address.
            _ if name.parse::<PciAddress>().is_ok() => name.parse().ok(),
            Class::Nic | Class::NicPlain | Class::NicNodes | Class::Zf | Class::Netdev => {
                function_above(&self.class("net").join(name)).ok()?
            }
            Class::Rdma => self.function_of(name),
            Class::Ptp | Class::Pps => self.function_of_clock(class.as_str(), name),
            _ => None,
        };
        let device = self.function(&function?);
        self.text(&device.join("numa_node"))?.trim().parse().ok()
    }

    /// A path of the tree at /proc.
    pub(crate) fn proc(&self, path: &str) -> PathBuf {
        self.root.with_file_name("proc").join(path)
    }

    /// The functions of AMD's GPUs and their partitions, by the minors of their render nodes.
    pub(crate) fn render_nodes_of_amd(&self) -> Result<BTreeMap<u32, PciAddress>> {
        let nodes = self.root.join(kfd::NODES);
        let entries = fs::read_dir(&nodes).with_context(|| read_context(&nodes))?;
        let mut functions = BTreeMap::new();
        for entry in entries {
            let entry = entry.with_context(|| read_context(&nodes))?;
            let properties = entry.path().join(kfd::PROPERTIES);
            let text = read_attribute(&properties).with_context(|| read_context(&properties))?;
            functions.extend(kfd::render_node(&text));
        }
        Ok(functions)
    }

    /// The directory of a node of an RDMA device.
    fn rdma_node(&self, name: &str) -> Option<PathBuf> {
        let classes = rdma_classes(name);
        let mut directories = classes.iter().map(|class| self.class(class).join(name));
        directories.clone().find(|directory| directory.exists()).or_else(|| directories.next())
    }

    pub(crate) fn function_of(&self, ibdev: &str) -> Option<PciAddress> {
        let device = self.class("infiniband").join(ibdev);
        pci_function(&fs::canonicalize(device).ok()?)
    }

    pub(crate) fn function_of_clock(&self, class: &str, name: &str) -> Option<PciAddress> {
        self.clock_function(class, name).ok().flatten()
    }

    /// The PCI function of a clock. The PPS source of a PTP clock has no parent but the clock's
    /// name (drivers/ptp/ptp_clock.c, `ptp_clock_register`), so it has the function of that clock.
    fn clock_function(&self, class: &str, name: &str) -> Result<Option<PciAddress>> {
        let device = self.class(class).join(name);
        let function = function_above(&device).with_context(|| read_context(&device))?;
        if function.is_some() || class != "pps" {
            return Ok(function);
        }
        let source = read_if_present(&device.join("name"), read_attribute)?;
        let Some(source) =
            source.filter(|source| source.strip_prefix("ptp").is_some_and(is_number))
        else {
            return Ok(None);
        };
        let clock = self.class("ptp").join(source);
        Ok(read_if_present(&clock, function_above)?.flatten())
    }

    fn class(&self, class: &str) -> PathBuf {
        self.root.join("class").join(class)
    }
}

fn read_context(path: &Path) -> String {
    format!("reading {path:?}")
}

fn read_if_present<T>(path: &Path, read: impl FnOnce(&Path) -> io::Result<T>) -> Result<Option<T>> {
    match read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some).with_context(|| read_context(path)),
    }
}

/// The PCI function above a device of a class, or above the parent that the device names.
fn function_above(device: &Path) -> io::Result<Option<PciAddress>> {
    let real = fs::canonicalize(device)?;
    Ok(pci_function(&real).or_else(|| pci_function(&fs::canonicalize(real.join("device")).ok()?)))
}

/// Returns whether a node with such a name belongs to one RDMA device.
pub(crate) fn is_rdma_node(name: &str) -> bool {
    !rdma_classes(name).is_empty()
}

/// The directories of /sys/class that may list a node with such a name.
fn rdma_classes(node_name: &str) -> &'static [&'static str] {
    let numbered = |prefix: &str| node_name.strip_prefix(prefix).is_some_and(is_number);
    if numbered("uverbs") {
        &["infiniband_verbs"]
    } else if numbered("umad") || numbered("issm") {
        &["infiniband_mad"]
    } else {
        CompanionNode::find_by_node(node_name).map_or(&[], |(node, _)| node.classes)
    }
}

fn is_vfio_cdev(node_name: &str) -> bool {
    node_name.strip_prefix("vfio").is_some_and(is_number)
}

/// Reads a sysfs attribute. Returns `None` if it does not exist.
fn read_device_number(path: &Path) -> Result<Option<DeviceNumber>> {
    let text = read_if_present(path, read_attribute)?;
    text.map(|text| text.parse()).transpose().with_context(|| read_context(path))
}

/// Returns the numbers of a character device, or `None` for another file.
pub(crate) fn device_number(stat: &Stat) -> Option<DeviceNumber> {
    let is_character = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    is_character.then(|| DeviceNumber { major: major(stat.st_rdev), minor: minor(stat.st_rdev) })
}

/// Lists the names in a directory. Returns none if it cannot be read.
pub(crate) fn list_names(directory: &Path) -> impl Iterator<Item = String> + use<> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The PCI function of a device: the nearest one above it, since an auxiliary device or a
/// sub-function may lie between.
pub(crate) fn pci_function(real: &Path) -> Option<PciAddress> {
    real.ancestors()
        .filter_map(|path| path.file_name()?.to_str())
        .find_map(|name| name.parse().ok())
}

fn read_attribute(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    fs::File::open(path)?.take(MAX_ATTRIBUTE).read_to_string(&mut text)?;
    text.truncate(text.trim_end().len());
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use onload_test_tree::Tree;

    struct SysfsTree(Tree);

    impl SysfsTree {
        /// Two HCAs, one of them without a PCI function, and two vfio groups.
        fn new() -> Self {
            let tree = SysfsTree(Tree::new());
            tree.hca("mlx5_0", "devices/pci0000:3a/0000:3b:00.0", 0);
            tree.hca("rxe0", "devices/virtual", 1);
            for (group, pci) in [("15", "0000:81:10.0"), ("16", "0000:81:10.2")] {
                tree.file(&format!("class/vfio/{group}/dev"), &format!("241:{group}\n"));
                tree.file(&format!("kernel/iommu_groups/{group}/type"), "DMA\n");
                let function = format!("bus/pci/devices/{pci}");
                tree.file(
                    &format!("{function}/vfio-dev/vfio{group}/dev"),
                    &format!("242:{group}\n"),
                );
                let link = format!("../../../../kernel/iommu_groups/{group}");
                symlink(link, tree.path(&format!("{function}/iommu_group"))).unwrap();
            }
            for (device, numbers) in [
                ("onload/onload", "243:0"),
                ("onload_epoll/onload_epoll", "242:0"),
                ("sfc_char/sfc_char", "244:0"),
                ("misc/rdma_cm", "10:260"),
                ("misc/vfio", "10:196"),
                ("misc/iommu", "10:120"),
            ] {
                tree.file(&format!("class/{device}/dev"), &format!("{numbers}\n"));
            }
            tree.clock("ptp", 0, "devices/pci0000:40/0000:41:00.0");
            tree.clock("ptp", 1, "devices/virtual");
            tree.clock("pps", 0, "devices/virtual");
            symlink(
                tree.path("devices/pci0000:40/0000:41:00.0"),
                tree.path("devices/virtual/pps/pps0/device"),
            )
            .unwrap();
            for (number, source) in [(1, "ptp0"), (2, "ptp1"), (3, "serial0")] {
                tree.clock("pps", number, "devices/virtual");
                tree.pulses(number, source);
            }
            tree
        }

        /// Sets what drives the pulses of a source.
        fn pulses(&self, number: u32, source: &str) {
            let path = format!("devices/virtual/pps/pps{number}/name");
            self.file(&path, &format!("{source}\n"));
        }

        fn clock(&self, class: &str, number: u32, parent: &str) {
            let name = format!("{class}{number}");
            let major = if class == "ptp" { 247 } else { 248 };
            self.file(&format!("{parent}/{class}/{name}/dev"), &format!("{major}:{number}\n"));
            fs::create_dir_all(self.path(&format!("class/{class}"))).unwrap();
            let target = format!("../../{parent}/{class}/{name}");
            symlink(target, self.path(&format!("class/{class}/{name}"))).unwrap();
        }

        fn path(&self, path: &str) -> PathBuf {
            self.0.path(path)
        }

        fn file(&self, path: &str, text: &str) {
            self.0.file(path, text);
        }

        fn hca(&self, ibdev: &str, parent: &str, number: u32) {
            self.file(&format!("{parent}/infiniband/{ibdev}/node_guid"), "0\n");
            fs::create_dir_all(self.path("class/infiniband")).unwrap();
            let target = format!("../../{parent}/infiniband/{ibdev}");
            symlink(target, self.path(&format!("class/infiniband/{ibdev}"))).unwrap();
            let verbs = format!("class/infiniband_verbs/uverbs{number}");
            self.file(&format!("{verbs}/ibdev"), &format!("{ibdev}\n"));
            self.file(&format!("{verbs}/dev"), &format!("231:{}\n", 192 + number));
            let mad = format!("class/infiniband_mad/umad{number}");
            self.file(&format!("{mad}/ibdev"), &format!("{ibdev}\n"));
            self.file(&format!("{mad}/dev"), &format!("231:{number}\n"));
        }

        fn check(&self, expect: &str, major: u32, minor: u32) -> Result<()> {
            let numbers = DeviceNumber { major, minor };
            Sysfs::at_root(self.0.root()).check(&expect.parse().unwrap(), numbers, "")
        }

        fn refusal(&self, expect: &str, major: u32, minor: u32) -> String {
            format!("{:#}", self.check(expect, major, minor).unwrap_err())
        }
    }

    #[test]
    fn nodes_that_are_what_they_were_pass() {
        let tree = SysfsTree::new();
        for (expect, major, minor) in [
            ("/dev/infiniband/uverbs0=rdma:mlx5_0@0000:3b:00.0", 231, 192),
            ("/dev/infiniband/umad0=rdma:mlx5_0@0000:3b:00.0", 231, 0),
            ("/dev/infiniband/uverbs1=rdma:rxe0", 231, 193),
            ("/nodes/uverbs1=rdma:rxe0", 231, 193),
            ("/dev/vfio/15=vfio:0000:81:10.0", 241, 15),
            ("/dev/vfio/devices/vfio16=vfio:0000:81:10.2", 242, 16),
            ("/dev/onload=nic:onload", 243, 0),
            ("/nodes/onload=nic:onload", 243, 0),
            ("/dev/onload_epoll=nic:onload_epoll", 242, 0),
            ("/dev/sfc_char=zf:sfc_char", 244, 0),
            ("/dev/infiniband/rdma_cm=misc:rdma_cm", 10, 260),
            ("/dev/vfio/vfio=misc:vfio", 10, 196),
            ("/dev/iommu=misc:iommu", 10, 120),
            ("/dev/ptp0=ptp:ptp0@0000:41:00.0", 247, 0),
            ("/dev/ptp1=ptp:ptp1", 247, 1),
            ("/dev/pps0=pps:pps0@0000:41:00.0", 248, 0),
            ("/dev/pps1=pps:pps1@0000:41:00.0", 248, 1),
            ("/dev/pps2=pps:pps2", 248, 2),
            ("/dev/pps3=pps:pps3", 248, 3),
        ] {
            tree.check(expect, major, minor).unwrap();
        }
    }

    #[test]
    fn a_node_without_a_device_in_sysfs_is_compared_with_the_list_of_drivers() {
        let tree = Tree::new();
        let check = |major, minor| {
            let expect = "/dev/gdrdrv=gdrcopy:gdrdrv#510:0".parse().unwrap();
            let sysfs = Sysfs::at_root(tree.path("sys"));
            let checked = sysfs.check(&expect, DeviceNumber { major, minor }, "");
            checked.map_err(|error| format!("{error:#}"))
        };
        let refusal = |major, minor| check(major, minor).unwrap_err();
        let gone = "/dev/gdrdrv=gdrcopy:gdrdrv#510:0: the kernel no longer has gdrdrv";
        assert_eq!(refusal(510, 0), gone);
        let list = |text: &str| {
            tree.file("proc/devices", text);
        };
        list("Character devices:\n  1 mem\n510 gdrdrv\n\nBlock devices:\n");
        assert_eq!(check(510, 0), Ok(()));
        assert!(refusal(510, 1).ends_with("the node is 510:1 but the kernel's gdrdrv is 510:0"));
        list("Character devices:\n509 gdrdrv\n510 nvidia-uvm\n\nBlock devices:\n");
        assert!(refusal(510, 0).ends_with("the node is 510:0 but the kernel's gdrdrv is 509:0"));
        assert_eq!(check(509, 0), Ok(()));
        list("Character devices:\n510 nvidia-uvm\n\nBlock devices:\n510 gdrdrv\n");
        assert_eq!(refusal(510, 0), gone);
    }

    #[test]
    fn a_reserved_number_counts_until_the_module_is_loaded() {
        let tree = SysfsTree::new();
        for (expect, name, minor) in [
            ("/dev/vhost-net=misc:vhost-net", "vhost-net", 238),
            ("/dev/net/tun=misc:tun", "tun", 200),
        ] {
            let other = format!("the node is 10:1 but the kernel's {name} is 10:{minor}");
            for _ in ["before it is loaded", "afterwards"] {
                tree.check(expect, 10, minor).unwrap();
                assert!(tree.refusal(expect, 10, 1).contains(&other));
                let numbers = format!("10:{minor}\n");
                tree.file(&format!("class/misc/{name}/dev"), &numbers);
            }
            // The kernel's answer takes precedence.
            tree.file(&format!("class/misc/{name}/dev"), "10:1\n");
            tree.check(expect, 10, 1).unwrap();
            assert!(tree.check(expect, 10, minor).is_err());
        }
    }

    #[test]
    fn the_numbers_that_the_generator_saw_are_not_compared() {
        let tree = SysfsTree::new();
        tree.check("/dev/onload=nic:onload#239:0", 243, 0).unwrap();
        tree.check("/dev/vfio/15=vfio:0000:81:10.0#241:9", 241, 15).unwrap();
    }

    #[test]
    fn a_driver_s_node_with_another_number_is_refused() {
        let tree = SysfsTree::new();
        for (expect, name, now) in [
            ("/dev/onload=nic:onload#239:0", "onload", "243:0"),
            ("/dev/onload_epoll=nic:onload_epoll", "onload_epoll", "242:0"),
            ("/dev/sfc_char=zf:sfc_char", "sfc_char", "244:0"),
            ("/dev/infiniband/rdma_cm=misc:rdma_cm", "rdma_cm", "10:260"),
            ("/dev/vfio/vfio=misc:vfio", "vfio", "10:196"),
            ("/dev/iommu=misc:iommu", "iommu", "10:120"),
            ("/dev/ptp1=ptp:ptp1", "ptp1", "247:1"),
            ("/dev/pps0=pps:pps0", "pps0", "248:0"),
        ] {
            assert_eq!(
                tree.refusal(expect, 239, 0),
                format!("{expect}: the node is 239:0 but the kernel's {name} is {now}")
            );
        }
    }

    #[test]
    fn a_driver_that_is_gone_is_refused() {
        let tree = SysfsTree::new();
        fs::remove_dir_all(tree.path("class/onload")).unwrap();
        fs::remove_dir_all(tree.path("class/ptp")).unwrap();
        for expect in ["/dev/onload=nic:onload", "/dev/ptp0=ptp:ptp0"] {
            assert!(tree.refusal(expect, 243, 0).contains("no longer has"), "{expect}");
        }
    }

    #[test]
    fn an_attribute_that_is_no_number_is_refused() {
        let tree = SysfsTree::new();
        for text in ["", "243", "243:", "243:0:0", "-1:0", "243:+0", "4294967296:0"] {
            tree.file("class/onload/onload/dev", text);
            let refusal = tree.refusal("/dev/onload=nic:onload", 243, 0);
            assert!(refusal.contains("not MAJOR:MINOR"), "{text}: {refusal}");
        }
    }

    #[test]
    fn a_clock_of_another_function_is_refused() {
        let tree = SysfsTree::new();
        assert!(
            tree.refusal("/dev/ptp0=ptp:ptp0@0000:41:00.1", 247, 0)
                .contains("the node now belongs to ptp:ptp0@0000:41:00.0")
        );
        assert!(
            tree.refusal("/dev/ptp1=ptp:ptp1@0000:41:00.0", 247, 1)
                .contains("ptp:ptp1, which has no PCI function")
        );
    }

    #[test]
    fn a_clock_that_had_no_function_and_has_one_now_is_refused() {
        let tree = SysfsTree::new();
        for (expect, major, number) in [
            ("/dev/ptp0=ptp:ptp0", 247, 0),
            ("/dev/pps0=pps:pps0", 248, 0),
            ("/dev/pps1=pps:pps1", 248, 1),
        ] {
            let device = expect.split('=').nth(1).unwrap();
            assert_eq!(
                tree.refusal(expect, major, number),
                format!("{expect}: the node now belongs to {device}@0000:41:00.0")
            );
        }
    }

    #[test]
    fn the_pulses_of_another_clock_are_refused() {
        let tree = SysfsTree::new();
        assert!(
            tree.refusal("/dev/pps1=pps:pps1@0000:41:00.1", 248, 1)
                .contains("the node now belongs to pps:pps1@0000:41:00.0")
        );
        for number in [2, 3] {
            let expect = format!("/dev/pps{number}=pps:pps{number}@0000:41:00.0");
            assert!(
                tree.refusal(&expect, 248, number)
                    .contains(&format!("pps:pps{number}, which has no PCI function")),
                "{number}"
            );
        }
        tree.pulses(1, "ptp1");
        tree.pulses(2, "ptp0");
        assert!(
            tree.refusal("/dev/pps1=pps:pps1@0000:41:00.0", 248, 1)
                .contains("pps:pps1, which has no PCI function")
        );
        tree.check("/dev/pps2=pps:pps2@0000:41:00.0", 248, 2).unwrap();
    }

    #[test]
    fn a_source_of_pulses_that_is_no_name_of_a_clock_leads_to_no_function() {
        let tree = SysfsTree::new();
        for source in ["ptp9", "ptp", "ptp0x", "../ptp/ptp0", "ptp0/.", "xptp0", ""] {
            tree.pulses(1, source);
            assert!(
                tree.refusal("/dev/pps1=pps:pps1@0000:41:00.0", 248, 1)
                    .contains("pps:pps1, which has no PCI function"),
                "{source:?}"
            );
        }
    }

    #[test]
    fn a_node_that_a_driver_creates_beside_uverbs_belongs_to_the_device_of_its_number() {
        let tree = SysfsTree::new();
        tree.hca("hfi1_0", "devices/pci0000:5d/0000:5e:00.0", 2);
        tree.hca("qib1", "devices/pci0000:5d/0000:5f:00.0", 3);
        for class in ["hfi1_user", "hfi1"] {
            tree.file(&format!("class/{class}/hfi1_0/dev"), "240:0\n");
            tree.file("class/ipath/ipath2/dev", "241:2\n");
            tree.check("/dev/hfi1_0=rdma:hfi1_0@0000:5e:00.0#240:0", 240, 0).unwrap();
            tree.check("/dev/ipath2=rdma:qib1@0000:5f:00.0#241:2", 241, 2).unwrap();
            for (expect, major, minor, reason) in [
                ("/dev/hfi1_0=rdma:hfi1_0@0000:5e:00.0", 240, 1, "the node is 240:1 but"),
                ("/dev/hfi1_0=rdma:hfi1_1@0000:5e:00.0", 240, 0, "now belongs to rdma:hfi1_0"),
                (
                    "/dev/hfi1_0=rdma:hfi1_0@0000:5f:00.0",
                    240,
                    0,
                    "now belongs to rdma:hfi1_0@0000:5e:00.0",
                ),
                ("/dev/hfi1_3=rdma:hfi1_3", 240, 3, "the kernel no longer has hfi1_3"),
            ] {
                let refusal = tree.refusal(expect, major, minor);
                assert!(refusal.contains(reason), "{refusal}");
            }
            fs::remove_dir_all(tree.path(&format!("class/{class}"))).unwrap();
        }
    }

    #[test]
    fn a_device_goes_by_its_whole_name() {
        let tree = SysfsTree::new();
        tree.hca("a@b#1:2", "devices/virtual", 2);
        let node = "/dev/infiniband/uverbs2=rdma";
        tree.check(&format!("{node}:a@b#1:2#231:194"), 231, 194).unwrap();
        for other in ["a", "a@b", "a#1:2", "a@b#1:2#x"] {
            assert!(
                tree.refusal(&format!("{node}:{other}#231:194"), 231, 194)
                    .contains("now belongs to rdma:a@b#1:2"),
                "{other}"
            );
        }
    }

    #[test]
    fn a_renumbered_node_is_named_with_both_numbers() {
        let tree = SysfsTree::new();
        assert_eq!(
            tree.refusal("/dev/infiniband/uverbs0=rdma:mlx5_0@0000:3b:00.0", 231, 193),
            "/dev/infiniband/uverbs0=rdma:mlx5_0@0000:3b:00.0: the node is 231:193 but the kernel's \
             uverbs0 is 231:192"
        );
        assert!(
            tree.refusal("/dev/vfio/15=vfio:0000:81:10.0", 241, 16)
                .contains("the kernel's 15 is 241:15")
        );
    }

    #[test]
    fn a_node_of_another_device_is_refused() {
        let tree = SysfsTree::new();
        assert!(
            tree.refusal("/dev/infiniband/uverbs1=rdma:mlx5_0@0000:3b:00.0", 231, 193)
                .contains("the node now belongs to rdma:rxe0")
        );
        assert!(
            tree.refusal("/dev/vfio/15=vfio:0000:81:10.2", 241, 15)
                .contains("that function is in group 16")
        );
        assert!(
            tree.refusal("/dev/vfio/devices/vfio16=vfio:0000:81:10.0", 242, 16)
                .contains("the kernel no longer has vfio16")
        );
    }

    #[test]
    fn a_device_on_another_function_is_refused() {
        let tree = SysfsTree::new();
        assert!(
            tree.refusal("/dev/infiniband/uverbs0=rdma:mlx5_0@0000:3b:00.1", 231, 192)
                .contains("the node now belongs to rdma:mlx5_0@0000:3b:00.0")
        );
        assert!(
            tree.refusal("/dev/infiniband/uverbs0=rdma:mlx5_0", 231, 192)
                .contains("now belongs to rdma:mlx5_0@0000:3b:00.0")
        );
        assert!(
            tree.refusal("/dev/infiniband/uverbs1=rdma:rxe0@0000:3b:00.0", 231, 193)
                .contains("which has no PCI function")
        );
    }

    #[test]
    fn a_node_that_is_gone_is_refused() {
        let tree = SysfsTree::new();
        assert!(
            tree.refusal("/dev/infiniband/uverbs9=rdma:mlx5_0", 1, 2)
                .contains("no longer has uverbs9")
        );
        assert!(tree.refusal("/dev/vfio/99=vfio:0000:81:10.0", 1, 2).contains("no longer has 99"));
        fs::remove_file(tree.path("bus/pci/devices/0000:81:10.0/iommu_group")).unwrap();
        assert!(
            tree.refusal("/dev/vfio/15=vfio:0000:81:10.0", 241, 15)
                .contains("a group without that function")
        );
    }

    #[test]
    fn a_name_that_no_node_of_the_class_has_is_refused() {
        let tree = SysfsTree::new();
        for node in ["rdma_cm", "uverbs", "uverbs0x", "verbs0"] {
            let expect = format!("/dev/infiniband/{node}=rdma:mlx5_0");
            assert!(tree.refusal(&expect, 1, 2).contains("is not a node of"), "{node}");
        }
        let vfio = tree.refusal("/dev/vfio/vfio=vfio:0000:81:10.0", 1, 2);
        assert!(vfio.contains("no longer has vfio"), "{vfio}");
    }

    #[test]
    fn the_function_is_found_above_an_auxiliary_device() {
        let path = Path::new("/sys/devices/pci0000:3a/10000:3b:00.0/mlx5_core.sf.4/infiniband/m");
        assert_eq!(pci_function(path).unwrap().to_string(), "10000:3b:00.0");
        assert_eq!(pci_function(Path::new("/sys/devices/virtual/infiniband/rxe0")), None);
    }
}
