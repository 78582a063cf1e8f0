//! A pool: the devices of one class on one node, in as many slices as they need.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::{Device, ResourcePool, ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use onload_core::class::Class;
use onload_core::kubernetes_settings::KubernetesSettings;
use onload_host::offers::{Attribute, HostDevice, Sharing};
use onload_sys::pci::PciAddress;

use super::device::{
    DeviceForm, HELD_TAINT, attributes, capacity, is_claim_lease, taint, taint_key,
};
use super::features::DraFeatures;
use crate::dra::DRIVER;
use crate::dra::pool_selectors::PoolSelectors;
use crate::dra::resource_names::{is_offered, resource_name};
use crate::names::{NodeName, append_to_node, device_label, is_allocatable};

/// Limit for the devices of a slice (`ResourceSliceMaxDevices`).
const MAX_DEVICES: usize = 128;
/// Limit if one of them has a taint (`ResourceSliceMaxDevicesWithTaintsOrConsumesCounters`).
const MAX_DEVICES_WITH_TAINTS: usize = 64;
/// Limit for the devices of a pool whose slots are devices.
const MAX_SLOT_DEVICES: usize = 4096;

#[derive(Clone, Copy, Debug)]
pub struct SliceInput<'a> {
    pub node: &'a NodeName,
    /// The uid of the Node object, which owns the slices.
    pub uid: &'a str,
    /// The host's offers, sorted by class and name.
    pub devices: &'a [HostDevice],
    pub settings: &'a KubernetesSettings,
}

#[derive(Debug)]
pub struct SlicePool<'a> {
    input: SliceInput<'a>,
    class: Class,
    name: String,
    devices: Vec<SlicePoolDevice<'a>>,
    per_slice: usize,
    selectors: PoolSelectors,
    left_out: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
struct SlicePoolDevice<'a> {
    device: &'a HostDevice,
    form: DeviceForm,
    /// The taint of the device.
    trouble: Option<&'static str>,
}

impl SlicePoolDevice<'_> {
    fn slot(&self) -> Option<u32> {
        match self.form {
            DeviceForm::Slot(slot) => Some(slot),
            DeviceForm::One | DeviceForm::Shared(_) => None,
        }
    }
}

impl<'a> SlicePool<'a> {
    /// Creates the pool of a class with these features. It may be empty.
    pub fn new(input: SliceInput<'a>, class: Class, features: DraFeatures) -> SlicePool<'a> {
        let mut devices: Vec<&HostDevice> = input
            .devices
            .iter()
            .filter(|device| device.class == class && is_allocatable(device))
            .collect();
        // Devices that are not offered may be held too.
        let families = PfFamilies::new(class, &devices);
        devices.retain(|device| is_offered(device, input.settings));
        let max_slots = MAX_SLOT_DEVICES / devices.len().max(1);
        let max_slots = u32::try_from(max_slots).unwrap_or(u32::MAX).max(1);
        let selectors = PoolSelectors::new(class, input.devices);
        let mut pool = SlicePool {
            input,
            class,
            name: input.node.pool_name(class),
            devices: Vec::new(),
            per_slice: MAX_DEVICES,
            left_out: selectors.left_out().to_vec(),
            selectors,
        };
        for device in devices {
            if families.has_virtual_functions(device) {
                pool.left_out.push(format!(
                    "vfio {} is not offered with its virtual functions, since pods would get both; \
                     remove them, or set [discover] offer-pf-with-vfs = false",
                    device.name
                ));
                continue;
            }
            pool.add(device, families.is_pf_taken(device), features, max_slots);
        }
        // The scheduler takes the first free devices, so this order gives a claim of several slots different devices.
        pool.devices.sort_by_key(|entry| entry.slot().unwrap_or(0));
        if pool.devices.iter().any(|entry| entry.trouble.is_some()) {
            pool.per_slice = MAX_DEVICES_WITH_TAINTS;
        }
        pool
    }

    fn add(
        &mut self,
        device: &'a HostDevice,
        is_pf_taken: bool,
        features: DraFeatures,
        max_slots: u32,
    ) {
        let trouble = taint_key(device).or(is_pf_taken.then_some(HELD_TAINT));
        // Without taints, an unusable device cannot be marked and is left out.
        if trouble.is_some() && !features.taints {
            return;
        }
        let entry = |form, trouble| SlicePoolDevice { device, form, trouble };
        if device.sharing == Sharing::Exclusive {
            self.devices.push(entry(DeviceForm::One, trouble));
            return;
        }
        let slots = device.max_holders().unwrap_or(self.input.settings.slots.get()).max(1);
        // If no slot is left, the whole device has a taint.
        let remaining = device
            .free_slots_excluding(is_claim_lease)
            .map_or(slots, |(remaining, _)| if remaining == 0 { slots } else { remaining });
        if features.sharing {
            self.devices.push(entry(DeviceForm::Shared(remaining), trouble));
            return;
        }
        if slots > max_slots {
            self.left_out.push(format!(
                "{} {} has {max_slots} of its {slots} slots: this cluster does not support \
                 consumable capacity, so each slot is a device; set a lower number in [leases] \
                 share or [kubernetes] slots",
                device.class, device.name
            ));
        }
        // Slots held without a claim count as the last ones, since the scheduler takes the first free slot.
        let slot_count = if features.taints { slots } else { remaining };
        let slots = (0..slot_count.min(max_slots)).map(|slot| {
            let trouble = trouble.or((slot >= remaining).then_some(HELD_TAINT));
            entry(DeviceForm::Slot(slot), trouble)
        });
        self.devices.extend(slots);
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn devices(&self) -> usize {
        self.devices.len()
    }

    /// Returns the devices that are left out with the reason, as lines for the operator.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    pub fn slices(&self) -> usize {
        self.devices.len().div_ceil(self.per_slice)
    }

    /// Returns the name of a slice, which is derived from node, class and number.
    pub fn slice_name(&self, index: usize) -> String {
        let end = format!("-onload-dev-{}-{index}", self.class);
        append_to_node(self.input.node.as_str(), &end)
    }

    pub fn slice(&self, index: usize, generation: i64) -> ResourceSlice {
        let entries = self.devices.chunks(self.per_slice).nth(index).unwrap_or_default();
        let count = i64::try_from(self.slices()).unwrap_or(i64::MAX);
        ResourceSlice {
            metadata: slice_metadata(self.slice_name(index), self.input.node, self.input.uid),
            spec: ResourceSliceSpec {
                driver: DRIVER.to_owned(),
                node_name: Some(self.input.node.to_string()),
                pool: ResourcePool {
                    name: self.name().to_owned(),
                    generation,
                    resource_slice_count: count,
                },
                devices: Some(entries.iter().map(|entry| self.device(entry)).collect()),
                ..ResourceSliceSpec::default()
            },
        }
    }

    fn device(&self, entry: &SlicePoolDevice<'_>) -> Device {
        let SlicePoolDevice { device, form, trouble } = *entry;
        let resource = resource_name(device, self.input.settings);
        Device {
            name: device_label(&device.name, entry.slot()),
            attributes: Some(attributes(device, form, resource.as_ref(), &self.selectors)),
            capacity: Some(capacity(form)),
            allow_multiple_allocations: matches!(form, DeviceForm::Shared(_)).then_some(true),
            taints: trouble.map(|key| vec![taint(key)]),
            ..Device::default()
        }
    }
}

pub(super) fn slice_metadata(name: String, node: &NodeName, uid: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        owner_references: Some(vec![OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: node.to_string(),
            uid: uid.to_owned(),
            controller: Some(true),
            block_owner_deletion: None,
        }]),
        ..ObjectMeta::default()
    }
}

/// The physical functions of vfio whose virtual functions are offered too. Vfio assigns whole functions, so only one of
/// both may be given; interfaces and RDMA devices of both are independent.
#[derive(Debug, Default)]
struct PfFamilies {
    parents: BTreeSet<PciAddress>,
    /// The physical functions that a container has.
    taken: BTreeSet<PciAddress>,
}

impl PfFamilies {
    fn new(class: Class, devices: &[&HostDevice]) -> PfFamilies {
        if !class.is_iommu_group() {
            return PfFamilies::default();
        }
        let taken = devices.iter().filter(|device| !device.leases.is_empty());
        PfFamilies {
            parents: devices.iter().filter_map(|device| parent_pf(device)).collect(),
            taken: taken.filter_map(|device| device.pci).collect(),
        }
    }

    fn has_virtual_functions(&self, device: &HostDevice) -> bool {
        device.pci.is_some_and(|pci| self.parents.contains(&pci))
    }

    fn is_pf_taken(&self, device: &HostDevice) -> bool {
        parent_pf(device).is_some_and(|pf| self.taken.contains(&pf))
    }
}

/// Returns the physical function of a virtual function.
pub(crate) fn parent_pf(device: &HostDevice) -> Option<PciAddress> {
    match device.attributes.get("pf")? {
        Attribute::Text(pf) => pf.parse().ok(),
        Attribute::Int(_) | Attribute::Bool(_) | Attribute::Version(_) => None,
    }
}
