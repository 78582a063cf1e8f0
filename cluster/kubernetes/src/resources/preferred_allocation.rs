//! Chooses among the free devices for a container: first the required ones, then different devices, then all from one
//! NUMA node and there from one PCIe root.
//!
//! Two slots of one device are the last resort, since a container that requests two interfaces expects different ones.
//! Among equals the device with the most free slots comes first, which spreads containers over the devices. kubelet
//! lists the free slots in its request.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use anyhow::{Result, bail};
use onload_sys::text::{Quoted, format_count};

use super::resource::{Resource, parse_slot};
use crate::wire::device_plugin::ContainerPreferredAllocationRequest;

#[derive(Debug)]
struct FreeDevice<'a> {
    device: usize,
    ids: VecDeque<&'a str>,
    taken: usize,
    /// The index of its PCIe root on its NUMA node.
    root: usize,
}

/// A set of devices that are near each other, by their indices.
type DeviceScope = BTreeSet<usize>;

pub fn choose_preferred(
    resource: &Resource,
    request: &ContainerPreferredAllocationRequest,
) -> Result<Vec<String>> {
    // A negative number counts as 0.
    let size = usize::try_from(request.allocation_size).unwrap_or(0);
    let must: BTreeSet<&str> =
        request.must_include_device_i_ds.iter().map(String::as_str).collect();
    // Devices that no longer exist are ignored.
    let available: BTreeSet<&str> = request
        .available_device_i_ds
        .iter()
        .map(String::as_str)
        .filter(|id| resource.ids.contains_key(*id))
        .collect();
    if let Some(id) = must.iter().find(|id| !available.contains(*id)) {
        bail!("device {} must be included but is not free", Quoted(id));
    }
    let count_text = || format_count(size, "device is", "devices are");
    if must.len() > size {
        bail!("{} requested, but {} must be among them", count_text(), must.len());
    }
    if available.len() < size {
        bail!(
            "{} requested, but only {} of the free ones are known",
            count_text(),
            available.len()
        );
    }
    let mut free = free_devices(resource, &available, &must);
    let mut chosen: Vec<String> = must.iter().map(|id| (*id).to_owned()).collect();
    let scopes = rank_scopes(resource, &free, size - must.len());
    let mut slots = 1;
    // There are enough free slots: each round takes a slot of each device that has one.
    while chosen.len() < size {
        for scope in &scopes {
            take_slots(&mut free, scope, size, slots, &mut chosen);
        }
        slots += 1;
    }
    Ok(chosen)
}

fn free_devices<'a>(
    resource: &Resource,
    available: &BTreeSet<&'a str>,
    must: &BTreeSet<&str>,
) -> Vec<FreeDevice<'a>> {
    let mut by_device: BTreeMap<usize, FreeDevice<'a>> = BTreeMap::new();
    let mut roots = BTreeMap::new();
    for id in available {
        let Some(device) = resource.ids.get(*id) else {
            continue;
        };
        let location =
            resource.devices.get(*device).map(|device| (device.numa_node, &device.pcie_root));
        let (next, device) = (roots.len(), *device);
        let root = *roots.entry(location).or_insert(next);
        let free = by_device.entry(device).or_insert_with(|| FreeDevice {
            device,
            ids: VecDeque::new(),
            taken: 0,
            root,
        });
        if must.contains(id) {
            free.taken += 1;
        } else {
            free.ids.push_back(id);
        }
    }
    let mut free: Vec<FreeDevice<'a>> = by_device.into_values().collect();
    // The first slots come first, and `-10` is not before `-2`.
    for free in &mut free {
        free.ids.make_contiguous().sort_by_key(|id| parse_slot(id));
    }
    free
}

/// Returns the scopes to take this number of slots from, best first. Later ones complete an insufficient earlier one.
fn rank_scopes(resource: &Resource, free: &[FreeDevice<'_>], needed: usize) -> Vec<DeviceScope> {
    let (mut roots, mut nodes) = (BTreeMap::new(), BTreeMap::new());
    let all: DeviceScope = free.iter().map(|free| free.device).collect();
    for index in &all {
        let Some(device) = resource.devices.get(*index) else {
            continue;
        };
        if let Some(root) = &device.pcie_root {
            let root: &mut DeviceScope = roots.entry((device.numa_node, root)).or_default();
            root.insert(*index);
        }
        if let Some(node) = device.numa_node {
            let node: &mut DeviceScope = nodes.entry(node).or_default();
            node.insert(*index);
        }
    }
    let ranked = |scopes: &mut dyn Iterator<Item = &DeviceScope>| {
        let mut scopes: Vec<DeviceScope> = scopes.cloned().collect();
        // The sort is stable: equals stay in the order of their numbers and names.
        scopes.sort_by_cached_key(|scope| rank(free, scope, needed));
        scopes
    };
    let (roots, nodes) = (ranked(&mut roots.values()), ranked(&mut nodes.values()));
    let fits = |scope: &&DeviceScope| {
        free.iter().all(|free| free.taken == 0 || scope.contains(&free.device))
            && free_count(free, scope) >= needed
    };
    let best = roots.iter().find(fits).or_else(|| nodes.iter().find(fits));
    best.into_iter().chain(&nodes).cloned().chain([all]).collect()
}

/// Returns the number of devices with a free slot of which the container has none yet.
fn free_count(free: &[FreeDevice<'_>], scope: &DeviceScope) -> usize {
    free.iter()
        .filter(|free| scope.contains(&free.device))
        .filter(|free| free.taken == 0 && !free.ids.is_empty())
        .count()
}

/// Returns the rank of a scope, lower for better ones: those with required devices, then those that suffice, then the
/// one with the most free slots per device, then the smallest that suffices, which keeps larger ones for larger
/// requests. Among insufficient scopes the largest comes first.
fn rank(free: &[FreeDevice<'_>], scope: &DeviceScope, needed: usize) -> impl Ord + use<> {
    let inside = free.iter().filter(|free| scope.contains(&free.device));
    let has: usize = inside.clone().map(|free| free.taken).sum();
    let max_ids = inside.map(|free| free.ids.len()).max().unwrap_or(0);
    let room = free_count(free, scope);
    let (fits, gap) = (room >= needed, room.abs_diff(needed));
    (Reverse(has), !fits, Reverse(max_ids), gap)
}

/// Takes slots from the devices of a scope up to this number of each, preferring devices near those already chosen.
fn take_slots(
    free: &mut [FreeDevice<'_>],
    scope: &DeviceScope,
    size: usize,
    slots: usize,
    chosen: &mut Vec<String>,
) {
    let mut inside: Vec<&mut FreeDevice<'_>> =
        free.iter_mut().filter(|free| scope.contains(&free.device)).collect();
    let mut root_taken: BTreeMap<usize, usize> = BTreeMap::new();
    for free in &inside {
        *root_taken.entry(free.root).or_default() += free.taken;
    }
    while chosen.len() < size {
        let next = inside
            .iter_mut()
            .filter(|free| free.taken < slots && !free.ids.is_empty())
            .min_by_key(|free| {
                let (root_taken, ids) = (root_taken.get(&free.root), free.ids.len());
                (free.taken, Reverse(root_taken), Reverse(ids), free.device)
            });
        let Some(next) = next else { return };
        next.taken += 1;
        *root_taken.entry(next.root).or_default() += 1;
        chosen.extend(next.ids.pop_front().map(str::to_owned));
    }
}

#[cfg(test)]
mod tests {
    use super::super::resource::PluginDevice;
    use super::super::test_devices::{at, exclusive, resource, shared};
    use super::*;

    fn vf(number: u32, node: u32, root: &str) -> PluginDevice {
        let address = format!("0000:81:10.{number}");
        at(exclusive(&address, Some(&address)), node, root)
    }

    /// Two on each of two roots of node 0, three on one root of node 1.
    fn functions() -> Resource {
        let devices = [(0, 0, "a"), (1, 0, "a"), (2, 0, "b"), (3, 0, "b")];
        let others = [(4, 1, "c"), (5, 1, "c"), (6, 1, "c")];
        let devices =
            devices.into_iter().chain(others).map(|(number, node, root)| vf(number, node, root));
        resource("vfio", devices.collect())
    }

    fn ids(resource: &Resource) -> Vec<String> {
        resource.ids.keys().cloned().collect()
    }

    fn asked(
        available: &[String],
        must: &[String],
        size: i32,
    ) -> ContainerPreferredAllocationRequest {
        ContainerPreferredAllocationRequest {
            available_device_i_ds: available.to_vec(),
            must_include_device_i_ds: must.to_vec(),
            allocation_size: size,
        }
    }

    fn chosen(resource: &Resource, must: &[&str], size: i32) -> Vec<String> {
        let must: Vec<String> = must.iter().map(|id| (*id).to_owned()).collect();
        let mut chosen = choose_preferred(resource, &asked(&ids(resource), &must, size)).unwrap();
        assert_eq!(chosen.len(), usize::try_from(size).unwrap());
        chosen.sort();
        let mut once = chosen.clone();
        once.dedup();
        assert_eq!(once, chosen);
        chosen
    }

    fn endings(ids: &[String]) -> String {
        ids.iter().filter_map(|id| id.chars().last()).collect()
    }

    #[test]
    fn all_come_from_one_pcie_root_where_one_has_enough() {
        assert_eq!(endings(&chosen(&functions(), &[], 2)), "01");
        assert_eq!(endings(&chosen(&functions(), &[], 3)), "456");
    }

    #[test]
    fn all_come_from_one_numa_node_where_no_root_has_enough() {
        assert_eq!(endings(&chosen(&functions(), &[], 4)), "0123");
    }

    #[test]
    fn where_no_node_has_enough_the_fewest_nodes_give_all() {
        let five = endings(&chosen(&functions(), &[], 5));
        assert_eq!(five, "01234");
        assert_eq!(endings(&chosen(&functions(), &[], 7)), "0123456");
    }

    #[test]
    fn the_rest_comes_from_beside_what_must_be_included() {
        let functions = functions();
        let two = |must: &str| endings(&chosen(&functions, &[must], 2));
        assert_eq!(two("0000:81:10.3"), "23");
        assert_eq!(two("0000:81:10.5"), "45");
        let across = ["0000:81:10.0", "0000:81:10.4"];
        assert_eq!(endings(&chosen(&functions, &across, 2)), "04");
        assert_eq!(endings(&chosen(&functions, &across, 3)), "045");
        assert_eq!(endings(&chosen(&functions, &["0000:81:10.3"], 3)), "023");
    }

    #[test]
    fn a_device_on_no_known_node_is_taken_last() {
        let unknown = exclusive("0000:01:00.0", Some("0000:01:00.0"));
        let functions = resource("vfio", vec![unknown, vf(0, 1, "a"), vf(1, 1, "a")]);
        assert_eq!(endings(&chosen(&functions, &[], 2)), "01");
        assert!(chosen(&functions, &[], 2).iter().all(|id| id.starts_with("0000:81")));
        assert_eq!(chosen(&functions, &[], 3).len(), 3);
    }

    #[test]
    fn different_devices_are_given_before_two_slots_of_one() {
        let nics = vec![at(shared("ens1", 3), 0, "a"), at(shared("ens2", 3), 0, "b")];
        let nics = resource("nic", nics);
        assert_eq!(chosen(&nics, &[], 2), ["ens1-0", "ens2-0"]);
        assert_eq!(chosen(&nics, &[], 3).len(), 3);
        assert_eq!(chosen(&nics, &["ens2-2"], 2), ["ens1-0", "ens2-2"]);
    }

    #[test]
    fn two_interfaces_are_given_although_each_is_on_a_node_of_its_own() {
        let nics = vec![at(shared("ens1", 3), 0, "a"), at(shared("ens2", 3), 1, "b")];
        let nics = resource("nic", nics);
        assert_eq!(chosen(&nics, &[], 2), ["ens1-0", "ens2-0"]);
        assert_eq!(chosen(&nics, &["ens1-1"], 2), ["ens1-1", "ens2-0"]);
        assert_eq!(chosen(&nics, &[], 5).len(), 5);
        assert_eq!(chosen(&nics, &[], 6).len(), 6);
    }

    #[test]
    fn a_node_with_two_interfaces_goes_before_one_with_more_slots() {
        let nics = vec![
            at(shared("ens1", 9), 0, "a"),
            at(shared("ens2", 3), 1, "b"),
            at(shared("ens3", 3), 1, "c"),
        ];
        let nics = resource("nic", nics);
        assert_eq!(chosen(&nics, &[], 2), ["ens2-0", "ens3-0"]);
        assert_eq!(chosen(&nics, &[], 1), ["ens1-0"]);
        assert_eq!(chosen(&nics, &[], 3), ["ens1-0", "ens2-0", "ens3-0"]);
    }

    #[test]
    fn the_device_with_the_most_free_slots_comes_first() {
        let nics = vec![at(shared("ens1", 4), 0, "a"), at(shared("ens2", 4), 1, "b")];
        let nics = resource("nic", nics);
        let available: Vec<String> = ["ens1-1", "ens2-0", "ens2-3"].map(str::to_owned).to_vec();
        let asked = asked(&available, &[], 1);
        assert_eq!(choose_preferred(&nics, &asked).unwrap(), ["ens2-0"]);
    }

    #[test]
    fn the_first_slots_of_a_device_are_given_first_however_many_there_are() {
        let nics = resource("nic", vec![shared("ens1", 12), shared("ens2", 12)]);
        let mut available = ids(&nics);
        let mut given = Vec::new();
        for _ in 0..24 {
            let one = choose_preferred(&nics, &asked(&available, &[], 1)).unwrap();
            available.retain(|id| !one.contains(id));
            given.extend(one);
        }
        for device in ["ens1", "ens2"] {
            let of_device = given.iter().filter(|id| id.starts_with(device));
            let in_order = (0..12).map(|slot| format!("{device}-{slot}"));
            assert!(of_device.cloned().eq(in_order), "{given:?}");
        }
    }

    #[test]
    fn ids_that_are_no_longer_there_are_passed_over() {
        let nics = resource("nic", vec![shared("ens1", 2)]);
        let available: Vec<String> = ["gone-0", "ens1-1"].map(str::to_owned).to_vec();
        let asked = |size| asked(&available, &[], size);
        assert_eq!(choose_preferred(&nics, &asked(1)).unwrap(), ["ens1-1"]);
        assert_eq!(
            choose_preferred(&nics, &asked(2)).unwrap_err().to_string(),
            "2 devices are requested, but only 1 of the free ones are known"
        );
    }

    #[test]
    fn a_request_that_cannot_be_met_is_refused() {
        let nics = resource("nic", vec![shared("ens1", 3)]);
        let ids = ids(&nics);
        let (free, must) = ids.split_at(1);
        let error = choose_preferred(&nics, &asked(free, must, 3)).unwrap_err();
        assert_eq!(error.to_string(), "device \"ens1-1\" must be included but is not free");
        let error = choose_preferred(&nics, &asked(&ids, must, 1)).unwrap_err();
        assert_eq!(error.to_string(), "1 device is requested, but 2 must be among them");
        for none in [0, -1] {
            assert!(choose_preferred(&nics, &asked(&ids, &[], none)).unwrap().is_empty());
        }
    }

    #[test]
    fn a_node_of_thousands_of_devices_is_answered() {
        let vf = |number: u32| {
            let address = format!(
                "{:04x}:{:02x}:{:02x}.0",
                number >> 13,
                (number >> 5) & 0xff,
                number & 0x1f
            );
            at(exclusive(&address, Some(&address)), number % 2, "a")
        };
        let many = resource("vfio", (0..4096).map(vf).collect());
        let chosen = chosen(&many, &[], 1024);
        let nodes = chosen.iter().map(|id| many.device(id).unwrap().numa_node);
        assert!(nodes.into_iter().all(|node| node == Some(0)));
    }
}
