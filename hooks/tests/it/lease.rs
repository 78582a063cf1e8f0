//! Devices that one container has at a time: claimed by the hook of a specification, by annotation, and
//! given back however a container ends.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use crate::common::{
    HOOK_THERE, Sandbox, WRAPPER_THERE, config, has_runc, skipped, stderr, stdout, unique,
};
use crate::pools::hook;
use onload_test_needs as needs;
use serde_json::{Value, json};

const LEASE: &str = "/run/onload-ctk/@leases/rdma=rxe1#0";

/// Whether ends of processes can be seen here: in another PID namespace than the first nobody may call
/// a holder dead.
pub(crate) fn sees_ends() -> bool {
    let own = std::fs::read_link("/proc/self/ns/pid").unwrap();
    let sees = own.to_str() == Some("pid:[4026531836]");
    if !sees {
        skipped("telling that a holder has ended needs the initial PID namespace");
    }
    sees && has_runc()
}

/// A container as an engine makes it of a CDI device that is leased; it waits until it is told to end.
fn leasing() -> Value {
    let hook = |stage: &str| {
        json!([{"path": HOOK_THERE, "args": ["onload-hook", stage, "--lease", "rdma:rxe1"],
            "env": ["PATH=/usr/bin"], "timeout": 10}])
    };
    let mut config = config(&json!({}), "while :; do read -r x < /proc/loadavg; done");
    config["hooks"] = json!({"createRuntime": hook("createRuntime"), "poststop": hook("poststop")});
    config
}

/// A host where one container may have an HCA.
fn host() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.allow(&["rdma"], "[leases]\nshare = { rdma = 1 }");
    sandbox
}

/// A sandbox with bundles `/one` and `/two` of the same configuration.
fn two_bundles(config: &Value) -> Sandbox {
    let sandbox = host();
    for bundle in ["/one", "/two"] {
        sandbox.root_file_system(&format!("{bundle}/rootfs"));
        sandbox.file(&format!("{bundle}/config.json"), serde_json::to_vec(config).unwrap());
    }
    sandbox
}

/// Two containers want a device, the first ends, and the second tries again; `runtime` makes them.
fn one_after_the_other(sandbox: &Sandbox, runtime: &str, name: &str) {
    let (one, two) = (unique(&format!("{name}-1")), unique(&format!("{name}-2")));
    let script = format!(
        "r='{runtime} --root /run/runc'
         $r create -b /one {one} </dev/null >/dev/null 2>/tmp/err || {{ cat /tmp/err >&2; exit 10; }}
         $r create -b /two {two} </dev/null >/dev/null 2>/tmp/err && exit 11
         cat /tmp/err; $r delete --force {two} 2>/dev/null
         grep -q '\"container\":\"{one}\"' '{LEASE}' || exit 12
         $r delete --force {one} || exit 13
         test -e '{LEASE}' && exit 14
         $r create -b /two {two} </dev/null >/dev/null 2>/tmp/err || {{ cat /tmp/err >&2; exit 15; }}
         grep -q '\"container\":\"{two}\"' '{LEASE}' || exit 16
         $r delete --force {two} || exit 17
         ls -A /run/onload-ctk/@leases"
    );
    let output = sandbox.script(&script, b"");
    let (out, err) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(0), "{out} {err}");
    assert!(out.contains(&format!("rdma:rxe1: in use by container {one} (process ")), "{out}");
    assert!(out.ends_with("\n.lock\n"), "{out}");
}

#[test]
fn a_device_of_one_s_own_is_refused_to_a_second_container_until_the_first_ends() {
    if has_runc() {
        one_after_the_other(&two_bundles(&leasing()), "runc", "cdi");
    }
}

const DRAINED: &str =
    r#"{"version":1,"drained":[{"class":"rdma","name":"rxe1","since":0,"reason":"new firmware"}]}"#;
const WHY: &str = "drained since 1970-01-01T00:00:00Z: new firmware; \"onload-ctk undrain rdma=rxe1\" offers it again";

#[test]
fn a_drained_device_stays_with_its_container_and_goes_to_none_that_was_made_before() {
    if !has_runc() {
        return;
    }
    let sandbox = two_bundles(&leasing());
    let (one, two) = (unique("drain-1"), unique("drain-2"));
    let script = format!(
        "r='runc --root /run/runc'
         make() {{ $r create -b $1 $2 </dev/null >/dev/null 2>/tmp/err; }}
         make /one {one} || {{ cat /tmp/err >&2; exit 10; }}
         echo '{DRAINED}' >/etc/onload-ctk/drain.json
         $r start {one} || exit 11
         $r delete --force {one} || exit 12
         test -e '{LEASE}' && exit 13
         make /two {two} && exit 14
         cat /tmp/err; $r delete --force {two} 2>/dev/null
         rm /etc/onload-ctk/drain.json
         make /two {two} || {{ cat /tmp/err >&2; exit 15; }}
         $r delete --force {two} || exit 16
         ls -A /run/onload-ctk/@leases"
    );
    let output = sandbox.script(&script, b"");
    let (out, err) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(0), "{out} {err}");
    let unquoted = out.replace('\\', "");
    assert!(unquoted.contains(&format!("rdma:rxe1: it is {WHY}")), "{out}");
    assert!(out.ends_with("\n.lock\n"), "{out}");
}

#[test]
fn by_annotation_a_drained_device_is_refused_with_since_when_and_why() {
    if !has_runc() {
        return;
    }
    let sandbox = two_bundles(&config(&json!({"onload.dev/rdma": "rxe1"}), "true"));
    let spec = json!({"cdiVersion": "0.3.0", "kind": "onload.dev/rdma", "devices": [{"name": "rxe0",
        "containerEdits": {"deviceNodes": [{"path": "/dev/infiniband/uverbs0"}]}}]});
    sandbox.file("/run/cdi/onload.dev-rdma.json", spec.to_string());
    sandbox.file("/etc/onload-ctk/drain.json", DRAINED);
    let id = unique("drained");
    let script = format!("{WRAPPER_THERE} --root /run/runc create -b /one {id} </dev/null");
    let output = sandbox.script(&script, b"");
    assert_ne!(output.status.code(), Some(0));
    let message = stderr(&output);
    let wanted = format!("annotation \"onload.dev/rdma\": rdma \"rxe1\" is {WHY}");
    assert!(message.contains(&wanted), "{message}");
}

/// A container as an engine makes it for a pod whose claim has the device: the hook of the claim, then the device's
/// own.
fn leasing_for(claim: &str) -> Value {
    let hook = |stage: &str, more: &[&str]| {
        let args: Vec<&str> =
            ["onload-hook", stage, "--lease", "rdma:rxe1"].iter().chain(more).copied().collect();
        json!({"path": HOOK_THERE, "args": args, "env": ["PATH=/usr/bin"], "timeout": 10})
    };
    let hooks = |stage: &str| json!([hook(stage, &["--claim", claim]), hook(stage, &[])]);
    let mut config = leasing();
    config["hooks"] =
        json!({"createRuntime": hooks("createRuntime"), "poststop": hooks("poststop")});
    config
}

#[test]
fn containers_of_one_claim_share_a_device_and_others_wait_for_the_last() {
    if !has_runc() {
        return;
    }
    let sandbox = two_bundles(&leasing_for("u1"));
    sandbox.root_file_system("/three/rootfs");
    let of_another = serde_json::to_vec(&leasing_for("u2")).unwrap();
    sandbox.file("/three/config.json", of_another);
    let [one, two, three] = [1, 2, 3].map(|at| unique(&format!("claim-{at}")));
    let script = format!(
        "r='runc --root /run/runc'
         make() {{ $r create -b $1 $2 </dev/null >/dev/null 2>/tmp/err; }}
         make /one {one} || {{ cat /tmp/err >&2; exit 10; }}
         make /two {two} || {{ cat /tmp/err >&2; exit 11; }}
         ls /run/onload-ctk/@leases
         make /three {three} && exit 12
         cat /tmp/err; $r delete --force {three} 2>/dev/null
         $r delete --force {one} || exit 13
         make /three {three} && exit 14
         $r delete --force {three} 2>/dev/null
         $r delete --force {two} || exit 15
         make /three {three} || {{ cat /tmp/err >&2; exit 16; }}
         $r delete --force {three} || exit 17
         ls -A /run/onload-ctk/@leases"
    );
    let output = sandbox.script(&script, b"");
    let (out, err) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(0), "{out} {err}");
    assert!(out.starts_with("rdma=rxe1#0\nrdma=rxe1#1\n"), "{out}");
    assert!(out.contains(&format!("rdma:rxe1: in use by container {one} (process ")), "{out}");
    assert!(out.contains(" of claim u1 since "), "{out}");
    assert!(out.ends_with("\n.lock\n"), "{out}");
}

/// Runs the hook for two containers, one after the other, each with a process that locks 64 KiB at most. It prints how each
/// ended, the leases after that, and how much the second process may lock.
fn hooked(one: &str, two: &str) -> String {
    let script = format!(
        r#"mkdir /b
         run() {{
             (ulimit -S -l 64; exec sleep 100) & pid=$!
             id=$1; shift
             printf '{{"ociVersion":"1.0.2","id":"%s","status":"creating","pid":%s,"bundle":"/b"}}' $id $pid |
                 {HOOK_THERE} createRuntime "$@" && echo done || echo refused
             pids="$pids $pid"
         }}
         run c1 {one}; run c2 {two}
         ls /run/onload-ctk/@leases
         sed -n 's/^Max locked memory *//p' /proc/$pid/limits
         kill $pids"#
    );
    let output = host().script(&script, b"");
    println!("{}", stderr(&output));
    stdout(&output)
}

/// The kernel gives the number of a group's node anew when its functions have left vfio, and what a container may open goes
/// by the number.
#[test]
fn a_function_with_a_number_that_another_container_may_open_is_refused_until_that_ends() {
    if !has_runc() {
        return;
    }
    let sandbox = host();
    for (bundle, function) in [("/one", "0000:81:10.0"), ("/two", "0000:81:10.1")] {
        sandbox.root_file_system(&format!("{bundle}/rootfs"));
        let config = leasing().to_string().replace("rdma:rxe1", &format!("vfio:{function}"));
        sandbox.file(&format!("{bundle}/config.json"), config);
    }
    // Of a pool a container gets another member.
    let members = ["0000:81:10.1", "0000:81:10.2"];
    let mut devices =
        Vec::from(members.map(
            |name| json!({"name": name, "containerEdits": {"env": [format!("MEMBER={name}")]}}),
        ));
    devices.push(json!({"name": "any",
        "annotations": {"onload.dev/pool-members": members.join(" "), "onload.dev/pool-share": "1"},
        "containerEdits": {"hooks": [hook("createRuntime", &["--take", "vfio:any"])]}}));
    let spec = json!({"cdiVersion": "0.6.0", "kind": "onload.dev/vfio", "devices": devices});
    sandbox.file("/run/cdi/onload.dev-vfio.json", spec.to_string());
    sandbox.root_file_system("/three/rootfs");
    let pool =
        config(&json!({"onload.dev/vfio": "any"}), "while :; do read -r x < /proc/loadavg; done");
    sandbox.file("/three/config.json", pool.to_string());
    sandbox.allow(&["vfio"], "[leases]\nshare = { rdma = 1 }");
    let (one, two, three) = (unique("number-1"), unique("number-2"), unique("number-3"));
    let script = format!(
        "r='runc --root /run/runc'
         make() {{ $r create -b $1 $2 </dev/null >/dev/null 2>/tmp/err; }}
         group() {{ # FUNCTION GROUP NUMBER
             function=/sys/bus/pci/devices/$1
             mkdir -p /sys/kernel-groups/$2/devices/$1 $function /sys/class/vfio/$2
             ln -sfn /sys/kernel-groups/$2 $function/iommu_group
             echo $3 >/sys/class/vfio/$2/dev
         }}
         group 0000:81:10.0 15 241:0
         make /one {one} || {{ cat /tmp/err >&2; exit 10; }}
         grep -q '\"nodes\":\"241:0\"' /run/onload-ctk/@leases/vfio=0000:81:10.0#0 || exit 11
         group 0000:81:10.0 15 241:1
         group 0000:81:10.1 16 241:0
         make /two {two} && exit 12
         cat /tmp/err; $r delete --force {two} 2>/dev/null
         test -e /run/onload-ctk/@leases/vfio=0000:81:10.1#0 && exit 13
         w='{WRAPPER_THERE} --root /run/runc'
         $w create -b /three {three} </dev/null >/dev/null 2>/tmp/err || {{ cat /tmp/err >&2; exit 17; }}
         ls /run/onload-ctk/@leases | grep 81:10.2
         $w delete --force {three} || exit 18
         $r delete --force {one} || exit 14
         make /two {two} || {{ cat /tmp/err >&2; exit 15; }}
         $r delete --force {two} || exit 16
         ls -A /run/onload-ctk/@leases"
    );
    let output = sandbox.script(&script, b"");
    let (out, err) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(0), "{out} {err}");
    assert!(
        out.contains(&format!(
            "vfio:0000:81:10.1: its node may be opened by container {one} (process "
        )),
        "{out}"
    );
    assert!(out.contains("\nvfio=0000:81:10.2#0\n"), "{out}");
    assert!(out.ends_with("\n.lock\n"), "{out}");
}

#[test]
fn a_hook_that_fails_after_it_leased_a_device_leaves_no_lease() {
    if !needs::mount_namespace("entering a sandbox") {
        return;
    }
    let (lease, no_pool) = ("--lease rdma:rxe1", "--take rdma:none");
    let output_text = hooked(&format!("{lease} {no_pool}"), "");
    assert!(output_text.starts_with("refused\ndone\n65536 "), "{output_text}");
    let output_text = hooked(&format!("{lease} {no_pool}"), lease);
    assert!(output_text.starts_with("refused\ndone\nrdma=rxe1#0\n"), "{output_text}");
}

#[test]
fn a_container_that_is_refused_a_device_keeps_its_limits() {
    if !needs::mount_namespace("entering a sandbox") {
        return;
    }
    let both = "--memlock unlimited --lease rdma:rxe1";
    let output_text = hooked("", both);
    let raised = output_text.strip_prefix("done\ndone\nrdma=rxe1#0\n");
    assert!(raised.is_some_and(|limit| !limit.starts_with("65536 ")), "{output_text}");
    let output_text = hooked(both, both);
    assert!(output_text.starts_with("done\nrefused\nrdma=rxe1#0\n65536 "), "{output_text}");
}

/// The wrapper puts the hooks of the specification into config.json.
#[test]
fn a_device_of_one_s_own_by_annotation_is_leased_too() {
    if !has_runc() {
        return;
    }
    let annotated =
        config(&json!({"onload.dev/rdma": "rxe1"}), "while :; do read -r x < /proc/loadavg; done");
    let sandbox = two_bundles(&annotated);
    let hook = |stage: &str| {
        json!({"hookName": stage, "path": HOOK_THERE, "args": ["onload-hook", stage, "--lease", "rdma:rxe1"],
            "env": ["PATH=/usr/bin"], "timeout": 10})
    };
    let spec = json!({"cdiVersion": "0.3.0", "kind": "onload.dev/rdma", "devices": [{"name": "rxe1",
        "containerEdits": {"deviceNodes": [{"path": "/dev/infiniband/uverbs1", "permissions": "rw"}],
            "hooks": [hook("createRuntime"), hook("poststop")]}}]});
    sandbox.file("/run/cdi/onload.dev-rdma.json", spec.to_string());
    one_after_the_other(&sandbox, WRAPPER_THERE, "wrapper");
}

#[test]
fn a_holder_that_was_killed_with_everything_of_its_engine_is_found_out_by_the_next() {
    if !sees_ends() {
        return;
    }
    let sandbox = two_bundles(&leasing());
    let (one, two) = (unique("killed-1"), unique("killed-2"));
    let script = format!(
        "r='runc --root /run/runc'
         $r create --pid-file /tmp/pid -b /one {one} </dev/null >/dev/null 2>&1 || exit 10
         kill -9 $(cat /tmp/pid)
         i=0; while $r state {one} | grep -q '\"created\"' && test $i -lt 100; do sleep 0.1; i=$((i+1)); done
         $r create -b /two {two} </dev/null >/dev/null 2>/tmp/err || {{ cat /tmp/err >&2; exit 11; }}
         $r delete --force {one} || exit 12
         grep -q '\"container\":\"{two}\"' '{LEASE}' || exit 13
         $r delete --force {two} || exit 14
         ls -A /run/onload-ctk/@leases"
    );
    let output = sandbox.script(&script, b"");
    assert_eq!(output.status.code(), Some(0), "{} {}", stdout(&output), stderr(&output));
    assert_eq!(stdout(&output), ".lock\n");
}

#[test]
fn of_containers_that_start_at_once_one_gets_the_device() {
    if !has_runc() {
        return;
    }
    let sandbox = two_bundles(&leasing());
    let id = unique("race");
    let script = format!(
        "r='runc --root /run/runc'
         for n in 1 2 3 4 5 6 7 8; do
             mkdir /b$n; \
         cp /one/config.json /b$n; mkdir /b$n/rootfs; cp -a /one/rootfs/. /b$n/rootfs
         \
         done
         for n in 1 2 3 4 5 6 7 8; do
             ( $r create -b /b$n {id}-$n \
         </dev/null >/dev/null 2>/tmp/err$n && echo started ) &
         done
         wait
         \
         cat /tmp/err? | grep -c 'rdma:rxe1: in use by container {id}-'
         for n in 1 2 3 4 \
         5 6 7 8; do $r delete --force {id}-$n 2>/dev/null; done
         ls -A \
         /run/onload-ctk/@leases"
    );
    let output = sandbox.script(&script, b"");
    assert_eq!(stdout(&output), "started\n7\n.lock\n", "{}", stderr(&output));
}

/// After a kill at any of its system calls the hook has lost nothing: the next one claims the device.
#[test]
fn a_hook_that_is_killed_at_any_system_call_leaves_the_device_to_the_next() {
    if !sees_ends() {
        return;
    }
    let sandbox = host();
    sandbox.mkdir("/bundle");
    // strace counts the calls of each name apart, so every name is killed at its first call, its second,
    // until a run has no further one. A `sleep` stands for a container's init; the shell waits for it, so
    // that it is gone, and no zombie, when the next one claims.
    let script = format!(
        r#"state() {{ printf '{{"ociVersion":"1.0.2","id":"%s","status":"creating","pid":%s,"bundle":"/bundle"}}' "$1" "$2"; }}
         hook="{HOOK_THERE} createRuntime --lease rdma:rxe1"
         once() {{
             sleep 1000 >/dev/null 2>&1 & first=$!
             state one $first | strace -f -qq -o /tmp/trace $1 $hook
             status=$?
             kill -9 $first; wait $first 2>/dev/null
             sleep 1000 >/dev/null 2>&1 & second=$!
             state two $second | $hook || {{ echo "lost at $1"; exit 1; }}
             grep -q '"container":"two"' '{LEASE}' || {{ echo "not given at $1"; exit 1; }}
             kill -9 $second; wait $second 2>/dev/null
             test "$(ls -A /run/onload-ctk/@leases)" = "$(printf '.lock\nrdma=rxe1#0')" || {{ ls -A /run/onload-ctk/@leases; exit 1; }}
             return $status
         }}
         once || exit 1
         calls=$(sed -n 's/^[0-9]* *\([a-z_0-9]*\)(.*/\1/p' /tmp/trace | sort -u)
         killed=0
         # The first claim after a boot makes the directories; a later one finds them, and a lease to take over.
         for before in 'rm -rf /run/onload-ctk' true; do
             for call in $calls; do
                 n=1
                 until $before; once "-e inject=$call:signal=KILL:when=$n"; do
                     n=$((n+1)) killed=$((killed+1))
                 done
             done
         done
         echo "killed at $killed system calls""#
    );
    let output = sandbox.script(&script, b"");
    let output_text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{output_text} {}", stderr(&output));
    println!("{output_text}");
    let calls = output_text.split_whitespace().find_map(|word| word.parse::<u32>().ok());
    assert!(calls.is_some_and(|calls| calls >= 20), "{output_text}");
}

#[test]
fn a_container_that_has_no_init_is_refused_a_lease() {
    if !has_runc() {
        return;
    }
    let sandbox = host();
    sandbox.mkdir("/bundle");
    let hook = |state: &Value| {
        let script = format!("exec {HOOK_THERE} createRuntime --lease rdma:rxe1");
        let output = sandbox.script(&script, state.to_string().as_bytes());
        assert_eq!(output.status.code(), Some(1));
        stderr(&output)
    };
    let state =
        json!({"ociVersion": "1.0.2", "id": "c", "status": "creating", "bundle": "/bundle"});
    assert!(hook(&state).contains("the container's state has no pid"));
    let mut gone = state.clone();
    gone["pid"] = json!(4_194_304);
    assert!(hook(&gone).contains("process 4194304, the container's init, has ended"));
}

/// The judge knows nothing of leases: it looks at the node in /proc of the processes that should hold it.
#[test]
fn a_thousand_starts_and_ends_leave_no_lease_and_give_none_twice() {
    if !sees_ends() {
        return;
    }
    let sandbox = host();
    sandbox.mkdir("/bundle");
    let script = format!(
        r#"mkdir -p /run/onload-ctk; mount -t tmpfs -o mode=711 none /run/onload-ctk
         state() {{ printf '{{"ociVersion":"1.0.2","id":"c%s","status":"%s","pid":%s,"bundle":"/bundle"}}' "$1" "$2" "$3"; }}
         hook={HOOK_THERE}
         n=0
         while test $n -lt 1000; do
             n=$((n+1))
             sleep 1000 >/dev/null 2>&1 & one=$!
             state $n creating $one | $hook createRuntime --lease rdma:rxe1 || {{ echo "not given in round $n"; exit 1; }}
             state x$n creating $$ | $hook createRuntime --lease rdma:rxe1 2>/dev/null && {{ echo "given twice in round $n"; exit 1; }}
             kill -9 $one; wait $one 2>/dev/null
             # Every second container is never told of its end.
             test $((n%2)) = 0 && continue
             state $n stopped 0 | $hook poststop --lease rdma:rxe1 || exit 1
             test -e '{LEASE}' && {{ echo "left in round $n"; exit 1; }}
         done
         state $n stopped 0 | $hook poststop --lease rdma:rxe1
         ls -A /run/onload-ctk/@leases"#
    );
    let output = sandbox.script(&script, b"");
    assert_eq!(stdout(&output), ".lock\n", "{}", stderr(&output));
}

#[test]
fn a_container_whose_lease_cannot_be_written_does_not_start() {
    if !sees_ends() {
        return;
    }
    let sandbox = host();
    sandbox.mkdir("/bundle");
    // The directories and the lock are there; then the file system is full.
    let script = format!(
        r#"mkdir -p /run/onload-ctk; mount -t tmpfs -o mode=711,nr_inodes=8 none /run/onload-ctk
         state() {{ printf '{{"ociVersion":"1.0.2","id":"%s","status":"creating","pid":%s,"bundle":"/bundle"}}' "$1" "$2"; }}
         hook="{HOOK_THERE} createRuntime"
         sleep 1000 >/dev/null 2>&1 & pid=$!
         state one $pid | $hook --lease rdma:rxe0 || exit 10
         n=0; while touch /run/onload-ctk/$n 2>/dev/null; do n=$((n+1)); done
         state two $pid | $hook --lease rdma:rxe1 && exit 11
         ls -A /run/onload-ctk/@leases
         rm /run/onload-ctk/?
         state two $pid | $hook --lease rdma:rxe1 || exit 12
         kill -9 $pid; ls -A /run/onload-ctk/@leases"#
    );
    let output = sandbox.script(&script, b"");
    let (output_text, message) = (stdout(&output), stderr(&output));
    assert_eq!(output_text, ".lock\nrdma=rxe0#0\n.lock\nrdma=rxe0#0\nrdma=rxe1#0\n", "{message}");
    assert!(
        message.contains("writing the lease of rdma:rxe1 in \"/run/onload-ctk/@leases\"")
            && message.contains("No space left on device"),
        "{message}"
    );
}
