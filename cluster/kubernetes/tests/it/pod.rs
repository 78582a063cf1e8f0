//! The containers of the DaemonSet, made by runc with exactly the mounts, capabilities and namespaces of the
//! manifest, on a captured host in the place of the node. Each thing that the manifest asks for is taken away
//! once, and something fails.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::support::api_server::{ApiServer, Gates, TOKEN};
use crate::support::dra_kubelet::KubeletDir;
use crate::support::{AgentHost, MockKubelet, PATIENCE, sources};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    Container, EnvVar, EnvVarSource, PodSpec, Probe, Volume, VolumeMount,
};
use k8s_openapi::api::resource::v1::ResourceSlice;
use onload_host::host::Host;
use onload_kubernetes::dra::api::SERVICE_ACCOUNT;
use onload_test_needs as needs;
use onload_test_tree::copy_program;
use serde_json::{Value, json};

const HOST: &str = "debian12-stand-ins";
const VERSION: &str = env!("CARGO_PKG_VERSION");
const PLUGINS: &str = "/var/lib/kubelet/device-plugins";
const VFIO: &str = "onload.dev/vfio";
const NODE: &str = "n1";
/// Where the files of the service account are, beside the programs of the image.
const SECRETS: &str = "secrets";
const KUBELET: &str = "/var/lib/kubelet";
const SETTINGS: &str = "[annotations]\nallow = [\"nic\"]\n";

fn can_run() -> bool {
    needs::root("a container") && needs::programs(&["runc"])
}

/// A captured host as a node, and what a bundle is made of.
struct Node {
    host: AgentHost,
    image: tempfile::TempDir,
    /// Where kubelet makes the directories that end with a pod.
    empty: tempfile::TempDir,
    bundles: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        let node = Node {
            host: AgentHost::captured(HOST),
            image: tempfile::tempdir().unwrap(),
            empty: tempfile::tempdir().unwrap(),
            bundles: tempfile::tempdir().unwrap(),
        };
        let root = node.host.root();
        fs::create_dir_all(root.join("run")).unwrap();
        fs::create_dir_all(root.join("var")).unwrap();
        if !root.join("var/run").exists() {
            symlink("/run", root.join("var/run")).unwrap();
        }
        fs::create_dir_all(node.at(PLUGINS)).unwrap();
        // A node has its engine's directories, and a DaemonSet's the programs of its image.
        copy_program(env!("CARGO_BIN_EXE_onload-kubernetes"), node.program("onload-kubernetes"));
        let hook = format!("#!/bin/sh\necho \"onload-hook {VERSION}\"\n");
        fs::write(node.program("onload-hook"), hook).unwrap();
        fs::set_permissions(node.program("onload-hook"), Permissions::from_mode(0o755)).unwrap();
        fs::write(node.image.path().join("config.toml"), SETTINGS).unwrap();
        fs::create_dir(node.program(SECRETS)).unwrap();
        node
    }

    fn program(&self, name: &str) -> PathBuf {
        self.image.path().join(name)
    }

    /// Where something of the node is, links followed inside the node.
    fn at(&self, path: &str) -> PathBuf {
        let host = Host::open(self.host.root()).unwrap();
        let inside = host.resolve(Path::new(path)).unwrap().unwrap_or_else(|| PathBuf::from(path));
        host.outside_path(&inside)
    }

    /// What the kubelet of the node would mount for a volume.
    fn source(&self, volume: &Volume) -> PathBuf {
        if volume.empty_dir.is_some() {
            let path = self.empty.path().join(&volume.name);
            fs::create_dir_all(&path).unwrap();
            return path;
        }
        if volume.projected.is_some() {
            return self.image.path().join(SECRETS);
        }
        let Some(path) = &volume.host_path else {
            return self.image.path().to_owned();
        };
        if path.type_.as_deref() == Some("DirectoryOrCreate") {
            let host = Host::open(self.host.root()).unwrap();
            host.create_directory(Path::new(&path.path)).unwrap();
        }
        self.at(&path.path)
    }
}

/// The pod of the DaemonSet.
fn pod() -> PodSpec {
    let text = fs::read_to_string(sources().join("packaging/kubernetes/daemonset.yaml")).unwrap();
    let object: Value = serde_saphyr::from_str(&text).unwrap();
    let daemon_set: DaemonSet = serde_json::from_value(object).unwrap();
    daemon_set.spec.unwrap().template.spec.unwrap()
}

/// What kubelet sets a variable to.
fn value(env: &EnvVar) -> String {
    let of_field = |from: &EnvVarSource| from.field_ref.as_ref().unwrap().field_path.clone();
    match (&env.value, &env.value_from) {
        (Some(value), None) => value.clone(),
        (None, Some(from)) if of_field(from) == "spec.nodeName" => NODE.to_owned(),
        other => panic!("{other:?}"),
    }
}

/// A container of the pod, and what of it is taken away or replaced.
struct Made<'n> {
    node: &'n Node,
    pod: PodSpec,
    container: Container,
    /// Mounts of the test's own.
    more: Vec<Value>,
    env: Vec<String>,
    /// A script of sh in the place of our program.
    script: Option<String>,
    /// Executed by sh before runc, in a mount namespace of their own.
    before: Option<String>,
}

impl<'n> Made<'n> {
    fn for_node(node: &'n Node, name: &str) -> Self {
        let pod = pod();
        let mut all = pod.init_containers.iter().flatten().chain(&pod.containers);
        let container = all.find(|container| container.name == name).unwrap().clone();
        Made {
            node,
            pod,
            container,
            more: Vec::new(),
            script: None,
            before: None,
            env: vec![
                "ONLOAD_KUBERNETES_INSTALL_FROM=/image/onload-hook".to_owned(),
                format!("ONLOAD_KUBERNETES_LISTEN=unix:{PLUGINS}/http.sock"),
            ],
        }
    }

    /// Without the mount of a volume.
    fn without(mut self, volume: &str) -> Self {
        let mounts = self.container.volume_mounts.as_mut().unwrap();
        let before = mounts.len();
        mounts.retain(|mount| mount.name != volume);
        assert_eq!(mounts.len() + 1, before, "{volume}");
        self
    }

    fn mount(&self, mount: &VolumeMount) -> Value {
        let volumes = self.pod.volumes.as_ref().unwrap();
        let volume = volumes.iter().find(|volume| volume.name == mount.name).unwrap();
        let access = if mount.read_only == Some(true) { "ro" } else { "rw" };
        let propagation = match mount.mount_propagation.as_deref() {
            Some("HostToContainer") => "rslave",
            None => "rprivate",
            other => panic!("{other:?}"),
        };
        json!({"destination": mount.mount_path, "type": "bind", "source": self.node.source(volume),
               "options": ["rbind", access, propagation]})
    }

    fn mounts(&self) -> Vec<Value> {
        let read_only = json!(["rbind", "ro"]);
        // The hook of this test is a script, so its container has the machine's shell.
        let mut mounts = vec![
            json!({"destination": "/proc", "type": "proc", "source": "proc"}),
            json!({"destination": "/usr", "type": "bind", "source": "/usr", "options": read_only}),
            json!({"destination": "/image", "type": "bind", "source": self.node.image.path(), "options": read_only}),
        ];
        let mut of_pod: Vec<&VolumeMount> = self.container.volume_mounts.iter().flatten().collect();
        // As engines mount: what lies deeper comes later.
        of_pod.sort_by_key(|mount| {
            mount.mount_path.matches('/').count() + usize::from(mount.mount_path != "/")
        });
        mounts.extend(of_pod.into_iter().map(|mount| self.mount(mount)));
        mounts.extend(self.more.iter().cloned());
        mounts
    }

    fn namespaces(&self) -> Vec<Value> {
        let mut kinds = vec!["mount", "ipc", "uts"];
        if self.pod.host_pid != Some(true) {
            kinds.push("pid");
        }
        if self.pod.host_network != Some(true) {
            kinds.push("network");
        }
        kinds.into_iter().map(|kind| json!({"type": kind})).collect()
    }

    fn bundle(&self, id: &str) -> PathBuf {
        let bundle = self.node.bundles.path().join(id);
        let root = bundle.join("rootfs");
        for directory in ["proc", "usr", "image"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        for link in ["bin", "lib", "lib64"] {
            symlink(format!("usr/{link}"), root.join(link)).unwrap();
        }
        let security = self.container.security_context.as_ref().unwrap();
        let capabilities = security.capabilities.as_ref().unwrap();
        assert_eq!(capabilities.drop.as_deref(), Some(&["ALL".to_owned()][..]));
        let added = capabilities.add.clone().unwrap_or_default();
        let of_pod =
            self.container.env.iter().flatten().map(|env| format!("{}={}", env.name, value(env)));
        let ours = self.env.iter().cloned();
        let split = |variable: String| {
            let (name, value) = variable.split_once('=').unwrap();
            (name.to_owned(), value.to_owned())
        };
        // The last of a name counts.
        let env: BTreeMap<String, String> = of_pod.chain(ours).map(split).collect();
        let env = env.into_iter().map(|(name, value)| format!("{name}={value}"));
        let words = ["/image/onload-kubernetes".to_owned()]
            .into_iter()
            .chain(self.container.args.iter().flatten().cloned());
        let words: Vec<String> = match &self.script {
            Some(script) => vec!["/usr/bin/sh".to_owned(), "-c".to_owned(), script.clone()],
            None => words.collect(),
        };
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": self.pod.security_context.as_ref().unwrap().run_as_user.unwrap(), "gid": 0},
                "args": words, "env": env.collect::<Vec<_>>(), "cwd": "/",
                "noNewPrivileges": security.allow_privilege_escalation == Some(false),
                "capabilities": {"bounding": added, "effective": added, "permitted": added},
            },
            "root": {"path": "rootfs", "readonly": security.read_only_root_filesystem == Some(true)},
            "mounts": self.mounts(),
            "linux": {"namespaces": self.namespaces()},
        });
        fs::write(bundle.join("config.json"), config.to_string()).unwrap();
        bundle
    }

    fn runc(&self) -> (Command, String) {
        // The cgroup of a container is named after it, and tests run beside each other.
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let id = format!("onload-test-{}-{number}", std::process::id());
        let bundle = self.bundle(&id);
        let mut runc = Command::new("runc");
        if let Some(before) = &self.before {
            runc = Command::new("unshare");
            runc.args(["-m", "--propagation", "private", "sh", "-c"]);
            runc.arg(format!("{before} && exec runc \"$@\"")).arg("sh");
        }
        runc.arg("--root").arg(self.node.bundles.path().join("state"));
        runc.arg("run").arg("--bundle").arg(bundle).arg(&id);
        (runc, id)
    }

    /// Runs it to its end: its status, and what it said.
    fn run(&self) -> (Option<i32>, String) {
        let Output { status, stdout, stderr } =
            self.runc().0.stdin(Stdio::null()).output().unwrap();
        let message = [stdout, stderr].concat();
        (status.code(), String::from_utf8_lossy(&message).into_owned())
    }

    fn start(&self) -> Running {
        let (mut runc, id) = self.runc();
        let log = self.node.bundles.path().join(format!("{id}.log"));
        let file = File::create(&log).unwrap();
        runc.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        Running {
            child: runc.spawn().unwrap(),
            state: self.node.bundles.path().join("state"),
            log,
            id,
        }
    }
}

/// A container that runs until this is dropped.
struct Running {
    child: Child,
    state: PathBuf,
    log: PathBuf,
    id: String,
}

impl Running {
    /// Executes a probe in it.
    fn probe(&self, probe: &Probe) -> Output {
        let command = probe.exec.as_ref().unwrap().command.as_ref().unwrap();
        let program = command[0].replacen("/usr/bin", "/image", 1);
        let mut runc = Command::new("runc");
        runc.arg("--root").arg(&self.state).args(["exec", &self.id]);
        runc.arg(program).args(&command[1..]).output().unwrap()
    }

    fn output(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until its log has some words.
    #[track_caller]
    fn says(&self, words: &str) {
        let end = Instant::now() + PATIENCE;
        while !self.output().contains(words) {
            assert!(Instant::now() < end, "{words:?} is not in {}", self.output());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut kill = Command::new("runc");
        kill.arg("--root").arg(&self.state).args(["kill", &self.id, "KILL"]);
        let _ = kill.stderr(Stdio::null()).status();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let _ = std::io::Write::write_all(&mut std::io::stderr(), self.output().as_bytes());
        }
    }
}

// The init container.

#[test]
fn the_init_container_can_do_its_work_with_what_the_manifest_gives_it() {
    if !can_run() {
        return;
    }
    let node = Node::new();
    let mut made = Made::for_node(&node, "install");
    replace_config(&mut made);
    let (status, message) = made.run();
    let hook = format!("/opt/onload-ctk/{VERSION}/onload-hook");
    assert_eq!(
        (status, message),
        (Some(0), format!("put {hook}\nput /etc/onload-ctk/config.toml\n"))
    );
    let installed = fs::metadata(node.at(&hook)).unwrap();
    assert_eq!((installed.uid(), installed.mode() & 0o7777), (0, 0o755));
    assert_eq!(fs::read_to_string(node.at("/etc/onload-ctk/config.toml")).unwrap(), SETTINGS);
    let (status, message) = made.run();
    assert_eq!((status, message), (Some(0), String::new()), "the next start of the pod");
}

/// The captured host's own configuration would rule.
fn replace_config(made: &mut Made<'_>) {
    let _ = fs::remove_file(made.node.at("/etc/onload-ctk/config.toml"));
}

#[test]
fn the_init_container_fails_without_each_mount_that_is_not_the_host() {
    if !can_run() {
        return;
    }
    for (volume, says) in [
        ("hooks", "mounted read-only"),
        ("settings", "Read-only file system"),
        ("config", "reading /config/config.toml: No such file or directory"),
    ] {
        let node = Node::new();
        let mut made = Made::for_node(&node, "install").without(volume);
        replace_config(&mut made);
        let (status, message) = made.run();
        assert_eq!(status, Some(2), "{volume}: {message}");
        assert!(message.contains(says), "{volume}: {message}");
    }
}

/// By sha256sum, of the text `old`.
const OLD_SHA256: &str = "cba06b5736faf67e54b07b561eae94395e774c517a7d910a54369e1263ccfbd4";

#[test]
fn without_the_host_the_init_container_does_not_see_who_uses_an_old_hook() {
    if !can_run() {
        return;
    }
    let node = Node::new();
    let (status, message) = Made::for_node(&node, "install").run();
    assert_eq!(status, Some(0), "{message}");
    let record = node.at("/opt/onload-ctk/.onload-kubernetes.json");
    let mut installed: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    installed["hooks"][VERSION]["since"] = 1.into();
    installed["hooks"]["0.0.9"] = json!({"sha256": [OLD_SHA256], "since": 1});
    fs::write(&record, installed.to_string()).unwrap();
    let old = node.at("/opt/onload-ctk").join("0.0.9");
    fs::create_dir(&old).unwrap();
    fs::write(old.join("onload-hook"), "old").unwrap();
    let tasks = "run/containerd/io.containerd.runtime.v2.task/k8s.io/c1";
    let bundle = node.host.root().join(tasks);
    fs::create_dir_all(&bundle).unwrap();
    fs::write(bundle.join("config.json"), "\"/opt/onload-ctk/0.0.9/onload-hook\"").unwrap();
    let (status, message) = Made::for_node(&node, "install").run();
    let left = format!("left /opt/onload-ctk/0.0.9/onload-hook: /{tasks}/config.json names it\n");
    assert_eq!((status, message), (Some(0), left));
    let (status, message) = Made::for_node(&node, "install").without("host").run();
    assert_eq!(status, Some(0), "{message}");
    assert!(message.contains("removed /opt/onload-ctk/0.0.9/onload-hook"), "{message}");
}

// The daemon.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_daemon_can_do_its_work_with_what_the_manifest_gives_it() {
    if !can_run() {
        return;
    }
    let node = Node::new();
    let kubelet = MockKubelet::start(&node.at(PLUGINS));
    let running = Made::for_node(&node, "daemon").start();
    let plugin = kubelet.registered(VFIO).await;
    assert_eq!(plugin.ids(), ["0000:41:10.0", "0000:81:10.0"]);
    assert_eq!(plugin.unhealthy(), [""; 0]);
    running.says("this daemon writes the specifications");
    let spec = fs::read_to_string(node.at("/var/run/cdi/onload.dev-vfio.json")).unwrap();
    assert!(spec.contains("0000:41:10.0"));
    let given = plugin.cdi(&["0000:41:10.0"]).await;
    assert_eq!(given, ["onload.dev/vfio=0000:41:10.0"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_probes_tell_a_daemon_that_works_from_one_that_offers_what_the_node_has() {
    if !can_run() || !needs::no_chroot("runc exec") {
        return;
    }
    let node = Node::new();
    let made = Made::for_node(&node, "daemon");
    let live = made.container.liveness_probe.clone().unwrap();
    let ready = made.container.readiness_probe.clone().unwrap();
    let running = made.start();
    running.says("this daemon writes the specifications");
    running.says("serving /metrics");
    let health = node.empty.path().join("health/health.sock");
    until(|| health.exists());
    let printed = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let answer = running.probe(&live);
    assert_eq!(answer.status.code(), Some(0), "{answer:?}");
    assert_eq!(printed(&answer), "ok\n");
    let answer = running.probe(&ready);
    assert_eq!(answer.status.code(), Some(1), "{answer:?}");
    assert!(printed(&answer).starts_with("kubelet has not accepted onload.dev/"), "{answer:?}");
    let _kubelet = MockKubelet::start(&node.at(PLUGINS));
    until(|| running.probe(&ready).status.success());
}

#[track_caller]
fn until(is: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_directory_of_its_own_the_daemon_cannot_be_asked() {
    if !can_run() {
        return;
    }
    let node = Node::new();
    let running = Made::for_node(&node, "daemon").without("health").start();
    running.says("serving metrics and health failed; trying again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn specifications_name_the_hook_that_the_init_container_put_there() {
    if !can_run() {
        return;
    }
    let node = Node::new();
    let (status, message) = Made::for_node(&node, "install").run();
    assert_eq!(status, Some(0), "{message}");
    let kubelet = MockKubelet::start(&node.at(PLUGINS));
    let _running = Made::for_node(&node, "daemon").start();
    kubelet.registered(VFIO).await;
    let spec = fs::read_to_string(node.at("/var/run/cdi/onload.dev-vfio.json")).unwrap();
    assert!(spec.contains(&format!("\"/opt/onload-ctk/{VERSION}/onload-hook\"")), "{spec}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_directory_of_specifications_no_device_is_healthy() {
    if !can_run() {
        return;
    }
    let node = Node::new();
    let kubelet = MockKubelet::start(&node.at(PLUGINS));
    let running = Made::for_node(&node, "daemon").without("specifications").start();
    running.says("updating the specifications failed");
    let plugin = kubelet.registered(VFIO).await;
    assert_eq!(plugin.unhealthy(), ["0000:41:10.0", "0000:81:10.0"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_directory_of_leases_the_daemon_cannot_be_the_only_one() {
    if !can_run() {
        return;
    }
    let node = Node::new();
    let _kubelet = MockKubelet::start(&node.at(PLUGINS));
    let running = Made::for_node(&node, "daemon").without("run").start();
    running.says("updating the specifications failed");
    running.says("Read-only file system");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_kubelet_s_directory_nothing_is_offered() {
    if !can_run() {
        return;
    }
    let node = Node::new();
    let kubelet = MockKubelet::start(&node.at(PLUGINS));
    let running = Made::for_node(&node, "daemon").without("device-plugins").start();
    running.says("waiting for the directory of the device plugins");
    assert_eq!(kubelet.resources(), [""; 0]);
}

#[test]
fn the_host_s_root_is_read_only_and_what_is_mounted_below_it_is_not() {
    if !can_run() {
        return;
    }
    let node = Node::new();
    let mut made = Made::for_node(&node, "daemon");
    let run = node.at("/run");
    // Nodes have a file system of its own there.
    made.before = Some(format!(
        "mount -t tmpfs tmpfs '{0}' && mkdir -p '{0}/cdi' '{0}/onload-ctk'",
        run.display()
    ));
    made.script = Some("touch /host/usr/x; touch /host/run/x && echo written".to_owned());
    let (status, message) = made.run();
    assert_eq!(status, Some(0), "{message}");
    assert!(message.contains("'/host/usr/x': Read-only file system"), "{message}");
    assert!(message.starts_with("written\n"), "docs/kubernetes-reference.md says so, {message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_host_no_device_is_found() {
    if !can_run() {
        return;
    }
    let node = Node::new();
    let _kubelet = MockKubelet::start(&node.at(PLUGINS));
    let running = Made::for_node(&node, "daemon").without("host").start();
    running.says("hook /opt/onload-ctk/");
    assert_eq!(fs::read_dir(node.at("/var/run/cdi")).unwrap().count(), 0);
}

/// A lease of a process that has ended, as the hook writes it.
fn lease_of_ended_process(node: &Node, cgroup: &Value) {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let namespace = fs::metadata("/proc/self/ns/pid").unwrap().ino();
    let lease = json!({"version": 1, "class": "vfio", "name": "0000:41:10.0", "slot": 0, "boot": boot.trim(),
        "container": "gone", "bundle": "/bundles/gone", "entryPoint": "createRuntime", "since": 1,
        "holder": {"init": {"process": {"pid": pid, "startTime": 1, "pidNamespace": namespace}, "cgroup": cgroup}}});
    let leases = node.at("/run").join("onload-ctk/@leases");
    fs::create_dir_all(&leases).unwrap();
    fs::write(leases.join("vfio=0000:41:10.0#0"), lease.to_string()).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_in_the_host_s_pid_namespace_does_the_daemon_know_that_a_holder_has_ended() {
    if !can_run() {
        return;
    }
    for (host_pid, unhealthy) in [(true, vec![]), (false, vec!["0000:41:10.0"])] {
        let node = Node::new();
        lease_of_ended_process(&node, &Value::Null);
        let kubelet = MockKubelet::start(&node.at(PLUGINS));
        let mut made = Made::for_node(&node, "daemon");
        assert_eq!(made.pod.host_pid, Some(true));
        made.pod.host_pid = Some(host_pid);
        // The processes of a node are those of this machine.
        made.more.push(json!({"destination": "/host/proc", "type": "bind", "source": "/proc", "options": ["rbind", "ro"]}));
        let _running = made.start();
        let plugin = kubelet.registered(VFIO).await;
        assert_eq!(plugin.unhealthy(), unhealthy, "hostPID: {host_pid}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_stays_held_while_another_process_of_its_holder_s_cgroup_lives() {
    if !can_run() {
        return;
    }
    for (populated, unhealthy) in
        [("populated 1\n", vec!["0000:41:10.0"]), ("populated 0\n", vec![])]
    {
        let node = Node::new();
        let cgroups = node.at("/sys/fs/cgroup");
        fs::create_dir_all(cgroups.join("web.scope")).unwrap();
        fs::write(cgroups.join("cgroup.procs"), "").unwrap();
        fs::write(cgroups.join("web.scope/cgroup.events"), populated).unwrap();
        let inode = fs::metadata(cgroups.join("web.scope")).unwrap().ino();
        let cgroup = json!({"path": "/sys/fs/cgroup/web.scope", "inode": inode});
        lease_of_ended_process(&node, &cgroup);
        let kubelet = MockKubelet::start(&node.at(PLUGINS));
        let mut made = Made::for_node(&node, "daemon");
        made.more.push(json!({"destination": "/host/proc", "type": "bind", "source": "/proc", "options": ["rbind", "ro"]}));
        let _running = made.start();
        let plugin = kubelet.registered(VFIO).await;
        assert_eq!(plugin.unhealthy(), unhealthy, "{populated}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_instance_reads_until_the_first_has_ended() {
    if !can_run() {
        return;
    }
    let node = Node::new();
    let _kubelet = MockKubelet::start(&node.at(PLUGINS));
    let first = Made::for_node(&node, "daemon").start();
    first.says("this daemon writes the specifications");
    let mut second = Made::for_node(&node, "daemon");
    second.env.push("ONLOAD_KUBERNETES_LISTEN=".to_owned());
    second.env.push("ONLOAD_KUBERNETES_HEALTH_SOCKET=/run/onload-kubernetes/2.sock".to_owned());
    let second = second.start();
    second.says("another daemon of this node writes the specifications until it ends");
}

// The DRA driver.

/// A node whose devices are offered by DRA, and its API server.
async fn with_dra(node: &Node) -> ApiServer {
    let server = ApiServer::start(Gates::ON).await;
    server.bind(NODE);
    fs::write(node.program(SECRETS).join("token"), TOKEN).unwrap();
    let token = Path::new(SERVICE_ACCOUNT).join("token");
    let kubeconfig = server.kubeconfig_with(&token);
    fs::write(node.program("kubeconfig"), kubeconfig).unwrap();
    let config = node.at("/etc").join("onload-ctk/config.toml");
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    fs::write(config, "[kubernetes]\noffer = \"dra\"\n").unwrap();
    server
}

impl<'n> Made<'n> {
    fn daemon_with_dra(node: &'n Node) -> Self {
        let mut made = Made::for_node(node, "daemon");
        let kubeconfig = "ONLOAD_KUBERNETES_KUBECONFIG=/image/kubeconfig";
        made.env.push(kubeconfig.to_owned());
        made
    }
}

/// Tells the driver that kubelet has taken it.
async fn take(node: &Node) {
    let info = KubeletDir(node.at(KUBELET)).take().await;
    assert_eq!(info.name, "onload.dev");
    assert!(node.at(&info.endpoint).exists(), "{}", info.endpoint);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dra_driver_can_do_its_work_with_what_the_manifest_gives_it() {
    if !can_run() {
        return;
    }
    let node = Node::new();
    let server = with_dra(&node).await;
    let _running = Made::daemon_with_dra(&node).start();
    take(&node).await;
    let is_there = |slice: &ResourceSlice| {
        let devices = slice.spec.devices.as_ref().unwrap();
        devices.iter().any(|device| device.name == "0000-41-10-0")
    };
    server.until_slice("n1-onload-dev-vfio-0", is_there).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_token_the_dra_driver_publishes_nothing() {
    if !can_run() {
        return;
    }
    let node = Node::new();
    let server = with_dra(&node).await;
    let running = Made::daemon_with_dra(&node).without("token").start();
    take(&node).await;
    running.says("reading /var/run/secrets/kubernetes.io/serviceaccount/token");
    assert!(server.slices().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_kubelet_s_directories_the_dra_driver_does_not_register() {
    if !can_run() {
        return;
    }
    for (volume, words) in [
        ("plugins-registry", "/var/lib/kubelet/plugins_registry does not exist"),
        ("plugin", "making the directory /var/lib/kubelet/plugins/onload.dev"),
    ] {
        let node = Node::new();
        let _server = with_dra(&node).await;
        let running = Made::daemon_with_dra(&node).without(volume).start();
        running.says(words);
    }
}
