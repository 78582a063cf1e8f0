//! The interfaces that may move into containers: those that `[discover] offer-netdevs` names or a pool selects, unless
//! the host uses them; and the interfaces and RDMA devices that are in containers.

use std::collections::BTreeSet;

use onload_core::class::Class;
use onload_core::config::{Config, Mover, PoolConfig};
use onload_core::host_settings::InterfaceName;
use onload_core::timestamp;
use onload_lease::run_dir::RUN_DIR;
use onload_lease::{LeaseEntry, SavedState};
use onload_sys::pci::PciAddress;

use super::classes::netdev_device;
use super::device::{HostDevice, RETURNING, STATE_HELD};
use super::function_index::FunctionIndex;
use super::inventory::Inventory;
use super::selection::select;
use crate::discover::exclusion::Exclusion;
use crate::discover::movable_interface::{Netdev, may_offer_interfaces};
use crate::discover::nic::Nic;
use crate::discover::pci::PciFunction;
use crate::discover::rdma::RdmaDevice;
use crate::discover::taken_names::TakenNames;

/// The state of an interface that a CNI plugin has moved.
const STATE_AWAY: &str = "away";
const VFIO: &str = "vfio-pci";
/// Age in seconds from which a lease is compared with the host: leases are written before their device moves, and
/// reading a host takes time.
const MOVE_SECONDS: u64 = 60;
/// The remedy for a container that has lost its device.
pub const RETRIEVE_REMEDY: &str =
    "check that its function exists and is bound to its driver, then start the container again";

const AF_XDP_SETTING: &str = "[host] af-xdp";

const NOT_NAMED_REASON: &str = "neither [discover] offer-netdevs nor a pool of class netdev lists \
    it; add it there to offer it";

/// Adds the offered interfaces to the inventory, and a reason for each of the others. An interface in a container stays
/// offered, with the data in its lease.
pub(super) fn add_interfaces(
    leases: &anyhow::Result<Vec<(LeaseEntry, bool)>>,
    inventory: &mut Inventory,
    config: &Config,
) {
    if !may_offer_interfaces(config) {
        return;
    }
    let selected = selected_interfaces(inventory, config);
    let plugin_functions = cni_functions(inventory, config);
    let away_netdevs = match leases {
        Ok(leases) => interfaces_away(leases, inventory),
        Err(error) => {
            let what = "the interfaces in containers";
            inventory.add_unread(RUN_DIR, &[Class::Netdev], what, error);
            Vec::new()
        }
    };
    let nics = accelerated_interfaces(&away_netdevs, inventory);
    let mut nic_names: BTreeSet<String> = nics.iter().map(|nic| nic.name.clone()).collect();
    nic_names.extend(nics.iter().filter_map(|nic| Some(nic.pci_address?.to_string())));
    inventory.not_offered.retain(|exclusion| {
        exclusion.kind != Class::Nic.into() || !nic_names.contains(&exclusion.name)
    });
    inventory.nics.extend(nics);
    let mut offered: Vec<Netdev> = Vec::new();
    for movable in &inventory.movable {
        let netdev = &movable.netdev;
        // The interface has returned under the container's name for it and is not restored yet.
        if away_netdevs.iter().any(|away| away.pci_address == netdev.pci_address) {
            continue;
        }
        let is_named = movable.is_named || selected.contains(&netdev.name);
        let reason = match is_named {
            true => movable.obstacle.as_deref(),
            false => Some(NOT_NAMED_REASON),
        };
        match reason {
            // A CNI plugin is given the PCI function, whatever its interface is called.
            None if plugin_functions.contains(&netdev.pci_address) => {
                offered.push(Netdev { device: netdev.pci_address.to_string(), ..netdev.clone() });
            }
            None => offered.push(netdev.clone()),
            Some(reason) => {
                let exclusion = Exclusion::new(Class::Netdev, netdev.name.as_str(), reason);
                inventory.not_offered.push(exclusion);
            }
        }
    }
    let functions = inventory.functions.iter().filter(|function| {
        let mut on_host = inventory.movable.iter();
        plugin_functions.contains(&function.address)
            && !on_host.any(|movable| movable.netdev.pci_address == function.address)
    });
    offered.extend(functions.map(with_plugin));
    offered.extend(away_netdevs);
    offered.sort_by(|one, other| one.device.cmp(&other.device));
    // Containers that share a network namespace have it together.
    offered.dedup_by(|one, other| one.device == other.device);
    inventory.netdevs = offered;
    for interface in inventory.interfaces.iter().filter(|interface| interface.pci().is_none()) {
        if config.discover.offer_netdevs.iter().any(|glob| glob.matches(&interface.name)) {
            let reason = "it is not the interface of a PCI function, by which a returning interface \
                is found; this is unsupported";
            let exclusion = Exclusion::new(Class::Netdev, interface.name.as_str(), reason);
            inventory.not_offered.push(exclusion);
        }
    }
}

/// Warns about configured interfaces that the host does not have, since they may be misspelt. Does not warn if
/// interfaces could not be read or are away under unknown names.
pub(super) fn warn_of_absent(inventory: &mut Inventory, config: &Config) {
    if is_list_incomplete(inventory) {
        return;
    }
    let names = known_names(inventory);
    let mut absent: Vec<(String, String)> = Vec::new();
    for glob in &config.discover.offer_netdevs {
        if !names.iter().any(|name| glob.matches(name)) {
            absent.push((glob.to_string(), "[discover] offer-netdevs".to_owned()));
        }
    }
    for name in config.netdev.keys() {
        let function = name.parse().ok().and_then(|address| inventory.functions.get(address));
        if function.is_none() && !names.contains(&name.as_str()) {
            absent.push((name.clone(), format!("[netdev.{name}]")));
        }
    }
    for name in absent_af_xdp(inventory, config) {
        absent.push((name.to_owned(), AF_XDP_SETTING.to_owned()));
    }
    for (name, setting) in absent {
        let class = if setting == AF_XDP_SETTING { Class::Nic } else { Class::Netdev };
        inventory.warnings.push(format!(
            "{setting} lists {name:?}, but interface not found: correct or remove it"
        ));
        let reason =
            format!("interface not found, but {setting} lists it; correct or remove it there");
        inventory.not_offered.push(Exclusion::new(class, name, reason));
    }
}

/// Returns the interfaces of `[host] af-xdp` that the host does not have. Empty with `[[sriov]]`, which may create them
/// at boot.
pub fn absent_af_xdp<'c>(inventory: &Inventory, config: &'c Config) -> Vec<&'c str> {
    if !config.sriov.is_empty() || is_list_incomplete(inventory) {
        return Vec::new();
    }
    let names = known_names(inventory);
    let configured = config.host.af_xdp.iter().map(InterfaceName::as_str);
    configured
        .filter(|name| !names.contains(name))
        .filter(|name| !inventory.other_netns_nics.names.contains_key(*name))
        .collect()
}

/// Returns whether interfaces could not be read or are away under unknown names.
fn is_list_incomplete(inventory: &Inventory) -> bool {
    let undecided = inventory.undecided_classes();
    let mut netdevs = inventory.netdevs.iter();
    undecided.contains(&Class::Nic)
        || undecided.contains(&Class::Netdev)
        || netdevs.any(|netdev| netdev.interface().is_none())
}

fn known_names(inventory: &Inventory) -> Vec<&str> {
    let away_names =
        inventory.netdevs.iter().flat_map(|netdev| [netdev.name.as_str(), netdev.device.as_str()]);
    let interfaces = inventory.interfaces.iter().map(|interface| interface.name.as_str());
    interfaces.chain(away_names).collect()
}

/// Returns why a container no longer has the leased interface or RDMA device. Unbinding the driver or removing the
/// function destroys a device in any network namespace, and a new one is created on the host (`alloc_netdev_mqs` in
/// net/core/dev.c, `_ib_alloc_device` in drivers/infiniband/core/device.c).
pub fn lost_reason(entry: &LeaseEntry, inventory: &Inventory) -> Option<String> {
    let lease = entry.lease.as_ref().ok()?;
    let saved = &lease.moved.as_ref()?.saved;
    let is_settled = lease.since.saturating_add(MOVE_SECONDS) <= timestamp::unix_seconds();
    let is_known = !inventory.undecided_classes().contains(&entry.device.class);
    if entry.is_returning() || !is_settled || !is_known {
        return None;
    }
    let pci = saved.pci();
    let is_on_host = match saved {
        SavedState::Interface(_) => {
            let mut on_host = inventory.interfaces.iter();
            on_host.any(|one| one.pci() == Some(pci) && !one.is_representor())
        }
        // A function may have several RDMA devices, including those of its subfunctions.
        SavedState::Rdma(rdma) => {
            let mut on_host = inventory.rdma.iter();
            on_host.any(|one| one.name == rdma.name && !one.ports.is_empty())
        }
        SavedState::Function(_) => return None,
    };
    let Some(function) = inventory.functions.get(pci) else {
        return Some(format!("its function {pci} no longer exists"));
    };
    if !has_interface_driver(function) {
        return Some(format!("its function {pci} has lost its driver"));
    }
    is_on_host.then(|| "its driver was reloaded, and it is on the host".to_owned())
}

/// Like [`lost_reason`], for an offered device. The lease may have ended while the host was read.
fn trouble_reason(entry: &LeaseEntry, is_current: bool, inventory: &Inventory) -> Option<String> {
    let reason = lost_reason(entry, inventory).filter(|_| is_current)?;
    Some(format!("its container no longer has it: {reason}; {RETRIEVE_REMEDY}"))
}

/// Returns the interfaces that are in containers, or were returning while the host was read.
fn interfaces_away(leases: &[(LeaseEntry, bool)], inventory: &Inventory) -> Vec<Netdev> {
    let mut away = Vec::new();
    for (entry, is_current) in leases {
        let Some(SavedState::Interface(interface)) = saved_state(entry, Class::Netdev) else {
            continue;
        };
        let trouble = trouble_reason(entry, *is_current, inventory);
        let is_on_host = inventory.movable.iter().any(|movable| {
            movable.netdev.pci_address == interface.pci && movable.netdev.name == interface.name
        });
        // It has returned under its name, and the lease is about to end.
        if trouble.is_none() && is_on_host {
            continue;
        }
        let function = inventory.functions.get(interface.pci);
        let state = if entry.is_returning() { RETURNING } else { STATE_HELD };
        away.push(Netdev {
            name: interface.name.clone(),
            device: entry.device.name.to_string(),
            pci_address: interface.pci,
            numa_node: function.and_then(|function| function.numa_node),
            driver: function.and_then(|function| function.driver.clone()),
            state: is_current.then(|| state.to_owned()),
            speed_mbps: None,
            trouble,
        });
    }
    away
}

/// Adds the RDMA devices in containers' network namespaces, in netns mode exclusive. The host does not see them; their
/// leases have their data.
pub(super) fn add_rdma_devices(
    leases: &anyhow::Result<Vec<(LeaseEntry, bool)>>,
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

fn list_rdma_away(leases: &[(LeaseEntry, bool)], inventory: &Inventory) -> Vec<RdmaDevice> {
    let mut away = Vec::new();
    for (entry, is_current) in leases {
        let Some(SavedState::Rdma(saved)) = saved_state(entry, Class::Rdma) else {
            continue;
        };
        let trouble = trouble_reason(entry, *is_current, inventory);
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

/// Returns what the lease of a device of this class records about its move.
fn saved_state(entry: &LeaseEntry, class: Class) -> Option<&SavedState> {
    let moved = entry.lease.as_ref().ok()?.moved.as_ref()?;
    (entry.device.class == class).then_some(&moved.saved)
}

/// Returns those that Onload accelerates. They stay offered, since a restarted container requests the same devices
/// before its interface has returned.
fn accelerated_interfaces(away_netdevs: &[Netdev], inventory: &Inventory) -> Vec<Nic> {
    let mut nics: Vec<Nic> = Vec::new();
    for netdev in away_netdevs {
        let (name, pci) = (netdev.name.as_str(), netdev.pci_address);
        let Some(datapath) = inventory.other_netns_nics.datapath(name, pci) else {
            continue;
        };
        let Ok(device) = TakenNames::default().choose(name, Some(pci)) else {
            continue;
        };
        let mut other_nics = inventory.nics.iter().chain(&nics);
        if other_nics.any(|nic| nic.device == device) {
            continue;
        }
        let function = inventory.functions.get(pci);
        nics.push(Nic {
            name: name.to_owned(),
            device,
            pci_address: Some(pci),
            numa_node: netdev.numa_node,
            driver: netdev.driver.clone(),
            datapath,
            stacks: None,
            speed_mbps: None,
            state: netdev.state.clone(),
            virtual_functions: function.map(PciFunction::vf_addresses).unwrap_or_default(),
        });
    }
    nics
}

/// Returns a function whose interface a CNI plugin has moved. The interface's name is unknown.
fn with_plugin(function: &PciFunction) -> Netdev {
    Netdev {
        name: function.address.to_string(),
        device: function.address.to_string(),
        pci_address: function.address,
        numa_node: function.numa_node,
        driver: function.driver.clone(),
        state: Some(STATE_AWAY.to_owned()),
        speed_mbps: None,
        trouble: None,
    }
}

fn has_interface_driver(function: &PciFunction) -> bool {
    let driver = function.driver.as_deref();
    driver.is_some_and(|driver| driver != VFIO)
}

/// Returns the functions whose interfaces a CNI plugin moves. They stay offered after the move, because a container's
/// specification is resolved later.
fn cni_functions(inventory: &Inventory, config: &Config) -> BTreeSet<PciAddress> {
    let pools: Vec<_> = config
        .pools
        .values()
        .filter(|pool| pool.class == Class::Netdev && pool.mover == Mover::Cni)
        .collect();
    if pools.is_empty() {
        return BTreeSet::new();
    }
    let netdevs: Vec<Netdev> = inventory
        .functions
        .iter()
        .filter(|function| function.is_network() && has_interface_driver(function))
        .map(with_plugin)
        .collect();
    interfaces_in_pools(&pools, &netdevs.iter().collect::<Vec<_>>(), inventory)
        .iter()
        .map(|netdev| netdev.pci_address)
        .collect()
}

fn selected_interfaces(inventory: &Inventory, config: &Config) -> BTreeSet<String> {
    let pools: Vec<_> = config.pools.values().filter(|pool| pool.class == Class::Netdev).collect();
    let netdevs = inventory.movable.iter().map(|movable| &movable.netdev);
    let chosen = interfaces_in_pools(&pools, &netdevs.collect::<Vec<_>>(), inventory);
    chosen.iter().map(|netdev| netdev.name.clone()).collect()
}

fn interfaces_in_pools<'n>(
    pools: &[&PoolConfig],
    netdevs: &[&'n Netdev],
    inventory: &Inventory,
) -> Vec<&'n Netdev> {
    if pools.is_empty() {
        return Vec::new();
    }
    let function_index = FunctionIndex::from_inventory(inventory);
    let devices: Vec<(&Netdev, HostDevice)> = netdevs
        .iter()
        .filter_map(|netdev| Some((*netdev, netdev_device(netdev, &function_index)?)))
        .collect();
    let candidates: Vec<Vec<&HostDevice>> =
        devices.iter().map(|(_, device)| vec![device]).collect();
    let mut selected = Vec::new();
    for pool in pools {
        let chosen = select(&candidates, &pool.select, &function_index).chosen;
        for ((netdev, _), is_chosen) in devices.iter().zip(chosen) {
            if is_chosen {
                selected.push(*netdev);
            }
        }
    }
    selected
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::devices::{Health, discover};
    use crate::discover::nic::Datapath;
    use crate::discover::test_tree::{AsHost, Tree, sample};
    use crate::generate::{InstalledFiles, generate};
    use crate::leases;
    use crate::pools::{PoolSet, discover_with_pools};
    use crate::spec_name::SpecName;

    /// A host with a function of each of these interfaces, and what the kernel says of them by netlink.
    fn tree(interfaces: &[&str], network: &str) -> Tree {
        let tree = Tree::new();
        let mut table = String::new();
        for (index, name) in interfaces.iter().enumerate() {
            let function = tree.function(&format!("0000:3b:02.{index}"), "0x020000", 1);
            tree.bind(&function, "igbvf");
            tree.class_device("net", &function, name, &[("operstate", "down")]);
            writeln!(table, "link {} {name} - - - -", index + 2).unwrap();
        }
        tree.file("/network.table", table + network);
        tree
    }

    fn config(text: &str) -> Config {
        Config::parse(text).unwrap()
    }

    fn found(tree: &Tree, text: &str) -> (Vec<String>, Vec<String>, PoolSet) {
        let (inventory, pools) = discover_with_pools(&tree.host(), &config(text));
        let offered = inventory.netdevs.iter();
        let reasons =
            inventory.not_offered.iter().filter(|entry| entry.kind == Class::Netdev.into());
        (
            offered.map(|netdev| netdev.device.clone()).collect(),
            reasons.map(|entry| format!("{}: {}", entry.name, entry.reason)).collect(),
            pools,
        )
    }

    #[test]
    fn an_idle_interface_is_offered_only_where_the_configuration_names_it() {
        let tree = tree(&["ens1v0", "ens1v1", "ens2v0"], "");
        let (offered, reasons, _) = found(&tree, "");
        assert!(offered.is_empty() && reasons.is_empty(), "{reasons:?}");
        let (offered, reasons, pools) = found(&tree, "[discover]\noffer-netdevs = [\"ens1v*\"]\n");
        assert_eq!(offered, ["ens1v0", "ens1v1"]);
        let stays = format!("ens2v0: {NOT_NAMED_REASON}");
        assert_eq!(reasons, [stays.as_str()]);
        // One container has each of them at a time, so the class has the pool of all.
        assert_eq!(pools.offered[0].name.as_str(), "any");
        assert_eq!(pools.offered[0].pool.members.len(), 2);
        let pool = "[pools.fast]\nclass = \"netdev\"\nselect = { interfaces = \"ens2*\" }\n";
        let (offered, reasons, pools) = found(&tree, pool);
        assert_eq!((offered, reasons.len()), (vec!["ens2v0".to_owned()], 2));
        let names: Vec<&str> = pools.offered.iter().map(|pool| pool.name.as_str()).collect();
        assert_eq!(names, ["any", "fast"]);
    }

    #[test]
    fn a_name_of_af_xdp_that_no_interface_has_is_warned_of_unless_functions_are_created() {
        let tree = tree(&["ens1"], "");
        let text = "[host]\naf-xdp = [\"ens1\", \"ens9\"]\n";
        let (inventory, _) = discover_with_pools(&tree.host(), &config(text));
        assert_eq!(
            inventory.warnings.as_slice(),
            ["[host] af-xdp lists \"ens9\", but interface not found: correct or remove it"]
        );
        let sriov = format!("{text}[[sriov]]\npf = \"ens1\"\nvfs = 1\ndriver = \"kernel\"\n");
        let (inventory, _) = discover_with_pools(&tree.host(), &config(&sriov));
        assert_eq!(inventory.warnings.as_slice(), [""; 0]);
    }

    #[test]
    fn a_name_that_no_interface_has_is_warned_of_and_explained() {
        let tree = tree(&["ens1"], "");
        let wrong = "[discover]\noffer-netdevs = [\"ens1\", \"ens99\", \"x*\"]\n[netdev.ens55]\nmtu = 9000\n";
        let (inventory, _) = discover_with_pools(&tree.host(), &config(wrong));
        let warnings = &inventory.warnings;
        assert_eq!(
            warnings.as_slice(),
            [
                "[discover] offer-netdevs lists \"ens99\", but interface not found: correct or \
                 remove it",
                "[discover] offer-netdevs lists \"x*\", but interface not found: correct or remove \
                 it",
                "[netdev.ens55] lists \"ens55\", but interface not found: correct or remove it",
            ]
        );
        let (offered, reasons, _) = found(&tree, wrong);
        assert_eq!(offered, ["ens1"]);
        assert_eq!(
            reasons[0],
            "ens55: interface not found, but [netdev.ens55] lists it; correct or remove it there"
        );
        assert_eq!(reasons.len(), 3, "{reasons:?}");
        // A device is also called by its function where the name of its interface is no name of CDI's.
        let right = "[discover]\noffer-netdevs = [\"ens*\"]\n[netdev.ens1]\nmtu = 9000\n[netdev.\"0000:3b:02.0\"]\nmtu = 9000\n";
        let (inventory, _) = discover_with_pools(&tree.host(), &config(right));
        assert!(inventory.warnings.is_empty(), "{:?}", inventory.warnings);
    }

    #[test]
    fn what_the_host_uses_is_never_offered_and_says_for_what() {
        let all = "[discover]\noffer-netdevs = [\"*\"]\n";
        for (network, says) in [
            ("address 2 192.0.2.10/24\n", "a: it has the address 192.0.2.10/24; "),
            ("route 2 0.0.0.0/0 4\n", "a: it carries the default route"),
            ("route 2 198.51.100.0/24 3\n", "a: it has a route to 198.51.100.0/24; "),
            ("link 9 a.100 vlan - 2 -\n", "a: vlan \"a.100\" is on it; "),
            ("link 9 mac0 macvlan - 2 -\n", "a: macvlan \"mac0\" is on it; "),
            (
                "address 2 192.0.2.10/24\nlink 9 mac0 macvlan - 2 -\n",
                "a: 2 reasons: macvlan \"mac0\" is on it; delete that; it has the address 192.0.2.10/24; remove it",
            ),
        ] {
            let (offered, reasons, _) = found(&tree(&["a", "b"], network), all);
            assert_eq!(offered, ["b"], "{network}");
            assert!(reasons[0].starts_with(says), "{reasons:?}");
        }
        let bonded = Tree::new();
        let function = bonded.function("0000:3b:02.0", "0x020000", 1);
        bonded.class_device("net", &function, "a", &[]);
        bonded.file("/network.table", "link 2 a - 9 - xdp\nlink 9 bond0 bond - - -\n");
        let (offered, reasons, _) = found(&bonded, all);
        assert!(offered.is_empty());
        assert!(
            reasons[0].starts_with("a: 2 reasons: it is a part of bond \"bond0\"; "),
            "{reasons:?}"
        );
    }

    #[test]
    fn an_interface_whose_function_a_virtual_machine_may_have_by_vdpa_is_not_offered() {
        let tree = tree(&["a", "b"], "");
        let place = "/sys/devices/pci0000:3a/0000:3b:02.0/mlx5_core.sf.4/vdpa0";
        tree.directory(place);
        tree.link("/sys/bus/vdpa/devices/vdpa0", place);
        let (offered, reasons, _) = found(&tree, "[discover]\noffer-netdevs = [\"*\"]\n");
        assert_eq!(offered, ["b"]);
        let says = "a: a virtual machine may use its function through vDPA device \"vdpa0\"; if it is unused, run \"vdpa dev del vdpa0\"";
        assert_eq!(reasons, [says]);
    }

    #[test]
    fn soft_roce_keeps_an_interface_on_the_host_and_a_registration_for_af_xdp_does_not() {
        let tree = tree(&["a", "b", "c"], "");
        tree.class_device("infiniband", "/sys/devices/virtual", "rxe0", &[("parent", "a")]);
        tree.directory("/sys/module/sfc_resource");
        tree.directory("/sys/kernel/debug/sfc_resource/nics/000_b");
        let (offered, reasons, _) = found(&tree, "[discover]\noffer-netdevs = [\"*\"]\n");
        assert_eq!(offered, ["b", "c"]);
        assert!(reasons[0].starts_with("a: the software RDMA device \"rxe0\""), "{reasons:?}");
    }

    #[test]
    fn an_accelerated_interface_that_a_container_has_stays_offered_as_one() {
        let tree = tree(&["ens1v1"], "");
        let function = tree.function("0000:3b:02.7", "0x020000", 1);
        tree.bind(&function, "igbvf");
        let config = config("[discover]\noffer-netdevs = [\"ens1v*\"]\n");
        lease(&tree, false);
        let held = leases::list(&tree.host()).unwrap();
        let nics = |attached: &str, leases: &[LeaseEntry]| {
            let mut inventory = discover(&tree.host(), &config);
            let names = &mut inventory.other_netns_nics.names;
            names.insert(attached.to_owned(), Datapath::AfXdp);
            let entry = Exclusion::new(Class::Nic, attached, "in another network");
            inventory.not_offered = vec![entry];
            let leases = leases::compare(leases.to_vec(), leases.to_vec());
            add_interfaces(&Ok(leases), &mut inventory, &config);
            let nics: Vec<_> =
                inventory.nics.into_iter().map(|nic| (nic.device, nic.state)).collect();
            let mut reasons = inventory.not_offered.iter();
            (nics, reasons.any(|entry| entry.name == attached))
        };
        let state = Some(STATE_HELD.to_owned());
        let once = vec![("ens1v0".to_owned(), state)];
        assert_eq!(nics("ens1v0", &held), (once, false));
        assert_eq!(nics("ens1v7", &held), (Vec::new(), true), "another one");
        assert_eq!(nics("ens1v0", &[]), (Vec::new(), true), "nobody's");
    }

    #[test]
    fn an_interface_that_its_function_does_not_identify_is_not_offered() {
        let tree = Tree::new();
        let one = tree.function("0000:3b:00.0", "0x020000", 1);
        tree.class_device("net", &one, "p0", &[]);
        // Also where it is a representor.
        tree.class_device("net", &one, "p1", &[("phys_port_name", "pf0vf0")]);
        let other = tree.function("0000:3b:01.0", "0x020000", 1);
        tree.class_device("net", &format!("{other}/virtio2"), "v0", &[]);
        let parent = tree.function("0000:3b:03.0", "0x020000", 1);
        tree.class_device("net", &parent, "pf", &[]);
        let child = tree.function("0000:3b:03.1", "0x020000", 1);
        tree.link(&format!("{parent}/virtfn0"), &child);
        tree.class_device("net", "/sys/devices/virtual", "dummy0", &[]);
        let table = ["p0", "p1", "v0", "pf", "dummy0"]
            .iter()
            .enumerate()
            .map(|(at, name)| format!("link {} {name} - - - -\n", at + 2));
        tree.file("/network.table", table.collect::<String>());
        let all = "[discover]\noffer-netdevs = [\"*\"]\n";
        let (offered, reasons, _) = found(&tree, all);
        assert!(offered.is_empty(), "{offered:?}");
        for (reason, says) in reasons.iter().zip([
            "dummy0: it is not the interface of a PCI function",
            "p0: its PCI function has another interface, \"p1\"",
            "p1: its PCI function has another interface, \"p0\"",
            "pf: it has virtual functions, with which its holder can interfere",
            "v0: it does not belong to 0000:3b:01.0 directly: \"virtio2\" is between them",
        ]) {
            assert!(reason.starts_with(says), "{reason}");
        }
        assert_eq!(reasons.len(), 5);
        let allowed = "[discover]\noffer-netdevs = [\"pf\"]\noffer-pf-with-vfs = true\n";
        assert_eq!(found(&tree, allowed).0, ["pf"]);
        let ignored = format!("{allowed}ignored-interfaces = [\"pf\"]\n");
        let (offered, reasons, _) = found(&tree, &ignored);
        assert!(offered.is_empty());
        assert!(reasons.iter().any(|reason| reason.starts_with("pf: ignored")));
    }

    #[test]
    fn a_capture_from_before_netlink_was_recorded_offers_nothing_and_says_so() {
        let host = sample("debian13-2numa-onload-rxe-vfio");
        let config = config("[discover]\noffer-netdevs = [\"ens1v0\"]\n");
        let (inventory, _) = discover_with_pools(&host, &config);
        assert!(inventory.netdevs.is_empty());
        let mut reasons = inventory.not_offered.iter();
        let own =
            reasons.find(|entry| entry.kind == Class::Netdev.into() && entry.name == "ens1v0");
        assert!(own.unwrap().reason.contains("are not recorded here"));
    }

    #[test]
    fn a_table_that_nobody_understands_offers_nothing_and_leaves_the_class_undecided() {
        let tree = tree(&["a"], "neither\n");
        let config = config("[discover]\noffer-netdevs = [\"a\"]\n");
        let (inventory, _) = discover_with_pools(&tree.host(), &config);
        assert!(inventory.netdevs.is_empty());
        let warnings = inventory.warnings.join("\n");
        assert!(warnings.contains("network.table: line 2 is neither"), "{warnings}");
        assert!(inventory.undecided_classes().contains(&Class::Netdev));
    }

    /// Says on the host that two containers of one network have ens1v0.
    fn lease(tree: &Tree, returning: bool) {
        tree.boot("this boot");
        for slot in 0..2 {
            let text = format!(
                r#"{{"version":1,"class":"netdev","name":"ens1v0","slot":{slot},"boot":"this boot","container":"web{slot}",
                "bundle":"/b/web","holder":{{"init":{{"process":{{"pid":42,"startTime":7,"pidNamespace":1}}}}}},
                "entryPoint":"createRuntime","since":1,"facts":{{}},"moved":{{"interface":{{"name":"ens1v0",
                "mac":"02:00:00:00:10:01","mtu":1500,"queueLength":1000,"flags":0,"pci":"0000:3b:02.7"}},
                "namespace":7,"returning":{returning}}}}}"#
            );
            tree.file(&format!("/run/onload-ctk/@leases/netdev=ens1v0#{slot}"), text);
        }
    }

    #[test]
    fn an_interface_in_a_container_stays_with_what_its_lease_says_of_it() {
        let tree = tree(&["ens1v1"], "");
        let function = tree.function("0000:3b:02.7", "0x020000", 1);
        tree.bind(&function, "igbvf");
        lease(&tree, false);
        let config = config("[discover]\noffer-netdevs = [\"ens1v*\"]\n");
        let (inventory, pools) = discover_with_pools(&tree.host(), &config);
        let [held, idle] = &inventory.netdevs[..] else { panic!("{:?}", inventory.netdevs) };
        assert_eq!((held.device.as_str(), idle.device.as_str()), ("ens1v0", "ens1v1"));
        assert_eq!(held.state.as_deref(), Some(STATE_HELD));
        assert_eq!(held.driver.as_deref(), Some("igbvf"));
        assert_eq!(
            (held.pci_address.to_string(), held.numa_node),
            ("0000:3b:02.7".to_owned(), Some(1))
        );
        assert_eq!(pools.offered[0].pool.members.len(), 2);
        lease(&tree, true);
        let (inventory, _) = discover_with_pools(&tree.host(), &config);
        assert_eq!(inventory.netdevs[0].state.as_deref(), Some(RETURNING));
        // Back on the host, it is what it is there.
        tree.class_device("net", &function, "ens1v0", &[("operstate", "down")]);
        let back = "link 2 ens1v1 - - - -\nlink 3 ens1v0 - - - -\n";
        tree.file("/network.table", back);
        let (inventory, _) = discover_with_pools(&tree.host(), &config);
        assert_eq!(inventory.netdevs[0].state.as_deref(), Some("down"));
        // Where nothing of the class is wanted, leases say nothing of it.
        let (inventory, _) = discover_with_pools(&tree.host(), &Config::default());
        assert!(inventory.netdevs.is_empty());
    }

    #[test]
    fn an_interface_that_its_container_has_lost_is_not_healthy() {
        const FUNCTION: &str = "/sys/bus/pci/devices/0000:3b:02.7";
        let config = config("[discover]\noffer-netdevs = [\"ens1v*\"]\n");
        let health = |returning: bool, change: &dyn Fn(&Tree)| {
            let tree = tree(&["ens1v1"], "");
            let function = tree.function("0000:3b:02.7", "0x020000", 1);
            tree.bind(&function, "igbvf");
            lease(&tree, returning);
            change(&tree);
            let (inventory, _) = discover_with_pools(&tree.host(), &config);
            let netdevs: Vec<_> = inventory.devices_of_class(Class::Netdev).collect();
            assert_eq!(netdevs[0].name.as_str(), "ens1v0");
            netdevs[0].health.clone()
        };
        let lost = |why: &str| {
            let why = format!("its container no longer has it: {why}; {RETRIEVE_REMEDY}");
            Health::Unhealthy(why)
        };
        let goes = |tree: &Tree| {
            tree.remove(FUNCTION);
        };
        let is_unbound = |tree: &Tree| {
            tree.remove(&format!("{FUNCTION}/driver"));
        };
        let is_here = |tree: &Tree, name: &str| {
            tree.class_device("net", FUNCTION, name, &[("operstate", "down")]);
            let links = format!("link 2 ens1v1 - - - -\nlink 9 {name} - - - -\n");
            tree.file("/network.table", links);
        };
        assert_eq!(health(false, &|_| ()), Health::Healthy);
        let gone = lost("its function 0000:3b:02.7 no longer exists");
        assert_eq!(health(false, &goes), gone);
        let unbound = lost("its function 0000:3b:02.7 has lost its driver");
        assert_eq!(health(false, &is_unbound), unbound);
        let anew = lost("its driver was reloaded, and it is on the host");
        for name in ["ens1v0", "eth0"] {
            assert_eq!(health(false, &|tree| is_here(tree, name)), anew);
        }
        // Its way back leads over all of that.
        assert_eq!(health(true, &is_unbound), Health::Healthy);
        assert_eq!(health(true, &|tree| is_here(tree, "ens1v0")), Health::Healthy);
        // Its lease is there before it moves.
        let starts = |tree: &Tree| {
            is_here(tree, "ens1v0");
            for slot in 0..2 {
                let path = format!("/run/onload-ctk/@leases/netdev=ens1v0#{slot}");
                let since = format!("\"since\":{},", timestamp::unix_seconds());
                tree.file(&path, tree.read(&path).replace("\"since\":1,", &since));
            }
        };
        assert_eq!(health(false, &starts), Health::Healthy);
    }

    #[test]
    fn an_interface_that_is_back_as_a_container_called_it_is_what_its_lease_says() {
        let tree = tree(&["ens1v1"], "");
        let function = tree.function("0000:3b:02.7", "0x020000", 1);
        tree.bind(&function, "igbvf");
        tree.class_device("net", &function, "ens1v9", &[("operstate", "down")]);
        let network = "link 2 ens1v1 - - - -\nlink 3 ens1v9 - - - -\n";
        tree.file("/network.table", network);
        lease(&tree, true);
        let (offered, reasons, _) = found(&tree, "[discover]\noffer-netdevs = [\"ens1v*\"]\n");
        assert_eq!(offered, ["ens1v0", "ens1v1"]);
        assert!(reasons.is_empty(), "{reasons:?}");
    }

    #[test]
    fn an_interface_that_came_back_while_the_host_was_looked_at_is_offered() {
        let tree = tree(&["ens1v1"], "");
        let function = tree.function("0000:3b:02.7", "0x020000", 1);
        tree.bind(&function, "igbvf");
        lease(&tree, true);
        let config = config("[discover]\noffer-netdevs = [\"ens1v*\"]\n");
        let offered = |before, now| {
            let mut inventory = discover(&tree.host(), &config);
            add_interfaces(&Ok(leases::compare(before, now)), &mut inventory, &config);
            inventory.netdevs
        };
        let leased = leases::list(&tree.host()).unwrap();
        let states = |found: Vec<Netdev>| -> Vec<(String, Option<String>)> {
            found.into_iter().map(|one| (one.device, one.state)).collect()
        };
        let both = |state: Option<&str>| {
            let state = state.map(str::to_owned);
            vec![("ens1v0".to_owned(), state), ("ens1v1".to_owned(), Some("down".to_owned()))]
        };
        // It was not there yet, and its lease had ended when leases were read.
        assert_eq!(states(offered(leased.clone(), Vec::new())), both(None));
        // It went while the host was looked at.
        let away = both(Some(RETURNING));
        assert_eq!(states(offered(Vec::new(), leased.clone())), away);
        assert_eq!(states(offered(leased.clone(), leased)), away);
    }

    #[test]
    fn a_specification_moves_an_interface_by_a_hook_and_back_by_the_same() {
        let tree = tree(&["ens1v0", "all"], "");
        let text = "[discover]\noffer-netdevs = [\"*\"]\n\
                    [netdev.ens1v0]\naddresses = [\"192.0.2.10/24\", \"2001:db8::10/64\"]\n";
        let config = config(text);
        let (inventory, pools) = discover_with_pools(&tree.host(), &config);
        let installed = InstalledFiles { hook: true, ..InstalledFiles::default() };
        let specs = generate(&inventory, &pools.offered, &config, installed).unwrap();
        let spec = &specs[&SpecName::devices(Class::Netdev)];
        // A name that begins with a digit wants it.
        assert_eq!(spec.cdi_version, "0.5.0");
        // The word of the pool of all names no interface.
        let names: Vec<String> =
            spec.devices.iter().map(|device| format!("{:?}", device.name)).collect();
        assert!(names.iter().any(|name| name.contains("0000:3b:02.1")), "{names:?}");
        let device = &spec.devices[1].container_edits;
        assert_eq!(device.env, ["ONLOAD_CTK_NETDEV_ENS1V0=ens1v0"]);
        let args: Vec<Vec<&str>> = device
            .hooks
            .iter()
            .map(|hook| hook.args.iter().map(String::as_str).collect())
            .collect();
        let wanted = [
            "--lease",
            "netdev:ens1v0",
            "--netdev",
            "ens1v0@0000:3b:02.0",
            "--address",
            "ens1v0=192.0.2.10/24",
            "--address",
            "ens1v0=2001:db8::10/64",
        ];
        assert_eq!(args[0][..2], ["onload-hook", "createRuntime"]);
        assert_eq!(args[1][..2], ["onload-hook", "poststop"]);
        assert_eq!((&args[0][2..], &args[1][2..]), (&wanted[..], &wanted[..]));
        // Nothing else moves it, so that without the hook it is not offered.
        let without = generate(&inventory, &[], &config, InstalledFiles::default()).unwrap();
        assert!(!without.contains_key(&SpecName::devices(Class::Netdev)));
    }

    #[test]
    fn a_pool_whose_members_a_cni_plugin_moves_has_no_hook_that_does() {
        let tree = tree(&["ens1v0", "ens1v1"], "");
        let text = "[discover]\noffer-netdevs = [\"ens1v0\"]\n\
                    [pools.cni]\nclass = \"netdev\"\nmove = \"cni\"\nselect = { addresses = \"0000:3b:02.1\" }\n";
        let config = config(text);
        let (inventory, pools) = discover_with_pools(&tree.host(), &config);
        let installed = InstalledFiles { hook: true, ..InstalledFiles::default() };
        let specs = generate(&inventory, &pools.offered, &config, installed).unwrap();
        let devices = &specs[&SpecName::devices(Class::Netdev)].devices;
        let hooks: Vec<usize> =
            devices.iter().map(|device| device.container_edits.hooks.len()).collect();
        // The second goes by its address, which begins with a digit.
        assert_eq!(hooks, [0, 2]);
    }

    #[test]
    fn what_a_cni_plugin_moves_is_offered_by_its_function_also_while_it_is_away() {
        let tree = tree(&["ens1v0", "ens1v1"], "address 3 192.0.2.10/24\n");
        for (address, class, driver) in [
            ("0000:3b:02.4", "0x020000", Some("igbvf")),
            ("0000:3b:02.5", "0x020000", Some("vfio-pci")),
            ("0000:3b:02.6", "0x020000", None),
            ("0000:3b:02.7", "0x010802", Some("nvme")),
        ] {
            let function = tree.function(address, class, 1);
            if let Some(driver) = driver {
                tree.bind(&function, driver);
            }
        }
        let text = "[pools.sriov]\nclass = \"netdev\"\nmove = \"cni\"\n";
        let (offered, reasons, pools) = found(&tree, text);
        assert_eq!(offered, ["0000:3b:02.0", "0000:3b:02.4"]);
        assert!(reasons[0].starts_with("ens1v1: it has the address 192.0.2.10/24"), "{reasons:?}");
        let sriov = pools.offered.iter().find(|pool| pool.name.as_str() == "sriov");
        assert_eq!(sriov.unwrap().pool.members.len(), 2);
        let (inventory, _) = discover_with_pools(&tree.host(), &config(text));
        let states: Vec<_> =
            inventory.netdevs.iter().map(|netdev| netdev.state.as_deref()).collect();
        assert_eq!(states, [Some("down"), Some(STATE_AWAY)]);
        // Without such a pool, a function without an interface is nothing.
        let by_hook = text.replace("cni", "hook");
        assert_eq!(found(&tree, &by_hook).0, ["ens1v0"]);
    }
}

#[cfg(test)]
mod rdma_tests {
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
