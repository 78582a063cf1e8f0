//! The network interface of each RDMA port, as the kernel lists it by netlink (`fill_port_info` in
//! drivers/infiniband/core/nldev.c). A capture keeps it as a text.

use std::collections::BTreeMap;
use std::io;

use onload_sys::netlink::nldev;
use onload_sys::netlink::socket::NetlinkSocket;
use rustix::net::netlink::RDMA;

const NONE: &str = "-";

/// The interface of each port, by the device's name and the port's number. The value is `None` if the port has no
/// interface in this network namespace. A port that the kernel does not list is missing.
pub(crate) type RdmaPortInterfaces = BTreeMap<(String, u32), Option<String>>;

/// Reads the ports of all devices. A kernel without RDMA, or older than the command, lists none.
pub(crate) fn read() -> io::Result<RdmaPortInterfaces> {
    let mut all = RdmaPortInterfaces::new();
    let Ok(socket) = NetlinkSocket::open(Some(RDMA)) else {
        return Ok(all);
    };
    for device in socket.list(nldev::GET, &[], &nldev::parse)? {
        let Some(name) = String::from_utf8(device.name).ok().filter(|name| is_one_word(name))
        else {
            continue;
        };
        // A device that has disappeared since has no ports.
        let payload = nldev::device_payload(device.index);
        let ports = socket.list(nldev::GET_PORTS, &payload, &nldev::parse_port);
        for port in ports.unwrap_or_default() {
            all.insert((name.clone(), port.number), port.interface);
        }
    }
    Ok(all)
}

fn is_one_word(name: &str) -> bool {
    !name.is_empty() && !name.contains(char::is_whitespace)
}

/// Formats a line `DEVICE PORT INTERFACE` for each port.
pub(crate) fn to_text(all: &RdmaPortInterfaces) -> String {
    all.iter()
        .map(|((device, port), interface)| {
            format!("{device} {port} {}\n", interface.as_deref().unwrap_or(NONE))
        })
        .collect()
}

/// Parses the output of [`to_text`].
pub(crate) fn parse(text: &str) -> anyhow::Result<RdmaPortInterfaces> {
    let mut all = RdmaPortInterfaces::new();
    for (index, line) in text.lines().enumerate() {
        let Some((port, interface)) = parse_line(line) else {
            anyhow::bail!("line {}: expected \"device port interface\"", index + 1);
        };
        all.insert(port, interface);
    }
    Ok(all)
}

fn parse_line(line: &str) -> Option<((String, u32), Option<String>)> {
    let words: Vec<&str> = line.split(' ').collect();
    let [device, port, interface] = words[..] else {
        return None;
    };
    if !is_one_word(device) || !is_one_word(interface) {
        return None;
    }
    let interface = (interface != NONE).then(|| interface.to_owned());
    Some(((device.to_owned(), port.parse().ok()?), interface))
}

#[cfg(fuzzing)]
pub(super) fn fuzz(bytes: &[u8]) {
    if let Some(all) = std::str::from_utf8(bytes).ok().and_then(|text| parse(text).ok()) {
        assert_eq!(parse(&to_text(&all)).ok(), Some(all));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_as_it_was_written() {
        let lines = "bnxt_re0 1 -\nmlx5_0 1 ens1f0np0\nmlx5_0 2 ens1f1np1\n";
        let all = parse(lines).unwrap();
        assert_eq!(all[&("bnxt_re0".to_owned(), 1)], None);
        assert_eq!(all[&("mlx5_0".to_owned(), 2)].as_deref(), Some("ens1f1np1"));
        assert_eq!(to_text(&all), lines);
        for wrong in ["mlx5_0", "mlx5_0 1", "mlx5_0 one ens1", " 1 ens1", "mlx5_0 1 ", "a b 1 c"] {
            let error = parse(wrong).unwrap_err().to_string();
            assert_eq!(error, "line 1: expected \"device port interface\"", "{wrong:?}");
        }
    }
}
