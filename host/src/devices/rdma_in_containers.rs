//! RDMA devices in containers' network namespaces, in netns mode exclusive. The host does not see them; their leases
//! have their data.

use onload_core::class::Class;
use onload_lease::SavedState;
use onload_lease::run_dir::RUN_DIR;

use super::interfaces::{saved_state, trouble_reason};
use super::inventory::Inventory;
use crate::discover::rdma::RdmaDevice;
use crate::leases::LeaseComparison;

pub(super) fn add_away_devices(
    leases: &Result<LeaseComparison, anyhow::Error>,
    inventory: &mut Inventory,
) {
    if !inventory.is_rdma_exclusive() {
        return;
    }
    match leases {
        Ok(leases) => {
            for device in list_rdma_away(leases, inventory) {
                // Containers that share a network namespace have it together, and a device that they lost may be on the
                // host.
                match inventory.rdma.iter_mut().find(|known| known.name == device.name) {
                    Some(known) => known.trouble = device.trouble,
                    None => inventory.rdma.push(device),
                }
            }
        }
        Err(error) => {
            let what = "the RDMA devices in containers";
            inventory.add_unread(RUN_DIR, &[Class::Rdma], what, error);
        }
    }
    inventory.rdma.sort_by(|one, other| one.name.cmp(&other.name));
}

fn list_rdma_away(leases: &LeaseComparison, inventory: &Inventory) -> Vec<RdmaDevice> {
    let mut away = Vec::new();
    for (entry, is_current) in leases.entries() {
        let Some(SavedState::Rdma(saved)) = saved_state(entry, Class::Rdma) else {
            continue;
        };
        let trouble = trouble_reason(entry, is_current, inventory);
        // A device on the host has returned, and its lease is about to end.
        if trouble.is_some() || !inventory.rdma.iter().any(|device| device.name == saved.name) {
            let function = inventory.functions.get(saved.pci);
            away.push(RdmaDevice {
                name: saved.name.clone(),
                pci_address: Some(saved.pci),
                trouble,
                numa_node: function.and_then(|function| function.numa_node),
                device: entry.device.name.to_string(),
                // Not recorded in the lease.
                ..RdmaDevice::default()
            });
        }
    }
    away
}

#[cfg(test)]
mod tests {
    use onload_core::config::Config;

    use super::*;
    use crate::devices::rdma::by_function;
    use crate::devices::{Health, RETRIEVE_REMEDY};
    use crate::discover::test_tree::{AsHost, Tree};
    use crate::pools::{PoolSet, discover_with_pools};

    /// A host in a mode with mlx5_0, and with the function of mlx5_3, which a container has.
    fn tree(mode: &str) -> Tree {
        let tree = Tree::new();
        tree.file("/sys/module/ib_core/parameters/netns_mode", mode);
        let here = tree.function("0000:3b:00.0", "0x020000", 0);
        tree.function("0000:3b:00.3", "0x020000", 1);
        let attributes = [("node_type", "1: CA")];
        tree.class_device("infiniband", &here, "mlx5_0", &attributes);
        let verbs = [("ibdev", "mlx5_0"), ("dev", "231:192")];
        tree.class_device("infiniband_verbs", &here, "uverbs0", &verbs);
        tree.node("/dev/infiniband/uverbs0", 231, 192);
        tree.boot("this boot");
        for (name, slot) in [("mlx5_3", 0), ("mlx5_3", 1), ("mlx5_0", 0)] {
            let text = format!(
                r#"{{"version":1,"class":"rdma","name":"{name}","slot":{slot},"boot":"this boot","container":"web{slot}",
                "bundle":"/b/web","holder":{{"init":{{"process":{{"pid":42,"startTime":7,"pidNamespace":1}}}}}},
                "entryPoint":"createRuntime","since":1,"facts":{{}},"moved":{{"rdma":{{"name":"{name}",
                "pci":"0000:3b:00.3","index":3}},"namespace":7,"returning":true}}}}"#
            );
            tree.file(&format!("/run/onload-ctk/@leases/rdma={name}#{slot}"), text);
        }
        tree
    }

    fn found(mode: &str, text: &str) -> (Vec<(String, Option<u32>)>, PoolSet) {
        let config = Config::parse(text).unwrap();
        let (inventory, pools) = discover_with_pools(&tree(mode).host(), &config);
        let devices = inventory.rdma.iter().map(|device| (device.device.clone(), device.numa_node));
        (devices.collect(), pools)
    }

    #[test]
    fn a_device_in_a_container_stays_with_what_its_lease_says_of_it() {
        let (devices, _) = found("N\n", "");
        let wanted = [("mlx5_0".to_owned(), Some(0)), ("mlx5_3".to_owned(), Some(1))];
        assert_eq!(devices, wanted);
    }

    #[test]
    fn a_device_that_its_container_has_lost_is_not_healthy() {
        const FUNCTION: &str = "/sys/bus/pci/devices/0000:3b:00.3";
        let health = |change: &dyn Fn(&Tree)| {
            let tree = tree("N\n");
            tree.bind(FUNCTION, "mlx5_core");
            for slot in 0..2 {
                let path = format!("/run/onload-ctk/@leases/rdma=mlx5_3#{slot}");
                let text = tree.read(&path);
                tree.file(&path, text.replace("\"returning\":true", "\"returning\":false"));
            }
            change(&tree);
            let (inventory, _) = discover_with_pools(&tree.host(), &Config::default());
            let mut devices = inventory.devices_of_class(Class::Rdma);
            let lost = devices.find(|one| one.name.as_str() == "mlx5_3").unwrap();
            lost.health.clone()
        };
        let lost = |why: &str| {
            let why = format!("its container no longer has it: {why}; {RETRIEVE_REMEDY}");
            Health::Unhealthy(why)
        };
        assert_eq!(health(&|_| ()), Health::Healthy);
        let gone = health(&|tree| {
            tree.remove(FUNCTION);
        });
        assert_eq!(gone, lost("its function 0000:3b:00.3 no longer exists"));
        let anew = |name: &str| {
            health(&|tree| {
                tree.rdma(FUNCTION, name, 3);
            })
        };
        let why = "its driver was reloaded, and it is on the host";
        assert_eq!(anew("mlx5_3"), lost(why));
        // One of a subfunction.
        assert_eq!(anew("mlx5_4"), Health::Healthy);
    }

    #[test]
    fn a_device_that_is_here_stands_for_its_function_before_one_that_is_away() {
        let tree = tree("N\n");
        let of_function = || {
            let (inventory, _) = discover_with_pools(&tree.host(), &Config::default());
            let by_address = by_function(inventory.rdma.iter());
            by_address[&"0000:3b:00.3".parse().unwrap()].name.clone()
        };
        assert_eq!(of_function(), "mlx5_3");
        // A device in a container may belong to a subfunction.
        tree.rdma("/sys/bus/pci/devices/0000:3b:00.3", "rocep59s0f3", 3);
        assert_eq!(of_function(), "rocep59s0f3");
    }

    #[test]
    fn in_shared_mode_no_lease_says_that_a_device_is_there() {
        let (devices, pools) = found("Y\n", "");
        assert_eq!(devices, [("mlx5_0".to_owned(), Some(0))]);
        assert!(pools.offered.is_empty(), "its containers are not counted");
    }

    #[test]
    fn in_exclusive_mode_one_container_has_a_member_of_a_pool_whatever_is_configured() {
        let text = "[leases]\nshare = { rdma = 500 }\n[pools.fast]\nclass = \"rdma\"\nshare = 7\nselect = { numa = 1 }\n";
        let (_, pools) = found("N\n", text);
        let offered: Vec<_> = pools
            .offered
            .iter()
            .map(|pool| (pool.name.as_str(), pool.pool.share, pool.pool.members.len()))
            .collect();
        assert_eq!(offered, [("any", 1, 2), ("fast", 1, 1)]);
        assert_eq!(pools.shares.share(Class::Rdma), Some(1));
    }
}
