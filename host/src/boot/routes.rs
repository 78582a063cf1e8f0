//! Which interfaces the host's own traffic goes through (`/proc/net/route`, `/proc/net/ipv6_route`,
//! proc_pid_net(5)).

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use crate::discover::netdev::CLASS;
use crate::host::{Host, HostError};

const IPV4: &str = "/proc/net/route";
const IPV6: &str = "/proc/net/ipv6_route";

/// The interfaces with routes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Routes {
    /// Those that carry a default route, and those below them: members of a bond, the interface of a
    /// VLAN.
    pub default: BTreeSet<String>,
    /// Those with another route than to their own link.
    pub any: BTreeSet<String>,
}

/// Reads the routes of this network namespace.
pub(super) fn read(host: &Host) -> Result<Routes, HostError> {
    let found = RefCell::new(Routes::default());
    // Nothing is kept of the tables, which may be long.
    let add = |route: Option<Route<'_>>| {
        let Some(Route {
            interface,
            is_default,
        }) = route
        else {
            return false;
        };
        let mut found = found.borrow_mut();
        if is_default {
            found.default.insert(interface.to_owned());
        }
        found.any.insert(interface.to_owned());
        false
    };
    host.lines(Path::new(IPV4), &|line| add(parse_ipv4(line)))?;
    host.lines(Path::new(IPV6), &|line| add(parse_ipv6(line)))?;
    let mut routes = found.into_inner();
    let mut pending: Vec<String> = routes.default.iter().cloned().collect();
    while let Some(interface) = pending.pop() {
        for below in below(host, &interface)? {
            if routes.default.insert(below.clone()) {
                pending.push(below);
            }
        }
    }
    Ok(routes)
}

fn below(host: &Host, interface: &str) -> Result<Vec<String>, HostError> {
    let names = host.list(&Path::new(CLASS).join(interface))?.names;
    let lower = names.iter().filter_map(|name| name.strip_prefix("lower_"));
    Ok(lower.map(str::to_owned).collect())
}

struct Route<'a> {
    interface: &'a str,
    is_default: bool,
}

/// Interface, destination, gateway, flags, three counters and the mask, in hexadecimal digits; the first
/// line is a heading.
fn parse_ipv4(line: &[u8]) -> Option<Route<'_>> {
    let fields: Vec<&str> = std::str::from_utf8(line).ok()?.split_whitespace().collect();
    let number = |at: usize| u32::from_str_radix(fields.get(at)?, 16).ok();
    let is_default = number(1)? == 0 && number(7)? == 0;
    Some(Route {
        interface: fields.first()?,
        is_default,
    })
}

/// Destination and its length first, the interface last. Every interface that is up has a route to its own
/// link and to groups; `lo` has what the kernel refuses.
fn parse_ipv6(line: &[u8]) -> Option<Route<'_>> {
    let fields: Vec<&str> = std::str::from_utf8(line).ok()?.split_whitespace().collect();
    let [destination, length, .., interface] = fields[..] else {
        return None;
    };
    let is_own = destination.starts_with("fe8") || destination.starts_with("ff");
    if is_own || interface == "lo" {
        return None;
    }
    let is_default = length == "00" && destination.bytes().all(|byte| byte == b'0');
    Some(Route {
        interface,
        is_default,
    })
}

/// Properties that hold for all bytes.
#[cfg(fuzzing)]
pub(super) fn fuzz(line: &[u8]) {
    for route in [parse_ipv4(line), parse_ipv6(line)].into_iter().flatten() {
        assert!(!route.interface.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::test_tree::TestTree;

    const HEADING: &str =
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";

    #[test]
    fn an_interface_with_a_default_route_takes_those_below_it_along() {
        let tree = TestTree::new();
        tree.file(
            IPV4,
            format!(
                "{HEADING}bond0.5\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
                 ens9\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
            ),
        );
        let zeros = "0".repeat(32);
        let link = format!("fe80{}", "0".repeat(28));
        tree.file(
            IPV6,
            format!(
                "{zeros} 00 {zeros} 00 {zeros} 00000400 00000001 00000000 00000003 ens7\n\
                 {zeros} 00 {zeros} 00 {zeros} ffffffff 00000001 00000000 00200200       lo\n\
                 {link} 40 {zeros} 00 {zeros} 00000100 00000001 00000000 00000001 ens8\n"
            ),
        );
        tree.file("/sys/class/net/bond0.5/lower_bond0/x", "");
        tree.file("/sys/class/net/bond0/lower_ens1/x", "");
        tree.file("/sys/class/net/bond0/lower_ens2/x", "");
        let routes = read(&tree.host()).unwrap();
        let names = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!(names(&routes.default), "bond0 bond0.5 ens1 ens2 ens7");
        assert_eq!(names(&routes.any), "bond0.5 ens7 ens9");
    }

    #[test]
    fn a_host_without_tables_has_no_routes() {
        assert_eq!(read(&TestTree::new().host()).unwrap(), Routes::default());
    }

    #[test]
    fn a_line_that_is_no_route_is_passed_over() {
        for line in ["", "Iface Destination", "a x c d e f g h", "x"] {
            assert!(parse_ipv4(line.as_bytes()).is_none(), "{line}");
        }
        assert!(parse_ipv6(b"0 00").is_none());
        assert!(parse_ipv6(b"\xff").is_none());
    }
}
