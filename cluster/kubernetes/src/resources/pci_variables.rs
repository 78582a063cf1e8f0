//! The variables with a container's PCI functions, compatible with the SR-IOV network device plugin. DPDK programs read
//! `PCIDEVICE_<RESOURCE>`, others the JSON in `PCIDEVICE_<RESOURCE>_INFO`.

use std::collections::BTreeMap;

use onload_core::class::Class;
use onload_core::kubernetes_settings::ResourceName;
use onload_sys::pci::PciAddress;

use super::folded_names::{info_variable_name, variable_name};
use super::resource::PluginDevice;

/// A device for the variables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VariableDevice<'a> {
    pub(crate) class: Class,
    /// Its name in that class.
    pub(crate) name: &'a str,
    pub(crate) pci: Option<PciAddress>,
    /// The device nodes that a container gets with it, by their paths there.
    pub(crate) nodes: &'a [String],
}

impl<'a> From<&'a PluginDevice> for VariableDevice<'a> {
    fn from(device: &'a PluginDevice) -> Self {
        VariableDevice {
            class: device.class,
            name: &device.name,
            pci: device.pci,
            nodes: &device.nodes,
        }
    }
}

/// The information on a function by kind and key.
type FunctionInfo = BTreeMap<&'static str, BTreeMap<&'static str, String>>;

/// Returns the variables for these devices of a resource. Empty without a PCI function.
pub(crate) fn pci_variables<'a>(
    name: &ResourceName,
    devices: impl Iterator<Item = VariableDevice<'a>>,
) -> BTreeMap<String, String> {
    let mut functions: BTreeMap<String, FunctionInfo> = BTreeMap::new();
    for device in devices {
        let Some(address) = device.pci else { continue };
        functions.entry(address.to_string()).or_default().extend(function_info(device, address));
    }
    if functions.is_empty() {
        return BTreeMap::new();
    }
    let addresses: Vec<&str> = functions.keys().map(String::as_str).collect();
    // Cannot fail for maps of texts.
    let json = serde_json::to_string(&functions).unwrap_or_default();
    BTreeMap::from([(info_variable_name(name), json), (variable_name(name), addresses.join(","))])
}

fn function_info(device: VariableDevice<'_>, address: PciAddress) -> FunctionInfo {
    let mut info =
        FunctionInfo::from([("generic", BTreeMap::from([("deviceID", address.to_string())]))]);
    let mut keys = BTreeMap::new();
    match device.class {
        Class::Vfio => {
            let container = device.nodes.iter().find(|node| node.ends_with("/vfio/vfio"));
            keys.extend(container.map(|node| ("mount", node.clone())));
            // The node of an IOMMU group has a number as its name.
            let group = find_node(device.nodes, "/vfio/", "")
                .or_else(|| find_node(device.nodes, "", "noiommu-"));
            keys.extend(group.map(|node| ("dev-mount", node.clone())));
            info.insert("vfio", keys);
        }
        Class::Rdma => {
            for key in ["uverbs", "umad", "issm", "rdma_cm"] {
                keys.extend(find_node(device.nodes, "", key).map(|node| (key, node.clone())));
            }
            keys.insert("rdma_dev", device.name.to_owned());
            info.insert("rdma", keys);
        }
        _ => {}
    }
    info
}

/// Finds a node whose path contains `part`, and whose name is `prefix` with a number or without.
fn find_node<'n>(nodes: &'n [String], part: &str, prefix: &str) -> Option<&'n String> {
    nodes.iter().find(|node| {
        let name = node.rsplit('/').next().unwrap_or_default();
        let number = name.strip_prefix(prefix);
        node.contains(part)
            && number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

#[cfg(test)]
mod tests {
    use super::super::test_devices::{exclusive, shared};
    use super::*;

    fn device_variables(name: &str, devices: &[PluginDevice]) -> BTreeMap<String, String> {
        let name = name.to_owned().try_into().unwrap();
        pci_variables(&name, devices.iter().map(VariableDevice::from))
    }

    #[test]
    fn a_vfio_function_is_told_as_the_sriov_plugin_tells_it() {
        let device = exclusive("0000:81:10.0", Some("0000:81:10.0"));
        let variables = device_variables("onload.dev/vfio", &[device]);
        let info = r#"{"0000:81:10.0":{"generic":{"deviceID":"0000:81:10.0"},"vfio":{"dev-mount":"/dev/vfio/15","mount":"/dev/vfio/vfio"}}}"#;
        let wanted = [
            ("PCIDEVICE_ONLOAD_DEV_VFIO", "0000:81:10.0"),
            ("PCIDEVICE_ONLOAD_DEV_VFIO_INFO", info),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(variables, BTreeMap::from(wanted));
    }

    #[test]
    fn an_rdma_device_is_told_with_its_nodes_and_name() {
        let device = PluginDevice {
            class: Class::Rdma,
            nodes: ["rdma_cm", "uverbs3", "umad3"]
                .map(|node| format!("/dev/infiniband/{node}"))
                .to_vec(),
            ..exclusive("mlx5_0", Some("0000:3b:00.0"))
        };
        let variables = device_variables("rdma/hca_shared-devices", &[device]);
        assert_eq!(variables["PCIDEVICE_RDMA_HCA_SHARED_DEVICES"], "0000:3b:00.0");
        assert_eq!(
            variables["PCIDEVICE_RDMA_HCA_SHARED_DEVICES_INFO"],
            r#"{"0000:3b:00.0":{"generic":{"deviceID":"0000:3b:00.0"},"rdma":{"rdma_cm":"/dev/infiniband/rdma_cm","rdma_dev":"mlx5_0","umad":"/dev/infiniband/umad3","uverbs":"/dev/infiniband/uverbs3"}}}"#
        );
    }

    #[test]
    fn several_functions_stand_in_one_list_each_once() {
        let (a, b) = ("0000:81:10.2", "0000:81:02.0");
        let devices = [exclusive(a, Some(a)), exclusive(b, Some(b)), exclusive(a, Some(a))];
        let variables = device_variables("intel.com/sriov_dpdk", &devices);
        assert_eq!(variables["PCIDEVICE_INTEL_COM_SRIOV_DPDK"], "0000:81:02.0,0000:81:10.2");
    }

    #[test]
    fn a_device_without_a_function_is_not_told() {
        assert!(device_variables("onload.dev/nic", &[shared("ens1", 2)]).is_empty());
    }
}
