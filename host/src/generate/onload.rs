//! The classes nic, nic-plain and nic-nodes: Onload for each accelerated interface; zf: TCPDirect for each interface that
//! it supports; and profile: the settings of an installed Onload profile.

use std::path::Path;
use std::sync::Arc;

use onload_cdi::{ContainerEdits, Mount};
use onload_core::class::Class;
use onload_core::config::Preload;
use onload_core::hook_arguments::HookArguments;
use onload_core::onload::{LIBRARY, ONLOAD_INTERFACES, PRELOAD_FILE, TCPDIRECT_ATTRIBUTES};

use super::edit_builder::{
    ClassEdits, DeviceEdits, EditBuilder, READ_WRITE, nodes_only, read_only,
};
use super::installed_files::ONLOAD_SOCKET_DIR;
use crate::devices::HostDevice;
use crate::devices::inventory::Inventory;
use crate::discover::node::OfferedNode;
use crate::discover::onload::Onload;

pub(super) fn class_edits(
    class: Class,
    inventory: &Inventory,
    devices: &[&HostDevice],
    builder: &EditBuilder<'_>,
) -> ClassEdits {
    let Some(onload) = inventory.usable_onload() else {
        return ClassEdits::default();
    };
    let entries = devices.iter().map(|device| device_edits(device, builder));
    ClassEdits {
        common: common_edits(class, onload, builder),
        devices: entries.collect(),
        all: Some(all_edits(devices, builder)),
    }
}

pub(super) fn zf_class_edits(
    inventory: &Inventory,
    devices: &[&HostDevice],
    builder: &EditBuilder<'_>,
) -> ClassEdits {
    let Some(tcpdirect) = &inventory.tcpdirect else {
        return ClassEdits::default();
    };
    // TCPDirect also opens /dev/onload, for its control plane and shared memory.
    let mut common = driver_node_edits(&tcpdirect.nodes, builder);
    common.mounts = builder.library_mounts(&tcpdirect.installation, tcpdirect.machine);
    common.mounts.extend(builder.tool_mounts(&tcpdirect.tools, "tcpdirect"));
    common.mounts.extend(socket_mount(builder));
    ClassEdits {
        common,
        devices: devices.iter().map(|nic| device_edits(nic, builder)).collect(),
        all: Some(all_edits(devices, builder)),
    }
}

pub(super) fn profile_class_edits(
    inventory: &Inventory,
    devices: &[&HostDevice],
    builder: &EditBuilder<'_>,
) -> ClassEdits {
    let onload = inventory.usable_onload();
    let entries = devices.iter().filter_map(|device| {
        let profile = onload?.profiles.get(device.read?)?;
        let settings = profile.settings.iter().map(|(name, value)| format!("{name}={value}"));
        let edits = ContainerEdits { env: settings.collect(), ..builder.leasing_edits(&[device]) };
        Some((device.name.clone(), edits))
    });
    ClassEdits { devices: entries.collect(), ..ClassEdits::default() }
}

/// Returns the edits of an interface: its lease and the variable that selects it. The rest is in the common edits.
fn device_edits(device: &HostDevice, builder: &EditBuilder<'_>) -> DeviceEdits {
    if device.is_loopback() {
        return (device.name.clone(), ContainerEdits::default());
    }
    let mut edits = builder.leasing_edits(&[device]);
    edits.env.extend(selection_variable(device, builder));
    (device.name.clone(), edits)
}

fn all_edits(devices: &[&HostDevice], builder: &EditBuilder<'_>) -> ContainerEdits {
    let nics = devices.iter().filter(|device| !device.is_loopback());
    builder.leasing_edits(&nics.copied().collect::<Vec<_>>())
}

/// Returns the variable that restricts programs to one interface, if the operator enabled it. An image for nic-nodes
/// has its own Onload and settings.
fn selection_variable(device: &HostDevice, builder: &EditBuilder<'_>) -> Option<String> {
    if !builder.config.select_interface {
        return None;
    }
    let interface = device.interfaces.first()?;
    match device.class {
        // The kernel allows no white space in the name (net/core/dev.c, `dev_valid_name`).
        Class::Nic | Class::NicPlain => Some(format!("{ONLOAD_INTERFACES}={interface}")),
        // The kernel allows a `;`, which would end the attribute.
        Class::Zf if !interface.contains(';') => {
            Some(format!("{TCPDIRECT_ATTRIBUTES}=interface={interface}"))
        }
        _ => None,
    }
}

/// Returns the nodes of Onload's drivers, which all devices of a class share, and the hook that checks them.
fn driver_node_edits(nodes: &[Arc<OfferedNode>], builder: &EditBuilder<'_>) -> ContainerEdits {
    let expectations = nodes.iter().flat_map(|node| builder.expectations(node));
    let device_nodes = nodes.iter().map(|node| builder.device_node(&node.node.path, READ_WRITE));
    ContainerEdits {
        hooks: builder
            .hooks(&HookArguments { expect: expectations.collect(), ..HookArguments::default() }),
        ..nodes_only(device_nodes.collect())
    }
}

fn common_edits(class: Class, onload: &Onload, builder: &EditBuilder<'_>) -> ContainerEdits {
    let mut edits = driver_node_edits(&onload.nodes, builder);
    if class != Class::NicNodes {
        edits.mounts = user_space_mounts(onload, builder);
        // If it is unset, libonload.so sizes a table by the hard limit of open files, which is 2^30 in docker.
        edits.env = vec![format!("EF_FDTABLE_SIZE={}", builder.config.fdtable_size)];
    }
    if class == Class::Nic {
        match builder.config.preload {
            Preload::Env => edits.env.push(format!("LD_PRELOAD={LIBRARY}")),
            Preload::File => {
                let preload = Path::new("/etc/ld.so.preload");
                edits.mounts.push(read_only(Path::new(PRELOAD_FILE), preload));
            }
            Preload::Off => {}
        }
    }
    edits
}

fn user_space_mounts(onload: &Onload, builder: &EditBuilder<'_>) -> Vec<Mount> {
    let mut mounts = Vec::new();
    if let Some(installation) = &onload.installation {
        mounts.extend(builder.library_mounts(installation, onload.machine));
    }
    mounts.extend(builder.tool_mounts(&onload.tools, "onload"));
    mounts.extend(profile_mount(onload, builder));
    mounts.extend(socket_mount(builder));
    mounts
}

/// Returns the mount of the directory with the socket of the controller for shared queues, for Onload and TCPDirect.
fn socket_mount(builder: &EditBuilder<'_>) -> Option<Mount> {
    let is_mounted = builder.config.onload_socket && builder.installed.onload_socket;
    is_mounted.then(|| Mount {
        host_path: ONLOAD_SOCKET_DIR.to_owned(),
        container_path: ONLOAD_SOCKET_DIR.to_owned(),
        options: ["rw", "nosuid", "nodev", "noexec", "bind"].map(str::to_owned).to_vec(),
        ..Mount::default()
    })
}

fn profile_mount(onload: &Onload, builder: &EditBuilder<'_>) -> Option<Mount> {
    let dir = onload.profile_dir.as_deref()?;
    let target = builder.config.container_profile_dir.as_deref().unwrap_or(dir);
    (!target.as_os_str().is_empty()).then(|| read_only(dir, target))
}
