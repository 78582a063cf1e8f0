//! The object that `topology --format json` prints.

use onload_core::class::Class;
use onload_host::discover::gpu::Distance;
use onload_host::discover::pcie_link::PcieLink;
use onload_sys::pci::PciAddress;
use serde::{Serialize, Serializer};

use crate::status::ContainerGrants;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Topology {
    /// Whether leases could be read. Without leases, a device shown as free may be held.
    pub holders_known: bool,
    /// By number; what belongs to none comes last.
    pub nodes: Vec<TopologyNumaNode>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<ContainerGrants>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TopologyNumaNode {
    pub number: Option<u32>,
    /// Its CPUs as the kernel lists them, such as `0-7,16-23`.
    pub cpus: Option<String>,
    /// The isolated CPUs among them (`isolcpus=`).
    pub isolated_cpus: Option<String>,
    pub memory: Option<NumaMemory>,
    pub hugepages: Vec<PageTotals>,
    pub roots: Vec<PcieRoot>,
    /// Devices on no PCI function, such as soft-RoCE.
    pub devices: Vec<TopologyDevice>,
}

/// In KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NumaMemory {
    pub total_kib: u64,
    pub free_kib: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PageTotals {
    pub name: String,
    pub total: u64,
    pub free: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PcieRoot {
    pub name: String,
    #[serde(flatten)]
    pub bus: Bus,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bus {
    pub bridges: Vec<Bridge>,
    /// Functions of networks and of what containers are given, by address.
    pub functions: Vec<TopologyFunction>,
}

/// A bridge: a port of the root, or one of a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bridge {
    pub address: PciAddress,
    pub link: Option<PcieLink>,
    #[serde(flatten)]
    pub bus: Bus,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopologyFunction {
    pub address: PciAddress,
    pub id: String,
    pub driver: Option<String>,
    /// Its present link; `None` for a virtual function.
    pub link: Option<PcieLink>,
    pub index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<TopologyGpu>,
    pub interfaces: Vec<TopologyInterface>,
    pub devices: Vec<TopologyDevice>,
    pub virtual_functions: Vec<TopologyFunction>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopologyGpu {
    /// Its place among the GPUs of the host, by address.
    pub number: usize,
    pub vendor: &'static str,
    #[serde(flatten)]
    pub nearest: NearestNics,
    /// The name in class rdma that gives a container the devices for it.
    pub rdma_name: Option<String>,
    /// The devices that NCCL would choose, which considers more than distance.
    pub rdma: Vec<String>,
}

/// The NICs at the least distance from a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NearestNics {
    /// None, with the reason, where it is not known.
    pub distance: Option<Distance>,
    pub nearest: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopologyInterface {
    pub name: String,
    pub state: Option<String>,
    pub speed_mbps: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopologyDevice {
    #[serde(serialize_with = "class_as_text")]
    pub class: Class,
    pub name: String,
    pub state: Occupancy,
    pub reason: Option<String>,
    pub holders: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Occupancy {
    Free,
    Held,
    /// No further container gets it; present containers keep it.
    Drained,
    NotOffered,
}

impl Occupancy {
    pub fn as_str(self) -> &'static str {
        match self {
            Occupancy::Free => "free",
            Occupancy::Held => "held",
            Occupancy::Drained => "drained",
            Occupancy::NotOffered => "not offered",
        }
    }
}

impl TopologyGpu {
    /// `GPU0 NVIDIA`.
    pub(super) fn title(&self) -> String {
        format!("GPU{} {}", self.number, self.vendor)
    }

    /// Returns its lines: `rdma=gpu0: mlx5_0`.
    pub(super) fn details(&self) -> impl Iterator<Item = String> {
        let name = self.rdma_name.as_deref();
        let rdma = name.map(|name| format!("rdma={name}: {}", self.rdma.join(", ")));
        [self.nearest.text()].into_iter().chain(rdma)
    }
}

impl NearestNics {
    /// `nearest NIC: mlx5_0 (PIX)`.
    pub(super) fn text(&self) -> String {
        match (self.distance, &self.reason) {
            (Some(distance), _) => {
                let (names, noun) = (self.nearest.join(", "), self.nearest.len());
                let noun = if noun == 1 { "NIC" } else { "NICs" };
                format!("nearest {noun}: {names} ({distance})")
            }
            (None, Some(reason)) => format!("nearest NIC: unknown, {reason}"),
            (None, None) => "nearest NIC: none".to_owned(),
        }
    }
}

impl TopologyFunction {
    /// Returns its heading: the GPU's name, or its interfaces.
    pub(super) fn names(&self, separator: &str) -> Option<String> {
        let interfaces = self.interfaces.iter().map(|interface| interface.name.clone());
        let names: Vec<String> =
            self.gpu.iter().map(TopologyGpu::title).chain(interfaces).collect();
        (!names.is_empty()).then(|| names.join(separator))
    }

    /// Whether a container can have something of it: held takes precedence over free. Its clocks count where there is
    /// nothing else.
    pub(super) fn state(&self) -> Occupancy {
        let is_clock = self.devices.iter().all(|device| device.class.is_clock());
        let states: Vec<Occupancy> = self
            .devices
            .iter()
            .filter(|device| is_clock || !device.class.is_clock())
            .map(|device| device.state)
            .collect();
        let by_weight = [Occupancy::Held, Occupancy::Free, Occupancy::Drained];
        let mut present = by_weight.into_iter().filter(|state| states.contains(state));
        present.next().unwrap_or(Occupancy::NotOffered)
    }

    /// The devices that say most: where some are offered, those that are not are left out.
    pub(super) fn informative_devices(&self) -> impl Iterator<Item = &TopologyDevice> {
        let is_offered = self.state() != Occupancy::NotOffered;
        self.devices
            .iter()
            .filter(move |device| !is_offered || device.state != Occupancy::NotOffered)
    }

    pub(super) fn class(&self) -> Option<Class> {
        let state = self.state();
        let mut devices = self.informative_devices();
        devices.find(|device| device.state == state).map(|device| device.class)
    }
}

impl TopologyNumaNode {
    pub(super) fn title(&self) -> String {
        match self.number {
            Some(number) => format!("NUMA node {number}"),
            None => "No NUMA node".to_owned(),
        }
    }
}

fn class_as_text<S: Serializer>(class: &Class, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(class.as_str())
}
