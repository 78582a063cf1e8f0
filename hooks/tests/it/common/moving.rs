//! Devices that move into containers of this machine's runc and crun and come back, in network namespaces of the test's
//! own. Virtual pairs stand in for them: the end that moves has the device's name, and the other stays where it is and
//! tells it from others, whatever a container does to it.
//!
//! The hook that knows of stand-ins is an example, which `cargo test` builds; for one test alone, run
//! `cargo build -p onload-hooks --example stand-ins` first.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use onload_test_tree::copy_program;
use serde_json::{Value, json};
use walkdir::WalkDir;

use super::{HOOK, Sandbox, config, skipped, stderr, stdout};

/// The example, where containers' hooks find it.
const STAND_INS: &str = "/opt/onload/stand-ins";

/// What each script begins with: a host in network namespaces of its own. The pairs' other ends are in namespace
/// `wire`; `one` and `two` are those of containers.
const HOST: &str = r#"
set -e
mount -t tmpfs -o mode=0755 none /run
mkdir -p /tmp/first /run/netns /run/mount
: > /tmp/first/net
mount --bind /proc/self/ns/net /tmp/first/net
mount --rbind /tmp/first /proc/1/ns
for n in wire one two; do ip netns add $n; done
fail() { echo "FAILED: $*" >&2; exit 1; }
free() { ls -A /run/onload-ctk/@leases | grep '#' && fail "$1: a lease is left"; true; }
make() { # CONTAINER
  : > /tmp/hook.err
  made=0; $RUNTIME create -b /$1 $ID-$1 </dev/null >/dev/null 2>/tmp/err || made=$?
  cat /tmp/hook.err >> /tmp/err
  return $made
}
gone() { $RUNTIME delete --force $ID-$1 >/dev/null 2>&1 || true; }
pid() { $RUNTIME state $ID-$1 | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p'; }
restore() { /opt/onload/stand-ins $STAND_INS restore; }
"#;

static TESTS: AtomicU32 = AtomicU32::new(0);
thread_local! {
    static FIRST: u32 = 1_000_000 + std::process::id() * 64 + 4 * TESTS.fetch_add(1, Relaxed);
}

/// The number of a test's first stand-in, of at most four. A device is looked for in all namespaces of the machine, so
/// that no two tests may have the same.
pub fn first() -> u32 {
    FIRST.with(|first| *first)
}

/// Whether ends of processes can be seen here, and what else the tests need.
#[track_caller]
pub fn can_move() -> bool {
    let pids = std::fs::read_link("/proc/self/ns/pid").unwrap();
    if pids.to_str() != Some("pid:[4026531836]") {
        skipped("moving devices needs the initial PID namespace");
        return false;
    }
    onload_test_needs::root("moving devices")
        && onload_test_needs::programs(&["unshare", "nsenter", "runc", "crun"])
        && onload_test_needs::that(Path::new("/usr/sbin/ip").exists(), "ip is not installed")
}

/// A container in the network namespace of a name, or in the host's. Its hooks have these stand-ins, as `KIND LIST`,
/// and these options.
pub fn container(netns: Option<&str>, stand_ins: &str, options: &[&str]) -> Value {
    let hook = |stage: &str| {
        let mut args = vec!["stand-ins"];
        args.extend(stand_ins.split(' ').chain([stage]));
        args.extend(options);
        json!([{"path": STAND_INS, "args": args, "env": ["PATH=/usr/bin"], "timeout": 20}])
    };
    // What a hook says, crun writes nowhere else.
    let annotations = json!({"run.oci.hooks.stderr": "/tmp/hook.err"});
    let mut config = config(&annotations, "while :; do read -r x < /proc/loadavg; done");
    config["hooks"] = json!({"createRuntime": hook("createRuntime"), "poststop": hook("poststop")});
    if let Some(netns) = netns {
        let own = json!({"type": "network", "path": format!("/run/netns/{netns}")});
        config["linux"]["namespaces"].as_array_mut().unwrap().push(own);
    }
    config
}

/// A sandbox with a bundle for each configuration.
pub fn sandbox(bundles: &[(&str, Value)]) -> Sandbox {
    let example = Path::new(HOOK).with_file_name("examples").join("stand-ins");
    assert!(
        example.exists(),
        "{example:?} does not exist: cargo build -p onload-hooks --example stand-ins"
    );
    let sandbox = Sandbox::new();
    copy_program(example, sandbox.path(STAND_INS));
    for (name, config) in bundles {
        sandbox.root_file_system(&format!("/{name}/rootfs"));
        sandbox.file(&format!("/{name}/config.json"), serde_json::to_vec(config).unwrap());
    }
    sandbox
}

/// Runs a script on such a host with each runtime; what it printed. `devices` makes the stand-ins.
pub fn on_both(sandbox: &Sandbox, stand_ins: &str, devices: &str, script: &str) -> Vec<String> {
    ["runc", "crun"].map(|runtime| on(sandbox, runtime, stand_ins, devices, script)).to_vec()
}

pub fn on(
    sandbox: &Sandbox,
    runtime: &str,
    stand_ins: &str,
    devices: &str,
    script: &str,
) -> String {
    // crun wants one kind of hierarchy.
    let (before, options) = match runtime {
        "crun" => {
            ("umount /sys/fs/cgroup/unified 2>/tmp/said || true", "--cgroup-manager=cgroupfs")
        }
        _ => ("", ""),
    };
    // The cgroups of all tests are the machine's.
    static MADE: AtomicU32 = AtomicU32::new(0);
    let made = MADE.fetch_add(1, Relaxed);
    let id = format!("onload-ctk-{}-{made}", std::process::id());
    let begin = format!(
        "{before}\nFIRST={}\nID={id}\nSTAND_INS='{stand_ins}'\nRUNTIME='{runtime} {options} --root /run/{runtime}'",
        first(),
    );
    let whole = format!("{begin}\n{HOST}\n{devices}\n{script}\n");
    sandbox.file("/script.sh", whole);
    let output = sandbox.script("exec unshare --net sh /script.sh", b"");
    remove_cgroups(&format!("/{id}-"));
    let (out, err) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{runtime}: {out} {err}");
    out
}

/// Removes the cgroups that have `part` in their paths. A container whose runtime has lost its state leaves empty ones.
fn remove_cgroups(part: &str) {
    for entry in WalkDir::new("/sys/fs/cgroup").contents_first(true).into_iter().flatten() {
        if entry.file_type().is_dir() && entry.path().to_string_lossy().contains(part) {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}
