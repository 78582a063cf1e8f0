//! Tests of facts, of other builds of the library, and of what a user may not read. `test_cases` has the others.

use onload_core::config::Config;
use onload_engines::container_dirs::TASKS;
use onload_engines::settings::CONTAINERD_STATES;
use onload_host::devices::discover;
use onload_host::devices::inventory::Inventory;
use onload_host::discover::unread::UnreadEntry;
use onload_sys::netlink::link::Link;
use onload_test_tree::{MULTIARCH, Pci};

use super::test_host::*;
use super::*;
use crate::test_tree::AsHost;

/// A container of the host's network that has the library.
fn of_host() -> Made {
    let made = preloaded();
    made.link("/proc/77/ns/net", HOST_NET);
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
fn a_library_that_was_replaced_by_an_upgrade_is_told() {
    let made = of_host();
    made.maps("/usr/lib64/libonload.so (deleted)");
    let verdict = |library_matches| {
        let host = HostFacts {
            has_nic: Some(true),
            library_matches,
            is_rdma_exclusive: false,
            accelerates_veth: None,
        };
        decide(&facts_of(&made), host).remove(0)
    };
    let reloaded = verdict(Some(true));
    assert_eq!(reloaded.state, VerdictState::OtherLibrary);
    assert!(reloaded.reason.contains("the loaded driver belongs to the new one"), "{reloaded:?}");
    assert_eq!(reloaded.remedy.as_deref(), Some("start the container again"));
    // Beside a real Onload whose old driver was loaded, a program that opened its first socket late got its stack.
    for matches in [Some(false), None] {
        let before = verdict(matches);
        assert_eq!(before.state, VerdictState::Ready);
        let note = "has been replaced: stop the container before the new driver is loaded, and start it afterwards";
        assert!(before.reason.ends_with(note), "{before:?}");
    }
    // One that has a stack keeps it, as beside a real Onload.
    made.stack();
    made.assert_is(
        VerdictState::Accelerated,
        "with a stack of Onload: 1 of 1; the host's libonload.so has been replaced: stop the container before",
        "",
    );
}

#[test]
fn a_library_of_another_build_than_the_driver_is_told() {
    let host = HostFacts {
        has_nic: Some(true),
        library_matches: Some(false),
        is_rdma_exclusive: false,
        accelerates_veth: None,
    };
    let made = preloaded();
    let (status, facts) = (made.status(), facts_of(&made));
    assert_eq!(status.containers.len(), 1);
    let verdicts = decide(&facts, host);
    assert_eq!(verdicts[0].state, VerdictState::OtherLibrary, "{verdicts:?}");
    let verdicts = decide(&facts, HostFacts { library_matches: Some(true), ..host });
    assert!(verdicts.iter().all(|verdict| verdict.state != VerdictState::OtherLibrary));
}

#[test]
fn a_pod_of_every_containerd_is_named_and_a_bundle_of_another_id_names_nothing() {
    let annotations = r#"{"annotations":{"io.kubernetes.cri.sandbox-name":"pod","io.kubernetes.cri.container-name":"app"}}"#;
    for state in CONTAINERD_STATES {
        let made = preloaded();
        made.file("/proc/77/cgroup", format!("0::/kubepods.slice/cri-containerd-{ID}.scope\n"));
        let other = ID.replace('3', "4");
        let tasks = format!("{state}/{TASKS}/k8s.io");
        made.file(&format!("{tasks}/{other}/config.json"), annotations);
        assert_eq!(made.status().containers[0].name, None, "{state}");
        made.file(&format!("{tasks}/{ID}/config.json"), annotations);
        let status = made.status();
        let name = status.containers[0].name.as_deref();
        assert_eq!(name, Some("pod/app"), "{state}");
    }
}

#[test]
fn a_root_that_leads_elsewhere_shows_only_what_is_in_it() {
    let mut made = Made::new();
    made.onload();
    // The container's own sysfs is a link to a path that only the host has.
    made.file("/elsewhere/class/net/lo/operstate", "up\n");
    made.program(GLIBC, "PATH=/bin\0");
    assert_eq!(facts_of(&made).root.has_rdma, Some(false));
    made.tree.remove("/proc/77/root/sys");
    for target in ["/elsewhere", "../../../elsewhere", "elsewhere"] {
        made.file("/proc/77/root/elsewhere/class/net/lo/operstate", "up\n");
        made.link("/proc/77/root/sys", target);
        assert_eq!(facts_of(&made).root.has_rdma, None, "{target}");
    }
}

#[test]
fn a_container_is_called_by_its_name_or_the_beginning_of_its_id() {
    let made = preloaded();
    let docker = format!("/var/lib/docker/containers/{ID}/config.v2.json");
    made.file(&docker, r#"{"Name":"/redis"}"#);
    let status = made.status();
    let container = &status.containers[0];
    for word in ["redis", "3f2a", ID] {
        assert!(container.matches_name(word), "{word}");
    }
    for word in ["red", "a3f2", "/redis"] {
        assert!(!container.matches_name(word), "{word}");
    }
}

/// debugfs, which names the interfaces of AF_XDP, is root's.
#[test]
fn interfaces_that_this_user_may_not_see_are_not_missing() {
    let verdict_of = |made: &Made| {
        let status = made.status_with(|inventory| {
            inventory.attached.clear();
            inventory.unread.push(UnreadEntry {
                path: "/sys/kernel/debug".into(),
                kinds: [Class::Nic].into(),
                reason: "permission denied".to_owned(),
                advice: "",
            });
        });
        status.containers[0].verdicts[0].clone()
    };
    let made = of_host();
    made.open(3, "/dev/onload").listens(77, 901);
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
fn the_devices_of_containers_are_listed_without_a_look_at_their_processes() {
    let made = Made::new();
    made_with(&made, r#""ONLOAD_CTK_HUGEPAGES_2MI=2Mi","PATH=/bin""#);
    made.file(&format!("/var/lib/docker/containers/{ID}/config.v2.json"), r#"{"Name":"/redis"}"#);
    let list = || list_grants(&made.tree.host()).unwrap();
    let wanted = ContainerGrants {
        container: "redis".to_owned(),
        engine: ContainerEngine::Docker,
        id: ID.to_owned(),
        devices: vec!["hugepages=2Mi".to_owned()],
    };
    assert_eq!(list(), [wanted]);
    made_with(&made, "");
    assert_eq!(list(), []);
    // One of a user that is called as it is.
    made_with(&made, r#""ONLOAD_CTK_HUGEPAGES_2MI=2Mi""#);
    made.file("/proc/77/cgroup", format!("0::/user.slice/user-1000.slice/docker-{ID}.scope\n"));
    assert_eq!(list(), []);
}

#[test]
fn without_a_bundle_the_environment_lists_devices_although_a_program_may_change_it() {
    let made = Made::new();
    made.file("/proc/77/environ", b"ONLOAD_CTK_HUGEPAGES_2MI=2Mi\0\xff=1\0");
    let grant = Grant { device: "hugepages=2Mi".to_owned(), by: Evidence::Environment };
    assert_eq!(made.status().containers[0].devices, [grant]);
}

#[test]
fn an_interface_is_unknown_in_a_network_of_more_interfaces_than_are_read() {
    let mut made = with(on_host("eth0", "macvlan", 5));
    for _ in 0..4096 {
        made.interface(link("v", "vlan"));
    }
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
    made.lease("netdev:ens2", ID, 77);
    let directory = "/sys/kernel/debug/sfc_resource/nics/000_ens1";
    made.file("/sys/module/sfc_resource/version", "1\n");
    for (name, value) in [("dev", "no dev"), ("net_dev", "ens2"), ("mac_addr", address)] {
        made.file(&format!("{directory}/{name}"), format!("{value}\n"));
    }
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
