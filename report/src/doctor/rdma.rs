//! RDMA: which network namespaces see the devices, the connection manager, and libraries.

use std::path::Path;
use std::slice;

use onload_core::config::RdmaLibraries;
use onload_core::host_settings::RdmaNetns;
use onload_core::rdma_providers::{
    LIBIBVERBS, LIBRDMACM, LibraryMisfit, VerbsDevice, find_misfit, is_rdmacm_missing,
};
use onload_host::discover::netdev::is_down;
use onload_host::discover::rdma::{RdmaDevice, RdmaPort, ZERO_GUID};
use onload_sys::device_number::DeviceNumber;
use onload_sys::fs::trust::TrustedTree;
use onload_sys::text::quote_for_shell;

use super::check::{Finding, Remedy};
use super::context::{CheckContext, Findings, HostResult};
use super::distribution::Distribution;

const MODE: &str = "/sys/module/ib_core/parameters/netns_mode";
const CONNECTION_MANAGER: &str = "/dev/infiniband/rdma_cm";
const CONNECTION_MANAGER_CLASS: &str = "/sys/class/misc/rdma_cm";
/// The file for setting the mode at boot, which `host apply` names too.
const MODPROBE: &str = "/etc/modprobe.d/rdma-netns.conf";

/// Whether the mode of network namespaces is the configured one. In both modes containers can have devices.
pub(super) fn check_netns_mode(context: &CheckContext<'_>) -> Findings {
    let Some(mode) = context.inventory.rdma_netns_mode else { return Ok(Vec::new()) };
    let configured = context.config.host.rdma_netns.unwrap_or(mode);
    let described = match mode {
        RdmaNetns::Shared => "every network namespace sees the devices (shared)",
        RdmaNetns::Exclusive => {
            "each device is in one network namespace (exclusive) and can move into a container"
        }
    };
    let finding = if mode == configured {
        Finding::pass(described)
    } else {
        let (name, option) = match configured {
            RdmaNetns::Shared => ("shared", 1),
            RdmaNetns::Exclusive => ("exclusive", 0),
        };
        let text = format!(
            "{described}, but [host] rdma-netns is {name}; with other network namespaces it can \
             change only at a boot"
        );
        Finding::fail(text, Remedy::run("onload-ctk host apply"))
            .with_remedy(Remedy::write(MODPROBE, format!("options ib_core netns_mode={option}")))
    };
    Ok(vec![finding.with_path(MODE)])
}

/// Without it librdmacm finds no device.
pub(super) fn check_connection_manager(context: &CheckContext<'_>) -> Findings {
    // A device that is in a container has no nodes here.
    let mut devices = context.inventory.rdma.iter();
    let Some(device) = devices.find(|one| !one.nodes.is_empty() && one.has_connection_manager())
    else {
        return Ok(Vec::new());
    };
    let finding = match device.nodes.iter().find(|node| node.is_shared) {
        Some(manager) => Finding::pass(format!("{} is there", manager.node.path)),
        None => {
            let text = format!(
                "{CONNECTION_MANAGER} does not exist: programs that use librdmacm find no device"
            );
            let number: Option<DeviceNumber> = context
                .attribute(format!("{CONNECTION_MANAGER_CLASS}/dev"))?
                .and_then(|number| number.parse().ok());
            match number {
                // The module is loaded, so loading it again makes no node.
                Some(DeviceNumber { major, minor }) => {
                    let make = format!("mknod -m 666 {CONNECTION_MANAGER} c {major} {minor}");
                    let finding = Finding::fail(text, Remedy::run(make));
                    let is_stale = context.host.device_node(CONNECTION_MANAGER.as_ref())?.is_some();
                    let remove = Remedy::run(format!("rm {CONNECTION_MANAGER}"));
                    finding.with_first_remedy(is_stale.then_some(remove))
                }
                None => {
                    let finding = Finding::fail(text, Remedy::run("modprobe rdma_ucm"));
                    let keep = context.module_remedy("rdma_ucm")?;
                    keep.into_iter().fold(finding, Finding::with_remedy)
                }
            }
        }
    };
    Ok(vec![finding.with_path(CONNECTION_MANAGER_CLASS)])
}

/// Whether each device has an active port, unless it is in a container or waits for one.
pub(super) fn check_ports(context: &CheckContext<'_>) -> Findings {
    let mut has_ports = false;
    let mut findings = Vec::new();
    for device in &context.inventory.rdma {
        let Some(port) = device.ports.first() else { continue };
        has_ports = true;
        if let Some(trouble) = device.port_trouble() {
            findings.push(inactive_ports_finding(context, device, port, trouble)?);
        }
    }
    if findings.is_empty() && has_ports {
        let pass = Finding::pass("each device has an active port");
        findings.push(pass.with_path("/sys/class/infiniband"));
    }
    Ok(findings)
}

/// Which remedy there is depends on what the first port lacks: an interface that is up, a link, or a subnet manager, which
/// configures a port of InfiniBand whose link is up.
fn inactive_ports_finding(
    context: &CheckContext<'_>,
    device: &RdmaDevice,
    port: &RdmaPort,
    trouble: String,
) -> HostResult<Finding> {
    let ports = format!("/sys/class/infiniband/{}/ports", device.name);
    let has_link = port.state.as_deref().is_some_and(|state| state != "DOWN");
    let remedy = match port.netdevs.first() {
        Some(name) if port.link_layer.as_deref() == Some("Ethernet") => link_remedy(context, name)?,
        _ if has_link => {
            Remedy::run(format!("sminfo -C {} -P {}", quote_for_shell(&device.name), port.port))
        }
        _ => Remedy::run(format!("cat {ports}/{}/phys_state", port.port)),
    };
    let finding = Finding::warn(trouble, remedy);
    Ok(finding.with_subject(&device.name).with_path(ports))
}

/// Returns the remedy for an interface without a link. If it is up, its cable or the other end is at fault.
pub(super) fn link_remedy(context: &CheckContext<'_>, name: &str) -> HostResult<Remedy> {
    let flags = context.attribute(format!("/sys/class/net/{name}/flags"))?;
    let name = quote_for_shell(name);
    Ok(Remedy::run(match flags {
        Some(flags) if !is_down(&flags) => format!("ip -statistics link show dev {name}"),
        _ => format!("ip link set dev {name} up"),
    }))
}

/// Whether each device has a node GUID, and on InfiniBand its own.
pub(super) fn check_guids(context: &CheckContext<'_>) -> Findings {
    let devices = &context.inventory.rdma;
    let mut findings = Vec::new();
    for (index, device) in devices.iter().enumerate() {
        let zero = device.has_zero_guid().then(|| ZERO_GUID.to_owned());
        if let Some(fault) = zero.or_else(|| same_guid_fault(device, &devices[..index])) {
            findings.push(bad_guid_finding(context, device, fault));
        }
    }
    if findings.is_empty() && devices.iter().any(|device| device.node_guid.is_some()) {
        let pass = Finding::pass("each device has a node GUID");
        findings.push(pass.with_path("/sys/class/infiniband"));
    }
    Ok(findings)
}

/// Ethernet devices are left out, since drivers make their GUID of the MAC address, which the members of a bond share.
/// So are devices of the same function, such as `mlx5_0` and `smi1` of a ConnectX-8.
fn same_guid_fault(device: &RdmaDevice, others: &[RdmaDevice]) -> Option<String> {
    let guid = device.node_guid.as_ref().filter(|_| is_infiniband(device))?;
    let other = others.iter().find(|other| {
        other.node_guid.as_ref() == Some(guid)
            && other.pci_address != device.pci_address
            && is_infiniband(other)
    })?;
    Some(format!(
        "its node GUID is also that of {}: the subnet manager accepts only one of them in a subnet",
        other.name
    ))
}

fn is_infiniband(device: &RdmaDevice) -> bool {
    device.ports.iter().any(|port| port.link_layer.as_deref() == Some("InfiniBand"))
}

/// The physical function sets the identifiers of a virtual one, whose driver reads them when it binds: on Ethernet mlx5
/// makes the GUID of the MAC address (`mlx5_esw_set_vport_mac_locked`). Other adapters have theirs in the firmware.
fn bad_guid_finding(context: &CheckContext<'_>, device: &RdmaDevice, fault: String) -> Finding {
    let path = format!("/sys/class/infiniband/{}/node_guid", device.name);
    let mut remedies = virtual_guid_remedies(context, device).unwrap_or_default().into_iter();
    let finding = Finding::warn(
        fault,
        remedies.next().unwrap_or_else(|| {
            Remedy::install("firmware that has a GUID for this device", "the vendor of the card")
        }),
    );
    let finding = remedies.fold(finding, Finding::with_remedy);
    finding.with_subject(&device.name).with_path(path)
}

fn virtual_guid_remedies(context: &CheckContext<'_>, device: &RdmaDevice) -> Option<Vec<Remedy>> {
    let inventory = context.inventory;
    let function = inventory.functions.get(device.pci_address?)?;
    let (address, driver) = (function.address, function.driver.as_deref()?);
    let parent = inventory.functions.get(function.physical_function?)?;
    let mut indexes = parent.virtual_functions.iter();
    let (index, _) = indexes.find(|(_, child)| **child == address)?;
    // Not that of an RDMA device, which may be a bond or a subfunction's.
    let own_interfaces = format!("/sys/bus/pci/devices/{}/net", parent.address);
    let parent_interface = inventory
        .interfaces
        .iter()
        .filter(|one| one.pci() == Some(parent.address) && !one.is_representor())
        .filter(|one| context.exists(format!("{own_interfaces}/{}", one.name)).unwrap_or(false))
        .min_by_key(|one| one.port);
    let interface = quote_for_shell(&parent_interface?.name);
    let identifiers: &[&str] =
        if is_infiniband(device) { &["node_guid GUID", "port_guid GUID"] } else { &["mac MAC"] };
    let set = identifiers
        .iter()
        .map(|identifier| format!("ip link set dev {interface} vf {index} {identifier}"));
    let rebind = [
        format!("echo {address} > /sys/bus/pci/drivers/{driver}/unbind"),
        format!("echo {address} > /sys/bus/pci/drivers/{driver}/bind"),
    ];
    Some(set.chain(rebind).map(Remedy::run).collect())
}

/// Whether the host's provider libraries serve its devices, so that images without any can be given them.
pub(super) fn check_libraries(context: &CheckContext<'_>) -> Findings {
    // A capture has no libraries, and a host of musl none that images with glibc could load.
    let has_libraries = context.exists("/etc/ld.so.cache")?;
    if context.config.cdi.rdma_libraries != RdmaLibraries::Auto || !has_libraries {
        return Ok(Vec::new());
    }
    let distribution = Distribution::detect(context.host)?;
    let install =
        |library: &str| Remedy::run(distribution.install(distribution.package_for(library)));
    let sysfs = context.host.outside_path(Path::new("/sys"));
    let host = context.host.trusted();
    let findings =
        context.inventory.rdma.iter().filter(|device| !device.nodes.is_empty()).filter_map(
            |device| {
                let name = &device.name;
                let known = VerbsDevice::read(&sysfs, name)?;
                let result = match &host {
                    Ok(host) => library_finding(host, &known, &install)
                        .map_err(|error| format!("{error:#}")),
                    Err(error) => Err(error.to_string()),
                };
                let finding =
                    result.unwrap_or_else(|error| Finding::unknown(error, install(LIBIBVERBS)));
                Some(finding.with_subject(name))
            },
        );
    Ok(findings.collect())
}

/// Whether images can be given what they need for a device.
fn library_finding(
    host: &TrustedTree,
    device: &VerbsDevice,
    install: &dyn Fn(&str) -> Remedy,
) -> onload_sys::error::Result<Finding> {
    let driver_library = |suffix: &str| {
        let library =
            format!("the provider library that belongs to the driver {}{suffix}", device.driver);
        Remedy::install(library, "the source of the driver")
    };
    if !device.has_known_driver() {
        let finding = "could not determine which provider library its driver needs, so containers \
            get none of the host's";
        return Ok(Finding::unknown(finding, driver_library(" in the images")));
    }
    let devices = slice::from_ref(device);
    Ok(
        if let Some(LibraryMisfit { reason: why, is_present, .. }) =
            find_misfit(host, "the host", None, devices)?
        {
            Finding::warn(
                format!("{why}: only images with their own provider libraries can use it"),
                if is_present { driver_library("") } else { install(LIBIBVERBS) },
            )
        } else if is_rdmacm_missing(host, None)? {
            Finding::warn(
                format!(
                    "containers without RDMA libraries get the host's, which lack {LIBRDMACM}: \
                     programs that need it, such as rping, do not start"
                ),
                install(LIBRDMACM),
            )
        } else {
            Finding::pass("containers without provider libraries get the host's")
        },
    )
}
