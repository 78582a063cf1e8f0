//! Checks the device nodes of a request on this host: each exists, is a character device, has the
//! number that its driver currently assigns, and belongs to the device that its specification was
//! written for.

use std::collections::BTreeMap;
use std::io;

use onload_cdi::DeviceNode;
use onload_cdi::oci::{HostNode, NodeKind, NodeLookup};
use onload_core::class::Class;
use onload_core::expectation::{Expectation, ExpectedDevice};
use onload_core::gpu_name;
use onload_sys::error::{Context, Result, bail, error};

use super::specs::{SpecEntry, expectations};
use super::sysfs::{DeviceNumber, Sysfs, is_rdma_node};

const REMEDY: &str = "; if the node in /dev was not created by its driver, remove it, then run \
    `systemctl start onload-cdi.service`";

/// The nodes as found, by their paths on the host, so that exactly what was checked is written.
pub(super) type FoundNodes = BTreeMap<String, HostNode>;

pub(super) fn check(
    entries: &[SpecEntry<'_>],
    host: &dyn NodeLookup,
    sysfs: &Sysfs,
) -> Result<FoundNodes> {
    let mut nodes = FoundNodes::default();
    for entry in entries {
        let check = NodeCheck { entry, host, sysfs };
        check.check_entry(&mut nodes).with_context(|| entry.origin.to_string())?;
    }
    Ok(nodes)
}

struct NodeCheck<'a> {
    entry: &'a SpecEntry<'a>,
    host: &'a dyn NodeLookup,
    sysfs: &'a Sysfs,
}

impl NodeCheck<'_> {
    fn check_entry(&self, nodes: &mut FoundNodes) -> Result<()> {
        let expected = expectations(&self.entry.resolved);
        let shared = &self.entry.resolved.spec.container_edits.device_nodes;
        let own_nodes = &self.entry.resolved.device.container_edits.device_nodes;
        for node in shared.iter().chain(own_nodes) {
            let host_node = self.inspect_node(node)?;
            nodes.insert(node.source().to_owned(), host_node);
            let node_expectations: Vec<&Expectation> =
                expected.iter().filter(|e| e.node == node.path).collect();
            for expect in &node_expectations {
                self.sysfs.check(expect, device_number(host_node), REMEDY)?;
            }
            if node_expectations.is_empty()
                && let Some(device) = self.expected_device(node)?
            {
                let expect = Expectation { node: node.path.clone(), device, number: None };
                self.sysfs.check(&expect, device_number(host_node), REMEDY)?;
            }
        }
        Ok(())
    }

    fn inspect_node(&self, node: &DeviceNode) -> Result<HostNode> {
        let path = node.source();
        let host_node = match self.host.node(path) {
            // podman takes a runtime that says "No such file or directory" for one that is missing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => bail!(
                "device node {path} does not exist; is the driver loaded? run `onload-ctk cdi generate`"
            ),
            Err(error) => bail!(
                "device node {path}: {error}; is the driver loaded? run `onload-ctk cdi generate`"
            ),
            Ok(host_node) => host_node,
        };
        if host_node.kind != NodeKind::Char {
            bail!("{path} is not a character device");
        }
        let kind = node.type_.as_deref().unwrap_or_default();
        let major = node.major.unwrap_or_default();
        let minor = node.minor.unwrap_or_default();
        let same_kind = matches!(kind, "" | "c" | "u");
        let same_numbers = (major, minor) == (host_node.major.into(), host_node.minor.into());
        if !same_kind || major != 0 && !same_numbers {
            bail!(
                "device node {path} is {}, but its specification has {kind} {major}:{minor}; \
                 remove type, major and minor from it",
                device_number(host_node)
            );
        }
        Ok(host_node)
    }

    /// The device that a node without an expectation belongs to: an entry is named after its device. The node of a driver
    /// or clock has the same name on every host, whatever its name in the container.
    fn expected_device(&self, node: &DeviceNode) -> Result<Option<ExpectedDevice>> {
        let name = node.path.rsplit('/').next().unwrap_or_default();
        let host_name = node.source().rsplit('/').next().unwrap_or_default();
        let class = self.entry.class;
        let device_name = self.entry.resolved.name.device.as_str();
        let unowned = || {
            error!(
                "the device of node {} is unknown: its specification has neither an --expect nor an entry named after the device; run `onload-ctk cdi generate`",
                node.path
            )
        };
        if let Some(device) = ExpectedDevice::find_driver_node(host_name) {
            return Ok(Some(device));
        }
        Ok(match class {
            Class::Rdma if is_rdma_node(name) => {
                if device_name == "all" || gpu_name::is_gpu_name(device_name) {
                    return Err(unowned());
                }
                let pci = self.sysfs.function_of(device_name);
                Some(ExpectedDevice::Rdma { ibdev: device_name.to_owned(), pci })
            }
            Class::Vfio => {
                let pci = device_name.parse().map_err(|_| unowned())?;
                Some(ExpectedDevice::Vfio { pci })
            }
            Class::Ptp | Class::Pps => {
                let pci = self.sysfs.function_of_clock(class.as_str(), host_name);
                ExpectedDevice::for_clock(class.as_str(), host_name, pci)
            }
            _ => None,
        })
    }
}

fn device_number(node: HostNode) -> DeviceNumber {
    DeviceNumber { major: node.major, minor: node.minor }
}
