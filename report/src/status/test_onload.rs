//! Whether programs are accelerated: a stack and an interface, and why one of these is missing. What a stack looks like
//! from outside was seen of a real Onload (of July 2026, AF_XDP on igb).

use crate::test_tree::AsHost;
use onload_core::config::Config;
use onload_host::devices::discover;
use onload_host::devices::inventory::Inventory;
use onload_host::discover::unread::UnreadEntry;
use onload_sys::netlink::link::Link;
use onload_test_tree::{MULTIARCH, Pci};

use super::test_host::*;
use super::*;

/// A container of the host's network that has the library.
fn of_host() -> Made {
    let made = preloaded();
    made.link("/proc/77/ns/net", HOST_NET);
    made
}

/// The same with a program that listens on a socket of the kernel, and has the one descriptor that Onload leaves.
fn by_kernel() -> Made {
    let made = of_host();
    made.open(3, "/dev/onload").listens(77, 901);
    made
}

/// A container on a network of its own that has the library and a stack, and one more interface than lo.
fn with(link: Link) -> Made {
    let mut made = preloaded();
    made.stack();
    made.interface(link);
    made
}

#[test]
fn a_program_with_a_stack_on_the_hosts_network_is_accelerated() {
    let made = of_host();
    made.stack().open(6, "socket:[1]");
    let wanted = "processes with a stack of Onload: 1 of 1";
    made.assert_is(VerdictState::Accelerated, wanted, "");
}

/// debugfs, which names the interfaces of AF_XDP, is root's.
#[test]
fn interfaces_that_this_user_may_not_see_are_not_missing() {
    let verdict_of = |made: &Made| {
        let status = made.status_with(|inventory| {
            inventory.attached.clear();
            inventory.unread.push(UnreadEntry {
                path: "/sys/kernel/debug".into(),
                kinds: vec![Class::Nic],
                reason: "permission denied".to_owned(),
                advice: "",
            });
        });
        status.containers[0].verdicts[0].clone()
    };
    let made = by_kernel();
    let verdict = verdict_of(&made);
    assert_eq!(verdict.state, VerdictState::Unknown, "{verdict:?}");
    assert!(
        verdict.reason.contains("could not determine whether it has an interface of the host"),
        "{verdict:?}"
    );
    made.stack();
    let verdict = verdict_of(&made);
    assert_eq!(verdict.state, VerdictState::Accelerated, "{verdict:?}");
    let status = made.status_with(|inventory| inventory.attached.clear());
    assert_eq!(status.containers[0].state(), VerdictState::NoInterface);
}

#[test]
fn one_descriptor_of_the_device_is_no_stack() {
    by_kernel().assert_is(
        VerdictState::NoStack,
        "on the kernel's sockets, with the library and without a stack of Onload: 77 redis; the cause is unknown",
        "start it again",
    );
    // Nor are many of other devices of Onload, or of other anonymous files.
    let made = by_kernel();
    made.open(4, "/dev/onload_epoll").open(5, "anon_inode:[eventpoll]");
    made.open(6, "/tmp/onload:[tcp:0:3]");
    assert_eq!(made.verdicts()[0].state, VerdictState::NoStack);
}

#[test]
fn the_stack_that_a_process_made_counts_before_it_has_a_socket() {
    let made = of_host();
    made.open(3, "/dev/onload").open(4, "/dev/onload");
    assert_eq!(made.verdicts()[0].state, VerdictState::Ready);
    made.file("/proc/driver/onload/stacks", "0: 77 0 1 2 3\n");
    assert_eq!(made.verdicts()[0].state, VerdictState::Accelerated);
    // A stack whose maker has ended, and whose number another process has now.
    let made = by_kernel();
    made.file("/proc/driver/onload/stacks", "0: 77 0 1 2 3\n1: 0 0\n");
    assert_eq!(made.verdicts()[0].state, VerdictState::NoStack);
}

/// A stack that was imported has no descriptor of the device: it came by EF_NAME, or a socket of it by exec or SCM_RIGHTS.
#[test]
fn a_descriptor_of_a_stack_is_a_stack_however_many_of_the_device_there_are() {
    let made = of_host();
    made.open(3, "/dev/onload").open(5, "onload:[tcp:0:1]");
    assert_eq!(made.verdicts()[0].state, VerdictState::Accelerated);
    let made = of_host();
    made.open(3, "onload:[stack:0]").open(5, "onload:[udp:0:3]");
    assert_eq!(made.verdicts()[0].state, VerdictState::Accelerated);
}

#[test]
fn where_onload_logs_to_a_terminal_the_one_descriptor_is_the_stacks() {
    let terminal = || {
        let made = of_host();
        made.open(2, "/dev/pts/0");
        made.file("/proc/driver/onload/stacks", "0: 77 0 1 2 3\n");
        made
    };
    let made = terminal();
    assert_eq!(made.verdicts()[0].state, VerdictState::Ready);
    made.open(3, "/dev/onload");
    assert_eq!(made.verdicts()[0].state, VerdictState::Accelerated);
    // The stack of another: none of its own.
    made.file("/proc/driver/onload/stacks", "0: 70 0 1 2 3\n");
    assert_eq!(made.verdicts()[0].state, VerdictState::Ready);
    let made = terminal();
    made.open(3, "/dev/onload");
    made.file("/proc/77/environ", "EF_LOG_VIA_IOCTL=1\0");
    assert_eq!(made.verdicts()[0].state, VerdictState::Ready);
}

#[test]
fn the_variables_of_a_program_say_whether_its_log_has_a_descriptor() {
    let listed = |variables: &str| {
        let made = of_host();
        made.open(2, "pipe:[9]").open(3, "/dev/onload");
        made.file("/proc/driver/onload/stacks", "0: 77 0 1 2 3\n");
        made.file("/proc/77/environ", format!("{PRELOADED}{variables}\0"));
        made
    };
    for (variables, state) in [
        ("EF_LOG_FILE=/tmp/log", VerdictState::Accelerated),
        ("EF_LOG_VIA_IOCTL=0", VerdictState::Accelerated),
        ("EF_LOG=-banner", VerdictState::Accelerated),
        ("EF_LOG=conn_drop,-b", VerdictState::Accelerated),
        ("EF_LOG_FILE=/tmp/log\0EF_LOG_VIA_IOCTL=1", VerdictState::Ready),
        ("EF_LOG_VIA_IOCTL=no", VerdictState::Ready),
        ("EF_LOG=-conn_drop", VerdictState::Ready),
        ("EF_LOG=-banner,banner", VerdictState::Ready),
    ] {
        assert_eq!(listed(variables).verdicts()[0].state, state, "{variables}");
    }
    // One that wrote over its variables has those that its container was made with.
    let made = listed("");
    made.file("/proc/77/environ", "\0".repeat(153));
    made_with(&made, r#""LD_PRELOAD=libonload.so","EF_LOG_VIA_IOCTL=0""#);
    assert_eq!(made.verdicts()[0].state, VerdictState::Accelerated);
}

#[test]
fn a_child_that_inherited_a_stack_is_accelerated_though_the_driver_lists_its_parent() {
    let made = of_host();
    made.file("/proc/driver/onload/stacks", "0: 70 0 1 2 3\n");
    made.stack();
    assert_eq!(made.verdicts()[0].state, VerdictState::Accelerated);
}

#[test]
fn a_container_is_ready_while_no_program_has_a_socket() {
    let made = of_host();
    made.open(9, "socket:[901]");
    made.file("/proc/77/net/tcp", "  sl  local_address\n   0: 0:1 0:0 0A 0:0 0:0 0 0 0 902 1\n");
    made.assert_is(VerdictState::Ready, "no program has opened a socket yet", "");
    // Whether it is one of them cannot be seen.
    made.tree.remove("/proc/77/net/tcp");
    made.tree.directory("/proc/77/net/tcp");
    let verdicts = made.verdicts();
    assert_eq!(verdicts[0].state, VerdictState::Unknown, "{verdicts:?}");
}

#[test]
fn a_socket_of_the_kernel_is_told_from_one_of_onload() {
    let made = of_host();
    made.stack().open(6, "socket:[901]");
    let has = |made: &Made| {
        let addresses = facts_of(made).processes[0].kernel_addresses.clone();
        addresses.map(|addresses| !addresses.is_empty())
    };
    assert_eq!(has(&made), Some(false));
    made.listens(77, 902);
    assert_eq!(has(&made), Some(true));
    made.tree.remove("/proc/77/net/tcp");
    made.tree.directory("/proc/77/net/tcp");
    assert_eq!(has(&made), None);
}

#[test]
fn a_server_that_was_started_without_the_preload_is_named() {
    let made = of_host();
    let cgroup = format!("0::/system.slice/docker-{ID}.scope\n");
    made.process(81, &cgroup, "nc", HOST_NET, "pid:[7]");
    made.listens(81, 905);
    made.assert_is(
        VerdictState::NoStack,
        "on the kernel's sockets, without libonload.so, which other programs of it preload: 81 nc",
        &format!("docker exec -e LD_PRELOAD=libonload.so -e EF_FDTABLE_SIZE=524288 {ID} PROGRAM"),
    );
    // Beside one that has a stack it is named, and the container is accelerated.
    made.stack();
    made.assert_is(
        VerdictState::Accelerated,
        "processes with a stack of Onload: 1 of 1; on the kernel's sockets, without libonload.so: 81 nc",
        "",
    );
}

/// The host's interface that is Onload's, and another.
const PORTS: &str =
    "link 5 ens1 - - - -\nlink 6 ens0 - - - -\naddress 5 192.0.2.8/24\naddress 6 192.0.2.7/24\n";

/// As a real one that connects by an interface that Onload does not have: a stack in the list, no descriptor of it.
fn with_unused_stack() -> Made {
    let made = of_host();
    made.file("/network.table", PORTS);
    made.open(3, "/dev/onload").open(4, "/dev/onload");
    made.file("/proc/driver/onload/stacks", "0: 77 0 1 2 3\n");
    made
}

#[test]
fn a_program_all_of_whose_sockets_are_the_kernels_is_not_accelerated_though_it_has_a_stack() {
    let made = with_unused_stack();
    assert_eq!(made.verdicts()[0].state, VerdictState::Accelerated);
    made.connects(77, 901, "192.0.2.7:50000", "192.0.2.9:6379");
    made.assert_is(
        VerdictState::NoStack,
        "on the kernel's sockets, although it has a stack of Onload: 77 redis (192.0.2.7 of ens0)",
        "an address of ens1, or a route over it; or let Onload accelerate the other interface (onload-ctk discover --explain",
    );
    // Of its own interface that is not the reason.
    made.connects(77, 901, "192.0.2.8:50000", "192.0.2.9:6379");
    made.assert_is(
        VerdictState::NoStack,
        "77 redis (192.0.2.8 of ens1); could not determine why Onload left them to the kernel",
        "ethtool -l ens1",
    );
}

#[test]
fn channels_are_asked_of_one_interface_by_each_command() {
    let mut made = with_unused_stack();
    made.file("/sys/class/net/ens0/ifindex", "6\n");
    made.attached.push("ens0".to_owned());
    made.connects(77, 901, "192.0.2.8:50000", "192.0.2.9:6379");
    made.assert_is(VerdictState::NoStack, "", "(ethtool -l ens0; ethtool -l ens1)");
    // In a network of its own, in that network.
    let mut made = preloaded();
    made.interface(of_function("eth0", "0000:3b:00.0"));
    made.function("0000:3b:00.0", "0x1924", "0x0b03");
    made.stack();
    made.connects(77, 901, "192.0.2.8:50000", "192.0.2.9:6379");
    made.assert_is(
        VerdictState::PartlyAccelerated,
        "",
        "(nsenter --target 77 --net ethtool -l eth0)",
    );
    // The channels of a macvlan are those of the host's interface below it.
    let made = with(on_host("eth0", "macvlan", 5));
    made.connects(77, 901, "192.0.2.8:50000", "192.0.2.9:6379");
    made.assert_is(VerdictState::PartlyAccelerated, "", "(ethtool -l ens1)");
}

/// A real Onload with two channels left 6 of 8 connections by its own interface to the kernel.
#[test]
fn a_program_with_sockets_of_both_is_partly_accelerated_if_those_of_the_kernel_are_by_onloads_interface()
 {
    let made = with_unused_stack();
    made.open(5, "onload:[tcp:0:2047]");
    made.connects(77, 901, "192.0.2.8:50000", "192.0.2.7:6379");
    assert_eq!(made.verdicts()[0].reason, "processes with a stack of Onload: 1 of 1");
    made.connects(77, 901, "192.0.2.7:50000", "192.0.2.9:6379");
    made.assert_is(
        VerdictState::Accelerated,
        "; in part on the kernel's sockets, by interfaces that Onload does not have: 77 redis (192.0.2.7 of ens0)",
        "",
    );
    made.connects(77, 901, "192.0.2.8:50000", "192.0.2.9:6379");
    made.assert_is(
        VerdictState::PartlyAccelerated,
        "processes with a stack of Onload: 1 of 1; in part on the kernel's sockets: 77 redis (192.0.2.8 of ens1)",
        "ethtool -l ens1",
    );
}

#[test]
fn sockets_within_the_host_and_of_name_lookups_change_no_verdict() {
    for (local, remote) in [
        ("127.0.0.1:6379", "0.0.0.0:0"),
        ("127.0.0.1:50000", "127.0.0.1:6379"),
        ("192.0.2.7:50000", "192.0.2.1:53"),
    ] {
        let made = with_unused_stack();
        made.connects(77, 901, local, remote);
        made.assert_is(VerdictState::Ready, "no program has a socket for other machines yet", "");
        made.open(5, "onload:[tcp:0:2047]");
        assert_eq!(made.verdicts()[0].state, VerdictState::Accelerated, "{local} {remote}");
        let made = by_kernel();
        made.connects(77, 901, local, remote);
        assert_eq!(made.verdicts()[0].state, VerdictState::Ready, "{local} {remote}");
    }
}

/// With a real Onload, a helper that listened on 127.0.0.1 took the only stack, and the server was refused.
#[test]
fn a_helper_on_loopback_with_the_only_stack_is_not_accelerated() {
    let made = with_unused_stack();
    made.connects(77, 901, "127.0.0.1:7009", "0.0.0.0:0");
    let cgroup = format!("0::/system.slice/docker-{ID}.scope\n");
    made.process(81, &cgroup, "pp", HOST_NET, "pid:[7]");
    made.file("/proc/81/maps", MAPS).link("/proc/81/fd/3", "/dev/onload");
    made.link("/proc/81/fd/9", "socket:[905]");
    made.file(
        "/proc/77/net/tcp",
        "  sl  local_address\n   0: 0100007F:1B61 00000000:0000 0A 0:0 0:0 0 0 0 901 1\n   \
         1: 080200C0:1B59 090200C0:C350 01 0:0 0:0 0 0 0 905 1\n",
    );
    made.assert_is(
        VerdictState::NoStack,
        "with the library and without a stack of Onload: 81 pp (192.0.2.8 of ens1)",
        "start it again",
    );
}

#[test]
fn a_container_of_which_some_processes_are_accelerated_is_partly_accelerated() {
    let made = of_host();
    made.stack();
    let cgroup = format!("0::/system.slice/docker-{ID}.scope\n");
    for pid in 101..113 {
        made.process(pid, &cgroup, "worker", HOST_NET, "pid:[7]");
        made.file(&format!("/proc/{pid}/maps"), MAPS).listens(pid, 900);
        made.link(&format!("/proc/{pid}/fd/3"), "/dev/onload");
    }
    // Neither a helper without the library nor one that has no socket is counted.
    for pid in [200, 201] {
        made.process(pid, &cgroup, "helper", HOST_NET, "pid:[7]");
    }
    made.listens(200, 905).file("/proc/201/maps", MAPS);
    made.assert_is(
        VerdictState::PartlyAccelerated,
        "processes with a stack of Onload: 1 of 13; on the kernel's sockets: 101 worker, 102 worker, 103 worker and 9 more",
        "start it again",
    );
    assert!(!made.verdicts()[0].state.is_good());
}

/// What is said of a program with these variables.
fn said_with(made: &Made, variables: &str) -> String {
    made.file("/proc/77/environ", format!("{PRELOADED}{variables}\0"));
    let verdict = made.verdicts().remove(0);
    assert_eq!(verdict.state, VerdictState::NoStack, "{verdict:?}");
    verdict.reason
}

/// Of a name that leads to all of the ports.
#[track_caller]
fn stands_for_its_ports(made: &Made, name: &str) {
    let message = said_with(made, &format!("EF_INTERFACE_WHITELIST={name}"));
    assert!(message.contains("the cause is unknown"), "{message}");
    let message = said_with(made, &format!("EF_INTERFACE_BLACKLIST={name}"));
    assert!(message.contains(&format!("EF_INTERFACE_BLACKLIST={name} leaves no")), "{message}");
}

#[test]
fn a_bond_a_vlan_or_a_macvlan_in_a_list_stands_for_its_ports() {
    let made = by_kernel();
    made.file(
        "/network.table",
        "link 5 ens1 - 9 - -\nlink 6 ens0 - - - -\nlink 9 bond0 bond:1 - - -\n\
         link 10 bond0.7 vlan:33024 - 9 -\nlink 11 mac0 macvlan - 10 -\n",
    );
    for name in ["bond0", "bond0.7", "mac0"] {
        stands_for_its_ports(&made, name);
    }
    let both = "EF_INTERFACE_WHITELIST=bond0\0EF_INTERFACE_BLACKLIST=ens1";
    let message = said_with(&made, both);
    assert!(message.contains("EF_INTERFACE_BLACKLIST=ens1 leaves no"), "{message}");
    // In a container by all names of an interface.
    let mut made = preloaded();
    made.interface(Link {
        alternative_names: vec![b"fast".to_vec()],
        ..on_host("eth0", "macvlan", 5)
    });
    made.open(3, "/dev/onload").listens(77, 901);
    for name in ["eth0", "fast"] {
        stands_for_its_ports(&made, name);
    }
}

#[test]
fn a_name_that_a_container_does_not_have_is_a_cause() {
    let mut made = preloaded();
    made.interface(Link {
        alternative_names: vec![b"fast".to_vec()],
        ..on_host("eth0", "macvlan", 5)
    });
    made.open(3, "/dev/onload").listens(77, 901);
    for list in ["WHITELIST=ens1", "BLACKLIST=fast ens1"] {
        let message = said_with(&made, &format!("EF_INTERFACE_{list}"));
        let wanted = format!("EF_INTERFACE_{list} leaves no accelerated interface (eth0)");
        assert!(message.contains(&wanted), "{message}");
    }
    for list in ["WHITELIST=ens1 fast", "BLACKLIST=ens1"] {
        let message = said_with(&made, &format!("EF_INTERFACE_{list}"));
        assert!(message.contains("the cause is unknown"), "{message}");
    }
}

#[test]
fn a_list_is_the_cause_of_an_interface_that_was_not_found_and_of_nothing_else_in_the_log() {
    let made = by_kernel();
    made.file("/network.table", PORTS);
    let log = |text: &str| {
        let line =
            format!("3,2,93274651,-;[onload] oo:redis[1]: netif_tcp_helper_alloc_u: {text}\n");
        made.file("/dev/kmsg", line);
    };
    log("ERROR: Failed to allocate stack (rc=-16)");
    for name in ["ens0", "nosuch0"] {
        let message = said_with(&made, &format!("EF_INTERFACE_WHITELIST={name}"));
        assert!(message.contains("no stack was free"), "{message}");
    }
    log("ENODEV.");
    for list in ["WHITELIST=ens0", "WHITELIST=nosuch0", "BLACKLIST=nosuch0"] {
        let message = said_with(&made, &format!("EF_INTERFACE_{list}"));
        assert!(message.contains(&format!("EF_INTERFACE_{list} leaves no")), "{message}");
    }
    let message = said_with(&made, "EF_INTERFACE_WHITELIST=ens1");
    assert!(message.contains("found no interface for it"), "{message}");
}

#[test]
fn the_variables_of_a_program_are_a_cause() {
    for (variables, reason) in [
        ("EF_DONT_ACCELERATE=1", "EF_DONT_ACCELERATE is in its environment"),
        (
            "EF_INTERFACE_WHITELIST=ens0",
            "EF_INTERFACE_WHITELIST=ens0 leaves no accelerated interface (ens1)",
        ),
        ("EF_INTERFACE_BLACKLIST=ens0 ens1", "EF_INTERFACE_BLACKLIST=ens0 ens1 leaves no"),
        ("EF_INTERFACE_BLACKLIST=ens1 nosuch0", "EF_INTERFACE_BLACKLIST=ens1 nosuch0 leaves no"),
    ] {
        let made = by_kernel();
        made.file("/network.table", PORTS);
        made.file("/proc/77/environ", format!("{PRELOADED}{variables}\0"));
        made.assert_is(VerdictState::NoStack, reason, "remove EF_");
    }
    for variables in [
        "EF_DONT_ACCELERATE=0",
        "EF_INTERFACE_WHITELIST=ens1",
        "EF_INTERFACE_WHITELIST=ens0 ens1",
        "EF_INTERFACE_WHITELIST=",
        "EF_INTERFACE_WHITELIST= ",
        "EF_INTERFACE_BLACKLIST=ens0",
        // It may be another name of ens1, which the kernel tells for a container alone.
        "EF_INTERFACE_WHITELIST=nosuch0",
        "EF_INTERFACE_BLACKLIST=nosuch0",
        "XEF_DONT_ACCELERATE=1",
    ] {
        let made = by_kernel();
        made.file("/network.table", PORTS);
        made.file("/proc/77/environ", format!("{PRELOADED}{variables}\0"));
        made.assert_is(VerdictState::NoStack, "the cause is unknown", "");
    }
}

/// As redis-server of Debian 13 did beside a real Onload: nothing but zeros is left.
#[test]
fn the_variables_of_a_program_that_wrote_over_them_are_those_that_its_container_was_made_with() {
    let made = by_kernel();
    made.file("/proc/77/environ", "\0".repeat(153));
    made_with(&made, r#""LD_PRELOAD=libonload.so","EF_DONT_ACCELERATE=1""#);
    let reason = "EF_DONT_ACCELERATE is in its environment";
    made.assert_is(VerdictState::NoStack, reason, "remove EF_");
    // What it shows is what it has.
    made.file("/proc/77/environ", PRELOADED);
    made.assert_is(VerdictState::NoStack, "the cause is unknown", "");
}

#[test]
fn the_line_of_the_kernels_log_is_a_cause() {
    let line = |pid: u32, text: &str| {
        format!(
            "6,1,1000,-;usb 1-1: new device\n3,2,93274651,-;[onload] oo:redis[{pid}]: netif_tcp_helper_alloc_u: {text}\n"
        )
    };
    let refused = "ERROR: Failed to allocate stack (rc=-16)\\x0aSee kernel messages";
    let made = by_kernel();
    made.file("/dev/kmsg", line(1, refused));
    made.assert_is(
        VerdictState::NoStack,
        "\"Failed to allocate stack (rc=-16)\" of it: no stack was free",
        "start it again, since stacks are free now",
    );
    // Where EF_PACKET_BUFFER_MODE or the size of a ring is refused, none that another program gives up helps.
    for rc in [-1, -22] {
        made.file("/dev/kmsg", line(1, &refused.replace("-16", &rc.to_string())));
        let verdict = made.verdicts().remove(0);
        assert!(verdict.reason.ends_with(&format!("(rc={rc})\" of it")), "{verdict:?}");
        let remedy = verdict.remedy.unwrap();
        assert!(
            remedy.contains("the driver usually logs the reason") && remedy.contains("EF_"),
            "{remedy}"
        );
        assert!(!remedy.contains("onload_stackdump"), "{remedy}");
    }
    // The library names a program by its file: redis-server is a link to redis-check-rdb in Debian.
    let named = line(1, refused).replace("oo:redis[", "oo:redis-check-rdb[");
    made.file("/dev/kmsg", &named);
    made.assert_is(VerdictState::NoStack, "the cause is unknown", "");
    made.link("/proc/77/exe", "/usr/bin/redis-check-rdb");
    made.assert_is(VerdictState::NoStack, "no stack was free", "");
    made.file("/dev/kmsg", line(1, "ENODEV."));
    made.assert_is(VerdictState::NoStack, "found no interface for it", "");
    // The log of another program, and one that is not there.
    made.file("/dev/kmsg", line(2, refused));
    made.assert_is(VerdictState::NoStack, "the cause is unknown", "");
    made.tree.remove("/dev/kmsg");
    made.assert_is(VerdictState::NoStack, "the cause is unknown", "");
}

/// A real Onload with AF_XDP and one channel lists the stack of another container, and then, with process 0, that of its last
/// connection in TIME-WAIT.
#[test]
fn a_program_that_found_no_free_stack_is_told_what_holds_them() {
    const OTHER: &str = "4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a";
    let made = by_kernel();
    let text = "netif_tcp_helper_alloc_u: ERROR: Failed to allocate stack (rc=-16)";
    made.file("/dev/kmsg", format!("3,2,93274651,-;oo:redis[1]: {text}\n"));
    let is_told = |stacks: &str, reason: &str, remedy: &str| {
        made.file("/proc/driver/onload/stacks", stacks);
        made.assert_is(VerdictState::NoStack, reason, remedy);
    };
    let orphan = "0: 0 0 90 73 0 4 2 0 0 0 0 58\n";
    let left = "no stack was free; stacks are held by: connections of ended programs";
    is_told(orphan, left, "wait until onload_stackdump -z lists no stack, and start it again");
    made.file("/proc/3732/cgroup", format!("0::/system.slice/docker-{OTHER}.scope\n"));
    made.file(&format!("/var/lib/docker/containers/{OTHER}/config.v2.json"), r#"{"Name":"/feed"}"#);
    let stack = "1: 3732 0 32 40 0 4 2 0 0 0 0 28\n";
    is_told(stack, "stacks are held by: feed (docker)", "stop one of these");
    let both = format!("{orphan}{stack}");
    is_told(&both, "stacks are held by: feed (docker), connections of", "stop one of these");
    is_told("1: 901 0 32\n", "stacks are held by: process 901", "stop one of these");
    // Another process of the same container.
    made.process(
        78,
        &format!("0::/system.slice/docker-{ID}.scope\n"),
        "redis",
        HOST_NET,
        "pid:[7]",
    );
    is_told("1: 78 0 32\n", "stacks are held by: ", "set EF_NAME, so that its processes share");
}

/// As a real Onload wrote it when a container of another user had the stack of that name.
#[test]
fn a_stack_of_another_user_is_a_cause_for_who_names_it() {
    let made = by_kernel();
    let line = "4,3,93274651,-;[onload] User 1000:1000 can't share stack 0(feed) owned by 0:0 share_with=0\n";
    made.file("/dev/kmsg", line);
    made.file("/proc/77/environ", format!("{PRELOADED}EF_NAME=feed\0"));
    let reason = "EF_NAME=feed names a stack of user 0, which does not share it";
    made.assert_is(VerdictState::NoStack, reason, "EF_SHARE_WITH");
    for (variables, line) in [("EF_NAME=other", line), ("EF_NAME=feed", "")] {
        made.file("/proc/77/environ", format!("{PRELOADED}{variables}\0"));
        made.file("/dev/kmsg", line);
        made.assert_is(VerdictState::NoStack, "the cause is unknown", "");
    }
}

/// The note is that of Debian's containerd, 988 bytes into the file.
#[test]
fn a_go_program_that_maps_the_library_opens_sockets_past_it() {
    let made = by_kernel();
    let mut go = program(GLIBC, 200);
    go.resize(988, 0);
    go.extend(b"\x04\0\0\0\x53\0\0\0\x04\0\0\0Go\0\0id");
    made.file("/proc/77/exe", go);
    made.assert_is(VerdictState::NoStack, "77 redis; it is a Go program", "libc");
}

#[test]
fn a_line_of_the_log_that_may_be_another_replicas_is_no_cause() {
    let made = by_kernel();
    let line = "3,2,93274651,-;[onload] oo:redis[1]: netif_tcp_helper_alloc_u: ERROR: Failed to allocate stack (rc=-16)\n";
    made.file("/dev/kmsg", line);
    let reasons = |made: &Made| {
        let mut all: Vec<String> = made
            .status()
            .containers
            .into_iter()
            .map(|one| one.verdicts[0].reason.clone())
            .collect();
        all.sort();
        all
    };
    assert!(reasons(&made)[0].contains("no stack was free"));
    // Another container of the same image, whose first program has the same name and number.
    let cgroup = format!("0::/system.slice/docker-{}.scope\n", ID.replace('3', "4"));
    made.process(78, &cgroup, "redis", HOST_NET, "pid:[8]");
    let called = |name: &str| {
        let status = format!("Name:\t{name}\nNSpid:\t78\t1\nCapEff:\t{CAPABILITIES}\n");
        made.file("/proc/78/status", status);
    };
    called("redis");
    let maps = "7f00-7f01 r-xp 0 08:01 5 /usr/lib64/libonload.so\n";
    made.file("/proc/78/maps", maps).listens(78, 902);
    let both = reasons(&made);
    assert_eq!(both.len(), 2);
    assert!(both.iter().all(|one| one.contains("the cause is unknown")), "{both:?}");
    // Where each may have a line and all lines are the same, so is the cause.
    let second = line.replace("93274651", "93284651");
    made.file("/dev/kmsg", format!("{line}{second}"));
    let both = reasons(&made);
    assert!(both.iter().all(|one| one.contains("no stack was free")), "{both:?}");
    made.file("/dev/kmsg", format!("{line}{}", second.replace("-16", "-22")));
    let both = reasons(&made);
    assert!(both.iter().all(|one| one.contains("the cause is unknown")), "{both:?}");
    // A line that is older than the other program is not that one's, and leaves the newer line to it.
    made.file("/dev/kmsg", line);
    made.file("/proc/78/stat", stat_of(78, 20_000));
    let both = reasons(&made);
    assert_eq!(both.iter().filter(|one| one.contains("no stack was free")).count(), 1, "{both:?}");
    made.file("/proc/78/stat", stat_of(78, 700));
    // One that has another name, or a stack, is not the one that got none.
    called("other");
    let first = |made: &Made| {
        reasons(made).into_iter().filter(|one| one.contains("no stack was free")).count()
    };
    assert_eq!(first(&made), 1);
    called("redis");
    made.link("/proc/78/fd/3", "onload:[tcp:0:1]");
    assert_eq!(first(&made), 1);
}

/// What a program of a real Onload has whose image brings a library of another build: the descriptor for epoll alone.
#[test]
fn a_program_with_a_library_that_the_driver_refused_is_told_so() {
    let made = of_host();
    made.open(3, "/dev/onload_epoll").listens(77, 901);
    // The host's own, which is another file than the mapped one.
    made.file("/usr/lib64/libonload.so", "");
    let reason = "77 redis; its libonload.so is not this host's, and the driver rejected it";
    made.assert_is(VerdictState::NoStack, reason, "remove the image's own library");
    // With one of the driver's build it has a descriptor.
    made.open(4, "/dev/onload");
    made.assert_is(VerdictState::NoStack, "the cause is unknown", "");
    // One that logs to a terminal has none either way.
    made.tree.remove("/proc/77/fd/4");
    made.open(2, "/dev/pts/0");
    made.assert_is(VerdictState::NoStack, "the cause is unknown", "");
    made.tree.remove("/proc/77/fd/2");
    // Its variables take precedence: the library then asks the driver for nothing.
    made.file("/proc/77/environ", format!("{PRELOADED}EF_DONT_ACCELERATE=1\0"));
    made.assert_is(VerdictState::NoStack, "EF_DONT_ACCELERATE is in", "remove EF_");
}

/// Onload has attached to an interface of that name and hardware address.
fn attached(made: &Made, name: &str, address: &str) {
    made.file("/sys/module/sfc_resource/version", "1\n");
    let directory = "/sys/kernel/debug/sfc_resource/nics/000_ens1";
    made.file(&format!("{directory}/dev"), "no dev\n");
    made.file(&format!("{directory}/net_dev"), format!("{name}\n"));
    made.file(&format!("{directory}/mac_addr"), format!("{address}\n"));
}

/// Onload's directories have the time of when they were made, and the clock may have been set since.
#[test]
fn no_time_tells_whether_a_program_was_started_before_onload_had_an_interface() {
    let made = by_kernel();
    attached(&made, "ens1", "02:00:00:00:00:01");
    for boot in [1_000_000_000, 9_000_000_000_u64] {
        made.file("/proc/stat", format!("cpu 1\nbtime {boot}\n"));
        made.assert_is(
            VerdictState::NoStack,
            "the cause is unknown; it may have started before Onload had ens1",
            "start it again; if that does not help, check the program's output",
        );
    }
}

#[test]
fn an_interface_on_one_of_the_host_that_is_accelerated_is_accelerated() {
    for kind in ["macvlan", "ipvlan", "vlan"] {
        with(on_host("eth0", kind, 5)).assert_is(VerdictState::Accelerated, "stack", "");
    }
    for (link, why) in [
        (on_host("eth0", "macvlan", 6), "another interface of the host"),
        (on_host("eth0", "veth", 5), "the other end of a veth"),
        (on_host("eth0", "macsec", 5), "what Onload does not know"),
        (link("eth0", "tun"), "a tunnel"),
        (
            Link { lower_namespace: Some(3), ..on_host("eth0", "macvlan", 5) },
            "an interface of that number elsewhere",
        ),
    ] {
        let verdicts = with(link).verdicts();
        assert_eq!(verdicts[0].state, VerdictState::NoInterface, "{why}: {verdicts:?}");
    }
}

/// Its user space was upgraded before the driver, which keeps the stacks that programs have.
#[test]
fn a_program_with_a_stack_keeps_its_interface_though_none_is_offered_any_more() {
    let mut made = with(on_host("eth0", "macvlan", 6));
    made.attached.clear();
    let tree = &made.tree;
    tree.driver(&"0".repeat(32)).libraries(MULTIARCH);
    tree.remove(&format!("{MULTIARCH}/libonload_zf.so"));
    let function = tree.pci(Pci::network("0000:05:00.0", "1924:0b03", "sfc"));
    let interface = tree.interface(&function, "ens6");
    tree.attribute(&format!("{interface}/ifindex"), "6");
    assert_eq!(made.verdicts()[0].state, VerdictState::NoInterface);
    tree.auxiliary(&function, "sfc.onload.0", "sfc_resource.ef10", Some("1"));
    let offered = |inventory: &mut Inventory| assert_eq!(inventory.nics, []);
    let status = made.status_with(offered);
    assert_eq!(status.containers[0].state(), VerdictState::Accelerated, "{status:?}");
    // So it is of the host's network, and where the operator ignores the interface.
    made.link("/proc/77/ns/net", HOST_NET);
    assert_eq!(made.verdicts()[0].state, VerdictState::Accelerated);
    let ignored = Config::parse("[discover]\nignored-interfaces = [\"ens6\"]\n").unwrap();
    assert_eq!(discover(&made.tree.host(), &ignored).attached, ["ens6"]);
}

#[test]
fn a_macvlan_on_a_vlan_of_the_host_is_accelerated() {
    let made = with(on_host("eth0", "macvlan", 9));
    made.file("/network.table", "link 5 ens1 - - - -\nlink 9 ens1.50 vlan - 5 -\n");
    assert_eq!(made.verdicts()[0].state, VerdictState::Accelerated);
    made.file("/network.table", "link 5 ens1 - - - -\nlink 9 ens0.50 vlan - 4 -\n");
    assert_eq!(made.verdicts()[0].state, VerdictState::NoInterface);
}

#[test]
fn an_ipvlan_is_accelerated_in_mode_l2_and_a_vlan_of_802_1q() {
    for (kind, variant, state) in [
        ("ipvlan", 0, VerdictState::Accelerated),
        ("ipvlan", 1, VerdictState::NoInterface),
        ("ipvlan", 2, VerdictState::NoInterface),
        ("vlan", 0x8100, VerdictState::Accelerated),
        ("vlan", 0x88a8, VerdictState::NoInterface),
        ("macvlan", 4, VerdictState::Accelerated),
    ] {
        let made = with(Link { variant: Some(variant), ..on_host("eth0", kind, 5) });
        assert_eq!(made.verdicts()[0].state, state, "{kind} {variant}");
    }
}

#[test]
fn a_vlan_on_a_vlan_is_not_accelerated_whatever_is_between_them() {
    let made = |kind: &str, table: &str| {
        let made = with(on_host("eth0", kind, 9));
        made.file("/network.table", format!("link 5 ens1 - - - -\n{table}"));
        made.verdicts()[0].state
    };
    let vlan = "link 9 ens1.50 vlan:33024 - 5 -\n";
    assert_eq!(made("macvlan", vlan), VerdictState::Accelerated);
    assert_eq!(made("vlan", vlan), VerdictState::NoInterface);
    let between = "link 8 ens1.50 vlan:33024 - 5 -\nlink 9 mac0 macvlan - 8 -\n";
    assert_eq!(made("ipvlan", between), VerdictState::Accelerated);
    assert_eq!(made("vlan", between), VerdictState::NoInterface);
    assert_eq!(made("macvlan", "link 9 ens1.50 vlan:34984 - 5 -\n"), VerdictState::NoInterface);
}

/// A bond with two members of its container: ens2, which is Onload's, and ens3.
fn bond(kind: &str, variant: Option<u16>) -> Made {
    let mut made = with(Link { index: 7, variant, ..link("bond0", kind) });
    made.function("0000:05:00.0", "0x1924", "0x0b03");
    for (index, name, function) in [(3, "ens2", "0000:05:00.0"), (4, "ens3", "0000:05:00.1")] {
        made.interface(Link { index, master: Some(7), ..of_function(name, function) });
    }
    made
}

/// Whether the bond of a container is accelerated, whose members are so too.
#[track_caller]
fn is_accelerated(made: &Made) -> Option<bool> {
    let interfaces = facts_of(made).interfaces.unwrap();
    interfaces.iter().find(|one| one.name == "bond0").unwrap().is_accelerated
}

#[test]
fn a_bond_is_accelerated_in_two_modes_if_all_its_members_are() {
    for (kind, variant, wanted) in [
        ("bond", Some(0), false),
        ("bond", Some(1), true),
        ("bond", Some(2), false),
        ("bond", Some(4), true),
        ("bond", Some(6), false),
        ("team", None, true),
    ] {
        let made = bond(kind, variant);
        assert_eq!(is_accelerated(&made), Some(false), "ens3 is another's");
        made.function("0000:05:00.1", "0x1924", "0x0b03");
        assert_eq!(is_accelerated(&made), Some(wanted), "{kind} {variant:?}");
    }
    // Whether Onload has a member may not be known; a bond without members has nothing to send by.
    let made = bond("bond", Some(1));
    made.file("/sys/module/sfc_resource/version", "1\n");
    assert_eq!(is_accelerated(&made), None);
    let made = with(link("bond0", "bond"));
    assert_eq!(is_accelerated(&made), Some(false));
}

#[test]
fn a_bond_of_the_host_is_accelerated_if_all_its_members_are() {
    let state = |table: &str| {
        let made = with(on_host("eth0", "macvlan", 9));
        made.file("/network.table", table);
        made.verdicts()[0].state
    };
    let bond = "link 5 ens1 - 9 - -\nlink 9 bond0 bond:1 - - -\n";
    assert_eq!(state(bond), VerdictState::Accelerated);
    let foreign = format!("{bond}link 6 ens0 - 9 - -\n");
    assert_eq!(state(&foreign), VerdictState::NoInterface);
    assert_eq!(state(&bond.replace(":1", ":0")), VerdictState::NoInterface);
    let of_vlans =
        "link 5 ens1 - - - -\nlink 8 ens1.50 vlan:33024 9 5 -\nlink 9 bond0 bond:1 - - -\n";
    assert_eq!(state(of_vlans), VerdictState::NoInterface);
    let on_vlan =
        "link 5 ens1 - 8 - -\nlink 8 bond0 bond:4 - - -\nlink 9 bond0.50 vlan:33024 - 8 -\n";
    assert_eq!(state(on_vlan), VerdictState::Accelerated);
}

#[test]
fn an_interface_that_is_registered_for_af_xdp_is_accelerated_in_its_container() {
    let made =
        with(Link { address: vec![2, 0, 0, 0, 0, 0x0a], ..of_function("ens2", "0000:05:00.0") });
    made.function("0000:05:00.0", "0x8086", "0x10ca");
    // One of another name, and one that is called so in another network.
    attached(&made, "ens1", "02:00:00:00:00:0a");
    made.assert_is(
        VerdictState::NoInterface,
        "(ens2); it has an Onload stack",
        "onload.dev/netdev",
    );
    attached(&made, "ens2", "02:00:00:00:00:0b");
    made.assert_is(VerdictState::NoInterface, "(ens2)", "");
    attached(&made, "ens2", "02:00:00:00:00:0a");
    made.assert_is(VerdictState::Accelerated, "with a stack", "");
    // Without its address, or without debugfs, that is not known.
    made.tree.remove("/sys/kernel/debug/sfc_resource/nics/000_ens1/mac_addr");
    made.assert_is(VerdictState::Unknown, "whether it has its interface ens2", "debugfs");
    made.tree.remove("/sys/kernel/debug");
    made.assert_is(VerdictState::Unknown, "whether it has its interface ens2", "debugfs");
    // Links that lead to each other cannot be read, like what is only root's.
    made.tree.remove("/sys/kernel");
    made.link("/sys/kernel", "loop");
    made.link("/sys/loop", "kernel");
    assert_eq!(made.verdicts()[0].state, VerdictState::Unknown);
}

/// As on the way back from a container: netlink and debugfs show no difference.
#[test]
fn an_interface_whose_xdp_program_was_replaced_is_not_accelerated() {
    let address = "02:00:00:00:00:0a";
    let mut made =
        with(Link { address: vec![2, 0, 0, 0, 0, 0x0a], ..of_function("ens2", "0000:05:00.0") });
    made.function("0000:05:00.0", "0x8086", "0x10ca");
    made.tree.bind("/sys/bus/pci/devices/0000:05:00.0", "ixgbevf");
    attached(&made, "ens2", address);
    made.lease("netdev:ens2", ID, 77);
    let directory = "/sys/kernel/debug/sfc_resource/nics/000_ens1";
    let registered = made.tree.host().modified(Path::new(directory)).unwrap().unwrap();
    let since = registered.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    let mut record = |mac: &str, since: u128, program: Option<u32>| {
        let interface = serde_json::json!({
            "name": "ens2", "mac": mac, "mtu": 1500, "queueLength": 1000, "flags": 1,
            "pci": "0000:05:00.0",
            "onload": {"since": u64::try_from(since).unwrap(), "program": program},
        });
        let moved = serde_json::json!({"interface": interface, "namespace": 7});
        let lease = made.leases[0].lease.as_mut().unwrap();
        lease.moved = Some(serde_json::from_value(moved).unwrap());
        made.programs = Some(vec![7]);
        made.assert_is(VerdictState::Accelerated, "with a stack", "");
        made.programs = Some(vec![8]);
        let replaced = made.verdicts();
        // Without the right to list programs, that is not known.
        made.programs = None;
        made.assert_is(VerdictState::Accelerated, "with a stack", "");
        replaced
    };
    let replaced = record(address, since, Some(7));
    assert_eq!(replaced.len(), 1, "{replaced:?}");
    assert_eq!(replaced[0].state, VerdictState::NoStack);
    assert!(replaced[0].reason.starts_with("another XDP program has replaced Onload's on ens2"));
    // Nor of another interface, after a reload of the modules, or without its program's ID.
    for (mac, since, program) in [
        ("02:00:00:00:00:0b", since, Some(7)),
        (address, since + 1, Some(7)),
        (address, since, None),
    ] {
        assert_eq!(record(mac, since, program)[0].state, VerdictState::Accelerated, "{mac}");
    }
}

#[test]
fn a_bridge_is_not_accelerated_and_its_other_ends_number_says_nothing() {
    let made = with(on_host("eth0", "veth", 5));
    made.assert_is(VerdictState::NoInterface, "(eth0)", "--network host");
    made.assert_is(VerdictState::NoInterface, "", "onload.dev/netdev");
    let veth = "/sys/module/onload/parameters/oo_accelerate_veth";
    let remedy = made.verdicts()[0].remedy.clone().unwrap();
    assert!(!remedy.contains(veth), "this Onload has none: {remedy}");
    made.file(veth, "N\n");
    made.assert_is(VerdictState::NoInterface, "", veth);
    // A program that runs already is not accelerated by it.
    let remedy = made.verdicts()[0].remedy.clone().unwrap();
    assert!(remedy.ends_with("to other machines, and start it again"), "{remedy}");
    // Where Onload is told to, it accelerates what leads to the host's own network.
    made.file(veth, "Y\n");
    assert_eq!(made.verdicts()[0].state, VerdictState::Accelerated);
    let made = with(Link { lower_namespace: Some(3), ..on_host("eth0", "veth", 5) });
    made.file(veth, "Y\n");
    let verdicts = made.verdicts();
    assert_eq!(verdicts[0].state, VerdictState::NoInterface);
    let remedy = verdicts[0].remedy.as_ref().unwrap();
    assert!(!remedy.contains("veth"), "{verdicts:?}");
}

#[test]
fn interfaces_that_cannot_be_seen_give_no_verdict_on_them() {
    let mut made = preloaded();
    made.stack();
    made.network = None;
    made.assert_is(VerdictState::Unknown, "its interfaces could not be inspected", "root");
    // Nor does one whose lower one is not in the list.
    let made = with(Link { lower: Some(99), ..link("eth0", "macvlan") });
    assert_eq!(made.verdicts()[0].state, VerdictState::Unknown);
    // Nor more than a network of somebody's who means well has.
    let mut made = with(on_host("eth0", "macvlan", 5));
    for _ in 0..4096 {
        made.interface(link("v", "vlan"));
    }
    assert_eq!(made.verdicts()[0].state, VerdictState::Unknown);
    // Nor interfaces that are each on the other, which no kernel has.
    let around =
        |index, lower| Link { index, lower: Some(lower), ..link(&format!("v{index}"), "vlan") };
    let mut made = with(around(7, 8));
    made.interface(around(8, 7));
    assert_eq!(made.verdicts()[0].state, VerdictState::Unknown);
}
