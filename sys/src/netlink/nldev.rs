//! RDMA devices of a network namespace, their character devices, and moving them to another namespace (`RDMA_NL_NLDEV`,
//! include/uapi/rdma/rdma_netlink.h and drivers/infiniband/core/nldev.c).

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use super::message::{
    encode_attribute, encode_text, find_attribute, parse_attributes, u32_at, u64_at, until_nul,
};
use crate::device_number::DeviceNumber;

/// `RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, …)`.
const fn message_type(command: u16) -> u16 {
    (5 << 10) | command
}

/// `RDMA_NLDEV_CMD_GET`; lists all devices with `NLM_F_DUMP`.
pub const GET: u16 = message_type(1);
pub const SET: u16 = message_type(2); // RDMA_NLDEV_CMD_SET
/// `RDMA_NLDEV_CMD_PORT_GET`; lists all ports of a device with `NLM_F_DUMP`.
pub const GET_PORTS: u16 = message_type(5);
pub const SYS_GET: u16 = message_type(6); // RDMA_NLDEV_CMD_SYS_GET
pub const SYS_SET: u16 = message_type(7); // RDMA_NLDEV_CMD_SYS_SET
pub const GET_QUEUE_PAIRS: u16 = message_type(10); // RDMA_NLDEV_CMD_RES_QP_GET
pub const GET_CHARACTER: u16 = message_type(15); // RDMA_NLDEV_CMD_GET_CHARDEV

// `enum rdma_nldev_attr`.
const INDEX: u16 = 1;
const NAME: u16 = 2;
const PORT_INDEX: u16 = 3;
const QUEUE_PAIRS: u16 = 19;
const QUEUE_PAIR: u16 = 20;
const KERNEL_USER: u16 = 29;
const NETDEV_NAME: u16 = 51;
const NETNS_MODE: u16 = 66;
const NETNS_FD: u16 = 68;
const CHARACTER_TYPE: u16 = 69;
const CHARACTER_NAME: u16 = 70;
const CHARACTER: u16 = 72;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaLink {
    /// The index, which renames and moves do not change.
    pub index: u32,
    /// The name, unique on the machine.
    pub name: Vec<u8>,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaPortLink {
    /// Port number, starting from 1.
    pub number: u32,
    /// The network interface of the port, if it is in the network namespace of the socket.
    pub interface: Option<String>,
}

/// A character device for user space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaChardev {
    /// The kernel's name, which is also the name of the node in /dev/infiniband.
    pub name: String,
    pub number: DeviceNumber,
}

impl RdmaChardev {
    /// Returns the path of its node, on the host and in containers.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new("/dev/infiniband").join(&self.name)
    }
}

/// Whether network namespaces share RDMA devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdmaNetnsMode {
    Shared,
    Exclusive,
}

pub fn parse(payload: &[u8]) -> Option<RdmaLink> {
    let index = u32_at(find_attribute(payload, INDEX)?, 0)?;
    let name = until_nul(find_attribute(payload, NAME)?).to_vec();
    (!name.is_empty()).then_some(RdmaLink { index, name })
}

/// Returns the payload of [`SET`] that moves a device to a network namespace. It contains the number of the
/// descriptor, so this process must send it.
pub fn to_namespace(index: u32, namespace: BorrowedFd<'_>) -> Vec<u8> {
    let fd = namespace.as_raw_fd().to_ne_bytes();
    [device_payload(index), encode_attribute(NETNS_FD, &fd)].concat()
}

/// Returns the payload of [`SET`] that renames a device.
pub fn rename(index: u32, name: &[u8]) -> Vec<u8> {
    [device_payload(index), encode_text(NAME, name)].concat()
}

/// Returns the payload of [`GET_CHARACTER`] for a character device of some type, such as `uverbs`. `index` is `None`
/// for a type that all devices share, such as `rdma_cm`.
pub fn chardev_payload(index: Option<u32>, type_name: &str) -> Vec<u8> {
    let device = index.map(device_payload).unwrap_or_default();
    [device, encode_text(CHARACTER_TYPE, type_name.as_bytes())].concat()
}

/// Parses the answer to [`GET_CHARACTER`]. Returns `None` for a name that could lead out of /dev/infiniband.
pub fn parse_character(payload: &[u8]) -> Option<RdmaChardev> {
    let name = std::str::from_utf8(until_nul(find_attribute(payload, CHARACTER_NAME)?)).ok()?;
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return None;
    }
    Some(RdmaChardev {
        name: name.to_owned(),
        number: decode_device_number(u64_at(find_attribute(payload, CHARACTER)?, 0)?)?,
    })
}

/// Returns the payload of [`SYS_SET`] that sets the mode.
pub fn set_netns_mode_payload(mode: RdmaNetnsMode) -> Vec<u8> {
    encode_attribute(NETNS_MODE, &[u8::from(mode == RdmaNetnsMode::Shared)])
}

/// Parses the mode in the answer to [`SYS_GET`].
pub fn parse_netns_mode(payload: &[u8]) -> Option<RdmaNetnsMode> {
    match find_attribute(payload, NETNS_MODE)? {
        [0] => Some(RdmaNetnsMode::Exclusive),
        [1] => Some(RdmaNetnsMode::Shared),
        _ => None,
    }
}

/// Returns the payload of [`GET_QUEUE_PAIRS`] for a device.
pub fn queue_pairs_payload(index: u32) -> Vec<u8> {
    device_payload(index)
}

/// Returns the kernel modules that own queue pairs in one message of the answer. Queue pairs of programs are left out.
pub fn parse_queue_pairs(payload: &[u8]) -> Vec<String> {
    let all = parse_attributes(find_attribute(payload, QUEUE_PAIRS).unwrap_or_default());
    all.filter(|(kind, _)| *kind == QUEUE_PAIR)
        .filter_map(|(_, pair)| find_attribute(pair, KERNEL_USER))
        .map(|name| String::from_utf8_lossy(until_nul(name)).into_owned())
        .collect()
}

pub fn parse_port(payload: &[u8]) -> Option<RdmaPortLink> {
    let number = u32_at(find_attribute(payload, PORT_INDEX)?, 0)?;
    let interface = find_attribute(payload, NETDEV_NAME)
        .and_then(|name| std::str::from_utf8(until_nul(name)).ok())
        .filter(|name| !name.is_empty());
    Some(RdmaPortLink { number, interface: interface.map(str::to_owned) })
}

pub fn device_payload(index: u32) -> Vec<u8> {
    encode_attribute(INDEX, &index.to_ne_bytes())
}

/// Decodes a device number that the kernel encoded by `huge_encode_dev` (include/linux/kdev_t.h).
fn decode_device_number(encoded: u64) -> Option<DeviceNumber> {
    let encoded = u32::try_from(encoded).ok()?;
    Some(DeviceNumber {
        major: (encoded & 0xf_ff00) >> 8,
        minor: (encoded & 0xff) | ((encoded >> 12) & 0xf_ff00),
    })
}

/// Checks properties that hold for any bytes.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    if let Some(link) = parse(bytes) {
        assert!(!link.name.is_empty() && !link.name.contains(&0));
    }
    if let Some(character) = parse_character(bytes) {
        assert!(!character.name.contains(['/', '.']));
    }
    let _ = (parse_netns_mode(bytes), parse_queue_pairs(bytes));
    let interface = parse_port(bytes).and_then(|port| port.interface);
    assert!(interface.is_none_or(|name| !name.is_empty()));
}

#[cfg(target_endian = "little")]
#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use onload_test_tree::netlink::{SEQUENCE, exchange as bytes};
    use rustix::io::Errno;

    use super::super::message::{ACKNOWLEDGE, DUMP, REQUEST, encode_message, read_datagram};
    use super::*;

    fn request(kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
        encode_message(kind, flags | REQUEST, SEQUENCE, payload)
    }

    /// Returns the answer for a name.
    fn read_replies<T>(name: &str, read: &dyn Fn(&[u8]) -> Option<T>) -> Result<Vec<T>, Errno> {
        let mut all = Vec::new();
        let progress = read_datagram(&bytes(name), SEQUENCE, &mut |payload| {
            all.extend(read(payload));
        })
        .map_err(|error| Errno::from_io_error(&error).unwrap())?;
        assert!(progress.is_complete && !progress.has_changed, "{name}");
        Ok(all)
    }

    #[test]
    fn a_device_is_found_by_its_name_among_those_of_the_namespace() {
        assert_eq!(request(GET, DUMP, &[]), bytes("list-request"));
        let found = read_replies("list-answer", &parse).unwrap();
        let link = |index, name: &[u8]| RdmaLink { index, name: name.to_vec() };
        assert_eq!(found, [link(0, b"mlx5_0"), link(3, b"mlx5_3")]);
        assert_eq!(read_replies("list-answer-empty", &parse).unwrap(), []);
    }

    #[test]
    fn a_device_moves_by_its_number_and_the_descriptor_of_a_namespace() {
        let file = std::fs::File::open("/proc/self/ns/net").unwrap();
        let fd = file.as_raw_fd().to_ne_bytes();
        let made = request(SET, ACKNOWLEDGE, &to_namespace(3, file.as_fd()));
        let wanted = bytes("move-request");
        let at = wanted.len() - fd.len();
        assert_eq!(made[..at], wanted[..at]);
        assert_eq!(made[at..], fd);
        assert_eq!(read_replies("done", &parse).unwrap(), []);
    }

    #[test]
    fn what_the_kernel_refuses_is_told_apart() {
        for (name, error) in [
            ("cannot-move", Errno::OPNOTSUPP),
            ("not-here", Errno::INVAL),
            ("no-right", Errno::PERM),
        ] {
            assert_eq!(read_replies(name, &parse), Err(error), "{name}");
        }
    }

    #[test]
    fn a_name_is_given_back() {
        let made = request(SET, ACKNOWLEDGE, &rename(3, b"mlx5_3"));
        assert_eq!(made, bytes("rename-request"));
    }

    #[test]
    fn nodes_are_told_with_their_numbers_by_type() {
        let of_device = request(GET_CHARACTER, ACKNOWLEDGE, &chardev_payload(Some(3), "uverbs"));
        assert_eq!(of_device, bytes("uverbs-request"));
        let shared = request(GET_CHARACTER, ACKNOWLEDGE, &chardev_payload(None, "rdma_cm"));
        assert_eq!(shared, bytes("rdma-cm-request"));
        let found = |name: &str| {
            let found = read_replies(name, &parse_character).unwrap();
            found.iter().map(|one| format!("{} {}", one.name, one.number)).collect::<Vec<_>>()
        };
        assert_eq!(found("uverbs-answer"), ["uverbs3 231:195"]);
        // Beyond 32 devices the numbers are others, and a minor may need more than eight bits.
        assert_eq!(found("uverbs-answer-high"), ["uverbs300 510:300"]);
        assert_eq!(found("rdma-cm-answer"), ["rdma_cm 10:122"]);
    }

    #[test]
    fn ports_are_listed_with_the_interfaces_that_are_in_the_namespace() {
        assert_eq!(request(GET_PORTS, DUMP, &device_payload(3)), bytes("ports-request"));
        let link = |number, interface: Option<&str>| RdmaPortLink {
            number,
            interface: interface.map(str::to_owned),
        };
        let expected = [link(1, Some("ens1f0np0")), link(2, None)];
        assert_eq!(read_replies("ports-answer", &parse_port).unwrap(), expected);
        assert_eq!(read_replies("list-answer-empty", &parse_port).unwrap(), []);
    }

    #[test]
    fn queue_pairs_of_the_kernel_are_told_with_the_modules_that_have_them() {
        assert_eq!(
            request(GET_QUEUE_PAIRS, DUMP, &queue_pairs_payload(3)),
            bytes("queue-pairs-request")
        );
        let found = read_replies("queue-pairs-answer", &|payload| Some(parse_queue_pairs(payload)));
        let names = ["ib_core", "mlx5_ib", "rdma_cm", "ib_ipoib", "rdma_cm"];
        assert_eq!(found.unwrap().concat(), names);
        let none = read_replies("list-answer", &|payload| Some(parse_queue_pairs(payload)));
        assert_eq!(none.unwrap().concat(), [""; 0]);
    }

    #[test]
    fn the_mode_is_read_and_set() {
        assert_eq!(request(SYS_GET, ACKNOWLEDGE, &[]), bytes("mode-request"));
        let mode = |name| read_replies(name, &parse_netns_mode).unwrap();
        assert_eq!(mode("mode-answer-exclusive"), [RdmaNetnsMode::Exclusive]);
        assert_eq!(mode("mode-answer-shared"), [RdmaNetnsMode::Shared]);
        let set = request(SYS_SET, ACKNOWLEDGE, &set_netns_mode_payload(RdmaNetnsMode::Exclusive));
        assert_eq!(set, bytes("set-mode-request"));
    }

    #[test]
    fn what_is_cut_short_or_leads_elsewhere_is_nothing() {
        let whole = [device_payload(3), encode_text(NAME, b"mlx5_3")].concat();
        for end in 0..whole.len() - 1 {
            assert_eq!(parse(&whole[..end]), None, "{end}");
        }
        assert_eq!(parse(&[device_payload(3), encode_text(NAME, b"")].concat()), None);
        let node = |name: &[u8], number: u64| {
            let name = encode_text(CHARACTER_NAME, name);
            let number = encode_attribute(CHARACTER, &number.to_ne_bytes());
            parse_character(&[name, number].concat())
        };
        assert!(node(b"uverbs0", 0xe7c0).is_some());
        for odd in [&b"../mem"[..], b"", b"uverbs0/", b"\xff", b"."] {
            assert_eq!(node(odd, 0xe7c0), None);
        }
        assert_eq!(node(b"uverbs0", u64::MAX), None);
        assert_eq!(parse_character(&encode_text(CHARACTER_NAME, b"uverbs0")), None);
        assert_eq!(parse_netns_mode(&encode_attribute(NETNS_MODE, &[2])), None);
        assert_eq!(parse_netns_mode(&[]), None);
    }
}
