//! A host that is being built. Paths are absolute paths of that host.

use std::cell::RefCell;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::Value;
use walkdir::WalkDir;

use super::{Run, captured, json_file, on, run};

/// The interface between the stand-in of libonload.so and the driver.
pub(crate) const CHECKSUM: &str = "94e6b7eccf68029c8c29f301197d3e9a";
/// The version that the stand-in tells.
pub(crate) const VERSION: &str = "ef17681d 2026-07-22 master";
/// Where Debian has libraries.
pub(crate) const MULTIARCH: &str = "/usr/lib/x86_64-linux-gnu";

/// A host, with a `dev.table` for its device nodes.
pub(crate) struct Tree {
    directory: tempfile::TempDir,
    nodes: RefCell<String>,
}

/// A PCI function that is put into a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pci<'t> {
    pub(crate) address: &'t str,
    /// Vendor and device, for instance `1924:0b03`.
    pub(crate) id: &'t str,
    pub(crate) class: &'t str,
    pub(crate) numa_node: i32,
    /// Empty: none.
    pub(crate) driver: &'t str,
}

impl<'t> Pci<'t> {
    /// A network function on node 0.
    pub(crate) fn network(address: &'t str, id: &'t str, driver: &'t str) -> Pci<'t> {
        Pci {
            address,
            id,
            class: "0x020000",
            numa_node: 0,
            driver,
        }
    }
}

/// A directory in memory where there is one: each run synchronises what it writes, and hundreds of
/// runs would wait minutes for a disk.
pub(crate) fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir()
        && let Ok(directory) = tempfile::tempdir_in(memory)
    {
        return directory;
    }
    tempfile::tempdir().unwrap()
}

impl Tree {
    pub(crate) fn new() -> Tree {
        let tree = Tree {
            directory: scratch(),
            nodes: RefCell::default(),
        };
        tree.directory("/var/run");
        tree
    }

    pub(crate) fn root(&self) -> &Path {
        self.directory.path()
    }

    /// Where a path of the host stands outside of it.
    pub(crate) fn outside(&self, path: &str) -> PathBuf {
        self.root().join(path.trim_start_matches('/'))
    }

    fn made(&self, path: &str) -> PathBuf {
        let path = self.outside(path);
        let parent = path.parent().unwrap();
        // Links of the host are absolute: what is written through one would land on this machine.
        let links = parent.ancestors().take_while(|dir| *dir != self.root());
        assert!(
            links.into_iter().all(|dir| !dir.is_symlink()),
            "{}",
            path.display()
        );
        fs::create_dir_all(parent).unwrap();
        path
    }

    pub(crate) fn directory(&self, path: &str) -> &Tree {
        fs::create_dir_all(self.made(path)).unwrap();
        self
    }

    pub(crate) fn file(&self, path: &str, content: impl AsRef<[u8]>) -> &Tree {
        fs::write(self.made(path), content).unwrap();
        self
    }

    /// An attribute, with the newline that sysfs ends it with.
    pub(crate) fn attribute(&self, path: &str, value: &str) -> &Tree {
        self.file(path, format!("{value}\n"))
    }

    pub(crate) fn attributes(&self, directory: &str, attributes: &[(&str, &str)]) -> &Tree {
        self.directory(directory);
        for (name, value) in attributes {
            self.attribute(&format!("{directory}/{name}"), value);
        }
        self
    }

    pub(crate) fn program(&self, path: &str, content: impl AsRef<[u8]>) -> &Tree {
        self.file(path, content);
        fs::set_permissions(self.outside(path), fs::Permissions::from_mode(0o755)).unwrap();
        self
    }

    pub(crate) fn link(&self, path: &str, target: &str) -> &Tree {
        // The links of sysfs are relative ones.
        let depth = path.trim_matches('/').matches('/').count();
        let target = match target.strip_prefix("/sys/") {
            Some(below) if path.starts_with("/sys/") => {
                format!("{}sys/{below}", "../".repeat(depth))
            }
            _ => target.to_owned(),
        };
        symlink(target, self.made(path)).unwrap();
        self
    }

    pub(crate) fn remove(&self, path: &str) -> &Tree {
        let outside = self.outside(path);
        if outside.is_dir() && !outside.is_symlink() {
            fs::remove_dir_all(outside).unwrap();
        } else {
            fs::remove_file(outside).unwrap();
        }
        self
    }

    /// A character device in /dev, and its number in sysfs where its class says so.
    pub(crate) fn node(&self, path: &str, major: u32, minor: u32) -> &Tree {
        writeln!(self.nodes.borrow_mut(), "{path} c {major} {minor} 0666 0 0").unwrap();
        self.file("/dev.table", self.nodes.borrow().as_str())
    }

    /// The numbers of a node, `243:0`.
    pub(crate) fn number(&self, path: &str) -> String {
        let nodes = self.nodes.borrow();
        let fields = nodes.lines().map(|line| line.split(' '));
        let node = fields.map(Iterator::collect::<Vec<_>>);
        let node = node.into_iter().find(|node| node[0] == path).unwrap();
        format!("{}:{}", node[2], node[3])
    }

    pub(crate) fn without_node(&self, path: &str) -> &Tree {
        let nodes = self.nodes.take();
        let rest = nodes
            .lines()
            .filter(|line| !line.starts_with(&format!("{path} ")));
        let rest: String = rest.map(|line| format!("{line}\n")).collect();
        self.nodes.replace(rest);
        self.file("/dev.table", self.nodes.borrow().as_str())
    }

    /// A PCI function; its directory.
    pub(crate) fn pci(&self, pci: Pci<'_>) -> String {
        let bus = &pci.address[..pci.address.rfind(':').unwrap()];
        let directory = format!("/sys/devices/pci{bus}/{}", pci.address);
        let (vendor, device) = pci.id.split_once(':').unwrap();
        self.attributes(
            &directory,
            &[
                ("vendor", &format!("0x{vendor}")),
                ("device", &format!("0x{device}")),
                ("class", pci.class),
                ("numa_node", &pci.numa_node.to_string()),
            ],
        );
        if !pci.driver.is_empty() {
            let driver = format!("/sys/bus/pci/drivers/{}", pci.driver);
            self.directory(&driver);
            self.link(&format!("{directory}/driver"), &driver);
        }
        let entry = format!("/sys/bus/pci/devices/{}", pci.address);
        self.link(&entry, &directory);
        directory
    }

    /// Makes a function a virtual one of another.
    pub(crate) fn virtual_function(&self, parent: &str, index: u32, child: &str) -> &Tree {
        self.link(&format!("{parent}/virtfn{index}"), child);
        self.link(&format!("{child}/physfn"), parent)
    }

    /// A device of a class; its directory.
    pub(crate) fn class_device(
        &self,
        class: &str,
        parent: &str,
        name: &str,
        attributes: &[(&str, &str)],
    ) -> String {
        let directory = format!("{parent}/{class}/{name}");
        self.attributes(&directory, attributes);
        if parent != "/sys/devices/virtual" {
            self.link(&format!("{directory}/device"), parent);
        }
        self.link(&format!("/sys/class/{class}/{name}"), &directory);
        directory
    }

    /// An interface that is up with 25 Gbit/s.
    pub(crate) fn interface(&self, function: &str, name: &str) -> String {
        let attributes = [("operstate", "up"), ("speed", "25000"), ("dev_port", "0")];
        self.class_device("net", function, name, &attributes)
    }

    /// An auxiliary device below a function, with its switch where it has one.
    pub(crate) fn auxiliary(
        &self,
        function: &str,
        name: &str,
        driver: &str,
        enable: Option<&str>,
    ) -> &Tree {
        let directory = format!("{function}/{name}");
        self.directory(&directory);
        if !driver.is_empty() {
            let place = format!("/sys/bus/auxiliary/drivers/{driver}");
            self.directory(&place);
            self.link(&format!("{directory}/driver"), &place);
        }
        if let Some(enable) = enable {
            self.attribute(&format!("{directory}/sfc_resource/enable"), enable);
        }
        self.link(&format!("/sys/bus/auxiliary/devices/{name}"), &directory)
    }

    /// Onload's modules, nodes and version files, with the interface of that checksum.
    pub(crate) fn driver(&self, checksum: &str) -> &Tree {
        let version =
            format!("onload_product: Onload\nonload_version: {VERSION}\nuk_intf_ver: {checksum}\n");
        self.file("/proc/driver/onload/version", version);
        self.attribute("/sys/module/onload/version", VERSION);
        self.directory("/sys/module/sfc_char")
            .file("/sys/module/sfc_resource/afxdp/register", "");
        for (name, major) in [("onload", 243), ("onload_epoll", 242), ("sfc_char", 244)] {
            self.attribute(
                &format!("/sys/class/{name}/{name}/dev"),
                &format!("{major}:0"),
            );
            self.node(&format!("/dev/{name}"), major, 0);
        }
        self
    }

    /// Onload's and TCPDirect's libraries in that directory, with the links between them.
    pub(crate) fn libraries(&self, directory: &str) -> &Tree {
        self.copy(
            &captured().join(MULTIARCH.trim_start_matches('/')),
            directory,
        )
    }

    /// Their tools and profiles below that prefix, which is empty for /.
    pub(crate) fn tools(&self, prefix: &str) -> &Tree {
        self.copy(&captured().join("usr/bin"), &format!("{prefix}/usr/bin"));
        let profiles = "usr/libexec/onload/profiles";
        self.copy(&captured().join(profiles), &format!("{prefix}/{profiles}"))
    }

    /// A host with Onload and TCPDirect, and no interface.
    pub(crate) fn with_onload() -> Tree {
        let tree = Tree::new();
        tree.driver(CHECKSUM).libraries(MULTIARCH).tools("").hook();
        tree.hugepages(2048, &[(0, 64, 64)]);
        tree
    }

    fn copy(&self, from: &Path, to: &str) -> &Tree {
        self.directory(to);
        for entry in WalkDir::new(from).min_depth(1) {
            let entry = entry.unwrap();
            let place = self
                .outside(to)
                .join(entry.path().strip_prefix(from).unwrap());
            match entry.file_type() {
                kind if kind.is_dir() => fs::create_dir(place).unwrap(),
                kind if kind.is_symlink() => {
                    symlink(fs::read_link(entry.path()).unwrap(), place).unwrap();
                }
                _ => drop(fs::copy(entry.path(), place).unwrap()),
            }
        }
        self
    }

    /// Huge pages of one size, as node, total and free.
    pub(crate) fn hugepages(&self, size_kib: u64, nodes: &[(u32, u64, u64)]) -> &Tree {
        let count = |directory: String, total: u64, free: u64| {
            self.attribute(&format!("{directory}/nr_hugepages"), &total.to_string());
            self.attribute(&format!("{directory}/free_hugepages"), &free.to_string());
        };
        let size = format!("hugepages-{size_kib}kB");
        let overall = format!("/sys/kernel/mm/hugepages/{size}");
        let (total, free) = nodes
            .iter()
            .fold((0, 0), |(t, f), (_, a, b)| (t + a, f + b));
        self.attribute(&format!("{overall}/nr_overcommit_hugepages"), "0");
        count(overall, total, free);
        for (node, total, free) in nodes {
            count(
                format!("/sys/devices/system/node/node{node}/hugepages/{size}"),
                *total,
                *free,
            );
        }
        self
    }

    /// An RDMA device with one uverbs node of that number.
    pub(crate) fn rdma(&self, parent: &str, name: &str, number: u32) -> String {
        let attributes = [
            ("node_type", "1: CA"),
            ("node_guid", "b8ce:f603:00aa:bb0c"),
            ("fw_ver", "22.41.1000"),
        ];
        let directory = self.class_device("infiniband", parent, name, &attributes);
        self.rdma_port(&directory, 1, "Ethernet");
        self.character(
            "infiniband_verbs",
            parent,
            &format!("uverbs{number}"),
            name,
            192 + number,
        );
        directory
    }

    pub(crate) fn rdma_port(&self, device: &str, port: u32, link_layer: &str) -> &Tree {
        let attributes = [
            ("state", "4: ACTIVE"),
            ("link_layer", link_layer),
            ("rate", "100 Gb/sec (4X EDR)"),
        ];
        self.attributes(&format!("{device}/ports/{port}"), &attributes)
    }

    /// A character device of an RDMA device.
    pub(crate) fn character(
        &self,
        class: &str,
        parent: &str,
        name: &str,
        owner: &str,
        minor: u32,
    ) -> String {
        let number = format!("231:{minor}");
        let attributes = [("ibdev", owner), ("dev", &number)];
        self.node(&format!("/dev/infiniband/{name}"), 231, minor);
        self.class_device(class, parent, name, &attributes)
    }

    pub(crate) fn rdma_cm(&self) -> &Tree {
        self.attribute("/sys/class/misc/rdma_cm/dev", "10:260");
        self.node("/dev/infiniband/rdma_cm", 10, 260)
    }

    /// The container of vfio groups.
    pub(crate) fn vfio(&self) -> &Tree {
        self.attribute("/sys/class/misc/vfio/dev", "10:196");
        self.node("/dev/vfio/vfio", 10, 196)
    }

    /// The IOMMU group of a function.
    pub(crate) fn group(&self, function: &str, number: u32) -> &Tree {
        let group = format!("/sys/kernel/iommu_groups/{number}");
        let address = function.rsplit('/').next().unwrap();
        self.link(&format!("{group}/devices/{address}"), function);
        self.link(&format!("{function}/iommu_group"), &group)
    }

    /// The node of a group.
    pub(crate) fn group_node(&self, number: u32) -> &Tree {
        self.attribute(
            &format!("/sys/class/vfio/{number}/dev"),
            &format!("241:{number}"),
        );
        self.node(&format!("/dev/vfio/{number}"), 241, number)
    }

    /// The node of a function itself.
    pub(crate) fn vfio_device(&self, function: &str, number: u32) -> &Tree {
        let dev = format!("509:{number}");
        self.attribute(&format!("{function}/vfio-dev/vfio{number}/dev"), &dev);
        self.node(&format!("/dev/vfio/devices/vfio{number}"), 509, number)
    }

    pub(crate) fn iommufd(&self) -> &Tree {
        self.attribute("/sys/class/misc/iommu/dev", "10:124");
        self.node("/dev/iommu", 10, 124)
    }

    pub(crate) fn ptp(&self, parent: &str, number: u32) -> &Tree {
        let (name, dev) = (format!("ptp{number}"), format!("247:{number}"));
        self.class_device(
            "ptp",
            parent,
            &name,
            &[("clock_name", "sfc"), ("dev", &dev)],
        );
        self.node(&format!("/dev/{name}"), 247, number)
    }

    pub(crate) fn pps(&self, parent: &str, number: u32, source: &str) -> &Tree {
        let (name, dev) = (format!("pps{number}"), format!("248:{number}"));
        self.class_device("pps", parent, &name, &[("name", source), ("dev", &dev)]);
        self.node(&format!("/dev/{name}"), 248, number)
    }

    pub(crate) fn hook(&self) -> &Tree {
        self.program("/usr/bin/onload-hook", "\x7fELF")
    }

    /// The host's configuration.
    pub(crate) fn config(&self, text: &str) -> &Tree {
        self.file("/etc/onload-ctk/config.toml", text)
    }

    /// Runs the program on this host.
    pub(crate) fn run(&self, args: &[&str]) -> Run {
        run(&mut on(self.root(), args))
    }

    /// What `discover --format json` gives.
    #[track_caller]
    pub(crate) fn discover(&self) -> Value {
        self.run(&["discover", "--format", "json"]).done().json()
    }

    /// Generates into the host's own directory.
    #[track_caller]
    pub(crate) fn generate(&self) -> Run {
        self.run(&["cdi", "generate"]).done()
    }

    /// Where the host has its specifications.
    pub(crate) fn specs(&self) -> PathBuf {
        self.outside("/var/run/cdi")
    }

    /// Generates and gives the specification of a class.
    #[track_caller]
    pub(crate) fn spec(&self, class: &str) -> Value {
        self.generate();
        self.written(class)
    }

    /// The specification of a class as it stands there.
    #[track_caller]
    pub(crate) fn written(&self, class: &str) -> Value {
        json_file(self.specs().join(format!("onload.dev-{class}.json")))
    }

    /// The specification of a class's pools as it stands there.
    #[track_caller]
    pub(crate) fn written_pools(&self, class: &str) -> Value {
        self.written(&format!("{class}-pools"))
    }
}
