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
    index: usize,
    node: Option<u32>,
    root: Option<&'a str>,
    ids: VecDeque<&'a str>,
    /// The number of slots that the container has.
    taken: usize,
}

/// The devices of a NUMA node or a PCIe root.
#[derive(Clone, Copy, Debug, Default)]
struct DeviceScope {
    taken: usize,
    taken_devices: usize,
    /// The number of devices with a free slot of which the container has none yet.
    free_devices: usize,
    max_ids: usize,
}

impl DeviceScope {
    fn add(&mut self, device: &FreeDevice<'_>) {
        self.taken += device.taken;
        self.max_ids = self.max_ids.max(device.ids.len());
        if device.taken > 0 {
            self.taken_devices += 1;
        } else if !device.ids.is_empty() {
            self.free_devices += 1;
        }
    }

    /// Returns the rank, lower for better ones: those with required devices, then those that suffice, then the one with
    /// the most free slots per device, then the smallest that suffices, which keeps larger ones for larger requests.
    /// Among insufficient scopes the largest comes first.
    fn rank(self, needed: usize) -> impl Ord {
        let is_insufficient = self.free_devices < needed;
        let gap = self.free_devices.abs_diff(needed);
        (Reverse(self.taken), is_insufficient, Reverse(self.max_ids), gap)
    }
}

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
    sort_devices(&mut free, size - must.len());
    let mut chosen: Vec<String> = must.iter().map(|id| (*id).to_owned()).collect();
    let mut slots = 1;
    // There are enough free slots: each round takes a slot of each device that has one.
    while chosen.len() < size {
        for device in free.iter_mut().filter(|device| device.taken < slots) {
            if chosen.len() < size
                && let Some(id) = device.ids.pop_front()
            {
                device.taken += 1;
                chosen.push(id.to_owned());
            }
        }
        slots += 1;
    }
    Ok(chosen)
}

fn free_devices<'a>(
    resource: &'a Resource,
    available: &BTreeSet<&'a str>,
    must: &BTreeSet<&str>,
) -> Vec<FreeDevice<'a>> {
    let mut by_index: BTreeMap<usize, FreeDevice<'a>> = BTreeMap::new();
    for id in available {
        let Some((index, device)) =
            resource.ids.get(*id).and_then(|index| Some((*index, resource.devices.get(*index)?)))
        else {
            continue;
        };
        let free = by_index.entry(index).or_insert_with(|| FreeDevice {
            index,
            node: device.numa_node,
            root: device.pcie_root.as_deref(),
            ids: VecDeque::new(),
            taken: 0,
        });
        if must.contains(id) {
            free.taken += 1;
        } else {
            free.ids.push_back(id);
        }
    }
    let mut free: Vec<FreeDevice<'a>> = by_index.into_values().collect();
    // The first slots come first, and `-10` is not before `-2`.
    for free in &mut free {
        free.ids.make_contiguous().sort_by_key(|id| parse_slot(id));
    }
    free
}

/// Sorts devices by how well they fit a request for this number of further slots: a root that suffices comes first, then
/// the devices of each NUMA node together, and among these the devices of each root.
fn sort_devices(free: &mut [FreeDevice<'_>], needed: usize) {
    let mut roots: BTreeMap<(Option<u32>, Option<&str>), DeviceScope> = BTreeMap::new();
    let mut nodes: BTreeMap<Option<u32>, DeviceScope> = BTreeMap::new();
    for device in free.iter() {
        roots.entry((device.node, device.root)).or_default().add(device);
        nodes.entry(device.node).or_default().add(device);
    }
    let taken_devices: usize = nodes.values().map(|node| node.taken_devices).sum();
    free.sort_by_cached_key(|device| {
        let (root, node) = (roots[&(device.node, device.root)], nodes[&device.node]);
        let fits = device.root.is_some()
            && root.taken_devices == taken_devices
            && root.free_devices >= needed;
        let outer = if fits { root } else { node };
        (
            (!fits, device.node.is_none()),
            (outer.rank(needed), device.node),
            (root.rank(needed), device.root.map(str::to_owned)),
            (Reverse(device.ids.len()), device.index),
        )
    });
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
