//! Bundles: devices that go together, and the CPUs and memory of the containers that get them, with this
//! machine's runc and crun.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::common::{
    HOOK_THERE, Sandbox, WRAPPER_THERE, config, has_runc, oci, stderr, stdout, unique,
};
use onload_test_needs as needs;
use serde_json::{Value, json};

/// Prints the CPUs and NUMA nodes that the kernel lets the container use.
const ALLOWED: &str = "while read -r key value; do case $key in Cpus_allowed_list:|Mems_allowed_list:) echo $value;; esac; done < /proc/self/status";

const HFT: &str = "[bundles.hft]\ndevices = [\"nic=ens1\", \"rdma=rxe0\"]\ncpus = \"numa\"\nmems = \"numa\"\n\
                   [bundles.plain]\ndevices = [\"nic=ens1\"]\n\
                   [bundles.far]\ndevices = [\"nic=ens1\"]\ncpus = \"65535\"\n";

/// A host of one NUMA node with these CPUs, that allows bundles alone.
fn host(cpus: &str, runtime: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.file("/sysfs/devices/system/node/online", "0\n");
    sandbox.file("/sysfs/devices/system/node/node0/cpulist", format!("{cpus}\n"));
    let runtime = format!("[runtime]\npath = \"{runtime}\"\n");
    sandbox.allow(&["bundle"], &format!("{HFT}{runtime}"));
    // umount(8) keeps notes there.
    sandbox.mkdir("/run/mount");
    sandbox
}

fn asking(bundle: &str, command: &str) -> Value {
    config(&json!({"onload.dev/bundle": bundle}), command)
}

/// Runs `/bundle` through the wrapper. crun wants one kind of hierarchy.
fn run(sandbox: &Sandbox, config: &Value, name: &str) -> std::process::Output {
    let mut config = config.clone();
    config["linux"]["cgroupsPath"] = json!(format!("/{}", unique(name)));
    sandbox.bundle(&config);
    let script = format!(
        "umount /sys/fs/cgroup/unified 2> /tmp/said
         exec {WRAPPER_THERE} --root /run/runc run -b /bundle {}",
        unique(name)
    );
    let output = sandbox.script(&script, b"");
    oci(sandbox.read("/bundle/config.json").as_bytes());
    output
}

fn cpu(sandbox: &Sandbox) -> Value {
    let config: Value = serde_json::from_str(&sandbox.read("/bundle/config.json")).unwrap();
    config["linux"]["resources"]["cpu"].clone()
}

const RUNC: &str = "/usr/sbin/runc";
const CRUN: &str = "/usr/bin/crun";

/// The runtimes of this machine.
#[track_caller]
fn runtimes() -> Vec<&'static str> {
    let all = [("runc", RUNC), ("crun", CRUN)];
    let here = all.into_iter().filter(|(name, path)| {
        needs::programs(&[name]) && needs::that(std::path::Path::new(path).exists(), path)
    });
    match has_runc() {
        true => here.map(|(_, path)| path).collect(),
        false => Vec::new(),
    }
}

#[test]
fn a_container_gets_all_devices_of_its_bundle_and_the_cpus_and_memory_of_their_node() {
    for runtime in runtimes() {
        let sandbox = host("0", runtime);
        let command = format!(
            "exec 3<>/dev/onload && exec 4<>/dev/infiniband/uverbs0 && echo $LD_PRELOAD $ONLOAD_CTK_NIC_ENS1 $ONLOAD_CTK_RDMA_RXE0; {ALLOWED}"
        );
        let output = run(&sandbox, &asking("hft", &command), "all");
        assert_eq!(
            stdout(&output),
            "libonload.so ens1 rxe0\n0\n0\n",
            "{runtime}: {}",
            stderr(&output)
        );
        assert_eq!(cpu(&sandbox), json!({"cpus": "0", "mems": "0"}), "{runtime}");
    }
}

#[test]
fn a_bundle_gives_a_member_of_a_pool_that_no_other_container_has() {
    if !has_runc() {
        return;
    }
    let sandbox = host("0", RUNC);
    let pool = json!({"name": "any",
        "annotations": {"onload.dev/pool-members": "rxe0 rxe1", "onload.dev/pool-share": "1"},
        "containerEdits": {"hooks": [{"hookName": "createRuntime", "path": HOOK_THERE,
            "args": ["onload-hook", "createRuntime", "--take", "rdma:any"], "env": ["PATH=/usr/bin"], "timeout": 10}]}});
    let spec = json!({"cdiVersion": "0.6.0", "kind": "onload.dev/rdma", "devices": [pool]});
    sandbox.file("/run/cdi/onload.dev-rdma-pools.json", spec.to_string());
    let bundles = "[leases]\nshare = { rdma = 1 }\n[bundles.one]\ndevices = [\"rdma=any\"]\ncpus = \"numa\"\n\
                   [bundles.three]\ndevices = [\"rdma=any*3\"]\n";
    sandbox.allow(&["bundle"], bundles);
    let command = format!("for n in /dev/infiniband/uverbs*; do echo ${{n##*/}}; done; {ALLOWED}");
    let output = run(&sandbox, &asking("one", &command), "member");
    let printed = stdout(&output);
    assert!(printed.starts_with("uverbs0\n0\n"), "{printed}{}", stderr(&output));
    let output = run(&sandbox, &asking("three", "echo started"), "three");
    assert_eq!(stdout(&output), "");
    let says = "annotation \"onload.dev/bundle\": 3 wanted of pool rdma=any";
    assert!(stderr(&output).contains(says), "{}", stderr(&output));
}

#[test]
fn what_the_engine_set_wins_and_one_line_says_so() {
    for runtime in runtimes() {
        // The bundle's would be another CPU.
        let sandbox = host("0-1", runtime);
        let mut config = asking("hft", ALLOWED);
        config["linux"]["resources"]["cpu"] = json!({"cpus": "0"});
        let output = run(&sandbox, &config, "own");
        assert_eq!(stdout(&output), "0\n0\n", "{runtime}: {}", stderr(&output));
        assert_eq!(cpu(&sandbox), json!({"cpus": "0", "mems": "0"}), "{runtime}");
        let message = "annotation \"onload.dev/bundle\": the container keeps the CPUs \"0\" that its engine set";
        assert_eq!(stderr(&output).matches(message).count(), 1, "{}", stderr(&output));
    }
}

#[test]
fn what_is_set_stands_within_what_was_there_and_twice_is_once() {
    if !has_runc() {
        return;
    }
    let sandbox = host("0", RUNC);
    sandbox.root_file_system("/bundle/rootfs");
    let mut config = asking("hft", "true");
    config["linux"]["resources"]["cpu"] = json!({"shares": 512});
    let once = sandbox.precreate(config.to_string().as_bytes());
    assert!(once.status.success(), "{}", stderr(&once));
    let written: Value = serde_json::from_slice(&once.stdout).unwrap();
    assert_eq!(
        written["linux"]["resources"]["cpu"],
        json!({"shares": 512, "cpus": "0", "mems": "0"})
    );
    let twice = sandbox.precreate(&once.stdout);
    assert_eq!(stdout(&twice), stdout(&once));
    assert!(!stderr(&twice).contains("keeps"), "{}", stderr(&twice));
}

#[test]
fn a_pod_keeps_kubelet_s_cpus_and_gets_the_devices() {
    if !has_runc() {
        return;
    }
    let sandbox = host("0", RUNC);
    let mut config = asking("hft", "exec 3<>/dev/onload && echo opened");
    config["annotations"]["io.kubernetes.cri.container-name"] = json!("server");
    let output = run(&sandbox, &config, "pod");
    assert_eq!(stdout(&output), "opened\n", "{}", stderr(&output));
    assert_eq!(cpu(&sandbox), Value::Null);
    let message = "cpus and mems of bundle hft are not set: kubelet's CPU manager and topology manager set the CPUs of pods";
    assert_eq!(stderr(&output).matches(message).count(), 1, "{}", stderr(&output));
}

#[test]
fn what_cannot_be_given_is_refused_by_name() {
    if !has_runc() {
        return;
    }
    let sandbox = host("0", RUNC);
    for (bundle, says) in [
        (
            "far",
            "bundle far requests the CPUs 65535, but the container's control group \"/\" \
             has ",
        ),
        ("other", "bundle other not found; the configuration has far, hft, plain"),
    ] {
        let output = run(&sandbox, &asking(bundle, "echo started"), "far");
        assert_eq!(stdout(&output), "");
        assert!(stderr(&output).contains(says), "{}", stderr(&output));
        assert_eq!(cpu(&sandbox), Value::Null);
    }
    sandbox.allow(&["nic", "rdma"], HFT);
    let output = run(&sandbox, &asking("plain", "echo started"), "denied");
    let says = "requests class bundle, which the operator does not allow; allow = [\"nic\", \
        \"rdma\", \"bundle\"]";
    assert!(stderr(&output).contains(says), "{}", stderr(&output));
    // What is named beside a bundle needs the operator's word all the same.
    sandbox.allow(&["bundle"], HFT);
    let mut config = asking("plain", "echo started");
    config["annotations"]["onload.dev/rdma"] = json!("rxe1");
    let output = run(&sandbox, &config, "beside");
    let says = "requests class rdma, which the operator does not allow";
    assert!(stderr(&output).contains(says), "{}", stderr(&output));
}

#[test]
fn root_of_the_host_gets_no_onload_by_a_bundle_where_policy_refuses_it() {
    if !has_runc() {
        return;
    }
    let sandbox = host("0", RUNC);
    let policy = "[annotations]\nallow = [\"bundle\"]\nroot-with-onload = \"refuse\"\n";
    let text = format!("{policy}{HFT}[cdi]\nhook-path = {HOOK_THERE:?}\n");
    sandbox.file("/etc/onload-ctk/config.toml", text);
    let output = run(&sandbox, &asking("plain", "echo started"), "root");
    assert_eq!(stdout(&output), "");
    assert!(stderr(&output).contains("root-with-onload = \"refuse\""), "{}", stderr(&output));
}

/// A configuration whose hook is our entry point for annotations.
fn hooked(bundle: &str, command: &str) -> Value {
    let mut config = asking(bundle, command);
    let hook = |stage: &str| json!([{"path": HOOK_THERE, "args": ["onload-hook", stage], "env": ["PATH=/usr/bin"], "timeout": 10}]);
    config["process"]["rlimits"] = json!([{"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 4096}]);
    config["hooks"] = json!({"createRuntime": hook("createRuntime"), "poststop": hook("poststop")});
    config
}

#[test]
fn a_living_container_gets_the_devices_of_a_bundle_and_is_refused_one_with_cpus() {
    if !has_runc() {
        return;
    }
    let sandbox = host("0", RUNC);
    let run = |config: &Value, name: &str| {
        sandbox.bundle(config);
        let id = unique(name);
        let script = format!("exec runc --root /run/runc run -b /bundle {id}");
        sandbox.script(&script, b"")
    };
    let output = run(&hooked("plain", "exec 3<>/dev/onload && echo opened"), "live");
    assert_eq!(stdout(&output), "opened\n", "{}", stderr(&output));
    let output = run(&hooked("hft", "echo started"), "late");
    assert_eq!(stdout(&output), "");
    let says = "a container that its runtime has already created cannot be given cpus and mems of bundle hft; use the runtime onload or `onload-hook precreate`";
    assert!(stderr(&output).contains(says), "{}", stderr(&output));
    // Its engine's own stay, so that nothing is missing.
    let mut own = hooked("hft", &format!("exec 3<>/dev/onload && {ALLOWED}"));
    own["linux"]["resources"]["cpu"] = json!({"cpus": "0", "mems": "0"});
    let output = run(&own, "early");
    assert_eq!(stdout(&output), "0\n0\n", "{}", stderr(&output));
}
