//! Configuration, specifications and /run of 0.1.0 with today's programs, possible future ones, and
//! today's files read as 0.1.0 reads them (`tests/versions/README.md`).

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{
    HOOK_THERE, Sandbox, WRAPPER_THERE, config, has_runc, is_root, oci, stderr, stdout, unique,
};
use serde::Deserialize;
use serde_json::{Value, json};

fn of_0_1_0(path: &str) -> String {
    let versions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/versions/0.1.0");
    fs::read_to_string(versions.join(path)).unwrap()
}

/// What 0.1.0 accepts as a record, where it ignores unknown fields.
#[derive(Debug, Deserialize)]
struct RecordOf010 {
    created: CreatedOf010,
}

#[derive(Debug, Deserialize)]
#[allow(dead_code, reason = "what is refused counts")]
struct CreatedOf010 {
    root: PathBuf,
    made: Vec<MadeOf010>,
}

#[derive(Debug, Deserialize)]
#[allow(dead_code, reason = "what is refused counts")]
struct MadeOf010 {
    path: PathBuf,
    kind: KindOf010,
    #[serde(default)]
    inode: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum KindOf010 {
    File,
    Directory,
}

/// A living container with the hook, and a host whose /dev/onload runc does not provide by itself.
fn living() -> Sandbox {
    let sandbox = Sandbox::new();
    fs::remove_file(sandbox.path("/dev/onload")).unwrap();
    sandbox.node("/dev/onload", 1, 11);
    let hook = |stage: &str| {
        json!([{"path": HOOK_THERE, "args": ["onload-hook", stage],
                "env": ["PATH=/usr/sbin:/usr/bin"], "timeout": 10}])
    };
    let forever = "while :; do read -r x < /proc/loadavg; done";
    let mut config = config(&json!({"onload.dev/nic": "all"}), forever);
    config["process"]["rlimits"] = json!([{"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 4096}]);
    config["hooks"] = json!({"createRuntime": hook("createRuntime"), "poststop": hook("poststop")});
    sandbox.bundle(&config);
    sandbox
}

#[test]
fn a_container_of_0_1_0_is_reapplied_and_cleaned_up() {
    if !has_runc() {
        return;
    }
    let sandbox = living();
    let id = unique("0-1-0");
    for name in ["record.json", "ld.so.preload"] {
        sandbox.file(&format!("/bundle/{name}"), of_0_1_0(&format!("run/{name}")));
    }
    // The process and the inodes are this container's; the rest is what 0.1.0 wrote.
    let script = format!(
        "d=/run/onload-ctk/{id}
         runc --root /run/runc create --bundle /bundle {id} > /tmp/out 2>&1 < /dev/null || exit 10
         own=$(grep -o '\"live\":.\"pid\":[0-9]*,\"startTime\":[0-9]*' $d/record.json) || exit 14
         inode() {{ stat -c %i /bundle/rootfs/$1/libonload.so; }}
         sed \"s/\\\"live\\\":.\\\"pid\\\":18875,\\\"startTime\\\":305663/$own/; s/10018962/$(inode usr/lib64)/; s/10019045/$(inode usr/lib/x86_64-linux-gnu)/\" /bundle/record.json > /tmp/record
         cp /tmp/record $d/record.json; cp /bundle/ld.so.preload $d
         {HOOK_THERE} reapply {id} || exit 11
         {WRAPPER_THERE} --root /run/runc kill {id} KILL || exit 12
         i=0; while runc --root /run/runc state {id} | grep -q '\"status\": \"created\"' && test $i -lt 100; do sleep 0.1; i=$((i+1)); done
         {WRAPPER_THERE} --root /run/runc delete {id} || exit 13
         ls -A -I '@*' /run/onload-ctk; find /bundle/rootfs -name 'libonload*'"
    );
    let output = sandbox.script(&script, b"");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stdout(&output), "", "{}", stderr(&output));
}

#[test]
fn configuration_and_specifications_of_0_1_0_give_what_they_gave() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    let text = of_0_1_0("config.toml").replace("allow = []", "allow = [\"nic\", \"rdma\"]");
    sandbox.file("/etc/onload-ctk/config.toml", text);
    fs::remove_file(sandbox.path("/etc/cdi/onload.dev-nic.json")).unwrap();
    for class in ["nic", "rdma"] {
        let name = format!("onload.dev-{class}.json");
        sandbox.file(
            &format!("/run/cdi/{name}"),
            of_0_1_0(&format!("specs/{name}")),
        );
    }
    sandbox.node("/dev/infiniband/rdma_cm", 1, 9);
    sandbox.file("/sysfs/class/misc/rdma_cm/dev", "1:9\n");
    sandbox.root_file_system("/bundle/rootfs");
    let asks = json!({"onload.dev/nic": "all", "onload.dev/rdma": "rxe0"});
    let json = serde_json::to_vec(&config(&asks, ":")).unwrap();
    let output = sandbox.precreate(&json);
    assert!(output.status.success(), "{}", stderr(&output));
    oci(&output.stdout);
    let after: Value = serde_json::from_slice(&output.stdout).unwrap();
    let devices = after["linux"]["devices"].as_array().unwrap().iter();
    let devices: Vec<&str> = devices
        .map(|device| device["path"].as_str().unwrap())
        .collect();
    assert_eq!(
        devices,
        [
            "/dev/onload",
            "/dev/onload_epoll",
            "/dev/infiniband/rdma_cm",
            "/dev/infiniband/uverbs0"
        ]
    );
    assert_eq!(after["process"]["rlimits"][0]["type"], "RLIMIT_MEMLOCK");
    let hook = &after["hooks"]["createRuntime"][0];
    assert!(
        hook["args"]
            .as_array()
            .unwrap()
            .contains(&"--expect".into()),
        "{hook}"
    );
}

/// The contract of its arguments: a container created from a specification of 0.1.0 calls today's
/// hook with them.
#[test]
fn the_hook_arguments_of_0_1_0_are_understood() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.node("/dev/infiniband/rdma_cm", 1, 9);
    sandbox.file("/sysfs/class/misc/rdma_cm/dev", "1:9\n");
    let spec: Value = serde_json::from_str(&of_0_1_0("specs/onload.dev-rdma.json")).unwrap();
    let mut hook = spec["devices"][1]["containerEdits"]["hooks"][0].clone();
    assert_eq!(hook["hookName"], "createRuntime");
    hook.as_object_mut().unwrap().remove("hookName");
    hook["path"] = json!(HOOK_THERE);
    let mut config = config(&json!({}), "echo started");
    config["hooks"] = json!({"createRuntime": [hook]});
    let node = json!({"path": "/dev/infiniband/uverbs0", "type": "c", "major": 1, "minor": 7});
    config["linux"]["devices"] = json!([node]);
    sandbox.bundle(&config);
    let run = |name: &str| {
        let script = format!("exec runc --root /run/runc run -b /bundle {}", unique(name));
        sandbox.script(&script, b"")
    };
    let output = run("arguments");
    assert_eq!(stdout(&output), "started\n", "{}", stderr(&output));
    sandbox.sysfs("uverbs0", "rxe7", "1:7");
    assert!(!run("other").status.success(), "another device is refused");
}

#[test]
fn a_configuration_of_tomorrow_starts_what_asks_for_what_is_known() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    let newer = "[annotations]\nallow = [\"nic\", \"gpu\", \"bundle\"]\nnetworks = [\"192.0.2.0/24\"]\n\
                 [cdi]\nselect-interface = true\nkinds = [\"all\", \"gpu\"]\n\
                 [environment]\nallow = [\"nic\"]\n[leases]\nshare = { rdma = 500 }\n\
                 [log]\nlevel = \"info\"\n[pools.fast]\nclass = \"vfio\"\n[[sriov]]\npf = \"ens1\"\n\
                 [runtime]\npath = \"\"\nflavour = \"new\"\n";
    sandbox.file("/etc/onload-ctk/config.toml", newer);
    sandbox.bundle(&config(
        &json!({"onload.dev/nic": "all"}),
        "exec 3<>/dev/onload && echo opened",
    ));
    let run = |name: &str| {
        let id = unique(name);
        sandbox.script(
            &format!("exec {WRAPPER_THERE} --root /run/runc run -b /bundle {id}"),
            b"",
        )
    };
    let output = run("tomorrow");
    assert_eq!(stdout(&output), "opened\n", "{}", stderr(&output));
    sandbox.bundle(&config(&json!({"onload.dev/gpu": "fast"}), "echo started"));
    let output = run("gpu");
    assert_eq!(stdout(&output), "");
    assert!(
        stderr(&output).contains("onload.dev/gpu"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn what_today_s_hook_keeps_is_taken_by_0_1_0() {
    if !has_runc() {
        return;
    }
    let sandbox = living();
    let id = unique("today");
    let script = format!(
        "runc --root /run/runc create --bundle /bundle {id} > /tmp/out 2>&1 < /dev/null || exit 10
         cat /run/onload-ctk/{id}/record.json
         runc --root /run/runc delete --force {id} || exit 11"
    );
    let output = sandbox.script(&script, b"");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let record: RecordOf010 = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(matches!(record.created.made[0].kind, KindOf010::File));
}
