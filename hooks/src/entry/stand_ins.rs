//! What stands in for devices of this host in tests.

use crate::netdev::Identity;
use crate::rdma::Devices;

/// How devices are found that move; the programs have no stand-ins.
#[derive(Clone, Debug, Default)]
pub struct StandIns {
    pub interfaces: Identity,
    pub rdma: Devices,
}
