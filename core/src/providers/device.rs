//! What sysfs says of the RDMA devices that a container gets.

use std::fs::{self, DirEntry, File};
use std::io::{self, Read};
use std::path::Path;

/// Bytes of an attribute of sysfs; a page is the most that the kernel gives.
const MAX_ATTRIBUTE: u64 = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaDevice {
    /// For instance `mlx5_0`.
    pub name: String,
    /// The kernel driver: the name of its module, for instance `mlx5_core`, `mlx5_ib` or `rdma_rxe`, or of its
    /// provider, `mlx5` or `rxe`.
    pub driver: String,
    /// `/sys/class/infiniband_verbs/uverbsN/abi_version`.
    pub kernel_abi: Option<u32>,
}

impl RdmaDevice {
    /// As `sysfs`, the directory, shows it; `None` if there is no such device.
    pub fn read(sysfs: &Path, name: &str) -> Option<RdmaDevice> {
        let device = sysfs.join("class/infiniband").join(name);
        let driver = match fs::read_link(device.join("device/driver")) {
            // That of a sub-function is mlx5_core.sf.
            Ok(driver) => {
                let name = driver.file_name()?.to_str()?;
                name.split('.').next().unwrap_or(name).to_owned()
            }
            // One in software is on no bus. That of siw is an RNIC, that of rxe a CA
            // (Documentation/ABI/stable/sysfs-class-infiniband, `node_type`).
            Err(_) => match attribute(&device.join("node_type")).ok()?.split_once(':')? {
                ("4", _) => "siw".to_owned(),
                _ => "rxe".to_owned(),
            },
        };
        // On a bus, those of its function; else those of all devices.
        let of_function = device.join("device/infiniband_verbs");
        let of_all = || fs::read_dir(sysfs.join("class/infiniband_verbs"));
        let listed = fs::read_dir(of_function).or_else(|_| of_all());
        let mut nodes = listed.into_iter().flatten().filter_map(Result::ok);
        let is_own = |node: &DirEntry| {
            attribute(&node.path().join("ibdev")).is_ok_and(|owner| owner == name)
        };
        let node = nodes.find(is_own);
        let abi = node.and_then(|node| attribute(&node.path().join("abi_version")).ok());
        Some(RdmaDevice {
            name: name.to_owned(),
            driver,
            kernel_abi: abi.and_then(|abi| abi.parse().ok()),
        })
    }
}

fn attribute(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?
        .take(MAX_ATTRIBUTE)
        .read_to_string(&mut text)?;
    text.truncate(text.trim_end().len());
    Ok(text)
}
