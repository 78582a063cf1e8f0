//! RDMA devices that move into containers of this machine's runc and come back, in network namespaces of the test's own.
//! A virtual pair stands in for an RDMA device, since no machine at hand has one that can move: one end has the device's
//! name and moves, and the other stays where it is and tells it from others. Its node is one of the sandbox's. What the
//! kernel is told over its socket is tested beside, by messages written down (`core/tests/nldev-exchange.txt`).
//!
//! The hook that knows of stand-ins is an example, which `cargo test` builds; with `--test rdma` alone, run
//! `cargo build -p onload-hooks --example rdma` first.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::panic,
    reason = "a test"
)]

mod common;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use common::{HOOK, Sandbox, config, skipped, stderr, stdout};
use serde_json::{Value, json};

/// The example, where containers' hooks find it.
const STAND_IN: &str = "/opt/onload/rdma";
/// How many tests have devices of their own.
static TESTS: AtomicU32 = AtomicU32::new(0);
thread_local! {
    /// The number of a test's first device. A device is looked for in all namespaces of the machine, so that no two
    /// tests may have the same.
    static FIRST: u32 = 500_000_000 + std::process::id() * 64 + 3 * TESTS.fetch_add(1, Relaxed);
}

/// Three devices, by the ends of their pairs that stay; the driver of the last cannot move it.
fn devices() -> String {
    let first = FIRST.with(|first| *first);
    format!(
        "{first}=0000:3b:00.0=uverbs0,{}=0000:3b:00.1=uverbs1,{}=0000:3b:00.2=uverbs0=fixed",
        first + 1,
        first + 2
    )
}

/// What each script begins with: a host in network namespaces of its own, with three devices. The pairs' other ends are
/// in namespace `wire`; `one` and `two` are those of containers.
const HOST: &str = r#"
set -e
mount -t tmpfs -o mode=0755 none /run
mkdir -p /tmp/first /run/netns /run/mount
: > /tmp/first/net
mount --bind /proc/self/ns/net /tmp/first/net
mount --rbind /tmp/first /proc/1/ns
for n in wire one two; do ip netns add $n; done
for d in 0 1 2; do
  ip -n wire link add index $((FIRST + d)) name w$d type veth peer name mlx5_$d netns $$
done
fail() { echo "FAILED: $*" >&2; exit 1; }
here() { ip link show $1 >/dev/null 2>&1 || fail "$2: $1 is not on the host"; }
there() { ip -n $1 link show $2 >/dev/null 2>&1 || fail "$3: $2 is not in $1"; }
free() { ls -A /run/onload-ctk/@leases | grep '#' && fail "$1: a lease is left"; true; }
make() { # CONTAINER
  made=0; $RUNTIME create -b /$1 $ID-$1 </dev/null >/dev/null 2>/tmp/err || made=$?
  return $made
}
pid() { $RUNTIME state $ID-$1 | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p'; }
node() { stat -c '%F %t:%T' /proc/$(pid $1)/root/dev/infiniband/$2 2>/tmp/said || echo none; }
gone() { $RUNTIME delete --force $ID-$1 >/dev/null 2>&1 || true; }
restore() { /opt/onload/rdma DEVICES restore; }
"#;

fn stand_in() -> PathBuf {
    let path = Path::new(HOOK).with_file_name("examples").join("rdma");
    assert!(
        path.exists(),
        "{path:?} is not there: cargo build -p onload-hooks --example rdma"
    );
    path
}

/// Whether ends of processes can be seen here, and what else the tests need.
fn can_move() -> bool {
    let pids = std::fs::read_link("/proc/self/ns/pid").unwrap();
    if pids.to_str() != Some("pid:[4026531836]") {
        skipped("moving devices needs the initial PID namespace");
        return false;
    }
    onload_test_needs::root("moving devices")
        && onload_test_needs::programs(&["unshare", "runc"])
        && onload_test_needs::that(Path::new("/usr/sbin/ip").exists(), "ip is not installed")
}

/// A container in the network namespace of a name, which gets some of the devices.
fn container(netns: Option<&str>, devices: &[usize]) -> Value {
    let mut given = Vec::new();
    for device in devices {
        given.push("--lease".to_owned());
        given.push(format!("rdma:mlx5_{device}"));
        given.push("--rdma-netns".to_owned());
        given.push(format!("mlx5_{device}@0000:3b:00.{device}"));
    }
    with_arguments(netns, &given)
}

fn with_arguments(netns: Option<&str>, given: &[String]) -> Value {
    let hook = |stage: &str| {
        let mut args = vec!["rdma".to_owned(), devices(), stage.to_owned()];
        args.extend_from_slice(given);
        json!([{"path": STAND_IN, "args": args, "env": ["PATH=/usr/bin"], "timeout": 20}])
    };
    let mut config = config(&json!({}), "while :; do read -r x < /proc/loadavg; done");
    config["hooks"] = json!({"createRuntime": hook("createRuntime"), "poststop": hook("poststop")});
    if let Some(netns) = netns {
        let own = json!({"type": "network", "path": format!("/run/netns/{netns}")});
        config["linux"]["namespaces"]
            .as_array_mut()
            .unwrap()
            .push(own);
    }
    config
}

/// Runs a script on such a host, with a bundle for each configuration.
fn on(name: &str, bundles: &[(&str, Value)], more: &str, script: &str) {
    let sandbox = Sandbox::new();
    sandbox.allow(&["rdma"], more);
    std::fs::copy(stand_in(), sandbox.path(STAND_IN)).unwrap();
    for (name, config) in bundles {
        sandbox.root_file_system(&format!("/{name}/rootfs"));
        sandbox.file(
            &format!("/{name}/config.json"),
            serde_json::to_vec(config).unwrap(),
        );
    }
    let id = format!("onload-ctk-rdma-{}-{name}", std::process::id());
    let host = HOST.replace("DEVICES", &devices());
    let first = FIRST.with(|first| *first);
    let begin = format!("FIRST={first}\nID={id}\nRUNTIME='runc --root /run/runc'");
    sandbox.file("/script.sh", format!("{begin}\n{host}\n{script}\n"));
    let output = sandbox.script("exec unshare --net sh /script.sh", b"");
    let (out, err) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{out} {err}");
}

#[test]
fn a_device_moves_with_its_node_and_comes_back_after_each_way_of_ending() {
    if !can_move() {
        return;
    }
    let script = r#"
        for end in exit kill delete; do
          make one || fail "$(cat /tmp/err)"
          there one mlx5_0 $end
          [ "$(node one uverbs0)" = "character special file 1:7" ] || fail "$end: $(node one uverbs0)"
          [ "$(node one uverbs1)" = none ] || fail "$end: another device's node"
          grep -q '"rdma":{"name":"mlx5_0","pci":"0000:3b:00.0","index":'$FIRST /run/onload-ctk/@leases/rdma=mlx5_0#0 || fail "no lease"
          case $end in
            exit) $RUNTIME start $ID-one; $RUNTIME kill $ID-one KILL;;
            kill) kill -9 $(pid one);;
          esac
          gone one
          here mlx5_0 $end; free $end
        done"#;
    on("ends", &[("one", container(Some("one"), &[0]))], "", script);
}

#[test]
fn a_device_that_a_container_renamed_comes_back_under_its_name() {
    if !can_move() {
        return;
    }
    let script = r#"
        make one || fail "$(cat /tmp/err)"
        ip -n one link set mlx5_0 name mine
        gone one
        here mlx5_0 renamed; free renamed"#;
    on(
        "renamed",
        &[("one", container(Some("one"), &[0]))],
        "",
        script,
    );
}

#[test]
fn a_device_that_a_container_moved_on_comes_back_from_there() {
    if !can_move() {
        return;
    }
    let script = r#"
        make one || fail "$(cat /tmp/err)"
        ip -n one link set mlx5_0 name mine netns two
        gone one
        here mlx5_0 "another namespace"; free "another namespace"
        # No process is in this one: a descriptor keeps it.
        ip netns add hidden
        make one || fail "$(cat /tmp/err)"
        ip -n one link set mlx5_0 netns hidden
        exec 9< /run/netns/hidden
        ip netns del hidden
        gone one
        exec 9<&-
        here mlx5_0 descriptor; free descriptor"#;
    on(
        "moved-on",
        &[("one", container(Some("one"), &[0]))],
        "",
        script,
    );
}

#[test]
fn what_nobody_brought_back_is_brought_back_by_whoever_looks() {
    if !can_move() {
        return;
    }
    let script = r#"
        lost() { # The engine and its poststop are gone.
          make one || fail "$(cat /tmp/err)"
          p=$(pid one)
          kill -9 $p
          while ! grep -q '^State:.Z' /proc/$p/status && [ -e /proc/$p ]; do sleep 0.01; done
          while [ "$(ls /proc/$p/task 2>/dev/null | /usr/bin/wc -l)" -gt 1 ]; do sleep 0.01; done
          rm -rf /run/runc/$ID-one
          rmdir $(sed -n 's/.*"cgroup":{"path":"\([^"]*\)".*/\1/p' /run/onload-ctk/@leases/rdma=mlx5_0#0) 2>/dev/null || true
        }
        # It is still in the namespace.
        lost
        restore | grep -q 'rdma:mlx5_0 is back' || fail "not brought back"
        here mlx5_0 restore; free restore
        # The kernel has given it back.
        lost; ip -n one link set mlx5_0 netns $$
        restore | grep -q 'rdma:mlx5_0 is back' || fail "not ended"
        here mlx5_0 kernel; free kernel
        # The next container brings it back first.
        lost
        make other || fail "$(cat /tmp/err)"
        there two mlx5_0 next
        gone other; here mlx5_0 next; free next"#;
    on(
        "lost",
        &[
            ("one", container(Some("one"), &[0])),
            ("other", container(Some("two"), &[0])),
        ],
        "",
        script,
    );
}

#[test]
fn containers_of_one_namespace_share_it_and_the_last_gives_it_back() {
    if !can_move() {
        return;
    }
    let script = r#"
        make one || fail "$(cat /tmp/err)"
        make second || fail "$(cat /tmp/err)"
        [ "$(node second uverbs0)" = "character special file 1:7" ] || fail "$(node second uverbs0)"
        make other && fail "given to another namespace"
        grep -q "it is held by container $ID-one (process" /tmp/err || fail "$(cat /tmp/err)"
        gone other; gone one
        there one mlx5_0 second
        gone second
        here mlx5_0 last; free last"#;
    let bundles = [
        ("one", container(Some("one"), &[0])),
        ("second", container(Some("one"), &[0])),
        ("other", container(Some("two"), &[0])),
    ];
    on(
        "shared",
        &bundles,
        "[leases]\nshare = { rdma = 500 }\n",
        script,
    );
}

#[test]
fn a_device_that_another_program_moved_is_used_where_it_is_and_stays_there() {
    if !can_move() {
        return;
    }
    let script = r#"
        ip link set mlx5_0 netns one
        make one || fail "$(cat /tmp/err)"
        [ "$(node one uverbs0)" = "character special file 1:7" ] || fail "$(node one uverbs0)"
        grep -q '"movedByOther":true' /run/onload-ctk/@leases/rdma=mlx5_0#0 || fail "the lease does not say so"
        gone one
        there one mlx5_0 stays; free stays
        restore && there one mlx5_0 restore
        # It is in nobody's lease, and not in the other one's namespace.
        make other && fail "given from another namespace"
        grep -q 'mlx5_0 (0000:3b:00.0) is not on this host; it is in a network namespace that ' /tmp/err || fail "$(cat /tmp/err)"
        gone other"#;
    let bundles = [
        ("one", container(Some("one"), &[0])),
        ("other", container(Some("two"), &[0])),
    ];
    on("cni", &bundles, "", script);
}

#[test]
fn a_container_with_the_host_s_network_gets_the_node_and_nothing_moves() {
    if !can_move() {
        return;
    }
    let script = r#"
        make host || fail "$(cat /tmp/err)"
        here mlx5_0 host
        [ "$(node host uverbs0)" = "character special file 1:7" ] || fail "$(node host uverbs0)"
        grep -q '"moved"' /run/onload-ctk/@leases/rdma=mlx5_0#0 && fail "said to have moved"
        # One container has it at a time.
        make one && fail "given to two"
        grep -q "it is held by container $ID-host" /tmp/err || fail "$(cat /tmp/err)"
        gone one; here mlx5_0 one
        gone host; free host"#;
    let bundles = [
        ("host", container(None, &[0])),
        ("one", container(Some("one"), &[0])),
    ];
    on("host", &bundles, "", script);
}

#[test]
fn all_of_several_devices_are_given_or_none() {
    if !can_move() {
        return;
    }
    let script = r#"
        make both || fail "$(cat /tmp/err)"
        there one mlx5_0 both; there one mlx5_1 both
        [ "$(node both uverbs1)" = "character special file 1:3" ] || fail "$(node both uverbs1)"
        gone both; here mlx5_0 both; here mlx5_1 both; free both
        make fixed && fail "created"
        grep -q 'mlx5_2 cannot move: its driver cannot take a device out of a network namespace (EOPNOTSUPP)' /tmp/err || fail "$(cat /tmp/err)"
        here mlx5_0 fixed; here mlx5_2 fixed
        gone fixed; free fixed"#;
    let bundles = [
        ("both", container(Some("one"), &[1, 0])),
        ("fixed", container(Some("one"), &[0, 2])),
    ];
    on("several", &bundles, "", script);
}

#[test]
fn what_must_not_move_is_refused_by_name_and_stays_where_it_is() {
    if !can_move() {
        return;
    }
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let unleased = words("--rdma-netns mlx5_0@0000:3b:00.0");
    let other = words("--lease rdma:mlx5_0 --rdma-netns mlx5_0@0000:af:00.0");
    let absent = words("--lease rdma:mlx5_9 --rdma-netns mlx5_9@0000:3b:00.7");
    let bundles = [
        ("unleased", with_arguments(Some("one"), &unleased)),
        ("other", with_arguments(Some("one"), &other)),
        ("absent", with_arguments(Some("one"), &absent)),
    ];
    let script = r#"
        refused() { # CONTAINER WHAT
          make $1 && fail "$2: created"
          grep -q "$2" /tmp/err || fail "$2: $(cat /tmp/err)"
          gone $1; here mlx5_0 "$2"
          [ ! -e /run/onload-ctk/@leases ] || free "$2"
        }
        refused unleased 'has no --lease rdma:NAME beside it'
        refused other 'belongs to PCI function 0000:3b:00.0 now, not to PCI function 0000:af:00.0'
        refused absent 'mlx5_9 (0000:3b:00.7) is not on this host'"#;
    on("refused", &bundles, "", script);
}

#[test]
fn nothing_moves_where_no_node_may_be_given_to_a_created_container() {
    if !can_move() {
        return;
    }
    let script = r#"
        make one && fail "created"
        grep -q 'live-devices = false in' /tmp/err || fail "$(cat /tmp/err)"
        gone one; here mlx5_0 closed"#;
    let bundles = [("one", container(Some("one"), &[0]))];
    on("closed", &bundles, "live-devices = false", script);
}
