//! Recreates a virtual function's interface by rebinding its driver. This also deletes the interfaces stacked on it, in
//! all network namespaces.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use onload_core::class::Class;
use onload_lease::{LeaseEntry, SavedInterface};
use onload_sys::error::Result;
use onload_sys::pci::PciAddress;
use onload_sys::processes::Processes;
use onload_sys::text::Quoted;

use super::onload;
use super::ops::find_saved;
use super::usage::find_vdpa;
use crate::decide::sysfs::list_names;
use crate::moves::lifecycle::PAUSE;
use crate::moves::netns::Netns;

/// The PCI bus in sysfs.
pub(super) const PCI: &str = "/sys/bus/pci";
/// Other devices of the function, which have their own leases.
const OTHER_DEVICES: [(Class, &str); 2] = [(Class::Rdma, RDMA), (Class::Ptp, "ptp")];
const RDMA: &str = "infiniband";
/// Their class directories, and the directories of their nodes.
const NODES: [(&str, &str); 3] = [
    ("infiniband_verbs", "/dev/infiniband"),
    ("infiniband_mad", "/dev/infiniband"),
    ("ptp", "/dev"),
];
/// `driver_override` of a function without a fixed driver.
const NO_OVERRIDE: &str = "(null)";
/// Time limit for finding processes that have another device of the function open.
const OPENERS: Duration = Duration::from_secs(2);
/// Time limit for a rebound driver to create its interface and for udev to process it.
const BINDING: Duration = Duration::from_secs(5);
/// udev's control socket, and its database.
const UDEV: [&str; 2] = ["/run/udev/control", "/run/udev/data"];

pub(super) struct RebindableFunction {
    bus: PathBuf,
    dir: PathBuf,
    pci: PciAddress,
}

impl RebindableFunction {
    /// Returns `None` for a physical function, since virtual functions depend on it.
    pub(super) fn find(bus: &Path, pci: PciAddress) -> Option<Self> {
        let dir = bus.join("devices").join(pci.to_string());
        let bus = bus.to_owned();
        dir.join("physfn").exists().then_some(RebindableFunction { bus, dir, pci })
    }

    /// Returns why the driver must not be rebound. A check that fails is a reason too.
    pub(super) fn find_obstacle(&self, interface: &str, leases: &[LeaseEntry]) -> Option<String> {
        let obstacle = || {
            let before = self.driver_override()?;
            if before.is_some_and(|before| self.driver().is_ok_and(|driver| driver != before)) {
                return Ok(Some("its driver_override names another driver".to_owned()));
            }
            if onload::may_have_stack(interface) {
                return Ok(Some("a stack of Onload may use it".to_owned()));
            }
            self.find_user(leases)
        };
        let obstacle = obstacle().unwrap_or_else(|error: io::Error| Some(error.to_string()))?;
        Some(format!("the driver of {} is not rebound: {obstacle}", self.pci))
    }

    /// Unbinds the driver and binds it again. In between, `driver_override` keeps other drivers away and lets
    /// [`RebindableFunction::finish_rebind`] continue if this process is killed.
    pub(super) fn rebind(&self) -> io::Result<()> {
        let driver = self.driver()?;
        let before = self.driver_override()?;
        if before.is_none() {
            self.write("driver_override", &driver)?;
        }
        // Not by the function's own link, which may lead to vfio by now: there the kernel waits until the last descriptor
        // is closed.
        fs::write(
            self.bus.join("drivers").join(&driver).join("unbind"),
            format!("{}\n", self.pci),
        )?;
        self.bind(&driver)?;
        if before.is_none() {
            // It is harmless if the driver's name remains there.
            let _ = self.write("driver_override", "");
        }
        Ok(())
    }

    /// Binds the driver again if a process was killed after unbinding it. Returns whether it did.
    pub(super) fn finish_rebind(&self) -> io::Result<bool> {
        let driver = self.driver_override()?;
        let Some(driver) = driver.filter(|_| !self.dir.join("driver").exists()) else {
            return Ok(false);
        };
        self.bind(&driver).map(|()| true)
    }

    /// If automatic probing of virtual functions is off, this has an effect only with `driver_override`
    /// (drivers/pci/pci-driver.c, `pci_device_can_probe`).
    fn bind(&self, driver: &str) -> io::Result<()> {
        fs::write(self.bus.join("drivers_probe"), format!("{}\n", self.pci))?;
        if self.driver().is_ok_and(|bound| bound == driver) {
            return Ok(());
        }
        let why = format!("the driver of {} does not bind to it", self.pci);
        Err(io::Error::other(why))
    }

    fn driver(&self) -> io::Result<String> {
        let driver = fs::read_link(self.dir.join("driver"))?;
        let name = driver.file_name().unwrap_or_default();
        Ok(name.to_string_lossy().into_owned())
    }

    /// Returns whether the function has other devices than its interface.
    pub(super) fn has_other_devices(&self) -> bool {
        OTHER_DEVICES.iter().any(|(_, dir)| self.dir.join(dir).exists())
            || self.find_vdpa().is_some()
    }

    fn find_vdpa(&self) -> Option<String> {
        find_vdpa(&self.bus.with_file_name("vdpa"), self.pci)
    }

    /// Returns a user of another device of the function, which the rebind would remove too.
    fn find_user(&self, leases: &[LeaseEntry]) -> io::Result<Option<String>> {
        if self.dir.join(RDMA).exists() && self.device_names(RDMA).is_empty() {
            return Ok(Some("its RDMA device is in another network namespace".to_owned()));
        }
        // The kernel would wait until its virtual machine ends (`vhost_vdpa_remove` in drivers/vhost/vdpa.c).
        if let Some(device) = self.find_vdpa() {
            let device = Quoted(&device);
            return Ok(Some(format!("it has the vDPA device {device}")));
        }
        // The container with the lease may open the device at any time.
        if let Some(leased) =
            leases.iter().find(|entry| !entry.has_ended() && self.has_leased_device(entry))
        {
            return Ok(Some(format!("{} is leased", leased.device)));
        }
        let deadline = Instant::now() + OPENERS;
        for (class, nodes) in NODES {
            for node in self.device_names(class) {
                let path = Path::new(nodes).join(node);
                if let Some((pid, _)) = Processes::default().find_opener(&path, deadline)? {
                    return Ok(Some(format!("process {pid} has {path:?} open")));
                }
            }
        }
        Ok(None)
    }

    /// Returns whether a lease is for one of the function's other devices.
    fn has_leased_device(&self, entry: &LeaseEntry) -> bool {
        let class = entry.device.class;
        let Some((_, dir)) = OTHER_DEVICES.iter().find(|(other_class, _)| *other_class == class)
        else {
            return false;
        };
        let name = entry.device.name.as_str();
        let pci = self.pci.to_string();
        name == pci
            || self.device_names(dir).iter().any(|device_name| device_name == name)
            || entry
                .lease
                .as_ref()
                .ok()
                .and_then(|lease| lease.moved.as_ref())
                .is_some_and(|record| record.saved.pci() == self.pci)
    }

    fn driver_override(&self) -> io::Result<Option<String>> {
        let text = fs::read_to_string(self.dir.join("driver_override"))?;
        let name = text.trim_end();
        Ok((!name.is_empty() && name != NO_OVERRIDE).then(|| name.to_owned()))
    }

    /// The kernel treats one write as one value, and an empty line as no value.
    fn write(&self, name: &str, text: &str) -> io::Result<()> {
        fs::write(self.dir.join(name), format!("{text}\n"))
    }

    fn device_names(&self, class: &str) -> Vec<String> {
        list_names(&self.dir.join(class)).collect()
    }
}

/// Waits until the driver has created its interface and udev has processed it, since udev may rename it.
pub(super) fn wait_for_interface(host_netns: &Netns, saved: &SavedInterface) -> Result<()> {
    let [control, data] = UDEV.map(Path::new);
    let deadline = Instant::now() + BINDING;
    while Instant::now() < deadline {
        if find_saved(host_netns, saved)?
            .as_ref()
            .is_some_and(|link| !control.exists() || data.join(format!("n{}", link.index)).exists())
        {
            break;
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use onload_lease::HolderState;

    use super::*;

    fn pci() -> PciAddress {
        "0000:03:10.0".parse().unwrap()
    }

    /// A bus with one virtual function; its files keep what was written last.
    struct Bus(tempfile::TempDir);

    impl Bus {
        fn new() -> Self {
            let bus = Bus(tempfile::tempdir().unwrap());
            for dir in ["devices/0000:03:10.0/physfn", "drivers/igbvf"] {
                fs::create_dir_all(bus.path(dir)).unwrap();
            }
            bus.write("devices/0000:03:10.0/driver_override", "(null)\n");
            bus.bound(true);
            bus
        }

        fn path(&self, path: &str) -> PathBuf {
            self.0.path().join("pci").join(path)
        }

        fn write(&self, path: &str, text: &str) {
            fs::write(self.path(path), text).unwrap();
        }

        fn read(&self, path: &str) -> String {
            fs::read_to_string(self.path(path)).unwrap_or_default()
        }

        fn bound(&self, is_bound: bool) {
            let link = self.path("devices/0000:03:10.0/driver");
            if is_bound {
                symlink(self.path("drivers/igbvf"), link).unwrap();
            } else {
                fs::remove_file(link).unwrap();
            }
        }

        fn function(&self) -> RebindableFunction {
            RebindableFunction::find(&self.path(""), pci()).unwrap()
        }

        /// Why its driver is not rebound.
        fn obstacle(&self, leases: &[LeaseEntry]) -> Option<String> {
            let obstacle = self.function().find_obstacle("ens1v0", leases)?;
            let reason = obstacle.strip_prefix("the driver of 0000:03:10.0 is not rebound: ");
            Some(reason.unwrap().to_owned())
        }

        /// The writes: unbound, bound, and the override at the end.
        fn requests(&self) -> [String; 3] {
            ["drivers/igbvf/unbind", "drivers_probe", "devices/0000:03:10.0/driver_override"]
                .map(|path| self.read(path))
        }
    }

    const DONE: &str = "0000:03:10.0\n";

    #[test]
    fn a_function_is_unbound_and_bound_by_the_same_driver_and_no_other() {
        let bus = Bus::new();
        assert_eq!(bus.obstacle(&[]), None);
        bus.function().rebind().unwrap();
        assert_eq!(bus.requests(), [DONE, DONE, "\n"]);
        // The operator's value stays.
        bus.write("devices/0000:03:10.0/driver_override", "igbvf\n");
        assert_eq!(bus.obstacle(&[]), None);
        bus.function().rebind().unwrap();
        assert_eq!(bus.requests(), [DONE, DONE, "igbvf\n"]);
    }

    #[test]
    fn a_function_that_a_killed_process_left_without_its_driver_gets_it_back() {
        let bus = Bus::new();
        assert!(!bus.function().finish_rebind().unwrap(), "it has one");
        bus.bound(false);
        assert!(!bus.function().finish_rebind().unwrap(), "the operator's");
        assert_eq!(bus.read("drivers_probe"), "");
        bus.write("devices/0000:03:10.0/driver_override", "igbvf\n");
        let refused = bus.function().finish_rebind().unwrap_err().to_string();
        assert_eq!(refused, "the driver of 0000:03:10.0 does not bind to it");
        assert_eq!(bus.read("drivers_probe"), DONE);
    }

    #[test]
    fn a_function_is_not_given_to_another_driver() {
        let bus = Bus::new();
        bus.write("devices/0000:03:10.0/driver_override", "vfio-pci\n");
        assert_eq!(bus.obstacle(&[]).unwrap(), "its driver_override names another driver");
        let refused = bus.function().bind("vfio-pci").unwrap_err().to_string();
        assert_eq!(refused, "the driver of 0000:03:10.0 does not bind to it");
    }

    #[test]
    fn a_function_is_not_unbound_while_a_lease_has_another_device_of_it() {
        let leased = |device: &str, is_over| LeaseEntry {
            device: device.parse().unwrap(),
            number: 0,
            state: if is_over { HolderState::Ended } else { HolderState::Alive },
            lease: Err("of a later version".to_owned()),
        };
        let bus = Bus::new();
        assert!(!bus.function().has_other_devices());
        for name in ["infiniband/mlx5_3", "ptp/onload-ctk-none"] {
            fs::create_dir_all(bus.path("devices/0000:03:10.0").join(name)).unwrap();
        }
        assert!(bus.function().has_other_devices());
        for device in ["rdma:mlx5_3", "rdma:0000:03:10.0", "ptp:onload-ctk-none"] {
            let held = [leased("rdma:mlx5_4", false), leased(device, false)];
            assert_eq!(bus.obstacle(&held).unwrap(), format!("{device} is leased"));
        }
        // Its own interface is what is leased.
        let others = [
            leased("rdma:mlx5_3", true),
            leased("rdma:mlx5_4", false),
            leased("ptp:mlx5_3", false),
            leased("netdev:0000:03:10.0", false),
        ];
        assert_eq!(bus.obstacle(&others), None);
    }

    #[test]
    fn a_physical_function_is_never_unbound() {
        let bus = Bus::new();
        fs::remove_dir(bus.path("devices/0000:03:10.0/physfn")).unwrap();
        assert!(RebindableFunction::find(&bus.path(""), pci()).is_none());
        let other = "0000:03:10.2".parse().unwrap();
        assert!(RebindableFunction::find(&bus.path(""), other).is_none());
    }

    #[test]
    fn a_function_that_a_virtual_machine_may_have_by_vdpa_is_not_unbound() {
        let bus = Bus::new();
        let devices = bus.path("../vdpa/devices");
        fs::create_dir_all(&devices).unwrap();
        for (name, function) in [("vdpa0", "0000:03:10.2"), ("vdpa1", "0000:03:10.0")] {
            assert!(!bus.function().has_other_devices());
            let place = bus.path(&format!("devices/{function}/mlx5_core.sf.4/{name}"));
            fs::create_dir_all(&place).unwrap();
            symlink(place, devices.join(name)).unwrap();
        }
        assert!(bus.function().has_other_devices());
        assert_eq!(bus.obstacle(&[]).unwrap(), "it has the vDPA device \"vdpa1\"");
    }

    #[test]
    fn a_function_whose_rdma_device_somebody_may_use_is_not_unbound() {
        let bus = Bus::new();
        let rdma = "devices/0000:03:10.0/infiniband";
        fs::create_dir_all(bus.path(rdma)).unwrap();
        let refused = bus.obstacle(&[]).unwrap();
        assert_eq!(refused, "its RDMA device is in another network namespace");
        // A node that does not exist is open nowhere.
        fs::create_dir(bus.path(rdma).join("mlx5_3")).unwrap();
        let verbs = "devices/0000:03:10.0/infiniband_verbs/onload-ctk-none";
        fs::create_dir_all(bus.path(verbs)).unwrap();
        assert_eq!(bus.obstacle(&[]), None);
        // Without that file nothing is known of the driver.
        fs::remove_file(bus.path("devices/0000:03:10.0/driver_override")).unwrap();
        assert!(bus.obstacle(&[]).unwrap().contains("No such file"));
    }
}
