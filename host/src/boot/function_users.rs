//! Finds the users of a virtual function: one that is leased, open or used by the host's network must not be removed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use onload_core::netdev::usage::{ExtraUses, NetworkState};
use onload_lease::LeaseEntry;
use onload_sys::netlink::vf::VfSettings;
use onload_sys::pci::PciAddress;
use onload_sys::text::{Quoted, quote_for_shell};

use super::kernel::KernelReader;
use crate::discover::movable_interface::{find_vdpa, read_soft_rdma, read_vdpa};
use crate::discover::netdev::SYS_CLASS_NET;
use crate::discover::pci::DEVICES;
use crate::discover::probe::Probe;
use crate::host::{EntryKind, Host, HostError};
use crate::leases;

const PACKET_SOCKETS: &str = "/proc/net/packet";

pub(super) struct FunctionUsers<'h> {
    host: &'h Host,
    kernel: &'h dyn KernelReader,
    /// Leases whose containers may be running, or the reason why they cannot be read.
    leases: Result<Vec<LeasedFunction>, String>,
    /// `None` if the host's kernel cannot be queried.
    network: Option<NetworkState>,
    packet_sockets: BTreeSet<u32>,
    /// Software RDMA devices by interface.
    soft_rdma: BTreeMap<String, String>,
    /// The vDPA devices, by their directory.
    vdpa: BTreeMap<PathBuf, String>,
}

struct LeasedFunction {
    entry: LeaseEntry,
    address: Option<PciAddress>,
    group: Option<String>,
}

impl<'h> FunctionUsers<'h> {
    pub(super) fn read(host: &'h Host, kernel: &'h dyn KernelReader) -> Result<Self, HostError> {
        kernel.refresh();
        let leases = match leases::list(host) {
            Ok(entries) => {
                let current = entries.into_iter().filter(|entry| !entry.has_ended());
                Ok(current
                    .map(|entry| leased_function(host, entry))
                    .collect::<Result<_, HostError>>()?)
            }
            Err(error) => Err(format!("{error:#}")),
        };
        Ok(FunctionUsers {
            host,
            kernel,
            leases,
            network: host.network()?,
            packet_sockets: read_packet_sockets(host)?,
            soft_rdma: read_soft_rdma(&Probe::new(host)),
            vdpa: read_vdpa(host)?,
        })
    }

    /// Returns the settings of a virtual function before it was set up for a container.
    pub(super) fn settings_before(&self, function: PciAddress) -> Option<&VfSettings> {
        let mut own_records = self
            .leases
            .as_ref()
            .ok()?
            .iter()
            .filter_map(|leased| leased.entry.lease.as_ref().ok()?.moved.as_ref())
            .filter(|record| record.saved.pci() == function);
        Some(&own_records.find_map(|record| record.saved.vf())?.before)
    }

    pub(super) fn is_on_default_route(&self, interface: &str) -> bool {
        let network = self.network.as_ref();
        network.is_some_and(|network| {
            let link = network.link(interface);
            link.is_some_and(|link| network.default_route_links().contains(&link.index))
        })
    }

    /// Returns the user of a function with that address and driver.
    pub(super) fn find_user(
        &self,
        function: PciAddress,
        driver: Option<&str>,
    ) -> Result<Option<String>, HostError> {
        let directory = Path::new(DEVICES).join(function.to_string());
        let group = self.host.link_name(&directory.join("iommu_group"))?;
        if let Some(lease) = self.find_lease_use(function, &directory, group.as_deref())? {
            return Ok(Some(lease));
        }
        let is_vfios = driver.is_some_and(|driver| driver.contains("vfio"));
        let nodes = match is_vfios {
            true => self.vfio_nodes(&directory, group.as_deref())?,
            // DPDK programs use these nodes for adapters with a verbs driver.
            false => self.nodes(&directory.join("infiniband_verbs"), "/dev/infiniband")?,
        };
        match nodes.iter().find_map(|node| self.kernel.find_opener(node)) {
            None if !is_vfios => match self.find_vdpa_use(function) {
                None => self.find_network_use(&directory, driver),
                device => Ok(device),
            },
            opener => Ok(opener),
        }
    }

    /// A virtual machine may use the vDPA device. The kernel would then wait for the machine's end when the function
    /// loses its driver (`vhost_vdpa_remove` in drivers/vhost/vdpa.c).
    fn find_vdpa_use(&self, function: PciAddress) -> Option<String> {
        let name = find_vdpa(&self.vdpa, function)?;
        let (device, word) = (Quoted(name), quote_for_shell(name));
        Some(format!("vDPA device {device} (if it is unused, run \"vdpa dev del {word}\")"))
    }

    fn find_lease_use(
        &self,
        function: PciAddress,
        directory: &Path,
        group: Option<&str>,
    ) -> Result<Option<String>, HostError> {
        let leases = match &self.leases {
            Ok(leases) => leases,
            Err(reason) => return Ok(Some(format!("a container, perhaps ({reason})"))),
        };
        let mut names = self.host.list(&directory.join("net"))?.names;
        names.extend(self.host.list(&directory.join("infiniband"))?.names);
        let function_name = function.to_string();
        for LeasedFunction { entry: listed, address, group: its_group } in leases {
            let is_its = match address {
                Some(address) if *address == function => true,
                // A vfio device is named after one function of its group.
                Some(_) => group.is_some() && its_group.as_deref() == group,
                None => {
                    let name = listed.device.name.as_str();
                    names.iter().any(|own| own == name)
                }
            };
            match &listed.lease {
                Ok(lease) => {
                    let has_moved =
                        lease.moved.as_ref().is_some_and(|record| record.saved.pci() == function);
                    if is_its
                        || has_moved
                        || lease.facts.values().any(|fact| *fact == function_name)
                    {
                        return Ok(Some(lease.to_string()));
                    }
                }
                Err(reason) if is_its => {
                    return Ok(Some(format!(
                        "an unknown container, because its lease cannot be parsed ({reason})"
                    )));
                }
                Err(_) => {}
            }
        }
        Ok(None)
    }

    /// Returns the nodes of a function and of its group.
    fn vfio_nodes(&self, directory: &Path, group: Option<&str>) -> Result<Vec<PathBuf>, HostError> {
        let mut nodes = self.nodes(&directory.join("vfio-dev"), "/dev/vfio/devices")?;
        nodes.extend(group.into_iter().flat_map(|group| {
            ["", "noiommu-"].map(|prefix| PathBuf::from(format!("/dev/vfio/{prefix}{group}")))
        }));
        Ok(nodes)
    }

    /// Returns the nodes for the entries of a directory.
    fn nodes(&self, directory: &Path, node_dir: &str) -> Result<Vec<PathBuf>, HostError> {
        let names = self.host.list(directory)?.names.into_iter();
        Ok(names.map(|name| Path::new(node_dir).join(name)).collect())
    }

    fn find_network_use(
        &self,
        directory: &Path,
        driver: Option<&str>,
    ) -> Result<Option<String>, HostError> {
        let net = directory.join("net");
        let interfaces = self.host.list(&net)?.names;
        let is_there = |path: &Path| Ok(self.host.entry(path)? == Some(EntryKind::Directory));
        // sysfs shows only interfaces of this network namespace.
        if let (Some(driver), true) = (driver, interfaces.is_empty()) {
            return Ok(match is_there(&net)? {
                true => Some(format!(
                    "another network namespace, which contains its interface (driver {driver})"
                )),
                false if is_there(&directory.join("infiniband"))? => None,
                // Drivers for user space such as igb_uio do not report their users.
                false => Some(format!(
                    "an unknown process, perhaps: its driver {driver} does not report its users (if it is unused, unbind it)"
                )),
            });
        }
        for interface in interfaces {
            if let Some(usage) = self.interface_use(&interface)? {
                return Ok(Some(format!("the host (interface {interface}: {usage})")));
            }
        }
        Ok(None)
    }

    /// Returns how the host uses an interface, by the same rules as before a move.
    fn interface_use(&self, interface: &str) -> Result<Option<String>, HostError> {
        let link =
            self.network.as_ref().and_then(|network| Some((network, network.link(interface)?)));
        let Some((network, link)) = link else {
            let unknown =
                "could not determine its users; run onload-ctk in the host's network namespace";
            return Ok(Some(unknown.to_owned()));
        };
        let extra_uses = ExtraUses {
            soft_rdma: self.soft_rdma.get(interface).map(String::as_str),
            has_packet_socket: self.packet_sockets.contains(&link.index),
            // Only bpf(2) reports it, which is checked in the hook.
            has_tcx: false,
            // Checked separately, since a function without an interface may have one too.
            vdpa: None,
        };
        if let Some(first) = network.describe_uses(link, extra_uses).into_iter().next() {
            return Ok(Some(first));
        }
        // Some interfaces on top of it, such as vxlan, do not report it by netlink.
        let entries = self.host.list(&Path::new(SYS_CLASS_NET).join(interface))?.names;
        let upper = entries.iter().find_map(|name| name.strip_prefix("upper_"));
        Ok(upper.map(|upper| format!("{upper} is on it; delete that")))
    }
}

fn read_packet_sockets(host: &Host) -> Result<BTreeSet<u32>, HostError> {
    let table = host.lines(Path::new(PACKET_SOCKETS), &|_| true)?.unwrap_or_default();
    Ok(table.split(|byte| *byte == b'\n').filter_map(parse_packet_socket).collect())
}

/// Returns the interface index in the fifth word; 0 for an unbound socket. The first line is a heading
/// (`packet_seq_show` in net/packet/af_packet.c).
fn parse_packet_socket(line: &[u8]) -> Option<u32> {
    let line = std::str::from_utf8(line).ok()?;
    let index = line.split_ascii_whitespace().nth(4)?.parse().ok()?;
    (index != 0).then_some(index)
}

fn leased_function(host: &Host, entry: LeaseEntry) -> Result<LeasedFunction, HostError> {
    let address: Option<PciAddress> = entry.device.name.as_str().parse().ok();
    let group = match address {
        Some(address) => {
            let function = Path::new(DEVICES).join(address.to_string());
            host.link_name(&function.join("iommu_group"))?
        }
        None => None,
    };
    Ok(LeasedFunction { entry, address, group })
}
