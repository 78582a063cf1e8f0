//! Small hosts for the tests of discovery, built in a temporary directory.

use std::cell::RefCell;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use onload_core::config::Discover;

use crate::discover::netdev;
use crate::discover::not_offered::NotOffered;
use crate::discover::pci::PciFunctions;
use crate::discover::probe::Probe;
use crate::host::Host;

/// A host under construction; paths are absolute paths on that host.
pub(crate) struct TestTree {
    directory: tempfile::TempDir,
    nodes: RefCell<String>,
}

impl TestTree {
    pub(crate) fn new() -> TestTree {
        TestTree {
            directory: tempfile::tempdir().unwrap(),
            nodes: RefCell::default(),
        }
    }

    fn outside(&self, path: &str) -> PathBuf {
        self.directory.path().join(path.trim_start_matches('/'))
    }

    pub(crate) fn file(&self, path: &str, content: impl AsRef<[u8]>) -> &TestTree {
        let path = self.outside(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    pub(crate) fn files(&self, directory: &str, files: &[(&str, &str)]) -> &TestTree {
        self.directory(directory);
        for (name, content) in files {
            self.file(&format!("{directory}/{name}"), format!("{content}\n"));
        }
        self
    }

    pub(crate) fn directory(&self, path: &str) -> &TestTree {
        fs::create_dir_all(self.outside(path)).unwrap();
        self
    }

    pub(crate) fn link(&self, path: &str, target: &str) -> &TestTree {
        let path = self.outside(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
        self
    }

    pub(crate) fn node(&self, path: &str, major: u32, minor: u32) -> &TestTree {
        writeln!(self.nodes.borrow_mut(), "{path} c {major} {minor} 0600 0 0").unwrap();
        self
    }

    pub(crate) fn block_node(&self, path: &str, major: u32, minor: u32) -> &TestTree {
        writeln!(self.nodes.borrow_mut(), "{path} b {major} {minor} 0600 0 0").unwrap();
        self
    }

    /// Adds a PCI function, listed by address in /sys/bus/pci as in sysfs, and returns its
    /// directory.
    pub(crate) fn pci(&self, address: &str, class: &str, numa_node: i32) -> String {
        let bus = &address[..address.rfind(':').unwrap()];
        let directory = format!("/sys/devices/pci{bus}/{address}");
        self.files(
            &directory,
            &[
                ("vendor", "0x15b3"),
                ("device", "0x1021"),
                ("class", class),
                ("numa_node", &numa_node.to_string()),
            ],
        );
        self.link(&format!("/sys/bus/pci/devices/{address}"), &directory);
        directory
    }

    /// Binds a PCI function to a driver.
    pub(crate) fn bind(&self, function: &str, driver: &str) -> &TestTree {
        let driver_directory = format!("/sys/bus/pci/drivers/{driver}");
        self.directory(&driver_directory);
        self.link(&format!("{function}/driver"), &driver_directory)
    }

    /// Adds a device that a class lists by a link, and returns its directory.
    pub(crate) fn class_device(
        &self,
        class: &str,
        parent: &str,
        name: &str,
        files: &[(&str, &str)],
    ) -> String {
        let directory = format!("{parent}/{class}/{name}");
        self.files(&directory, files);
        if parent != "/sys/devices/virtual" {
            self.link(&format!("{directory}/device"), parent);
        }
        self.link(&format!("/sys/class/{class}/{name}"), &directory);
        directory
    }

    /// The host as built so far.
    pub(crate) fn host(&self) -> Host {
        fs::write(self.outside("/dev.table"), self.nodes.borrow().as_str()).unwrap();
        Host::open(self.directory.path()).unwrap()
    }
}

/// The result of discovering one resource.
pub(crate) struct Discovered<D> {
    pub(crate) devices: Vec<D>,
    pub(crate) not_offered: Vec<NotOffered>,
    pub(crate) warnings: Vec<String>,
}

impl<D> Discovered<D> {
    /// The reasons as `name: reason`.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let reasons = self.not_offered.iter();
        reasons
            .map(|entry| format!("{}: {}", entry.name, entry.reason))
            .collect()
    }
}

/// Discovers one resource of a host.
pub(crate) fn discover<D>(
    host: &Host,
    read: impl FnOnce(&Probe<'_>, &PciFunctions, &[netdev::NetDevice], &mut Vec<NotOffered>) -> Vec<D>,
) -> Discovered<D> {
    let probe = Probe::new(host);
    let functions = PciFunctions::read(&probe);
    let interfaces = netdev::read(&probe);
    let mut not_offered = Vec::new();
    let devices = read(&probe, &functions, &interfaces, &mut not_offered);
    Discovered {
        devices,
        not_offered,
        warnings: probe.warnings(),
    }
}

/// The captured host that comes with the sources.
pub(crate) fn captured() -> Host {
    sample("debian13-2numa-onload-rxe-vfio")
}

/// One of the hosts that come with the sources.
pub(crate) fn sample(name: &str) -> Host {
    let hosts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/hosts");
    Host::open(&hosts.join(name)).unwrap()
}

/// A configuration that allows everything.
pub(crate) fn generous() -> Discover {
    Discover {
        offer_umad: true,
        offer_issm: true,
        offer_pf_with_vfs: true,
        ..Discover::default()
    }
}
