//! Pure functions that generate CDI specifications from an inventory: one for each class, and one for the pools of a
//! class. Bundles are built from these.

mod bundle;
mod edit_builder;
mod gpu;
mod hugepages;
mod installed_files;
mod moving;
mod nodes;
mod onload;
mod variable;

use std::collections::BTreeMap;

use anyhow::bail;
use onload_cdi::{ContainerEdits, Device, DeviceName, Problem, Spec, minimum_version, validate};
use onload_core::class::Class;
use onload_core::config::{CdiConfig, Config, Preload};
use onload_core::hook_arguments::{HookArguments, TakeArgument};
use onload_core::onload::PRELOAD_FILE;
use onload_lease::drain::DrainList;

use crate::devices::inventory::Inventory;
use crate::devices::{HostDevice, LOOPBACK};
use crate::discover::exclusion::Exclusion;
use crate::pools::NamedPool;
use crate::spec_name::SpecName;
use edit_builder::{ClassEdits, EditBuilder, new_device};
use variable::DeviceVariables;
pub use variable::parse_assignment;

pub use installed_files::{InstalledFiles, ONLOAD_SOCKET_DIR};

/// The specifications of a host. Classes without devices or without pools have none for these.
pub type GeneratedSpecs = BTreeMap<SpecName, Spec>;

pub fn generate(
    inventory: &Inventory,
    pools: &[NamedPool],
    config: &Config,
    installed: InstalledFiles,
) -> anyhow::Result<GeneratedSpecs> {
    let wants_file = config.cdi.preload == Preload::File && inventory.usable_onload().is_some();
    if wants_file && !installed.preload_file {
        bail!(
            "writing CDI specifications with preload = \"file\": {PRELOAD_FILE} is missing; \
             install the package onload-ctk, or set preload = \"env\""
        );
    }
    let builder = EditBuilder::new(config, installed);
    let edits_by_class: BTreeMap<Class, ClassEdits> = Class::ALL
        .into_iter()
        .filter_map(|class| Some((class, class_edits(class, inventory, pools, config, &builder)?)))
        .collect();
    let names = edits_by_class
        .iter()
        .flat_map(|(class, edits)| edits.devices.iter().map(|(name, _)| (*class, name.as_str())));
    let variables = DeviceVariables::new(names);
    let mut specs = GeneratedSpecs::new();
    for (class, class_edits) in edits_by_class {
        let pool_devices: BTreeMap<DeviceName, Device> = pools
            .iter()
            .filter(|pool| pool.class == class)
            .filter_map(|pool| pool_device(pool, &builder))
            .collect();
        if !pool_devices.is_empty() {
            let spec = build_spec(class, class_edits.common.clone(), pool_devices)?;
            specs.insert(SpecName::pools(class), spec);
        }
        let common = class_edits.common.clone();
        let mut devices = named_devices(class, class_edits, &variables);
        if class == Class::Rdma {
            gpu::add(&mut devices, &inventory.near_gpus, pools);
        }
        let spec = build_spec(class, common, devices)?;
        specs.insert(SpecName::devices(class), spec);
    }
    let (bundles, _) = bundle::generate_bundles(&specs, config, &inventory.drain);
    if !bundles.is_empty() {
        let spec = build_spec(Class::Bundle, ContainerEdits::default(), bundles)?;
        specs.insert(SpecName::devices(Class::Bundle), spec);
    }
    Ok(specs)
}

pub fn bundle_exclusions(
    specs: &GeneratedSpecs,
    config: &Config,
    drain: &DrainList,
) -> Vec<Exclusion> {
    bundle::generate_bundles(specs, config, drain).1
}

fn class_edits(
    class: Class,
    inventory: &Inventory,
    pools: &[NamedPool],
    config: &Config,
    builder: &EditBuilder<'_>,
) -> Option<ClassEdits> {
    // Only the hook can set up a virtual function.
    let devices: Vec<&HostDevice> = inventory
        .devices_of_class(class)
        .filter(|device| device.vf.is_none() || builder.installed.hook)
        .collect();
    let class_edits = match class {
        Class::Nic | Class::NicPlain | Class::NicNodes => {
            onload::class_edits(class, inventory, &devices, builder)
        }
        Class::Zf => onload::zf_class_edits(inventory, &devices, builder),
        Class::Profile => onload::profile_class_edits(inventory, &devices, builder),
        Class::Rdma if inventory.is_rdma_exclusive() => {
            moving::rdma_class_edits(inventory, &devices, builder)
        }
        Class::Hugepages => hugepages::class_edits(&devices, builder),
        Class::Netdev => moving::netdev_class_edits(&devices, pools, config, builder),
        _ => nodes::class_edits(class, &devices, builder),
    };
    (!class_edits.devices.is_empty()).then_some(class_edits)
}

/// Returns a pool as a device. `None` without the hook, which assigns the member.
fn pool_device(named_pool: &NamedPool, builder: &EditBuilder<'_>) -> Option<(DeviceName, Device)> {
    let take = TakeArgument { class: named_pool.class, pool: named_pool.name.clone(), count: 1 };
    let hooks = builder.hooks(&HookArguments { take: vec![take], ..HookArguments::default() });
    let edits = ContainerEdits { hooks, ..ContainerEdits::default() };
    let (name, mut device) = new_device(named_pool.name.clone(), edits);
    device.annotations = named_pool.pool.to_annotations();
    device.annotations.extend(named_pool.nearness.to_annotations());
    (!device.container_edits.hooks.is_empty()).then_some((name, device))
}

fn named_devices(
    class: Class,
    class_edits: ClassEdits,
    variables: &DeviceVariables,
) -> BTreeMap<DeviceName, Device> {
    let mut devices = BTreeMap::new();
    let mut members = Vec::new();
    for (name, mut edits) in class_edits.devices {
        let variable = variables.assignment(class, name.as_str());
        if name.as_str() != LOOPBACK {
            members.push(variable.clone());
        }
        edits.env.insert(0, variable);
        devices.extend([new_device(name, edits)]);
    }
    members.sort();
    let all = class_edits.all.filter(|_| !members.is_empty());
    if let (Some(mut all), Ok(name)) = (all, DeviceName::try_from("all")) {
        all.env.splice(0..0, members);
        devices.extend([new_device(name, all)]);
    }
    devices
}

/// Builds a specification of these devices with the common edits of the class. Pools need these too, since a member's
/// hook can no longer add some edits, such as variables.
fn build_spec(
    class: Class,
    common: ContainerEdits,
    devices: BTreeMap<DeviceName, Device>,
) -> anyhow::Result<Spec> {
    let mut spec = Spec {
        kind: class.cdi_kind(),
        container_edits: common,
        devices: devices.into_values().collect(),
        ..Spec::default()
    };
    spec.cdi_version = minimum_version(&spec).version.to_string();
    if let Err(problems) = validate(&spec) {
        // Only a bug in this program leads here.
        let sentences: Vec<String> =
            Vec::<Problem>::from(problems).iter().map(ToString::to_string).collect();
        let kind = class.cdi_kind();
        bail!("writing the CDI specification of {kind}: {}", sentences.join("; "));
    }
    Ok(spec)
}

pub fn warnings(
    specs: &GeneratedSpecs,
    pools: &[NamedPool],
    config: &CdiConfig,
    installed: InstalledFiles,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let has = |class| specs.contains_key(&SpecName::devices(class));
    if !installed.hook && specs.values().any(has_nodes) {
        let memlock = if Class::ALL.into_iter().any(|class| class.pins_memory() && has(class)) {
            ", RLIMIT_MEMLOCK is not raised for rdma and vfio"
        } else {
            ""
        };
        let pools = match pools {
            [] => "",
            _ => ", pools are omitted",
        };
        warnings.push(format!(
            "the hook {} is missing: device numbers are not verified when a container \
             starts{memlock}{pools}; install the onload-ctk package",
            config.hook_path.display(),
        ));
    }
    if has(Class::Nic) && config.preload == Preload::File {
        warnings.push(
            "with preload = \"file\" every process of a container sizes its descriptor table by \
             its hard limit, and with docker's default limit of 1073741816 it aborts: set \
             \"default-ulimits\": {\"nofile\": {\"Name\": \"nofile\", \"Soft\": 1048576, \"Hard\": \
             1048576}} in /etc/docker/daemon.json"
                .to_owned(),
        );
    }
    let mut with_socket = [Class::Nic, Class::NicPlain, Class::Zf].into_iter();
    if config.onload_socket && !installed.onload_socket && with_socket.any(has) {
        warnings.push(format!(
            "[cdi] onload-socket is set, but {ONLOAD_SOCKET_DIR} does not exist, so it is not \
             mounted; run \"mkdir {ONLOAD_SOCKET_DIR}\""
        ));
    }
    warnings
}

fn has_nodes(spec: &Spec) -> bool {
    !spec.container_edits.device_nodes.is_empty()
        || spec.devices.iter().any(|device| !device.container_edits.device_nodes.is_empty())
}
