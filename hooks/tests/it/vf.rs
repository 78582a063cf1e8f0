//! Virtual functions that are set up for containers and put back. A file stands in for what the driver of the physical
//! function has of each: a setting is there at once or refused, as drivers in the kernel do it. What one real driver does
//! with frames is tried in the guest (tests/machine, part vf-settings).

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::panic, reason = "a test")]

use crate::common::moving::{self, can_move, first, sandbox};
use crate::netdev;
use onload_test_needs as needs;
use serde_json::Value;

const VF: &str = "0000:81:10.0";
const WANTED: &str =
    "vlan=100;vlan-priority=3;spoof-check=true;trust=false;max-rate=500;link-state=enable";

const FUNCTION: &str = r#"
mkdir -p /tmp/vfs
vf() { # PF REFUSES, both as JSON
  printf '%s' "{\"pf\":$1,\"settings\":{\"vlan\":{\"id\":7,\"priority\":2,\"protocol\":\"802.1ad\"},\"mac\":\"00:00:00:00:00:00\",\"spoofCheck\":false,\"trust\":true,\"minRate\":10,\"maxRate\":0,\"linkState\":\"auto\"},\"refuses\":$2}" > /tmp/vfs/$VF
  was=$(cat /tmp/vfs/$VF)
}
put_back() { [ "$(cat /tmp/vfs/$VF)" = "$was" ] || fail "$1: $was
became
$(cat /tmp/vfs/$VF)"; }
is_set() { grep -q "$1" /tmp/vfs/$VF || fail "not $1: $(cat /tmp/vfs/$VF)"; }
lost() { # CONTAINER: its engine and its poststop are gone
  pid=$(pid $1)
  kill -9 $pid
  while ! grep -q '^State:.Z' /proc/$pid/status && [ -e /proc/$pid ]; do sleep 0.01; done
  while [ "$(ls /proc/$pid/task 2>/dev/null | /usr/bin/wc -l)" -gt 1 ]; do sleep 0.01; done
  rm -rf /run/${RUNTIME##*/}/$ID-$1
  rmdir $(sed -n 's/.*"cgroup":{"path":"\([^"]*\)".*/\1/p' /run/onload-ctk/@leases/*#0) 2>/dev/null || true
}
vf '"ens1f0"' '[]'
"#;

fn devices(vf: &str, more: &str) -> String {
    format!("VF={vf}\n{FUNCTION}\n{more}")
}

/// A container that gets the function as vfio device, on the host's network.
fn container(vf: Option<&str>, more: &[&str]) -> Value {
    let (lease, vf) = (format!("vfio:{VF}"), vf.map(|vf| format!("vfio:{VF}={vf}")));
    let mut options = vec!["--lease", &lease];
    options.extend(vf.iter().flat_map(|vf| ["--vf", vf]));
    options.extend(more);
    moving::container(None, STAND_INS, &options)
}

const STAND_INS: &str = "vfio vf=/tmp/vfs";
const CLAIM: [&str; 2] = ["--claim", "0d7e3c1a-5c0f-4c57-9a4e-2b1f8f0f8f11"];

#[test]
fn a_function_is_set_up_while_a_container_has_it_and_put_back_after_each_way_of_ending() {
    if !can_move() {
        return;
    }
    let sandbox = sandbox(&[("one", container(Some(WANTED), &[]))]);
    let script = r#"
        for end in exit kill delete; do
          make one || fail "$(cat /tmp/err)"
          is_set '"vlan":{"id":100,"priority":3,"protocol":"802.1q"}'
          is_set '"spoofCheck":true,"trust":false,"minRate":10,"maxRate":500,"linkState":"enable"'
          grep -q '"before":{"vlan":{"id":7' /run/onload-ctk/@leases/vfio=$VF#0 || fail "no lease"
          case $end in
            exit) $RUNTIME start $ID-one; $RUNTIME kill $ID-one KILL;;
            kill) kill -9 $(pid one);;
          esac
          gone one
          put_back $end; free $end
        done"#;
    moving::on_both(&sandbox, STAND_INS, &devices(VF, ""), script);
}

#[test]
fn whoever_finds_a_dead_holder_puts_the_function_back_before_it_is_given_again() {
    if !can_move() {
        return;
    }
    let sandbox = sandbox(&[
        ("one", container(Some(WANTED), &[])),
        ("plain", container(None, &[])),
        ("other", container(Some("vlan=200"), &[])),
    ]);
    let script = r#"
        make one || fail "$(cat /tmp/err)"
        lost one
        restore | grep -q "vfio:$VF is back" || fail "not restored"
        put_back "lease restore"; free "lease restore"
        make one || fail "$(cat /tmp/err)"
        lost one
        make plain || fail "$(cat /tmp/err)"
        put_back "one that sets nothing"
        gone plain; free plain
        make one || fail "$(cat /tmp/err)"
        lost one
        make other || fail "$(cat /tmp/err)"
        is_set '"vlan":{"id":200,"priority":0,"protocol":"802.1q"}'
        is_set '"maxRate":0,"linkState":"auto"'
        gone other; put_back "the next one"; free "the next one"
        # What the driver does not take back keeps the lease, and says why.
        make one || fail "$(cat /tmp/err)"
        sed -i 's/"refuses":\[\]/"refuses":["trust"]/' /tmp/vfs/$VF
        gone one
        make plain && fail "given as the last one left it"
        grep -q 'ens1f0 rejects trust on' /tmp/err || fail "$(cat /tmp/err)"
        restore && fail "restored"
        grep -q '"left":"what ens1f0 sets: trust on"' /run/onload-ctk/@leases/vfio=$VF#0 || fail "not said"
        is_set '"vlan":{"id":7'
        sed -i 's/"refuses":\["trust"\]/"refuses":[]/' /tmp/vfs/$VF
        make plain || fail "$(cat /tmp/err)"
        put_back "later"
        gone plain; free later
        # One that is gone has nothing of a container.
        make one || fail "$(cat /tmp/err)"
        rm /tmp/vfs/$VF
        gone one; free "no function"; vf '"ens1f0"' '[]'"#;
    moving::on_both(&sandbox, STAND_INS, &devices(VF, ""), script);
}

/// ixgbe turns the check off for a function that asks for a further address, and says that it is on.
#[test]
fn a_driver_is_told_the_spoof_check_of_each_tenant_although_it_reads_the_same() {
    if !can_move() {
        return;
    }
    let sandbox = sandbox(&[
        ("one", container(Some("spoof-check=true"), &[])),
        ("other", container(Some("max-rate=500"), &[])),
    ]);
    let script = r#"
        told() { [ "$(grep -c 'spoof-check on' /tmp/vfs/told)" = $1 ] || fail "$2: $(cat /tmp/vfs/told)"; }
        sed -i 's/"spoofCheck":false/"spoofCheck":true/' /tmp/vfs/$VF; was=$(cat /tmp/vfs/$VF)
        : > /tmp/vfs/told
        make one || fail "$(cat /tmp/err)"; told 1 given
        gone one; put_back one; told 2 "put back"
        make one || fail "$(cat /tmp/err)"; told 3 "given again"
        gone one; told 4 "put back again"
        # Whoever says nothing of it leaves it alone.
        make other || fail "$(cat /tmp/err)"; gone other; told 4 other
        free other"#;
    moving::on_both(&sandbox, STAND_INS, &devices(VF, ""), script);
}

#[test]
fn what_cannot_be_set_up_is_refused_before_anything_of_it_is() {
    if !can_move() {
        return;
    }
    let sandbox = sandbox(&[
        ("one", container(Some(WANTED), &[])),
        ("open", container(Some("vlans=100-199"), &[])),
    ]);
    let script = r#"
        refused() { make $1 && fail "given: $2"; gone $1
          grep -q "$2" /tmp/err || fail "$2: $(cat /tmp/err)"; put_back "$2"; free "$2"; }
        vf '"ens1f0"' '["rate"]'
        refused one "vfio $VF: ens1f0, the physical function of $VF, refuses rate 10 to 500 Mbit/s: Operation not supported"
        vf null '[]'
        refused one "vfio $VF: its physical function has no interface in this host's network namespace"
        vf '"ens1f0"' '["mac"]'
        sed -i 's/"trust":true,//' /tmp/vfs/$VF; was=$(cat /tmp/vfs/$VF)
        refused one "the driver of ens1f0, its physical function, does not report the trust of $VF"
        vf '"ens1f0"' '[]'
        refused open "choose a VLAN from 100-199: add the annotation onload.dev/vlan"
        rm /tmp/vfs/$VF
        make one && fail "given"; gone one; free "no virtual function"
        grep -q "PCI function $VF is not a virtual function" /tmp/err || fail "$(cat /tmp/err)""#;
    moving::on_both(&sandbox, STAND_INS, &devices(VF, ""), script);
}

#[test]
fn a_function_that_is_open_still_is_not_put_back() {
    if !can_move() {
        return;
    }
    let sandbox =
        sandbox(&[("one", container(Some(WANTED), &[])), ("plain", container(None, &[]))]);
    // Its node is that of another device, which a process can open, and no other test does. The container removed its own.
    let script = r#"
        node=/tmp/vfs/dev/vfio/devices/vfio7
        mkdir -p ${node%/*} /tmp/vfs/sys/bus/pci/devices/$VF/vfio-dev/vfio7
        [ -e $node ] || mknod $node c 1 8
        make one || fail "$(cat /tmp/err)"
        mknod /tmp/own c 1 8; exec 8</tmp/own; rm /tmp/own
        sleep 1000 >/dev/null 2>&1 & user=$!
        exec 8<&-
        gone one
        is_set '"vlan":{"id":100'
        make plain && fail "given while another has it open"
        grep -q "it is still in use by process $user" /tmp/err || fail "$(cat /tmp/err)"
        gone plain
        restore && fail "restored"
        is_set '"vlan":{"id":100'
        kill $user; wait $user || true
        restore | grep -q "vfio:$VF is back" || fail "not restored"
        put_back closed; free closed"#;
    moving::on_both(&sandbox, STAND_INS, &devices(VF, ""), script);
}

#[test]
fn containers_of_a_claim_have_it_alike_until_the_last_has_ended() {
    if !can_move() {
        return;
    }
    let sandbox = sandbox(&[
        ("one", container(Some(WANTED), &CLAIM)),
        ("two", container(Some(WANTED), &CLAIM)),
        ("other", container(Some("vlan=200"), &CLAIM)),
        ("alone", container(Some(WANTED), &[])),
    ]);
    let script = r#"
        make one || fail "$(cat /tmp/err)"
        make two || fail "$(cat /tmp/err)"
        make other && fail "two VLANs at once"; gone other
        grep -q "another container has it too" /tmp/err || fail "$(cat /tmp/err)"
        make alone && fail "held by one and by another"; gone alone
        grep -q "in use by container" /tmp/err || fail "$(cat /tmp/err)"
        gone one
        is_set '"vlan":{"id":100'
        gone two
        put_back two; free two"#;
    moving::on_both(&sandbox, STAND_INS, &devices(VF, ""), script);
}

/// A container of a claim with a function: the hook of the claim comes before the device's own, which is told what the
/// operator says.
fn of_claim(claim: &str, own: &str) -> Value {
    let mut both = container(Some(claim), &CLAIM);
    let own = container(Some(own), &[]);
    for stage in ["createRuntime", "poststop"] {
        let hooks = both["hooks"][stage].as_array_mut().unwrap();
        hooks.push(own["hooks"][stage][0].clone());
    }
    both
}

#[test]
fn a_claim_chooses_for_its_containers_and_the_hook_of_the_device_leaves_it_so() {
    if !can_move() {
        return;
    }
    let open = "vlans=100-199;trust=false";
    let mut swapped = of_claim("vlan=150;vlans=100-199", "vlan=100;vlans=100-199");
    for stage in ["createRuntime", "poststop"] {
        swapped["hooks"][stage].as_array_mut().unwrap().reverse();
    }
    let chosen = "vlan=150;vlans=100-199;trust=false";
    let sandbox = sandbox(&[
        ("one", of_claim(chosen, open)),
        ("two", of_claim(chosen, open)),
        ("other", of_claim("vlan=160;vlans=100-199;trust=false", open)),
        ("alone", container(Some(chosen), &[])),
        ("swapped", swapped),
    ]);
    let script = r#"
        make one || fail "$(cat /tmp/err)"
        is_set '"vlan":{"id":150,"priority":0,"protocol":"802.1q"}'; is_set '"trust":false'
        make two || fail "$(cat /tmp/err)"
        make other && fail "two VLANs at once"; gone other
        grep -q "another container has it too" /tmp/err || fail "$(cat /tmp/err)"
        make alone && fail "held by a claim and by another"; gone alone
        grep -q "in use by container" /tmp/err || fail "$(cat /tmp/err)"
        gone one
        is_set '"vlan":{"id":150'
        gone two
        put_back two; free two
        make one || fail "$(cat /tmp/err)"
        lost one
        make two || fail "$(cat /tmp/err)"
        is_set '"vlan":{"id":150'
        gone two; put_back lost; free lost
        # Nothing but the claim's own hook sets up what the operator does not say.
        make swapped && fail "set up twice"; gone swapped
        # crun runs no poststop for one that it did not create.
        restore
        put_back swapped; free swapped"#;
    moving::on_both(&sandbox, STAND_INS, &devices(VF, ""), script);
}

const INTERFACE: &str = "0000:03:10.0";

fn interfaces() -> String {
    format!("netdev {}={INTERFACE},vf=/tmp/vfs", first())
}

#[test]
fn an_interface_takes_the_address_and_vlan_of_its_function_along_and_has_its_own_again() {
    if !can_move() {
        return;
    }
    let vf = "netdev:ens1v0=vlan=100;mac=02:00:00:00:77:01;spoof-check=true";
    let options = ["--lease", "netdev:ens1v0", "--netdev", "ens1v0@0000:03:10.0", "--vf", vf];
    let one = moving::container(Some("one"), &interfaces(), &options);
    let sandbox = sandbox(&[("one", one)]);
    let script = r#"
        for end in delete lost; do
          make one || fail "$(cat /tmp/err)"
          is_set '"vlan":{"id":100'; is_set '"mac":"02:00:00:00:77:01","spoofCheck":true'
          ip -n one link show ens1v0 | grep -q '02:00:00:00:77:01' || fail "not its address"
          ip -n one link show ens1v0 | grep -q 'UP' || fail "not up"
          case $end in
            delete) gone one;;
            lost) lost one; restore | grep -q 'netdev:ens1v0 is back' || fail "not restored";;
          esac
          same $end; put_back $end; free $end
        done
        # It does not move where its function cannot be set up.
        vf '"ens1f0"' '["spoof-check"]'
        make one && fail "given"; gone one
        grep -q 'interface ens1v0: ens1f0, the physical function of 0000:03:10.0, refuses spoof-check on' /tmp/err || fail "$(cat /tmp/err)"
        same refused; put_back refused; free refused"#;
    let devices = devices(INTERFACE, netdev::DEVICES);
    moving::on_both(&sandbox, &interfaces(), &devices, script);
}

/// Kills the hook that gives the device, and then the one that takes it back, at each of these system calls, or at all. The
/// next container, which sets up nothing, has to find the function as it was.
fn killed_everywhere(
    stand_ins: &str,
    devices: &str,
    arguments: [&str; 2],
    same: &str,
    calls: &str,
) {
    let [lease, options] = arguments;
    if !(can_move() && needs::programs(&["strace"])) {
        return;
    }
    let sandbox = sandbox(&[("one", container(None, &[]))]);
    let script = format!(
        r#"
        hook="/opt/onload/stand-ins $STAND_INS"
        lease='--lease {lease}' options='{options}'
        state() {{ printf '{{"ociVersion":"1.0.2","id":"%s","status":"creating","pid":%s,"bundle":"/one"}}' $1 $2; }}
        init() {{
            ip netns exec one sleep 1000 >/dev/null 2>&1 & init=$!
            while [ "$(readlink /proc/$init/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do sleep 0.01; done
        }}
        end() {{ kill -9 $1; wait $1 2>/dev/null || true; }}
        once() {{ # AT STAGE [OPTION OF STRACE]…
            at=$1 stage=$2; shift 2
            first= last=
            case $stage in
              createRuntime) first="strace -f -qq -o /tmp/trace $*";;
              poststop) last="strace -f -qq -o /tmp/trace $*";;
            esac
            status=0
            init; one=$init
            state one $one | $first $hook createRuntime $lease $options 2>/tmp/err || status=$?
            end $one
            state one 0 | $last $hook poststop $lease $options 2>/tmp/err2 || status=$?
            init; two=$init
            state two $two | $hook createRuntime $lease 2>/tmp/err3 || {{ fail "lost at $at: $(cat /tmp/err3)"; }}
            put_back "$at"
            end $two
            state two 0 | $hook poststop $lease || fail "not ended at $at"
            {same}
            free "$at"
            return $status
        }}
        killed=0
        for stage in createRuntime poststop; do
            once plain $stage || fail "$(cat /tmp/err /tmp/err2)"
            calls='{calls}'
            [ -n "$calls" ] || calls=$(sed -n 's/^[0-9]* *\([a-z_0-9]*\)(.*/\1/p' /tmp/trace | sort -u)
            for call in $calls; do
                n=1
                until once "$stage, $call $n" $stage -e "inject=$call:signal=KILL:when=$n"; do
                    n=$((n+1)) killed=$((killed+1))
                done
            done
        done
        echo "killed at $killed system calls""#
    );
    let output_text = moving::on(&sandbox, "runc", stand_ins, devices, &script);
    println!("{output_text}");
    let mut words = output_text.split_whitespace();
    let killed: u32 = words.find_map(|word| word.parse().ok()).unwrap();
    assert!(killed >= 40, "{output_text}");
}

#[test]
fn a_hook_that_is_killed_at_any_system_call_leaves_a_function_that_is_put_back() {
    let options = format!("--vf vfio:{VF}={WANTED}");
    let lease = format!("vfio:{VF}");
    killed_everywhere(STAND_INS, &devices(VF, ""), [&lease, &options], ":", "");
}

/// At those that change something; a move makes some hundred others.
#[test]
fn a_hook_that_is_killed_while_it_moves_an_interface_leaves_its_function_put_back() {
    let options =
        format!("--netdev ens1v0@{INTERFACE} --vf netdev:ens1v0=vlan=100;mac=02:00:00:00:77:01");
    let devices = devices(INTERFACE, netdev::DEVICES);
    killed_everywhere(
        &interfaces(),
        &devices,
        ["netdev:ens1v0", &options],
        "same \"$at\"",
        "sendto write renameat2 setns",
    );
}
