//! Netlink requests about RDMA devices, on a socket in a network namespace.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;

use onload_sys::netlink::message::{ACKNOWLEDGE, DUMP};
use onload_sys::netlink::nldev::{self, RdmaChardev, RdmaLink, RdmaNetnsMode};
use onload_sys::netlink::socket::NetlinkSocket;
use rustix::io::Errno;

/// Sends a request and returns the payloads of all answers.
pub(super) trait NldevExchange {
    fn exchange(&self, kind: u16, flags: u16, payload: &[u8]) -> io::Result<Vec<Vec<u8>>>;
}

impl NldevExchange for NetlinkSocket {
    fn exchange(&self, kind: u16, flags: u16, payload: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.query(kind, flags, payload, &|answer| Some(answer.to_vec()))
    }
}

pub(super) fn list_links(with: &dyn NldevExchange) -> io::Result<Vec<RdmaLink>> {
    let answers = with.exchange(nldev::GET, DUMP, &[])?;
    Ok(answers.iter().filter_map(|payload| nldev::parse(payload)).collect())
}

/// Moves a device to another namespace. Fails with EOPNOTSUPP if its driver does not support it, or if all namespaces
/// share the devices.
pub(super) fn move_device(
    with: &dyn NldevExchange,
    index: u32,
    to: BorrowedFd<'_>,
) -> io::Result<()> {
    let payload = nldev::to_namespace(index, to);
    with.exchange(nldev::SET, ACKNOWLEDGE, &payload).map(drop)
}

pub(super) fn rename(with: &dyn NldevExchange, index: u32, name: &str) -> io::Result<()> {
    let payload = nldev::rename(index, name.as_bytes());
    with.exchange(nldev::SET, ACKNOWLEDGE, &payload).map(drop)
}

/// Returns a device's node of some type, or the node that all devices share. `None` if its module is not loaded.
pub(super) fn find_chardev(
    with: &dyn NldevExchange,
    index: Option<u32>,
    of_type: &str,
) -> io::Result<Option<RdmaChardev>> {
    let payload = nldev::chardev_payload(index, of_type);
    match with.exchange(nldev::GET_CHARACTER, ACKNOWLEDGE, &payload) {
        Ok(answers) => Ok(answers.iter().find_map(|payload| nldev::parse_character(payload))),
        // `ib_get_client_nl_info` (drivers/infiniband/core/device.c), after it has tried to load the module.
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::NODEV) => Ok(None),
            _ => Err(error),
        },
    }
}

/// Returns the kernel modules that use a device, judging by its queue pairs. Leaves out those that every device has:
/// management, its driver, and IP over InfiniBand, which is judged by its interfaces.
pub(super) fn kernel_users(with: &dyn NldevExchange, index: u32) -> io::Result<BTreeSet<String>> {
    const KERNEL_MODULES: [&str; 4] = ["ib_core", "ib_ipoib", "mlx4_ib", "mlx5_ib"];
    let answers =
        with.exchange(nldev::GET_QUEUE_PAIRS, DUMP, &nldev::queue_pairs_payload(index))?;
    let names = answers.iter().flat_map(|payload| nldev::parse_queue_pairs(payload));
    Ok(names.filter(|name| !KERNEL_MODULES.contains(&name.as_str())).collect())
}

/// Returns whether namespaces share the devices, or `None` if the kernel does not report it.
pub(super) fn netns_mode(with: &dyn NldevExchange) -> io::Result<Option<RdmaNetnsMode>> {
    let answers = with.exchange(nldev::SYS_GET, ACKNOWLEDGE, &[])?;
    Ok(answers.iter().find_map(|payload| nldev::parse_netns_mode(payload)))
}

#[cfg(target_endian = "little")]
#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::os::fd::AsFd;

    use onload_sys::netlink::message::{REQUEST, encode_message, read_datagram};
    use onload_test_tree::netlink::{SEQUENCE, exchange as bytes};

    use super::*;

    /// Answers a list of requests, each with what was written down, in that order and no others.
    struct Replay(RefCell<Vec<(&'static str, &'static str)>>);

    impl Replay {
        fn from_exchanges(exchanges: &[(&'static str, &'static str)]) -> Self {
            Replay(RefCell::new(exchanges.iter().rev().copied().collect()))
        }
    }

    impl Drop for Replay {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                assert!(self.0.borrow().is_empty(), "not asked: {:?}", self.0);
            }
        }
    }

    impl NldevExchange for Replay {
        fn exchange(&self, kind: u16, flags: u16, payload: &[u8]) -> io::Result<Vec<Vec<u8>>> {
            let (request, answer) = self.0.borrow_mut().pop().unwrap();
            let mut wanted = bytes(request);
            let mut made = encode_message(kind, flags | REQUEST, SEQUENCE, payload);
            // The number of a descriptor is another in each process.
            if request == "move-request" {
                wanted.truncate(wanted.len() - 4);
                made.truncate(made.len() - 4);
            }
            assert_eq!(made, wanted, "{request}");
            let mut parts = Vec::new();
            let progress = read_datagram(&bytes(answer), SEQUENCE, &mut |payload| {
                parts.push(payload.to_vec());
            })?;
            assert!(progress.is_complete && !progress.has_changed, "{answer}");
            Ok(parts)
        }
    }

    #[test]
    fn a_device_is_found_moved_and_asked_for_its_nodes_where_it_is_then() {
        let host = Replay::from_exchanges(&[
            ("mode-request", "mode-answer-exclusive"),
            ("list-request", "list-answer"),
            ("move-request", "done"),
            ("list-request", "list-answer-empty"),
        ]);
        let container = Replay::from_exchanges(&[
            ("list-request", "list-answer"),
            ("uverbs-request", "uverbs-answer-high"),
            ("rdma-cm-request", "rdma-cm-answer"),
            ("move-request", "done"),
        ]);
        let file = std::fs::File::open("/proc/self/ns/net").unwrap();
        assert_eq!(netns_mode(&host).unwrap(), Some(RdmaNetnsMode::Exclusive));
        let index = list_links(&host).unwrap()[1].index;
        move_device(&host, index, file.as_fd()).unwrap();
        assert_eq!(list_links(&host).unwrap(), []);
        assert_eq!(list_links(&container).unwrap()[1].name, b"mlx5_3");
        // Its node was created again, with another number.
        let node = find_chardev(&container, Some(index), "uverbs").unwrap();
        assert_eq!(node.unwrap().number.to_string(), "510:300");
        let shared = find_chardev(&container, None, "rdma_cm").unwrap();
        assert_eq!(shared.unwrap().name, "rdma_cm");
        move_device(&container, index, file.as_fd()).unwrap();
    }

    #[test]
    fn what_the_kernel_refuses_comes_back_as_its_error() {
        let file = std::fs::File::open("/proc/self/ns/net").unwrap();
        for (answer, error) in [
            ("cannot-move", Errno::OPNOTSUPP),
            ("not-here", Errno::INVAL),
            ("no-right", Errno::PERM),
        ] {
            let host = Replay::from_exchanges(&[("move-request", answer)]);
            let refused = move_device(&host, 3, file.as_fd()).unwrap_err();
            assert_eq!(Errno::from_io_error(&refused), Some(error));
        }
        let shared = Replay::from_exchanges(&[("mode-request", "mode-answer-shared")]);
        assert_eq!(netns_mode(&shared).unwrap(), Some(RdmaNetnsMode::Shared));
    }

    #[test]
    fn the_kernel_uses_a_device_where_not_only_what_each_has_does() {
        let host = Replay::from_exchanges(&[("queue-pairs-request", "queue-pairs-answer")]);
        let users: Vec<String> = kernel_users(&host, 3).unwrap().into_iter().collect();
        assert_eq!(users, ["rdma_cm"]);
    }

    #[test]
    fn a_name_is_given_back_and_a_node_without_its_module_is_none() {
        let host = Replay::from_exchanges(&[
            ("rename-request", "done"),
            ("uverbs-request", "cannot-move"),
            ("uverbs-request", "no-right"),
        ]);
        rename(&host, 3, "mlx5_3").unwrap();
        assert_eq!(find_chardev(&host, Some(3), "uverbs").unwrap(), None);
        assert!(find_chardev(&host, Some(3), "uverbs").is_err());
    }
}
