//! Device nodes. The driver's number in sysfs is authoritative: a node is offered only with this number, since the hook
//! compares it with sysfs too.

use std::path::Path;
use std::sync::Arc;

use onload_cdi::oci::NodeKind;
use onload_core::expectation::{DriverNode, ExpectedDevice, NumberSource};
use onload_sys::device_number::DeviceNumber;
use serde::Serializer;

use crate::discover::probe::Probe;

const PROC_DEVICES: &str = "/proc/devices";
const MAKE: &str = "create it with mknod, or reload the driver";
const RELOAD_REMEDY: &str = "remove it and reload its driver";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NumberedNode {
    pub path: String,
    pub number: DeviceNumber,
}

/// An offered node. Thousands of devices may share one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedNode {
    pub node: NumberedNode,
    /// The devices that the node must belong to.
    pub expected: Vec<ExpectedDevice>,
    /// Whether the host has a single one for all devices.
    pub is_shared: bool,
}

impl OfferedNode {
    pub(crate) fn exclusive(node: NumberedNode, expected: Vec<ExpectedDevice>) -> Arc<Self> {
        Arc::new(OfferedNode { node, expected, is_shared: false })
    }

    /// Creates a node that exists once per host.
    pub(crate) fn shared(node: NumberedNode) -> Arc<Self> {
        Arc::new(OfferedNode {
            expected: ExpectedDevice::find_driver_node(node.name()).into_iter().collect(),
            node,
            is_shared: true,
        })
    }
}

pub(crate) fn serialize_paths<S: Serializer>(
    nodes: &[Arc<OfferedNode>],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(nodes.iter().map(|node| &node.node.path))
}

impl NumberedNode {
    /// Returns the file name.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// Returns the node at `path` for the device whose sysfs directory is `device`. Fails if it cannot be offered.
    pub(crate) fn find(
        probe: &Probe<'_>,
        path: impl Into<String>,
        device: &Path,
    ) -> Result<NumberedNode, String> {
        NumberedNode::find_in_sysfs(probe, path.into(), device, None)
    }

    /// Returns the node at `path` that exists once per host. `None` if neither the driver nor the node exists.
    pub(crate) fn find_of_driver(
        probe: &Probe<'_>,
        path: &str,
        driver: &DriverNode,
    ) -> Option<Result<NumberedNode, String>> {
        match driver.source {
            NumberSource::Sysfs { class, reserved } => {
                let device = Path::new("/sys/class").join(class).join(driver.name);
                Some(NumberedNode::find_in_sysfs(probe, path.to_owned(), &device, reserved))
            }
            NumberSource::ProcDevices => {
                let source = Path::new(PROC_DEVICES);
                let devices = probe.ok_or_warn(probe.host().text(source));
                let number = devices
                    .and_then(|text| DeviceNumber::find_character_driver(&text, driver.name));
                let make = match number {
                    Some(DeviceNumber { major, minor }) => {
                        format!("run \"mknod -m 666 {path} c {major} {minor}\"")
                    }
                    None => probe.device_node(path).map(|_| String::new())?,
                };
                let what = format!("{} in {PROC_DEVICES}", driver.name);
                Some(NumberedNode::check(
                    probe,
                    path.to_owned(),
                    number,
                    None,
                    source,
                    &what,
                    &make,
                ))
            }
        }
    }

    fn find_in_sysfs(
        probe: &Probe<'_>,
        path: String,
        device: &Path,
        reserved: Option<DeviceNumber>,
    ) -> Result<NumberedNode, String> {
        let attribute = device.join("dev");
        let number = probe.read_parsed(
            &attribute,
            |text| text.parse().ok(),
            "a device number such as 10:196",
        );
        let what = attribute.display().to_string();
        NumberedNode::check(probe, path, number, reserved, &attribute, &what, MAKE)
    }

    /// Compares a node with the number that its driver reports in `source`.
    fn check(
        probe: &Probe<'_>,
        path: String,
        number: Option<DeviceNumber>,
        reserved: Option<DeviceNumber>,
        source: &Path,
        what: &str,
        make: &str,
    ) -> Result<NumberedNode, String> {
        let actual = check_character_node(probe, &path, number, make)?;
        let Some(number) = number.or(reserved) else {
            return Err(match probe.unread_reason(source) {
                Some(reason) => format!("could not determine the number of {path}: {reason}"),
                None => format!(
                    "{path}: no {what} to compare its number with; load its driver, or remove the \
                     stale node"
                ),
            });
        };
        if actual != number {
            return Err(format!(
                "{path} is {actual}, but the device is {number}; remove the stale node"
            ));
        }
        Ok(NumberedNode { path, number })
    }
}

/// Returns the number of a node. Fails if it does not exist or is not a character device.
fn check_character_node(
    probe: &Probe<'_>,
    path: &str,
    number: Option<DeviceNumber>,
    make: &str,
) -> Result<DeviceNumber, String> {
    let Some(node) = probe.device_node(path) else {
        if let Some(reason) = probe.unread_reason(probe.device_path(path)) {
            return Err(format!("could not determine whether {path} exists: {reason}"));
        }
        return Err(match (probe.entry(path), number) {
            (None, Some(number)) => {
                format!(
                    "{path} does not exist, although its driver created the device {number}; \
                     {make}"
                )
            }
            (None, None) => format!("{path} does not exist; load its driver"),
            (Some(_), _) => format!("{path} is not a character device; {RELOAD_REMEDY}"),
        });
    };
    if node.kind != NodeKind::Char {
        return Err(format!("{path} is not a character device; {RELOAD_REMEDY}"));
    }
    let (major, minor) = (node.major, node.minor);
    Ok(DeviceNumber { major, minor })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::test_tree::{AsHost, Tree};

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
            NumberedNode::find(&probe, format!("/dev/{name}"), &device)
        };
        let refusal = |name: &str| find(name).unwrap_err();
        assert_eq!(find("ptp0").unwrap().number.minor, 0);
        assert_eq!(
            refusal("ptp1"),
            "/dev/ptp1 is 247:9, but the device is 247:1; remove the stale node"
        );
        assert_eq!(
            refusal("ptp2"),
            "/dev/ptp2 is not a character device; remove it and reload its driver"
        );
        assert_eq!(
            refusal("ptp3"),
            "/dev/ptp3 does not exist, although its driver created the device 247:3; create it \
             with mknod, or reload the driver"
        );
        assert_eq!(refusal("ptp5"), "/dev/ptp5 does not exist; load its driver");
        assert_eq!(
            refusal("ptp4"),
            "/dev/ptp4 is not a character device; remove it and reload its driver"
        );
    }

    #[test]
    fn a_node_whose_number_cannot_be_compared_is_not_offered() {
        let tree = Tree::new();
        tree.node("/dev/ptp0", 247, 0);
        let host = tree.host();
        let probe = Probe::new(&host);
        assert_eq!(
            NumberedNode::find(&probe, "/dev/ptp0", Path::new("/sys/class/ptp/ptp0")).unwrap_err(),
            "/dev/ptp0: no /sys/class/ptp/ptp0/dev to compare its number with; load its driver, or \
             remove the stale node"
        );
    }
}
