//! RDMA devices of a container, as sysfs shows them.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::drivers::provider_name;

/// Maximum size of a sysfs attribute: a page.
const MAX_ATTRIBUTE: u64 = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsDevice {
    /// For instance `mlx5_0`.
    pub name: String,
    /// The kernel driver: the name of its module, for instance `mlx5_core`, `mlx5_ib` or
    /// `rdma_rxe`, or of its provider, `mlx5` or `rxe`.
    pub driver: String,
    /// `/sys/class/infiniband_verbs/uverbsN/abi_version`.
    pub kernel_abi: Option<u32>,
}

impl VerbsDevice {
    /// Returns whether the provider library of the driver is known.
    pub fn has_known_driver(&self) -> bool {
        provider_name(&self.driver).is_some()
    }

    /// Reads a device below the directory `sysfs`. Returns `None` if there is no such device.
    ///
    /// A device in another network namespace is missing in the class `infiniband`, but its node is
    /// in the class `infiniband_verbs`, below the same function (`ib_class` and `uverbs_class`,
    /// drivers/infiniband/core).
    pub fn read(sysfs: &Path, name: &str) -> Option<VerbsDevice> {
        let device = sysfs.join("class/infiniband").join(name);
        let node = find_node(sysfs, &device, name);
        let driver_link = |path: &Path| fs::read_link(path.join("device/driver")).ok();
        let driver = match driver_link(&device).or_else(|| driver_link(node.as_ref()?)) {
            // The driver of a subfunction is mlx5_core.sf.
            Some(driver) => {
                let name = driver.file_name()?.to_str()?;
                name.split('.').next().unwrap_or(name).to_owned()
            }
            // A software device is on no bus. siw's is an RNIC, rxe's a CA
            // (Documentation/ABI/stable/sysfs-class-infiniband, `node_type`).
            None => match read_attribute(&device.join("node_type")).ok()?.split_once(':')? {
                ("4", _) => "siw".to_owned(),
                _ => "rxe".to_owned(),
            },
        };
        Some(VerbsDevice {
            name: name.to_owned(),
            driver,
            kernel_abi: node
                .and_then(|node| read_attribute(&node.join("abi_version")).ok()?.parse().ok()),
        })
    }
}

/// Finds the directory of a device's node: among the nodes of its function if it is on a bus, or
/// else among all nodes.
fn find_node(sysfs: &Path, device: &Path, name: &str) -> Option<PathBuf> {
    fs::read_dir(device.join("device/infiniband_verbs"))
        .or_else(|_| fs::read_dir(sysfs.join("class/infiniband_verbs")))
        .ok()?
        .filter_map(|node| Some(node.ok()?.path()))
        .find(|node| read_attribute(&node.join("ibdev")).is_ok_and(|owner| owner == name))
}

fn read_attribute(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_ATTRIBUTE).read_to_string(&mut text)?;
    text.truncate(text.trim_end().len());
    Ok(text)
}

#[cfg(test)]
mod tests {
    use onload_test_tree::Tree;

    use super::*;

    fn read(tree: &Tree, name: &str) -> Option<(String, Option<u32>)> {
        let device = VerbsDevice::read(&tree.path("/sys"), name)?;
        Some((device.driver, device.kernel_abi))
    }

    #[test]
    fn a_device_in_another_network_namespace_is_found_by_its_node() {
        let tree = Tree::new();
        let function = "/sys/devices/pci0000:3a/0000:3b:00.3";
        tree.bind(function, "mlx5_core");
        let attributes = [("ibdev", "mlx5_3"), ("abi_version", "1")];
        tree.class_device("infiniband_verbs", function, "uverbs7", &attributes);
        let expected = Some(("mlx5_core".to_owned(), Some(1)));
        assert_eq!(read(&tree, "mlx5_3"), expected);
        assert_eq!(read(&tree, "mlx5_4"), None);
        // The device's own namespace shows it in the class too.
        tree.class_device("infiniband", function, "mlx5_3", &[("node_type", "1: CA")]);
        assert_eq!(read(&tree, "mlx5_3"), expected);
    }

    #[test]
    fn a_software_device_is_recognized_by_its_node_type() {
        let tree = Tree::new();
        for (name, kind, driver) in [("rxe0", "1: CA", "rxe"), ("siw0", "4: RNIC", "siw")] {
            tree.attribute(&format!("/sys/class/infiniband/{name}/node_type"), kind);
            assert_eq!(read(&tree, name), Some((driver.to_owned(), None)));
        }
    }
}
