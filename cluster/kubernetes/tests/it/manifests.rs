//! The manifests of packaging/kubernetes, read as Kubernetes reads them, and held against the program and the
//! page that describes them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::api_server::RIGHTS;
use crate::support::offers::captured;
use clap::{CommandFactory, Parser};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Container, Namespace, Pod, PodSpec, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use onload_core::class::Class;
use onload_core::config::Config;
use onload_core::kubernetes_settings::KubernetesSettings;
use onload_kubernetes::cli::KubernetesCli;
use onload_kubernetes::dra::api::SERVICE_ACCOUNT;
use onload_kubernetes::dra::slices::{DraFeatures, SliceInput, SlicePool};
use onload_kubernetes::names::NodeName;
use onload_test_needs as needs;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

const DIRECTORIES: [&str; 4] = ["", "dra", "uninstall", "examples"];
/// Those that are applied whole.
const KUSTOMIZED: [&str; 3] = ["", "dra", "uninstall"];
const KUSTOMIZATION: &str = "kustomization.yaml";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn packaging() -> PathBuf {
    root().join("packaging/kubernetes")
}

pub(crate) fn text(path: impl AsRef<Path>) -> String {
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
pub(crate) fn objects(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

/// Every object of every manifest, with its file.
fn manifests() -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for directory in DIRECTORIES {
        for name in names(directory).iter().filter(|name| *name != KUSTOMIZATION) {
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
pub(crate) fn read_back(object: &Value) -> Value {
    let kind = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
    match kind {
        ("v1", "Namespace") => through::<Namespace>(object),
        ("v1", "ServiceAccount") => through::<ServiceAccount>(object),
        ("v1", "Pod") => through::<Pod>(object),
        ("apps/v1", "DaemonSet") => through::<DaemonSet>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRole") => through::<ClusterRole>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => {
            through::<ClusterRoleBinding>(object)
        }
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy") => {
            through::<ValidatingAdmissionPolicy>(object)
        }
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding") => {
            through::<ValidatingAdmissionPolicyBinding>(object)
        }
        ("resource.k8s.io/v1", "DeviceClass") => through::<DeviceClass>(object),
        ("resource.k8s.io/v1", "ResourceClaim") => through::<ResourceClaim>(object),
        ("resource.k8s.io/v1", "ResourceClaimTemplate") => through::<ResourceClaimTemplate>(object),
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
    daemon_set.spec.as_ref().unwrap().template.spec.as_ref().unwrap()
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

/// A page of the documentation.
fn page(name: &str) -> String {
    fs::read_to_string(root().join("docs").join(name)).unwrap()
}

#[test]
fn the_objects_of_the_pages_are_what_kubernetes_understands() {
    let pages = ["kubernetes.md", "kubernetes-device-plugin.md", "kubernetes-dra.md"];
    let text = pages.map(page).concat();
    let blocks = text.split("```yaml\n").skip(1);
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
    for directory in KUSTOMIZED {
        let kustomization = objects(&text(Path::new(directory).join(KUSTOMIZATION))).remove(0);
        let mut named: Vec<String> =
            serde_json::from_value(kustomization["resources"].clone()).unwrap();
        named.push(KUSTOMIZATION.to_owned());
        named.sort();
        assert_eq!(named, names(directory), "{directory:?}");
    }
}

fn has_kubectl() -> bool {
    let kubectl = Command::new("kubectl").args(["version", "--client"]).output();
    let is_there = kubectl.is_ok_and(|output| output.status.success());
    let missing = "kubectl is not installed (Debian: kubernetes-client)";
    needs::that(is_there, missing)
}

fn kubectl_minor_version() -> u32 {
    let version =
        Command::new("kubectl").args(["version", "--client", "-o", "json"]).output().unwrap();
    let version: Value = serde_json::from_slice(&version.stdout).unwrap();
    let minor = version["clientVersion"]["minor"].as_str().unwrap();
    minor.trim_end_matches('+').parse().unwrap()
}

#[test]
fn kubectl_builds_what_the_files_say() {
    if !has_kubectl() {
        return;
    }
    for directory in KUSTOMIZED {
        let output = Command::new("kubectl")
            .arg("kustomize")
            .arg(packaging().join(directory))
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        let built = objects(&String::from_utf8(output.stdout).unwrap());
        let key = |object: &Value| {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            (text(&object["kind"]), text(&object["metadata"]["name"]))
        };
        let mut built: BTreeMap<(String, String), Value> =
            built.into_iter().map(|object| (key(&object), object)).collect();
        let config = built.keys().find(|(kind, _)| kind == "ConfigMap").cloned();
        let config = config.and_then(|key| built.remove(&key));
        assert_eq!(config.is_some(), directory.is_empty());
        let mut files = names(directory);
        files.retain(|name| name != KUSTOMIZATION);
        let written = files.iter().flat_map(|name| objects(&text(Path::new(directory).join(name))));
        let mut number = 0;
        for mut object in written {
            if let Some(config) = &config {
                name_config(&mut object, &config["metadata"]["name"]);
                assert_eq!(config["data"]["config.toml"], text("config.toml"));
            }
            assert_eq!(built[&key(&object)], object);
            number += 1;
        }
        assert_eq!(built.len(), number);
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
            assert_eq!(capabilities.drop.as_deref(), Some(&["ALL".to_owned()][..]), "{path}");
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
            let limits = container.resources.as_ref().unwrap().limits.as_ref().unwrap();
            assert!(limits.contains_key("memory") && limits.contains_key("cpu"), "{path}");
        }
    }
    let daemon_set = daemon_set("daemonset.yaml");
    let writable = |container: &Container| -> Vec<String> {
        let mounts = container.volume_mounts.iter().flatten();
        let writable = mounts.filter(|mount| mount.read_only != Some(true));
        writable.map(|mount| mount.name.clone()).collect()
    };
    let pod = pod_of(&daemon_set);
    let [install, daemon] = [&pod.init_containers.as_ref().unwrap()[0], &pod.containers[0]];
    assert_eq!(writable(install), ["hooks", "settings"]);
    assert_eq!(
        writable(daemon),
        ["specifications", "run", "device-plugins", "plugins-registry", "plugin", "health"]
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
    let known: BTreeSet<String> = variables(&KubernetesCli::command());
    for path in ["daemonset.yaml", "uninstall/daemonset.yaml"] {
        for container in containers(pod_of(&daemon_set(path))) {
            let words = container.args.iter().flatten().map(String::as_str);
            let words = ["onload-kubernetes"].into_iter().chain(words);
            assert!(KubernetesCli::try_parse_from(words).is_ok(), "{path}: {}", container.name);
            for probe in [&container.liveness_probe, &container.readiness_probe] {
                let Some(probe) = probe else { continue };
                let words = probe.exec.as_ref().unwrap().command.iter().flatten();
                // In the container the variable says it.
                let socket = ["--health-socket", "/x"].map(str::to_owned);
                let words = words.cloned().chain(socket);
                assert!(KubernetesCli::try_parse_from(words).is_ok(), "{path}");
            }
            for variable in container.env.iter().flatten() {
                assert!(known.contains(&variable.name), "{path}: {}", variable.name);
            }
        }
    }
}

fn variables(command: &clap::Command) -> BTreeSet<String> {
    let own = command.get_arguments().filter_map(|argument| argument.get_env());
    let own = own.map(|name| name.to_string_lossy().into_owned());
    own.chain(command.get_subcommands().flat_map(variables)).collect()
}

#[test]
fn mounts_and_volumes_belong_together() {
    for (path, pod) in pods() {
        let volumes: BTreeSet<&str> =
            pod.volumes.iter().flatten().map(|volume| volume.name.as_str()).collect();
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
            assert!(lines[index - 1].starts_with("- name:"), "{}", lines[index - 1]);
            let path = lines[index + 1].strip_prefix("path: ").unwrap();
            found.push((path.to_owned(), has_reason(index - 1)));
        }
    }
    found
}

#[test]
fn whatever_a_plain_pod_does_not_have_has_its_reason_beside_it_and_in_the_page() {
    let page = page("kubernetes-reference.md");
    for (path, least) in [("daemonset.yaml", 8), ("uninstall/daemonset.yaml", 1)] {
        let asked = asking(&text(path));
        assert!(asked.len() > least, "{path}: {asked:?}");
        for (what, has_reason) in asked {
            assert!(has_reason, "{path}: {what} stands there without a reason");
            let what = what.trim_end_matches(": true");
            let row = format!("| `{what}`");
            let of_page = page.lines().any(|line| line.starts_with(&row));
            assert!(of_page, "docs/kubernetes-reference.md has no row that begins with {row}");
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
    all.filter(|(path, _)| path.starts_with("examples/")).collect()
}

/// What a pod asks of ours, without the prefix.
fn asked(pod: &PodSpec) -> Vec<String> {
    let resources = containers(pod).filter_map(|container| container.resources.as_ref());
    let limits = resources.flat_map(|resources| resources.limits.iter().flatten());
    let ours = limits.filter_map(|(name, _)| name.strip_prefix("onload.dev/"));
    let of_class = |name: &str| Some(name.strip_suffix(".onload.dev")?.to_owned());
    let claimed = claimed(pod).into_iter();
    let claimed = claimed.filter_map(|(class, _)| of_class(&class));
    ours.map(str::to_owned).chain(claimed).collect()
}

/// A request of a claim: its class, and its selectors.
type Request = (String, Vec<String>);

/// What the claims of a pod ask for, which stand in the same file as the pod.
fn claimed(pod: &PodSpec) -> Vec<Request> {
    let manifests = manifests();
    let claim = |name: &str| {
        let named = |object: &&Value| object["metadata"]["name"] == name && is_claim(object);
        let found = manifests.iter().map(|(_, object)| object).find(named);
        found.unwrap_or_else(|| panic!("there is no claim {name}")).clone()
    };
    let mut requests = Vec::new();
    for named in pod.resource_claims.iter().flatten() {
        let name = named.resource_claim_name.as_ref();
        let name = name.or(named.resource_claim_template_name.as_ref());
        requests.extend(requests_of(&claim(name.unwrap())));
    }
    requests
}

fn is_claim(object: &Value) -> bool {
    ["ResourceClaim", "ResourceClaimTemplate"].contains(&object["kind"].as_str().unwrap())
}

fn requests_of(object: &Value) -> Vec<Request> {
    let spec = match object["kind"].as_str() {
        Some("ResourceClaimTemplate") => &object["spec"]["spec"],
        _ => &object["spec"],
    };
    let requests = spec["devices"]["requests"].as_array().unwrap();
    let mut found = Vec::new();
    for request in requests {
        let first = request["firstAvailable"].as_array().cloned().unwrap_or_default();
        let exactly = Some(request["exactly"].clone()).filter(Value::is_object);
        for request in first.into_iter().chain(exactly) {
            let selectors = request["selectors"].as_array().cloned().unwrap_or_default();
            let expression =
                |selector: &Value| selector["cel"]["expression"].as_str().unwrap().to_owned();
            let class = request["deviceClassName"].as_str().unwrap().to_owned();
            found.push((class, selectors.iter().map(expression).collect()));
        }
    }
    found
}

/// The attributes of ours that an expression names.
fn named_attributes(expression: &str) -> Vec<&str> {
    let behind = expression.split("attributes[\"onload.dev\"].").skip(1);
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    behind.map(|rest| rest.split(|c| !is_name(c)).next().unwrap()).collect()
}

#[test]
fn the_page_names_each_attribute() {
    let page = page("kubernetes-reference.md");
    let mut seen = BTreeSet::new();
    for class in [Class::Nic, Class::NicPlain, Class::Rdma, Class::Vfio, Class::Ptp] {
        seen.extend(published(class));
    }
    for name in &seen {
        let last = name.rsplit('/').next().unwrap();
        let is_named = page.contains(&format!("`{name}`")) || page.contains(&format!("`…/{last}`"));
        assert!(is_named, "{name}");
    }
    assert!(seen.len() > 30, "{seen:?}");
}

/// The attributes that a device of a class has in a slice.
fn published(class: Class) -> BTreeSet<String> {
    let mut devices = captured("debian13-2numa-onload-rxe-vfio");
    devices.extend(captured("x2-2port-sriov"));
    let node: NodeName = "n1".parse().unwrap();
    let wanted = SliceInput {
        node: &node,
        uid: "u-1",
        devices: &devices,
        settings: &KubernetesSettings::default(),
    };
    let slice = SlicePool::new(wanted, class, DraFeatures::ALL).slice(0, 1);
    let device = &slice.spec.devices.unwrap()[0];
    device.attributes.as_ref().unwrap().keys().cloned().collect()
}

#[test]
fn each_selector_names_attributes_that_devices_of_its_class_have() {
    let mut seen = 0;
    for (path, object) in manifests().iter().filter(|(_, object)| is_claim(object)) {
        for (class, selectors) in requests_of(object) {
            let Some(class) = class.strip_suffix(".onload.dev") else {
                continue;
            };
            // The sample host offers none of some classes.
            if selectors.is_empty() {
                continue;
            }
            let has = published(class.parse().unwrap());
            for selector in selectors {
                for name in named_attributes(&selector) {
                    assert!(has.contains(name), "{path}: {selector}: {has:?}");
                    seen += 1;
                }
            }
        }
    }
    assert!(seen >= 5, "{seen}");
}

#[test]
fn each_class_that_can_be_counted_is_a_device_class_with_its_old_name() {
    let classes = objects(&text("dra/deviceclasses.yaml"));
    let config = Config::default();
    let countable = config.kubernetes.classes.as_slice();
    assert_eq!(classes.len(), countable.len());
    for (object, class) in classes.iter().zip(countable) {
        assert_eq!(object["metadata"]["name"], format!("{class}.onload.dev"));
        assert_eq!(object["spec"]["extendedResourceName"], format!("onload.dev/{class}"));
        let selector = &object["spec"]["selectors"][0]["cel"]["expression"];
        let wanted = format!(
            "device.driver == \"onload.dev\" && device.attributes[\"onload.dev\"].kind == \"{class}\""
        );
        assert_eq!(*selector, wanted);
    }
}

#[test]
fn the_role_has_the_rights_that_the_server_of_the_tests_asks_for_and_no_others() {
    let role = objects(&text("dra/clusterrole.yaml")).remove(0);
    let mut rights = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        let words =
            |key: &str| -> Vec<String> { serde_json::from_value(rule[key].clone()).unwrap() };
        for resource in words("resources") {
            rights.extend(words("verbs").into_iter().map(|verb| (verb, resource.clone())));
        }
    }
    let asked = RIGHTS.map(|(verb, resource)| (verb.to_owned(), resource.to_owned()));
    assert_eq!(rights, BTreeSet::from(asked));
}

#[test]
fn the_page_on_security_names_each_right_of_the_token() {
    let role = objects(&text("dra/clusterrole.yaml")).remove(0);
    let role: ClusterRole = serde_json::from_value(role).unwrap();
    let page = page("security.md");
    let rows: Vec<String> = page.lines().map(str::to_lowercase).collect();
    for rule in role.rules.unwrap() {
        for resource in rule.resources.unwrap() {
            for verb in &rule.verbs {
                let is_said = rows.iter().any(|row| {
                    let right = row.split('|').nth(1).unwrap_or_default();
                    right.contains(&format!("`{verb}`")) && right.contains(&resource)
                });
                assert!(is_said, "{verb} {resource}");
            }
        }
    }
}

#[test]
fn the_policy_and_the_role_are_for_the_account_of_the_pods() {
    let account = objects(&text("serviceaccount.yaml")).remove(0);
    let (namespace, name) = (&account["metadata"]["namespace"], &account["metadata"]["name"]);
    let pod = objects(&text("daemonset.yaml")).remove(0);
    assert_eq!(pod["spec"]["template"]["spec"]["serviceAccountName"], *name);
    let binding = objects(&text("dra/clusterrole.yaml")).remove(1);
    assert_eq!(binding["subjects"][0]["namespace"], *namespace);
    assert_eq!(binding["subjects"][0]["name"], *name);
    let policy = objects(&text("dra/admissionpolicy.yaml"));
    let condition = policy[0]["spec"]["matchConditions"][0]["expression"].as_str().unwrap();
    let by_name = format!("endsWith(\":{}\")", name.as_str().unwrap());
    assert!(condition.ends_with(&by_name), "{condition}");
    assert_eq!(policy[1]["spec"]["policyName"], policy[0]["metadata"]["name"]);
    assert_eq!(policy[1]["spec"]["validationActions"], serde_json::json!(["Deny"]));
    let of_status = objects(&text("dra/statuspolicy.yaml"));
    let spec = |at: usize, key: &str| (&policy[at]["spec"][key], &of_status[at]["spec"][key]);
    let (slices, claims) = spec(0, "matchConditions");
    assert_eq!(slices, claims);
    let (slices, claims) = spec(1, "validationActions");
    assert_eq!(slices, claims);
    assert_eq!(of_status[1]["spec"]["policyName"], of_status[0]["metadata"]["name"]);
}

#[test]
fn the_policy_on_claims_is_the_one_whose_answers_are_recorded() {
    let recorded = root().join("cluster/kubernetes/tests/recorded/status-policy-1.36.2");
    let read = |name: &str| fs::read_to_string(recorded.join(name)).unwrap();
    let policy = objects(&text("dra/statuspolicy.yaml")).remove(0);
    let evaluated: Value = serde_json::from_str(&read("policy.json")).unwrap();
    assert_eq!(policy["spec"], evaluated, "README.md there says what to do");
    let answers = read("answers.jsonl");
    let answers = answers.lines().map(|line| {
        let case: Value = serde_json::from_str(line).unwrap();
        case["answer"].clone()
    });
    let (taken, refused): (Vec<Value>, Vec<Value>) = answers.partition(Value::is_null);
    assert_eq!((taken.len(), refused.len()), (7, 12));
    let messages: BTreeSet<String> = refused.iter().map(Value::to_string).collect();
    let validations = policy["spec"]["validations"].as_array().unwrap();
    assert_eq!(messages.len(), validations.len(), "each refuses something: {messages:?}");
}

#[test]
fn a_kustomization_with_another_namespace_moves_everything_there() {
    if !has_kubectl() {
        return;
    }
    let is_new = kubectl_minor_version() >= 21;
    if !needs::on_this_machine(is_new, "kubectl before 1.21 has kustomize 2, without replacements")
    {
        return;
    }
    // kustomize takes directories by relative paths alone.
    let dir = tempfile::tempdir().unwrap();
    let copied =
        Command::new("cp").arg("-r").arg(packaging()).arg(dir.path().join("base")).status();
    assert!(copied.unwrap().success());
    let own = dir.path().join("own");
    fs::create_dir(&own).unwrap();
    let kustomization = "namespace: other\nresources: [../base, ../base/dra]\n";
    fs::write(own.join("kustomization.yaml"), kustomization).unwrap();
    let built = Command::new("kubectl").arg("kustomize").arg(&own).output().unwrap();
    let built = String::from_utf8(built.stdout).unwrap();
    assert!(built.contains("kind: ValidatingAdmissionPolicy\n"), "{built}");
    assert!(!built.contains("onload-system"), "{built}");
}

#[test]
fn only_the_daemon_has_a_token() {
    let daemon_set = daemon_set("daemonset.yaml");
    let with_token = containers(pod_of(&daemon_set)).filter(|container| {
        let mut mounts = container.volume_mounts.iter().flatten();
        mounts.any(|mount| mount.mount_path == SERVICE_ACCOUNT)
    });
    let names: Vec<&str> = with_token.map(|container| container.name.as_str()).collect();
    assert_eq!(names, ["daemon"]);
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
            assert!(is_class || text(&path).contains(&section), "{path}: {resource}");
        }
    }
}

#[test]
fn the_pools_of_the_examples_are_configuration() {
    let text = text("examples/sriov-cni.yaml");
    let lines = text.lines().skip_while(|line| !line.starts_with("#   [pools"));
    let lines: Vec<&str> = lines.map_while(|line| line.strip_prefix("#   ")).collect();
    let config = Config::parse(&lines.join("\n")).unwrap();
    assert_eq!(config.pools["fast"].class, Class::Vfio);
}

#[test]
fn the_dpdk_pod_is_guaranteed_and_has_whole_cpus() {
    let (_, pod) = examples().into_iter().find(|(path, _)| path.contains("dpdk")).unwrap();
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
    for name in ["rdma-macvlan.yaml", "sriov-cni.yaml", "dra-sriov-cni.yaml"] {
        let objects = objects(&text(Path::new("examples").join(name)));
        let of_kind =
            |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
        for network in of_kind("NetworkAttachmentDefinition") {
            let config: Value =
                serde_json::from_str(network["spec"]["config"].as_str().unwrap()).unwrap();
            assert!(config["type"].is_string() && config["cniVersion"].is_string(), "{name}");
            let resource = &network["metadata"]["annotations"]["k8s.v1.cni.cncf.io/resourceName"];
            let title = network["metadata"]["name"].as_str().unwrap();
            assert_eq!(config["name"], title);
            for pod in of_kind("Pod") {
                let wanted =
                    pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"].as_str().unwrap();
                assert!(wanted.contains(title), "{name}: {wanted}");
                let Some(resource) = resource.as_str() else {
                    continue;
                };
                if pod["spec"]["resourceClaims"].is_array() {
                    // Devices of a pool are for the resource of that name.
                    let pool = resource.strip_prefix("onload.dev/").unwrap();
                    let mut classes = of_kind("DeviceClass");
                    let is_its = |class: &&Value| class["spec"]["extendedResourceName"] == resource;
                    let class = classes.find(is_its).unwrap();
                    let selector = &class["spec"]["selectors"][0]["cel"]["expression"];
                    let selector = selector.as_str().unwrap();
                    assert!(selector.contains(&format!("pool == \"{pool}\"")));
                    let mut claimed = of_kind("ResourceClaimTemplate").flat_map(requests_of);
                    assert!(claimed.any(|(named, _)| class["metadata"]["name"] == named));
                } else {
                    let limits = &pod["spec"]["containers"][0]["resources"]["limits"];
                    assert!(limits[resource].is_string(), "{name}: {limits}");
                }
            }
            networks += 1;
        }
    }
    assert_eq!(networks, 3);
}

#[test]
fn pods_that_get_onload_are_no_user_0() {
    for (path, pod) in examples() {
        if asked(&pod).iter().any(|class| class == "nic") {
            for container in containers(&pod) {
                let user = container.security_context.as_ref().unwrap().run_as_user;
                assert!(user.is_some_and(|user| user > 0), "{path}");
            }
        }
    }
}
