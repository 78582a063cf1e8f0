//! The ids of devices. kubelet keeps them across restarts, so they depend only on the device, and not on the number or
//! order of others.

use std::collections::BTreeMap;

use super::resource::PluginDevice;

/// Assigns ids to devices: an exclusive device has its PCI address, which SR-IOV CNI expects as id, or its name; a
/// shared device has `NAME-0`, `NAME-1` and so on.
///
/// The number after the last `-` ends the name, so that two shared devices never have the same id. An exclusive device
/// without its own address could have the name of another one's slot: it gets no id and its index is returned.
pub(crate) fn assign_ids(devices: &[PluginDevice]) -> (BTreeMap<String, usize>, Vec<usize>) {
    let mut ids = BTreeMap::new();
    let mut without = Vec::new();
    for (index, device) in devices.iter().enumerate() {
        let own_ids = match device.slots {
            Some(slots) => (0..slots).map(|slot| format!("{}-{slot}", device.name)).collect(),
            None => vec![exclusive_id(device, devices)],
        };
        if own_ids.iter().any(|id| ids.contains_key(id)) {
            without.push(index);
        } else {
            ids.extend(own_ids.into_iter().map(|id| (id, index)));
        }
    }
    (ids, without)
}

/// Returns the id of an exclusive device. If several RDMA devices are on one function, none of them uses its address.
fn exclusive_id(device: &PluginDevice, devices: &[PluginDevice]) -> String {
    // The name of a vfio device is its address anyway.
    let Some(address) = device.pci.filter(|address| address.to_string() != device.name) else {
        return device.name.clone();
    };
    let mut on_function =
        devices.iter().filter(|other| other.slots.is_none() && other.pci == Some(address));
    match (on_function.next(), on_function.next()) {
        (Some(_), None) => address.to_string(),
        _ => device.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_devices::{exclusive, shared};
    use super::*;

    fn names(devices: &[PluginDevice]) -> Vec<String> {
        let (ids, without) = assign_ids(devices);
        assert!(without.is_empty(), "{without:?}");
        ids.into_keys().collect()
    }

    #[test]
    fn the_id_of_an_exclusive_pci_device_is_its_address() {
        let devices = [exclusive("mlx5_0", Some("0000:3b:00.0"))];
        assert_eq!(names(&devices), ["0000:3b:00.0"]);
        let devices = [exclusive("0000:81:10.0", Some("0000:81:10.0"))];
        assert_eq!(names(&devices), ["0000:81:10.0"]);
        assert_eq!(names(&[exclusive("rxe0", None)]), ["rxe0"]);
    }

    #[test]
    fn two_exclusive_devices_of_one_function_go_by_their_names() {
        let function = Some("0000:3b:00.0");
        let devices = [exclusive("mlx4_0", function), exclusive("mlx4_1", function)];
        assert_eq!(names(&devices), ["mlx4_0", "mlx4_1"]);
    }

    #[test]
    fn a_shared_device_has_an_id_for_each_slot() {
        let devices = [shared("ens1", 2), shared("ens1-1", 2), shared("a.b:c", 1)];
        let ids = ["a.b:c-0", "ens1-0", "ens1-1", "ens1-1-0", "ens1-1-1"];
        assert_eq!(names(&devices), ids);
    }

    #[test]
    fn the_ids_of_a_device_do_not_depend_on_the_others() {
        let alone = names(&[shared("ens2", 3)]);
        let among = names(&[shared("ens1", 3), shared("ens2", 3), shared("ens3", 1)]);
        assert!(alone.iter().all(|id| among.contains(id)));
    }

    #[test]
    fn a_device_whose_id_another_has_gets_none() {
        let devices = [shared("rxe", 2), exclusive("rxe-1", None)];
        let (ids, without) = assign_ids(&devices);
        assert_eq!(ids.into_keys().collect::<Vec<_>>(), ["rxe-0", "rxe-1"]);
        assert_eq!(without, [1]);
    }
}
