//! Builds a host with any number of virtual functions: everything that Linux shows of each, including attributes
//! that discovery does not use.

use onload_test_tree::{Pci, Tree};

/// Virtual functions of one physical function.
const VFS_OF_A_PF: usize = 64;

/// Attributes of every function that nobody reads. Together with the ones that are read, they are
/// those that Linux 6.12 shows for a virtual function of an igb.
const UNREAD: [&str; 28] = [
    "aer_dev_correctable",
    "aer_dev_fatal",
    "aer_dev_nonfatal",
    "ari_enabled",
    "broken_parity_status",
    "config",
    "consistent_dma_mask_bits",
    "current_link_speed",
    "current_link_width",
    "d3cold_allowed",
    "dma_mask_bits",
    "driver_override",
    "enable",
    "irq",
    "local_cpulist",
    "local_cpus",
    "max_link_speed",
    "max_link_width",
    "modalias",
    "msi_bus",
    "power_state",
    "remove",
    "reset_method",
    "resource",
    "revision",
    "subsystem_device",
    "subsystem_vendor",
    "uevent",
];

struct Builder<'t> {
    tree: &'t Tree,
    groups: u32,
    rdma: u32,
}

/// Makes that many virtual functions.
pub(crate) fn build(tree: &Tree, vfs: usize) {
    let mut builder = Builder { tree, groups: 0, rdma: 0 };
    tree.vfio().iommufd().rdma_cm();
    for pf in 0..vfs.div_ceil(VFS_OF_A_PF) {
        builder.physical_function(pf, VFS_OF_A_PF.min(vfs - pf * VFS_OF_A_PF));
    }
}

impl Builder<'_> {
    fn unread(&self, directory: &str, names: &[&str]) {
        for name in names {
            self.tree.attribute(&format!("{directory}/{name}"), "");
        }
    }

    /// Adds a function with its group and returns its directory.
    fn function(&mut self, address: &str, driver: &str) -> String {
        let directory = self.tree.pci(Pci {
            numa_node: i32::from(!self.groups.is_multiple_of(2)),
            ..Pci::network(address, "15b3:101e", driver)
        });
        self.unread(&directory, &UNREAD);
        self.tree.directory(&format!("{directory}/link"));
        self.tree.link(&format!("{directory}/subsystem"), "/sys/bus/pci");
        let group = format!("/sys/kernel/iommu_groups/{}", self.groups);
        self.tree.attribute(&format!("{group}/type"), "DMA-FQ");
        self.tree.group(&directory, self.groups);
        self.groups += 1;
        directory
    }

    fn physical_function(&mut self, pf: usize, vfs: usize) {
        let bus = 0x10 + pf;
        let parent = self.function(&format!("0000:{bus:02x}:00.0"), "mlx5_core");
        let count = vfs.to_string();
        let counts = [("sriov_totalvfs", count.as_str()), ("sriov_numvfs", &count)];
        self.tree.attributes(&parent, &counts);
        self.interface(&parent, &format!("p{pf}"));
        self.rdma(&parent);
        for vf in 0..vfs {
            let address = format!("0000:{bus:02x}:{:02x}.{}", 8 + vf / 8, vf % 8);
            let driver = ["vfio-pci", "vfio-pci", "mlx5_core", "iavf"][vf % 4];
            let group = self.groups;
            let child = self.function(&address, driver);
            self.tree.virtual_function(&parent, vf as u32, &child);
            if driver == "vfio-pci" {
                self.tree.group_node(group).vfio_device(&child, group);
                self.unread(&format!("{child}/vfio-dev/vfio{group}"), &["uevent"]);
                continue;
            }
            self.interface(&child, &format!("p{pf}v{vf}"));
            if driver == "mlx5_core" {
                self.rdma(&child);
            }
        }
    }

    fn interface(&self, function: &str, name: &str) {
        let directory = self.tree.interface(function, name);
        let more = [("dev_id", "0x0"), ("address", "02:00:00:00:00:01")];
        self.tree.attributes(&directory, &more);
        let unread = ["carrier", "duplex", "flags", "ifindex", "iflink", "mtu", "type", "uevent"];
        self.unread(&directory, &unread);
    }

    fn rdma(&mut self, function: &str) {
        let (number, name) = (self.rdma, format!("mlx5_{}", self.rdma));
        self.rdma += 1;
        let directory = self.tree.rdma(function, &name, number);
        let unread = ["board_id", "hca_type", "hw_rev", "node_desc", "sys_image_guid"];
        self.unread(&directory, &unread);
        let (umad, minor) = (format!("umad{number}"), 10_000 + number);
        let directory = self.tree.character("infiniband_mad", function, &umad, &name, minor);
        self.tree.attribute(&format!("{directory}/port"), "1");
    }
}
