//! A pool: the devices of one class on one node, in as many slices as they need.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    Counter, CounterSet, Device, DeviceCounterConsumption, ResourcePool, ResourceSlice,
    ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
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
/// Limit if one of them has a taint or counters (`ResourceSliceMaxDevicesWithTaintsOrConsumesCounters`).
const MAX_DEVICES_WITH_TAINTS: usize = 64;
/// Limit for the counter sets of a slice (`ResourceSliceMaxCounterSets`).
const MAX_COUNTER_SETS: usize = 8;
/// Limit for the devices of a pool whose slots are devices.
const MAX_SLOT_DEVICES: usize = 4096;
/// The counter of a physical function.
const COUNTER: &str = "vfs";

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
    /// Physical functions with the number of their virtual functions.
    sets: BTreeMap<PciAddress, u32>,
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
    counter_use: Option<(PciAddress, u32)>,
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
            sets: BTreeMap::new(),
            per_slice: MAX_DEVICES,
            left_out: selectors.left_out().to_vec(),
            selectors,
        };
        for device in devices {
            let counter_use = match families.counter_use(device, features) {
                Ok(counter_use) => counter_use,
                Err(why) => {
                    pool.left_out.push(why);
                    continue;
                }
            };
            let held = families.is_held(device).then_some(HELD_TAINT);
            pool.add(device, counter_use, held, (features, max_slots));
        }
        // The scheduler takes the first free devices, so this order gives a claim of several slots different devices.
        pool.devices.sort_by_key(|entry| entry.slot().unwrap_or(0));
        for (set, _) in pool.devices.iter().filter_map(|entry| entry.counter_use) {
            pool.sets.extend(families.0.get(&set).map(|family| (set, family.members)));
        }
        if pool.devices.iter().any(|entry| entry.trouble.is_some() || entry.counter_use.is_some()) {
            pool.per_slice = MAX_DEVICES_WITH_TAINTS;
        }
        pool
    }

    fn add(
        &mut self,
        device: &'a HostDevice,
        counter_use: Option<(PciAddress, u32)>,
        held: Option<&'static str>,
        (features, max_slots): (DraFeatures, u32),
    ) {
        let trouble = taint_key(device).or(held);
        // Without taints, an unusable device cannot be marked and is left out.
        if trouble.is_some() && !features.taints {
            return;
        }
        let entry = |form, trouble| SlicePoolDevice { device, form, trouble, counter_use };
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

    fn device_slice_count(&self) -> usize {
        self.devices.len().div_ceil(self.per_slice)
    }

    pub fn slices(&self) -> usize {
        self.device_slice_count() + self.sets.len().div_ceil(MAX_COUNTER_SETS)
    }

    /// Returns the name of a slice, which is derived from node, class and number.
    pub fn slice_name(&self, index: usize) -> String {
        let class = self.class;
        let end = match index.checked_sub(self.device_slice_count()) {
            None => format!("-onload-dev-{class}-{index}"),
            Some(index) => format!("-onload-dev-{class}-counters-{index}"),
        };
        append_to_node(self.input.node.as_str(), &end)
    }

    pub fn slice(&self, index: usize, generation: i64) -> ResourceSlice {
        let (devices, shared_counters) = match index.checked_sub(self.device_slice_count()) {
            None => {
                let entries = self.devices.chunks(self.per_slice).nth(index).unwrap_or_default();
                (Some(entries.iter().map(|entry| self.device(entry)).collect()), None)
            }
            Some(index) => (None, Some(self.counter_sets(index))),
        };
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
                devices,
                shared_counters,
                ..ResourceSliceSpec::default()
            },
        }
    }

    fn device(&self, entry: &SlicePoolDevice<'_>) -> Device {
        let SlicePoolDevice { device, form, trouble, counter_use } = *entry;
        let resource = resource_name(device, self.input.settings);
        let consumes = counter_use.map(|(set, number)| {
            vec![DeviceCounterConsumption {
                counter_set: set_name(set),
                counters: counters(number),
            }]
        });
        Device {
            name: device_label(&device.name, entry.slot()),
            attributes: Some(attributes(device, form, resource.as_ref(), &self.selectors)),
            capacity: Some(capacity(form)),
            allow_multiple_allocations: matches!(form, DeviceForm::Shared(_)).then_some(true),
            taints: trouble.map(|key| vec![taint(key)]),
            consumes_counters: consumes,
            ..Device::default()
        }
    }

    fn counter_sets(&self, index: usize) -> Vec<CounterSet> {
        let sets = self.sets.iter().skip(index * MAX_COUNTER_SETS).take(MAX_COUNTER_SETS).map(
            |(function, number)| CounterSet {
                name: set_name(*function),
                counters: counters(*number),
            },
        );
        sets.collect()
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

fn set_name(function: PciAddress) -> String {
    format!("pf-{}", function.to_string().replace([':', '.'], "-"))
}

fn counters(number: u32) -> BTreeMap<String, Counter> {
    let value = Quantity(number.to_string());
    BTreeMap::from([(COUNTER.to_owned(), Counter { value })])
}

/// Physical functions that are offered together with their virtual functions, which exclude each other. This applies
/// only to vfio, which assigns whole functions; interfaces and RDMA devices of both are independent.
#[derive(Debug, Default)]
struct PfFamilies(BTreeMap<PciAddress, PfFamily>);

#[derive(Clone, Copy, Debug, Default)]
struct PfFamily {
    /// The number of virtual functions.
    members: u32,
    /// Whether the physical function is in use.
    is_taken: bool,
    /// Whether it is in use without a claim, which the counter does not reflect.
    is_foreign: bool,
    /// Whether a virtual function is in use without a claim.
    has_foreign_member: bool,
    /// Whether several containers may share one of its functions, which the counter cannot express.
    is_shared: bool,
}

impl PfFamilies {
    fn new(class: Class, devices: &[&HostDevice]) -> PfFamilies {
        let mut families = PfFamilies::default();
        if !class.is_iommu_group() {
            return families;
        }
        let parents: BTreeMap<PciAddress, &HostDevice> =
            devices.iter().filter_map(|device| Some((device.pci?, *device))).collect();
        for device in devices {
            let Some((pf, parent)) =
                parent_pf(device).and_then(|pf| Some((pf, *parents.get(&pf)?)))
            else {
                continue;
            };
            let is_shared = |device: &HostDevice| device.sharing != Sharing::Exclusive;
            let family = families.0.entry(pf).or_default();
            family.members += 1;
            family.is_taken |= !parent.leases.is_empty();
            family.is_foreign |= is_foreign(parent);
            family.has_foreign_member |= is_foreign(device);
            family.is_shared |= is_shared(device) || is_shared(parent);
        }
        families
    }

    fn family(&self, pf: Option<PciAddress>) -> Option<(PciAddress, PfFamily)> {
        let pf = pf?;
        Some((pf, *self.0.get(&pf)?))
    }

    /// Returns whether a function of the same family that excludes this one is in use without a claim.
    fn is_held(&self, device: &HostDevice) -> bool {
        let own_family = self.family(device.pci);
        let parent = self.family(parent_pf(device));
        own_family.is_some_and(|(_, family)| family.has_foreign_member)
            || parent.is_some_and(|(_, parent)| parent.is_foreign)
    }

    /// Returns the counters that a device consumes, if it is counted. Fails with the reason why it is not offered.
    fn counter_use(
        &self,
        device: &HostDevice,
        features: DraFeatures,
    ) -> Result<Option<(PciAddress, u32)>, String> {
        let own_family = self.family(device.pci);
        let Some((pf, family)) = own_family.or_else(|| self.family(parent_pf(device))) else {
            return Ok(None);
        };
        if features.counters && !family.is_shared {
            let number = own_family.map_or(1, |(_, own_family)| own_family.members);
            return Ok(Some((pf, number)));
        }
        match own_family {
            Some(_) => Err(format!(
                "vfio {} is not offered with its virtual functions: this cluster cannot prevent \
                 that two pods get both; remove them, or set [discover] offer-pf-with-vfs = false",
                device.name
            )),
            None if family.is_taken => Err(format!(
                "vfio {} is not offered while its physical function is in use {pf}",
                device.name
            )),
            None => Ok(None),
        }
    }
}

fn is_foreign(device: &HostDevice) -> bool {
    device.leases.iter().any(|entry| !entry.lease.as_ref().is_some_and(is_claim_lease))
}

/// Returns the physical function of a virtual function.
pub(crate) fn parent_pf(device: &HostDevice) -> Option<PciAddress> {
    match device.attributes.get("pf")? {
        Attribute::Text(pf) => pf.parse().ok(),
        Attribute::Int(_) | Attribute::Bool(_) | Attribute::Version(_) => None,
    }
}
