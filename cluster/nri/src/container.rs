//! A container as the runtime describes it, converted to a partial config.json, which the decision reads.

use std::collections::BTreeMap;

use onload_core::container_id::ContainerId;
use onload_core::pod::CONTAINERD;
use onload_core::request::{DOMAIN, Request};
use onload_sys::error;
use onload_sys::error::Result;
use serde_json::{Value, json};

use crate::runtime::NriRuntime;
use crate::wire::messages::{Container, CreateContainerRequest};

/// The annotation with a container's name in its pod, and the prefix of the engine's own annotations, as
/// `onload_core::request` reads them.
const NAME_KEY: &str = CONTAINERD.container;
const ENGINE_PREFIX: &str = "io.kubernetes.";
/// The name of our OCI runtime in engine configurations and runtime classes.
const HANDLER: &str = "onload";

#[derive(Debug)]
pub struct ContainerRequest {
    /// The id for the OCI runtime.
    pub id: ContainerId,
    pub request: Request,
    pub config: String,
    pub held_names: Vec<String>,
}

/// Reads a container. Returns `None` for one without a request, and for one that our OCI runtime starts, which decides
/// by the whole configuration if it gets the same annotations. CRI-O passes all annotations of a pod, containerd those
/// in `pod_annotations` of the handler.
pub fn read(
    create_request: CreateContainerRequest,
    runtime: &NriRuntime,
) -> Result<Option<ContainerRequest>> {
    let container = create_request
        .container
        .ok_or_else(|| error!("the runtime's message contains no container"))?;
    let pod = create_request.pod.unwrap_or_default();
    let handed_on = merge_annotations(BTreeMap::new(), &container, runtime);
    let annotations = merge_annotations(pod.annotations, &container, runtime);
    if pod.runtime_handler == HANDLER && annotations == handed_on {
        return Ok(None);
    }
    let Some(request) = Request::parse(&annotations)? else {
        return Ok(None);
    };
    let names = container.cdi_devices.iter();
    Ok(Some(ContainerRequest {
        id: container.id.parse()?,
        request,
        held_names: names.map(|device| device.name.clone()).collect(),
        config: build_config(&container, &annotations).to_string(),
    }))
}

/// Describes a container for the log, on one line: `pod default/redis container server`.
#[must_use]
pub fn describe_container(create_request: &CreateContainerRequest) -> String {
    let container = create_request.container.as_ref();
    // dockerd's names start with a slash.
    let name = container.map_or("", |container| container.name.trim_start_matches('/'));
    match create_request.pod.as_ref().filter(|pod| !pod.namespace.is_empty()) {
        Some(pod) => format!("pod {}/{} container {name}", pod.namespace, pod.name),
        None => format!("container {name}"),
    }
}

/// Merges the onload.dev annotations of the pod and of the container, which take precedence, with the engine's
/// annotations on the container. Engine annotations on the pod are ignored.
fn merge_annotations(
    pod: BTreeMap<String, String>,
    container: &Container,
    runtime: &NriRuntime,
) -> BTreeMap<String, String> {
    let mut annotations: BTreeMap<String, String> =
        pod.into_iter().filter(|(key, _)| key.starts_with(DOMAIN)).collect();
    for (key, value) in &container.annotations {
        if key.starts_with(DOMAIN) || key.starts_with(ENGINE_PREFIX) {
            annotations.insert(key.clone(), value.clone());
        }
    }
    if runtime.has_pods() && !container.name.is_empty() {
        annotations.insert(NAME_KEY.to_owned(), container.name.clone());
    }
    annotations
}

/// Builds a partial config.json from the runtime's data. If the user is unknown, user 0 is assumed, which is the safe
/// choice.
fn build_config(container: &Container, annotations: &BTreeMap<String, String>) -> Value {
    let mut config = json!({
        "annotations": annotations,
        "process": {"args": container.args, "env": container.env, "rlimits": container.rlimits},
        "mounts": container.mounts,
    });
    if let Some(user) = &container.user {
        config["process"]["user"] = json!(user);
    }
    if let Some(hooks) = &container.hooks {
        config["hooks"] = json!(hooks);
    }
    if let Some(linux) = &container.linux {
        config["linux"] = json!({
            "namespaces": linux.namespaces,
            "devices": linux.devices,
            "resources": linux.resources.clone().unwrap_or_default(),
        });
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::messages::{
        ConfigureRequest, LinuxContainer, LinuxDevice, OptionalFileMode, PodSandbox,
    };

    fn runtime(name: &str) -> NriRuntime {
        NriRuntime::new(&ConfigureRequest {
            runtime_name: name.to_owned(),
            ..ConfigureRequest::default()
        })
    }

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_log_names_a_container_with_its_pod_and_one_of_dockerd_without_the_slash() {
        let describe = |namespace: &str, name: &str| {
            describe_container(&CreateContainerRequest {
                pod: Some(PodSandbox {
                    namespace: namespace.to_owned(),
                    name: "redis".to_owned(),
                    ..PodSandbox::default()
                }),
                container: Some(Container { name: name.to_owned(), ..Container::default() }),
            })
        };
        assert_eq!(describe("default", "server"), "pod default/redis container server");
        assert_eq!(describe("", "/web"), "container web");
    }

    fn asked(
        name: &str,
        pod: &[(&str, &str)],
        own: &[(&str, &str)],
    ) -> Result<Option<String>, String> {
        let asked = CreateContainerRequest {
            pod: Some(PodSandbox { annotations: map(pod), ..PodSandbox::default() }),
            container: Some(Container {
                id: "c1".to_owned(),
                name: name.to_owned(),
                annotations: map(own),
                ..Container::default()
            }),
        };
        let read = read(asked, &runtime("containerd")).map_err(|error| format!("{error:#}"))?;
        Ok(read.map(|asking| {
            asking
                .request
                .devices
                .iter()
                .map(|(class, asked)| format!("{class}={}", asked.value[0]))
                .collect::<Vec<_>>()
                .join(" ")
        }))
    }

    #[test]
    fn annotations_of_pod_and_container_are_read_and_the_container_s_go_first() {
        let nic = |value| [("onload.dev/nic", value)];
        assert_eq!(asked("a", &nic("all"), &[]), Ok(Some("nic=all".to_owned())));
        assert_eq!(asked("a", &[], &nic("all")), Ok(Some("nic=all".to_owned())));
        assert_eq!(asked("a", &nic("all"), &nic("ens1")), Ok(Some("nic=ens1".to_owned())));
    }

    #[test]
    fn a_key_with_a_name_is_for_the_container_of_that_name() {
        let pod = [("onload.dev/nic.a", "all"), ("onload.dev/rdma", "x0")];
        assert_eq!(asked("a", &pod, &[]), Ok(Some("nic=all rdma=x0".to_owned())));
        assert_eq!(asked("b", &pod, &[]), Ok(Some("rdma=x0".to_owned())));
        let refused = asked("", &pod, &[]).unwrap_err();
        assert!(refused.contains("is not named in a pod"), "{refused}");
    }

    #[test]
    fn what_a_pod_says_in_the_words_of_engines_is_not_heard() {
        let pod = [("onload.dev/nic.a", "all"), ("io.kubernetes.cri.container-name", "a")];
        assert_eq!(asked("b", &pod, &[]), Ok(None));
        let pod = [("onload.dev/nic", "all"), ("io.kubernetes.cri.container-type", "sandbox")];
        assert_eq!(asked("a", &pod, &[]), Ok(Some("nic=all".to_owned())));
    }

    #[test]
    fn a_container_that_only_holds_namespaces_gets_nothing() {
        let pod = [("onload.dev/nic", "all")];
        for key in ["io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType"] {
            assert_eq!(asked("a", &pod, &[(key, "sandbox")]), Ok(None), "{key}");
        }
    }

    #[test]
    fn annotations_that_are_hostile_are_refused_by_their_rules() {
        let long = "x".repeat(5000);
        for (key, value, says) in [
            ("onload.dev/nic", long.as_str(), "4096 bytes"),
            ("onload.dev", "all", "names no class"),
            ("onload.dev/", "all", "names no class"),
            ("onload.dev/gpu", "all", "gpu"),
            ("onload.dev/nic", "../../etc", "cannot be the name"),
            ("onload.dev/nic", "a\n\u{1b}[31m", "\\n"),
            ("onload.dev/nic", "", "empty name"),
        ] {
            let refused = asked("a", &[(key, value)], &[]).unwrap_err();
            assert!(refused.contains(says), "{key}: {refused}");
            assert!(!refused.contains(['\n', '\u{1b}']), "{refused}");
        }
        let many: Vec<String> = (0..65).map(|n| format!("onload.dev/nic.c{n}")).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|key| (key.as_str(), "all")).collect();
        assert!(asked("a", &many, &[]).unwrap_err().contains("more than 64"));
    }

    #[test]
    fn a_container_without_an_id_is_refused() {
        let with_id = |id: &str| {
            let container = Container {
                id: id.to_owned(),
                annotations: map(&[("onload.dev/nic", "all")]),
                ..Container::default()
            };
            let asked = CreateContainerRequest { pod: None, container: Some(container) };
            read(asked, &runtime("docker")).map_err(|error| format!("{error:#}"))
        };
        assert!(with_id("c1").is_ok_and(|asking| asking.is_some()));
        for id in ["", "..", "a/b"] {
            assert!(with_id(id).unwrap_err().contains("is not a container id"));
        }
        let none = read(CreateContainerRequest::default(), &runtime("docker"));
        assert_eq!(none.unwrap_err().to_string(), "the runtime's message contains no container");
    }

    #[test]
    fn what_is_told_of_a_container_is_a_config_json() {
        let container = Container {
            id: "c1".to_owned(),
            env: vec!["A=1".to_owned()],
            user: None,
            linux: Some(LinuxContainer {
                devices: vec![LinuxDevice {
                    path: "/dev/x".to_owned(),
                    r#type: "c".to_owned(),
                    major: 1,
                    minor: 5,
                    file_mode: Some(OptionalFileMode { value: 0o666 }),
                    ..LinuxDevice::default()
                }],
                ..LinuxContainer::default()
            }),
            ..Container::default()
        };
        let config = build_config(&container, &map(&[("onload.dev/nic", "all")]));
        assert_eq!(
            config,
            json!({
                "annotations": {"onload.dev/nic": "all"},
                "process": {"args": [], "env": ["A=1"], "rlimits": []},
                "mounts": [],
                "linux": {
                    "namespaces": [],
                    "devices": [{"path": "/dev/x", "type": "c", "major": 1, "minor": 5, "fileMode": 438}],
                    "resources": {"devices": [], "hugepageLimits": []},
                },
            })
        );
    }
}
