//! Device nodes that an RDMA driver creates in addition to uverbs and that programs open
//! themselves.
//!
//! Among the drivers that rdma-core supports, only those of Omni-Path and TrueScale have one, for
//! PSM.

use onload_sys::text::parse_digits;

#[derive(Debug, PartialEq, Eq)]
pub struct CompanionNode {
    /// The driver of the PCI function, as sysfs shows it.
    pub driver: &'static str,
    /// The library that opens the node.
    pub library: &'static str,
    /// The directories of /sys/class that may list it.
    pub classes: &'static [&'static str],
    /// The kernel's name of the RDMA device, without its number.
    device: &'static str,
    /// The name of the node, without its number.
    node: &'static str,
    /// The number of the node of device 0.
    first: u32,
}

/// See `user_add` in drivers/infiniband/hw/hfi1/file_ops.c and `qib_user_add` in
/// drivers/infiniband/hw/qib/qib_file_ops.c.
static NODES: [CompanionNode; 2] = [
    CompanionNode {
        driver: "hfi1",
        library: "PSM2",
        classes: &["hfi1_user", "hfi1"],
        device: "hfi1_",
        node: "hfi1_",
        first: 0,
    },
    CompanionNode {
        driver: "ib_qib",
        library: "PSM",
        classes: &["ipath"],
        device: "qib",
        node: "ipath",
        first: 1,
    },
];

impl CompanionNode {
    pub fn find_by_driver(driver: &str) -> Option<&'static CompanionNode> {
        NODES.iter().find(|node| node.driver == driver)
    }

    /// Finds the kind of a node by its name, and the RDMA device that it belongs to.
    pub fn find_by_node(name: &str) -> Option<(&'static CompanionNode, String)> {
        NODES.iter().find_map(|node| {
            let number: u32 = parse_digits(name.strip_prefix(node.node)?)?;
            let unit = number.checked_sub(node.first)?;
            Some((node, format!("{}{unit}", node.device)))
        })
    }

    /// Returns the name of the node of an RDMA device. Returns `None` if the device was renamed,
    /// which does not rename the node.
    pub fn node_name(&self, ibdev: &str) -> Option<String> {
        let unit: u32 = parse_digits(ibdev.strip_prefix(self.device)?)?;
        Some(format!("{}{}", self.node, unit.checked_add(self.first)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_found_by_its_node_and_a_node_by_its_device() {
        for (driver, ibdev, name) in [
            ("hfi1", "hfi1_0", "hfi1_0"),
            ("hfi1", "hfi1_11", "hfi1_11"),
            ("ib_qib", "qib0", "ipath1"),
        ] {
            let node = CompanionNode::find_by_driver(driver).unwrap();
            assert_eq!(node.node_name(ibdev).as_deref(), Some(name));
            assert_eq!(CompanionNode::find_by_node(name), Some((node, ibdev.to_owned())));
        }
    }

    #[test]
    fn other_names_have_no_companion_node() {
        for name in ["hfi1", "hfi1_", "hfi1_x", "hfi1_-1", "ipath", "ipath0", "uverbs0", ""] {
            assert_eq!(CompanionNode::find_by_node(name), None, "{name}");
        }
        let hfi1 = CompanionNode::find_by_driver("hfi1").unwrap();
        for ibdev in ["opap94s0", "hfi1_", "hfi1_x", "mlx5_0"] {
            assert_eq!(hfi1.node_name(ibdev), None, "{ibdev}");
        }
        assert_eq!(CompanionNode::find_by_driver("mlx5_core"), None);
    }
}
