//! The classes nic, nic-plain and nic-nodes: Onload for each accelerated interface.

use std::path::Path;
use std::sync::Arc;

use onload_cdi::{ContainerEdits, Mount};
use onload_core::class::Class;
use onload_core::config::Preload;
use onload_core::hook_arguments::HookArguments;
use onload_core::onload::{LIBRARY, ONLOAD_INTERFACES, PRELOAD_FILE, TCPDIRECT_ATTRIBUTES};

use super::edits::{READ_WRITE, Writer, nodes_only, read_only, text};
use super::offer::{Entry, Offer};
use super::surroundings::ONLOAD_SOCKET_DIR;
use crate::devices::Device;
use crate::devices::inventory::Inventory;
use crate::discover::node::DeviceNode;
use crate::discover::onload::Onload;

pub(super) fn offer(
    class: Class,
    inventory: &Inventory,
    devices: &[&Device],
    writer: &Writer<'_>,
) -> Offer {
    let Some(onload) = inventory.usable_onload() else {
        return Offer::default();
    };
    let entries = devices.iter().map(|device| entry(device, writer));
    Offer {
        common: common(class, onload, writer),
        devices: entries.collect(),
        all: Some(whole(devices, writer)),
    }
}

/// An interface: all of what is offered stands in the common edits, but its lease and what selects it.
pub(super) fn entry(device: &Device, writer: &Writer<'_>) -> Entry {
    if device.is_loopback() {
        return (device.name.clone(), ContainerEdits::default());
    }
    let mut edits = writer.leasing_edits(&[device]);
    edits.env.extend(selection(device, writer));
    (device.name.clone(), edits)
}

pub(super) fn whole(devices: &[&Device], writer: &Writer<'_>) -> ContainerEdits {
    let nics = devices.iter().filter(|device| !device.is_loopback());
    writer.leasing_edits(&nics.copied().collect::<Vec<_>>())
}

/// The variable by which programs use one interface alone, if the operator wants that. An image of
/// nic-nodes brings its own Onload, and its own settings.
fn selection(device: &Device, writer: &Writer<'_>) -> Option<String> {
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
pub(super) fn driver_nodes(nodes: &[Arc<DeviceNode>], writer: &Writer<'_>) -> ContainerEdits {
    let expectations = nodes.iter().flat_map(|of| writer.expectations(of));
    let given = nodes.iter();
    let given = given.map(|of| writer.node(&of.node.path, READ_WRITE));
    ContainerEdits {
        hooks: writer
            .hooks(&HookArguments { expect: expectations.collect(), ..HookArguments::default() }),
        ..nodes_only(given.collect())
    }
}

fn common(class: Class, onload: &Onload, writer: &Writer<'_>) -> ContainerEdits {
    let mut edits = driver_nodes(&onload.nodes, writer);
    if class != Class::NicNodes {
        edits.mounts = user_space(onload, writer);
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

fn user_space(onload: &Onload, writer: &Writer<'_>) -> Vec<Mount> {
    let installation = onload.installation.iter();
    let libraries = installation.flat_map(|from| writer.libraries(from, onload.machine));
    let mut mounts: Vec<Mount> = libraries.collect();
    mounts.extend(writer.tools(&onload.tools, "onload"));
    mounts.extend(profiles(onload, writer));
    mounts.extend(socket(writer));
    mounts
}

/// The directory in which programs find the controller of shared queues, Onload's and TCPDirect's alike.
pub(super) fn socket(writer: &Writer<'_>) -> Option<Mount> {
    let is_given = writer.config.onload_socket && writer.surroundings.onload_socket;
    is_given.then(|| Mount {
        host_path: ONLOAD_SOCKET_DIR.to_owned(),
        container_path: ONLOAD_SOCKET_DIR.to_owned(),
        options: ["rw", "nosuid", "nodev", "noexec", "bind"].map(str::to_owned).to_vec(),
        ..Mount::default()
    })
}

fn profiles(onload: &Onload, writer: &Writer<'_>) -> Option<Mount> {
    let dir = onload.profile_dir.as_deref()?;
    match writer.config.container_profile_dir.as_deref() {
        Some(place) if place.as_os_str().is_empty() => None,
        Some(place) => Some(read_only(dir, place)),
        None => Some(read_only(dir, Path::new(&text(dir)))),
    }
}
