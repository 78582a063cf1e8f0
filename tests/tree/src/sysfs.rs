//! What a kernel shows of devices in /sys, with their nodes.

use crate::tree::Tree;

/// A PCI function that is put into a host.
#[derive(Clone, Copy, Debug)]
pub struct Pci<'t> {
    pub address: &'t str,
    /// Vendor and device, for instance `1924:0b03`.
    pub id: &'t str,
    pub class: &'t str,
    pub numa_node: i32,
    /// Empty: none.
    pub driver: &'t str,
}

impl<'t> Pci<'t> {
    /// A network function on node 0.
    pub fn network(address: &'t str, id: &'t str, driver: &'t str) -> Pci<'t> {
        Pci { address, id, class: "0x020000", numa_node: 0, driver }
    }
}

impl Tree {
    /// A PCI function; its directory.
    pub fn pci(&self, pci: Pci<'_>) -> String {
        let bus = &pci.address[..pci.address.rfind(':').unwrap()];
        self.pci_below(&format!("pci{bus}"), pci)
    }

    /// A PCI function below a root and bridges, such as `pci0000:10/0000:10:01.0`; its directory.
    pub fn pci_below(&self, above: &str, pci: Pci<'_>) -> String {
        let directory = format!("/sys/devices/{above}/{}", pci.address);
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
            self.bind(&directory, pci.driver);
        }
        let entry = format!("/sys/bus/pci/devices/{}", pci.address);
        self.link(&entry, &directory);
        directory
    }

    /// One of some vendor without a driver; its directory.
    pub fn function(&self, address: &str, class: &str, numa_node: i32) -> String {
        self.pci(Pci { class, numa_node, ..Pci::network(address, "15b3:1021", "") })
    }

    pub fn bind(&self, function: &str, driver: &str) -> &Tree {
        let driver = format!("/sys/bus/pci/drivers/{driver}");
        self.directory(&driver).link(&format!("{function}/driver"), &driver)
    }

    /// Makes a function a virtual one of another.
    pub fn virtual_function(&self, parent: &str, index: u32, child: &str) -> &Tree {
        self.link(&format!("{parent}/virtfn{index}"), child);
        self.link(&format!("{child}/physfn"), parent)
    }

    /// A device of a class; its directory.
    pub fn class_device(
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
    pub fn interface(&self, function: &str, name: &str) -> String {
        let attributes = [("operstate", "up"), ("speed", "25000"), ("dev_port", "0")];
        self.class_device("net", function, name, &attributes)
    }

    /// An auxiliary device below a function, with its switch where it has one.
    pub fn auxiliary(
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

    /// Huge pages of one size, as node, total and free.
    pub fn hugepages(&self, size_kib: u64, nodes: &[(u32, u64, u64)]) -> &Tree {
        let count = |directory: String, total: u64, free: u64| {
            self.attribute(&format!("{directory}/nr_hugepages"), &total.to_string());
            self.attribute(&format!("{directory}/free_hugepages"), &free.to_string());
        };
        let size = format!("hugepages-{size_kib}kB");
        let overall = format!("/sys/kernel/mm/hugepages/{size}");
        let (total, free) = nodes.iter().fold((0, 0), |(t, f), (_, a, b)| (t + a, f + b));
        self.attribute(&format!("{overall}/nr_overcommit_hugepages"), "0");
        count(overall, total, free);
        for (node, total, free) in nodes {
            count(format!("/sys/devices/system/node/node{node}/hugepages/{size}"), *total, *free);
        }
        self
    }

    /// An RDMA device with one uverbs node of that number.
    pub fn rdma(&self, parent: &str, name: &str, number: u32) -> String {
        let attributes = [
            ("node_type", "1: CA"),
            ("node_guid", "b8ce:f603:00aa:bb0c"),
            ("fw_ver", "22.41.1000"),
        ];
        let directory = self.class_device("infiniband", parent, name, &attributes);
        self.rdma_port(&directory, 1, "Ethernet");
        self.character("infiniband_verbs", parent, &format!("uverbs{number}"), name, 192 + number);
        directory
    }

    pub fn rdma_port(&self, device: &str, port: u32, link_layer: &str) -> &Tree {
        let attributes =
            [("state", "4: ACTIVE"), ("link_layer", link_layer), ("rate", "100 Gb/sec (4X EDR)")];
        self.attributes(&format!("{device}/ports/{port}"), &attributes)
    }

    /// A character device of an RDMA device.
    pub fn character(
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

    pub fn rdma_cm(&self) -> &Tree {
        self.attribute("/sys/class/misc/rdma_cm/dev", "10:260");
        self.node("/dev/infiniband/rdma_cm", 10, 260)
    }

    /// The container of vfio groups.
    pub fn vfio(&self) -> &Tree {
        self.attribute("/sys/class/misc/vfio/dev", "10:196");
        self.node("/dev/vfio/vfio", 10, 196)
    }

    /// The IOMMU group of a function.
    pub fn group(&self, function: &str, number: u32) -> &Tree {
        let group = format!("/sys/kernel/iommu_groups/{number}");
        let address = function.rsplit('/').next().unwrap();
        self.link(&format!("{group}/devices/{address}"), function);
        self.link(&format!("{function}/iommu_group"), &group)
    }

    /// The node of a group.
    pub fn group_node(&self, number: u32) -> &Tree {
        self.attribute(&format!("/sys/class/vfio/{number}/dev"), &format!("241:{number}"));
        self.node(&format!("/dev/vfio/{number}"), 241, number)
    }

    /// The node of a function itself.
    pub fn vfio_device(&self, function: &str, number: u32) -> &Tree {
        let dev = format!("509:{number}");
        self.attribute(&format!("{function}/vfio-dev/vfio{number}/dev"), &dev);
        self.node(&format!("/dev/vfio/devices/vfio{number}"), 509, number)
    }

    pub fn iommufd(&self) -> &Tree {
        self.attribute("/sys/class/misc/iommu/dev", "10:124");
        self.node("/dev/iommu", 10, 124)
    }

    pub fn ptp(&self, parent: &str, number: u32) -> &Tree {
        let (name, dev) = (format!("ptp{number}"), format!("247:{number}"));
        self.class_device("ptp", parent, &name, &[("clock_name", "sfc"), ("dev", &dev)]);
        self.node(&format!("/dev/{name}"), 247, number)
    }

    pub fn pps(&self, parent: &str, number: u32, source: &str) -> &Tree {
        let (name, dev) = (format!("pps{number}"), format!("248:{number}"));
        self.class_device("pps", parent, &name, &[("name", source), ("dev", &dev)]);
        self.node(&format!("/dev/{name}"), 248, number)
    }
}
