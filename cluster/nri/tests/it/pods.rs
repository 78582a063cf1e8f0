//! What the containers of pods get, from the annotations to the runtime's message. The host is a
//! directory with the specifications of a captured one and nodes of its own.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::support::host::{TestNode, can_make};
use crate::support::{Plugin, Runtime, container, creation, map, next, nothing, pod, texts};
use onload_nri::wire::messages::{
    CdiDevice, Container, ContainerAdjustment, CreateContainerRequest, Hook, Hooks, HugepageLimit,
    LinuxContainer, LinuxDevice, LinuxDeviceCgroup, LinuxNamespace, LinuxResources, Mount,
    PodSandbox, PosixRlimit, User,
};
use onload_nri::wire::ttrpc::Status;
use prost::Message;
use serde_json::{Value, json};

/// The program on a host, and a runtime that it has registered with.
struct Node {
    plugin: Plugin,
    runtime: Runtime,
}

impl Node {
    fn new(tree: &TestNode, runtime_name: &str, version: &str) -> Node {
        let root = tree.root().to_str().unwrap();
        let (plugin, listener) = Plugin::start(&["--host-root", root, "-v"]);
        let mut runtime = next(&listener);
        runtime.set_up(runtime_name, version);
        Node { plugin, runtime }
    }

    fn create(
        &mut self,
        annotations: &[(&str, &str)],
        container: Container,
    ) -> Result<ContainerAdjustment, Status> {
        self.runtime.create(&creation(pod(annotations), container))
    }

    fn refusal(&mut self, annotations: &[(&str, &str)], container: Container) -> String {
        let refused = self.create(annotations, container).unwrap_err();
        assert_eq!(refused.code, 9);
        assert!(refused.message.starts_with("onload-nri: "), "{refused:?}");
        assert!(!refused.message.contains('\n'), "{refused:?}");
        refused.message
    }
}

/// The variables of an adjustment, as `NAME=VALUE`.
fn env(adjustment: &ContainerAdjustment) -> Vec<String> {
    let mut env: Vec<String> =
        adjustment.env.iter().map(|pair| format!("{}={}", pair.key, pair.value)).collect();
    env.sort();
    env
}

fn value<'a>(adjustment: &'a ContainerAdjustment, name: &str) -> Option<&'a str> {
    adjustment.env.iter().find(|pair| pair.key == name).map(|pair| pair.value.as_str())
}

/// Destination, type, source and options of each mount.
fn mounts(adjustment: &ContainerAdjustment) -> Vec<(String, String, String, String)> {
    adjustment
        .mounts
        .iter()
        .cloned()
        .map(|m| (m.destination, m.r#type, m.source, m.options.join(",")))
        .collect()
}

/// Path, type, numbers and mode of each device.
fn devices(adjustment: &ContainerAdjustment) -> Vec<String> {
    adjustment
        .linux
        .iter()
        .flat_map(|linux| &linux.devices)
        .map(|device| {
            let mode = device.file_mode.map_or(0, |mode| mode.value);
            let (path, kind) = (&device.path, &device.r#type);
            format!("{path} {kind} {}:{} {mode:o}", device.major, device.minor)
        })
        .collect()
}

fn names(adjustment: &ContainerAdjustment) -> Vec<&str> {
    adjustment.cdi_devices.iter().map(|device| device.name.as_str()).collect()
}

/// The command lines of hooks.
fn lines(hooks: &[Hook]) -> Vec<String> {
    hooks.iter().map(|hook| hook.args.join(" ")).collect()
}

fn create_runtime(adjustment: &ContainerAdjustment) -> Vec<String> {
    let hooks = adjustment.hooks.clone().unwrap_or_default();
    lines(&hooks.create_runtime)
}

fn limit(kind: &str, value: u64) -> PosixRlimit {
    PosixRlimit { r#type: kind.to_owned(), hard: value, soft: value }
}

fn with_env(env: &[&str]) -> Container {
    Container { env: texts(env), ..container("c1") }
}

fn with_annotations(annotations: &[(&str, &str)]) -> Container {
    Container { annotations: map(annotations), ..container("c1") }
}

const NIC: &[(&str, &str)] = &[("onload.dev/nic", "all")];

#[test]
fn a_runtime_without_names_gets_the_edits() {
    if !can_make() {
        return;
    }
    let tree = TestNode::captured();
    let mut node = Node::new(&tree, "containerd", "1.7.24~ds1");
    let given = node.create(NIC, container("c1")).unwrap();
    assert_eq!(devices(&given), ["/dev/onload c 243:0 666", "/dev/onload_epoll c 242:0 666"]);
    let library = "/usr/lib/x86_64-linux-gnu/libonload.so".to_owned();
    let options = "ro,nosuid,nodev,bind".to_owned();
    let mount = (library.clone(), "bind".to_owned(), library, options);
    assert!(mounts(&given).contains(&mount), "{:?}", mounts(&given));
    assert_eq!(value(&given, "LD_PRELOAD"), Some("libonload.so"));
    assert_eq!(value(&given, "EF_FDTABLE_SIZE"), Some("524288"));
    let output_text = env(&given);
    assert!(
        output_text.iter().any(|entry| entry.starts_with("ONLOAD_CTK_NIC_")),
        "{output_text:?}"
    );
    assert!(names(&given).is_empty() && create_runtime(&given).is_empty());
    // What is said of an answer is said when it is sent: before the next one is decided.
    assert_eq!(node.create(&[], container("c2")).unwrap(), nothing());
    let message = node.plugin.output();
    assert!(message.contains("pod default/shop container server: given nic=all"), "{message}");
    assert!(
        message.contains("<7>onload-nri: pod default/shop container server: mount "),
        "{message}"
    );
}

#[test]
fn a_runtime_that_injects_names_gets_them_alone() {
    if !can_make() {
        return;
    }
    let tree = TestNode::captured();
    for (name, version) in [("containerd", "v2.1.9"), ("cri-o", "1.34.0")] {
        let mut node = Node::new(&tree, name, version);
        let annotations = [("onload.dev/nic", "all"), ("onload.dev/ptp", "ptp1, ptp0")];
        let given = node.create(&annotations, container("c1")).unwrap();
        assert_eq!(
            names(&given),
            ["onload.dev/nic=all", "onload.dev/ptp=ptp1", "onload.dev/ptp=ptp0"]
        );
        assert!(env(&given).is_empty() && mounts(&given).is_empty());
        assert!(devices(&given).is_empty());
    }
}

#[test]
fn names_that_the_runtime_has_already_are_not_told_again() {
    if !can_make() {
        return;
    }
    let tree = TestNode::captured();
    let mut node = Node::new(&tree, "containerd", "v2.1.9");
    let held = CdiDevice { name: "onload.dev/ptp=ptp0".to_owned() };
    let container = Container { cdi_devices: vec![held], ..container("c1") };
    let annotations = [("onload.dev/nic", "all"), ("onload.dev/ptp", "ptp0")];
    let given = node.create(&annotations, container).unwrap();
    assert_eq!(names(&given), ["onload.dev/nic=all"]);
}

#[test]
fn the_container_s_own_preload_and_settings_are_kept() {
    if !can_make() {
        return;
    }
    let tree = TestNode::captured();
    for version in ["v1.7.24", "v2.1.9"] {
        let mut node = Node::new(&tree, "containerd", version);
        let own = with_env(&["LD_PRELOAD=/opt/a.so", "EF_FDTABLE_SIZE=4096"]);
        let given = node.create(NIC, own).unwrap();
        let preload = value(&given, "LD_PRELOAD");
        assert_eq!(preload, Some("libonload.so:/opt/a.so"), "{version}");
        assert_eq!(value(&given, "EF_FDTABLE_SIZE"), None, "{version}");
        // A name would bring the specification's own, and it would win.
        assert!(names(&given).is_empty(), "{version}");
        let twice = with_env(&["LD_PRELOAD=libonload.so:/opt/a.so"]);
        let given = node.create(NIC, twice).unwrap();
        assert_eq!(value(&given, "LD_PRELOAD"), None, "{version}");
    }
}

/// NRI refuses a container whose variable two plugins set, unless the later one removes it first.
#[test]
fn the_preload_of_another_plugin_is_taken_over() {
    if !can_make() {
        return;
    }
    let tree = TestNode::captured();
    for version in ["v1.7.24", "v2.1.9"] {
        let mut node = Node::new(&tree, "containerd", version);
        let by_another = with_env(&["LD_PRELOAD=/libvgpu.so"]);
        let given = node.create(NIC, by_another).unwrap();
        let preload: Vec<_> = given
            .env
            .iter()
            .filter(|pair| pair.key.ends_with("LD_PRELOAD"))
            .map(|pair| (&*pair.key, &*pair.value))
            .collect();
        let expected = [("-LD_PRELOAD", ""), ("LD_PRELOAD", "libonload.so:/libvgpu.so")];
        assert_eq!(preload, expected, "{version}");
    }
}

#[test]
fn the_annotation_of_the_preload_is_followed() {
    if !can_make() {
        return;
    }
    let tree = TestNode::captured();
    tree.file("usr/share/onload-ctk/ld.so.preload", "libonload.so\n");
    let mut node = Node::new(&tree, "containerd", "v2.1.9");
    let with = |mode| [("onload.dev/nic", "all"), ("onload.dev/preload", mode)];
    let off = node.create(&with("off"), container("c1")).unwrap();
    assert_eq!(value(&off, "LD_PRELOAD"), None);
    assert!(names(&off).is_empty() && !devices(&off).is_empty());
    let file = node.create(&with("file"), container("c1")).unwrap();
    assert_eq!(value(&file, "LD_PRELOAD"), None);
    let at = |mount: &(String, String, String, String)| mount.0 == "/etc/ld.so.preload";
    let list = mounts(&file).into_iter().find(at).unwrap();
    assert_eq!(list.2, "/usr/share/onload-ctk/ld.so.preload");
    assert_eq!(file.rlimits, [limit("RLIMIT_NOFILE", 524_288)]);
}

#[test]
fn locked_memory_is_a_limit_and_not_a_hook_where_the_runtime_takes_limits() {
    if !can_make() {
        return;
    }
    let tree = TestNode::with_pool(1);
    let annotations = [("onload.dev/rdma", "m0")];
    let unlimited = limit("RLIMIT_MEMLOCK", u64::MAX);
    let mut node = Node::new(&tree, "containerd", "v1.7.7");
    let given = node.create(&annotations, container("c1")).unwrap();
    assert_eq!(given.rlimits, std::slice::from_ref(&unlimited));
    assert!(create_runtime(&given).is_empty());
    assert_eq!(devices(&given), ["/dev/infiniband/uverbs0 c 231:192 666"]);
    let own = Container { rlimits: vec![unlimited.clone()], ..container("c1") };
    let given = node.create(&annotations, own).unwrap();
    assert!(given.rlimits.is_empty());
    // NRI adds the limit of an earlier plugin behind the engine's own, and takes no third one.
    let by_another = Container {
        rlimits: vec![limit("RLIMIT_MEMLOCK", 65_536), unlimited.clone()],
        ..container("c1")
    };
    let given = node.create(&annotations, by_another).unwrap();
    assert!(given.rlimits.is_empty());

    let mut node = Node::new(&tree, "containerd", "v2.1.9");
    let given = node.create(&annotations, container("c1")).unwrap();
    assert_eq!(names(&given), ["onload.dev/rdma=m0"]);
    assert_eq!(given.rlimits, [unlimited]);

    let mut node = Node::new(&tree, "containerd", "v1.7.6");
    let given = node.create(&annotations, container("c1")).unwrap();
    assert!(given.rlimits.is_empty());
    let hook = create_runtime(&given);
    assert_eq!(
        hook,
        ["onload-hook createRuntime --memlock unlimited --expect /dev/infiniband/uverbs0=rdma:m0"]
    );
}

#[test]
fn limits_that_an_old_runtime_cannot_be_told_are_refused() {
    if !can_make() {
        return;
    }
    let tree = TestNode::captured();
    tree.file("usr/share/onload-ctk/ld.so.preload", "libonload.so\n");
    let mut node = Node::new(&tree, "cri-o", "1.28.1");
    let annotations = [("onload.dev/nic", "all"), ("onload.dev/preload", "file")];
    let refused = node.refusal(&annotations, container("c1"));
    assert!(
        refused.contains("NRI of cri-o 1.28.1 does not support RLIMIT_NOFILE; update it"),
        "{refused}"
    );
}

#[test]
fn a_member_of_a_pool_is_reserved_and_its_hooks_name_the_token() {
    if !can_make() {
        return;
    }
    let tree = TestNode::with_pool(2);
    // Names could not say which member is reserved.
    let mut node = Node::new(&tree, "containerd", "v2.1.9");
    let annotations = [("onload.dev/rdma", "any")];
    let mut tokens = Vec::new();
    for (id, member, minor) in [("c1", "m0", 192), ("c2", "m1", 193)] {
        let given = node.create(&annotations, container(id)).unwrap();
        assert!(names(&given).is_empty());
        let own = format!("ONLOAD_CTK_RDMA_{}={member}", member.to_uppercase());
        assert_eq!(env(&given), [own]);
        let node = &devices(&given)[0];
        assert!(node.ends_with(&format!(" c 231:{minor} 666")), "{node}");
        let claims = format!("onload-hook createRuntime --lease rdma:{member} --token ");
        let claiming = create_runtime(&given).pop().unwrap();
        let token = claiming.strip_prefix(&claims).unwrap().to_owned();
        let ending = lines(&given.hooks.unwrap().poststop).pop().unwrap();
        let ends = format!("onload-hook poststop --lease rdma:{member} --token {token}");
        assert_eq!(ending, ends);
        tokens.push(token);
    }
    assert_ne!(tokens[0], tokens[1]);
    assert_eq!(tree.leased().len(), 2, "{:?}", tree.leased());
    let refused = node.refusal(&annotations, container("c3"));
    assert!(refused.contains("annotation \"onload.dev/rdma\""), "{refused}");
    assert_eq!(tree.leased().len(), 2);
}

#[test]
fn a_member_near_the_gpu_of_a_pod_is_given_and_without_a_gpu_none() {
    if !can_make() {
        return;
    }
    let tree = TestNode::with_pool(2);
    let pools = "run/cdi/onload.dev-rdma-pools.json";
    let mut spec: Value = serde_json::from_str(&tree.read(pools)).unwrap();
    let annotations = &mut spec["devices"][0]["annotations"];
    annotations["onload.dev/pool-nics"] = "0 1".into();
    annotations["onload.dev/pool-near"] = "0000:13:00.0=0:0,1:1 0000:23:00.0=1:0,0:1".into();
    tree.file(pools, spec.to_string());
    let device = "sys/devices/pci0000:20/0000:23:00.0/drm/renderD128";
    tree.directory(device).directory("sys/dev/char");
    tree.link("sys/dev/char/226:128", &format!("../../../{device}"));
    let annotations = [("onload.dev/rdma", "any"), ("onload.dev/near", "gpu")];
    let mut node = Node::new(&tree, "containerd", "v2.1.9");
    let of_gpu = Container {
        linux: Some(LinuxContainer {
            devices: vec![LinuxDevice {
                path: "/dev/dri/renderD128".to_owned(),
                r#type: "c".to_owned(),
                major: 226,
                minor: 128,
                ..LinuxDevice::default()
            }],
            ..LinuxContainer::default()
        }),
        ..container("c1")
    };
    let given = node.create(&annotations, of_gpu).unwrap();
    assert_eq!(env(&given), ["ONLOAD_CTK_RDMA_M1=m1"]);
    let refused = node.refusal(&annotations, container("c2"));
    assert!(refused.contains("the container has no GPU; give it one"), "{refused}");
    assert_eq!(tree.leased().len(), 1, "{:?}", tree.leased());
}

#[test]
fn a_drained_device_is_refused_with_since_when_and_why() {
    if !can_make() {
        return;
    }
    let tree = TestNode::captured();
    let drained = r#"{"version":1,"drained":[{"class":"nic","name":"ens9","since":0,"reason":"new firmware"}]}"#;
    tree.file("etc/onload-ctk/drain.json", drained);
    let mut node = Node::new(&tree, "containerd", "v2.1.9");
    let refused = node.refusal(&[("onload.dev/nic", "ens9")], container("c1"));
    let why = "nic \"ens9\" is drained since 1970-01-01T00:00:00Z: new firmware; \"onload-ctk undrain nic=ens9\" offers it again";
    assert!(refused.contains(why), "{refused}");
}

#[test]
fn what_was_reserved_for_a_container_that_is_refused_after_all_is_given_back() {
    if !can_make() {
        return;
    }
    let tree = TestNode::with_pool(1);
    let mut node = Node::new(&tree, "docker", "29.0.0");
    let annotations = &[("onload.dev/rdma", "any")];
    let own = with_annotations(annotations);
    let refused = node.refusal(&[], own);
    assert!(refused.contains("device node /dev/infiniband/uverbs0"), "{refused}");
    assert_eq!(tree.leased(), Vec::<String>::new());
}

#[test]
fn a_node_for_reading_alone_is_given_by_name_or_not_at_all() {
    if !can_make() {
        return;
    }
    let tree = TestNode::captured();
    let clock = [("onload.dev/ptp", "ptp0")];
    let mut node = Node::new(&tree, "containerd", "v2.1.9");
    let given = node.create(&clock, container("c1")).unwrap();
    assert_eq!(names(&given), ["onload.dev/ptp=ptp0"]);
    let mut node = Node::new(&tree, "containerd", "v2.0.4");
    let refused = node.refusal(&clock, container("c1"));
    assert!(
        refused.contains("cannot be told that /dev/ptp0 is for \"r\" only by NRI; update it"),
        "{refused}"
    );
}

#[test]
fn limits_on_huge_pages_go_into_the_cgroup_where_the_runtime_takes_them() {
    let tree = TestNode::bare(&["hugepages"], "");
    let mut node = Node::new(&tree, "cri-o", "1.36.3");
    let annotations = [("onload.dev/hugepages-limit", "2Mi=128Mi")];
    let given = node.create(&annotations, container("c1")).unwrap();
    let limit = HugepageLimit { page_size: "2MB".to_owned(), limit: 128 << 20 };
    let resources = given.linux.unwrap().resources.unwrap();
    assert_eq!(resources.hugepage_limits, [limit]);
    let mut node = Node::new(&tree, "docker", "29.0.0");
    let refused = node.refusal(&[], with_annotations(&annotations));
    assert!(
        refused.contains("\"onload.dev/hugepages-limit\": docker 29.0.0 cannot be told"),
        "{refused}"
    );
    // Beside a device too, it is this annotation that is named.
    let mut node = Node::new(&tree, "containerd", "v2.1.9");
    let annotations = [annotations[0], ("onload.dev/hugepages", "2Mi")];
    let refused = node.refusal(&annotations, container("c1"));
    assert!(
        refused.ends_with(
            "NRI of annotation \"onload.dev/hugepages-limit\": containerd v2.1.9 does not support \
             limits on huge pages; use the runtime class onload"
        ),
        "{refused}"
    );
}

/// A container in a pod of a runtime class, with what the runtime hands on to it of the pod's annotations.
fn of_class(
    handler: &str,
    annotations: &[(&str, &str)],
    handed_on: &[(&str, &str)],
) -> CreateContainerRequest {
    let pod = PodSandbox { runtime_handler: handler.to_owned(), ..pod(annotations) };
    creation(pod, with_annotations(handed_on))
}

#[test]
fn what_the_runtime_class_gives_is_left_to_it() {
    if !can_make() {
        return;
    }
    let tree = TestNode::captured();
    let clock = [("onload.dev/ptp", "ptp0")];
    let mut node = Node::new(&tree, "containerd", "v2.0.4");
    let given = node.runtime.create(&of_class("onload", &clock, &clock));
    assert_eq!(given.unwrap(), nothing());
    // Another runtime reads no annotation, whatever it is handed.
    for handler in ["runc", ""] {
        let given = node.runtime.create(&of_class(handler, &clock, &clock));
        assert!(given.unwrap_err().message.contains("cannot be told"));
    }
    // Nor does ours where the pod's annotations are not handed on to it, or not all of them.
    let mut node = Node::new(&tree, "containerd", "v2.1.9");
    let of_another = ("onload.dev/nic.sidecar", "all");
    for handed_on in [&[][..], &[of_another]] {
        let annotations = [clock[0], of_another];
        let asked = of_class("onload", &annotations, handed_on);
        let given = node.runtime.create(&asked).unwrap();
        assert_eq!(names(&given), ["onload.dev/ptp=ptp0"], "{handed_on:?}");
    }
}

#[test]
fn nothing_is_reserved_where_the_runtime_class_chooses() {
    if !can_make() {
        return;
    }
    let tree = TestNode::with_pool(1);
    let annotations = [("onload.dev/rdma", "any"), ("onload.dev/ipc-lock", "true")];
    for (name, version) in [("containerd", "v2.1.9"), ("cri-o", "1.36.3")] {
        let mut node = Node::new(&tree, name, version);
        let asked = of_class("onload", &annotations, &annotations);
        assert_eq!(node.runtime.create(&asked).unwrap(), nothing(), "{name}");
    }
    assert_eq!(tree.leased(), Vec::<String>::new());
}

#[test]
fn a_capability_is_refused_with_what_gives_it() {
    let tree = TestNode::bare(&["rdma"], "");
    let mut node = Node::new(&tree, "containerd", "v2.1.9");
    let annotations = [("onload.dev/rdma", "m0"), ("onload.dev/ipc-lock.server", "true")];
    let refused = node.refusal(&annotations, container("c1"));
    assert!(
        refused.contains(
            "annotation \"onload.dev/ipc-lock.server\": NRI cannot add a capability; add IPC_LOCK"
        ),
        "{refused}"
    );
}

#[test]
fn what_the_operator_does_not_allow_is_refused_with_the_line_that_would() {
    let tree = TestNode::bare(&["rdma"], "");
    let mut node = Node::new(&tree, "containerd", "v2.1.9");
    let refused = node.refusal(NIC, container("c1"));
    assert!(refused.contains("annotation \"onload.dev/nic\" requests class nic"), "{refused}");
    assert!(
        refused.contains("allow = [\"nic\", \"rdma\"]")
            || refused.contains("allow = [\"rdma\", \"nic\"]"),
        "{refused}"
    );
    let message = node.plugin.output();
    assert!(
        message.contains("<3>onload-nri: pod default/shop container server: annotation"),
        "{message}"
    );
    // The next container is asked of a configuration that has changed meanwhile.
    tree.configure(&["nic"], "");
    let refused = node.refusal(NIC, container("c1"));
    assert!(!refused.contains("does not allow"), "{refused}");
}

#[test]
fn a_name_that_nobody_offers_is_refused_with_those_that_are() {
    if !can_make() {
        return;
    }
    let tree = TestNode::captured();
    let mut node = Node::new(&tree, "containerd", "v2.1.9");
    let refused = node.refusal(&[("onload.dev/ptp", "ptp7")], container("c1"));
    assert!(refused.contains("ptp7") && refused.contains("ptp0"), "{refused}");
}

#[test]
fn a_node_that_is_another_driver_s_by_now_is_refused() {
    if !can_make() {
        return;
    }
    let tree = TestNode::captured();
    tree.kernel("onload/onload/dev", "243:9");
    let mut node = Node::new(&tree, "containerd", "v2.1.9");
    let refused = node.refusal(NIC, container("c1"));
    assert!(refused.contains("/dev/onload") && refused.contains("243:9"), "{refused}");
}

#[test]
fn nothing_is_mounted_below_a_volume_of_the_pod() {
    if !can_make() {
        return;
    }
    let tree = TestNode::captured();
    for version in ["v1.7.24", "v2.1.9"] {
        let mut node = Node::new(&tree, "containerd", version);
        for (at, refused) in [("/usr/lib", true), ("/data", false), ("/usr/../usr/lib", true)] {
            let volume = Mount {
                destination: at.to_owned(),
                r#type: "bind".to_owned(),
                source: "/var/lib/kubelet/pods/0/volumes/v".to_owned(),
                options: texts(&["rbind", "rprivate", "rw"]),
            };
            let container = Container { mounts: vec![volume], ..container("c1") };
            let given = node.create(NIC, container);
            assert_eq!(given.is_err(), refused, "{version} {at}: {given:?}");
        }
    }
}

#[test]
fn only_the_named_container_of_a_pod_gets_what_is_for_it() {
    if !can_make() {
        return;
    }
    let tree = TestNode::captured();
    let mut node = Node::new(&tree, "containerd", "v2.1.9");
    let for_server = [("onload.dev/nic.server", "all")];
    assert_eq!(names(&node.create(&for_server, container("c1")).unwrap()), ["onload.dev/nic=all"]);
    let for_other = [("onload.dev/nic.sidecar", "all")];
    assert_eq!(node.create(&for_other, container("c1")).unwrap(), nothing());
    let sandbox = with_annotations(&[("io.kubernetes.cri.container-type", "sandbox")]);
    assert_eq!(node.create(NIC, sandbox).unwrap(), nothing());
}

#[test]
fn docker_is_told_variables_and_mounts_and_all_else_is_refused() {
    if !can_make() {
        return;
    }
    let tree = TestNode::captured();
    tree.configure(&["nic", "profile", "zf"], "");
    tree.spec("profile", json!({"cdiVersion": "0.3.0", "kind": "onload.dev/profile", "devices": [
        {"name": "latency", "containerEdits": {"env": ["EF_POLL_USEC=100000", "EF_INT_DRIVEN=0"]}}]}));
    tree.spec("zf", json!({"cdiVersion": "0.3.0", "kind": "onload.dev/zf", "devices": [
        {"name": "tool", "containerEdits": {"mounts": [
            {"hostPath": "/usr/bin/zf", "containerPath": "/usr/bin/zf", "options": ["ro", "nosuid", "nodev", "bind"]}]}},
        {"name": "open", "containerEdits": {"mounts": [
            {"hostPath": "/srv", "containerPath": "/srv", "options": ["rw", "bind"]}]}}]}));
    let mut node = Node::new(&tree, "docker", "29.0.0");
    let with = |key, value| Container {
        annotations: map(&[(key, value)]),
        ..with_env(&["EF_INT_DRIVEN=1"])
    };
    let given = node.create(&[], with("onload.dev/profile", "latency")).unwrap();
    assert_eq!(env(&given), ["EF_POLL_USEC=100000"]);
    let given = node.create(&[], with("onload.dev/zf", "tool")).unwrap();
    let path = "/usr/bin/zf".to_owned();
    assert_eq!(mounts(&given), [(path.clone(), "bind".to_owned(), path, "ro".to_owned())]);
    for (key, value, what) in [
        ("onload.dev/nic", "all", "device node /dev/onload"),
        ("onload.dev/zf", "open", "the mount at /srv with its options"),
        ("onload.dev/nic.server", "all", "no name in a pod"),
    ] {
        let refused = node.refusal(&[], with(key, value));
        assert!(refused.contains(what), "{refused}");
    }
}

#[test]
fn edits_that_no_runtime_can_be_told_are_refused_unless_a_name_says_them() {
    if !can_make() {
        return;
    }
    let tree = TestNode::bare(&["zf"], "");
    tree.spec(
        "zf",
        json!({"cdiVersion": "0.7.0", "kind": "onload.dev/zf", "devices": [
        {"name": "group", "containerEdits": {"additionalGids": [44]}}]}),
    );
    let annotations = [("onload.dev/zf", "group")];
    let mut node = Node::new(&tree, "containerd", "v2.1.9");
    assert_eq!(
        names(&node.create(&annotations, container("c1")).unwrap()),
        ["onload.dev/zf=group"]
    );
    let mut node = Node::new(&tree, "containerd", "v2.0.4");
    let refused = node.refusal(&annotations, container("c1"));
    assert!(
        refused.contains("cannot be told additionalGids of a specification by NRI"),
        "{refused}"
    );
}

#[test]
fn the_host_s_root_is_refused_onload_where_the_operator_says_so() {
    if !can_make() {
        return;
    }
    let tree = TestNode::captured();
    tree.configure(&["nic"], "root-with-onload = \"refuse\"\n");
    let mut node = Node::new(&tree, "containerd", "v2.1.9");
    let user = |uid| Container {
        user: Some(User { uid, gid: uid, ..User::default() }),
        ..container("c1")
    };
    let unprivileged = node.refusal(NIC, user(1000));
    assert!(unprivileged.contains("root-with-onload"), "{unprivileged}");
    // A runtime that does not tell the user is believed to start root.
    for container in [user(0), container("c1")] {
        let refused = node.refusal(NIC, container);
        assert!(refused.contains("user 0"), "{refused}");
    }
}

#[test]
fn an_answer_longer_than_a_frame_is_whole() {
    let tree = TestNode::bare(&["profile"], "");
    let settings: Vec<String> =
        (0..500).map(|n| format!("EF_SETTING_NUMBER_{n}={n:040}")).collect();
    tree.spec(
        "profile",
        json!({"cdiVersion": "0.3.0", "kind": "onload.dev/profile", "devices": [
        {"name": "long", "containerEdits": {"env": settings}}]}),
    );
    let mut node = Node::new(&tree, "containerd", "v1.7.24");
    let given = node.create(&[("onload.dev/profile", "long")], container("c1")).unwrap();
    assert_eq!(env(&given).len(), 500);
}

#[test]
fn hostile_annotations_are_one_line_of_a_refusal() {
    let tree = TestNode::bare(&["nic"], "");
    let mut node = Node::new(&tree, "containerd", "v2.1.9");
    let long = "x".repeat(1 << 20);
    for (key, value) in [
        ("onload.dev/nic", "a\n<0>kernel: forged"),
        ("onload.dev/\u{1b}[2J", "all"),
        ("onload.dev/nic", long.as_str()),
        ("onload.dev/nic", "../../../dev/mem"),
        ("onload.dev/vfio", "*"),
        ("onload.dev", "all"),
    ] {
        let refused = node.refusal(&[(key, value)], container("c1"));
        assert!(refused.len() < 1000 && !refused.contains('\u{1b}'), "{refused}");
    }
    let message = node.plugin.output();
    assert!(message.lines().all(|line| line.contains("onload-nri: ")), "{message}");
    let hostile_pod = PodSandbox {
        name: "a\nb".to_owned(),
        namespace: "c\u{1b}".to_owned(),
        annotations: map(&[("onload.dev/nic", "")]),
        ..PodSandbox::default()
    };
    let refused = node.runtime.create(&creation(hostile_pod, container("c1")));
    assert!(refused.is_err());
    let message = node.plugin.output();
    assert!(message.lines().all(|line| line.contains("onload-nri: ")), "{message}");
}

/// A container of which a runtime tells everything that it can.
fn told_in_full() -> Container {
    let hook =
        Hook { path: "/h".to_owned(), args: texts(&["h"]), env: texts(&["A=b"]), timeout: None };
    let linux = LinuxContainer {
        namespaces: vec![LinuxNamespace {
            r#type: "user".to_owned(),
            path: "/proc/1/ns/user".to_owned(),
        }],
        devices: vec![LinuxDevice {
            path: "/dev/x".to_owned(),
            r#type: "c".to_owned(),
            major: 1,
            minor: 5,
            ..LinuxDevice::default()
        }],
        resources: Some(LinuxResources {
            hugepage_limits: vec![HugepageLimit { page_size: "2MB".to_owned(), limit: 1 << 21 }],
            devices: vec![LinuxDeviceCgroup {
                allow: true,
                r#type: "c".to_owned(),
                access: "rwm".to_owned(),
                ..LinuxDeviceCgroup::default()
            }],
        }),
    };
    Container {
        annotations: map(&[("io.kubernetes.cri.container-type", "container")]),
        mounts: vec![Mount {
            destination: "/data".to_owned(),
            r#type: "bind".to_owned(),
            source: "/var/lib/data".to_owned(),
            options: texts(&["rbind"]),
        }],
        hooks: Some(Hooks { prestart: vec![hook], ..Hooks::default() }),
        linux: Some(linux),
        rlimits: vec![limit("RLIMIT_NOFILE", 9)],
        cdi_devices: vec![CdiDevice { name: "example.com/a=b".to_owned() }],
        user: Some(User { uid: 1000, gid: 1000, ..User::default() }),
        ..with_env(&["LD_PRELOAD=/own.so", "EF_POLL_USEC=1"])
    }
}

#[test]
fn whatever_byte_of_a_message_is_another_there_is_one_answer_and_the_plugin_goes_on() {
    let tree = TestNode::bare(&["profile"], "");
    tree.spec(
        "profile",
        json!({"cdiVersion": "0.3.0", "kind": "onload.dev/profile", "devices": [
        {"name": "fast", "containerEdits": {"env": ["EF_POLL_USEC=100000", "LD_PRELOAD=libonload.so"]}}]}),
    );
    let mut node = Node::new(&tree, "containerd", "v1.7.24");
    let asked = creation(pod(&[("onload.dev/profile", "fast")]), told_in_full());
    let whole = node.runtime.create(&asked).unwrap();
    let (mut answered, mut refused) = (0, 0);
    let message = asked.encode_to_vec();
    for at in 0..message.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut bytes = message.clone();
            bytes[at] ^= change;
            match node.runtime.call("CreateContainer", bytes) {
                Ok(_) => answered += 1,
                Err(Status { code, message }) => {
                    assert_eq!(code, 9, "{message}");
                    assert!(!message.contains(char::is_control), "{message:?}");
                    refused += 1;
                }
            }
        }
    }
    assert!(answered > 0 && refused > 0, "{answered} {refused}");
    assert_eq!(node.runtime.create(&asked).unwrap(), whole);
    let error_text = node.plugin.output();
    assert_eq!(error_text.matches("registered with").count(), 1, "{error_text}");
}
