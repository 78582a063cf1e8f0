//! Decides which CDI devices, leases, variables and metadata a claim's containers receive. Does no I/O: all input is in
//! [`PrepareContext`] and the allocation.

mod interface;
mod network_data;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, anyhow, bail};
use onload_cdi::DeviceName;
use onload_core::claim_uid::ClaimUid;
use onload_core::class::Class;
use onload_core::device_id::DeviceId;
use onload_core::kubernetes_settings::ResourceName;
use onload_host::offers::{Health, HostDevice, Sharing};
use onload_sys::text::{Quoted, ShortList};

use super::allocation::AllocatedDevice;
use super::claim_spec::{ClaimDevice, VariablesByRequest, cdi_device_name, cdi_request_name};
use super::metadata::DeviceMetadata;
use super::parameters::misplaced_error;
use crate::dra::slices::parent_pf;
use crate::names::{NodeName, device_label, find_device};
use crate::resources::{VariableDevice, pci_variables};
use crate::snapshot::KubernetesSnapshot;
use crate::wire::dra::Device;

#[derive(Clone, Copy, Debug)]
pub(crate) struct PrepareContext<'a> {
    pub(crate) node: &'a NodeName,
    pub(crate) snapshot: &'a KubernetesSnapshot,
    /// The qualified names of all CDI devices in the specifications on disk.
    pub(crate) specs: &'a BTreeSet<String>,
}

/// The answer to kubelet, and the content of the files that are written before the answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PrepareDecision {
    /// The devices in the answer.
    pub(crate) devices: Vec<Device>,
    /// The devices that the claim's hooks lease.
    pub(crate) leased: Vec<ClaimDevice>,
    /// Devices that other claims and containers must not have: the physical function of a leased virtual function, and
    /// the virtual functions of a leased physical function.
    pub(crate) other_functions: Vec<ClaimDevice>,
    /// Variables for containers that requested extended resources.
    pub(crate) variables: VariablesByRequest,
    pub(crate) metadata: Vec<DeviceMetadata>,
}

/// Decides for all devices of an allocation. Fails if one of them cannot be provided.
pub(crate) fn decide(
    all: Vec<AllocatedDevice>,
    uid: &ClaimUid,
    context: PrepareContext<'_>,
) -> Result<PrepareDecision> {
    let mut decision = PrepareDecision {
        variables: context.device_variables(&all)?,
        ..PrepareDecision::default()
    };
    for allocated in all {
        let ids = context.add_device(&allocated, uid, &mut decision);
        let mut cdi_device_ids = ids.with_context(|| describe_request(&allocated.request))?;
        cdi_device_ids.push(cdi_request_name(uid, &allocated.request));
        decision.devices.push(Device {
            request_names: vec![allocated.request],
            pool_name: allocated.pool,
            device_name: allocated.device,
            cdi_device_ids,
            share_id: allocated.share_id,
        });
    }
    Ok(decision)
}

fn describe_request(request: &str) -> String {
    format!("request {}", Quoted(request))
}

impl PrepareContext<'_> {
    /// Adds the leases and metadata of a device to the decision. Returns the ids of the CDI devices that provide it.
    fn add_device(
        &self,
        allocated: &AllocatedDevice,
        uid: &ClaimUid,
        decision: &mut PrepareDecision,
    ) -> Result<Vec<String>> {
        let device = self.find_device(allocated)?;
        let class = effective_class(device, allocated)?;
        let profile = profile_name(device, allocated)?;
        let pod_interface = interface::pod_interface(self.snapshot, device, allocated)?;
        let is_leased = self.snapshot.lease_hooks.contains_key(&class);
        decision.metadata.push(self.describe(allocated, device));
        if allocated.is_admin && (is_leased || device.sharing == Sharing::Exclusive) {
            // With admin access a claim does not reserve the device, so it receives no CDI devices. This is also true
            // for an exclusive device that no hook leases.
            return Ok(Vec::new());
        }
        let names = self.cdi_devices(device, class)?;
        let mut claim_devices: Vec<ClaimDevice> = names
            .iter()
            .map(|name| claim_device(&allocated.request, device, class, name))
            .collect();
        for entry in &mut claim_devices {
            let vf = interface::vf_config(self.snapshot, &entry.device, is_leased, allocated)?;
            // An interface has only one CDI device, so its settings are applied once.
            entry.interface.clone_from(&pod_interface);
            // The claim's hook applies these settings only if the claim or its class has parameters for them. Otherwise
            // they are only the operator's, and the device's own hook applies them.
            let is_set = pod_interface.is_some() || allocated.parameters.vlan.is_some();
            entry.vf = vf.filter(|_| is_set);
        }
        let is_set_up = claim_devices.iter().any(|entry| entry.vf.is_some());
        let profile = self.profile_device(profile)?;
        let mut ids = Vec::new();
        if is_leased {
            interface::refuse_twice(&decision.leased, &claim_devices)?;
            // The claim's hook must run before the device's own hook, which then finds that the container already has
            // the device.
            ids.extend(claim_devices.iter().map(|entry| cdi_device_name(uid, &entry.device)));
            decision.leased.extend(claim_devices);
            let family = self.excluded_functions(&allocated.request, device);
            decision.other_functions.extend(family);
        }
        // Omits an interface's own CDI device if the claim's hook sets up the function: it contains only a hook, which
        // would require the operator's settings instead. Keeps that of a vfio function: it provides the device nodes,
        // and its hook leaves the claim's settings unchanged.
        if !(is_set_up && class == Class::Netdev) {
            ids.extend(names.iter().map(|name| qualified_name(class, name)));
        }
        ids.extend(profile);
        Ok(ids)
    }

    /// Returns the functions that must not be in use at the same time as a vfio function, since they may share its
    /// hardware: its physical function, or its virtual functions.
    fn excluded_functions(&self, request: &str, device: &HostDevice) -> Vec<ClaimDevice> {
        let is_of = |child: &HostDevice, parent: &HostDevice| {
            parent.pci.is_some() && parent_pf(child) == parent.pci
        };
        let all: BTreeSet<DeviceName> = self
            .snapshot
            .devices
            .iter()
            .filter(|other| device.class.is_iommu_group() && other.class == device.class)
            .filter(|other| is_of(other, device) || is_of(device, other))
            .flat_map(|other| cdi_device_names(other).chain([other.name.clone()]))
            .collect();
        all.iter()
            .map(|name| ClaimDevice {
                max_holders: 1,
                ..claim_device(request, device, device.class, name)
            })
            .collect()
    }

    fn find_device(&self, allocated: &AllocatedDevice) -> Result<&HostDevice> {
        let (pool, device) = (&allocated.pool, &allocated.device);
        let devices = &self.snapshot.devices;
        let host_device = find_device(devices, self.node, pool, device);
        host_device.ok_or_else(|| {
            let quoted = Quoted(device);
            match self.exclusion_reason(pool, device) {
                Some(reason) => anyhow!("device {quoted} is not offered: {reason}"),
                None => anyhow!(
                    "this node has no device {quoted} in pool {}; delete the pod, so that its \
                     claim is allocated again",
                    Quoted(pool)
                ),
            }
        })
    }

    /// Returns the variables that a device plugin sets, for each request of an extended resource.
    fn device_variables(&self, devices: &[AllocatedDevice]) -> Result<VariablesByRequest> {
        let mut requests: BTreeMap<&str, (&ResourceName, Vec<&HostDevice>)> = BTreeMap::new();
        for allocated in devices {
            let Some(resource) = &allocated.resource else {
                continue;
            };
            let device = self
                .find_device(allocated)
                .with_context(|| describe_request(&allocated.request))?;
            let request = requests.entry(&allocated.request);
            request.or_insert((resource, Vec::new())).1.push(device);
        }
        let by_request = requests.into_iter().map(|(request, (resource, request_devices))| {
            let functions = request_devices.into_iter().map(|device| self.variable_device(device));
            (request.to_owned(), pci_variables(resource, functions))
        });
        Ok(by_request.filter(|(_, variables)| !variables.is_empty()).collect())
    }

    fn variable_device<'o>(&'o self, device: &'o HostDevice) -> VariableDevice<'o> {
        let nodes = self.snapshot.nodes.get(&(device.class, device.name.clone()));
        VariableDevice {
            class: device.class,
            name: device.name.as_str(),
            pci: device.pci,
            nodes: nodes.map_or(&[], Vec::as_slice),
        }
    }

    /// Returns why discovery excluded the device with this name, or `None` if it excluded no such device.
    fn exclusion_reason(&self, pool: &str, device: &str) -> Option<String> {
        let class = self.node.parse_pool(pool)?;
        for exclusion in &self.snapshot.exclusions {
            if exclusion.kind == class.into()
                && let Ok(name) = DeviceName::try_from(exclusion.name.as_str())
                && device_label(&name, None) == device
            {
                return Some(exclusion.reason.clone());
            }
        }
        None
    }

    fn cdi_devices(&self, device: &HostDevice, class: Class) -> Result<Vec<DeviceName>> {
        let mut names: Vec<DeviceName> = cdi_device_names(device).collect();
        if names.is_empty() {
            names.push(device.name.clone());
        }
        let has = |name: &&DeviceName| self.specs.contains(&qualified_name(class, name));
        match names.iter().find(|name| !has(name)) {
            None => Ok(names),
            Some(name) => bail!(self.missing_spec_reason(device, class, name)),
        }
    }

    /// Explains why no specification contains the CDI device, with discovery's reason if the device is unhealthy.
    fn missing_spec_reason(&self, device: &HostDevice, class: Class, name: &DeviceName) -> String {
        let (id, written_by) = (qualified_name(class, name), self.snapshot.written_by);
        match &device.health {
            Health::Unhealthy(reason) if class == device.class => {
                format!("{id}: {}", written_by.with_node_advice(reason))
            }
            _ => written_by.missing_spec_reason(&id),
        }
    }

    fn profile_device(&self, profile: Option<&DeviceName>) -> Result<Option<String>> {
        let Some(name) = profile else {
            return Ok(None);
        };
        let id = qualified_name(Class::Profile, name);
        if self.specs.contains(&id) {
            return Ok(Some(id));
        }
        let prefix = format!("{}=", Class::Profile.cdi_kind());
        let profiles: Vec<String> = self
            .specs
            .iter()
            .filter_map(|id| id.strip_prefix(&prefix))
            .map(str::to_owned)
            .collect();
        let profiles = ShortList(&profiles);
        bail!("no CDI specification has {id}; this node has the profiles {profiles}")
    }
}

/// Iterates over the names of a device's CDI devices, without their kinds.
fn cdi_device_names(device: &HostDevice) -> impl Iterator<Item = DeviceName> {
    device
        .cdi
        .iter()
        .filter_map(|name| name.split_once('='))
        .filter_map(|(_, name)| DeviceName::try_from(name).ok())
}

fn qualified_name(class: Class, name: &DeviceName) -> String {
    format!("{}={name}", class.cdi_kind())
}

fn claim_device(
    request: &str,
    device: &HostDevice,
    class: Class,
    name: &DeviceName,
) -> ClaimDevice {
    let name = name.clone();
    ClaimDevice {
        request: request.to_owned(),
        device: DeviceId { class, name },
        max_holders: device.max_holders().unwrap_or(u32::MAX),
        interface: None,
        vf: None,
    }
}

/// Returns the class whose edits the container receives: `nic-plain` for an interface of class nic without preload,
/// otherwise the device's own class.
fn effective_class(device: &HostDevice, allocated: &AllocatedDevice) -> Result<Class> {
    let Some(preload) = &allocated.parameters.preload else {
        return Ok(device.class);
    };
    match (device.class, preload.value) {
        (Class::Nic, false) => Ok(Class::NicPlain),
        (Class::Nic, true) | (Class::NicPlain | Class::NicNodes, false) => Ok(device.class),
        _ if preload.is_of_request => Err(misplaced_error("preload", "nic", device)),
        _ => Ok(device.class),
    }
}

fn profile_name<'a>(
    device: &HostDevice,
    allocated: &'a AllocatedDevice,
) -> Result<Option<&'a DeviceName>> {
    let Some(profile) = &allocated.parameters.profile else {
        return Ok(None);
    };
    match device.class {
        Class::Nic | Class::NicPlain | Class::NicNodes => Ok(Some(&profile.value)),
        _ if profile.is_of_request => {
            Err(misplaced_error("profile", "nic, nic-plain or nic-nodes", device))
        }
        _ => Ok(None),
    }
}
