//! The classes nic, nic-plain and nic-nodes: Onload for each accelerated interface.

use std::path::Path;
use std::sync::Arc;

use onload_cdi::{ContainerEdits, Mount};
use onload_core::class::Class;
use onload_core::config::Preload;
use onload_core::hook_arguments::HookArguments;
use onload_core::onload::{LIBRARY, ONLOAD_INTERFACES, PRELOAD_FILE, TCPDIRECT_ATTRIBUTES};

use super::class_edits::{ClassEdits, DeviceEdits};
use super::edit_builder::{EditBuilder, READ_WRITE, nodes_only, path_text, read_only};
use super::installed_files::ONLOAD_SOCKET_DIR;
use crate::devices::HostDevice;
use crate::devices::inventory::Inventory;
use crate::discover::node::OfferedNode;
use crate::discover::onload::Onload;

pub(super) fn class_edits(
    class: Class,
    inventory: &Inventory,
    devices: &[&HostDevice],
    writer: &EditBuilder<'_>,
) -> ClassEdits {
    let Some(onload) = inventory.usable_onload() else {
        return ClassEdits::default();
    };
    let entries = devices.iter().map(|device| device_edits(device, writer));
    ClassEdits {
        common: common_edits(class, onload, writer),
        devices: entries.collect(),
        all: Some(all_edits(devices, writer)),
    }
}

/// An interface: all of what is offered stands in the common edits, but its lease and what selects it.
pub(super) fn device_edits(device: &HostDevice, writer: &EditBuilder<'_>) -> DeviceEdits {
    if device.is_loopback() {
        return (device.name.clone(), ContainerEdits::default());
    }
    let mut edits = writer.leasing_edits(&[device]);
    edits.env.extend(selection_variable(device, writer));
    (device.name.clone(), edits)
}

pub(super) fn all_edits(devices: &[&HostDevice], writer: &EditBuilder<'_>) -> ContainerEdits {
    let nics = devices.iter().filter(|device| !device.is_loopback());
    writer.leasing_edits(&nics.copied().collect::<Vec<_>>())
}

/// The variable by which programs use one interface alone, if the operator wants that. An image of
/// nic-nodes brings its own Onload, and its own settings.
fn selection_variable(device: &HostDevice, writer: &EditBuilder<'_>) -> Option<String> {
    if !writer.config.select_interface {
        return None;
    }
    let interface = device.interfaces.first()?;
    match device.class {
        // The kernel allows no white space in the name (net/core/dev.c, `dev_valid_name`).
        Class::Nic | Class::NicPlain => Some(format!("{ONLOAD_INTERFACES}={interface}")),
        // It allows a `;`, which ends an attribute.
        Class::Zf if !interface.contains(';') => {
            Some(format!("{TCPDIRECT_ATTRIBUTES}=interface={interface}"))
        }
        _ => None,
    }
}

/// The nodes of Onload's drivers, which all devices of a class share, and the hook that checks them.
pub(super) fn driver_node_edits(
    nodes: &[Arc<OfferedNode>],
    writer: &EditBuilder<'_>,
) -> ContainerEdits {
    let expectations = nodes.iter().flat_map(|of| writer.expectations(of));
    let given = nodes.iter();
    let given = given.map(|of| writer.device_node(&of.node.path, READ_WRITE));
    ContainerEdits {
        hooks: writer
            .hooks(&HookArguments { expect: expectations.collect(), ..HookArguments::default() }),
        ..nodes_only(given.collect())
    }
}

fn common_edits(class: Class, onload: &Onload, writer: &EditBuilder<'_>) -> ContainerEdits {
    let mut edits = driver_node_edits(&onload.nodes, writer);
    if class != Class::NicNodes {
        edits.mounts = user_space_mounts(onload, writer);
        // Unset, libonload.so sizes a table by the hard limit of open files, and docker's is 2^30.
        edits.env = vec![format!("EF_FDTABLE_SIZE={}", writer.config.fdtable_size)];
    }
    if class == Class::Nic {
        match writer.config.preload {
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

fn user_space_mounts(onload: &Onload, writer: &EditBuilder<'_>) -> Vec<Mount> {
    let installation = onload.installation.iter();
    let libraries = installation.flat_map(|from| writer.library_mounts(from, onload.machine));
    let mut mounts: Vec<Mount> = libraries.collect();
    mounts.extend(writer.tool_mounts(&onload.tools, "onload"));
    mounts.extend(profile_mount(onload, writer));
    mounts.extend(socket_mount(writer));
    mounts
}

/// The directory in which programs find the controller of shared queues, Onload's and TCPDirect's alike.
pub(super) fn socket_mount(writer: &EditBuilder<'_>) -> Option<Mount> {
    let is_given = writer.config.onload_socket && writer.surroundings.onload_socket;
    is_given.then(|| Mount {
        host_path: ONLOAD_SOCKET_DIR.to_owned(),
        container_path: ONLOAD_SOCKET_DIR.to_owned(),
        options: ["rw", "nosuid", "nodev", "noexec", "bind"].map(str::to_owned).to_vec(),
        ..Mount::default()
    })
}

fn profile_mount(onload: &Onload, writer: &EditBuilder<'_>) -> Option<Mount> {
    let dir = onload.profile_dir.as_deref()?;
    match writer.config.container_profile_dir.as_deref() {
        Some(place) if place.as_os_str().is_empty() => None,
        Some(place) => Some(read_only(dir, place)),
        None => Some(read_only(dir, Path::new(&path_text(dir)))),
    }
}
