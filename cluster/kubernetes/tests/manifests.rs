//! The manifests of packaging/kubernetes, read as Kubernetes reads them, and held against the program and the
//! page that describes them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{CommandFactory, Parser};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Container, Namespace, Pod, PodSpec, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use onload_core::class::Class;
use onload_core::config::Config;
use onload_kubernetes::cli::Cli;
use onload_test_needs as needs;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Every directory with manifests.
const DIRECTORIES: [&str; 3] = ["", "uninstall", "examples"];
const KUSTOMIZATION: &str = "kustomization.yaml";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn packaging() -> PathBuf {
    root().join("packaging/kubernetes")
}

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(packaging().join(path)).unwrap()
}

/// The names of the YAML files in a directory.
fn names(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(packaging().join(directory)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".yaml")).collect();
    names.sort();
    names
}

/// The objects of a file.
fn objects(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

/// Every object of every manifest, with its file.
fn manifests() -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for directory in DIRECTORIES {
        for name in names(directory)
            .iter()
            .filter(|name| *name != KUSTOMIZATION)
        {
            let path = Path::new(directory).join(name);
            let objects = objects(&text(&path)).into_iter();
            found.extend(objects.map(|object| (path.display().to_string(), object)));
        }
    }
    found
}

/// Multus's own object (its API k8s.cni.cncf.io/v1), as far as it is a type.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NetworkAttachmentDefinition {
    api_version: String,
    kind: String,
    metadata: ObjectMeta,
    spec: NetworkSpec,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct NetworkSpec {
    config: String,
}

fn through<T: DeserializeOwned + Serialize>(object: &Value) -> Value {
    serde_json::to_value(serde_json::from_value::<T>(object.clone()).unwrap()).unwrap()
}

/// An object as it is after a type has read and written it.
fn read_back(object: &Value) -> Value {
    let kind = (
        object["apiVersion"].as_str().unwrap(),
        object["kind"].as_str().unwrap(),
    );
    match kind {
        ("v1", "Namespace") => through::<Namespace>(object),
        ("v1", "ServiceAccount") => through::<ServiceAccount>(object),
        ("v1", "Pod") => through::<Pod>(object),
        ("apps/v1", "DaemonSet") => through::<DaemonSet>(object),
        ("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition") => {
            through::<NetworkAttachmentDefinition>(object)
        }
        kind => panic!("{kind:?} has no type here"),
    }
}

fn daemon_set(path: &str) -> DaemonSet {
    let object = objects(&text(path)).remove(0);
    serde_json::from_value(object).unwrap()
}

fn pod_of(daemon_set: &DaemonSet) -> &PodSpec {
    daemon_set
        .spec
        .as_ref()
        .unwrap()
        .template
        .spec
        .as_ref()
        .unwrap()
}

fn containers(pod: &PodSpec) -> impl Iterator<Item = &Container> {
    pod.init_containers.iter().flatten().chain(&pod.containers)
}

/// The pods of every manifest: of daemon sets too.
fn pods() -> Vec<(String, PodSpec)> {
    let of_object = |(path, object): (String, Value)| {
        let spec = match object["kind"].as_str().unwrap() {
            "Pod" => object["spec"].clone(),
            "DaemonSet" => object["spec"]["template"]["spec"].clone(),
            _ => return None,
        };
        Some((path, serde_json::from_value(spec).unwrap()))
    };
    manifests().into_iter().filter_map(of_object).collect()
}

#[test]
fn every_manifest_is_what_kubernetes_understands() {
    let manifests = manifests();
    for (path, object) in &manifests {
        assert_eq!(read_back(object), *object, "{path}");
    }
    assert!(manifests.len() > 8, "{}", manifests.len());
}

#[test]
fn the_pods_of_the_page_are_what_kubernetes_understands() {
    let page = fs::read_to_string(root().join("docs/kubernetes.md")).unwrap();
    let blocks = page.split("```yaml\n").skip(1);
    let blocks = blocks.map(|rest| rest.split_once("```").unwrap().0);
    let objects: Vec<Value> = blocks.flat_map(objects).collect();
    assert!(!objects.is_empty());
    for object in objects {
        assert_eq!(read_back(&object), object);
    }
}

#[test]
fn a_field_that_kubernetes_does_not_know_is_found() {
    let mut object = objects(&text("daemonset.yaml")).remove(0);
    object["spec"]["template"]["spec"]["hostPid"] = true.into();
    assert_ne!(read_back(&object), object);
}

#[test]
fn a_kustomization_names_each_file_beside_it() {
    for directory in ["", "uninstall"] {
        let kustomization = objects(&text(Path::new(directory).join(KUSTOMIZATION))).remove(0);
        let mut named: Vec<String> =
            serde_json::from_value(kustomization["resources"].clone()).unwrap();
        named.push(KUSTOMIZATION.to_owned());
        named.sort();
        assert_eq!(named, names(directory), "{directory:?}");
    }
}

#[test]
fn kubectl_builds_what_the_files_say() {
    let kubectl = Command::new("kubectl")
        .args(["version", "--client"])
        .output();
    let is_there = kubectl.is_ok_and(|output| output.status.success());
    if !needs::that(
        is_there,
        "kubectl is not installed (Debian: kubernetes-client)",
    ) {
        return;
    }
    for directory in ["", "uninstall"] {
        let output = Command::new("kubectl")
            .arg("kustomize")
            .arg(packaging().join(directory))
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        let built = objects(&String::from_utf8(output.stdout).unwrap());
        let mut built: BTreeMap<String, Value> = built
            .into_iter()
            .map(|object| (object["kind"].as_str().unwrap().to_owned(), object))
            .collect();
        let config = built.remove("ConfigMap");
        assert_eq!(config.is_some(), directory.is_empty());
        let mut files = names(directory);
        files.retain(|name| name != KUSTOMIZATION);
        assert_eq!(built.len(), files.len());
        for name in files {
            let mut object = objects(&text(Path::new(directory).join(&name))).remove(0);
            if let Some(config) = &config {
                name_config(&mut object, &config["metadata"]["name"]);
                assert_eq!(config["data"]["config.toml"], text("config.toml"));
            }
            let kind = object["kind"].as_str().unwrap();
            assert_eq!(built[kind], object, "{name}");
        }
    }
}

/// The name of the configuration ends in its hash, wherever it is named.
fn name_config(object: &mut Value, name: &Value) {
    assert!(name.as_str().unwrap().starts_with("onload-ctk-"), "{name}");
    let volumes = object.pointer_mut("/spec/template/spec/volumes");
    for volume in volumes.and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(named) = volume.pointer_mut("/configMap/name") {
            assert_eq!(*named, "onload-ctk");
            *named = name.clone();
        }
    }
}

#[test]
fn our_image_is_of_this_version_wherever_it_is_named() {
    let image = concat!("onload.dev/onload-kubernetes:", env!("CARGO_PKG_VERSION"));
    let mut ours = 0;
    for (path, pod) in pods() {
        for container in containers(&pod) {
            let named = container.image.as_deref().unwrap();
            if named.contains("onload-kubernetes") {
                assert_eq!(named, image, "{path}");
                ours += 1;
            }
        }
    }
    assert_eq!(ours, 3);
}

#[test]
fn nothing_is_privileged_and_no_capability_is_left() {
    for (path, pod) in pods() {
        assert!(pod.host_ipc.is_none(), "{path}");
        for container in containers(&pod) {
            let security = container.security_context.as_ref().unwrap();
            assert_eq!(security.privileged, None, "{path}");
            assert_eq!(security.allow_privilege_escalation, Some(false), "{path}");
            let capabilities = security.capabilities.as_ref().unwrap();
            assert_eq!(
                capabilities.drop.as_deref(),
                Some(&["ALL".to_owned()][..]),
                "{path}"
            );
            assert_eq!(capabilities.add, None, "{path}");
        }
    }
}

#[test]
fn our_own_pods_change_only_what_they_mount() {
    for path in ["daemonset.yaml", "uninstall/daemonset.yaml"] {
        let daemon_set = daemon_set(path);
        let pod = pod_of(&daemon_set);
        assert_eq!(pod.automount_service_account_token, Some(false), "{path}");
        for container in containers(pod) {
            let security = container.security_context.as_ref().unwrap();
            assert_eq!(security.read_only_root_filesystem, Some(true), "{path}");
            let limits = container
                .resources
                .as_ref()
                .unwrap()
                .limits
                .as_ref()
                .unwrap();
            assert!(
                limits.contains_key("memory") && limits.contains_key("cpu"),
                "{path}"
            );
        }
    }
    let daemon_set = daemon_set("daemonset.yaml");
    let writable = |container: &Container| -> Vec<String> {
        let mounts = container.volume_mounts.iter().flatten();
        let writable = mounts.filter(|mount| mount.read_only != Some(true));
        writable.map(|mount| mount.name.clone()).collect()
    };
    let pod = pod_of(&daemon_set);
    let [install, daemon] = [
        &pod.init_containers.as_ref().unwrap()[0],
        &pod.containers[0],
    ];
    assert_eq!(writable(install), ["hooks", "settings"]);
    assert_eq!(
        writable(daemon),
        ["specifications", "run", "device-plugins", "health"]
    );
}

#[test]
fn the_next_node_is_updated_when_kubelet_has_taken_what_this_one_offers() {
    let daemon_set = daemon_set("daemonset.yaml");
    let ready = &pod_of(&daemon_set).containers[0].readiness_probe;
    let exec = ready.as_ref().unwrap().exec.as_ref().unwrap();
    let words: Vec<&str> = exec.command.iter().flatten().map(String::as_str).collect();
    assert_eq!(words, ["/usr/bin/onload-kubernetes", "health", "--ready"]);
    assert!(daemon_set.spec.unwrap().min_ready_seconds.unwrap() > 0);
}

#[test]
fn no_probe_asks_at_a_port_that_others_reach() {
    for (path, pod) in pods() {
        for container in containers(&pod) {
            for probe in [&container.liveness_probe, &container.readiness_probe] {
                let Some(probe) = probe else { continue };
                assert!(probe.exec.is_some(), "{path}");
            }
        }
    }
}

#[test]
fn each_command_and_variable_is_one_of_the_program() {
    let known: BTreeSet<String> = variables(&Cli::command());
    for path in ["daemonset.yaml", "uninstall/daemonset.yaml"] {
        for container in containers(pod_of(&daemon_set(path))) {
            let words = container.args.iter().flatten().map(String::as_str);
            let words = ["onload-kubernetes"].into_iter().chain(words);
            assert!(
                Cli::try_parse_from(words).is_ok(),
                "{path}: {}",
                container.name
            );
            for probe in [&container.liveness_probe, &container.readiness_probe] {
                let Some(probe) = probe else { continue };
                let words = probe.exec.as_ref().unwrap().command.iter().flatten();
                // In the container the variable says it.
                let socket = ["--health-socket", "/x"].map(str::to_owned);
                let words = words.cloned().chain(socket);
                assert!(Cli::try_parse_from(words).is_ok(), "{path}");
            }
            for variable in container.env.iter().flatten() {
                assert!(known.contains(&variable.name), "{path}: {}", variable.name);
            }
        }
    }
}

fn variables(command: &clap::Command) -> BTreeSet<String> {
    let own = command
        .get_arguments()
        .filter_map(|argument| argument.get_env());
    let own = own.map(|name| name.to_string_lossy().into_owned());
    own.chain(command.get_subcommands().flat_map(variables))
        .collect()
}

#[test]
fn mounts_and_volumes_belong_together() {
    for (path, pod) in pods() {
        let volumes: BTreeSet<&str> = pod
            .volumes
            .iter()
            .flatten()
            .map(|volume| volume.name.as_str())
            .collect();
        let mounted =
            containers(&pod).flat_map(|container| container.volume_mounts.iter().flatten());
        let mounted: BTreeSet<&str> = mounted.map(|mount| mount.name.as_str()).collect();
        assert_eq!(volumes, mounted, "{path}");
    }
}

/// The lines that a reader has to be given a reason for: each path of the host, and each namespace.
fn asking(text: &str) -> Vec<(String, bool)> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let has_reason = |at: usize| lines[at - 1].starts_with('#');
        if line.starts_with("hostPID:")
            || line.starts_with("hostNetwork:")
            || line.starts_with("runAsUser: 0")
        {
            found.push(((*line).to_owned(), has_reason(index)));
        }
        if *line == "hostPath:" {
            assert!(
                lines[index - 1].starts_with("- name:"),
                "{}",
                lines[index - 1]
            );
            let path = lines[index + 1].strip_prefix("path: ").unwrap();
            found.push((path.to_owned(), has_reason(index - 1)));
        }
    }
    found
}

#[test]
fn whatever_a_plain_pod_does_not_have_has_its_reason_beside_it_and_in_the_page() {
    let page = fs::read_to_string(root().join("docs/kubernetes.md")).unwrap();
    for (path, least) in [("daemonset.yaml", 8), ("uninstall/daemonset.yaml", 1)] {
        let asked = asking(&text(path));
        assert!(asked.len() > least, "{path}: {asked:?}");
        for (what, has_reason) in asked {
            assert!(has_reason, "{path}: {what} stands there without a reason");
            let what = what.trim_end_matches(": true");
            let row = format!("| `{what}`");
            let of_page = page.lines().any(|line| line.starts_with(&row));
            assert!(
                of_page,
                "docs/kubernetes.md has no row that begins with {row}"
            );
        }
    }
}

#[test]
fn the_configuration_sets_nothing_until_somebody_does() {
    let given = text("config.toml");
    assert_eq!(Config::parse(&given).unwrap(), Config::default());
    let lines = given.lines().map(|line| match line.strip_prefix('#') {
        Some(setting) if !setting.starts_with(' ') => setting,
        _ => line,
    });
    let set: Vec<&str> = lines.collect();
    let config = Config::parse(&set.join("\n")).unwrap();
    assert_ne!(config.kubernetes, Config::default().kubernetes);
    assert_eq!(
        config.kubernetes.classes.as_slice(),
        [Class::Nic, Class::Zf, Class::Rdma, Class::Vfio]
    );
    assert_eq!(config.kubernetes.resources.len(), 1);
}

// The examples.

/// The pods of the examples.
fn examples() -> Vec<(String, PodSpec)> {
    let all = pods().into_iter();
    all.filter(|(path, _)| path.starts_with("examples/"))
        .collect()
}

/// What a pod asks of ours, without the prefix.
fn asked(pod: &PodSpec) -> Vec<String> {
    let resources = containers(pod).filter_map(|container| container.resources.as_ref());
    let limits = resources.flat_map(|resources| resources.limits.iter().flatten());
    let ours = limits.filter_map(|(name, _)| name.strip_prefix("onload.dev/"));
    ours.map(str::to_owned).collect()
}

#[test]
fn each_example_asks_for_a_resource_that_there_is() {
    let examples = examples();
    assert!(examples.len() >= 6, "{}", examples.len());
    for (path, pod) in examples {
        let asked = asked(&pod);
        assert!(!asked.is_empty(), "{path}");
        for resource in asked {
            let is_class = resource.parse::<Class>().is_ok();
            let section = format!("#   [pools.{resource}]\n");
            assert!(
                is_class || text(&path).contains(&section),
                "{path}: {resource}"
            );
        }
    }
}

#[test]
fn the_pools_of_the_examples_are_configuration() {
    let text = text("examples/sriov-cni.yaml");
    let lines = text
        .lines()
        .skip_while(|line| !line.starts_with("#   [pools"));
    let lines: Vec<&str> = lines.map_while(|line| line.strip_prefix("#   ")).collect();
    let config = Config::parse(&lines.join("\n")).unwrap();
    assert_eq!(config.pools["fast"].class, Class::Vfio);
}

#[test]
fn the_dpdk_pod_is_guaranteed_and_has_whole_cpus() {
    let (_, pod) = examples()
        .into_iter()
        .find(|(path, _)| path.contains("dpdk"))
        .unwrap();
    let resources = pod.containers[0].resources.as_ref().unwrap();
    assert_eq!(resources.requests, resources.limits);
    let limits = resources.limits.as_ref().unwrap();
    assert!(limits["cpu"].0.parse::<u32>().is_ok_and(|cpus| cpus > 1));
    for needed in ["memory", "hugepages-1Gi", "onload.dev/vfio"] {
        assert!(limits.contains_key(needed), "{needed}");
    }
    let volume = &pod.volumes.as_ref().unwrap()[0];
    let medium = volume.empty_dir.as_ref().unwrap().medium.as_deref();
    assert_eq!(medium, Some("HugePages-1Gi"));
}

#[test]
fn networks_are_json_and_name_the_resource_that_their_pods_ask_for() {
    let mut networks = 0;
    for name in ["rdma-macvlan.yaml", "sriov-cni.yaml"] {
        let objects = objects(&text(Path::new("examples").join(name)));
        let of_kind =
            |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
        for network in of_kind("NetworkAttachmentDefinition") {
            let config: Value =
                serde_json::from_str(network["spec"]["config"].as_str().unwrap()).unwrap();
            assert!(
                config["type"].is_string() && config["cniVersion"].is_string(),
                "{name}"
            );
            let resource = &network["metadata"]["annotations"]["k8s.v1.cni.cncf.io/resourceName"];
            let title = network["metadata"]["name"].as_str().unwrap();
            assert_eq!(config["name"], title);
            for pod in of_kind("Pod") {
                let wanted = pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"]
                    .as_str()
                    .unwrap();
                assert!(wanted.contains(title), "{name}: {wanted}");
                if let Some(resource) = resource.as_str() {
                    let limits = &pod["spec"]["containers"][0]["resources"]["limits"];
                    assert!(limits[resource].is_string(), "{name}: {limits}");
                }
            }
            networks += 1;
        }
    }
    assert_eq!(networks, 2);
}

#[test]
fn pods_that_get_onload_are_no_user_0() {
    for (path, pod) in examples() {
        if asked(&pod).contains(&"nic".to_owned()) {
            for container in containers(&pod) {
                let user = container.security_context.as_ref().unwrap().run_as_user;
                assert!(user.is_some_and(|user| user > 0), "{path}");
            }
        }
    }
}
