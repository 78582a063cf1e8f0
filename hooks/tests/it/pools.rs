//! Members of pools: chosen by the wrapper, by precreate, by annotation in a living container, and by the
//! hook of a CDI device; kept from other containers until the container ends.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::fs;

use crate::common::{
    HOOK_THERE, Sandbox, WRAPPER_THERE, config, has_runc, print_file, stderr, stdout, unique,
};
use crate::lease::sees_ends;
use onload_test_needs as needs;
use serde_json::{Value, json};

pub(crate) const WAITS: &str = "while :; do read -r x < /proc/loadavg; done";
pub(crate) const LEASES: &str = "/run/onload-ctk/@leases";

/// One container may have an HCA.
pub(crate) const ONE_EACH: &str = "[leases]\nshare = { rdma = 1 }";

/// A hook of a specification.
pub(crate) fn hook(stage: &str, args: &[&str]) -> Value {
    let args = [&["onload-hook", stage], args].concat();
    json!({"hookName": stage, "path": HOOK_THERE, "args": args, "env": ["PATH=/usr/bin"], "timeout": 10})
}

/// The same as config.json has it.
pub(crate) fn oci_hook(stage: &str, args: &[&str]) -> Value {
    let mut hook = hook(stage, args);
    hook.as_object_mut().unwrap().remove("hookName");
    json!([hook])
}

/// A host with HCAs `m0`, `m1`, … in the pool `any`, and the even ones in `even`. Their nodes are the
/// kernel's log, which runc gives no container by itself.
pub(crate) fn host(count: usize) -> Sandbox {
    let sandbox = Sandbox::new();
    let names: Vec<String> = (0..count).map(|number| format!("m{number}")).collect();
    let mut devices = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let node = format!("uverbs{}", number + 10);
        sandbox.node(&format!("/dev/infiniband/{node}"), 1, 11);
        sandbox.sysfs(&node, name, "1:11");
        let path = format!("/dev/infiniband/{node}");
        let expect = format!("{path}=rdma:{name}");
        devices.push(json!({"name": name, "containerEdits": {
            "deviceNodes": [{"path": path, "permissions": "rw"}],
            "hooks": [hook("createRuntime", &["--expect", &expect])],
            "env": [format!("ONLOAD_CTK_RDMA_{}={name}", name.to_uppercase())]}}));
    }
    let mut pools = Vec::new();
    let mut pool = |name: &str, members: Vec<&str>| {
        let take = format!("rdma:{name}");
        pools.push(json!({"name": name,
            "annotations": {"onload.dev/pool-members": members.join(" "), "onload.dev/pool-share": "1"},
            "containerEdits": {"hooks": [hook("createRuntime", &["--take", &take]), hook("poststop", &["--take", &take])]}}));
    };
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    pool("any", names.clone());
    pool("even", names.into_iter().step_by(2).collect());
    let write = |part: &str, version: &str, devices: Vec<Value>| {
        let spec = json!({"cdiVersion": version, "kind": "onload.dev/rdma", "devices": devices});
        sandbox.file(&format!("/run/cdi/onload.dev-rdma{part}.json"), spec.to_string());
    };
    write("", "0.3.0", devices);
    write("-pools", "0.6.0", pools);
    sandbox.allow(&["nic", "rdma"], ONE_EACH);
    sandbox
}

/// Makes `/b1`, `/b2`, … with the same configuration.
pub(crate) fn bundles(sandbox: &Sandbox, count: usize, config: &Value) {
    for number in 1..=count {
        sandbox.root_file_system(&format!("/b{number}/rootfs"));
        let path = format!("/b{number}/config.json");
        sandbox.file(&path, serde_json::to_vec(config).unwrap());
    }
}

fn asking(value: &str, command: &str) -> Value {
    config(&json!({"onload.dev/rdma": value}), command)
}

/// A configuration that an engine made of `--device onload.dev/rdma=POOL`.
fn taking(pool: &str, command: &str) -> Value {
    let take = format!("rdma:{pool}");
    let mut config = config(&json!({}), command);
    config["hooks"] = json!({
        "createRuntime": oci_hook("createRuntime", &["--take", &take]),
        "poststop": oci_hook("poststop", &["--take", &take]),
    });
    config
}

const BY_ANNOTATION: &str = "annotation \"onload.dev/rdma\"";

/// Three containers want a member each of two, in turn; then the first ends, and its member is given on.
fn in_turn(sandbox: &Sandbox, runtime: &str, name: &str, asked_by: &str) {
    let id = unique(name);
    let script = format!(
        "r='{runtime} --root /run/runc'
         for n in 1 2; do
             $r create -b /b$n {id}-$n </dev/null >/dev/null 2>/tmp/err || {{ cat /tmp/err; exit 1$n; }}
         done
         ls {LEASES}
         $r create -b /b3 {id}-3 </dev/null >/dev/null 2>/tmp/err && exit 13
         cat /tmp/err; $r delete --force {id}-3 2>/dev/null
         $r delete --force {id}-1 || exit 14
         ls {LEASES}
         $r create -b /b3 {id}-3 </dev/null >/dev/null 2>/tmp/err || {{ cat /tmp/err; exit 15; }}
         grep -l '\"container\":\"{id}-3\"' {LEASES}/*
         for n in 2 3; do $r delete --force {id}-$n || exit 16; done
         ls {LEASES}; echo end"
    );
    let output = sandbox.script(&script, b"");
    let output_text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{output_text} {}", stderr(&output));
    assert!(output_text.starts_with("rdma=m0#0\nrdma=m1#0\n"), "{output_text}");
    let refused = format!(
        "{asked_by}: 1 wanted of pool rdma=any, which has 0 free of 2; m0 is in use by container \
         {id}-1 ("
    );
    // runc's log quotes what the hook said.
    assert!(output_text.replace('\\', "").contains(&refused), "{output_text}");
    let end = format!("rdma=m1#0\n{LEASES}/rdma=m0#0\nend\n");
    assert!(output_text.ends_with(&end), "{output_text}");
}

#[test]
fn the_wrapper_gives_each_container_another_member() {
    if has_runc() {
        let sandbox = host(2);
        bundles(&sandbox, 3, &asking("any", WAITS));
        in_turn(&sandbox, WRAPPER_THERE, "wrapper", BY_ANNOTATION);
    }
}

#[test]
fn a_device_that_is_a_pool_gives_each_container_another_member() {
    if has_runc() {
        let sandbox = host(2);
        bundles(&sandbox, 3, &taking("any", WAITS));
        let by = "device \"onload.dev/rdma=any\"";
        in_turn(&sandbox, "runc", "device", by);
    }
}

/// The group node of a function is root's alone, and a DPDK application need not be root.
#[test]
fn a_member_by_device_opens_for_the_container_s_user() {
    if !has_runc() {
        return;
    }
    let sandbox = host(1);
    sandbox.chmod("/dev/infiniband/uverbs10", 0o600);
    let command =
        "test -O /dev/infiniband/uverbs10 && exec 3>/dev/infiniband/uverbs10 && echo opened";
    let mut config = taking("any", command);
    config["process"]["user"] = json!({"uid": 1000, "gid": 1000});
    bundles(&sandbox, 1, &config);
    let id = unique("user");
    let script = format!(
        "timeout 60 runc --root /run/runc run -b /b1 {id}; stat -c '%a %u' /dev/infiniband/uverbs10"
    );
    let output = sandbox.script(&script, b"");
    assert_eq!(stdout(&output), "opened\n600 0\n", "{}", stderr(&output));
}

#[test]
fn an_annotation_on_a_living_container_gives_each_another_member() {
    if has_runc() {
        let sandbox = host(2);
        let mut config = asking("any", WAITS);
        config["hooks"] = json!({
            "createRuntime": oci_hook("createRuntime", &[]),
            "poststop": oci_hook("poststop", &[]),
        });
        bundles(&sandbox, 3, &config);
        in_turn(&sandbox, "runc", "live", BY_ANNOTATION);
    }
}

/// A container in the host's PID namespace, whose first process dies while a worker lives.
#[test]
fn a_container_that_lives_on_keeps_its_member_while_others_start_and_end() {
    if !sees_ends() {
        return;
    }
    let sandbox = host(2);
    let workers = format!("({WAITS}) & echo $! >/worker; {WAITS}");
    let mut config = taking("any", &workers);
    let namespaces = config["linux"]["namespaces"].as_array_mut().unwrap();
    namespaces.retain(|namespace| namespace["type"] != "pid");
    bundles(&sandbox, 3, &config);
    let id = unique("workers");
    let script = format!(
        "r='runc --root /run/runc'
         create() {{ $r create --pid-file /tmp/pid -b /b$1 {id}-$1 </dev/null >/dev/null 2>/tmp/err; }}
         create 1 || {{ cat /tmp/err; exit 11; }}
         pid=$(cat /tmp/pid); $r start {id}-1 || exit 12
         i=0; until test -s /b1/rootfs/worker || test $i -gt 100; do sleep 0.1; i=$((i+1)); done
         kill -9 $pid; while grep -qs . /proc/$pid/stat && ! grep -qs ') [ZX]' /proc/$pid/stat; do :; done
         # Where nobody reaps it, its number is not free: it is another's then.
         sed -i 's/\"live\":{{\"pid\":[0-9]*,\"startTime\":/&1/' /run/onload-ctk/{id}-1/record.json
         create 2 || {{ cat /tmp/err; exit 13; }}
         create 3 && exit 14
         cat /tmp/err; $r delete --force {id}-3 2>/dev/null; $r delete --force {id}-2 || exit 15
         grep -l '\"container\":\"{id}-1\"' {LEASES}/*
         kill -9 $(cat /b1/rootfs/worker); $r delete --force {id}-1 || exit 16
         ls {LEASES}; echo end"
    );
    let output = sandbox.script(&script, b"");
    let output_text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{output_text} {}", stderr(&output));
    let held = format!("m0 is in use by container {id}-1 (");
    assert!(output_text.contains(&held), "{output_text}");
    let kept = format!("{LEASES}/rdma=m0#0\nend\n");
    assert!(output_text.ends_with(&kept), "{output_text}");
}

#[test]
fn precreate_keeps_a_member_for_the_container_that_is_made_of_its_configuration() {
    if !has_runc() {
        return;
    }
    let sandbox = host(2);
    bundles(&sandbox, 2, &asking("any", WAITS));
    let id = unique("precreate");
    // podman names the directory of a container after it, and runs the hook there.
    let script = format!(
        "for n in 1 2; do
             d=/var/{id}-$n/userdata; mkdir -p $d; cp -a /b$n/rootfs $d/rootfs
             (cd $d && {HOOK_THERE} precreate < /b$n/config.json > config.json) || exit 1$n
             grep -o '\"--token\",\"[0-9a-f]*\"' $d/config.json | sort -u | wc -l
         done
         grep -l reservation {LEASES}/*
         runc --root /run/runc create -b /var/{id}-1/userdata {id}-1 </dev/null >/dev/null || exit 13
         grep -l init {LEASES}/*
         runc --root /run/runc delete --force {id}-1
         ls {LEASES}"
    );
    let output = sandbox.script(&script, b"");
    let expected =
        format!("1\n1\n{LEASES}/rdma=m0#0\n{LEASES}/rdma=m1#0\n{LEASES}/rdma=m0#0\nrdma=m1#0\n");
    assert_eq!(stdout(&output), expected, "{}", stderr(&output));
}

#[test]
fn a_configuration_that_was_edited_before_keeps_its_members() {
    if !needs::mount_namespace("entering a sandbox") {
        return;
    }
    let sandbox = host(3);
    let config = asking("any*2", WAITS);
    sandbox.file("/in.json", serde_json::to_vec(&config).unwrap());
    let id = unique("again");
    let script = format!(
        "mkdir -p /var/{id}/userdata/rootfs && cd /var/{id}/userdata
         {HOOK_THERE} precreate < /in.json > once.json && {HOOK_THERE} precreate < once.json > twice.json
         cmp once.json twice.json && ls {LEASES}"
    );
    let output = sandbox.script(&script, b"");
    assert_eq!(stdout(&output), "rdma=m0#0\nrdma=m1#0\n", "{}", stderr(&output));
}

/// A shell function that gives every member to a process that waits, and fails where one is not free.
/// It looks as somebody does a minute later, when what was reserved for nobody has expired.
const ALL_FREE: &str = r#"all_free() {
    sleep 1000 >/dev/null 2>&1 & pid=$!
    printf '{"ociVersion":"1.0.2","id":"all","status":"creating","pid":%s,"bundle":"/b1"}' $pid |
        unshare --time --boottime 61 $hook createRuntime --lease rdma:m0 --lease rdma:m1
    free=$?
    kill -9 $pid; wait $pid 2>/dev/null
    return $free
}"#;

/// Kills a command at each of its system calls. strace counts the calls of each name apart.
fn killed_everywhere(sandbox: &Sandbox, prepare: &str, command: &str) -> u32 {
    let script = format!(
        r#"hook={HOOK_THERE}
         {ALL_FREE}
         {prepare}
         once() {{
             {{ {command}; }} >/dev/null 2>/tmp/err
             status=$?
             all_free || {{ echo "lost at $1"; ls {LEASES}; exit 1; }}
             return $status
         }}
         once || {{ cat /tmp/err; exit 1; }}
         calls=$(sed -n 's/^[0-9]* *\([a-z_0-9]*\)(.*/\1/p' /tmp/trace | sort -u)
         killed=0
         for call in $calls; do
             n=1
             until once "-e inject=$call:signal=KILL:when=$n"; do
                 n=$((n+1)) killed=$((killed+1))
             done
         done
         echo "killed at $killed system calls""#
    );
    let output = sandbox.script(&script, b"");
    let output_text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{output_text} {}", stderr(&output));
    println!("{output_text}");
    let mut words = output_text.split_whitespace();
    words.find_map(|word| word.parse().ok()).unwrap()
}

/// Whether ends of processes can be seen here, and a process be killed at a system call.
fn can_kill() -> bool {
    let own = fs::read_link("/proc/self/ns/pid").unwrap();
    needs::that(
        own.to_str() == Some("pid:[4026531836]"),
        "telling that a holder has ended needs the initial PID namespace",
    ) && has_runc()
        && needs::programs(&["strace", "unshare"])
}

#[test]
fn a_wrapper_that_is_killed_at_any_system_call_loses_no_member() {
    if !can_kill() {
        return;
    }
    let sandbox = host(2);
    bundles(&sandbox, 1, &asking("any", WAITS));
    // In place of a runtime stands a program that creates nothing.
    let runtime = format!("{ONE_EACH}\n[runtime]\npath = \"/usr/bin/true\"");
    sandbox.allow(&["rdma"], &runtime);
    let command = format!(
        "cp /b1/config.json /tmp/config.json
         strace -f -qq -o /tmp/trace $1 {WRAPPER_THERE} --root /run/runc create -b /b1 c
         status=$?; mv /tmp/config.json /b1/config.json; (exit $status)"
    );
    let killed = killed_everywhere(&sandbox, ":", &command);
    assert!(killed >= 20, "{killed}");
}

#[test]
fn a_precreate_that_is_killed_at_any_system_call_loses_no_member() {
    if !can_kill() {
        return;
    }
    let sandbox = host(2);
    bundles(&sandbox, 1, &asking("any", WAITS));
    let id = unique("killed");
    let prepare = format!("mkdir -p /var/{id}/userdata/rootfs");
    // Each starts when what the one before it kept has expired.
    let command = format!(
        "cd /var/{id}/userdata && rm -rf {LEASES}/rdma* &&
         strace -f -qq -o /tmp/trace $1 $hook precreate < /b1/config.json"
    );
    let killed = killed_everywhere(&sandbox, &prepare, &command);
    assert!(killed >= 20, "{killed}");
}

#[test]
fn a_container_sees_the_members_it_got_and_no_others() {
    if !has_runc() {
        return;
    }
    let print_devices = "for node in /dev/infiniband/*; do echo $node; done; echo $ONLOAD_CTK_RDMA_M0 $ONLOAD_CTK_RDMA_M2";
    let sandbox = host(4);
    bundles(&sandbox, 1, &asking("even*2", print_devices));
    let id = unique("sees");
    let run = |runtime: &str| {
        let script = format!("exec timeout 60 {runtime} --root /run/runc run -b /b1 {id}");
        let output = sandbox.script(&script, b"");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    };
    let nodes = "/dev/infiniband/uverbs10\n/dev/infiniband/uverbs12\n";
    assert_eq!(run(WRAPPER_THERE), format!("{nodes}m0 m2\n"));

    // A hook cannot change the environment, so a file has the variables.
    let more = format!("{print_devices}; {}", print_file("/dev/onload-ctk.env"));
    bundles(&sandbox, 1, &taking("even*2", &more));
    let variables = "ONLOAD_CTK_RDMA_M0=m0\nONLOAD_CTK_RDMA_M2=m2\n";
    assert_eq!(run("runc"), format!("{nodes}\n{variables}"));
    let left = fs::read_dir(sandbox.path(LEASES)).unwrap();
    assert_eq!(left.count(), 1, "the lock alone");
}

#[test]
fn two_devices_that_are_pools_give_one_container_both() {
    if !has_runc() {
        return;
    }
    let print_devices = format!(
        "for node in /dev/infiniband/*; do echo $node; done; {}",
        print_file("/dev/onload-ctk.env")
    );
    let sandbox = host(3);
    let mut config = taking("even", &print_devices);
    for stage in ["createRuntime", "poststop"] {
        let more = oci_hook(stage, &["--take", "rdma:any"])[0].clone();
        config["hooks"][stage].as_array_mut().unwrap().push(more);
    }
    bundles(&sandbox, 1, &config);
    let id = unique("both");
    let script = format!("exec timeout 60 runc --root /run/runc run -b /b1 {id}");
    let output = sandbox.script(&script, b"");
    assert_eq!(
        stdout(&output),
        "/dev/infiniband/uverbs10\n/dev/infiniband/uverbs11\nONLOAD_CTK_RDMA_M0=m0\nONLOAD_CTK_RDMA_M1=m1\n",
        "{}",
        stderr(&output)
    );
    let left = fs::read_dir(sandbox.path(LEASES)).unwrap();
    assert_eq!(left.count(), 1, "the lock alone");
}

#[test]
fn a_container_that_is_refused_something_else_keeps_no_member_for_a_moment() {
    if !has_runc() {
        return;
    }
    let sandbox = host(2);
    fs::remove_file(sandbox.path("/dev/infiniband/uverbs10")).unwrap();
    bundles(&sandbox, 1, &asking("any", WAITS));
    let id = unique("refused");
    for runtime in [WRAPPER_THERE, "runc"] {
        let script = format!(
            "mkdir -p -m 711 /run/onload-ctk; mkdir -p -m 700 {LEASES}; touch -d @1 {LEASES}
             {runtime} --root /run/runc create -b /b1 {id} </dev/null; ls -A {LEASES}; stat -c %Y {LEASES}"
        );
        let output = sandbox.script(&script, b"");
        let message = stderr(&output);
        assert!(
            message.contains("device node /dev/infiniband/uverbs10 does not exist"),
            "{message}"
        );
        assert_eq!(stdout(&output), "1\n", "nothing was ever written there");
        let mut config = taking("any", WAITS);
        config["process"]["args"] = json!(["/bin/sh"]);
        bundles(&sandbox, 1, &config);
    }
}

#[test]
fn what_is_no_request_of_a_pool_is_refused_with_a_line() {
    if !needs::mount_namespace("entering a sandbox") {
        return;
    }
    let sandbox = host(2);
    const POOLS: &str = "/run/cdi/onload.dev-rdma-pools.json";
    let damaged = sandbox.read(POOLS);
    let refusal = |annotations: Value| {
        sandbox.mkdir("/bundle");
        let config = config(&annotations, WAITS);
        let output = sandbox.precreate(&serde_json::to_vec(&config).unwrap());
        assert_eq!(output.status.code(), Some(1));
        stderr(&output)
    };
    let device = refusal(json!({"onload.dev/rdma": "m0*2"}));
    assert!(device.contains("m0 is a device, not a pool; remove \"*2\""), "{device}");
    let numa = refusal(json!({"onload.dev/rdma": "m0", "onload.dev/numa": "same"}));
    assert!(numa.contains("\"onload.dev/numa\": it has no effect without a pool"), "{numa}");
    let id = refusal(json!({"onload.dev/rdma": "any"}));
    assert!(id.contains("the container's id is unknown"), "{id}");
    let class = refusal(json!({"onload.dev/vfio": "any"}));
    assert!(class.contains("class vfio, which the operator does not allow"), "{class}");
    let damaged = damaged.replace("\"m0 m1\"", "\"m0 m/1\"");
    sandbox.file(POOLS, damaged);
    let pool = refusal(json!({"onload.dev/rdma": "any"}));
    assert!(pool.contains("pool rdma=any; run `onload-ctk cdi generate`: word 2 of"), "{pool}");
}

/// Its file is written at another moment than that of the devices.
#[test]
fn a_member_that_is_no_device_any_more_is_not_chosen() {
    const DEVICES: &str = "/run/cdi/onload.dev-rdma.json";
    if !has_runc() {
        return;
    }
    for (name, runtime, config) in
        [("asked", WRAPPER_THERE, asking("any", WAITS)), ("taken", "runc", taking("any", WAITS))]
    {
        let sandbox = host(2);
        bundles(&sandbox, 1, &config);
        let mut spec: Value = serde_json::from_str(&sandbox.read(DEVICES)).unwrap();
        spec["devices"].as_array_mut().unwrap().remove(0);
        sandbox.file(DEVICES, spec.to_string());
        let id = unique(name);
        let create = format!(
            "{runtime} --root /run/runc create -b /b1 {id} </dev/null >/dev/null; ls {LEASES}; \
             runc --root /run/runc delete --force {id}"
        );
        let output = sandbox.script(&create, b"");
        assert_eq!(stdout(&output), "rdma=m1#0\n", "{}", stderr(&output));
        for (devices, says) in
            [(Some("{\"kind\":"), "; /var/run/cdi/onload.dev-rdma.json: EOF"), (None, "")]
        {
            sandbox.script(&format!("rm -f {DEVICES} {LEASES}/*"), b"");
            if let Some(devices) = devices {
                sandbox.file(DEVICES, devices);
            }
            let output = sandbox.script(&create, b"");
            let message =
                "no specification offers a member of pool rdma=any; run `onload-ctk cdi generate`";
            let error_text = stderr(&output);
            assert!(error_text.contains(&format!("{message}{says}")), "{error_text}");
            assert_eq!(stdout(&output), "");
        }
    }
}

#[test]
fn of_many_containers_of_two_engines_as_many_start_as_there_are_members() {
    if !has_runc() {
        return;
    }
    let sandbox = host(16);
    bundles(&sandbox, 1, &asking("any", WAITS));
    let id = unique("many");
    // /run is a tmpfs on a host, where nobody waits for a disk under the lock.
    let script = format!(
        "mkdir -p /run/onload-ctk /many; mount -t tmpfs -o mode=711 none /run/onload-ctk; cd /many
         for n in $(seq 100); do for e in a b; do
             mkdir $e$n; cp /b1/config.json $e$n; cp -al /b1/rootfs $e$n/rootfs
             ( {WRAPPER_THERE} --root /run/$e create -b /many/$e$n {id}-$e$n </dev/null >/dev/null 2>$e$n/err && : > $e$n/made ) &
         done; done
         wait
         ls */made | wc -l
         cat */err | grep -c 'which has 0 free of 16'
         cat */err | grep -v 'which has 0 free of 16' >&2
         ls {LEASES} | wc -l
         # Whose node is in which configuration, without anything of ours.
         grep -l uverbs */config.json | wc -l
         grep -ho 'infiniband/uverbs[0-9]*' */config.json | sort -u | wc -l
         for e in a b; do for n in $(seq 100); do
             test -e $e$n/made && runc --root /run/$e delete --force {id}-$e$n
         done; done
         ls {LEASES} | wc -l"
    );
    let output = sandbox.script(&script, b"");
    assert_eq!(stdout(&output), "16\n184\n16\n16\n16\n0\n", "{}", stderr(&output));
}
