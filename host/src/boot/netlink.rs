//! Messages to the kernel beside files: virtual functions are read and changed, and RDMA's mode of network namespaces is
//! set.

use std::collections::BTreeMap;
use std::io;

use onload_core::host_settings::RdmaNetns;
use onload_sys::netlink::link;
use onload_sys::netlink::nldev::{self, NetnsMode};
use onload_sys::netlink::socket::Socket;
use onload_sys::netlink::vf;
use rustix::net::netdevice::name_to_index;
use rustix::net::netlink;

use super::kernel::{VfChange, VfSettings};

pub(super) struct Netlink(Socket);

impl Netlink {
    pub(super) fn route() -> io::Result<Self> {
        Ok(Netlink(Socket::open(None)?))
    }

    pub(super) fn rdma() -> io::Result<Self> {
        Ok(Netlink(Socket::open(Some(netlink::RDMA))?))
    }

    pub(super) fn vf_settings(&self, interface: &str) -> io::Result<BTreeMap<u32, VfSettings>> {
        let index = name_to_index(&self.0, interface)?;
        let found = self.0.ask(link::GET, &vf::question(index), &vf::parse)?;
        Ok(found.unwrap_or_default())
    }

    pub(super) fn set_vf(&self, interface: &str, number: u32, change: VfChange) -> io::Result<()> {
        let index = name_to_index(&self.0, interface)?;
        self.0
            .tell(link::SET, 0, &vf::payload(index, number, change))
    }

    pub(super) fn set_rdma_netns(&self, mode: RdmaNetns) -> io::Result<()> {
        let payload = nldev::netns_mode(match mode {
            RdmaNetns::Shared => NetnsMode::Shared,
            RdmaNetns::Exclusive => NetnsMode::Exclusive,
        });
        self.0.tell(nldev::SYS_SET, 0, &payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The loopback interface of every machine has no virtual functions.
    #[test]
    fn the_kernel_understands_the_question() {
        let netlink = Netlink::route().unwrap();
        assert_eq!(netlink.vf_settings("lo").unwrap(), BTreeMap::new());
        assert!(netlink.vf_settings("no-such-thing").is_err());
    }
}
