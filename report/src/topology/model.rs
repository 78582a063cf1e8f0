//! The object that `topology --format json` prints.

use onload_core::class::Class;
use onload_host::discover::gpu::Distance;
use onload_sys::pci::PciAddress;
use serde::{Serialize, Serializer};

use crate::status::Grantee;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Topology {
    /// Whether leases could be read. Where not, what is called free may be held.
    pub holders_known: bool,
    /// By number; what belongs to none comes last.
    pub nodes: Vec<NumaNode>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<Grantee>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NumaNode {
    pub number: Option<u32>,
    /// Its CPUs as the kernel lists them, such as `0-7,16-23`.
    pub cpus: Option<String>,
    /// Those of them that the kernel leaves alone (`isolcpus=`).
    pub isolated_cpus: Option<String>,
    pub memory: Option<Memory>,
    pub hugepages: Vec<Pages>,
    pub roots: Vec<Root>,
    /// Devices on no PCI function, such as soft-RoCE.
    pub devices: Vec<Device>,
}

/// In KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    pub total_kib: u64,
    pub free_kib: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pages {
    pub name: String,
    pub total: u64,
    pub free: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Root {
    pub name: String,
    #[serde(flatten)]
    pub bus: Bus,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bus {
    pub bridges: Vec<Bridge>,
    /// Functions of networks and of what containers are given, by address.
    pub functions: Vec<Function>,
}

/// A bridge: a port of the root, or one of a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bridge {
    pub address: PciAddress,
    pub link: Option<String>,
    #[serde(flatten)]
    pub bus: Bus,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Function {
    pub address: PciAddress,
    pub id: String,
    pub driver: Option<String>,
    /// Its link as it is now; a virtual function has none of its own.
    pub link: Option<String>,
    pub index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    pub interfaces: Vec<Interface>,
    pub devices: Vec<Device>,
    pub virtual_functions: Vec<Function>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// Its place among the GPUs of the host, by address.
    pub number: usize,
    pub vendor: &'static str,
    #[serde(flatten)]
    pub nearest: Nearest,
    /// The name in class rdma that gives a container the devices for it.
    pub rdma_name: Option<String>,
    /// Those devices, which NCCL would take; nearest is not all that counts there.
    pub rdma: Vec<String>,
}

/// The NICs at the least distance from a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Nearest {
    /// None, with the reason, where it is not known.
    pub distance: Option<Distance>,
    pub nearest: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interface {
    pub name: String,
    pub state: Option<String>,
    pub speed_mbps: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    #[serde(serialize_with = "class_as_text")]
    pub class: Class,
    pub name: String,
    pub state: State,
    pub reason: Option<String>,
    pub holders: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Free,
    Held,
    /// Nobody new gets it; who has it keeps it.
    Drained,
    NotOffered,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            State::Free => "free",
            State::Held => "held",
            State::Drained => "drained",
            State::NotOffered => "not offered",
        }
    }
}

impl Gpu {
    /// `GPU0 NVIDIA`.
    pub(super) fn title(&self) -> String {
        format!("GPU{} {}", self.number, self.vendor)
    }

    /// What is said of it, a line each: `rdma=gpu0: mlx5_0`.
    pub(super) fn details(&self) -> impl Iterator<Item = String> {
        let name = self.rdma_name.as_deref();
        let rdma = name.map(|name| format!("rdma={name}: {}", self.rdma.join(", ")));
        [self.nearest.text()].into_iter().chain(rdma)
    }
}

impl Nearest {
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

impl Function {
    /// What it is called first: as a GPU, or by its interfaces.
    pub(super) fn names(&self, separator: &str) -> Option<String> {
        let interfaces = self.interfaces.iter().map(|interface| interface.name.clone());
        let names: Vec<String> = self.gpu.iter().map(Gpu::title).chain(interfaces).collect();
        (!names.is_empty()).then(|| names.join(separator))
    }

    /// Whether a container can have something of it: held takes precedence over free. Its clocks count where there is
    /// nothing else.
    pub(super) fn state(&self) -> State {
        let is_clock = self.devices.iter().all(|device| device.class.is_clock());
        let devices = self.devices.iter();
        let states = devices.filter(|device| is_clock || !device.class.is_clock());
        let states: Vec<State> = states.map(|device| device.state).collect();
        let by_weight = [State::Held, State::Free, State::Drained];
        let mut found = by_weight.into_iter().filter(|state| states.contains(state));
        found.next().unwrap_or(State::NotOffered)
    }

    /// The devices that say most: where some are offered, those that are not are left out.
    pub(super) fn telling(&self) -> impl Iterator<Item = &Device> {
        let is_offered = self.state() != State::NotOffered;
        let devices = self.devices.iter();
        devices.filter(move |device| !is_offered || device.state != State::NotOffered)
    }

    pub(super) fn class(&self) -> Option<Class> {
        let state = self.state();
        let mut telling = self.telling();
        telling.find(|device| device.state == state).map(|device| device.class)
    }
}

impl NumaNode {
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
