//! `root-with-onload = "refuse"` against an image with its own ways to become user 0, on this
//! machine's runc.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{Sandbox, WRAPPER_THERE, config, has_runc, stderr, stdout, unique};
use onload_test_tree::copy_program;
use serde_json::{Value, json};

/// What containerd permits every process of a pod, whoever its user is.
const USUAL: [&str; 14] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_MKNOD",
    "CAP_NET_RAW",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_KILL",
    "CAP_AUDIT_WRITE",
];

/// Becomes user 0 through the image's program and opens Onload. The runtime executes that program
/// directly, since a plain program would lose the permitted set.
const ATTACK: [&str; 6] =
    ["/bin/setpriv", "--reuid", "0", "/bin/sh", "-c", "exec 3<>/dev/onload && echo opened as root"];

const PLAIN: [&str; 3] = ["/bin/sh", "-c", "echo started"];

const STAYED: &str = "setresuid failed";

fn process(args: &[&str]) -> Value {
    json!({
        "user": {"uid": 1000, "gid": 1000},
        "args": args,
        "env": ["PATH=/usr/bin:/bin"],
        "cwd": "/",
        "noNewPrivileges": true,
        "capabilities": {"bounding": USUAL, "effective": USUAL, "permitted": USUAL}
    })
}

/// A container of user 1000 as containerd's CRI creates it with `allowPrivilegeEscalation: false`,
/// whose image has a program with `cap_setuid+ep`.
fn sandbox(policy: &str, args: &[&str]) -> (Sandbox, Value) {
    let sandbox = Sandbox::new();
    sandbox.allow(&["nic"], &format!("root-with-onload = {policy:?}"));
    let mut config = config(&json!({"onload.dev/nic": "all", "onload.dev/preload": "off"}), ":");
    config["process"] = process(args);
    sandbox.bundle(&config);
    let program = sandbox.path("/bundle/rootfs/bin/setpriv");
    copy_program("/usr/bin/setpriv", &program);
    let library = "usr/lib/x86_64-linux-gnu/libcap-ng.so.0";
    std::fs::copy(
        std::path::Path::new("/").join(library),
        sandbox.path(&format!("/bundle/rootfs/{library}")),
    )
    .unwrap();
    // struct vfs_ns_cap_data of revision 2, with the effective bit and CAP_SETUID permitted.
    let mut capability = [0_u8; 20];
    capability[..4].copy_from_slice(&0x0200_0001_u32.to_le_bytes());
    capability[4..8].copy_from_slice(&(1_u32 << 7).to_le_bytes());
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&program, "security.capability", &capability, flags).unwrap();
    (sandbox, config)
}

fn run(sandbox: &Sandbox, id: &str) -> std::process::Output {
    sandbox.script(&format!("exec {WRAPPER_THERE} --root /run/runc run -b /bundle {id}"), b"")
}

#[test]
fn a_program_of_the_image_with_file_capabilities_does_not_become_the_host_s_root() {
    if !has_runc() {
        return;
    }
    let (open, _) = sandbox("warn", &ATTACK);
    let output = run(&open, &unique("warn"));
    assert_eq!(stdout(&output), "opened as root\n", "the attack itself works");
    let (closed, _) = sandbox("refuse", &ATTACK);
    let output = run(&closed, &unique("refuse"));
    assert_eq!(stdout(&output), "");
    assert!(stderr(&output).contains(STAYED), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("CAP_SETUID is removed from the container"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_later_process_of_the_container_does_not_become_the_host_s_root_either() {
    if !has_runc() || !onload_test_needs::no_chroot("runc exec") {
        return;
    }
    let forever = ["/bin/sh", "-c", "while :; do read -r x < /proc/loadavg; done"];
    let (sandbox, _) = sandbox("refuse", &forever);
    let exec = serde_json::to_vec(&process(&ATTACK)).unwrap();
    sandbox.file("/bundle/exec.json", exec);
    let id = unique("exec");
    let script = format!(
        "r='{WRAPPER_THERE} --root /run/runc'
         again() {{ cp /bundle/exec.json /opt/exec.json; }}
         $r create -b /bundle {id} > /tmp/out 2>&1 < /dev/null || exit 10
         $r start {id} || exit 11
         echo wrapper; again; $r exec --process /opt/exec.json {id} 2>&1
         echo words; $r exec {id} {attack} 2>&1
         echo past it; again; runc --root /run/runc exec --process /opt/exec.json {id} 2>&1
         $r delete {id} 2> /dev/null && exit 12
         echo not deleted; again; $r exec --process /opt/exec.json {id} 2>&1
         echo no file; $r exec --process /opt/none.json {id} 2>&1 && exit 13
         $r delete --force {id} || exit 14",
        attack = "/bin/setpriv --reuid 0 /bin/sh -c 'echo opened as root'"
    );
    let output = sandbox.script(&script, b"");
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text} {}", stderr(&output));
    let lines: Vec<&str> = text.lines().collect();
    let assert_line =
        |at: usize, part: &str| assert!(lines[at].contains(part), "{at} {part}: {text}");
    assert_eq!(lines.len(), 10, "{text}");
    assert_line(1, STAYED);
    assert_line(3, STAYED);
    assert_eq!(lines[5], "opened as root", "the attack itself works");
    assert_line(7, STAYED);
    assert_line(9, "none.json");
}

#[test]
fn other_ways_to_root_are_refused_and_nothing_starts() {
    if !has_runc() {
        return;
    }
    let (sandbox, plain) = sandbox("refuse", &PLAIN);
    let refused = |config: &Value, part: &str| {
        sandbox.file("/bundle/config.json", serde_json::to_vec(config).unwrap());
        let output = run(&sandbox, &unique("ways"));
        assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
        assert_eq!(stdout(&output), "");
        assert!(stderr(&output).contains(part), "{part}: {}", stderr(&output));
    };
    let mut config = plain.clone();
    config["process"]["noNewPrivileges"] = json!(false);
    refused(&config, "set-user-ID");
    let mut config = plain.clone();
    config["process"]["capabilities"]["ambient"] = json!(["CAP_SETUID"]);
    config["process"]["capabilities"]["inheritable"] = json!(["CAP_SETUID"]);
    refused(&config, "drop CAP_SETUID");
    let mut config = plain.clone();
    config["process"]["capabilities"]["permitted"] = json!(["CAP_SYS_PTRACE"]);
    refused(&config, "drop CAP_SYS_PTRACE");
    let mut config = plain.clone();
    config["process"]["user"]["uid"] = json!(0);
    refused(&config, "is the host's user 0");
    let mut config = plain;
    config["process"]["user"]["uid"] = json!(0);
    config["linux"]["namespaces"].as_array_mut().unwrap().push(json!({"type": "user"}));
    let mappings = json!([{"containerID": 0, "hostID": 100_000, "size": 5}, {"containerID": 5, "hostID": 0, "size": 1}]);
    config["linux"]["uidMappings"] = mappings.clone();
    config["linux"]["gidMappings"] = mappings;
    refused(&config, "drop CAP_SETUID");
}

/// In runc, a process without the object holds no capability at all, so it starts.
#[test]
fn a_process_without_capabilities_starts_and_has_none() {
    if !has_runc() {
        return;
    }
    let (sandbox, mut config) = sandbox("refuse", &ATTACK);
    config["process"].as_object_mut().unwrap().remove("capabilities");
    sandbox.file("/bundle/config.json", serde_json::to_vec(&config).unwrap());
    let output = run(&sandbox, &unique("none"));
    assert_eq!(stdout(&output), "");
    let message = stderr(&output);
    assert!(message.contains("operation not permitted"), "{message}");
    assert!(!message.contains("root-with-onload"), "{message}");
}

#[test]
fn a_container_whose_later_processes_nobody_could_look_at_is_refused() {
    if !has_runc() {
        return;
    }
    let (sandbox, _) = sandbox("refuse", &ATTACK);
    sandbox.mkdir("/run/onload-ctk/@runtimes");
    sandbox.chmod("/run/onload-ctk/@runtimes", 0o755);
    let output = run(&sandbox, &unique("unguarded"));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stdout(&output), "");
    assert!(stderr(&output).contains("/run/onload-ctk"), "{}", stderr(&output));
}
