//! Interfaces that move into containers and come back. What the kernel does with a device whose namespace ends is done
//! by hand here: it deletes a pair.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::panic, reason = "a test")]

use crate::common::moving::{self, can_move, first, sandbox};
use crate::common::{Sandbox, WRAPPER_THERE};
use serde_json::{Value, json};

pub(crate) const DEVICES: &str = r#"
function_of() { # NUMBER NAME ADDRESS
  ip -n wire link add index $1 name w$2 type veth peer name $2 netns $$
  ip link set $2 address $3 mtu 1400 txqueuelen 77 alias "rack 7"
  ip link property add dev $2 altname alt$2
}
function_of $FIRST ens1v0 02:00:00:00:10:01
function_of $((FIRST + 1)) ens1v1 02:00:00:00:10:02
as_it_is() { # of a function, by its other end
  ip -j link | /usr/bin/tr '{' '\n' | grep -q "\"link_index\":$1" || { echo "$1 is not here"; return 0; }
  ip -d link show ${2:-ens1v0} | sed -e 's/^[0-9]*: //; s/state [A-Z]*//; s/qdisc [a-z]*//; s/link-netns[id]* [a-z0-9]*//'
}
same() { now=$(as_it_is $FIRST); [ "$now" = "$before" ] || fail "$1: $before
became
$now"; }
before=$(as_it_is $FIRST)
"#;

fn stand_ins() -> String {
    format!("netdev {}=0000:03:10.0,{}=0000:03:10.2", first(), first() + 1)
}

/// A container in the network namespace of a name, whose device is an interface.
fn container(netns: Option<&str>, more: &[&str]) -> Value {
    container_with("ens1v0@0000:03:10.0", netns, more)
}

fn container_with(interface: &str, netns: Option<&str>, more: &[&str]) -> Value {
    let (name, _) = interface.split_once('@').unwrap();
    let lease = format!("netdev:{name}");
    let mut options = vec!["--lease", &lease, "--netdev", interface];
    options.extend(more);
    moving::container(netns, &stand_ins(), &options)
}

/// Runs a script on such a host with each runtime; what it printed.
fn on_both(sandbox: &Sandbox, script: &str) -> Vec<String> {
    moving::on_both(sandbox, &stand_ins(), DEVICES, script)
}

#[test]
fn an_interface_moves_with_its_address_and_comes_back_as_it_was_after_each_way_of_ending() {
    if !can_move() {
        return;
    }
    let address = ["--address", "ens1v0=192.0.2.10/24"];
    let sandbox = sandbox(&[("one", container(Some("one"), &address))]);
    let script = r#"
        ignores=/proc/sys/net/ipv4/conf/ens1v0/arp_ignore
        echo 2 > $ignores
        for end in exit kill delete; do
          make one || fail "$(cat /tmp/err)"
          ip -n one -4 addr show ens1v0 | grep -q 'inet 192.0.2.10/24' || fail "no address"
          ip -n one link show ens1v0 | grep -q 'UP' || fail "not up"
          ip link show ens1v0 2>/dev/null && fail "still on the host"
          grep -q '"mtu":1400' /run/onload-ctk/@leases/netdev=ens1v0#0 || fail "no lease"
          case $end in
            exit) $RUNTIME start $ID-one; $RUNTIME kill $ID-one KILL;;
            kill) kill -9 $($RUNTIME state $ID-one | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p');;
          esac
          gone one
          same $end; free $end
          [ "$(cat $ignores)" = 2 ] || fail "$end: arp_ignore is $(cat $ignores)"
        done"#;
    on_both(&sandbox, script);
}

/// What a claim of Kubernetes says of an interface.
const CLAIMED: [&str; 10] = [
    "--rename",
    "ens1v0=net1",
    "--mtu",
    "ens1v0=1300",
    "--address",
    "ens1v0=192.0.2.10/24",
    "--route",
    "ens1v0=198.51.100.0/24 via 192.0.2.1",
    "--route",
    "ens1v0=203.0.113.0/24",
];

#[test]
fn an_interface_has_another_name_mtu_and_routes_in_the_container_and_its_own_on_the_host() {
    if !can_move() {
        return;
    }
    let sandbox = sandbox(&[
        ("one", container(Some("one"), &CLAIMED)),
        ("second", container(Some("one"), &[])),
    ]);
    let of_host =
        "[netdev.ens1v0]\naddresses = [\"192.0.2.99/24\"]\nroutes = [\"10.0.0.0/8\"]\nmtu = 1350\n";
    sandbox.allow(&[], of_host);
    let script = r#"
        # The host's name is taken there, which is no matter.
        ip -n one link add name ens1v0 type bridge
        for end in exit kill kernel; do
          make one || fail "$end: $(cat /tmp/err)"
          ip link show ens1v0 2>/dev/null && fail "$end: still on the host"
          ip -n one link show net1 | grep -q 'UP.*mtu 1300' || fail "$end: $(ip -n one link)"
          [ "$(ip -n one -4 addr show net1 | grep -o 'inet [0-9./]*')" = 'inet 192.0.2.10/24' ] || fail "$end: $(ip -n one addr)"
          ip -n one route > /tmp/routes
          grep -q '^198.51.100.0/24 via 192.0.2.1 dev net1' /tmp/routes || fail "$end: $(cat /tmp/routes)"
          grep -q '^203.0.113.0/24 dev net1' /tmp/routes || fail "$end: $(cat /tmp/routes)"
          grep -q '^10.0.0.0/8' /tmp/routes && fail "$end: the configuration's route too"
          grep -q '"name":"ens1v0".*"mtu":1400' /run/onload-ctk/@leases/netdev=ens1v0#0 || fail "$end: no lease"
          # Another container of the pod, whose specification knows nothing of the claim.
          make second || fail "$end: $(cat /tmp/err)"
          gone second
          ip -n one link show net1 >/dev/null || fail "$end: taken from the first one"
          case $end in
            exit) $RUNTIME start $ID-one; $RUNTIME kill $ID-one KILL;;
            kill) kill -9 $(pid one);;
            # As where the namespace ends: it comes under the name that it had there.
            kernel) ip -n one link set net1 netns $$;;
          esac
          gone one
          same $end; free $end
          ip link show net1 2>/dev/null && fail "$end: under the container's name"
        done
        true"#;
    on_both(&sandbox, script);
}

#[test]
fn a_member_of_a_pool_without_an_interface_is_not_said_to_be_held_by_the_container_itself() {
    if !can_move() {
        return;
    }
    let take = ["--take", "netdev:any"];
    let sandbox = sandbox(&[("one", moving::container(Some("one"), &stand_ins(), &take))]);
    let hook = |args: &[&str]| {
        let args = [&["onload-hook", "createRuntime"], args].concat();
        json!([{"hookName": "createRuntime", "path": "/opt/onload/stand-ins", "args": args}])
    };
    let member = hook(&["--lease", "netdev:ens9", "--netdev", "ens9@0000:03:1f.0"]);
    let pool = json!({"onload.dev/pool-members": "ens9", "onload.dev/pool-share": "1"});
    let spec = json!({"cdiVersion": "0.6.0", "kind": "onload.dev/netdev", "devices": [
        {"name": "ens9", "containerEdits": {"hooks": member}},
        {"name": "any", "annotations": pool, "containerEdits": {"hooks": hook(&take)}}]});
    sandbox.file("/etc/cdi/onload.dev-netdev.json", spec.to_string());
    let script = r#"
        make one && fail "created"
        grep -q '(0000:03:1f.0) not found on this host' /tmp/err || fail "$(cat /tmp/err)"
        gone one; free one"#;
    on_both(&sandbox, script);
}

#[test]
fn a_name_that_the_container_has_already_or_that_moves_along_is_refused() {
    if !can_move() {
        return;
    }
    let named = |name: &str| {
        let rename = format!("ens1v0={name}");
        container(Some("one"), &["--rename", &rename])
    };
    let eth0 = container_with("eth0@0000:03:10.2", Some("one"), &["--rename", "eth0=net1"]);
    let sandbox = sandbox(&[
        ("one", named("net1")),
        ("other", named("altens1v0")),
        ("same", named("ens1v0")),
        ("eth0", eth0),
    ]);
    let script = r#"
        refused() { # WHAT CONTAINER
          make $2 && fail "$1: created"
          grep -q "$1" /tmp/err || fail "$1: $(cat /tmp/err)"
          gone $2; same "$1"; free "$1"
        }
        ip -n one link add name net1 type bridge
        refused 'the container has an interface called \\*"net1\\*" already' one
        ip -n one link del net1
        ip -n one link add name br0 type bridge
        ip -n one link property add dev br0 altname net1
        refused 'the container has an interface called \\*"net1\\*" already' one
        ip -n one link property del dev br0 altname net1
        ip -n one link property add dev br0 altname altens1v0
        refused 'the container has an interface called \\*"altens1v0\\*" already' one
        ip -n one link del br0
        refused 'cannot be called \\*"altens1v0\\*" in the container: that is another name of it' other
        ip link property add dev ens1v0 altname eth0
        make one && fail "with eth0 as another name"
        grep -q "engines call the container's own interface so" /tmp/err || fail "$(cat /tmp/err)"
        ip link property del dev ens1v0 altname eth0
        gone one; same "eth0"; free "eth0"
        # Its own name is as good as none.
        make same || fail "$(cat /tmp/err)"
        ip -n one link show ens1v0 >/dev/null || fail "not there"
        gone same; same "its own"; free "its own"
        # One that the host calls eth0 moves beside the container's own eth0.
        ip -n one link add name eth0 type bridge
        ip link set ens1v1 name eth0
        make eth0 || fail "$(cat /tmp/err)"
        ip -n one link show net1 | grep -q 02:00:00:00:10:02 || fail "$(ip -n one link)"
        gone eth0; free eth0
        ip link show eth0 | grep -q 02:00:00:00:10:02 || fail "$(ip link)"
        true"#;
    on_both(&sandbox, script);
}

#[test]
fn what_cannot_be_set_in_the_container_is_taken_back_under_its_own_name() {
    if !can_move() {
        return;
    }
    let with = |route| container(Some("one"), &["--rename", "ens1v0=net1", "--route", route]);
    let sandbox = sandbox(&[
        ("gateway", with("ens1v0=198.51.100.0/24 via 192.0.2.1")),
        ("taken", with("ens1v0=198.51.100.0/24")),
    ]);
    let script = r#"
        refused() { # WHAT CONTAINER
          make $2 && fail "$1: created"
          grep -q "$1" /tmp/err || fail "$1: $(cat /tmp/err)"
          gone $2; same "$1"; free "$1"
        }
        refused 'setting the route 198.51.100.0/24 via 192.0.2.1 of interface net1' gateway
        ip -n one link add name br0 type bridge
        ip -n one link set br0 up
        ip -n one route add 198.51.100.0/24 dev br0
        refused 'setting the route 198.51.100.0/24 of interface net1' taken"#;
    on_both(&sandbox, script);
}

/// After a kill at any of its system calls that change something the hook has lost nothing: the next container gets the
/// interface, and the host has it again afterwards.
#[test]
fn a_hook_that_is_killed_in_the_middle_of_a_renaming_move_loses_no_interface() {
    if !can_move() || !onload_test_needs::programs(&["strace"]) {
        return;
    }
    let container = |netns| container(Some(netns), &CLAIMED);
    let sandbox = sandbox(&[("one", container("one")), ("two", container("two"))]);
    let claimed: Vec<String> = CLAIMED.iter().map(|word| format!("'{word}'")).collect();
    let script = r#"
        hook() { # STAGE, behind what traces it
          $trace /opt/onload/stand-ins $STAND_INS $1 --lease netdev:ens1v0 --netdev ens1v0@0000:03:10.0 CLAIMED
        }
        state() { printf '{"ociVersion":"1.0.2","id":"%s","status":"%s","pid":%s,"bundle":"/%s"}' $1 $2 $3 $1; }
        init() { # NAMESPACE
          ip netns exec $1 sleep 1000 >/dev/null 2>&1 & init=$!
          while [ "$(readlink /proc/$init/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do :; done
        }
        once() { # INJECTION
          trace="strace -f -qq -o /tmp/trace $1"
          init one
          status=0; state one creating $init | hook createRuntime 2>/tmp/err || status=$?
          kill -9 $init; wait $init 2>/dev/null || true
          trace=
          init two
          state two creating $init | hook createRuntime 2>/tmp/err || fail "lost at $1: $(cat /tmp/err)"
          ip -n two link show net1 | grep -q 'UP.*mtu 1300' || fail "not given at $1: $(ip -n two link)"
          kill -9 $init; wait $init 2>/dev/null || true
          state two stopped 0 | hook poststop 2>/tmp/err || fail "not back at $1: $(cat /tmp/err)"
          same "$1"; free "$1"
          return $status
        }
        once || fail "$(cat /tmp/err)"
        killed=0
        for call in sendto write renameat2 setns; do
          grep -q " $call(" /tmp/trace || fail "no $call"
          n=1
          until once "-e inject=$call:signal=KILL:when=$n"; do n=$((n+1)) killed=$((killed+1)); done
        done
        echo "killed at $killed system calls""#.replace("CLAIMED", &claimed.join(" "));
    let output_text = moving::on(&sandbox, "runc", &stand_ins(), DEVICES, &script);
    println!("{output_text}");
    let killed = output_text.split_whitespace().find_map(|word| word.parse::<u32>().ok());
    assert!(killed.is_some_and(|killed| killed >= 20), "{output_text}");
}

#[test]
fn whatever_a_container_does_to_it_it_comes_back_as_it_was() {
    if !can_move() {
        return;
    }
    let sandbox = sandbox(&[("one", container(Some("one"), &[]))]);
    let script = r#"
        make one || fail "$(cat /tmp/err)"
        # As a container with CAP_NET_ADMIN could. ens1v1 is another interface of the host.
        i="ip -n one"
        $i link set ens1v0 down
        $i link property del dev ens1v0 altname altens1v0
        $i link set ens1v0 name ens1v1
        $i link property add dev ens1v1 altname ens1v0
        $i link property add dev ens1v1 altname lo0
        $i link set ens1v1 address 02:00:00:00:66:66 mtu 900 txqueuelen 5 alias mine promisc on
        $i link set ens1v1 group 7 mode dormant broadcast ff:ff:ff:ff:ff:00
        $i link set ens1v1 gso_max_size 3000 gso_max_segs 5 gro_max_size 4000
        $i link set ens1v1 up
        $i link add link ens1v1 name mac0 type macvlan mode bridge
        $i link add link ens1v1 name mac1 type macvlan mode private
        $i link add name br0 type bridge
        $i link set mac0 up
        $i addr add 192.0.2.66/24 dev ens1v1
        gone one
        same hostile; free hostile
        ip link show ens1v1 | grep -q 02:00:00:00:10:02 || fail "the other interface"
        ip -n one link show mac0 2>/dev/null && fail "a macvlan is left on it"
        ip -n one link show mac1 2>/dev/null && fail "a second macvlan is left on it"
        ip -n one link show br0 >/dev/null || fail "what is not on it is gone too"
        ip addr show ens1v0 | grep inet && fail "an address is left"
        true"#;
    on_both(&sandbox, script);
}

#[test]
fn what_the_kernel_gave_back_as_the_container_left_it_is_restored_by_whoever_looks() {
    if !can_move() {
        return;
    }
    let sandbox = sandbox(&[("one", container(Some("one"), &[]))]);
    // The engine and its poststop are gone, and the kernel has given the interface back under another name.
    let script = r#"
        lost() {
          make one || fail "$(cat /tmp/err)"
          # What stood on it went while it was down, and the container itself wants every packet too.
          ip -n one link set ens1v0 promisc on
          ip -n one link add m0 link ens1v0 type macvlan
          ip -n one link set m0 up; ip -n one link set ens1v0 down; ip -n one link del m0
          pid=$($RUNTIME state $ID-one | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p')
          ip -n one link set ens1v0 down name dev8 address 02:00:00:00:66:66 mtu 900
          kill -9 $pid
          while ! grep -q '^State:.Z' /proc/$pid/status && [ -e /proc/$pid ]; do sleep 0.01; done
          # Its other threads end later than the first.
          while [ "$(ls /proc/$pid/task 2>/dev/null | /usr/bin/wc -l)" -gt 1 ]; do sleep 0.01; done
          rm -rf /run/${RUNTIME##*/}/$ID-one
          rmdir $(sed -n 's/.*"cgroup":{"path":"\([^"]*\)".*/\1/p' /run/onload-ctk/@leases/netdev=ens1v0#0) 2>/dev/null || true
        }
        lost; ip -n one link set dev8 netns $$
        # Whoever fetched it before was killed, and left what a container had put in its place.
        ip link add name ctk0123456789ab type bridge
        restore | grep -q 'netdev:ens1v0 is back' || fail "not restored"
        same "lease restore"; free "lease restore"
        ip link show ctk0123456789ab 2>/dev/null && fail "what came in its place is left"
        # Its namespace lives, and it is still in it.
        lost
        restore | grep -q 'netdev:ens1v0 is back' || fail "not brought back"
        same "restore from the namespace"; free "restore from the namespace"
        # The next container brings it back first.
        lost
        make one || fail "$(cat /tmp/err)"
        ip -n one link show ens1v0 | grep -q 02:00:00:00:10:01 || fail "as the last one left it"
        gone one; same "the next one"; free "the next one""#;
    on_both(&sandbox, script);
}

#[test]
fn a_process_that_keeps_the_namespace_does_not_keep_the_interface() {
    if !can_move() {
        return;
    }
    let sandbox = sandbox(&[("one", container(Some("one"), &[]))]);
    // As Onload's onload_cp_server does for 30 seconds. No file names the namespace then.
    let script = r#"
        make one || fail "$(cat /tmp/err)"
        ip netns exec one sleep 1000 & keeper=$!
        while [ "$(readlink /proc/$keeper/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do sleep 0.01; done
        ip netns del one
        gone one
        kill $keeper
        same keeper; free keeper"#;
    on_both(&sandbox, script);
}

#[test]
fn an_interface_that_a_container_moved_on_comes_back_from_there() {
    if !can_move() {
        return;
    }
    let sandbox = sandbox(&[("one", container(Some("one"), &[]))]);
    let script = r#"
        make one || fail "$(cat /tmp/err)"
        ip -n one link set ens1v0 name mine netns two
        gone one
        same "another namespace"; free "another namespace"
        # No process is in this one: a descriptor keeps it.
        ip netns add hidden
        make one || fail "$(cat /tmp/err)"
        ip -n one link set ens1v0 netns hidden
        exec 9< /run/netns/hidden
        ip netns del hidden
        gone one
        exec 9<&-
        same descriptor; free descriptor"#;
    on_both(&sandbox, script);
}

#[test]
fn what_a_container_left_on_it_in_another_namespace_is_gone_when_it_is_back() {
    if !can_move() {
        return;
    }
    let sandbox = sandbox(&[("one", container(Some("one"), &[]))]);
    let script = r#"
        # Of another interface, which has the same number in another namespace.
        ip -n wire link add other index $(ip -o link show ens1v0 | sed 's/:.*//') type bridge
        ip -n wire link add link other name mac7 type macvlan
        ip -n wire link set mac7 netns two
        leave() {
          make one || fail "$(cat /tmp/err)"
          ip -n one link add link ens1v0 name mac0 type macvlan mode private
          ip -n one link add link ens1v0 name mac1 type macvlan mode private
          ip -n one link set mac0 netns two
          # No process is in this one: a descriptor keeps it.
          ip netns add hidden
          exec 9< /run/netns/hidden
          ip -n one link set mac1 netns hidden
          ip netns del hidden
          nsenter --net=/proc/self/fd/9 ip link show mac1 >/dev/null || fail "no second macvlan"
        }
        stays() {
          ip -n two link show mac0 2>/dev/null && fail "$1: a macvlan is left on it"
          nsenter --net=/proc/self/fd/9 ip link show mac1 2>/dev/null && fail "$1: a second macvlan is left on it"
          ip -n two link show mac7 >/dev/null || fail "$1: that of another interface is gone"
        }
        leave; gone one
        same fetched; free fetched; stays fetched
        # The kernel has given it back.
        leave; ip -n one link set ens1v0 netns $$; gone one
        same "given back"; free "given back"; stays "given back""#;
    on_both(&sandbox, script);
}

#[test]
fn a_name_that_was_taken_meanwhile_is_waited_for_and_the_interface_is_home() {
    if !can_move() {
        return;
    }
    let sandbox = sandbox(&[("one", container(Some("one"), &[]))]);
    let script = r#"
        make one || fail "$(cat /tmp/err)"
        ip link add name ens1v0 type bridge
        gone one
        ip -d link show | grep -q 'ctk[0-9a-f]*@' || fail "not on the host"
        restore && fail "said to be back"
        restore | grep -q 'another interface has that name' || fail "not told"
        grep -q '"returning":true' /run/onload-ctk/@leases/netdev=ens1v0#0 || fail "not returning"
        make one && fail "given to the next one"
        grep -q 'another interface has that name' /tmp/err || fail "$(cat /tmp/err)"
        gone one
        ip link del ens1v0
        restore | grep -q 'is back' || fail "not restored"
        same taken; free taken"#;
    on_both(&sandbox, script);
}

#[test]
fn two_containers_that_name_one_interface_differently_at_once_do_not_both_get_it() {
    if !can_move() {
        return;
    }
    let by = |lease: &str, netns| {
        let options = ["--lease", lease, "--netdev", "ens1v0@0000:03:10.0"];
        moving::container(Some(netns), &stand_ins(), &options)
    };
    let sandbox =
        sandbox(&[("one", by("netdev:ens1v0", "one")), ("two", by("netdev:0000:03:10.0", "two"))]);
    let script = r#"
        for round in 1 2 3 4 5 6; do
          for n in one two; do
            $RUNTIME create -b /$n $ID-$n </dev/null >/tmp/out.$n 2>&1 && touch /tmp/made.$n & eval $n=$!
          done
          wait $one || true; wait $two || true
          made=$(ls /tmp | grep -c '^made' || true)
          [ $made = 1 ] || fail "$made have it: $(cat /tmp/out.one /tmp/out.two /tmp/hook.err)"
          n=one; [ -e /tmp/made.one ] || n=two
          ip -n $n link show ens1v0 >/dev/null || fail "$n has lost it: $(cat /tmp/hook.err)"
          rm /tmp/made.*; gone one; gone two
          same "round $round"; free "round $round"
        done"#;
    on_both(&sandbox, script);
}

#[test]
fn two_whose_names_a_container_swapped_both_have_their_own_again() {
    if !can_move() {
        return;
    }
    let both: Vec<&str> = "--lease netdev:ens1v1 --netdev ens1v1@0000:03:10.2".split(' ').collect();
    let sandbox = sandbox(&[("one", container(Some("one"), &both))]);
    let script = r#"
        second=$(as_it_is $((FIRST + 1)) ens1v1)
        swap() {
          make one || fail "$(cat /tmp/err)"
          i="ip -n one"
          $i link set ens1v0 down; $i link set ens1v1 down
          $i link set ens1v0 name x; $i link set ens1v1 name ens1v0; $i link set x name ens1v1
        }
        back() {
          same "$1"; free "$1"
          now=$(as_it_is $((FIRST + 1)) ens1v1)
          [ "$now" = "$second" ] || fail "$1: $second became $now"
        }
        swap; gone one; back fetched
        # The kernel has given them back.
        given_back() { for n in ens1v0 ens1v1; do ip -n one link set $n netns $$; done; }
        swap; given_back; gone one; back "given back"
        # And the engine is gone.
        swap; given_back
        mv /run/onload-ctk /run/away; gone one; mv /run/away /run/onload-ctk
        restore && fail "both at once"
        restore || fail "the other one"
        back restored"#;
    on_both(&sandbox, script);
}

#[test]
fn containers_of_one_namespace_share_it_as_the_first_asked_and_the_last_gives_it_back() {
    if !can_move() {
        return;
    }
    let asks = |more: &[&str]| container(Some("one"), more);
    let sandbox = sandbox(&[
        ("one", asks(&CLAIMED)),
        ("second", asks(&[])),
        ("third", asks(&CLAIMED)),
        ("fourth", asks(&["--address", "ens1v0=192.0.2.10/24"])),
        ("name", asks(&["--rename", "ens1v0=net2"])),
        ("mtu", asks(&["--mtu", "ens1v0=1400"])),
        ("address", asks(&["--address", "ens1v0=192.0.2.11/24"])),
        ("route", asks(&["--route", "ens1v0=203.0.113.0/24 via 192.0.2.1"])),
        ("other", container(Some("two"), &[])),
    ]);
    let script = r#"
        make one || fail "$(cat /tmp/err)"
        for n in second third fourth; do
          make $n || fail "$(cat /tmp/err)"
        done
        refused() { # CONTAINER WHAT
          make $1 && fail "$1: created"
          grep -q "netdev:ens1v0: another container has it too, and it is set up otherwise: $2;" /tmp/err || fail "$1: $(cat /tmp/err)"
          gone $1
        }
        refused name 'its name is \\*"net1\\*" and not net2'
        refused mtu 'its MTU is 1300 and not 1400'
        refused address 'it does not have the address 192.0.2.11/24'
        refused route 'the route 203.0.113.0/24 via 192.0.2.1 does not lead over it'
        make other && fail "given to another namespace"
        grep -q "in use by container $ID-one (process" /tmp/err || fail "$(cat /tmp/err)"
        gone other
        gone one; gone third; gone fourth
        ip -n one link show net1 >/dev/null || fail "taken from the second one"
        gone second
        same "the last one"; free "the last one"
        make other || fail "$(cat /tmp/err)"
        gone other
        same other; free other"#;
    on_both(&sandbox, script);
}

#[test]
fn what_must_not_move_is_refused_by_name_and_stays_as_it_is() {
    if !can_move() {
        return;
    }
    let gateway = "[netdev.ens1v0]\ngateway = \"198.51.100.1\"\n";
    let eth0 = container_with("eth0@0000:03:10.2", Some("one"), &[]);
    let sandbox = sandbox(&[
        ("one", container(Some("one"), &[])),
        ("host", container(None, &[])),
        ("eth0", eth0),
    ]);
    sandbox.allow(&[], gateway);
    let script = r#"
        refused() { # WHAT CONTAINER
          make ${2:-one} && fail "$1: created"
          grep -q "$1" /tmp/err || fail "$1: $(cat /tmp/err)"
          gone ${2:-one}
          ip link show altens1v0 | grep -q 02:00:00:00:10:01 || fail "$1: not on the host"
          free "$1"
        }
        refused "has this host's own network" host
        ip -n one link add name ens1v0 type bridge
        refused 'the container has an interface called \\*"ens1v0\\*" already'
        ip -n one link del ens1v0
        ip -n one link add name br0 type bridge
        ip -n one link property add dev br0 altname altens1v0
        refused 'the container has an interface called \\*"altens1v0\\*" already'
        ip -n one link del br0
        ip addr add 192.0.2.1/24 dev ens1v0
        refused 'in use on this host: it has the address 192.0.2.1/24'
        ip addr del 192.0.2.1/24 dev ens1v0
        # As FRR makes routes, where the kernel says their interfaces no more.
        echo 0 > /proc/sys/net/ipv4/nexthop_compat_mode
        ip link set ens1v0 up; ip -n wire link set wens1v0 up
        ip nexthop add id 30 dev ens1v0
        ip nexthop add id 31 group 30
        for route in "nhid 30" "nhid 31"; do
          ip route add default $route
          refused 'in use on this host: it carries the default route'
          ip route del default
        done
        ip -6 nexthop add id 32 dev ens1v0
        ip -6 route add 2001:db8:7::/64 nhid 32
        refused 'in use on this host: it has a route to 2001:db8:7::/64'
        ip link set ens1v0 down; ip -n wire link set wens1v0 down
        ip link add link ens1v0 name mac0 type macvlan
        refused 'in use on this host: .*mac0'
        ip link del mac0
        # As docker's networks of kind macvlan do.
        ip link add link ens1v0 name mac0 type macvlan
        ip link set mac0 netns two
        refused 'in use on this host: a macvlan in a network namespace of .*/run/netns/two'
        ip -n two link del mac0
        # By vDPA a virtual machine has it, by its verbs a program such as DPDK's.
        function=/sys/bus/pci/devices/0000:03:10.0
        mkdir -p /sys/bus/vdpa/devices $function/vdpa1
        ln -s $function/vdpa1 /sys/bus/vdpa/devices/vdpa1
        refused 'in use on this host: a virtual machine may use its function .*"vdpa dev del vdpa1'
        rm /sys/bus/vdpa/devices/vdpa1
        node=/dev/infiniband/uverbs7
        mkdir -p ${node%/*} $function/infiniband_verbs/uverbs7
        [ -e $node ] || mknod $node c 1 7
        sleep 1000 <$node >/dev/null 2>&1 & user=$!
        while ! ls -l /proc/$user/fd 2>/dev/null | grep -q uverbs7; do :; done
        refused "in use on this host: process $user (.*) has .*$node.* open"
        kill $user; wait $user 2>/dev/null || true
        # In another network namespace nobody has its packets by that.
        ip netns exec two sleep 1000 <$node >/dev/null 2>&1 & user=$!
        while ! ls -l /proc/$user/fd 2>/dev/null | grep -q uverbs7; do :; done
        ip link set ens1v0 name ens9
        refused 'is called \\*"ens9\\*" now'
        ip link set ens9 name ens1v0
        ip link property add dev ens1v0 altname eth0
        refused "one of its names is eth0, and engines call the container's own interface so"
        ip link property del dev ens1v0 altname eth0
        ip link set ens1v1 name eth0
        refused "engines call the container's own interface so" eth0
        same untouched
        # What fails after the move is taken back.
        refused 'setting the gateway 198.51.100.1 of interface ens1v0'
        kill $user; wait $user 2>/dev/null || true
        same "taken back""#;
    on_both(&sandbox, script);
}

/// A sysfs of the test's host, and what of it tells how packets come to queues.
const QUEUES: &str = r#"
mkdir -p /tmp/sys /sys/class/net /sys/devices
mount -t sysfs none /tmp/sys
for d in class/net devices; do mount --bind /tmp/sys/$d /sys/$d; done
cd /sys/class/net/ens1v0
echo 20000 > gro_flush_timeout
echo 1 > queues/rx-0/rps_cpus
cd /
queues() {
  d=/sys/class/net/ens1v0
  grep . $d/gro_flush_timeout $d/napi_defer_hard_irqs $d/queues/*/rps_cpus $d/queues/*/rps_flow_cnt
}
were=$(queues)
change() {
  ip netns exec one sh -e -c 'cd /sys/class/net/ens1v0
    echo 7 > gro_flush_timeout; echo 3 > napi_defer_hard_irqs
    echo 0 > queues/rx-0/rps_cpus; echo 64 > queues/rx-0/rps_flow_cnt'
}
"#;

#[test]
fn how_packets_come_to_its_queues_is_as_it_was_or_is_named() {
    let path = "/sys/class/net/lo/queues/rx-0/rps_flow_cnt";
    let has_rps = std::path::Path::new(path).exists();
    if !can_move() || !onload_test_needs::on_this_machine(has_rps, "the kernel has no RPS") {
        return;
    }
    let sandbox = sandbox(&[("one", container(Some("one"), &[]))]);
    let script = r#"
        make one || fail "$(cat /tmp/err)"
        change
        gone one
        same queues; free queues
        [ "$(queues)" = "$were" ] || fail "$were became $(queues)"
        # And where nothing can be written.
        make one || fail "$(cat /tmp/err)"
        change
        mount -o remount,bind,ro /sys/class/net; mount -o remount,bind,ro /sys/devices
        gone one
        grep -q '"left":"its gro_flush_timeout, its napi_defer_hard_irqs, its rps_cpus, its rps_flow_cnt"' \
          /run/onload-ctk/@leases/netdev=ens1v0#0 || fail "$(cat /run/onload-ctk/@leases/netdev=ens1v0#0)"
        make one && fail "given to the next one"
        grep -q 'restoring interface ens1v0 .*: its gro_flush_timeout, .* could not be restored' /tmp/err || fail "$(cat /tmp/err)"
        gone one
        mount -o remount,bind,rw /sys/class/net; mount -o remount,bind,rw /sys/devices
        restore | grep -q 'is back' || fail "not restored"
        same restored; free restored
        [ "$(queues)" = "$were" ] || fail "$were became $(queues)""#;
    on_both(&sandbox, &[QUEUES, script].concat());
}

/// The driver of a pair has what `threaded` is written to only while the interface is up, and only with GRO
/// (`ETHTOOL_SGRO`).
#[test]
fn what_a_driver_takes_only_while_the_interface_is_up_is_as_it_was_on_one_that_is_down() {
    let has_threads = std::path::Path::new("/sys/class/net/lo/threaded").exists();
    let why = "the kernel has no threads of NAPI";
    if !can_move()
        || !onload_test_needs::programs(&["python3"])
        || !onload_test_needs::on_this_machine(has_threads, why)
    {
        return;
    }
    let sandbox = sandbox(&[("one", container(Some("one"), &[]))]);
    let script = r#"
        mkdir -p /tmp/sys /tmp/theirs /sys/class/net /sys/devices
        mount -t sysfs none /tmp/sys
        for d in class/net devices; do mount --bind /tmp/sys/$d /sys/$d; done
        threaded=/sys/class/net/ens1v0/threaded
        [ "$(cat $threaded)" = 0 ] || fail "it is set"
        make one || fail "$(cat /tmp/err)"
        ip netns exec one sh -e -c 'mount -t sysfs none /tmp/theirs
          python3 -c "
import array, fcntl, socket, struct
on = array.array(\"I\", [0x2c, 1])
request = struct.pack(\"16sP8x\", b\"ens1v0\", on.buffer_info()[0])
fcntl.ioctl(socket.socket(), 0x8946, request)"
          ip link set ens1v0 down; ip link set ens1v0 up
          echo 1 > /tmp/theirs/class/net/ens1v0/threaded' || fail "not set"
        gone one; same threaded; free threaded
        [ "$(cat $threaded)" = 0 ] || fail "it stayed $(cat $threaded)""#;
    on_both(&sandbox, script);
}

/// Stand-ins for Onload's files: it does what it is told where the list names the interface.
const ONLOAD: &str = r#"
register=/sys/module/sfc_resource/afxdp/register
mkdir -p ${register%/*}; : > $register
mount -t tmpfs none /sys/kernel/debug
nic=/sys/kernel/debug/sfc_resource/nics/000_ens1v0
lists() {
  mkdir -p $nic; echo 02:00:00:00:10:01 > $nic/mac_addr; echo ens1v0 > $nic/net_dev; echo "4:0:0 => AF_XDP" > $nic/devtype
}
mkdir -p ${nic%/*}
told() { [ "$(cat $register)" = "$1" ] || fail "told $(cat $register), not $1"; : > $register; }
"#;

#[test]
fn onload_is_told_of_an_interface_before_the_program_starts_and_when_it_has_forgotten_it() {
    if !can_move() {
        return;
    }
    let sandbox = sandbox(&[("one", container(Some("one"), &[]))]);
    sandbox.allow(&[], "[netdev.ens1v0]\naf-xdp = true\n");
    let script = r#"
        make one && fail "created without Onload"
        grep -q 'registering interface ens1v0 with Onload for AF_XDP' /tmp/err || fail "$(cat /tmp/err)"
        gone one; told ens1v0; same "not taken"; free "not taken"
        lists
        make one || fail "$(cat /tmp/err)"
        told ens1v0
        grep -q '"onload":{"since":[1-9]' /run/onload-ctk/@leases/netdev=ens1v0#0 || fail "not in the lease"
        gone one; told ""; same registered; free registered
        # The modules were loaded anew.
        make one || fail "$(cat /tmp/err)"
        told ens1v0
        rm -r $nic
        gone one; told ens1v0
        grep -q '"left":"its registration with Onload for AF_XDP"' /run/onload-ctk/@leases/netdev=ens1v0#0 || fail "not named"
        lists
        restore | grep -q 'is back' || fail "not restored"
        told ""; same restored; free restored"#;
    on_both(&sandbox, &[ONLOAD, script].concat());
}

#[test]
fn without_flow_filters_it_has_one_channel_in_the_container_and_its_own_number_on_the_host() {
    if !can_move() {
        return;
    }
    let sandbox = sandbox(&[("one", container(Some("one"), &[]))]);
    sandbox.allow(&[], "[netdev.ens1v0]\naf-xdp = true\n");
    let script = r#"
        lists
        filters=/sys/module/sfc_resource/parameters/enable_af_xdp_flow_filters
        mkdir -p ${filters%/*}
        ip link del ens1v0
        ip -n wire link add index $FIRST name wens1v0 numrxqueues 4 numtxqueues 4 type veth \
          peer name ens1v0 netns $$ numrxqueues 4 numtxqueues 4
        ip link set ens1v0 address 02:00:00:00:10:01
        before=$(as_it_is $FIRST)
        channels() { "$@" ls /sys/class/net/ens1v0/queues | grep -c rx-; }
        for case in "0 1" "1 4"; do
          set -- $case
          echo $1 > $filters
          make one || fail "$(cat /tmp/err)"
          n=$(channels ip netns exec one)
          [ "$n" = $2 ] || fail "with filters $1 the container has $n channels"
          grep -q '"channels":\[4,4,0,0\]' /run/onload-ctk/@leases/netdev=ens1v0#0 || fail "not in the lease"
          gone one; same "filters $1"; free "filters $1"
          n=$(channels)
          [ "$n" = 4 ] || fail "with filters $1 the host has $n channels again"
        done"#;
    on_both(&sandbox, &[QUEUES, ONLOAD, script].concat());
}

#[test]
fn one_that_onload_has_registered_moves_as_it_is() {
    if !can_move() {
        return;
    }
    let sandbox = sandbox(&[("one", container(Some("one"), &[]))]);
    let script = r#"
        lists
        make one || fail "$(cat /tmp/err)"
        gone one; told ""; same registered; free registered
        # Without its modules there is nothing to register with.
        make one || fail "$(cat /tmp/err)"
        rm -r $nic $register
        gone one; same unloaded; free unloaded"#;
    on_both(&sandbox, &[ONLOAD, script].concat());
}

/// The hook as a specification names it: it knows of the stand-ins.
const BY_STAND_INS: &str = "/opt/onload/by-stand-ins";

/// Containers of the runtime `onload` whose configurations move the same interface, each in a namespace of its own.
fn moving_the_same() -> Sandbox {
    let moving = |netns: &str, name: &str| {
        let mut config = moving::container(Some(netns), &stand_ins(), &[]);
        config.as_object_mut().unwrap().remove("hooks");
        config["linux"]["netDevices"] = json!({name: {"name": "net0"}});
        config
    };
    let sandbox = sandbox(&[
        ("one", moving("one", "ens1v0")),
        ("two", moving("two", "ens1v0")),
        ("other", moving("two", "altens1v0")),
    ]);
    let hook = format!("#!/bin/sh\nexec /opt/onload/stand-ins {} \"$@\"\n", stand_ins());
    sandbox.file(BY_STAND_INS, hook);
    sandbox.chmod(BY_STAND_INS, 0o755);
    let hook = |stage: &str| {
        let lease = ["--lease", "netdev:ens1v0", "--netdev", "ens1v0@0000:03:10.0"];
        let args: Vec<&str> = ["onload-hook", stage].into_iter().chain(lease).collect();
        json!({"hookName": stage, "path": BY_STAND_INS, "args": args, "env": ["PATH=/usr/bin"]})
    };
    let hooks = json!([hook("createRuntime"), hook("poststop")]);
    let spec = json!({
        "cdiVersion": "0.3.0",
        "kind": "onload.dev/netdev",
        "devices": [{"name": "ens1v0", "containerEdits": {"hooks": hooks}}],
    });
    sandbox.file("/etc/cdi/onload.dev-netdev.json", spec.to_string());
    sandbox
}

#[test]
fn an_interface_that_configurations_move_has_one_holder_and_comes_back_as_it_was() {
    if !can_move() {
        return;
    }
    let script = r#"
        RUNTIME="WRAPPER ${RUNTIME#* }"
        make one || fail "$(cat /tmp/err)"
        ip -n one link show net0 | grep -q 'UP.*mtu 1400' || fail "$(ip -n one link)"
        ip link show ens1v0 2>/dev/null && fail "still on the host"
        grep -q "$ID-one" /run/onload-ctk/@leases/netdev=ens1v0#0 || fail "no lease"
        make two && fail "a second container has it too"
        grep -q "in use by container $ID-one" /tmp/err || fail "$(cat /tmp/err)"
        gone two
        ip -n one link show net0 >/dev/null || fail "taken from the first one"
        gone one; same "the first one's end"; free "the first one's end"
        make two || fail "$(cat /tmp/err)"
        ip -n two link show net0 >/dev/null || fail "$(ip -n two link)"
        gone two; same "the second one's end"; free "the second one's end"
        # By another name of it.
        make other || fail "$(cat /tmp/err)"
        grep -q "$ID-other" /run/onload-ctk/@leases/netdev=ens1v0#0 || fail "no lease by another name"
        gone other; same "another name"; free "another name""#.replace("WRAPPER", WRAPPER_THERE);
    for runtime in ["runc", "crun"] {
        let sandbox = moving_the_same();
        if runtime == "crun" {
            sandbox.allow(&[], "[runtime]\npath = \"/usr/bin/crun\"\n");
        }
        moving::on(&sandbox, runtime, &stand_ins(), DEVICES, &script);
    }
}
