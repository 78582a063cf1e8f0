//! Device nodes. Sysfs is authoritative: it shows what the driver has. A node is offered only with that number, since
//! the hook of a container compares with sysfs too.

use std::path::Path;

use onload_core::expect::DriverNode;
use onload_sys::numbers::Numbers;

use crate::discover::probe::Probe;
use crate::host::DeviceKind;

const ANEW: &str = "remove it and load its driver anew";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node {
    pub path: String,
    pub major: u32,
    pub minor: u32,
}

impl Node {
    /// The node at `path` for the device whose sysfs directory is `device`. The error says why nothing can be offered.
    pub(crate) fn find(
        probe: &Probe<'_>,
        path: impl Into<String>,
        device: &Path,
    ) -> Result<Node, String> {
        Node::find_numbered(probe, path.into(), device, None)
    }

    /// The same for a misc device whose number the kernel reserves: its node is right before its driver is there,
    /// which opening it loads.
    pub(crate) fn find_reserved(
        probe: &Probe<'_>,
        path: &str,
        driver: &DriverNode,
    ) -> Result<Node, String> {
        let class = Path::new("/sys/class").join(driver.sysfs_class);
        Node::find_numbered(
            probe,
            path.to_owned(),
            &class.join(driver.name),
            driver.reserved,
        )
    }

    fn find_numbered(
        probe: &Probe<'_>,
        path: String,
        device: &Path,
        reserved: Option<Numbers>,
    ) -> Result<Node, String> {
        let attribute = device.join("dev");
        let number = probe.parsed(&attribute, parse_number, "a device number such as 10:196");
        let Some(node) = probe.device_node(&path) else {
            if let Some(reason) = probe.why_unread(probe.device_path(&path)) {
                return Err(format!("{path} is not known: {reason}"));
            }
            return Err(match (probe.entry(&path), number) {
                (None, Some((major, minor))) => format!(
                    "{path} does not exist, though its driver made the device {major}:{minor}; \
                     make it with mknod, or load the driver anew"
                ),
                (None, None) => format!("{path} does not exist; load its driver"),
                (Some(_), _) => format!("{path} is no device node; {ANEW}"),
            });
        };
        if node.kind != DeviceKind::Character {
            return Err(format!("{path} is no character device; {ANEW}"));
        }
        match number.or(reserved.map(|numbers| (numbers.major, numbers.minor))) {
            Some((major, minor)) if (major, minor) == (node.major, node.minor) => {
                Ok(Node { path, major, minor })
            }
            Some((major, minor)) => Err(format!(
                "{path} is {}:{}, but the device is {major}:{minor}; remove the stale node",
                node.major, node.minor
            )),
            None => Err(match probe.why_unread(&attribute) {
                Some(reason) => format!("the number of {path} is not known: {reason}"),
                None => format!(
                    "{path}: there is no {} to compare its number with; load its driver, or \
                     remove the stale node",
                    attribute.display()
                ),
            }),
        }
    }
}

/// Parses `major:minor`, the format of the kernel's `print_dev_t`.
fn parse_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(fuzzing)]
pub(super) fn fuzz(text: &str) {
    if let Some((major, minor)) = parse_number(text) {
        assert_eq!(
            parse_number(&format!("{major}:{minor}")),
            Some((major, minor))
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::test_tree::{AsHost, Tree};

    #[test]
    fn a_device_number_is_two_decimal_numbers() {
        assert_eq!(parse_number("231:192"), Some((231, 192)));
        for text in ["", "231", "231:", ":1", "a:b", "1:2:3"] {
            assert_eq!(parse_number(text), None, "{text}");
        }
    }

    #[test]
    fn a_node_is_taken_only_with_the_number_of_its_device() {
        let tree = Tree::new();
        tree.file("/sys/class/ptp/ptp0/dev", "247:0\n");
        tree.file("/sys/class/ptp/ptp1/dev", "247:1\n");
        tree.file("/sys/class/ptp/ptp3/dev", "247:3\n");
        tree.file("/dev/ptp2", "");
        tree.node("/dev/ptp0", 247, 0).node("/dev/ptp1", 247, 9);
        tree.block_node("/dev/ptp4", 8, 0);
        let host = tree.host();
        let probe = Probe::new(&host);
        let find = |name: &str| {
            let device = Path::new("/sys/class/ptp").join(name);
            Node::find(&probe, format!("/dev/{name}"), &device)
        };
        let refusal = |name: &str| find(name).unwrap_err();
        assert_eq!(find("ptp0").unwrap().minor, 0);
        assert_eq!(
            refusal("ptp1"),
            "/dev/ptp1 is 247:9, but the device is 247:1; remove the stale node"
        );
        assert_eq!(
            refusal("ptp2"),
            "/dev/ptp2 is no device node; remove it and load its driver anew"
        );
        assert_eq!(
            refusal("ptp3"),
            "/dev/ptp3 does not exist, though its driver made the device 247:3; make it with mknod, \
             or load the driver anew"
        );
        assert_eq!(refusal("ptp5"), "/dev/ptp5 does not exist; load its driver");
        assert_eq!(
            refusal("ptp4"),
            "/dev/ptp4 is no character device; remove it and load its driver anew"
        );
    }

    #[test]
    fn a_node_whose_number_cannot_be_compared_is_not_offered() {
        let tree = Tree::new();
        tree.node("/dev/ptp0", 247, 0);
        let host = tree.host();
        let probe = Probe::new(&host);
        assert_eq!(
            Node::find(&probe, "/dev/ptp0", Path::new("/sys/class/ptp/ptp0")).unwrap_err(),
            "/dev/ptp0: there is no /sys/class/ptp/ptp0/dev to compare its number with; load its \
             driver, or remove the stale node"
        );
    }
}
