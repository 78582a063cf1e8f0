//! Untrusted attributes, messages and tables of the kernel: the whole discovery of a small host in whose files the
//! text is, and the parsers of what is no file.

#![no_main]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use onload_core::config::Config;
use onload_host::host::Host;

const LINKS: [(&str, &str); 5] = [
    ("sys/bus/pci/devices/0000:41:00.0", "../../../devices/pci0000:40/0000:41:00.0"),
    ("sys/class/net/ens1", "../../devices/pci0000:40/0000:41:00.0/net/ens1"),
    ("sys/class/infiniband/mlx5_0", "../../devices/pci0000:40/0000:41:00.0/infiniband/mlx5_0"),
    ("sys/class/ptp/ptp0", "../../devices/pci0000:40/0000:41:00.0/ptp/ptp0"),
    ("sys/devices/pci0000:40/0000:41:00.0/net/ens1/device", "../.."),
];
const FILES: [&str; 21] = [
    "proc/devices",
    "proc/mounts",
    "proc/driver/onload/version",
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
    "sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages",
    "sys/devices/pci0000:40/0000:41:00.0/class",
    "sys/devices/pci0000:40/0000:41:00.0/vendor",
    "sys/devices/pci0000:40/0000:41:00.0/device",
    "sys/devices/pci0000:40/0000:41:00.0/uevent",
    "sys/devices/pci0000:40/0000:41:00.0/numa_node",
    "sys/devices/pci0000:40/0000:41:00.0/sriov_numvfs",
    "sys/devices/pci0000:40/0000:41:00.0/vpd",
    "sys/devices/pci0000:40/0000:41:00.0/net/ens1/uevent",
    "sys/devices/pci0000:40/0000:41:00.0/net/ens1/speed",
    "sys/devices/pci0000:40/0000:41:00.0/net/ens1/phys_port_name",
    "sys/devices/pci0000:40/0000:41:00.0/infiniband/mlx5_0/node_guid",
    "sys/devices/pci0000:40/0000:41:00.0/infiniband/mlx5_0/ports/1/state",
    "sys/devices/pci0000:40/0000:41:00.0/infiniband/mlx5_0/ports/1/link_layer",
    "sys/devices/pci0000:40/0000:41:00.0/infiniband/mlx5_0/ports/1/gids/0",
    "sys/devices/pci0000:40/0000:41:00.0/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0",
    "sys/devices/pci0000:40/0000:41:00.0/ptp/ptp0/clock_name",
];

static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
    let root = std::env::temp_dir().join(format!("sysfs_values.{}", std::process::id()));
    let create = |path: &str| {
        let path = root.join(path);
        path.parent().map(fs::create_dir_all).transpose().unwrap();
        path
    };
    for file in FILES {
        create(file);
    }
    for (link, target) in LINKS {
        symlink(Path::new(target), create(link)).unwrap();
    }
    root
});

fuzz_target!(|text: &str| {
    for file in FILES {
        fs::write(ROOT.join(file), text).unwrap();
    }
    let host = Host::open(&ROOT).unwrap();
    let _ = onload_host::devices::discover(&host, &Config::default());
    onload_host::watch::fuzz(text.as_bytes());
    // Vital product data is no text.
    let bytes: Vec<u8> = text.chars().map(|c| c as u8).collect();
    let _ = onload_host::discover::data_direct::find_uuid(&bytes);
});
