//! Provider libraries of RDMA in containers whose images have all, some or none of them. Libraries of the same names, symbols
//! and versions as rdma-core's stand in for those, built by the linker's own compiler.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

use onload_test_needs as needs;
use onload_test_tree::elf::SharedLibrary;
use serde_json::{Value, json};

use crate::common::{HOOK_THERE, RDMA, Sandbox, config, has_runc, is_root, stderr, stdout, unique};

/// Where an image of Debian has its libraries, and a host of Red Hat.
const IMAGE: &str = "/usr/lib/x86_64-linux-gnu";
const HOST: &str = "/usr/lib64";

/// Compiles a library without libc.
fn library(to: &Path, soname: &str, source: &str, versions: &str, needs: &[&Path]) {
    let dir = tempfile::tempdir().unwrap();
    let (code, script) = (dir.path().join("l.c"), dir.path().join("l.map"));
    fs::write(&code, source).unwrap();
    fs::write(&script, versions).unwrap();
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-nostdlib", "-o"])
        .arg(to)
        .arg(format!("-Wl,-soname,{soname}"))
        .arg(format!("-Wl,--version-script={}", script.display()))
        .arg(&code)
        .args(needs)
        .status()
        .unwrap();
    assert!(status.success());
}

/// libibverbs below `root`, which has its providers in `dir` of it.
fn libibverbs(root: &Path, dir: &str) -> PathBuf {
    let path = root.join(&dir[1..]).join("libibverbs.so.1");
    let source = format!(
        "__attribute__((used)) static const char *const strings[] = {{ \"{dir}/libibverbs/lib%s-rdmav34.so\", \"lib%s-rdmav34.so\", \"/etc/libibverbs.d\" }};
         const char *const *ibv_get_device_list(void) {{ return strings; }}
         void verbs_register_driver_34(void) {{}}"
    );
    let versions = "IBVERBS_1.1 { global: ibv_get_device_list; local: *; };
                    IBVERBS_PRIVATE_34 { global: verbs_register_driver_34; };";
    library(&path, "libibverbs.so.1", &source, versions, &[]);
    path
}

/// The provider of soft-RoCE for a libibverbs, and the file that names it.
fn provider(root: &Path, dir: &str, libibverbs: &Path) {
    let name = "librxe-rdmav34.so";
    let path = root.join(&dir[1..]).join("libibverbs").join(name);
    let source = "extern void verbs_register_driver_34(void);
                  void start(void) { verbs_register_driver_34(); }";
    library(&path, name, source, "{ local: *; };", &[libibverbs]);
    let names = root.join("etc/libibverbs.d");
    fs::create_dir_all(&names).unwrap();
    fs::write(names.join("rxe.driver"), "driver rxe\n").unwrap();
}

/// What an image has of RDMA.
#[derive(Clone, Copy, PartialEq)]
enum Has {
    All,
    Libibverbs,
    Nothing,
}

/// A host with soft-RoCE and its libraries, and a bundle of an image. `setting` is a line under `[cdi]`.
struct Made(Sandbox);

impl Made {
    /// None where no mount namespace can be made.
    fn new(config: &Value, has: Has, setting: &str) -> Option<Made> {
        if !is_root() || !onload_test_needs::programs(&["cc"]) {
            return None;
        }
        let sandbox = Sandbox::new();
        sandbox.file("/sysfs/class/infiniband/rxe0/node_type", "1: CA\n");
        sandbox.file("/sysfs/class/infiniband_verbs/uverbs0/abi_version", "2\n");
        sandbox.bundle(config);
        let image = sandbox.path("/bundle/rootfs");
        if has != Has::Nothing {
            let libibverbs = libibverbs(&image, IMAGE);
            if has == Has::All {
                provider(&image, IMAGE, &libibverbs);
            }
        }
        let host = sandbox.path("/verbs");
        let libibverbs = libibverbs(&host, HOST);
        provider(&host, HOST, &libibverbs);
        let made = Made(sandbox);
        made.configure("", setting);
        Some(made)
    }

    fn configure(&self, annotations: &str, cdi: &str) {
        let text = format!(
            "[annotations]\nallow = [\"rdma\"]\n{annotations}\n[cdi]\nhook-path = {HOOK_THERE:?}\n{cdi}\n"
        );
        self.0.file("/etc/onload-ctk/config.toml", text);
    }

    /// Runs a script where /usr/lib64 of the host has the libraries, and no other directory has any.
    fn script(&self, script: &str, input: &[u8]) -> std::process::Output {
        let prepare = "mkdir /real /rest
             mount --bind /usr/lib/x86_64-linux-gnu /real
             ln -s /real/* /rest
             rm -f /rest/libibverbs* /rest/librdmacm* /rest/librxe*
             cp -a /usr/lib64/. /verbs/usr/lib64/
             mount --bind /verbs/usr/lib64 /usr/lib64
             mount --bind /rest /usr/lib/x86_64-linux-gnu
             if test -d /verbs/etc/libibverbs.d; then cp -a /verbs/etc/libibverbs.d /etc/; fi";
        self.0.script(&format!("{prepare}\n{script}"), input)
    }

    /// What precreate makes of the configuration, or why it refuses it; and what it says.
    fn precreate(&self, config: &Value) -> (Option<Value>, String) {
        let bytes = serde_json::to_vec(config).unwrap();
        let script = format!("cd /bundle && exec {HOOK_THERE} precreate");
        let output = self.script(&script, &bytes);
        let after = serde_json::from_slice(&output.stdout).ok();
        (after.filter(|_| output.status.success()), stderr(&output))
    }

    /// Runs the bundle's container to its end: what it prints, and what is left of it in its root and on the host.
    fn run(&self) -> (String, String) {
        self.run_after(":")
    }

    fn run_after(&self, commands: &str) -> (String, String) {
        let id = unique("container");
        let script = format!(
            "{commands}
             timeout 60 runc --root /run/runc run -b /bundle {id} || exit 1
             echo LEFT; find /bundle/rootfs -size 0 -type f; ls /run/onload-ctk 2>/dev/null | grep {id} || true"
        );
        let output = self.script(&script, b"");
        assert!(output.status.success(), "{}", stderr(&output));
        let printed = stdout(&output);
        let (printed, left) = printed.split_once("LEFT\n").unwrap();
        (printed.to_owned(), left.to_owned())
    }
}

/// Where the host's files are in a container of this configuration.
fn mounted(config: &Value) -> Vec<(String, String)> {
    let mounts = config["mounts"].as_array().unwrap().iter();
    let text = |mount: &Value, key: &str| mount[key].as_str().unwrap_or_default().to_owned();
    let mut ours: Vec<_> = mounts
        .map(|mount| (text(mount, "source"), text(mount, "destination")))
        .filter(|(source, _)| source.contains("ibverbs"))
        .collect();
    ours.sort();
    ours
}

fn asking() -> Value {
    config(&json!({"onload.dev/rdma": "rxe0"}), "true")
}

/// A container as an engine makes it of `--device onload.dev/rdma=rxe0`.
fn given(command: &str, setting: &str) -> Value {
    let mut config = config(&json!({}), command);
    let args = |stage: &str| {
        json!([
            "onload-hook",
            stage,
            "--memlock",
            "unlimited",
            "--expect",
            "/dev/infiniband/uverbs0=rdma:rxe0",
            "--rdma-libraries",
            setting
        ])
    };
    let hook = |stage: &str| json!([{"path": HOOK_THERE, "args": args(stage), "env": ["PATH=/usr/sbin:/usr/bin"], "timeout": 10}]);
    config["hooks"] = json!({"createRuntime": hook("createRuntime"), "poststop": hook("poststop")});
    config["linux"]["devices"] = json!([{"path": "/dev/infiniband/uverbs0", "type": "c", "major": 1, "minor": 7, "fileMode": 438}]);
    config
}

/// Says which files of RDMA have something in them.
const LOOK: &str = "for f in /usr/lib/x86_64-linux-gnu/libibverbs.so.1 /usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so /usr/lib64/libibverbs.so.1 /usr/lib64/libibverbs/librxe-rdmav34.so /etc/libibverbs.d/rxe.driver; do test -s $f && echo $f; done; :";

#[test]
fn an_image_without_the_provider_gets_the_host_s_and_nothing_of_it_is_covered() {
    let Some(made) = Made::new(&asking(), Has::Libibverbs, "") else {
        return;
    };
    let (after, message) = made.precreate(&asking());
    let files = [
        ("/etc/libibverbs.d/rxe.driver", "/etc/libibverbs.d/rxe.driver"),
        (
            "/usr/lib64/libibverbs/librxe-rdmav34.so",
            "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so",
        ),
    ]
    .map(|(from, to)| (from.to_owned(), to.to_owned()));
    assert_eq!(mounted(&after.clone().expect(&message)), files, "{message}");
    // What it has then is left as it is.
    let twice = made.precreate(&after.clone().unwrap());
    assert_eq!(twice.0, after, "{}", twice.1);
}

#[test]
fn a_device_that_is_in_another_network_namespace_already_brings_libraries_too() {
    let Some(made) = Made::new(&asking(), Has::Libibverbs, "") else {
        return;
    };
    let moves = "rxe0@0000:3b:00.0";
    let args = json!([
        "onload-hook",
        "createRuntime",
        "--lease",
        "rdma:rxe0",
        "--rdma-netns",
        moves,
        "--rdma-libraries",
        "auto"
    ]);
    let hooks = json!([{"hookName": "createRuntime", "path": HOOK_THERE, "args": args}]);
    let spec = json!({"cdiVersion": "0.3.0", "kind": "onload.dev/rdma", "devices": [
        {"name": "rxe0", "containerEdits": {"hooks": hooks}}]});
    made.0.file("/run/cdi/onload.dev-rdma.json", spec.to_string());
    // The kernel shows its node to all namespaces.
    made.0.tree.remove("/sysfs/class/infiniband/rxe0");
    let driver = "/sysfs/class/infiniband_verbs/uverbs0/device/driver";
    made.0.tree.link(driver, "/sys/bus/pci/drivers/rdma_rxe");
    let (after, message) = made.precreate(&asking());
    assert_eq!(mounted(&after.expect(&message)).len(), 2, "{message}");
}

#[test]
fn an_image_without_libibverbs_gets_the_host_s_set() {
    let Some(made) = Made::new(&asking(), Has::Nothing, "") else {
        return;
    };
    let (after, message) = made.precreate(&asking());
    let mounted = mounted(&after.expect(&message));
    let at = |path: &str| mounted.iter().any(|(_, to)| to == path);
    for path in [
        "/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
        "/usr/lib64/libibverbs/librxe-rdmav34.so",
        "/etc/libibverbs.d/rxe.driver",
    ] {
        assert!(at(path), "{path}: {mounted:?}");
    }
}

/// As podman has it in a user namespace.
#[test]
fn an_image_that_podman_mounts_after_precreate_is_judged_by_the_hook_of_the_specification() {
    if !has_runc() {
        return;
    }
    let mut config = config(&json!({"onload.dev/rdma": "rxe0"}), LOOK);
    config["root"]["path"] = json!("/later");
    let Some(made) = Made::new(&config, Has::Libibverbs, "") else {
        return;
    };
    let spec = RDMA.replace("\"--expect\"", "\"--rdma-libraries\",\"auto\",\"--expect\"");
    made.0.file("/run/cdi/onload.dev-rdma.json", spec);
    made.0.mkdir("/later");
    let hook = |after: Value| after["hooks"]["createRuntime"][0]["args"].to_string();
    let (after, message) = made.precreate(&config);
    assert!(hook(after.expect(&message)).contains("--rdma-libraries"));
    let (printed, _) = made.run_after(&format!(
        "cd /bundle && {HOOK_THERE} precreate < config.json > after && mv after config.json
         mount --bind rootfs /later"
    ));
    let expected = format!(
        "{IMAGE}/libibverbs.so.1\n{IMAGE}/libibverbs/librxe-rdmav34.so\n/etc/libibverbs.d/rxe.driver\n"
    );
    assert_eq!(printed, expected);
    // A root that is there is judged before.
    config["root"]["path"] = json!("rootfs");
    let (after, message) = made.precreate(&config);
    assert!(!hook(after.expect(&message)).contains("--rdma-libraries"));
}

#[test]
fn an_image_that_has_all_keeps_its_own() {
    let Some(made) = Made::new(&asking(), Has::All, "") else {
        return;
    };
    let (after, message) = made.precreate(&asking());
    assert_eq!(mounted(&after.expect(&message)), []);
    assert!(!message.contains("librar"), "{message}");
}

#[test]
fn where_nothing_fits_the_operator_chooses_between_a_refusal_and_a_warning() {
    let Some(made) = Made::new(&asking(), Has::Libibverbs, "") else {
        return;
    };
    made.0.tree.remove("/verbs/usr/lib64/libibverbs/librxe-rdmav34.so");
    let (after, message) = made.precreate(&asking());
    assert!(after.is_none() && message.contains("rxe"), "{message}");
    assert!(message.contains("annotation \"onload.dev/rdma\": "), "{message}");
    assert!(message.contains("or set on-incompatible = \"skip\""), "{message}");
    made.configure("on-incompatible = \"skip\"", "");
    let (after, message) = made.precreate(&asking());
    assert_eq!(mounted(&after.expect(&message)), []);
    assert!(message.contains("warning: rxe0 may not work: "), "{message}");
}

#[test]
fn a_device_that_nothing_serves_is_named_and_takes_no_libraries_from_another() {
    let asking = config(&json!({"onload.dev/rdma": "rxe0,rxe1"}), "true");
    let Some(made) = Made::new(&asking, Has::Libibverbs, "") else {
        return;
    };
    // Soft-iWARP, of which neither side has the provider.
    made.0.file("/sysfs/class/infiniband/rxe1/node_type", "4: RNIC\n");
    let (after, message) = made.precreate(&asking);
    assert!(after.is_none(), "{message}");
    let why = format!("rxe1: the image has no provider \"{IMAGE}/libibverbs/libsiw-rdmav34.so\"; ");
    let refused = format!("annotation \"onload.dev/rdma\": {why}");
    assert!(message.contains(&refused), "{message}");
    made.configure("on-incompatible = \"skip\"", "");
    let (after, message) = made.precreate(&asking);
    assert_eq!(mounted(&after.expect(&message)).len(), 2, "{message}");
    let warning = format!("warning: rxe0, rxe1 may not work: {why}");
    assert!(message.contains(&warning), "{message}");
}

#[test]
fn image_mounts_nothing_and_says_what_is_missing() {
    let Some(made) = Made::new(&asking(), Has::Libibverbs, "rdma-libraries = \"image\"") else {
        return;
    };
    let (after, message) = made.precreate(&asking());
    assert!(after.is_none(), "{message}");
    let why = "the image has no provider library for rxe0; rdma-libraries = \"auto\" would mount the host's";
    assert!(message.contains(why), "{message}");
}

#[test]
fn off_looks_at_nothing() {
    let Some(made) = Made::new(&asking(), Has::Nothing, "rdma-libraries = \"off\"") else {
        return;
    };
    let (after, message) = made.precreate(&asking());
    assert_eq!(mounted(&after.expect(&message)), []);
    assert!(!message.contains("librar"), "{message}");
}

#[test]
fn a_mount_of_the_container_s_own_is_not_covered() {
    let mut config = asking();
    let own = json!({"destination": "/etc/libibverbs.d", "type": "bind", "source": "/opt", "options": ["rbind"]});
    config["mounts"].as_array_mut().unwrap().push(own);
    let Some(made) = Made::new(&config, Has::Libibverbs, "") else {
        return;
    };
    made.configure("on-incompatible = \"skip\"", "");
    let (after, message) = made.precreate(&config);
    assert_eq!(mounted(&after.expect(&message)), []);
    assert!(message.contains("/etc/libibverbs.d"), "{message}");
}

#[test]
fn libraries_that_the_user_mounts_through_a_link_of_the_image_are_kept() {
    // /lib is a link to /usr/lib there.
    for (own, has) in [
        ("libibverbs/librxe-rdmav34.so", Has::Libibverbs),
        ("libibverbs", Has::Libibverbs),
        ("libibverbs.so.1", Has::Nothing),
    ] {
        let destination = format!("/lib/x86_64-linux-gnu/{own}");
        let mut config = asking();
        let mount = json!({"destination": destination, "type": "bind", "source": "/opt", "options": ["rbind"]});
        config["mounts"].as_array_mut().unwrap().push(mount);
        let Some(made) = Made::new(&config, has, "") else {
            return;
        };
        let (after, message) = made.precreate(&config);
        assert_eq!(mounted(&after.expect(&message)), [], "{own}");
    }
}

#[test]
fn a_device_of_the_engine_s_comes_with_libraries_by_its_hook_and_leaves_nothing() {
    if !has_runc() {
        return;
    }
    let Some(made) = Made::new(&given(LOOK, "auto"), Has::Libibverbs, "") else {
        return;
    };
    let (printed, left) = made.run();
    let expected = format!(
        "{IMAGE}/libibverbs.so.1\n{IMAGE}/libibverbs/librxe-rdmav34.so\n/etc/libibverbs.d/rxe.driver\n"
    );
    assert_eq!((printed, left), (expected, String::new()));
}

#[test]
fn the_hook_mounts_a_whole_set_where_the_image_has_no_libibverbs() {
    if !has_runc() {
        return;
    }
    let Some(made) = Made::new(&given(LOOK, "auto"), Has::Nothing, "") else {
        return;
    };
    let (printed, left) = made.run();
    for file in
        ["/usr/lib/x86_64-linux-gnu/libibverbs.so.1", "/usr/lib64/libibverbs/librxe-rdmav34.so"]
    {
        assert!(printed.contains(file), "{printed}");
    }
    assert_eq!(left, "");
}

#[test]
fn the_hook_leaves_an_image_that_has_all_and_says_nothing() {
    if !has_runc() {
        return;
    }
    let count = "n=0; while read -r a b c d point rest; do case $point in *ibverbs*) n=$((n+1));; esac; done < /proc/self/mountinfo; echo $n";
    let Some(made) = Made::new(&given(count, "auto"), Has::All, "") else {
        return;
    };
    assert_eq!(made.run(), ("0\n".to_owned(), String::new()));
}

#[test]
fn a_container_starts_with_a_warning_where_the_hook_may_mount_nothing() {
    if !has_runc() {
        return;
    }
    let Some(made) = Made::new(&given(LOOK, "auto"), Has::Libibverbs, "") else {
        return;
    };
    let log = "[log]\nfile = \"/var/log/onload.log\"\n";
    made.configure("live-devices = false", log);
    made.0.mkdir("/var/log");
    made.0.mkdir("/dev");
    let journal = UnixDatagram::bind(made.0.path("/dev/log")).unwrap();
    journal.set_nonblocking(true).unwrap();
    let (printed, left) = made.run();
    assert_eq!((printed, left), (format!("{IMAGE}/libibverbs.so.1\n"), String::new()));
    let message = fs::read_to_string(made.0.path("/var/log/onload.log")).unwrap();
    let why = "onload.dev/rdma=rxe0: the host's provider libraries, which the container needs, are not mounted: live-devices = false in ";
    assert!(message.contains(why), "{message}");
    let lines = received(&journal);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("<28>onload-hook["), "{lines:?}");
    assert!(lines[0].contains(why), "{lines:?}");
}

/// What programs have sent to the system log. Where this machine's root may raise no limit, that is another line.
fn received(journal: &UnixDatagram) -> Vec<String> {
    let mut bytes = [0; 64 * 1024];
    let line = |_| {
        let length = journal.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
    };
    let lines = (0..).map_while(line);
    lines.filter(|line| !line.contains(": RLIMIT_MEMLOCK ")).collect()
}

/// Starts a container that the hook refuses. Returns what the runtime printed, and the lines of the system log.
fn refusal(runtime: &str) -> Option<(String, Vec<String>)> {
    if !has_runc() {
        return None;
    }
    let mut config = given(LOOK, "auto");
    config["linux"]["devices"] = json!([]);
    let made = Made::new(&config, Has::Libibverbs, "")?;
    made.0.mkdir("/dev");
    made.0.mkdir("/run/mount");
    let journal = UnixDatagram::bind(made.0.path("/dev/log")).unwrap();
    journal.set_nonblocking(true).unwrap();
    let id = unique("container");
    let script = format!("exec timeout 60 {runtime} --root /run/runc run -b /bundle {id}");
    let output =
        made.0.script(&format!("umount /sys/fs/cgroup/unified 2> /tmp/said\n{script}"), b"");
    assert!(!output.status.success());
    Some((stderr(&output), received(&journal)))
}

const REFUSAL: &str = "config.json has no such node";

#[test]
fn a_hook_that_fails_is_told_by_runc_and_not_in_the_system_log_too() {
    let Some((message, lines)) = refusal("runc") else {
        return;
    };
    assert!(message.contains(REFUSAL), "{message}");
    assert_eq!(lines, [""; 0]);
}

/// crun's hooks have /dev/null as standard error, so podman has nothing to show. README.md names the command that does.
#[test]
fn a_refusal_that_crun_does_not_show_is_in_the_system_log() {
    if !needs::programs(&["crun"]) {
        return;
    }
    let Some((message, lines)) = refusal("crun --cgroup-manager=cgroupfs") else {
        return;
    };
    assert!(message.contains("error executing hook") && !message.contains(REFUSAL), "{message}");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("<27>onload-hook[") && lines[0].contains(REFUSAL), "{lines:?}");
}

#[test]
fn an_image_that_nothing_fits_is_recorded_with_the_reason_while_it_runs() {
    if !has_runc() {
        return;
    }
    let Some(made) = Made::new(&given("sleep 100", "auto"), Has::Libibverbs, "") else {
        return;
    };
    made.0.tree.remove("/verbs/usr/lib64/libibverbs/librxe-rdmav34.so");
    // The image's author chooses a version that is needed, and so what the reason says.
    let forged = "IBVERBS_PRIVATE_34\n<0>kernel: forged\u{1b}[2J";
    let provider = SharedLibrary::new("librxe-rdmav34.so").needs(
        "libibverbs.so.1",
        forged,
        &["verbs_register_driver_34"],
    );
    let path = format!("/bundle/rootfs{IMAGE}/libibverbs/librxe-rdmav34.so");
    made.0.file(&path, provider.bytes());
    made.0.mkdir("/dev");
    let journal = UnixDatagram::bind(made.0.path("/dev/log")).unwrap();
    journal.set_nonblocking(true).unwrap();
    let id = unique("container");
    let script = format!(
        "timeout 60 runc --root /run/runc run --detach -b /bundle {id} </dev/null >/dev/null 2>&1
         cat /run/onload-ctk/{id}/record.json
         runc --root /run/runc delete --force {id}
         ls /run/onload-ctk | grep {id} || true"
    );
    let printed = stdout(&made.0.script(&script, b""));
    // One line, so the directory is gone with the container.
    let record: Value = serde_json::from_str(&printed).expect(&printed);
    let why = record["live"]["libraryWarnings"][0].as_str().unwrap();
    let says = ["onload.dev/rdma=rxe0: the image's provider ", " of libibverbs.so.1, and "];
    for part in says {
        assert!(why.contains(part), "{why}");
    }
    let lines = received(&journal);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("forged") && lines[0].contains("\\n<0>"), "{lines:?}");
    assert!(!lines[0].contains(['\n', '\u{1b}']), "{lines:?}");
}
