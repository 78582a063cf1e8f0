//! The network interface of each RDMA port, as the kernel lists it by netlink (`fill_port_info` in
//! drivers/infiniband/core/nldev.c). A capture keeps it as JSON.

use std::collections::BTreeMap;
use std::io;

use onload_sys::netlink::nldev;
use onload_sys::netlink::socket::NetlinkSocket;
use rustix::net::netlink::RDMA;

/// The interface of each port, by the device's name and the port's number. The value is `None` if the port has no
/// interface in this network namespace. A port that the kernel does not list is missing.
pub(crate) type RdmaPortInterfaces = BTreeMap<String, BTreeMap<u32, Option<String>>>;

/// Reads the ports of all devices. A kernel without RDMA, or older than the command, lists none.
pub(crate) fn read() -> io::Result<RdmaPortInterfaces> {
    let mut all = RdmaPortInterfaces::new();
    let Ok(socket) = NetlinkSocket::open(Some(RDMA)) else {
        return Ok(all);
    };
    for device in socket.list(nldev::GET, &[], &nldev::parse)? {
        let Ok(name) = String::from_utf8(device.name) else {
            continue;
        };
        // A device that has disappeared since has no ports.
        let payload = nldev::device_payload(device.index);
        let ports = socket.list(nldev::GET_PORTS, &payload, &nldev::parse_port);
        let interfaces = ports.unwrap_or_default().into_iter();
        all.insert(name, interfaces.map(|port| (port.number, port.interface)).collect());
    }
    Ok(all)
}
