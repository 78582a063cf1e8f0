//! Groups the offers of a host.

use std::collections::{BTreeMap, BTreeSet};

use onload_cdi::{DeviceName, QualifiedName};
use onload_core::class::Class;
use onload_host::offers::{Attribute, Health, HostDevice, Sharing};
use onload_lease::Lease;

use super::attributes::{self, NomadAttributes};
use super::group::{NomadDevice, NomadGroup, StatisticsSource};
use super::id::DeviceType;
use crate::settings::PluginSettings;

/// nomad-onload's name for Onload without an interface.
pub const NONE: &str = "none";
/// nomad-onload's vendor for interfaces of Onload's own drivers.
const AMD: &str = "amd";
/// The vendor of AF_XDP interfaces.
const XDP: &str = "xdp";
/// The vendor of devices that nomad-onload does not have.
const OWN_VENDOR: &str = "onload.dev";

/// The name of the group with all shared devices of a type, for tasks that request several by one block. No other
/// device has an id with this prefix, since interface names contain no `:`.
const ANY: &str = "any";
/// The number of a group's slots that no task can get now. Nomad evaluates a waiting job again when an attribute of the
/// group changes, but not when its health changes (nomad/structs/node_class.go).
const UNHEALTHY: &str = "unhealthy";
/// The number of drained slots among these; set while there are any.
const DRAINED: &str = "drained";

#[derive(Clone, Debug, Default, PartialEq)]
pub struct NomadPlan {
    /// The groups, sorted by type and name.
    pub groups: Vec<NomadGroup>,
    /// Offers that are not published, with the reason and remedy.
    pub left_out: BTreeSet<String>,
    /// The attributes of exclusive devices before a task got them.
    known: BTreeMap<(Class, DeviceName), NomadAttributes>,
}

/// Groups offers, based on an earlier plan. `is_own` returns whether a lease belongs to a Nomad task; other leases make
/// a device unavailable to tasks.
pub fn plan(
    devices: &[HostDevice],
    settings: &PluginSettings,
    earlier: Option<&NomadPlan>,
    is_own: impl Fn(&Lease) -> bool,
) -> NomadPlan {
    let planner = GroupPlanner { devices, settings, earlier, is_own: &is_own };
    let mut plan = NomadPlan::default();
    let mut groups = GroupBuilder::default();
    for r#type in DeviceType::ALL {
        for devices in planner.candidates(r#type) {
            let why = devices.iter().find_map(|device| planner.runtime_reason(device));
            match why {
                Some(why) => drop(plan.left_out.insert(left_out_message(r#type, devices[0], why))),
                None => planner.publish(r#type, &devices, &mut groups),
            }
        }
    }
    for device in devices.iter().filter(|device| is_exclusive(device)) {
        let key = (device.class, device.name.clone());
        plan.known.insert(key, planner.attributes(device));
    }
    plan.groups = groups.finish();
    plan
}

#[derive(Default)]
struct GroupBuilder {
    groups: BTreeMap<(DeviceType, String, &'static str), NomadGroup>,
    /// Groups whose devices are also in another group.
    second: BTreeSet<(DeviceType, String, &'static str)>,
}

impl GroupBuilder {
    /// Adds a group. It keeps the attributes that all its devices share.
    fn add(&mut self, group: NomadGroup) {
        let key = (group.r#type, group.name.clone(), group.vendor);
        match self.groups.get_mut(&key) {
            Some(known) => {
                known.devices.extend(group.devices);
                let all = &group.attributes;
                known.attributes.retain(|name, value| all.get(name) == Some(value));
            }
            None => drop(self.groups.insert(key, group)),
        }
    }

    fn add_second(&mut self, group: NomadGroup) {
        self.second.insert((group.r#type, group.name.clone(), group.vendor));
        self.add(group);
    }

    fn finish(self) -> Vec<NomadGroup> {
        let mut groups = self.groups;
        // A single device already has a group.
        groups.retain(|key, group| group.devices.len() > 1 || !self.second.contains(key));
        groups.into_values().map(with_numbers).collect()
    }
}

fn with_numbers(mut group: NomadGroup) -> NomadGroup {
    let unhealthy = group.devices.iter().map(NomadDevice::unhealthy_count).sum();
    let drained = group.devices.iter().filter(|device| device.is_drained).count();
    group.attributes.insert(UNHEALTHY.to_owned(), attributes::int_attribute(unhealthy));
    if drained > 0 {
        group.attributes.insert(DRAINED.to_owned(), attributes::int_attribute(drained));
    }
    group
}

fn left_out_message(r#type: DeviceType, device: &HostDevice, why: &str) -> String {
    let name = published_key(device);
    format!(
        "{type} {name} is not published: {why}, which Nomad does not support; run all tasks with \
         the runtime \"onload\", and set runtime = \"onload\" in the plugin's configuration"
    )
}

struct GroupPlanner<'p> {
    devices: &'p [HostDevice],
    settings: &'p PluginSettings,
    earlier: Option<&'p NomadPlan>,
    is_own: &'p dyn Fn(&Lease) -> bool,
}

impl<'p> GroupPlanner<'p> {
    fn devices_of_class(&self, class: Class) -> impl Iterator<Item = &'p HostDevice> {
        self.devices.iter().filter(move |device| device.class == class)
    }

    fn onload_class(&self) -> Class {
        if self.settings.set_preload { Class::Nic } else { Class::NicPlain }
    }

    fn is_ignored(&self, name: &str) -> bool {
        let ignored = &self.settings.ignored_interfaces;
        ignored.iter().any(|other| other == name)
    }

    /// Iterates over the accelerated interfaces of a class that are to be published.
    fn interfaces(&self, class: Class) -> impl Iterator<Item = &'p HostDevice> {
        let probe = self.settings.probe;
        let devices = self.devices_of_class(class).filter(|device| !device.is_loopback());
        devices.filter(move |device| {
            (if is_af_xdp(device) { probe.xdp } else { probe.nic })
                && !self.is_ignored(interface_name(device))
                && !self.is_ignored(device.name.as_str())
        })
    }

    /// Returns the offers that a task gets together as one device of a type, at least one in each.
    fn candidates(&self, r#type: DeviceType) -> Vec<Vec<&'p HostDevice>> {
        match r#type {
            DeviceType::Onload => self.onload().map(|device| vec![device]).collect(),
            DeviceType::Zf => self.interfaces(Class::Zf).map(|device| vec![device]).collect(),
            DeviceType::OnloadZf => self.onload_and_tcpdirect(),
            _ => self.other_devices(r#type).map(|device| vec![device]).collect(),
        }
    }

    fn onload(&self) -> impl Iterator<Item = &'p HostDevice> {
        let class = self.onload_class();
        let has_interface = self
            .interfaces(class)
            .any(|device| device.attributes.get("accelerated") == Some(&Attribute::Bool(true)));
        // A job that requests Onload must not get it without an interface if the host has one.
        let is_wanted = !has_interface && !self.settings.need_nic && !self.is_ignored(NONE);
        let loopback =
            self.devices_of_class(class).filter(move |device| is_wanted && device.is_loopback());
        self.interfaces(class).chain(loopback)
    }

    fn onload_and_tcpdirect(&self) -> Vec<Vec<&'p HostDevice>> {
        let tcpdirect: BTreeMap<&str, &HostDevice> =
            self.interfaces(Class::Zf).map(|device| (device.name.as_str(), device)).collect();
        let mut both = Vec::new();
        for onload in self.interfaces(self.onload_class()) {
            if let Some(tcpdirect) = tcpdirect.get(onload.name.as_str()) {
                both.push(vec![onload, *tcpdirect]);
            }
        }
        both
    }

    fn other_devices(&self, r#type: DeviceType) -> impl Iterator<Item = &'p HostDevice> {
        let (class, is_published, _) = self.type_settings(r#type);
        self.devices_of_class(class).filter(move |device| {
            // The clock of an ignored interface is a separate device.
            let is_ignored = self.is_ignored(device.name.as_str())
                || (class == Class::Rdma && self.is_ignored(interface_name(device)));
            is_published && !is_ignored
        })
    }

    /// Returns the class of a type, whether its devices are published, and how many tasks may have one.
    fn type_settings(&self, r#type: DeviceType) -> (Class, bool, u32) {
        let PluginSettings { probe, slots, .. } = self.settings;
        match r#type {
            DeviceType::Onload | DeviceType::OnloadZf => (self.onload_class(), true, slots.nic),
            DeviceType::Zf => (Class::Zf, true, slots.nic),
            DeviceType::Ptp => (Class::Ptp, probe.ptp, slots.ptp),
            DeviceType::Pps => (Class::Pps, probe.pps, slots.pps),
            DeviceType::Rdma => (Class::Rdma, probe.rdma, slots.rdma),
            DeviceType::Vfio => (Class::Vfio, probe.vfio, 1),
            DeviceType::Netdev => (Class::Netdev, probe.netdev, 1),
            DeviceType::Hugepages => (Class::Hugepages, probe.hugepages, slots.hugepages),
            DeviceType::Profile => (Class::Profile, probe.profile, slots.profile),
        }
    }

    /// Returns why a device that requires our runtime is not published if tasks are not configured to use it.
    fn runtime_reason(&self, device: &HostDevice) -> Option<&'static str> {
        if self.settings.has_runtime {
            return None;
        }
        match (device.class, device.sharing) {
            (Class::Hugepages, _) => Some("a task gets its own file system"),
            (_, Sharing::Exclusive) => Some("only one task may have it at a time, by a lease"),
            _ => None,
        }
    }

    /// Publishes the offers that a task gets together, named after the first.
    fn publish(&self, r#type: DeviceType, host_devices: &[&HostDevice], groups: &mut GroupBuilder) {
        let (host_device, device) = (host_devices[0], self.group_device(r#type, host_devices));
        if device.slots == 0 {
            return;
        }
        let group = NomadGroup {
            r#type,
            vendor: vendor(r#type, host_device),
            name: published_name(host_device).to_owned(),
            attributes: self.attributes(host_device),
            is_exclusive: host_devices.iter().any(|host_device| is_exclusive(host_device)),
            devices: vec![device],
        };
        if group.is_exclusive {
            // In a second group it could be assigned twice.
            let name = shared_name(host_device).unwrap_or_else(|| group.name.clone());
            return groups.add(NomadGroup { name, ..group });
        }
        // Devices with a limit of tasks must not get additional slots.
        let is_counted = host_devices.iter().any(|host_device| host_device.max_holders().is_some());
        let is_one = group.devices.iter().all(|device| device.slots == 1);
        if allows_several(r#type) && !is_counted && !is_one {
            groups.add_second(any_group(&group));
        }
        groups.add(group);
    }

    /// Returns the attributes. While a Nomad task has a device, its earlier attributes are used, since few can be read
    /// after a move.
    fn attributes(&self, device: &HostDevice) -> NomadAttributes {
        let mut leases =
            device.leases.iter().filter_map(|device_lease| device_lease.lease.as_ref());
        let is_own = is_exclusive(device) && leases.any(self.is_own);
        let earlier = self.earlier.filter(|_| is_own);
        let known = earlier.and_then(|plan| plan.known.get(&(device.class, device.name.clone())));
        known.cloned().unwrap_or_else(|| attributes::from_device(device))
    }

    fn group_device(&self, r#type: DeviceType, devices: &[&HostDevice]) -> NomadDevice {
        let device = devices[0];
        let max_holders = devices.iter().filter_map(|device| device.max_holders()).min();
        let cdi_devices = devices.iter().map(|device| {
            let names = device.cdi.iter().filter_map(|name| name.parse::<QualifiedName>().ok());
            (device.class, names.collect())
        });
        let health = devices
            .iter()
            .map(|device| device.health_excluding(self.is_own))
            .find(|health| *health != Health::Healthy)
            .unwrap_or(Health::Healthy);
        let remaining =
            devices.iter().filter_map(|device| device.free_slots_excluding(self.is_own)).min();
        NomadDevice {
            key: published_key(device).to_owned(),
            slots: max_holders.unwrap_or(self.type_settings(r#type).2),
            pci: device.pci,
            health,
            remaining,
            is_drained: devices.iter().any(|device| device.is_drained),
            cdi_devices: cdi_devices.collect(),
            statistics: statistics_source(r#type, device),
        }
    }
}

fn is_exclusive(device: &HostDevice) -> bool {
    device.sharing == Sharing::Exclusive
}

/// Returns the common name of interchangeable devices: physical functions, and virtual functions of one physical
/// function. It consists of the vendor and device ids, and the physical function or NUMA node. Other interfaces are in
/// different networks, so jobs name them.
fn shared_name(host_device: &HostDevice) -> Option<String> {
    let (vendor, device) =
        (text_attribute(host_device, "vendor")?, text_attribute(host_device, "deviceId")?);
    let suffix = match (text_attribute(host_device, "pf"), host_device.numa_node) {
        (Some(pf), _) => format!("-{pf}"),
        (None, _) if !host_device.class.is_iommu_group() => return None,
        (None, Some(node)) => format!("-numa{node}"),
        (None, None) => String::new(),
    };
    Some(format!("{vendor}:{device}{suffix}"))
}

/// Returns whether a task may request several devices of a shared type. Clocks are requested by name.
fn allows_several(r#type: DeviceType) -> bool {
    matches!(r#type, DeviceType::Onload | DeviceType::Zf | DeviceType::OnloadZf | DeviceType::Rdma)
}

/// Returns the group of all devices of a type, in which slots have separate ids.
fn any_group(group: &NomadGroup) -> NomadGroup {
    let devices = group
        .devices
        .iter()
        .map(|device| NomadDevice { key: format!("{ANY}:{}", device.key), ..device.clone() });
    NomadGroup { devices: devices.collect(), name: ANY.to_owned(), ..group.clone() }
}

fn text_attribute<'o>(device: &'o HostDevice, attribute: &str) -> Option<&'o str> {
    match device.attributes.get(attribute) {
        Some(Attribute::Text(text)) if !text.is_empty() => Some(text),
        _ => None,
    }
}

fn is_af_xdp(device: &HostDevice) -> bool {
    text_attribute(device, "datapath") == Some("af_xdp")
}

/// Returns the interface's name. The offer has the PCI address instead if CDI does not allow the name.
fn interface_name(device: &HostDevice) -> &str {
    text_attribute(device, "interface").unwrap_or(device.name.as_str())
}

fn published_name(device: &HostDevice) -> &str {
    match device.class {
        Class::Nic | Class::NicPlain | Class::Zf if device.is_loopback() => NONE,
        Class::Nic | Class::NicPlain | Class::Zf => interface_name(device),
        _ => text_attribute(device, "name").unwrap_or(device.name.as_str()),
    }
}

/// Returns the name in ids, which is unique in its class.
fn published_key(device: &HostDevice) -> &str {
    if device.is_loopback() { NONE } else { device.name.as_str() }
}

fn vendor(r#type: DeviceType, device: &HostDevice) -> &'static str {
    match r#type {
        DeviceType::Onload | DeviceType::Zf | DeviceType::OnloadZf if device.is_loopback() => NONE,
        DeviceType::Onload | DeviceType::Zf | DeviceType::OnloadZf if is_af_xdp(device) => XDP,
        DeviceType::Onload | DeviceType::Zf | DeviceType::OnloadZf => AMD,
        DeviceType::Ptp | DeviceType::Pps => NONE,
        _ => OWN_VENDOR,
    }
}

fn statistics_source(r#type: DeviceType, device: &HostDevice) -> StatisticsSource {
    let interface = || text_attribute(device, "interface").map(str::to_owned);
    match r#type {
        DeviceType::Onload | DeviceType::Zf | DeviceType::OnloadZf => {
            StatisticsSource { interface: interface(), stacks: true, ..StatisticsSource::default() }
        }
        DeviceType::Rdma => StatisticsSource {
            interface: interface(),
            rdma: Some(published_name(device).to_owned()),
            ..StatisticsSource::default()
        },
        DeviceType::Hugepages => StatisticsSource {
            page_kib: match device.attributes.get("pageKib") {
                Some(Attribute::Int(kib)) => u64::try_from(*kib).ok(),
                _ => None,
            },
            ..StatisticsSource::default()
        },
        _ => StatisticsSource::default(),
    }
}

#[cfg(test)]
mod tests {
    use onload_core::token::Token;
    use onload_host::offers::DeviceLease;
    use onload_lease::Holder;

    use super::*;
    use crate::devices::group::OwnSlots;

    const PF: &str = "0000:65:00.0";

    fn offer(class: Class, name: &str, pf: &str, sharing: Sharing) -> HostDevice {
        let text = |text: &str| Attribute::Text(text.to_owned());
        HostDevice {
            cdi: vec![format!("onload.dev/{class}={name}")],
            numa_node: Some(1),
            attributes: BTreeMap::from([
                ("vendor", text("1924")),
                ("deviceId", text("1b03")),
                ("pf", text(pf)),
                ("interface", text(name)),
                ("accelerated", Attribute::Bool(true)),
                ("linkMbps", Attribute::Int(25_000)),
            ]),
            sharing,
            ..HostDevice::new(class, name).unwrap()
        }
    }

    /// A container has it.
    fn held(mut device: HostDevice, ticket: Option<Token>) -> HostDevice {
        let lease = Lease {
            boot: "a".to_owned(),
            container: "redis".parse().unwrap(),
            bundle: "/bundles/redis".into(),
            holder: Holder::Reservation { token: [7; 16].into(), expires_ms: 5, maker: None },
            claim: None,
            entry_point: "create".to_owned(),
            since: 0,
            facts: BTreeMap::new(),
            ticket,
            moved: None,
        };
        device.leases.push(DeviceLease { slot: 0, text: lease.to_string(), lease: Some(lease) });
        // Its interface is gone, and so is what is read of it.
        device.attributes.insert("linkMbps", Attribute::Int(0));
        device
    }

    fn planned(devices: &[HostDevice], earlier: Option<&NomadPlan>) -> NomadPlan {
        let settings = PluginSettings { has_runtime: true, ..PluginSettings::default() };
        plan(devices, &settings, earlier, |lease| lease.ticket.is_some())
    }

    fn shown(plan: &NomadPlan) -> Vec<(&str, Vec<&str>)> {
        let groups = plan.groups.iter().map(|group| {
            let keys = group.devices.iter().map(|device| device.key.as_str());
            (group.name.as_str(), keys.collect())
        });
        groups.collect()
    }

    #[test]
    fn virtual_functions_that_move_are_one_group_and_another_interface_is_its_own() {
        let device = |name, pf| offer(Class::Netdev, name, pf, Sharing::Exclusive);
        let plan = planned(&[device("ens1v0", PF), device("ens1v1", PF), device("ens2", "")], None);
        assert_eq!(
            shown(&plan),
            [("1924:1b03-0000:65:00.0", vec!["ens1v0", "ens1v1"]), ("ens2", vec!["ens2"]),]
        );
        let group = &plan.groups[0].attributes;
        assert!(group.contains_key("speed") && !group.contains_key("interface"));
    }

    #[test]
    fn a_group_has_no_attribute_that_one_of_its_devices_lacks() {
        let device = |name| offer(Class::Netdev, name, PF, Sharing::Exclusive);
        let mut without = device("ens1v1");
        without.attributes.remove("linkMbps");
        for devices in [[device("ens1v0"), without.clone()], [without.clone(), device("ens1v0")]] {
            let plan = planned(&devices, None);
            let group = &plan.groups[0];
            assert_eq!(group.devices.len(), 2);
            assert!(!group.attributes.contains_key("speed"));
            assert!(group.attributes.contains_key("numa_node"));
        }
    }

    #[test]
    fn a_task_of_ours_changes_no_attribute_and_anybody_else_does() {
        let device = |name| offer(Class::Netdev, name, PF, Sharing::Exclusive);
        let before = planned(&[device("ens1v0"), device("ens1v1")], None);
        let attributes = |plan: &NomadPlan| plan.groups[0].attributes.clone();
        let by_task = [held(device("ens1v0"), Some([9; 16].into())), device("ens1v1")];
        let during = planned(&by_task, Some(&before));
        assert_eq!(attributes(&during), attributes(&before));
        assert_eq!(attributes(&planned(&by_task, Some(&during))), attributes(&before));
        let elsewhere = planned(&[held(device("ens1v0"), None), device("ens1v1")], Some(&before));
        assert_eq!(elsewhere.groups[0].attributes["unhealthy"], attributes::int_attribute(1));
    }

    #[test]
    fn a_group_says_how_many_of_its_devices_are_drained() {
        let device = |name| offer(Class::Netdev, name, PF, Sharing::Exclusive);
        let drained = HostDevice {
            is_drained: true,
            health: Health::Unhealthy("drained since then".to_owned()),
            ..device("ens1v1")
        };
        let plan = planned(&[device("ens1v0"), drained], None);
        let group = &plan.groups[0];
        assert_eq!(group.attributes["drained"], attributes::int_attribute(1));
        assert_eq!(group.attributes["unhealthy"], attributes::int_attribute(1));
        let wire_devices = group.to_wire(&OwnSlots::new()).devices;
        let wire_devices: Vec<_> =
            wire_devices.iter().map(|one| one.health_description.as_str()).collect();
        assert_eq!(wire_devices, ["", "drained since then"]);
        let plan = planned(&[device("ens1v0")], None);
        assert!(!plan.groups[0].attributes.contains_key("drained"));
    }

    #[test]
    fn the_slots_that_others_have_of_a_counted_device_are_unhealthy_and_none_that_a_task_has() {
        let free = HostDevice { slots: Some(3), ..offer(Class::Nic, "ens1", "", Sharing::Shared) };
        let shown = |device: &HostDevice, own: &[(u32, bool)]| {
            let plan = planned(std::slice::from_ref(device), None);
            let own = own.iter();
            let own = own.map(|(slot, is_used)| (format!("onload-ens1-{slot}"), *is_used));
            let group = plan.groups[0].to_wire(&own.collect());
            let slots = group.devices.into_iter();
            let held = slots.map(|slot| slot.health_description.contains("redis"));
            let held: Vec<bool> = held.collect();
            let number = held.iter().filter(|held| **held).count();
            assert_eq!(plan.groups[0].attributes["unhealthy"], attributes::int_attribute(number));
            held
        };
        assert_eq!(shown(&free, &[]), [false, false, false]);
        let by_task = held(free.clone(), Some([9; 16].into()));
        assert_eq!(shown(&by_task, &[]), [false, false, false]);
        let partly = held(free, None);
        assert_eq!(shown(&partly, &[]), [false, false, true]);
        // A task that has begun is left its slot before one that may never come.
        assert_eq!(shown(&partly, &[(2, true)]), [false, true, false]);
        let all = [(0, true), (1, false), (2, true)];
        assert_eq!(shown(&partly, &all), [false, true, false]);
        let whole = held(held(partly, None), None);
        assert_eq!(shown(&whole, &[(0, true)]), [true, true, true]);
    }

    #[test]
    fn what_is_counted_is_in_no_second_group() {
        let device = |name| offer(Class::Nic, name, "", Sharing::Shared);
        let groups = |devices: &[HostDevice]| planned(devices, None).groups.len();
        assert_eq!(groups(&[device("ens1"), device("ens2")]), 3);
        assert_eq!(groups(&[device("ens1")]), 1);
        let counted = |name| HostDevice { slots: Some(3), ..device(name) };
        assert_eq!(groups(&[counted("ens1"), counted("ens2")]), 2);
    }
}
