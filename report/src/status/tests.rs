//! Containers of made-up hosts: every verdict, and what must not lead to one.

use onload_core::host_settings::RdmaNetns;
use onload_engines::container_dirs::TASKS;
use onload_engines::settings::CONTAINERD_STATES;
use onload_host::devices::RETRIEVE_REMEDY;
use onload_host::devices::inventory::Inventory;
use onload_sys::netlink::link::Link;
use onload_test_tree::MULTIARCH;
use onload_test_tree::elf::SharedLibrary;

use super::test_host::*;
use super::*;

#[test]
fn the_hosts_network_without_an_accelerated_interface_is_not() {
    let mut made = preloaded();
    made.attached.clear();
    made.link("/proc/77/ns/net", HOST_NET);
    made.assert_is(
        VerdictState::NoInterface,
        "the host has no accelerated interface",
        "discover --explain",
    );
}

#[test]
fn a_static_program_loses_the_preload() {
    lost(STATIC, PRELOADED).assert_is(VerdictState::PreloadLost, "its program is static", "glibc");
}

#[test]
fn a_program_of_musl_loses_the_preload() {
    lost(MUSL, PRELOADED).assert_is(VerdictState::PreloadLost, "musl", "use an image with glibc");
}

#[test]
fn a_set_user_id_program_loses_the_preload() {
    let made = lost(GLIBC, PRELOADED);
    made.file("/proc/77/auxv", auxiliary(1));
    made.assert_is(VerdictState::PreloadLost, "set-user-ID", "without the set-user-ID bit");
}

#[test]
fn an_environment_without_the_preload_loses_it() {
    let made = lost(GLIBC, "ONLOAD_CTK_NIC_ENS1=ens1\0PATH=/bin\0");
    made.assert_is(VerdictState::PreloadLost, "removed from its environment", "preload = \"file\"");
}

#[test]
fn an_environment_that_was_cleared_is_told_from_one_that_never_had_the_preload() {
    let made = lost(GLIBC, "PATH=/bin\0");
    made.assert_is(VerdictState::Plain, "or its first program cleared its environment", "");
    made_with(&made, r#""PATH=/bin","LD_PRELOAD=libonload.so""#);
    made.assert_is(
        VerdictState::PreloadLost,
        "or the environment was cleared",
        "preload = \"file\"",
    );
    // Without a preload as the operator or the container wants it.
    let made = lost(GLIBC, "ONLOAD_CTK_NIC_ENS1=ens1\0");
    made_with(&made, r#""PATH=/bin","ONLOAD_CTK_NIC_ENS1=ens1""#);
    made.assert_is(VerdictState::Plain, "no preload", "");
}

#[test]
fn a_preload_that_the_user_set_to_something_else_loses_it() {
    for value in ["", "libjemalloc.so"] {
        let made = lost(GLIBC, &format!("LD_PRELOAD={value}\0ONLOAD_CTK_NIC_ENS1=ens1\0"));
        made.assert_is(
            VerdictState::PreloadLost,
            "set to something else",
            "LD_PRELOAD=libonload.so",
        );
    }
}

#[test]
fn a_library_that_the_loader_could_not_load_is_lost() {
    let wanted = "the loader could not load libonload.so";
    lost(GLIBC, PRELOADED).assert_is(VerdictState::PreloadLost, wanted, "cannot be preloaded");
    // The file is read whatever the environment is.
    let made = lost(GLIBC, "PATH=/bin\0");
    made.file(
        "/proc/77/mountinfo",
        format!("{ROOT}9 1 8:1 /x /etc/ld.so.preload ro - ext4 /dev/sda rw\n"),
    );
    made.assert_is(VerdictState::PreloadLost, wanted, "");
}

/// As redis-server leaves it, and nginx and PostgreSQL.
#[test]
fn a_title_over_the_environment_does_not_say_that_the_preload_was_taken_out() {
    for written in ["\0\0\0\0", "er process nginx -g daemon off;\0\0"] {
        let made = lost(GLIBC, written);
        let unknown = "could not determine whether the preload was requested";
        made.assert_is(VerdictState::Unknown, unknown, "the engine's options");
        made_with(&made, r#""PATH=/bin","LD_PRELOAD=libonload.so""#);
        let wanted = "the loader could not load libonload.so";
        made.assert_is(VerdictState::PreloadLost, wanted, "glibc may be too old");
        made.file("/proc/77/exe", program(MUSL, 200));
        made.assert_is(VerdictState::PreloadLost, "musl", "");
        made_with(&made, r#""PATH=/bin""#);
        made.assert_is(VerdictState::Plain, "no preload", "");
    }
    // Whoever starts it without any environment leaves no bytes.
    let made = lost(GLIBC, "");
    made_with(&made, r#""LD_PRELOAD=libonload.so""#);
    made.assert_is(VerdictState::PreloadLost, "the environment was cleared", "");
}

#[test]
fn nodes_without_a_preload_are_as_asked_for() {
    for environment in
        ["PATH=/bin\0", "ONLOAD_CTK_NIC_PLAIN_ENS1=ens1\0", "ONLOAD_CTK_ZF_ENS1=ens1\0"]
    {
        lost(GLIBC, environment).assert_is(VerdictState::Plain, "no preload", "");
    }
}

#[test]
fn a_program_and_environment_that_cannot_be_read_give_no_bad_verdict() {
    let mut made = Made::new();
    made.onload();
    let verdicts = made.verdicts();
    assert_eq!(verdicts[0].state, VerdictState::Unknown, "{verdicts:?}");
    assert!(verdicts.iter().all(|verdict| verdict.state != VerdictState::PreloadLost));
}

#[test]
fn a_library_that_was_replaced_by_an_upgrade_is_told() {
    let made = preloaded();
    made.maps("/usr/lib64/libonload.so (deleted)");
    made.link("/proc/77/ns/net", HOST_NET);
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
fn a_device_that_is_gone_is_told_and_nothing_else_of_it() {
    let mut made = Made::new();
    made.node("/dev/onload", (243, 0), "onload", None);
    made.program(GLIBC, PRELOADED);
    made.assert_is(
        VerdictState::DeviceGone,
        "/dev/onload refers to a device",
        "load its driver again",
    );
    assert_eq!(made.verdicts().len(), 1, "{:?}", made.verdicts());
}

#[test]
fn a_device_that_has_another_number_now_is_told() {
    let mut made = Made::new();
    made.node("/dev/infiniband/uverbs0", (231, 192), "infiniband_verbs", Some((231, 193)));
    made.assert_is(
        VerdictState::DeviceRenumbered,
        "/dev/infiniband/uverbs0 is 231:192, and the device is 231:193 now",
        "systemctl start onload-cdi.service",
    );
}

#[test]
fn every_kind_of_node_is_compared_with_its_own_class() {
    for (path, class) in [
        ("/dev/onload_epoll", "onload_epoll"),
        ("/dev/sfc_char", "sfc_char"),
        ("/dev/infiniband/rdma_cm", "misc"),
        ("/dev/infiniband/umad3", "infiniband_mad"),
        ("/dev/vfio/vfio", "misc"),
        ("/dev/vfio/15", "vfio"),
        ("/dev/ptp0", "ptp"),
        ("/dev/pps1", "pps"),
    ] {
        let mut made = Made::new();
        made.program(GLIBC, "PATH=/bin\0");
        made.node(path, (10, 3), class, Some((10, 3)));
        let status = made.status();
        assert_eq!(status.containers[0].nodes, [path]);
        assert!(status.containers[0].state().is_good(), "{path}: {status:?}");
        let mut made = Made::new();
        made.node(path, (10, 3), class, None).program(GLIBC, "ONLOAD_CTK_VFIO_15=15\0");
        assert_eq!(made.verdicts()[0].state, VerdictState::DeviceGone, "{path}");
    }
}

/// As every container of `--privileged`, or with `-v /dev:/dev`, has it while the module vfio is not loaded.
#[test]
fn a_static_node_that_a_container_did_not_get_from_us_is_not_called_gone() {
    let mut made = Made::new();
    made.node("/dev/vfio/vfio", (10, 196), "misc", None).program(GLIBC, "PATH=/bin\0");
    assert_eq!(made.status().containers, []);
    made.onload();
    let verdicts = made.verdicts();
    assert!(verdicts[0].state.is_good(), "{verdicts:?}");
    made.lease("vfio:0000:81:10.0", ID, 77);
    made.assert_is(
        VerdictState::DeviceGone,
        "/dev/vfio/vfio refers to a device",
        "load its driver",
    );
}

#[test]
fn a_limit_that_is_too_small_for_rdma_is_told() {
    let mut made = Made::new();
    made.node("/dev/infiniband/uverbs0", (231, 192), "infiniband_verbs", Some((231, 192)));
    let limits = "Max locked memory         8388608              8388608              bytes\n";
    made.file("/proc/77/limits", limits);
    made.assert_is(VerdictState::Memlock, "8388608 bytes", "--ulimit memlock=-1");
    // Onload pins nothing of the process.
    let mut made = Made::new();
    made.onload().file("/proc/77/limits", limits);
    assert!(made.verdicts().iter().all(|verdict| verdict.state != VerdictState::Memlock));
}

#[test]
fn an_rdma_device_of_another_namespace_is_told() {
    let mut made = Made::new();
    made.node("/dev/infiniband/uverbs0", (231, 192), "infiniband_verbs", Some((231, 192)));
    let exclusive =
        |inventory: &mut Inventory| inventory.rdma_netns_mode = Some(RdmaNetns::Exclusive);
    let status = made.status_with(exclusive);
    assert_eq!(status.containers[0].state(), VerdictState::RdmaNamespace, "{status:?}");
    // What it has lost is said as such.
    made.lease("rdma:mlx5_0", ID, 77);
    let moved = r#"{"rdma":{"name":"mlx5_0","pci":"0000:05:00.2","index":0},"namespace":7}"#;
    made.leases[0].lease.as_mut().unwrap().moved = serde_json::from_str(moved).unwrap();
    let status = made.status_with(exclusive);
    let verdicts = &status.containers[0].verdicts;
    assert_eq!(verdicts.len(), 1, "{verdicts:?}");
    assert!(verdicts[0].reason.contains("mlx5_0 has left its network"), "{verdicts:?}");
    made.leases.clear();
    // One that is in the container's namespace is its own.
    made.file("/proc/77/root/sys/class/infiniband/mlx5_0/node_type", "1: CA\n");
    let status = made.status_with(exclusive);
    assert!(status.containers[0].state().is_good(), "{status:?}");
    assert!(made.status().containers[0].state().is_good());
}

/// A container with a device of soft-RoCE, in whose root is what a loader needs.
fn with_rdma() -> Made {
    let mut made = Made::new();
    made.node("/dev/infiniband/uverbs0", (231, 192), "infiniband_verbs", Some((231, 192)));
    made.file("/sys/class/infiniband_verbs/uverbs0/ibdev", "rxe0\n");
    made.file("/sys/class/infiniband/rxe0/node_type", "1: CA\n");
    let libc = SharedLibrary::new("libc.so.6").defines("GLIBC_2.34", &["malloc"]);
    place(&made, "libc.so.6", &libc);
    made
}

fn place(made: &Made, name: &str, library: &SharedLibrary) {
    made.file(&format!("/proc/77/root{MULTIARCH}/{name}"), library.bytes());
}

#[test]
fn a_container_without_libraries_for_its_rdma_device_is_told() {
    let mut made = with_rdma();
    let remedy = "rdma-libraries = \"auto\"";
    made.assert_is(
        VerdictState::NoProvider,
        "the container has no libibverbs.so.1: programs find no RDMA device",
        remedy,
    );
    let verbs = SharedLibrary::new("libibverbs.so.1")
        .needs("libc.so.6", "", &["malloc"])
        .defines("IBVERBS_PRIVATE_34", &["verbs_register_driver"])
        .says("/etc/libibverbs.d")
        .says(&format!("{MULTIARCH}/libibverbs/lib%s-rdmav34.so"));
    place(&made, "libibverbs.so.1", &verbs);
    made.assert_is(VerdictState::NoProvider, "the container has no provider", remedy);
    let provider = SharedLibrary::new("librxe-rdmav34.so").needs(
        "libibverbs.so.1",
        "IBVERBS_PRIVATE_34",
        &["verbs_register_driver"],
    );
    place(&made, "libibverbs/librxe-rdmav34.so", &provider);
    made.assert_is(VerdictState::NoProvider, "does not name the driver rxe", remedy);
    made.file("/proc/77/root/etc/libibverbs.d/rxe.driver", "driver rxe\n");
    let without = "no program has opened one; it has no librdmacm.so.1, without which programs \
        that need it, such as rping, do not start";
    made.assert_is(VerdictState::Ready, without, "");
    place(&made, "librdmacm.so.1", &SharedLibrary::new("librdmacm.so.1"));
    let reason = made.status().containers[0].verdicts[0].reason.clone();
    assert_eq!(reason, "it has RDMA devices, but no program has opened one");
    // Another device, whose provider is not there.
    made.node("/dev/infiniband/uverbs1", (231, 193), "infiniband_verbs", Some((231, 193)));
    made.file("/sys/class/infiniband_verbs/uverbs1/ibdev", "siw0\n");
    made.file("/sys/class/infiniband/siw0/node_type", "4: RNIC\n");
    made.assert_is(
        VerdictState::NoProvider,
        "the container has no provider \"/usr/lib/x86_64-linux-gnu/libibverbs/libsiw-rdmav34.so\": programs do not find siw0",
        remedy,
    );
}

#[test]
fn a_container_without_libraries_for_a_device_in_its_own_namespace_is_told() {
    let made = with_rdma();
    made.tree.remove("/sys/class/infiniband/rxe0");
    let driver = "/sys/class/infiniband_verbs/uverbs0/device/driver";
    made.link(driver, "/sys/bus/pci/drivers/mlx5_core");
    made.file("/proc/77/root/sys/class/infiniband/rxe0/node_type", "1: CA\n");
    let exclusive =
        |inventory: &mut Inventory| inventory.rdma_netns_mode = Some(RdmaNetns::Exclusive);
    let status = made.status_with(exclusive);
    let verdict = &status.containers[0].verdicts[0];
    assert_eq!(verdict.state, VerdictState::NoProvider, "{status:?}");
}

#[test]
fn why_the_host_s_libraries_were_not_mounted_is_told_as_the_hook_recorded_it() {
    let made = with_rdma();
    let path = format!("/run/onload-ctk/{ID}/record.json");
    let record = |pid: u32| {
        format!(
            r#"{{"version":1,"maker":null,"created":null,"live":{{"pid":{pid},"startTime":1,
                "libraryWarnings":["onload.dev/rdma=rxe0: not mounted: live-devices = false"]}}}}"#
        )
    };
    made.file(&path, record(77));
    made.assert_is(
        VerdictState::NoProvider,
        "when it started, onload.dev/rdma=rxe0: not mounted: live-devices = false",
        "follow that message",
    );
    let reason = made.status().containers[0].verdicts[0].reason.clone();
    assert!(reason.starts_with("programs find no RDMA device; "), "{reason}");
    // The host does not show which device the node is of.
    made.tree.remove("/sys/class/infiniband_verbs/uverbs0/ibdev");
    made.assert_is(
        VerdictState::NoProvider,
        "programs may find no RDMA device; when it started, onload.dev/rdma=rxe0: not mounted",
        "follow that message",
    );
    made.file(&path, record(78));
    let reason = made.status().containers[0].verdicts[0].reason.clone();
    assert_eq!(reason, "it has RDMA devices, but no program has opened one");
    made.file("/sys/class/infiniband_verbs/uverbs0/ibdev", "rxe0\n");
    for other in [
        record(78),
        "{}".to_owned(),
        "[".to_owned(),
        record(77).replace("libraryW", "w"),
        record(77).replace("false\"]", "false\", 1]"),
    ] {
        made.file(&path, other);
        let remedy = "rdma-libraries = \"auto\"";
        made.assert_is(VerdictState::NoProvider, "has no libibverbs.so.1", remedy);
    }
}

#[test]
fn libraries_that_nothing_judges_are_named_once_a_program_has_the_device_open() {
    let made = with_rdma();
    made.open(3, "/dev/infiniband/uverbs0");
    made.assert_is(VerdictState::Ready, "by their own libibverbs", "");
    let maps = |path: &str| format!("7f0000000000-7f0000001000 r-xp 00000000 08:01 9 {path}\n");
    made.file("/proc/77/maps", maps("/opt/hpcx/lib/libibverbs.so.1.14"));
    made.assert_is(VerdictState::Ready, "by \"/opt/hpcx/lib/libibverbs.so.1.14\"", "");
    made.file("/proc/77/maps", maps(&format!("{MULTIARCH}/libibverbs.so.1.14")));
    let reason = made.status().containers[0].verdicts[0].reason.clone();
    assert_eq!(reason, "its programs have 1 RDMA devices open");
}

#[test]
fn a_function_that_is_held_and_not_used_is_told() {
    let mut made = Made::new();
    made.lease("vfio:0000:81:10.0", ID, 77);
    made.node("/dev/vfio/15", (241, 0), "vfio", Some((241, 0)));
    made.assert_is(VerdictState::Unused, "it holds vfio 0000:81:10.0", "stop the container");
    made.open(3, "/dev/vfio/vfio");
    made.assert_is(VerdictState::Unused, "", "");
    made.open(4, "/dev/vfio/15");
    made.assert_is(VerdictState::Ready, "its programs use vfio 0000:81:10.0", "");
}

#[test]
fn an_interface_that_was_moved_in_and_is_down_is_told() {
    let down = |flags: u32| Link { flags, ..of_function("ens2", "0000:05:00.0") };
    let mut made = preloaded();
    made.interface(down(0x1002));
    made.assert_is(
        VerdictState::InterfaceDown,
        "ens2 is in its network but down",
        "nsenter --net=/proc/77/ns/net",
    );
    // One that is set up and has no link is another matter.
    let mut made = preloaded();
    made.interface(down(0x1003));
    made.assert_is(
        VerdictState::InterfaceDown,
        "ens2 is in its network but has no link",
        "check its cable",
    );
    // One of software is nobody's device.
    let mut made = preloaded();
    made.interface(Link { flags: 0x1002, ..link("eth0", "veth") });
    assert!(made.verdicts().iter().all(|verdict| verdict.state != VerdictState::InterfaceDown));
}

#[test]
fn an_interface_that_was_moved_in_and_is_gone_is_told() {
    const PCI: &str = "0000:05:00.2";
    let made = |is_there: bool, network: &str| {
        let mut made = preloaded();
        made.link("/proc/77/ns/net", network);
        made.lease("netdev:ens2v0", ID, 77);
        let moved = format!(
            r#"{{"interface":{{"name":"ens2v0","mac":"","mtu":1500,"queueLength":1000,"flags":3,"pci":"{PCI}"}},"namespace":7}}"#
        );
        let lease = made.leases[0].lease.as_mut().unwrap();
        lease.moved = Some(serde_json::from_str(&moved).unwrap());
        if is_there {
            made.function(PCI, "0x1924", "0x1b03");
            made.tree.bind(&format!("/sys/bus/pci/devices/{PCI}"), "sfc");
            made.interface(of_function("ens2v0", PCI));
        }
        made
    };
    let lost = made(false, OWN_NET);
    lost.assert_is(
        VerdictState::DeviceGone,
        "ens2v0 has left its network: its function 0000:05:00.2 no longer exists",
        RETRIEVE_REMEDY,
    );
    // Nothing advises to ask for what it was given.
    assert_eq!(lost.verdicts().len(), 1, "{:?}", lost.verdicts());
    for there in [made(true, OWN_NET), made(false, HOST_NET)] {
        let mut verdicts = there.verdicts().into_iter();
        assert!(verdicts.all(|verdict| verdict.state != VerdictState::DeviceGone));
    }
}

#[test]
fn a_container_with_nothing_of_ours_is_not_shown() {
    assert_eq!(Made::new().status().containers, []);
}

#[test]
fn a_process_that_ends_while_it_is_looked_at_is_nobody() {
    let made = preloaded();
    made.tree.remove("/proc/77/status");
    assert_eq!(made.status().containers, []);
    let made = preloaded();
    made.tree.remove("/proc/77/cgroup");
    made.link("/proc/77/ns/pid", "pid:[1]");
    assert_eq!(made.status().containers, []);
}

#[test]
fn what_is_not_ours_to_see_is_counted_and_judged_by_nothing() {
    let mut made = Made::new();
    made.lease("vfio:0000:81:10.0", ID, 77);
    // A file in place of a directory cannot be listed, as another user's cannot.
    made.tree.remove("/proc/77/fd");
    made.file("/proc/77/fd", "");
    made.tree.remove("/proc/77/root");
    let status = made.status();
    assert_eq!(status.unseen, 1);
    let verdicts = &status.containers[0].verdicts;
    assert_eq!(verdicts.len(), 1, "{verdicts:?}");
    assert_eq!(verdicts[0].state, VerdictState::Unknown);
}

#[test]
fn a_container_that_no_engine_names_has_the_name_of_its_lease() {
    let mut made = Made::new();
    made.process(80, "0::/user.slice\n", "sh", OWN_NET, "pid:[8]");
    made.process(81, "0::/user.slice\n", "dpdk", OWN_NET, "pid:[8]");
    made.lease("vfio:0000:81:10.0", "web", 80);
    let status = made.status();
    assert_eq!(status.containers.len(), 1, "{status:#?}");
    let container = &status.containers[0];
    assert_eq!((container.engine, container.id.as_str()), (ContainerEngine::Unknown, "web"));
    let pids: Vec<u32> = container.processes.iter().map(|(pid, _)| *pid).collect();
    assert_eq!(pids, [80, 81]);
    assert_eq!(container.leases, ["vfio=0000:81:10.0"]);
}

#[test]
fn a_sandbox_of_the_host_with_a_dev_of_its_own_is_no_container() {
    let made = Made::new();
    made.process(90, "0::/user.slice\n", "browser", HOST_NET, "pid:[9]");
    made.tree.node("/proc/90/root/dev/onload", 243, 0);
    assert_eq!(made.status().containers, []);
    made.file("/proc/90/maps", "7f00-7f01 r-xp 0 08:01 5 /usr/lib64/libonload.so\n");
    assert_eq!(made.status().containers[0].id, "pidns-9");
}

#[test]
fn names_come_from_what_engines_keep() {
    let made = preloaded();
    let docker = format!("/var/lib/docker/containers/{ID}/config.v2.json");
    made.file(&docker, r#"{"ID":"x","Name":"/redis"}"#);
    assert_eq!(made.status().containers[0].name.as_deref(), Some("redis"));
    made.file(&docker, "{");
    assert_eq!(made.status().containers[0].name, None);

    let list = format!(r#"[{{"id":"{ID}","names":["web"]}},{{"id":"00"}}]"#);
    let podman = "containers/storage/overlay-containers/containers.json";
    made.file(&format!("/var/lib/{podman}"), &list);
    made.file("/proc/77/cgroup", format!("0::/machine.slice/libpod-{ID}.scope/container\n"));
    assert_eq!(made.status().containers[0].name.as_deref(), Some("web"));
    // One of `podman run --rm`.
    made.file(&format!("/var/lib/{podman}"), "[]");
    let volatile = podman.replace("containers.json", "volatile-containers.json");
    made.file(&format!("/var/lib/{volatile}"), list.replace("web", "once"));
    assert_eq!(made.status().containers[0].name.as_deref(), Some("once"));

    let bundle = format!("/run/containerd/io.containerd.runtime.v2.task/k8s.io/{ID}/config.json");
    made.file(&bundle, r#"{"annotations":{"io.kubernetes.cri.sandbox-name":"pod","io.kubernetes.cri.container-name":"app"}}"#);
    made.file("/proc/77/cgroup", format!("0::/kubepods.slice/cri-containerd-{ID}.scope\n"));
    assert_eq!(made.status().containers[0].name.as_deref(), Some("pod/app"));

    let bundle =
        format!("/var/lib/containers/storage/overlay-containers/{ID}/userdata/config.json");
    made.file(&bundle, r#"{"annotations":{"io.kubernetes.cri-o.Name":"k8s_app"}}"#);
    made.file("/proc/77/cgroup", format!("0::/kubepods.slice/crio-{ID}.scope\n"));
    assert_eq!(made.status().containers[0].name.as_deref(), Some("k8s_app"));
    // CRI-O hands on what the pod says with containerd's keys.
    let annotations = |id: &str| {
        format!(
            r#"{{"annotations":{{"io.kubernetes.cri-o.ContainerID":"{id}","io.kubernetes.pod.name":"own",
            "io.kubernetes.container.name":"app","io.kubernetes.cri.sandbox-name":"other","io.kubernetes.cri.container-name":"x"}}}}"#
        )
    };
    made.file(&bundle, annotations(ID));
    assert_eq!(made.status().containers[0].name.as_deref(), Some("own/app"));
}

#[test]
fn names_come_from_directories_that_engines_are_told_to_use() {
    let made = preloaded();
    made.file("/etc/docker/daemon.json", r#"{"data-root": "/srv/d"}"#);
    let docker = format!("/srv/d/100000.100000/containers/{ID}");
    made.file(&format!("{docker}/config.v2.json"), r#"{"Name":"/redis"}"#);
    assert_eq!(made.status().containers[0].name.as_deref(), Some("redis"));

    made.file("/etc/containers/storage.conf", "[storage]\ngraphroot = \"/srv/p\"\n");
    let list = format!(r#"[{{"id":"{ID}","names":["web"]}}]"#);
    made.file("/srv/p/overlay-containers/containers.json", list);
    made.file("/proc/77/cgroup", format!("0::/machine.slice/libpod-{ID}.scope/container\n"));
    assert_eq!(made.status().containers[0].name.as_deref(), Some("web"));
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
fn a_users_podman_is_named_from_the_users_home_and_no_link_in_it_is_followed() {
    let made = preloaded();
    made.file("/etc/passwd", "root:x:0:0::/root:/bin/sh\nu:x:1000:1000::/home/u:/bin/sh\n");
    let cgroup = format!("0::/user.slice/user-1000.slice/user@1000.service/libpod-{ID}.scope\n");
    made.file("/proc/77/cgroup", cgroup);
    let list = format!(r#"[{{"id":"{ID}","names":["mine"]}}]"#);
    let stored = "containers/storage/overlay-containers/containers.json";
    made.file(&format!("/home/u/.local/share/{stored}"), &list);
    let status = made.status();
    assert_eq!(status.containers[0].name.as_deref(), Some("mine"));
    assert_eq!(status.containers[0].user, Some(1000));
    // The file of another, by a link.
    made.file("/srv/secret.json", &list);
    made.link(&format!("/home/u/.local/share/{stored}"), "/srv/secret.json");
    assert_eq!(made.status().containers[0].name, None);
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
