//! NVIDIA's GDRCopy: the node through which programs map GPU memory. Up to version 2.6 its driver creates no sysfs
//! device, so the node's number comes from `/proc/devices`; a script of its packages creates the node.

use onload_core::class::Class;
use onload_core::expectation::ExpectedDevice;
use serde::Serialize;

use crate::discover::exclusion::Exclusion;
use crate::discover::node::NumberedNode;
use crate::discover::probe::Probe;

const NAME: &str = "gdrdrv";

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gdrcopy {
    /// The name of the driver and of its node.
    pub name: &'static str,
    pub version: Option<String>,
    #[serde(skip)]
    pub node: NumberedNode,
}

impl Gdrcopy {
    /// Returns the device that the node must refer to.
    pub(crate) fn expected() -> Option<ExpectedDevice> {
        ExpectedDevice::find_driver(Class::Gdrcopy.as_str(), NAME)
    }
}

pub(crate) fn read(probe: &Probe<'_>) -> Option<Gdrcopy> {
    let Some(ExpectedDevice::Driver(driver)) = Gdrcopy::expected() else {
        return None;
    };
    match NumberedNode::find_of_driver(probe, "/dev/gdrdrv", driver)? {
        Ok(node) => Some(Gdrcopy {
            name: NAME,
            version: probe.attribute("/sys/module/gdrdrv/version"),
            node,
        }),
        Err(reason) => {
            probe.exclude(Exclusion::new(Class::Gdrcopy, NAME, reason));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::test_tree::{AsHost, Tree};

    const LISTED: &str = "Character devices:\n  1 mem\n510 gdrdrv\n\nBlock devices:\n254 virtblk\n";

    fn discover_tree(tree: &Tree) -> (Option<Gdrcopy>, Vec<String>) {
        let host = tree.host();
        let probe = Probe::new(&host);
        let found = read(&probe);
        let reasons = probe.not_offered().into_iter().map(|entry| entry.reason);
        (found, reasons.collect())
    }

    fn refusal(tree: &Tree) -> String {
        let (found, reasons) = discover_tree(tree);
        assert_eq!(found, None);
        reasons.concat()
    }

    #[test]
    fn a_node_with_the_major_number_of_the_driver_is_offered() {
        let tree = Tree::new();
        tree.file("/proc/devices", LISTED);
        tree.file("/sys/module/gdrdrv/version", "2.6\n");
        tree.node("/dev/gdrdrv", 510, 0);
        let (found, reasons) = discover_tree(&tree);
        let found = found.unwrap();
        assert_eq!(found.version.as_deref(), Some("2.6"));
        assert_eq!(found.node.number.to_string(), "510:0");
        assert!(reasons.is_empty());
    }

    #[test]
    fn a_host_without_the_driver_has_nothing_to_say() {
        let tree = Tree::new();
        assert_eq!(discover_tree(&tree), (None, Vec::new()));
        tree.file("/proc/devices", "Character devices:\n  1 mem\n");
        assert_eq!(discover_tree(&tree), (None, Vec::new()));
    }

    #[test]
    fn a_driver_without_its_node_comes_with_the_command_that_makes_it() {
        let tree = Tree::new();
        tree.file("/proc/devices", LISTED);
        assert_eq!(
            refusal(&tree),
            "/dev/gdrdrv does not exist, although its driver created the device 510:0; run \"mknod \
             -m 666 /dev/gdrdrv c 510 0\""
        );
    }

    #[test]
    fn a_node_of_another_driver_is_not_offered() {
        for (major, minor) in [(511, 0), (510, 1)] {
            let tree = Tree::new();
            tree.file("/proc/devices", LISTED);
            tree.node("/dev/gdrdrv", major, minor);
            assert_eq!(
                refusal(&tree),
                format!(
                    "/dev/gdrdrv is {major}:{minor}, but the device is 510:0; remove the stale node"
                )
            );
        }
        let tree = Tree::new();
        tree.file("/proc/devices", LISTED);
        tree.block_node("/dev/gdrdrv", 510, 0);
        assert!(refusal(&tree).starts_with("/dev/gdrdrv is not a character device; "));
    }

    #[test]
    fn a_node_that_outlived_its_driver_is_not_offered() {
        let tree = Tree::new();
        tree.node("/dev/gdrdrv", 510, 0);
        let stale = "/dev/gdrdrv: no gdrdrv in /proc/devices to compare its number with; load \
                     its driver, or remove the stale node";
        assert_eq!(refusal(&tree), stale);
        tree.file("/proc/devices", "Character devices:\n510 other\n\nBlock devices:\n510 gdrdrv\n");
        assert_eq!(refusal(&tree), stale);
    }
}
