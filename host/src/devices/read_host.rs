//! Reads all families, in the order in which they need each other.

use std::path::Path;

use onload_core::class::Class;
use onload_core::config::Config;
use onload_core::host_settings::RdmaNetns;
use onload_sys::pci::PciAddress;

use super::inventory::Inventory;
use crate::discover::data_direct::{self, DataDirect};
use crate::discover::exclusion::Exclusion;
use crate::discover::pci::PciFunctions;
use crate::discover::probe::Probe;
use crate::discover::{
    bond, clock, gdrcopy, gpu, gpu_index, hugepages, movable_interface, netdev, nic, onload, rdma,
    tcpdirect, unread, vfio,
};
use crate::host::Host;

/// 2 MiB.
const PAGE_KIB: u64 = 2048;

/// Reads the devices on the host, without those in containers.
pub(super) fn read_host(host: &Host, config: &Config) -> Inventory {
    let mut probe = Probe::new(host);
    if let Some(dir) = &config.cdi.host_device_dir {
        probe = probe.with_device_dir(dir);
    }
    let mut inventory = read_inventory(&probe, config);
    inventory.not_offered = probe.not_offered();
    inventory.unread = probe.unread();
    let unknown = unread_exclusions(&inventory);
    inventory.not_offered.extend(unknown);
    inventory.not_offered.sort();
    inventory.not_offered.dedup();
    inventory.warnings = probe.warnings();
    inventory
}

/// Returns exclusions for failed reads, unless another reason already names them.
fn unread_exclusions(inventory: &Inventory) -> Vec<Exclusion> {
    let mut exclusions = Vec::new();
    for unread in &inventory.unread {
        let is_named =
            inventory.not_offered.iter().any(|known| known.reason.contains(&unread.reason));
        if let (false, Some(class)) = (is_named, unread.kinds.first()) {
            let path = unread.path.display().to_string();
            let reason = format!("not known: {unread}");
            exclusions.push(Exclusion::new(*class, path, reason));
        }
    }
    exclusions
}

fn read_inventory(probe: &Probe<'_>, config: &Config) -> Inventory {
    let mut functions = probe.with_classes(&unread::PCI, || PciFunctions::read(probe));
    let interfaces = probe.with_classes(&unread::INTERFACES, || netdev::read(probe));
    let (onload, tcpdirect) = probe.with_classes(&unread::ONLOAD, || {
        let nodes = onload::DriverNodes::read(probe);
        let onload = onload::read(probe, &config.cdi, &nodes);
        let onload_dir = onload.as_ref().and_then(onload::Onload::library_dir);
        let tcpdirect = tcpdirect::read(probe, &config.cdi, onload_dir, &nodes);
        (onload, tcpdirect)
    });
    let obstacle = match &onload {
        Some(onload) => onload.obstacle.as_deref(),
        None => Some("it is not installed; install it"),
    };
    let availability = nic::OnloadAvailability { onload: obstacle, tcpdirect: tcpdirect.is_some() };
    let attached = probe.with_classes(&unread::NICS, || {
        nic::read(probe, &functions, &interfaces, config, availability)
    });
    let bonds = match probe.unread_reason(Path::new(nic::DEBUGFS_NICS)) {
        // The interfaces that Onload has by AF_XDP are unknown.
        Some(_) => Vec::new(),
        None => probe.with_classes(&[], || bond::read(probe, &interfaces, &attached.names)),
    };
    let movable = probe.with_classes(&[Class::Netdev], || {
        movable_interface::read(probe, &functions, &interfaces, config)
    });
    let nics = attached.nics;
    if tcpdirect.is_some() {
        tcpdirect::tcpdirect_exclusions(&nics).for_each(|exclusion| probe.exclude(exclusion));
    }
    let tcpdirect = tcpdirect.filter(|_| nics.iter().any(|nic| nic.datapath.has_tcpdirect()));
    let clocks = |class| {
        probe.with_classes(&[Class::Ptp, Class::Pps], || {
            clock::read(probe, class, &functions, &interfaces)
        })
    };
    let (ptp, pps) = (clocks(Class::Ptp), clocks(Class::Pps));
    let gdrcopy = probe.with_classes(&[Class::Gdrcopy], || gdrcopy::read(probe));
    let hugepages = probe.with_classes(&[Class::Hugepages], || hugepages::read(probe));
    let has_two_mib = hugepages.iter().any(|size| size.size_kib == PAGE_KIB);
    let needing_nic = nics.iter().find(|nic| nic.datapath.takes_huge_pages(tcpdirect.is_some()));
    if let Some(nic) = needing_nic.filter(|_| !has_two_mib) {
        let need = match &tcpdirect {
            Some(_) => "TCPDirect needs huge pages of 2 MiB, about 40 per stack".to_owned(),
            None => format!("Onload needs huge pages of 2 MiB to receive with {}", nic.name),
        };
        // vm.nr_hugepages sets the default size, which is 512 MiB on Arm kernels with 64 KiB pages.
        probe.warn(format!(
            "{need}, but this host has none: run \"echo N > \
             {}/hugepages-{PAGE_KIB}kB/nr_hugepages\"",
            hugepages::SIZES
        ));
    }
    let rdma = probe.with_classes(&[Class::Rdma], || {
        rdma::read(probe, &functions, &interfaces, &config.discover)
    });
    let rdma_netns_mode = rdma::netns_mode(probe);
    let rdma = match rdma_netns_mode {
        Some(RdmaNetns::Exclusive) => {
            rdma::offer_movable(probe, &functions, rdma, config.annotations.live_devices)
        }
        _ => rdma,
    };
    read_gpu_paths(probe, &mut functions);
    let gpu_indexes = probe.with_classes(&[], || gpu_index::read(probe, &functions));
    let data_direct = DataDirect::read(probe, &functions);
    let vfio =
        probe.with_classes(&[Class::Vfio], || vfio::read(probe, &functions, &config.discover));
    let idle_ports = probe.with_classes(&[], || vfio::find_idle_ports(probe, &vfio, &interfaces));
    let vhost_net = probe.with_classes(&[Class::Vfio], || {
        if vfio.iter().any(|device| device.viable) {
            vfio::read_vhost_net(probe, &config.cdi)
        } else {
            Default::default()
        }
    });
    Inventory {
        version: env!("CARGO_PKG_VERSION"),
        rdma_netns_mode,
        rdma,
        vfio,
        vhost_net,
        ptp,
        pps,
        gdrcopy: gdrcopy.into_iter().collect(),
        gpu_indexes,
        onload,
        tcpdirect,
        nics,
        hugepages,
        movable,
        attached: attached.names,
        bonds,
        idle_ports,
        other_netns_nics: attached.other_netns_nics,
        functions,
        data_direct,
        interfaces,
        ..Inventory::default()
    }
}

/// Reads the links between GPUs and NICs, and whether there is a single NUMA node. Only distances depend on them.
fn read_gpu_paths(probe: &Probe<'_>, functions: &mut PciFunctions) {
    let gpus: Vec<PciAddress> = gpu::gpus(functions).map(|(gpu, _)| gpu.address).collect();
    if gpus.is_empty() {
        return;
    }
    let nics = functions.iter().filter(|one| {
        let is_nic = one.is_network() && one.physical_function.is_none();
        is_nic || data_direct::is_data_direct(one.id)
    });
    let all: Vec<PciAddress> = nics.map(|nic| nic.address).chain(gpus).collect();
    probe.with_classes(&[], || {
        functions.read_links(probe, &all);
        functions.read_only_node(probe);
    });
}
