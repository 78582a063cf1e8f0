//! What containers and users do that must not change what is said of others, nor of themselves to their good: names
//! that lead elsewhere, mounts of the host, processes that end, and more of everything than is looked at.

use crate::test_tree::AsHost;
use onload_core::config::Config;
use onload_host::devices::discover;
use onload_lease::Holder;

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
fn no_program_is_asked_for_in_a_sandbox_that_has_nothing_of_ours() {
    let made = Made::new();
    made.process(90, "0::/user.slice\n", "browser", HOST_NET, "pid:[9]");
    made.tree.node("/proc/90/root/dev/onload", 243, 0);
    let host = made.tree.host();
    let inventory = discover(&host, &Config::default());
    // Reading its environment fails.
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
