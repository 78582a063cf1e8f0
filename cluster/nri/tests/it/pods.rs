//! What the containers of pods get, from the annotations to the runtime's message: cases in `tests/cases`, and hostile messages.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fmt::Write;
use std::process::Command;

use crate::support::host::{TestNode, can_make};
use crate::support::{Plugin, Runtime, container, creation, map, next, pod, texts};
use onload_nri::wire::messages::{
    CdiDevice, Container, ContainerAdjustment, Hook, Hooks, HugepageLimit, LinuxContainer,
    LinuxDevice, LinuxDeviceCgroup, LinuxNamespace, LinuxResources, Mount, PodSandbox, PosixRlimit,
    User,
};
use onload_nri::wire::ttrpc::Status;
use onload_test_tree::case::{self, Case};
use prost::Message;
use serde_json::{Value, json};

/// The program on a host, and a runtime that it has registered with.
struct Node {
    plugin: Plugin,
    runtime: Runtime,
}

impl Node {
    fn new(tree: &TestNode, runtime: &str) -> Node {
        let root = tree.root().to_str().unwrap();
        let (plugin, listener) = Plugin::start(&["--host-root", root, "-v"]);
        let (name, version) = runtime.split_once(' ').unwrap();
        let mut runtime = next(&listener);
        runtime.set_up(name, version);
        Node { plugin, runtime }
    }
}

#[test]
fn cases_of_pods_print_what_their_files_say() {
    case::check(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases"), replay);
}

fn replay(case: &Case) -> Option<impl FnMut(&str) -> String + use<>> {
    let tree = match case.words("host")[..] {
        ["pool", count] if can_make() => TestNode::with_pool(count.parse().unwrap()),
        ["captured"] if can_make() => TestNode::captured(),
        ["allows", ref classes @ ..] => TestNode::bare(classes, ""),
        _ => return None,
    };
    for (path, text) in case.files() {
        tree.file(&path, text);
    }
    let mut node = None;
    Some(move |command: &str| run(&tree, &mut node, command))
}

/// Runs a command of a case. `runtime NAME VERSION` starts the program for that runtime. `create POD [CONTAINER]` creates the
/// container `server` of a pod with these annotations; in CONTAINER, `class` is the pod's runtime class. `log WORD` prints
/// messages of the program, and `leases` the leases. Other commands are the shell's.
fn run(tree: &TestNode, node: &mut Option<Node>, command: &str) -> String {
    match (command.split_once(' ').unwrap_or((command, "")), node) {
        (("runtime", runtime), node) => {
            *node = Some(Node::new(tree, runtime));
            String::new()
        }
        (("create", words), Some(node)) => {
            let mut words =
                serde_json::Deserializer::from_str(words).into_iter().map(Result::unwrap);
            let (pod_annotations, given) =
                (words.next().unwrap(), words.next().unwrap_or(json!({})));
            create(&mut node.runtime, &pod_annotations, &given)
        }
        (("log", word), Some(node)) => {
            let log = node.plugin.output();
            log.lines().filter(|line| line.contains(word)).map(|line| format!("{line}\n")).collect()
        }
        (("leases", _), _) => tree.leased().iter().map(|name| format!("{name}\n")).collect(),
        _ => {
            let shell = Command::new("/bin/sh")
                .args(["-ec", command])
                .current_dir(tree.root())
                .output()
                .unwrap();
            assert!(shell.status.success(), "{command}: {shell:?}");
            String::from_utf8(shell.stdout).unwrap()
        }
    }
}

fn create(runtime: &mut Runtime, annotations: &Value, given: &Value) -> String {
    let strings = |value: &Value| -> Vec<String> {
        value
            .as_array()
            .into_iter()
            .flatten()
            .map(|text| text.as_str().unwrap().to_owned())
            .collect()
    };
    let pairs = |value: &Value| {
        let members = value.as_object().into_iter().flatten();
        members.map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned())).collect()
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = |key: &str| given[key].as_array().cloned().unwrap_or_default();
    let pod = PodSandbox {
        annotations: pairs(annotations),
        runtime_handler: text(&given["class"]),
        ..pod(&[])
    };
    let devices = all("devices")
        .iter()
        .map(|device| LinuxDevice {
            path: text(&device["path"]),
            r#type: "c".to_owned(),
            major: device["major"].as_i64().unwrap(),
            minor: device["minor"].as_i64().unwrap(),
            ..LinuxDevice::default()
        })
        .collect();
    let container = Container {
        annotations: pairs(&given["annotations"]),
        env: strings(&given["env"]),
        mounts: all("mounts")
            .iter()
            .map(|at| Mount {
                destination: text(at),
                r#type: "bind".to_owned(),
                source: "/var/lib/kubelet/pods/0/volumes/v".to_owned(),
                options: texts(&["rbind", "rprivate", "rw"]),
            })
            .collect(),
        rlimits: all("rlimits")
            .iter()
            .map(|limit| PosixRlimit {
                r#type: text(&limit[0]),
                hard: limit[1].as_u64().unwrap(),
                soft: limit[1].as_u64().unwrap(),
            })
            .collect(),
        cdi_devices: strings(&given["cdi"]).into_iter().map(|name| CdiDevice { name }).collect(),
        user: given["user"].as_u64().map(|uid| u32::try_from(uid).unwrap()).map(|uid| User {
            uid,
            gid: uid,
            ..User::default()
        }),
        linux: Some(LinuxContainer { devices, ..LinuxContainer::default() }),
        ..container(given["id"].as_str().unwrap_or("c1"))
    };
    match runtime.create(&creation(pod, container)) {
        Ok(adjustment) if adjustment == ContainerAdjustment::default() => "nothing\n".to_owned(),
        Ok(adjustment) => describe(adjustment),
        Err(Status { code, message }) => {
            assert!(
                code == 9 && message.starts_with("onload-nri: ") && !message.contains('\n'),
                "{message}"
            );
            let is_time =
                |word: &str| word.len() == 20 && word.ends_with('Z') && word.contains('T');
            let words = message.split(' ').map(|word| {
                let time = word.trim_end_matches(';');
                if is_time(time) { word.replace(time, "TIME") } else { word.to_owned() }
            });
            format!("error: {}\n", case::mask_error(&words.collect::<Vec<_>>().join(" ")))
        }
    }
}

/// An adjustment, one member a line. Tokens, which are random, are numbered.
fn describe(adjustment: ContainerAdjustment) -> String {
    let mut out = String::new();
    for CdiDevice { name } in &adjustment.cdi_devices {
        writeln!(out, "cdi {name}").unwrap();
    }
    for pair in &adjustment.env {
        writeln!(out, "env {}={}", pair.key, pair.value).unwrap();
    }
    for Mount { destination, r#type, source, options } in &adjustment.mounts {
        writeln!(
            out,
            "mount {source} at {destination}, {}",
            [r#type.clone(), options.join(",")].join(" ")
        )
        .unwrap();
    }
    for PosixRlimit { r#type, hard, soft } in &adjustment.rlimits {
        writeln!(out, "{type} {soft} {hard}").unwrap();
    }
    let linux = adjustment.linux.unwrap_or_default();
    for node in &linux.devices {
        let mode = node.file_mode.as_ref().map_or(0, |mode| mode.value);
        writeln!(out, "node {} {} {}:{} {mode:o}", node.path, node.r#type, node.major, node.minor)
            .unwrap();
    }
    for HugepageLimit { page_size, limit } in
        linux.resources.iter().flat_map(|all| &all.hugepage_limits)
    {
        writeln!(out, "huge pages {page_size} {limit}").unwrap();
    }
    let Hooks { create_runtime, poststop, .. } = adjustment.hooks.unwrap_or_default();
    for hook in create_runtime.iter().chain(&poststop) {
        writeln!(out, "hook {}", hook.args.join(" ")).unwrap();
    }
    let mut tokens: Vec<String> = Vec::new();
    let words = out.split_inclusive([' ', '\n']).map(|word| {
        let token = word.trim_end();
        if token.len() != 32 || !token.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return word.to_owned();
        }
        if !tokens.iter().any(|known| known == token) {
            tokens.push(token.to_owned());
        }
        word.replace(token, &format!("TOKEN{}", tokens.len()))
    });
    words.collect()
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
    let mut node = Node::new(&tree, "containerd v1.7.24");
    let asked = creation(pod(&[("onload.dev/profile", "long")]), container("c1"));
    assert_eq!(node.runtime.create(&asked).unwrap().env.len(), 500);
}

#[test]
fn hostile_annotations_are_one_line_of_a_refusal() {
    let tree = TestNode::bare(&["nic"], "");
    let mut node = Node::new(&tree, "containerd v2.1.9");
    let long = "x".repeat(1 << 20);
    for (key, value) in [
        ("onload.dev/nic", "a\n<0>kernel: forged"),
        ("onload.dev/\u{1b}[2J", "all"),
        ("onload.dev/nic", long.as_str()),
        ("onload.dev/nic", "../../../dev/mem"),
        ("onload.dev/vfio", "*"),
        ("onload.dev", "all"),
    ] {
        let refused = node
            .runtime
            .create(&creation(pod(&[(key, value)]), container("c1")))
            .unwrap_err()
            .message;
        assert!(refused.len() < 1000 && !refused.contains(['\n', '\u{1b}']), "{refused}");
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
        rlimits: vec![PosixRlimit { r#type: "RLIMIT_NOFILE".to_owned(), hard: 9, soft: 9 }],
        cdi_devices: vec![CdiDevice { name: "example.com/a=b".to_owned() }],
        user: Some(User { uid: 1000, gid: 1000, ..User::default() }),
        env: texts(&["LD_PRELOAD=/own.so", "EF_POLL_USEC=1"]),
        ..container("c1")
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
    let mut node = Node::new(&tree, "containerd v1.7.24");
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
