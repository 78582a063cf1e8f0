//! The nodes for a virtual interface in addition to a vfio device: vhost-net and tun. DPDK's virtio-user needs both,
//! its tap driver the second.

use std::sync::Arc;

use onload_core::config::CdiConfig;
use onload_core::expectation::ExpectedDevice;

use crate::discover::node::{NumberedNode, OfferedNode};
use crate::discover::probe::Probe;

const NODES: [&str; 2] = ["/dev/vhost-net", "/dev/net/tun"];

pub(crate) fn read(probe: &Probe<'_>, cdi: &CdiConfig) -> Vec<Arc<OfferedNode>> {
    let nodes = NODES.iter().filter(|_| cdi.vhost_net).filter_map(|path| {
        let name = path.rsplit('/').next()?;
        let Some(ExpectedDevice::Driver(driver)) = ExpectedDevice::find_driver_node(name) else {
            return None;
        };
        let node = NumberedNode::find_of_driver(probe, path, driver)?;
        node.map_err(|reason| {
            probe.warn(format!(
                "[cdi] vhost-net is set, but vfio devices come without {path}: {reason}"
            ));
        })
        .ok()
    });
    nodes.map(OfferedNode::shared).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::test_tree::{AsHost, Tree};

    fn read_on(tree: &Tree) -> (Vec<String>, Vec<String>) {
        let host = tree.host();
        let probe = Probe::new(&host);
        let cdi = CdiConfig { vhost_net: true, ..CdiConfig::default() };
        let nodes =
            read(&probe, &cdi).into_iter().map(|offered| offered.node.path.clone()).collect();
        (nodes, probe.warnings())
    }

    #[test]
    fn the_nodes_are_right_before_their_modules_are_loaded_and_afterwards() {
        let tree = Tree::new();
        tree.node("/dev/vhost-net", 10, 238).node("/dev/net/tun", 10, 200);
        let wanted = (NODES.map(str::to_owned).to_vec(), Vec::new());
        assert_eq!(read_on(&tree), wanted);
        tree.file("/sys/class/misc/vhost-net/dev", "10:238\n");
        tree.file("/sys/class/misc/tun/dev", "10:200\n");
        assert_eq!(read_on(&tree), wanted);
    }

    #[test]
    fn nobody_looks_for_them_unless_the_operator_wants_them() {
        let tree = Tree::new();
        let host = tree.host();
        let probe = Probe::new(&host);
        assert_eq!(read(&probe, &CdiConfig::default()), []);
        assert_eq!(probe.warnings(), [""; 0]);
    }

    #[test]
    fn what_is_missing_or_is_another_device_is_left_out_with_the_reason() {
        let refused = |tree: &Tree, reason: &str| {
            let (nodes, warnings) = read_on(tree);
            assert_eq!(nodes, ["/dev/net/tun"]);
            let start = "[cdi] vhost-net is set, but vfio devices come without /dev/vhost-net: ";
            assert_eq!(warnings, [format!("{start}{reason}")]);
        };
        let with_tun = || {
            let tree = Tree::new();
            tree.node("/dev/net/tun", 10, 200);
            tree
        };
        refused(&with_tun(), "/dev/vhost-net does not exist; load its driver");
        let tree = with_tun();
        tree.node("/dev/vhost-net", 10, 241);
        refused(&tree, "/dev/vhost-net is 10:241, but the device is 10:238; remove the stale node");
        let tree = with_tun();
        tree.block_node("/dev/vhost-net", 10, 238);
        refused(&tree, "/dev/vhost-net is not a character device; remove it and reload its driver");
        let tree = with_tun();
        tree.file("/dev/vhost-net", "");
        refused(&tree, "/dev/vhost-net is not a device node; remove it and reload its driver");
    }
}
