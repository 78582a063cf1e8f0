//! Builds a host with any number of virtual functions in a directory: everything that Linux shows
//! of each, including attributes that discovery does not use.

use std::fmt::Write;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

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

struct Builder<'r> {
    root: &'r Path,
    nodes: String,
    groups: usize,
    rdma: usize,
}

/// Builds a host with that many virtual functions below `root`.
///
/// # Errors
/// A file cannot be created.
pub(crate) fn build(root: &Path, vfs: usize) -> io::Result<()> {
    let mut builder = Builder {
        root,
        nodes: String::new(),
        groups: 0,
        rdma: 0,
    };
    builder.misc("vfio", "/dev/vfio/vfio", 196)?;
    builder.misc("iommu", "/dev/iommu", 124)?;
    builder.misc("rdma_cm", "/dev/infiniband/rdma_cm", 260)?;
    for pf in 0..vfs.div_ceil(VFS_OF_A_PF) {
        builder.physical_function(pf, VFS_OF_A_PF.min(vfs - pf * VFS_OF_A_PF))?;
    }
    fs::write(root.join("dev.table"), builder.nodes)
}

impl Builder<'_> {
    fn outside(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn directory(&self, path: &str) -> io::Result<()> {
        fs::create_dir_all(self.outside(path))
    }

    fn attributes(&self, directory: &str, attributes: &[(&str, &str)]) -> io::Result<()> {
        self.directory(directory)?;
        attributes.iter().try_for_each(|(name, value)| {
            fs::write(
                self.outside(&format!("{directory}/{name}")),
                format!("{value}\n"),
            )
        })
    }

    fn link(&self, path: &str, target: &str) -> io::Result<()> {
        let path = self.outside(path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        symlink(target, path)
    }

    fn node(&mut self, path: &str, major: usize, minor: usize) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.nodes, "{path} c {major} {minor} 0600 0 0");
    }

    fn misc(&mut self, name: &str, path: &str, minor: usize) -> io::Result<()> {
        self.node(path, 10, minor);
        self.attributes(
            &format!("/sys/class/misc/{name}"),
            &[("dev", &format!("10:{minor}"))],
        )
    }

    /// Adds a function with its group and returns its directory.
    fn function(&mut self, address: &str, driver: &str) -> io::Result<String> {
        let bus = address.rsplit_once(':').map_or(address, |(bus, _)| bus);
        let directory = format!("/sys/devices/pci{bus}/{address}");
        let node = if self.groups.is_multiple_of(2) {
            "0"
        } else {
            "1"
        };
        let ids = [
            ("vendor", "0x15b3"),
            ("device", "0x101e"),
            ("class", "0x020000"),
        ];
        self.attributes(&directory, &ids)?;
        self.attributes(&directory, &[("numa_node", node)])?;
        self.attributes(&directory, &UNREAD.map(|name| (name, "")))?;
        self.directory(&format!("{directory}/link"))?;
        self.link(&format!("/sys/bus/pci/devices/{address}"), &directory)?;
        self.link(
            &format!("{directory}/driver"),
            &format!("/sys/bus/pci/drivers/{driver}"),
        )?;
        self.link(&format!("{directory}/subsystem"), "/sys/bus/pci")?;
        self.directory(&format!("/sys/bus/pci/drivers/{driver}"))?;
        let group = format!("/sys/kernel/iommu_groups/{}", self.groups);
        self.attributes(&group, &[("type", "DMA-FQ")])?;
        self.link(&format!("{group}/devices/{address}"), &directory)?;
        self.link(&format!("{directory}/iommu_group"), &group)?;
        self.groups += 1;
        Ok(directory)
    }

    fn physical_function(&mut self, pf: usize, vfs: usize) -> io::Result<()> {
        let bus = 0x10 + pf;
        let parent = self.function(&format!("0000:{bus:02x}:00.0"), "mlx5_core")?;
        let vfs_text = vfs.to_string();
        let counts = [
            ("sriov_totalvfs", vfs_text.as_str()),
            ("sriov_numvfs", vfs_text.as_str()),
        ];
        self.attributes(&parent, &counts)?;
        self.interface(&parent, &format!("p{pf}"))?;
        self.rdma(&parent)?;
        for vf in 0..vfs {
            let address = format!("0000:{bus:02x}:{:02x}.{}", 8 + vf / 8, vf % 8);
            let driver = ["vfio-pci", "vfio-pci", "mlx5_core", "iavf"][vf % 4];
            let group = self.groups;
            let child = self.function(&address, driver)?;
            self.link(&format!("{parent}/virtfn{vf}"), &child)?;
            self.link(&format!("{child}/physfn"), &parent)?;
            match driver {
                "vfio-pci" => self.held(&child, group)?,
                "mlx5_core" => {
                    self.interface(&child, &format!("p{pf}v{vf}"))?;
                    self.rdma(&child)?;
                }
                _ => self.interface(&child, &format!("p{pf}v{vf}"))?,
            }
        }
        Ok(())
    }

    /// Adds what vfio shows for a function that it holds.
    fn held(&mut self, function: &str, group: usize) -> io::Result<()> {
        self.node(&format!("/dev/vfio/{group}"), 241, group);
        self.node(&format!("/dev/vfio/devices/vfio{group}"), 509, group);
        let number = format!("241:{group}");
        self.attributes(&format!("/sys/class/vfio/{group}"), &[("dev", &number)])?;
        let own = format!("{function}/vfio-dev/vfio{group}");
        self.attributes(&own, &[("dev", &format!("509:{group}")), ("uevent", "")])
    }

    fn interface(&self, function: &str, name: &str) -> io::Result<()> {
        let directory = format!("{function}/net/{name}");
        let read = [
            ("operstate", "up"),
            ("speed", "100000"),
            ("dev_port", "0"),
            ("dev_id", "0x0"),
            ("address", "02:00:00:00:00:01"),
        ];
        self.attributes(&directory, &read)?;
        let unread = [
            "carrier", "duplex", "flags", "ifindex", "iflink", "mtu", "type", "uevent",
        ];
        self.attributes(&directory, &unread.map(|name| (name, "")))?;
        self.link(&format!("{directory}/device"), function)?;
        self.link(&format!("/sys/class/net/{name}"), &directory)
    }

    fn rdma(&mut self, function: &str) -> io::Result<()> {
        let number = self.rdma;
        self.rdma += 1;
        let name = format!("mlx5_{number}");
        let directory = format!("{function}/infiniband/{name}");
        let device = [
            ("node_type", "1: CA"),
            ("node_guid", "0:0:0:1"),
            ("fw_ver", "22.41.1000"),
        ];
        self.attributes(&directory, &device)?;
        let unread = [
            "board_id",
            "hca_type",
            "hw_rev",
            "node_desc",
            "sys_image_guid",
        ];
        self.attributes(&directory, &unread.map(|name| (name, "")))?;
        let port = [
            ("state", "4: ACTIVE"),
            ("link_layer", "Ethernet"),
            ("rate", "100 Gb/sec (4X EDR)"),
        ];
        self.attributes(&format!("{directory}/ports/1"), &port)?;
        self.link(&format!("{directory}/device"), function)?;
        self.link(&format!("/sys/class/infiniband/{name}"), &directory)?;
        for (class, kind) in [("infiniband_verbs", "uverbs"), ("infiniband_mad", "umad")] {
            let (major, dev) = if kind == "uverbs" {
                (231, 1000)
            } else {
                (230, 0)
            };
            let file = format!("{kind}{number}");
            let numbers = format!("{major}:{}", dev + number);
            let directory = format!("{function}/{class}/{file}");
            let attributes = [("ibdev", name.as_str()), ("dev", &numbers), ("port", "1")];
            self.attributes(&directory, &attributes)?;
            self.link(&format!("{directory}/device"), function)?;
            self.link(&format!("/sys/class/{class}/{file}"), &directory)?;
            self.node(&format!("/dev/infiniband/{file}"), major, dev + number);
        }
        Ok(())
    }
}
