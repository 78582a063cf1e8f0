//! A host of its own for one test: a root directory with the configuration, specifications, sysfs
//! and device nodes that the test wants, entered by pivot_root in a private mount namespace. What runs
//! there is real: this machine's runc, the kernel's cgroups, the binaries of this crate.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests"
)]

pub mod moving;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use oci_spec::runtime::Spec;
use onload_test_tree::{Tree, copy_program};
use procfs_core::FromRead;
use procfs_core::process::Stat;
use rustix::process::{Pid, Signal, kill_process};
use walkdir::WalkDir;

pub const HOOK: &str = env!("CARGO_BIN_EXE_onload-hook");
pub const WRAPPER: &str = env!("CARGO_BIN_EXE_onload-container-runtime");

/// Where the binaries stand in the sandbox.
pub const HOOK_THERE: &str = "/opt/onload/onload-hook";
pub const WRAPPER_THERE: &str = "/opt/onload/onload-container-runtime";

/// Says why a test does not test anything; it fails where everything is required.
#[track_caller]
pub fn skipped(reason: &str) {
    let _ = onload_test_needs::that(false, reason);
}

/// Whether a sandbox can be entered here.
#[track_caller]
pub fn is_root() -> bool {
    onload_test_needs::mount_namespace("entering a sandbox")
}

/// Whether a bundle can be run here.
#[track_caller]
pub fn has_runc() -> bool {
    is_root() && onload_test_needs::programs(&["runc"])
}

pub struct Sandbox {
    pub tree: Tree,
}

/// A specification of one device with Onload's usual edits. `/dev/onload` is a node like /dev/zero.
pub const NIC: &str = r#"{"cdiVersion":"0.3.0","kind":"onload.dev/nic",
  "containerEdits":{
    "deviceNodes":[{"path":"/dev/onload","permissions":"rw"},{"path":"/dev/onload_epoll","permissions":"rw"}],
    "mounts":[{"hostPath":"/opt/onload/lib/libonload.so","containerPath":"/usr/lib/x86_64-linux-gnu/libonload.so","options":["ro","nosuid","nodev","bind"]},
              {"hostPath":"/opt/onload/lib/libonload.so","containerPath":"/usr/lib64/libonload.so","options":["ro","nosuid","nodev","bind"]}],
    "env":["LD_PRELOAD=libonload.so","EF_FDTABLE_SIZE=524288"]},
  "devices":[{"name":"all","containerEdits":{"env":["ONLOAD_CTK_NIC_ENS1=ens1"]}},
             {"name":"ens1","containerEdits":{"env":["ONLOAD_CTK_NIC_ENS1=ens1"]}}]}"#;

/// Two HCAs without a PCI function; the nodes are like /dev/full and /dev/null.
pub const RDMA: &str = r#"{"cdiVersion":"0.3.0","kind":"onload.dev/rdma",
  "devices":[{"name":"rxe0","containerEdits":{"deviceNodes":[{"path":"/dev/infiniband/uverbs0","permissions":"rw"}],
      "hooks":[{"hookName":"createRuntime","path":"/opt/onload/onload-hook","args":["onload-hook","createRuntime","--memlock","unlimited","--expect","/dev/infiniband/uverbs0=rdma:rxe0"],"env":["PATH=/usr/sbin:/usr/bin"],"timeout":10}],
      "env":["ONLOAD_CTK_RDMA_RXE0=rxe0"]}},
    {"name":"rxe1","containerEdits":{"deviceNodes":[{"path":"/dev/infiniband/uverbs1","permissions":"rw"}],
      "hooks":[{"hookName":"createRuntime","path":"/opt/onload/onload-hook","args":["onload-hook","createRuntime","--expect","/dev/infiniband/uverbs1=rdma:rxe1"],"env":["PATH=/usr/sbin:/usr/bin"],"timeout":10}]}}]}"#;

impl Sandbox {
    pub fn new() -> Self {
        let sandbox = Sandbox { tree: Tree::on_disk() };
        for dir in [
            "dev/infiniband",
            "etc/onload-ctk",
            "etc/cdi",
            "opt/onload/lib",
            "proc",
            "root",
            "run/cdi",
            "sys",
            "tmp",
            "var",
            "usr/share/onload-ctk",
            "usr/bin",
            "usr/sbin",
            "usr/lib",
            "usr/lib64",
            "usr/local",
        ] {
            sandbox.mkdir(dir);
        }
        for (link, target) in [
            ("bin", "usr/bin"),
            ("sbin", "usr/sbin"),
            ("lib", "usr/lib"),
            ("lib64", "usr/lib64"),
            ("var/run", "/run"),
        ] {
            sandbox.tree.link(link, target);
        }
        copy_program(HOOK, sandbox.path(HOOK_THERE));
        copy_program(WRAPPER, sandbox.path(WRAPPER_THERE));
        sandbox.file("/usr/share/onload-ctk/ld.so.preload", "libonload.so\n");
        sandbox.library();
        sandbox.nodes();
        sandbox.sysfs("uverbs0", "rxe0", "1:7");
        sandbox.sysfs("uverbs1", "rxe1", "1:3");
        sandbox.file("/etc/cdi/onload.dev-nic.json", NIC);
        sandbox.file("/run/cdi/onload.dev-rdma.json", RDMA);
        sandbox.allow(&["nic", "rdma"], "");
        sandbox
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.tree.path(path)
    }

    pub fn mkdir(&self, path: &str) {
        self.tree.directory(path);
    }

    pub fn chmod(&self, path: &str, mode: u32) {
        self.tree.chmod(path, mode);
    }

    pub fn file(&self, path: &str, text: impl AsRef<[u8]>) {
        self.tree.file(path, text);
    }

    pub fn read(&self, path: &str) -> String {
        self.tree.read(path)
    }

    /// Allows classes by annotation; `more` is the rest of the configuration.
    pub fn allow(&self, classes: &[&str], more: &str) {
        let classes: Vec<String> = classes.iter().map(|class| format!("{class:?}")).collect();
        let text = format!(
            "[annotations]\nallow = [{}]\n{more}\n[cdi]\nhook-path = {HOOK_THERE:?}\nrdma-libraries = \"off\"\n",
            classes.join(", ")
        );
        self.file("/etc/onload-ctk/config.toml", text);
    }

    fn library(&self) {
        // Any shared library does: it is loaded, not called.
        let found = [
            "/lib/x86_64-linux-gnu/libutil.so.1",
            "/lib/x86_64-linux-gnu/libdl.so.2",
            "/lib64/libdl.so.2",
        ]
        .into_iter()
        .find(|path| Path::new(path).exists());
        match found {
            Some(path) => {
                fs::copy(path, self.path("/opt/onload/lib/libonload.so")).unwrap();
            }
            None => self.file("/opt/onload/lib/libonload.so", "no library here"),
        }
    }

    fn nodes(&self) {
        for (name, minor) in [("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9)]
        {
            self.node(&format!("/dev/{name}"), 1, minor);
        }
        self.node("/dev/tty", 5, 0);
        self.node("/dev/onload", 1, 5);
        self.node("/dev/onload_epoll", 1, 5);
        self.node("/dev/infiniband/uverbs0", 1, 7);
        self.node("/dev/infiniband/uverbs1", 1, 3);
    }

    /// A device node; one of Onload's is its driver's own.
    pub fn node(&self, path: &str, major: u32, minor: u32) {
        if let "/dev/onload" | "/dev/onload_epoll" = path {
            let name = path.trim_start_matches("/dev/");
            self.driver(name, &format!("{major}:{minor}"));
        }
        self.tree.real_node(path, major, minor);
    }

    /// A verbs node as the kernel shows it, in a tree that is mounted over /sys/class.
    pub fn sysfs(&self, node: &str, ibdev: &str, numbers: &str) {
        let verbs = format!("/sysfs/class/infiniband_verbs/{node}");
        self.tree.attributes(&verbs, &[("ibdev", ibdev), ("dev", numbers)]);
        self.mkdir(&format!("/sysfs/class/infiniband/{ibdev}"));
    }

    /// The numbers that Onload's driver gives its node of that name.
    pub fn driver(&self, name: &str, numbers: &str) {
        self.tree.attribute(&format!("/sysfs/class/{name}/{name}/dev"), numbers);
    }

    /// Runs a shell script in the sandbox. Its standard input is what is given, its name `$0`.
    pub fn script(&self, script: &str, input: &[u8]) -> Output {
        let (child, feeder) = self.start(script, input);
        let output = child.wait_with_output().unwrap();
        feeder.join().unwrap();
        output
    }

    /// As [`Sandbox::script`], for what may hang: then it and all that it started is killed, and the
    /// test fails with a line.
    pub fn script_within(&self, timeout: Duration, script: &str) -> Output {
        let (child, feeder) = self.start(script, b"");
        let pid = child.id();
        let (done, is_done) = mpsc::channel();
        std::thread::spawn(move || done.send(child.wait_with_output().unwrap()));
        let output = is_done.recv_timeout(timeout);
        if output.is_err() {
            kill_all(pid);
        }
        assert!(output.is_ok(), "no end after {} s: {script}", timeout.as_secs());
        feeder.join().unwrap();
        output.unwrap()
    }

    fn start(&self, script: &str, input: &[u8]) -> (Child, JoinHandle<()>) {
        let root = self.tree.root().display();
        let enter = format!(
            "set -e
             mount --bind {root} {root}
             cd {root}
             for d in usr/bin usr/sbin usr/lib usr/lib64 usr/local proc; do mount --rbind /$d $d; done
             mount -t tmpfs none sys
             mkdir -p sys/fs/cgroup sys/class sys/kernel
             mount --rbind /sys/fs/cgroup sys/fs/cgroup
             mount --rbind /sys/kernel sys/kernel
             mount --bind sysfs/class sys/class
             if test -d sysfs/devices; then mkdir sys/devices; mount --bind sysfs/devices sys/devices; fi
             pivot_root . tmp
             umount -n -l /tmp
             exec /bin/sh -c \"$SCRIPT\" sh"
        );
        let mut child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", &enter])
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("SCRIPT", format!("cd /; {script}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let bytes = input.to_vec();
        let feeder = std::thread::spawn(move || {
            // A program that stops reading early is one of the things tested.
            let _ = stdin.write_all(&bytes);
        });
        (child, feeder)
    }

    /// Runs `onload-hook precreate` in `/bundle`.
    pub fn precreate(&self, config: &[u8]) -> Output {
        self.script(&format!("cd /bundle && exec {HOOK_THERE} precreate"), config)
    }

    /// Makes `/bundle` with a root file system of the host's own shell, and writes `config.json`.
    pub fn bundle(&self, config: &serde_json::Value) {
        self.root_file_system("/bundle/rootfs");
        self.file("/bundle/config.json", serde_json::to_vec(config).unwrap());
    }

    /// A root file system with a dynamic shell, its loader and its libc.
    pub fn root_file_system(&self, at: &str) {
        for dir in
            ["bin", "dev", "proc", "sys", "etc", "tmp", "usr/lib64", "usr/lib/x86_64-linux-gnu"]
        {
            self.mkdir(&format!("{at}/{dir}"));
        }
        for (link, target) in [("lib64", "usr/lib64"), ("lib", "usr/lib")] {
            self.tree.link(&format!("{at}/{link}"), target);
        }
        for (from, to) in [
            ("/bin/dash", "bin/sh"),
            ("/lib64/ld-linux-x86-64.so.2", "usr/lib64/ld-linux-x86-64.so.2"),
            ("/lib/x86_64-linux-gnu/libc.so.6", "usr/lib/x86_64-linux-gnu/libc.so.6"),
        ] {
            fs::copy(from, self.path(&format!("{at}/{to}"))).unwrap();
        }
    }

    /// Every file of the sandbox outside `/bundle` and `/run/runc`, with what it holds. What the wrapper
    /// remembers of containers is left out, and the directory that is made for it.
    pub fn snapshot(&self) -> Vec<(PathBuf, String)> {
        let mut entries = snapshot(self.tree.root());
        entries.sort();
        entries
    }
}

/// Kills a process and those below it.
fn kill_all(pid: u32) {
    let below = children(pid);
    let own = i32::try_from(pid).ok().and_then(Pid::from_raw).unwrap();
    let _ = kill_process(own, Signal::KILL);
    below.into_iter().for_each(kill_all);
}

fn children(parent_pid: u32) -> Vec<u32> {
    let parent = |pid: u32| {
        let stat = Stat::from_file(format!("/proc/{pid}/stat")).ok()?;
        u32::try_from(stat.ppid).ok()
    };
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| parent(*pid) == Some(parent_pid))
        .collect()
}

fn snapshot(root: &Path) -> Vec<(PathBuf, String)> {
    const LEFT_OUT: [&str; 5] =
        ["bundle", "run/runc", "run/onload-ctk/@locks", "run/onload-ctk/@runtimes", "tmp"];
    let name = |path: &Path| path.strip_prefix(root).unwrap().to_owned();
    WalkDir::new(root)
        .min_depth(1)
        .into_iter()
        .filter_entry(|entry| !LEFT_OUT.iter().any(|left| name(entry.path()) == Path::new(left)))
        .map(|entry| entry.unwrap())
        .filter(|entry| name(entry.path()) != Path::new("run/onload-ctk"))
        .map(|entry| (name(entry.path()), description(entry.path())))
        .collect()
}

fn description(path: &Path) -> String {
    let stat = fs::symlink_metadata(path).unwrap();
    let content = if stat.is_symlink() {
        format!("-> {}", fs::read_link(path).unwrap().display())
    } else if stat.is_file() {
        let bytes = fs::read(path).unwrap();
        format!("{} bytes, {:?}", bytes.len(), &bytes[..bytes.len().min(64)])
    } else {
        String::new()
    };
    format!("{:o} {content}", stat.permissions().mode())
}

/// The id of a container of this test: tests of one binary run at once, and a container's cgroup has its id.
pub fn unique(name: &str) -> String {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("test").replace("::", "-");
    format!("onload-ctk-{}-{test}-{name}", std::process::id())
}

/// Commands for a shell without programs that print a file.
pub fn print_file(path: &str) -> String {
    format!("while IFS= read -r line; do printf '%s\\n' \"$line\"; done < {path}")
}

/// A configuration, read by types of the OCI specification that are not ours.
#[track_caller]
pub fn oci(config: &[u8]) -> Spec {
    serde_json::from_slice(config).expect("a configuration of the OCI specification")
}

/// A configuration like an engine's, for a shell command.
pub fn config(annotations: &serde_json::Value, command: &str) -> serde_json::Value {
    serde_json::json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": {"uid": 0, "gid": 0},
            "args": ["/bin/sh", "-c", command],
            "env": ["PATH=/usr/bin:/bin"],
            "cwd": "/",
            "capabilities": {"bounding": ["CAP_KILL"], "effective": ["CAP_KILL"], "permitted": ["CAP_KILL"]},
            "noNewPrivileges": true
        },
        "root": {"path": "rootfs", "readonly": false},
        "hostname": "c",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]}
        ],
        "annotations": annotations,
        "linux": {
            "resources": {"devices": [{"allow": false, "access": "rwm"}]},
            "namespaces": [{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}]
        }
    })
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
