//! Small hosts of one kind each.

use onload_test_tree::{CHECKSUM, MULTIARCH, Pci, Tree};

const SFC: &str = "sfc_resource.ef10";

/// An X2 adapter with two ports, each a function with two VFs; the second port is switched off.
pub(crate) fn x2() -> Tree {
    let tree = Tree::with_onload();
    for (port, enable) in [(0, "1"), (1, "0")] {
        let address = format!("0000:3b:00.{port}");
        let function = tree.pci(Pci { numa_node: 1, ..Pci::network(&address, "1924:0b03", "sfc") });
        tree.interface(&function, &format!("enp59s0f{port}np{port}"));
        tree.auxiliary(&function, &format!("sfc.onload.{port}"), SFC, Some(enable));
        tree.ptp(&function, port);
        for index in 0..2 {
            let address = format!("0000:3b:0{}.{index}", port + 2);
            let child = tree.pci(Pci { numa_node: 1, ..Pci::network(&address, "1924:1b03", "") });
            tree.virtual_function(&function, index, &child);
        }
        tree.attribute(&format!("{function}/sriov_totalvfs"), "8");
        tree.attribute(&format!("{function}/sriov_numvfs"), "2");
    }
    tree.pps("/sys/devices/virtual", 0, "ptp0");
    tree
}

/// An X4 adapter: one function with the low-latency and the full-featured datapath, one with only
/// the latter.
pub(crate) fn x4() -> Tree {
    let tree = Tree::with_onload();
    let first = tree.pci(Pci::network("0000:3b:00.0", "1924:0c03", "sfc"));
    tree.interface(&first, "ens4f0");
    tree.auxiliary(&first, "sfc.onload.0", SFC, Some("1"));
    tree.auxiliary(&first, "sfc.llct.0", "sfc_resource.ef10ct", Some("1"));
    let second = tree.pci(Pci::network("0000:3b:00.1", "1924:2c03", "sfc"));
    tree.interface(&second, "ens4f1");
    tree.auxiliary(&second, "sfc.onload.1", SFC, Some("1"));
    tree
}

/// An X3 adapter, which has a driver of its own.
pub(crate) fn x3() -> Tree {
    let tree = Tree::with_onload();
    let function = tree.pci(Pci::network("0000:3b:00.0", "10ee:5084", "xilinx_efct"));
    tree.interface(&function, "ens3");
    tree.auxiliary(&function, "xilinx_efct.efct.0", "sfc_resource.xilinx_efct", Some("1"));
    tree
}

/// Onload 8 attaches to the PCI function itself.
pub(crate) fn onload8() -> Tree {
    let tree = Tree::with_onload();
    for (index, enable) in ["1", "0"].iter().enumerate() {
        let address = format!("0000:3b:00.{index}");
        let function = tree.pci(Pci::network(&address, "1924:0a03", "sfc"));
        tree.interface(&function, &format!("eth{index}"));
        tree.attribute(&format!("{function}/sfc_resource/enable"), enable);
    }
    tree
}

/// Adapters that the driver binds and Onload refuses, one that is bound to the kernel's own driver,
/// one that nobody is bound to, and one of another vendor.
pub(crate) fn refused() -> Tree {
    let tree = Tree::with_onload();
    let adapters = [
        ("0000:01:00.0", "1924:0903", "sfc", "old0"),
        ("0000:02:00.0", "10ee:0100", "sfc", "riverhead0"),
        ("0000:03:00.0", "1022:1190", "sfc", "x4ana0"),
        ("0000:04:00.0", "1924:0b03", "sfc", "intree0"),
        ("0000:05:00.0", "8086:1572", "i40e", "other0"),
    ];
    for (address, id, driver, name) in adapters {
        let function = tree.pci(Pci::network(address, id, driver));
        tree.interface(&function, name);
    }
    tree.pci(Pci::network("0000:06:00.0", "1924:0b03", ""));
    let unbound = tree.pci(Pci::network("0000:07:00.0", "1924:0b03", "sfc"));
    tree.interface(&unbound, "unbound0");
    tree.auxiliary(&unbound, "sfc.onload.0", "", None);
    tree.class_device("net", "/sys/devices/virtual", "lo", &[("operstate", "unknown")]);
    tree
}

/// Interfaces whose names are words of ours or no names of CDI devices.
pub(crate) fn odd_names() -> Tree {
    let tree = Tree::with_onload();
    let names = ["all", "loopback", "a+", "b_", "Eth-1.a_b", "none", "eth0:1"];
    for (index, name) in names.iter().enumerate() {
        let address = format!("10000:e1:0{index}.0");
        let function =
            tree.pci(Pci { numa_node: -1, ..Pci::network(&address, "1924:0b03", "sfc") });
        tree.interface(&function, name);
        tree.auxiliary(&function, &format!("sfc.onload.{index}"), SFC, None);
    }
    tree
}

/// Onload as its images have it, below /opt/onload, beside a copy for another driver in /usr.
pub(crate) fn opt_onload() -> Tree {
    let tree = Tree::new();
    tree.driver(CHECKSUM);
    tree.libraries("/opt/onload/usr/lib64").tools("/opt/onload");
    tree.libraries(MULTIARCH);
    let own = tree.path(MULTIARCH).join("libonload.so");
    let mut content = std::fs::read(&own).unwrap();
    let at = memchr::memmem::find(&content, CHECKSUM.as_bytes()).unwrap();
    content[at] ^= 1;
    std::fs::write(&own, content).unwrap();
    let function = tree.pci(Pci::network("0000:3b:00.0", "1924:0b03", "sfc"));
    tree.interface(&function, "ens1");
    tree.auxiliary(&function, "sfc.onload.0", SFC, Some("1"));
    tree
}

/// RDMA of several makes: RoCE, a function with two ports of InfiniBand and class 0c06, a function
/// with a second device for the subnet manager only, and one without a function.
pub(crate) fn rdma() -> Tree {
    let tree = Tree::new();
    tree.rdma_cm().hook();
    tree.attribute("/sys/module/ib_core/parameters/netns_mode", "Y");
    let roce = tree.pci(Pci::network("0000:3b:00.0", "15b3:101d", "mlx5_core"));
    tree.interface(&roce, "ens1");
    let device = tree.rdma(&roce, "mlx5_0", 7);
    tree.attribute(&format!("{device}/ports/1/gid_attrs/ndevs/0"), "ens1");
    for (name, minor) in [("umad0", 0), ("issm0", 64)] {
        let directory = tree.character("infiniband_mad", &roce, name, "mlx5_0", minor);
        tree.attribute(&format!("{directory}/port"), "1");
    }
    tree.character("infiniband_mad", &roce, "issm9", "smi1", 73);
    let attributes = [("node_type", "1: CA"), ("node_guid", "b8ce:f603:00aa:bb0d")];
    tree.class_device("infiniband", &roce, "smi1", &attributes);
    let both = tree.pci(Pci {
        class: "0x0c0600",
        numa_node: 1,
        ..Pci::network("0000:af:00.0", "15b3:1003", "mlx4_core")
    });
    let device = tree.rdma(&both, "mlx4_0", 0);
    for port in [1, 2] {
        tree.rdma_port(&device, port, "InfiniBand");
        let guid = format!("fe80:0000:0000:0000:0002:c903:00f9:bfa{port}");
        tree.attribute(&format!("{device}/ports/{port}/gids/0"), &guid);
        let address = format!("a0:00:02:20:fe:80:00:00:00:00:00:00:00:02:c9:03:00:f9:bf:a{port}");
        let attributes = [("operstate", "up"), ("address", &address), ("dev_port", "0")];
        tree.class_device("net", &both, &format!("ib{}", 2 - port), &attributes);
    }
    let soft = tree.rdma("/sys/devices/virtual", "rxe0", 1);
    tree.attribute(&format!("{soft}/parent"), "ens1");
    tree
}

/// The same in netns mode exclusive, in which a device moves into the container that gets it.
fn rdma_exclusive() -> Tree {
    let tree = rdma();
    tree.attribute("/sys/module/ib_core/parameters/netns_mode", "N");
    tree
}

/// vfio: a group of two functions, one with a node of its own function, one that a driver blocks,
/// a PF with VFs, a variant driver, and a function without an IOMMU.
pub(crate) fn vfio() -> Tree {
    let tree = Tree::new();
    tree.vfio().hook();
    let held = |address: &str, group: u32, driver: &str| {
        let function = tree.pci(Pci::network(address, "8086:154c", driver));
        tree.group(&function, group);
        function
    };
    held("0000:81:02.0", 20, "vfio-pci");
    held("0000:81:02.1", 20, "vfio-pci");
    held("0000:81:00.3", 20, "pcieport");
    tree.group_node(20);
    held("0000:81:03.0", 21, "vfio-pci");
    held("0000:81:03.1", 21, "igb");
    tree.group_node(21);
    let parent = held("0000:81:00.0", 22, "vfio-pci");
    let child = held("0000:81:04.0", 23, "mlx5_vfio_pci");
    tree.virtual_function(&parent, 0, &child).group_node(22).group_node(23);
    let other = held("0000:81:04.1", 24, "iavf");
    tree.virtual_function(&parent, 1, &other);
    tree.pci(Pci::network("0000:82:00.0", "8086:1572", "vfio-pci"));
    tree
}

/// vfio with nodes of the functions' own, and iommufd.
pub(crate) fn vfio_cdev() -> Tree {
    let tree = vfio_without_groups();
    tree.vfio().group_node(20);
    tree
}

/// The same where CONFIG_VFIO_GROUP is off: no group has a node (Documentation/driver-api/vfio.rst,
/// "VFIO Device cdev").
pub(crate) fn vfio_without_groups() -> Tree {
    let tree = Tree::new();
    tree.iommufd().hook();
    for (number, address) in ["0000:81:02.0", "0000:81:02.1"].iter().enumerate() {
        let function = tree.pci(Pci::network(address, "8086:154c", "vfio-pci"));
        tree.group(&function, 20).vfio_device(&function, number as u32);
    }
    tree
}

/// Huge pages of three sizes on nodes with a gap between their numbers, and one size without pages.
pub(crate) fn hugepages() -> Tree {
    let tree = Tree::new();
    tree.hugepages(2048, &[(0, 32, 30), (2, 32, 32)]);
    tree.hugepages(1_048_576, &[(0, 0, 0), (2, 2, 2)]);
    tree.hugepages(64, &[(0, 0, 0), (2, 0, 0)]);
    tree.file("/proc/meminfo", "Hugepagesize:       2048 kB\n");
    tree.file(
        "/proc/mounts",
        "hugetlbfs /dev/hugepages hugetlbfs rw,pagesize=2M 0 0\n\
         hugetlbfs /mnt/huge\\0401G hugetlbfs rw,pagesize=1024M 0 0\n",
    );
    tree
}

/// Every host, with the name of its golden files.
pub(crate) fn all() -> Vec<(&'static str, Tree)> {
    vec![
        ("hugepages", hugepages()),
        ("nothing", Tree::new()),
        ("odd-names", odd_names()),
        ("onload8", onload8()),
        ("opt-onload", opt_onload()),
        ("rdma", rdma()),
        ("rdma-exclusive", rdma_exclusive()),
        ("refused", refused()),
        ("vfio", vfio()),
        ("vfio-cdev", vfio_cdev()),
        ("x2", x2()),
        ("x3", x3()),
        ("x4", x4()),
    ]
}

/// A host whose interface `ens1v0` is in a container, or on its way back from one.
pub(crate) fn leased_interface(returning: bool) -> Tree {
    let tree = x3();
    tree.boot("a-boot");
    tree.process(42, 7);
    let holder = r#"{"init":{"process":{"pid":42,"startTime":7,"pidNamespace":1}}}"#;
    let interface = r#"{"name":"ens1v0","mac":"02:00:00:00:10:01","mtu":1500,"queueLength":1000,"flags":3,"pci":"0000:3b:02.7"}"#;
    let left = if returning { r#""left":"its MTU","# } else { "" };
    let lease = format!(
        r#"{{"version":1,"boot":"a-boot","container":"web","bundle":"/b/web","holder":{holder},"entryPoint":"createRuntime","since":1,
            "facts":{{}},"moved":{{"interface":{interface},"namespace":7,{left}"returning":{returning}}}}}"#
    );
    tree.file("run/onload-ctk/@leases/netdev=ens1v0#0", lease);
    tree
}
