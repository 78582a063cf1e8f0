//! What a host has: the answer of discovery, and the object that `discover --format json` prints.

use std::collections::BTreeSet;

use onload_core::class::Class;
use serde::Serialize;

use crate::discover::clock::Clock;
use crate::discover::hugepages::Hugepages;
use crate::discover::nic::Nic;
use crate::discover::not_offered::NotOffered;
use crate::discover::onload::Onload;
use crate::discover::rdma::{NetnsMode, RdmaDevice};
use crate::discover::tcpdirect::TcpDirect;
use crate::discover::unread::Unread;
use crate::discover::vfio::VfioDevice;

/// What a host has and what of it is offered. The arrays hold what is offered, sorted; only
/// `vfio` also holds functions whose group is not viable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Inventory {
    /// Version of this program.
    pub version: &'static str,
    /// Onload, offered or not; none where nothing of it is there.
    pub onload: Option<Onload>,
    /// TCPDirect, where it is offered.
    pub tcpdirect: Option<TcpDirect>,
    /// Accelerated interfaces.
    pub nics: Vec<Nic>,
    /// RDMA devices.
    pub rdma: Vec<RdmaDevice>,
    /// PCI functions bound to vfio.
    pub vfio: Vec<VfioDevice>,
    /// Sizes of hugepages.
    pub hugepages: Vec<Hugepages>,
    /// PTP hardware clocks.
    pub ptp: Vec<Clock>,
    /// PPS sources.
    pub pps: Vec<Clock>,
    /// What was seen and is not offered, sorted.
    pub not_offered: Vec<NotOffered>,
    /// Which network namespaces see the RDMA devices; none without an RDMA stack.
    pub rdma_netns_mode: Option<NetnsMode>,
    /// What could not be read, sorted by path: what it would have decided is not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
    /// What people should know, sorted; goes to stderr and not into the object.
    #[serde(skip)]
    pub warnings: Vec<String>,
}

impl Inventory {
    /// The classes of which not everything that decides them could be read.
    #[must_use]
    pub fn undecided(&self) -> BTreeSet<Class> {
        let kinds = self.unread.iter().flat_map(|unread| &unread.kinds);
        kinds.copied().collect()
    }
}
