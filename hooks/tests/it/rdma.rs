//! RDMA devices that move into containers and come back. No machine at hand has one that can move; the node of a stand-in
//! is one of the sandbox's. What the kernel is told over its socket is tested beside, by messages written down
//! (`tests/tree/nldev-exchange.txt`).

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::panic, reason = "a test")]

use crate::common::moving::{self, can_move, first};
use crate::common::{HOOK_THERE, Sandbox};
use serde_json::{Value, json};

const DEVICES: &str = r#"
for d in 0 1 2; do
  ip -n wire link add index $((FIRST + d)) name w$d type veth peer name mlx5_$d netns $$
done
here() { ip link show $1 >/dev/null 2>&1 || fail "$2: $1 is not on the host"; }
there() { ip -n $1 link show $2 >/dev/null 2>&1 || fail "$3: $2 is not in $1"; }
lost() { # The engine and its poststop are gone.
  make one || fail "$(cat /tmp/err)"
  p=$(pid one)
  kill -9 $p
  while ! grep -q '^State:.Z' /proc/$p/status && [ -e /proc/$p ]; do sleep 0.01; done
  while [ "$(ls /proc/$p/task 2>/dev/null | /usr/bin/wc -l)" -gt 1 ]; do sleep 0.01; done
  rm -rf /run/${RUNTIME%% *}/$ID-one
  rmdir $(sed -n 's/.*"cgroup":{"path":"\([^"]*\)".*/\1/p' /run/onload-ctk/@leases/rdma=mlx5_0#0) 2>/dev/null || true
}
node() { stat -c '%F %t:%T' /proc/$(pid $1)/root/dev/infiniband/$2 2>/tmp/said || echo none; }
"#;

/// The driver of the last cannot move it.
fn stand_ins() -> String {
    let first = first();
    format!(
        "rdma {first}=0000:3b:00.0=uverbs0,{}=0000:3b:00.1=uverbs1,{}=0000:3b:00.2=uverbs0=fixed",
        first + 1,
        first + 2
    )
}

/// A container in the network namespace of a name, which gets some of the devices.
fn container(netns: Option<&str>, devices: &[usize]) -> Value {
    let options = devices.iter().map(|device| {
        format!("--lease rdma:mlx5_{device} --rdma-netns mlx5_{device}@0000:3b:00.{device}")
    });
    with_options(netns, &options.collect::<Vec<_>>().join(" "))
}

fn with_options(netns: Option<&str>, options: &str) -> Value {
    let options: Vec<&str> = options.split(' ').collect();
    moving::container(netns, &stand_ins(), &options)
}

/// Runs a script on such a host, with a bundle for each configuration and these lines of the operator's file.
fn on(bundles: &[(&str, Value)], more: &str, script: &str) {
    let sandbox = moving::sandbox(bundles);
    sandbox.allow(&["rdma"], more);
    moving::on_both(&sandbox, &stand_ins(), DEVICES, script);
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
    on(&[("one", container(Some("one"), &[0]))], "", script);
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
    on(&[("one", container(Some("one"), &[0]))], "", script);
}

#[test]
fn two_whose_names_a_container_swapped_both_have_their_own_again() {
    if !can_move() {
        return;
    }
    let script = r#"
        make one || fail "$(cat /tmp/err)"
        i="ip -n one"
        $i link set mlx5_0 name x; $i link set mlx5_1 name mlx5_0; $i link set x name mlx5_1
        # Names of RDMA devices are the whole machine's, so that one in the way is found however they come.
        for n in mlx5_0 mlx5_1; do $i link set $n netns $$; done
        gone one
        here mlx5_0 swapped; here mlx5_1 swapped; free swapped
        for d in 0 1; do
          ip -j link show mlx5_$d | grep -q "\"link_index\":$((FIRST + d))" || fail "mlx5_$d is another one"
        done"#;
    on(&[("one", container(Some("one"), &[0, 1]))], "", script);
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
    on(&[("one", container(Some("one"), &[0]))], "", script);
}

#[test]
fn what_nobody_brought_back_is_brought_back_by_whoever_looks() {
    if !can_move() {
        return;
    }
    let script = r#"
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
        &[("one", container(Some("one"), &[0])), ("other", container(Some("two"), &[0]))],
        "",
        script,
    );
}

/// The hook of the claim is first, and only leases.
#[test]
fn a_container_of_a_claim_gets_what_nobody_brought_back() {
    if !can_move() {
        return;
    }
    let mut claimed = with_options(Some("two"), "--lease rdma:mlx5_0 --claim u1");
    let own = container(Some("two"), &[0]);
    for stage in ["createRuntime", "poststop"] {
        let hooks = claimed["hooks"][stage].as_array_mut().unwrap();
        hooks.push(own["hooks"][stage][0].clone());
    }
    let script = r#"
        lost
        make claimed || fail "$(cat /tmp/err)"
        there two mlx5_0 claimed
        gone claimed; here mlx5_0 claimed; free claimed"#;
    let share = "[leases.share]\nrdma = 1\n";
    on(&[("one", container(Some("one"), &[0])), ("claimed", claimed)], share, script);
}

/// The specification of these devices, and of a pool of them.
fn pool(sandbox: &Sandbox, members: &[usize]) {
    let hook = |args: &[&str]| {
        let args = [&["onload-hook", "createRuntime"], args].concat();
        json!([{"hookName": "createRuntime", "path": HOOK_THERE, "args": args}])
    };
    let mut devices: Vec<Value> = members
        .iter()
        .map(|member| {
            let (lease, moves) =
                (format!("rdma:mlx5_{member}"), format!("mlx5_{member}@0000:3b:00.{member}"));
            let hooks = hook(&["--lease", &lease, "--rdma-netns", &moves]);
            json!({"name": format!("mlx5_{member}"), "containerEdits": {"hooks": hooks}})
        })
        .collect();
    let names: Vec<String> = members.iter().map(|one| format!("mlx5_{one}")).collect();
    let pool = json!({"onload.dev/pool-members": names.join(" "), "onload.dev/pool-share": "1"});
    let hooks = hook(&["--take", "rdma:any"]);
    devices.push(json!({"name": "any", "annotations": pool, "containerEdits": {"hooks": hooks}}));
    let spec = json!({"cdiVersion": "0.6.0", "kind": "onload.dev/rdma", "devices": devices});
    sandbox.file("/etc/cdi/onload.dev-rdma.json", spec.to_string());
}

#[test]
fn a_member_of_a_pool_that_nobody_brought_back_is_brought_back_for_the_next_container() {
    if !can_move() {
        return;
    }
    let sandbox = moving::sandbox(&[
        ("one", container(Some("one"), &[0])),
        ("other", with_options(Some("two"), "--take rdma:any")),
    ]);
    sandbox.allow(&["rdma"], "");
    pool(&sandbox, &[0]);
    let script = r#"
        lost
        make other || fail "$(cat /tmp/err)"
        there two mlx5_0 pool
        gone other; here mlx5_0 pool; free pool"#;
    moving::on_both(&sandbox, &stand_ins(), DEVICES, script);
}

#[test]
fn of_members_that_nobody_brought_back_as_many_are_brought_back_as_the_next_container_wants() {
    if !can_move() {
        return;
    }
    let sandbox = moving::sandbox(&[
        ("one", container(Some("one"), &[0, 1])),
        ("other", with_options(Some("two"), "--take rdma:any")),
    ]);
    sandbox.allow(&["rdma"], "");
    pool(&sandbox, &[0, 1]);
    let script = r#"
        lost
        make other || fail "$(cat /tmp/err)"
        for d in mlx5_0 mlx5_1; do
          ip link show $d >/dev/null 2>&1 && fail "$d came back for nobody"
        done
        gone other; restore >/dev/null
        here mlx5_0 both; here mlx5_1 both; free both"#;
    moving::on_both(&sandbox, &stand_ins(), DEVICES, script);
}

#[test]
fn a_pool_s_device_comes_back_beside_one_by_name_whose_poststop_is_first() {
    if !can_move() {
        return;
    }
    let mut config = container(Some("one"), &[0]);
    let second = with_options(Some("one"), "--take rdma:any");
    for stage in ["createRuntime", "poststop"] {
        let more = second["hooks"][stage][0].clone();
        config["hooks"][stage].as_array_mut().unwrap().push(more);
    }
    let sandbox = moving::sandbox(&[("one", config)]);
    sandbox.allow(&["rdma"], "");
    pool(&sandbox, &[1]);
    let script = r#"
        make one || fail "$(cat /tmp/err)"
        there one mlx5_0 both; there one mlx5_1 both
        gone one
        here mlx5_0 both; here mlx5_1 both; free both"#;
    moving::on_both(&sandbox, &stand_ins(), DEVICES, script);
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
        grep -q "in use by container $ID-one (process" /tmp/err || fail "$(cat /tmp/err)"
        gone other; gone one
        there one mlx5_0 second
        gone second
        here mlx5_0 last; free last"#;
    let bundles = [
        ("one", container(Some("one"), &[0])),
        ("second", container(Some("one"), &[0])),
        ("other", container(Some("two"), &[0])),
    ];
    on(&bundles, "[leases]\nshare = { rdma = 500 }\n", script);
}

#[test]
fn a_device_that_the_host_uses_stays_and_the_line_says_for_what() {
    if !can_move() {
        return;
    }
    let script = r#"
        refused() { # WHAT
          make one && fail "$1: created"
          grep -q "rdma mlx5_0 $1" /tmp/err || fail "$1: $(cat /tmp/err)"
          gone one; here mlx5_0 "$1"; free "$1"
        }
        ip link add name ib$FIRST type bridge
        ip addr add 192.0.2.1/24 dev ib$FIRST
        refused "cannot move, which would delete interface ib$FIRST: .*in use on this host: it has the address 192.0.2.1/24"
        ip addr del 192.0.2.1/24 dev ib$FIRST
        ip link add link ib$FIRST name ib.8001 type macvlan
        refused "cannot move, .*: macvlan .*ib.8001.* is on it"
        ip link del ib.8001
        node=/dev/infiniband/umad$FIRST
        mknod $node c 1 7
        sleep 1000 8<$node & user=$!
        while ! ls -l /proc/$user/fd 2>/dev/null | grep -q umad$FIRST; do :; done
        refused "is in use on this host: process $user (.*) has .*$node.* open"
        kill $user; wait $user 2>/dev/null || true
        echo rdma_cm > /tmp/kernel-users
        refused "is in use on this host: the kernel has connections over it (rdma_cm)"
        rm /tmp/kernel-users
        make one || fail "$(cat /tmp/err)"
        there one mlx5_0 idle
        # None of that keeps it from coming back.
        ip addr add 192.0.2.1/24 dev ib$FIRST
        echo rdma_cm > /tmp/kernel-users
        gone one; here mlx5_0 back; free back
        rm /tmp/kernel-users $node; ip link del ib$FIRST"#;
    on(&[("one", container(Some("one"), &[0]))], "", script);
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
        grep -q 'mlx5_0 (0000:3b:00.0) not found on this host; it is in a network namespace that ' /tmp/err || fail "$(cat /tmp/err)"
        gone other"#;
    let bundles = [("one", container(Some("one"), &[0])), ("other", container(Some("two"), &[0]))];
    on(&bundles, "", script);
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
        grep -q "in use by container $ID-host" /tmp/err || fail "$(cat /tmp/err)"
        gone one; here mlx5_0 one
        gone host; free host"#;
    let bundles = [("host", container(None, &[0])), ("one", container(Some("one"), &[0]))];
    on(&bundles, "", script);
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
    let bundles =
        [("both", container(Some("one"), &[1, 0])), ("fixed", container(Some("one"), &[0, 2]))];
    on(&bundles, "", script);
}

#[test]
fn what_must_not_move_is_refused_by_name_and_stays_where_it_is() {
    if !can_move() {
        return;
    }
    let unleased = "--rdma-netns mlx5_0@0000:3b:00.0";
    let other = "--lease rdma:mlx5_0 --rdma-netns mlx5_0@0000:af:00.0";
    let absent = "--lease rdma:mlx5_9 --rdma-netns mlx5_9@0000:3b:00.7";
    let bundles = [
        ("unleased", with_options(Some("one"), unleased)),
        ("other", with_options(Some("one"), other)),
        ("absent", with_options(Some("one"), absent)),
    ];
    let script = r#"
        refused() { # CONTAINER WHAT
          make $1 && fail "$2: created"
          grep -q "$2" /tmp/err || fail "$2: $(cat /tmp/err)"
          gone $1; here mlx5_0 "$2"
          [ ! -e /run/onload-ctk/@leases ] || free "$2"
        }
        refused unleased 'has no matching --lease rdma:NAME'
        refused other 'belongs to PCI function 0000:3b:00.0 now, not to PCI function 0000:af:00.0'
        refused absent 'mlx5_9 (0000:3b:00.7) not found on this host'"#;
    on(&bundles, "", script);
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
    on(&bundles, "live-devices = false", script);
}

/// Says after the hook what the container has: nodes that are mounted, one that its cgroup lets it open, and leases.
const LOOK: &str = r#"#!/bin/sh
state=$(cat)
code=0; printf %s "$state" | /opt/onload/stand-ins "$@" || code=$?
[ $3 = createRuntime ] || exit $code
pid=$(printf %s "$state" | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p')
at=$(sed -n 's/^[0-9]*:devices://p' /proc/$pid/cgroup)
dir=/sys/fs/cgroup/devices$at
[ -n "$at" ] || dir=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/$pid/cgroup)
{ grep -o '/uverbs[0-9]*' /proc/$pid/mountinfo | sort -u
  sh -c 'echo $$ > $0/cgroup.procs && exec 3> /dev/infiniband/uverbs9' $dir 2>/tmp/said && echo opened
  ls /run/onload-ctk/@leases; } > /tmp/seen
exit $code
"#;

/// A container that asks by annotation for a device that moves and one that does not.
fn asking() -> Value {
    let mut config = moving::container(Some("one"), &stand_ins(), &[]);
    config["annotations"]["onload.dev/rdma"] = "rxe9,mlx5_0".into();
    for stage in ["createRuntime", "poststop"] {
        config["hooks"][stage][0]["path"] = "/opt/onload/look".into();
    }
    config
}

#[test]
fn what_is_refused_by_annotation_leaves_the_container_as_it_was_and_leases_nothing() {
    if !can_move() {
        return;
    }
    let sandbox =
        moving::sandbox(&[("asking", asking()), ("holder", container(Some("two"), &[0]))]);
    sandbox.allow(&["rdma"], "[leases]\nshare = { rdma = 1 }");
    sandbox.file("/opt/onload/look", LOOK);
    sandbox.chmod("/opt/onload/look", 0o755);
    sandbox.node("/dev/infiniband/uverbs9", 1, 11);
    sandbox.sysfs("uverbs9", "rxe9", "1:11");
    let hooks = |args: &[&str]| {
        let hook = |stage: &str| {
            let args = [&["onload-hook", stage], args].concat();
            json!({"hookName": stage, "path": HOOK_THERE, "args": args})
        };
        json!([hook("createRuntime"), hook("poststop")])
    };
    let moves = "mlx5_0@0000:3b:00.0";
    let spec = json!({"cdiVersion": "0.3.0", "kind": "onload.dev/rdma", "devices": [
        {"name": "rxe9", "containerEdits": {
            "deviceNodes": [{"path": "/dev/infiniband/uverbs9", "permissions": "rw"}],
            "hooks": hooks(&["--lease", "rdma:rxe9"])}},
        {"name": "mlx5_0", "containerEdits": {
            "hooks": hooks(&["--lease", "rdma:mlx5_0", "--rdma-netns", moves])}}]});
    sandbox.file("/etc/cdi/onload.dev-rdma.json", spec.to_string());
    let script = r#"
        seen() { [ "$(cat /tmp/seen | tr '\n' ' ')" = "$1" ] || fail "$(cat /tmp/seen /tmp/said)"; }
        given() {
          make asking || fail "$(cat /tmp/err)"
          there one mlx5_0 given
          seen '/uverbs0 /uverbs9 opened rdma=mlx5_0#0 rdma=rxe9#0 '
          gone asking; here mlx5_0 given; free given
        }
        given
        make holder || fail "$(cat /tmp/err)"
        make asking && fail "created"
        grep -q "in use by container $ID-holder (process" /tmp/err || fail "$(cat /tmp/err)"
        seen 'rdma=mlx5_0#0 '
        gone asking; there two mlx5_0 holder
        gone holder
        given"#;
    moving::on_both(&sandbox, &stand_ins(), DEVICES, script);
}
