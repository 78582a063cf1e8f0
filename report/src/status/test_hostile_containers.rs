//! What containers and users do that must not change what is said of others, nor of themselves to their good: names
//! that lead elsewhere, mounts of the host, processes that end, and more of everything than is looked at.

use crate::test_tree::AsHost;
use onload_core::config::Config;
use onload_host::devices::discover;
use onload_lease::Holder;
use onload_sys::netlink::link::Link;

use super::cgroup::ContainerEngine;
use super::test_host::*;
use super::verdict::decide;
use super::*;

const OTHER: &str = "user.slice/user-1000.slice/user@1000.service/app.slice";

/// A container that was given the library and has lost it.
fn bare() -> Made {
    let made = lost(STATIC, PRELOADED);
    made.file(&format!("/var/lib/docker/containers/{ID}/config.v2.json"), r#"{"Name":"/redis"}"#);
    made
}

#[test]
fn a_cgroup_that_a_user_calls_as_roots_container_is_another_container() {
    let made = bare();
    // It has all that an accelerated container has, and is listed before and after the other's process.
    for pid in [5, 990] {
        let cgroup = format!("0::/{OTHER}/docker-{ID}.scope\n");
        made.process(pid, &cgroup, "theirs", OWN_NET, "pid:[5]");
        let maps = "7f00-7f01 r-xp 0 08:01 5 /home/u/libonload.so\n";
        made.file(&format!("/proc/{pid}/maps"), maps);
        made.link(&format!("/proc/{pid}/fd/3"), "/dev/onload");
        made.tree.node(&format!("/proc/{pid}/root/dev/onload"), 243, 0);
    }
    let status = made.status();
    let roots = status.containers.iter().find(|one| one.user.is_none()).unwrap();
    assert_eq!(roots.name.as_deref(), Some("redis"));
    assert_eq!(roots.state(), VerdictState::PreloadLost, "{status:#?}");
    assert_eq!(roots.processes, [(77, "redis".to_owned())]);
    let theirs = status.containers.iter().find(|one| one.user == Some(1000)).unwrap();
    assert_eq!((theirs.name.as_deref(), theirs.id.as_str()), (None, ID));
    assert_eq!(status.containers.len(), 2);
}

#[test]
fn a_reservation_for_roots_container_is_not_that_of_a_user_who_calls_theirs_so() {
    let mut made = bare();
    made.lease("vfio:0000:81:10.0", ID, 1);
    let lease = made.leases[0].lease.as_mut().unwrap();
    lease.holder = Holder::new_reservation([0; 16].into(), None);
    let cgroup = format!("0::/{OTHER}/docker-{ID}.scope\n");
    made.process(5, &cgroup, "theirs", OWN_NET, "pid:[5]");
    made.link("/proc/5/fd/3", "/dev/onload");
    for container in made.status().containers {
        let is_roots = container.user.is_none();
        assert_eq!(!container.leases.is_empty(), is_roots, "{container:?}");
    }
}

#[test]
fn the_hosts_sysfs_in_a_container_shows_nothing_of_its_network() {
    let made = preloaded();
    assert_eq!(facts_of(&made).root.has_rdma, Some(false));
    // By -v /sys:/sys it sees the host's interface, and the kernel says that it has none.
    made.file("/proc/77/root/sys/class/net/ens1/operstate", "up\n");
    assert_eq!(facts_of(&made).root.has_rdma, None);
}

#[test]
fn a_name_that_a_shell_would_run_stands_between_quotes() {
    let mut made = preloaded();
    made.interface(Link { flags: 0x1002, ..of_function("$(reboot)", "0000:05:00.0") });
    made.assert_is(
        VerdictState::InterfaceDown,
        "$(reboot) is in its network",
        "ip link set dev '$(reboot)' up",
    );
}

/// A container with an RDMA device and 8 MiB to lock.
fn limited() -> Made {
    let mut made = Made::new();
    let path = "/dev/infiniband/uverbs0";
    made.node(path, (231, 192), "infiniband_verbs", Some((231, 192)));
    let limits = "Max locked memory         8388608              8388608              bytes\n";
    made.file("/proc/77/limits", limits);
    made.program(GLIBC, "ONLOAD_CTK_RDMA_MLX5_0=mlx5_0\0");
    made
}

#[test]
fn who_has_the_capability_to_lock_memory_has_no_limit_on_it() {
    let made = limited();
    assert_eq!(made.verdicts()[0].state, VerdictState::Memlock);
    made.is_at(77, "redis", WITH_IPC_LOCK);
    assert!(made.verdicts()[0].state.is_good(), "{:?}", made.verdicts());
    // In another user namespace the kernel does not ask for it.
    made.link("/proc/77/ns/user", "user:[9]");
    assert_eq!(made.verdicts()[0].state, VerdictState::Memlock);
}

/// A privileged one, and one with `-v /dev:/dev`.
#[test]
fn a_container_with_every_node_of_the_host_pins_memory_by_what_it_uses_or_was_given() {
    let with_every_node = || {
        let mut made = limited();
        made.node("/dev/kmsg", (1, 11), "mem", Some((1, 11)));
        made.file("/proc/77/environ", "PATH=/bin\0");
        made
    };
    let states = |made: &Made| -> Vec<VerdictState> {
        made.verdicts().iter().map(|verdict| verdict.state).collect()
    };
    let made = with_every_node();
    assert!(!states(&made).contains(&VerdictState::Memlock), "{:?}", made.verdicts());
    made.open(3, "/dev/infiniband/uverbs0");
    assert_eq!(states(&made)[0], VerdictState::Memlock);
    let made = with_every_node();
    made.file("/proc/77/environ", "ONLOAD_CTK_RDMA_MLX5_0=mlx5_0\0");
    assert_eq!(states(&made)[0], VerdictState::Memlock);
    // By --device of the node alone it has no other.
    let made = limited();
    made.file("/proc/77/environ", "PATH=/bin\0");
    assert_eq!(states(&made)[0], VerdictState::Memlock);
}

#[test]
fn the_limit_of_who_opens_the_device_counts_and_not_that_of_a_helper() {
    let made = limited();
    let cgroup = format!("0::/system.slice/docker-{ID}.scope\n");
    made.process(78, &cgroup, "trader", OWN_NET, "pid:[7]");
    made.link("/proc/78/fd/3", "/dev/infiniband/uverbs0");
    assert!(made.verdicts()[0].state.is_good(), "{:?}", made.verdicts());
    made.link("/proc/77/fd/3", "/dev/infiniband/uverbs0");
    assert_eq!(made.verdicts()[0].state, VerdictState::Memlock);
}

#[test]
fn a_process_that_ends_while_it_is_looked_at_changes_nothing_of_the_others() {
    for gone in ["stat", "status", "limits", "auxv", "maps", "root", "ns"] {
        let made = preloaded();
        made.link("/proc/77/ns/net", HOST_NET).stack();
        let cgroup = format!("0::/system.slice/docker-{ID}.scope\n");
        made.process(78, &cgroup, "helper", HOST_NET, "pid:[7]");
        made.tree.remove(&format!("/proc/78/{gone}"));
        let status = made.status();
        let verdicts = &status.containers[0].verdicts;
        assert_eq!(verdicts.len(), 1, "{gone}: {verdicts:?}");
        assert_eq!(verdicts[0].state, VerdictState::Accelerated, "{gone}");
        assert_eq!(status.unseen, 0, "{gone}");
    }
}

#[test]
fn a_zombie_is_no_process_of_a_container_unless_its_threads_go_on() {
    let made = preloaded();
    made.link("/proc/77/ns/net", HOST_NET).stack();
    let cgroup = format!("0::/system.slice/docker-{ID}.scope\n");
    made.process(78, &cgroup, "helper", HOST_NET, "pid:[7]");
    made.runs(78, "Z", 1);
    let pids = |made: &Made| made.status().containers[0].processes.len();
    assert_eq!(pids(&made), 1);
    made.runs(78, "Z", 2);
    assert_eq!(pids(&made), 2);
}

#[test]
fn what_a_process_has_is_seen_though_its_first_thread_has_ended() {
    let made = Made::new();
    made.runs(77, "Z", 2);
    let status = "Name:\tmain\nState:\tZ (zombie)\nNSpid:\t77\t1\n";
    made.file("/proc/77/status", status);
    for gone in ["ns/net", "root", "mountinfo", "maps"] {
        made.tree.remove(&format!("/proc/77/{gone}"));
    }
    made.file("/proc/77/maps", "").link("/proc/79/fd/3", "/dev/onload");
    made.tree.directory("/proc/77/task/77");
    made.tree.directory("/proc/77/task/79");
    made.tree.directory("/proc/79/root/dev");
    made.link("/proc/79/ns/net", OWN_NET).file("/proc/79/mountinfo", ROOT);
    made.file("/proc/79/maps", "");
    let status = made.status();
    let container = &status.containers[0];
    assert_eq!(container.open, ["/dev/onload".to_owned()].into());
    assert_eq!(container.processes, [(79, "main".to_owned())]);
    assert_eq!(container.hidden, None);
}

#[test]
fn a_program_with_file_capabilities_loses_the_preload_though_it_runs_as_who_started_it() {
    let made = lost(GLIBC, PRELOADED);
    made.file("/proc/77/auxv", auxiliary(1));
    made.assert_is(VerdictState::PreloadLost, "file capabilities", "setcap");
    // Of a file too, the loader takes no library by its name alone: not where SELinux changed the label either.
    let file = format!("{ROOT}9 1 8:1 /x /etc/ld.so.preload ro - ext4 /dev/sda rw\n");
    made.file("/proc/77/mountinfo", file);
    made.assert_is(VerdictState::PreloadLost, "another SELinux label", "docs/security.md");
    // And a list without the word is told by the users.
    let made = lost(GLIBC, PRELOADED);
    made.file("/proc/77/auxv", "");
    let status = "Name:\tsu\nUid:\t1000\t0\t0\t0\nGid:\t0\t0\t0\t0\nNSpid:\t77\t1\n";
    made.file("/proc/77/status", status);
    made.assert_is(VerdictState::PreloadLost, "set-user-ID", "");
}

#[test]
fn a_static_init_of_the_engine_is_not_the_program_that_lost_the_preload() {
    let made = lost(STATIC, PRELOADED);
    let cgroup = format!("0::/system.slice/docker-{ID}.scope\n");
    made.process(78, &cgroup, "redis", OWN_NET, "pid:[7]");
    made.file("/proc/78/exe", program(GLIBC, 200));
    made.file("/proc/78/environ", "PATH=/bin\0");
    made.assert_is(VerdictState::PreloadLost, "removed from its environment", "");
    // Where its programs are static too, that is the reason.
    made.file("/proc/78/exe", program(STATIC, 0));
    made.assert_is(VerdictState::PreloadLost, "its program is static", "");
}

#[test]
fn the_loader_of_nix_does_not_read_the_usual_list() {
    const NIX: Option<&str> = Some("/nix/store/aaaa-glibc-2.40-66/lib/ld-linux-x86-64.so.2");
    for (loader, reason) in [(NIX, "/etc/ld-nix.so.preload"), (GLIBC, "could not load")] {
        let made = lost(loader, "PATH=/bin\0");
        let file = format!("{ROOT}9 1 8:1 /x /etc/ld.so.preload ro - ext4 /dev/sda rw\n");
        made.file("/proc/77/mountinfo", file);
        made.assert_is(VerdictState::PreloadLost, reason, "");
    }
}

#[test]
fn a_loader_is_found_wherever_its_path_stands() {
    let made = lost(STATIC, PRELOADED);
    made.file("/proc/77/exe", program(MUSL, 5000));
    made.assert_is(VerdictState::PreloadLost, "musl", "");
    // Beyond what is read nothing is said of it.
    let mut cut = program(GLIBC, 5000);
    cut.truncate(4096);
    made.file("/proc/77/exe", cut);
    assert_eq!(made.verdicts()[0].state, VerdictState::Unknown);
}

#[test]
fn the_function_says_whether_onload_accelerates_an_interface_and_not_the_vendor() {
    for (vendor, device, state) in [
        ("0x10ee", "0x5084", VerdictState::Accelerated),
        ("0x1924", "0x0b03", VerdictState::Accelerated),
        ("0x1924", "0x0903", VerdictState::NoInterface),
        ("0x10ee", "0x0100", VerdictState::NoInterface),
        ("0x8086", "0x10ca", VerdictState::NoInterface),
    ] {
        let mut made = preloaded();
        made.stack().function("0000:05:00.0", vendor, device);
        made.interface(of_function("ens2", "0000:05:00.0"));
        let verdicts = made.verdicts();
        assert_eq!(verdicts[0].state, state, "{vendor}:{device}: {verdicts:?}");
    }
}

#[test]
fn no_program_is_asked_for_in_a_sandbox_that_has_nothing_of_ours() {
    let made = Made::new();
    made.process(90, "0::/user.slice\n", "browser", HOST_NET, "pid:[9]");
    made.tree.node("/proc/90/root/dev/onload", 243, 0);
    let host = made.tree.host();
    let inventory = discover(&host, &Config::default());
    // Whoever reads its environment fails.
    made.link("/proc/90/environ", "/proc/90/environ");
    let input = StatusInput {
        host: &host,
        inventory: &inventory,
        leases: None,
        networks: &|pid| panic!("the network of {pid} is asked for"),
        has_program: &|id| panic!("program {id} is asked for"),
    };
    assert_eq!(read_status(input, &mut run_here).unwrap().containers, []);
}

#[test]
fn a_container_of_ctr_and_one_of_a_cgroup_parent_are_containers() {
    for (cgroup, bundle, engine) in [
        ("/default/redis", "default/redis", ContainerEngine::Containerd),
        (&format!("/team/{ID}"), "default/other", ContainerEngine::Unknown),
    ] {
        let made = lost(GLIBC, PRELOADED);
        made.file("/proc/77/cgroup", format!("0::{cgroup}\n"));
        let tasks = "/run/containerd/io.containerd.runtime.v2.task";
        made.file(&format!("{tasks}/{bundle}/config.json"), "{}");
        let status = made.status();
        assert_eq!(status.containers.len(), 1, "{cgroup}: {status:?}");
        assert_eq!(status.containers[0].engine, engine);
    }
}

#[test]
fn paths_that_are_longer_than_any_device_s_are_not_kept() {
    let made = Made::new();
    made.open(3, &format!("/dev/shm/{}", "x".repeat(4000)));
    made.open(4, "/dev/vfio/devices/vfio4294967295");
    let open = after(&made, 2).open;
    assert_eq!(open, ["/dev/vfio/devices/vfio4294967295".to_owned()].into());
}

/// The container, of whose examination so many lines came in time.
fn after(made: &Made, lines: usize) -> ContainerStatus {
    let facts = facts_after(made, lines);
    container_status(
        facts,
        HostFacts {
            has_nic: Some(true),
            library_matches: None,
            is_rdma_exclusive: false,
            accelerates_veth: None,
        },
    )
}

#[test]
fn a_container_that_does_not_answer_in_time_is_shown_with_what_is_known() {
    let mut made = preloaded();
    made.link("/proc/77/ns/net", HOST_NET).stack();
    made.lease("vfio:0000:81:10.0", ID, 77);
    let name = format!("/var/lib/docker/containers/{ID}/config.v2.json");
    made.file(&name, r#"{"Name":"/redis"}"#);
    for (lines, open) in [(0, vec![]), (1, vec!["/dev/onload"])] {
        let container = after(&made, lines);
        assert_eq!(container.name.as_deref(), Some("redis"));
        assert_eq!(container.leases, ["vfio=0000:81:10.0"]);
        assert_eq!(container.open, open.into_iter().map(str::to_owned).collect());
        let [verdict] = container.verdicts.as_slice() else {
            panic!("{:?}", container.verdicts);
        };
        assert_eq!(verdict.state, VerdictState::Unknown);
        assert!(verdict.reason.starts_with("it did not answer in time"), "{verdict:?}");
        assert_eq!(verdict.remedy.as_deref(), Some("check its mounts: findmnt --task 77"));
    }
    assert_eq!(after(&made, 2).verdicts[0].state, VerdictState::Unused);
}

#[test]
fn a_container_that_does_not_answer_may_have_more_unless_its_configuration_says_what() {
    let made = Made::new();
    let hidden = |lines| after(&made, lines).hidden.map(|hidden| hidden.reason);
    assert_eq!(hidden(2), None);
    assert!(hidden(1).unwrap().contains("did not answer in time"));
    made_with(&made, "");
    assert_eq!((hidden(1), hidden(0)), (None, None));
}

/// Every process of it has ended: it is not one that did not answer.
#[test]
fn a_container_that_ends_is_not_listed() {
    let made = preloaded();
    made.tree.remove("/proc/77/stat");
    assert_eq!(made.status().containers, []);
}

#[test]
fn a_sandbox_of_some_program_may_have_no_more_than_was_found_and_none_of_the_hosts_nodes() {
    let made = Made::new();
    made.process(90, "0::/user.slice\n", "browser", HOST_NET, "pid:[9]");
    made.tree.node("/proc/90/root/dev/onload", 243, 0);
    let sandbox = |made: &Made| {
        let mut sandboxes = made.status().others.into_iter().filter(|one| one.id == "pidns-9");
        sandboxes.next().unwrap()
    };
    assert_eq!(sandbox(&made).nodes, Vec::<String>::new());
    made.link("/proc/90/fd/3", "/dev/pps0");
    assert_eq!(sandbox(&made).open, ["/dev/pps0".to_owned()].into());
}

#[test]
fn a_file_that_only_sounds_like_the_library_is_not_it() {
    for (path, state) in [
        ("/usr/lib64/libonload.so", VerdictState::Ready),
        ("/usr/lib64/libonload.so.9.1", VerdictState::Ready),
        ("/tmp/libonload.so/data", VerdictState::PreloadLost),
        ("/tmp/mylibonload.so", VerdictState::PreloadLost),
        ("/tmp/libonload.sofa", VerdictState::PreloadLost),
    ] {
        let made = preloaded();
        made.link("/proc/77/ns/net", HOST_NET);
        made.maps(path);
        assert_eq!(made.verdicts()[0].state, state, "{path}");
    }
}

#[test]
fn a_library_of_the_images_own_is_not_judged_by_the_hosts() {
    let made = preloaded();
    made.link("/proc/77/ns/net", HOST_NET);
    let host = made.tree.host();
    let process = |library| {
        let reader = process::ProcessReader::new(&host, library);
        reader.read(77).unwrap().preload
    };
    // `maps` says inode 5.
    assert_eq!(process(Some(5)), Some(process::LibraryMapping::Yes));
    assert_eq!(process(None), Some(process::LibraryMapping::Yes));
    assert_eq!(process(Some(6)), Some(process::LibraryMapping::Foreign));
}

#[test]
fn a_library_of_the_images_own_without_a_descriptor_may_be_of_another_build() {
    let made = preloaded();
    made.link("/proc/77/ns/net", HOST_NET);
    let mut facts = facts_of(&made);
    facts.processes[0].preload = Some(process::LibraryMapping::Foreign);
    let host = HostFacts {
        has_nic: Some(true),
        library_matches: Some(false),
        is_rdma_exclusive: false,
        accelerates_veth: None,
    };
    let verdicts = decide(&facts, host);
    assert_eq!(verdicts[0].state, VerdictState::Unknown, "{verdicts:?}");
    assert!(verdicts[0].reason.contains("not this host's"));
    // A real one keeps the descriptor for epoll, which every build is given.
    facts.processes[0].open = Some(vec!["/dev/onload_epoll".to_owned()]);
    assert_eq!(decide(&facts, host), verdicts);
    facts.processes[0].open = Some(vec!["/dev/onload".to_owned()]);
    assert_eq!(decide(&facts, host)[0].state, VerdictState::Ready);
    // The driver has taken it.
    facts.processes[0].has_stack = true;
    assert_eq!(decide(&facts, host)[0].state, VerdictState::Accelerated);
}
