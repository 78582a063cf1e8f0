//! The result of discovery, and the object that `discover --format json` prints.

use std::collections::BTreeSet;
use std::sync::Arc;

use onload_core::class::Class;
use onload_core::host_settings::RdmaNetns;
use onload_lease::drain::DrainList;
use onload_sys::pci::PciAddress;
use serde::Serialize;

use super::device::{GpuAlias, HostDevice};
use crate::discover::bond::OnloadBond;
use crate::discover::clock::Clock;
use crate::discover::data_direct::DataDirect;
use crate::discover::exclusion::Exclusion;
use crate::discover::gdrcopy::Gdrcopy;
use crate::discover::gpu_index::GpuIndexes;
use crate::discover::hugepages::Hugepages;
use crate::discover::movable_interface::{MovableInterface, Netdev};
use crate::discover::netdev::NetworkInterface;
use crate::discover::nic::{Nic, OtherNetnsNics};
use crate::discover::node::OfferedNode;
use crate::discover::onload::Onload;
use crate::discover::pci::PciFunctions;
use crate::discover::rdma::RdmaDevice;
use crate::discover::tcpdirect::TcpDirect;
use crate::discover::unread::UnreadEntry;
use crate::discover::vfio::VfioDevice;

/// The devices that a host has and offers. The arrays contain offered devices, sorted. Only `vfio` also contains
/// functions whose group is not viable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Inventory {
    pub version: &'static str,
    /// Onload, offered or not; `None` if nothing of it is there.
    pub onload: Option<Onload>,
    /// TCPDirect, if it is offered.
    pub tcpdirect: Option<TcpDirect>,
    pub nics: Vec<Nic>,
    pub rdma: Vec<RdmaDevice>,
    /// PCI functions bound to vfio.
    pub vfio: Vec<VfioDevice>,
    /// The vhost-net and tun nodes that each of them includes.
    #[serde(skip)]
    pub vhost_net: Vec<Arc<OfferedNode>>,
    pub hugepages: Vec<Hugepages>,
    /// Interfaces that may move into a container.
    pub netdevs: Vec<Netdev>,
    pub ptp: Vec<Clock>,
    pub pps: Vec<Clock>,
    pub gdrcopy: Vec<Gdrcopy>,
    /// Other names for RDMA devices, by the GPU that they are nearest to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub near_gpus: Vec<GpuAlias>,
    pub not_offered: Vec<Exclusion>,
    /// Which network namespaces see the RDMA devices; `None` without an RDMA stack.
    pub rdma_netns_mode: Option<RdmaNetns>,
    /// Paths that could not be read, sorted. Anything that depends on them is unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<UnreadEntry>,
    /// Sorted. They go to stderr and not into the object.
    #[serde(skip)]
    pub warnings: Vec<String>,
    /// All offered devices by class, in the order of the class's array.
    #[serde(skip)]
    pub devices: Vec<HostDevice>,
    /// Drained devices. The arrays contain them, but do not print them.
    #[serde(skip)]
    pub drained: Vec<HostDevice>,
    /// Devices that are not offered because the configuration contradicts itself. The arrays contain them.
    #[serde(skip)]
    pub refused: Vec<HostDevice>,
    #[serde(skip)]
    pub drain: DrainList,
    #[serde(skip)]
    pub(crate) movable: Vec<MovableInterface>,
    /// The interfaces of this network namespace that Onload has attached to, offered or not.
    #[serde(skip)]
    pub attached: Vec<String>,
    /// Bonds with a member that Onload has attached to.
    #[serde(skip)]
    pub bonds: Vec<OnloadBond>,
    /// Physical functions of offered virtual functions whose interface is down, with its name.
    #[serde(skip)]
    pub idle_ports: Vec<(PciAddress, String)>,
    /// Accelerated interfaces in other network namespaces.
    #[serde(skip)]
    pub(crate) other_netns_nics: OtherNetnsNics,
    /// The numbers of GPUs in their vendor's CDI specifications.
    #[serde(skip)]
    pub(crate) gpu_indexes: GpuIndexes,
    #[serde(skip)]
    pub functions: PciFunctions,
    #[serde(skip)]
    pub data_direct: DataDirect,
    #[serde(skip)]
    pub interfaces: Vec<NetworkInterface>,
}

impl Inventory {
    pub fn undecided_classes(&self) -> BTreeSet<Class> {
        self.unread.iter().flat_map(|unread| &unread.kinds).copied().collect()
    }

    /// Marks these classes as undecided because of a failed read, so that none of their devices are removed. `what` is
    /// for messages.
    pub(super) fn add_unread(
        &mut self,
        path: &str,
        classes: &[Class],
        what: &str,
        error: &anyhow::Error,
    ) {
        let reason = format!("{error:#}");
        self.warnings.push(format!("could not determine {what}: {reason}"));
        self.unread.push(UnreadEntry {
            path: path.into(),
            kinds: classes.iter().copied().collect(),
            reason,
            advice: "",
        });
    }

    pub(crate) fn devices_of_class(&self, class: Class) -> impl Iterator<Item = &HostDevice> {
        self.devices.iter().filter(move |device| device.class == class)
    }

    /// Iterates over the offered and the drained devices.
    pub fn with_drained(&self) -> impl Iterator<Item = &HostDevice> {
        self.devices.iter().chain(&self.drained)
    }

    /// Returns a copy for output, without drained and refused devices.
    pub fn offered_only(&self) -> Inventory {
        let mut offered = self.clone();
        let withheld: BTreeSet<(Class, &str)> = self
            .drained
            .iter()
            .chain(&self.refused)
            .map(|device| (device.class, device.name.as_str()))
            .collect();
        let is_offered = |class, name: &str| !withheld.contains(&(class, name));
        offered.nics.retain(|nic| is_offered(Class::Nic, &nic.device));
        offered.rdma.retain(|one| is_offered(Class::Rdma, &one.device));
        offered.vfio.retain(|one| is_offered(Class::Vfio, &one.pci_address.to_string()));
        offered.hugepages.retain(|size| is_offered(Class::Hugepages, &size.name));
        offered.netdevs.retain(|one| is_offered(Class::Netdev, &one.device));
        offered.ptp.retain(|clock| is_offered(Class::Ptp, &clock.name));
        offered.pps.retain(|clock| is_offered(Class::Pps, &clock.name));
        offered.gdrcopy.retain(|_| !withheld.iter().any(|(class, _)| *class == Class::Gdrcopy));
        offered
    }

    /// Returns Onload if it is offered.
    pub(crate) fn usable_onload(&self) -> Option<&Onload> {
        self.onload.as_ref().filter(|onload| onload.obstacle.is_none())
    }

    /// Returns whether an RDMA device is in a single network namespace at a time.
    pub fn is_rdma_exclusive(&self) -> bool {
        self.rdma_netns_mode == Some(RdmaNetns::Exclusive)
    }
}
