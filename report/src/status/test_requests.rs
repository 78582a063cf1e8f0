//! Containers that ask for something and have nothing, and those that have what leaves no node.

use crate::test_tree::AsHost;

use super::test_host::*;
use super::*;

/// The one container, made with such a configuration by a runtime of docker.
fn made_so(config: &str, runtime: &str) -> Made {
    let made = Made::new();
    let bundle = format!("/run/containerd/io.containerd.runtime.v2.task/moby/{ID}/config.json");
    made.file(&bundle, config);
    let docker = format!("/var/lib/docker/containers/{ID}");
    made.file(&format!("{docker}/config.v2.json"), r#"{"Name":"/redis"}"#);
    made.file(&format!("{docker}/hostconfig.json"), format!(r#"{{"Runtime":"{runtime}"}}"#));
    made
}

const ASKS: &str = r#"{"annotations":{"onload.dev/hugepages":"2Mi"}}"#;

#[test]
fn a_container_that_asks_by_annotation_of_a_runtime_that_does_not_read_it_is_told_so() {
    let made = made_so(ASKS, "runc");
    made.assert_is(
        VerdictState::NothingGiven,
        "it requests devices by annotation \"onload.dev/hugepages\", but its runtime is runc, which does not read that",
        "docker run --runtime onload",
    );
    assert_eq!(made.status().containers[0].name.as_deref(), Some("redis"));
    made_so(ASKS, "onload").assert_is(
        VerdictState::NothingGiven,
        "its runtime is onload, but it has none",
        &format!(
            "see why: onload-ctk container explain /run/containerd/io.containerd.runtime.v2.task/moby/{ID}"
        ),
    );
    let variable = r#"{"process":{"env":["ONLOAD_CTK_REQUEST=hugepages=2Mi"]}}"#;
    made_so(variable, "").assert_is(
        VerdictState::NothingGiven,
        "by the variable ONLOAD_CTK_REQUEST, but its runtime is the engine's default",
        "--runtime onload",
    );
}

#[test]
fn a_label_and_a_near_spelling_are_told() {
    let made = made_so("{}", "onload");
    let docker = format!("/var/lib/docker/containers/{ID}/config.v2.json");
    made.file(&docker, r#"{"Name":"/redis","Config":{"Labels":{"onload.dev/nic":"all"}}}"#);
    made.assert_is(
        VerdictState::NothingGiven,
        "the label \"onload.dev/nic\", but labels request nothing",
        "--annotation",
    );
    made.file(&docker, r#"{"Name":"/redis","Config":{"Labels":null}}"#);
    assert_eq!(made.status().containers, []);
    let near = r#"{"annotations":{"onlaod.dev/nic":"all"}}"#;
    made_so(near, "onload").assert_is(
        VerdictState::NothingGiven,
        "\"onlaod.dev/nic\" resembles onload.dev/CLASS",
        "correct it",
    );
    let near = r#"{"process":{"env":["ONLOAD_CTK_REQUSET=nic=all"]}}"#;
    made_so(near, "onload").assert_is(
        VerdictState::NothingGiven,
        "resembles ONLOAD_CTK_REQUEST",
        "correct it",
    );
}

#[test]
fn a_container_that_asks_for_nothing_here_is_not_shown() {
    for config in [
        "{}",
        r#"{"annotations":{"io.example/nic":"all"},"process":{"env":["PATH=/bin","ONLOAD_CTK_REQUEST="]}}"#,
        // It holds the namespaces of a pod.
        r#"{"annotations":{"onload.dev/nic":"all","io.kubernetes.cri.container-type":"sandbox"}}"#,
        // It is another one of its pod.
        r#"{"annotations":{"onload.dev/nic.web":"all","io.kubernetes.cri.container-name":"sidecar"}}"#,
        "not json",
    ] {
        assert_eq!(made_so(config, "runc").status().containers, [], "{config}");
    }
    // What it asked for was put into it while it ran.
    let made = made_so(ASKS, "runc");
    made.file(&format!("/run/onload-ctk/{ID}/record"), "");
    assert_eq!(made.status().containers, []);
    // A cgroup of a user has the name of that container.
    let made = made_so(ASKS, "runc");
    let cgroup = format!("0::/user.slice/user-1000.slice/user@1000.service/docker-{ID}.scope\n");
    made.file("/proc/77/cgroup", cgroup);
    assert_eq!(made.status().containers, []);
}

#[test]
fn a_container_of_containerd_is_told_the_runtime_that_its_shim_was_given() {
    let made = Made::new();
    made.file("/proc/77/cgroup", format!("0::/kubepods.slice/cri-containerd-{ID}.scope\n"));
    let bundle = format!("/run/containerd/io.containerd.runtime.v2.task/k8s.io/{ID}");
    made.file(&format!("{bundle}/config.json"), ASKS);
    made.file(&format!("{bundle}/runtime"), "/usr/bin/crun");
    let runtime_class = "start it with the runtime onload (in the pod: runtimeClassName: onload)";
    made.assert_is(VerdictState::NothingGiven, "but its runtime is crun", runtime_class);
    assert!(!made.verdicts()[0].remedy.as_ref().unwrap().contains("docker"));
    // podman keeps it elsewhere.
    let made = Made::new();
    made.file("/proc/77/cgroup", format!("0::/machine.slice/libpod-{ID}.scope/container\n"));
    made.file(
        &format!("/var/lib/containers/storage/overlay-containers/{ID}/userdata/config.json"),
        ASKS,
    );
    made.assert_is(VerdictState::NothingGiven, "neither its runtime nor a hook", "doctor");
}

#[test]
fn a_container_of_crio_is_given_what_its_runtime_was_told_and_not_what_crio_keeps_a_copy_of() {
    let made = Made::new();
    made.file("/proc/77/cgroup", format!("0::/system.slice/crio-{ID}.scope\n"));
    let userdata = format!("containers/storage/overlay-containers/{ID}/userdata/config.json");
    made.file(
        &format!("/run/{userdata}"),
        r#"{"process":{"env":["ONLOAD_CTK_HUGEPAGES_2MI=2Mi"]}}"#,
    );
    made.file(&format!("/var/lib/{userdata}"), r#"{"process":{"env":[]}}"#);
    let devices = &made.status().containers[0].devices;
    assert_eq!(devices[0].device, "hugepages=2Mi");
}

#[test]
fn the_runtime_of_a_container_of_crio_is_that_of_its_sandbox() {
    let sandbox = ID.replace('3', "4");
    let made = Made::new();
    made.file("/proc/77/cgroup", format!("0::/kubepods.slice/crio-{ID}.scope\n"));
    let bundle =
        |id: &str| format!("/run/containers/storage/overlay-containers/{id}/userdata/config.json");
    let of_sandbox = |id: &str| {
        let annotations = format!(
            r#"{{"annotations":{{"onload.dev/nic":"all","io.kubernetes.cri-o.SandboxID":"{id}",
            "io.kubernetes.cri-o.RuntimeHandler":"onload"}}}}"#
        );
        made.file(&bundle(ID), annotations);
    };
    let unknown = "neither its runtime nor a hook";
    of_sandbox(&sandbox);
    made.assert_is(VerdictState::NothingGiven, unknown, "");
    let handler = r#"{"annotations":{"io.kubernetes.cri-o.RuntimeHandler":"crun"}}"#;
    made.file(&bundle(&sandbox), handler);
    made.assert_is(VerdictState::NothingGiven, "but its runtime is crun", "");
    // It is a name in a directory of CRI-O's, and nothing else.
    of_sandbox(&format!("../overlay-containers/{sandbox}"));
    made.assert_is(VerdictState::NothingGiven, unknown, "");
}

#[test]
fn a_container_of_what_leaves_no_node_is_listed_with_it() {
    let config = r#"{"process":{"env":["ONLOAD_CTK_HUGEPAGES_2MI=2Mi","ONLOAD_CTK_PROFILE_LATENCY=latency","ONLOAD_CTK_X=y"]}}"#;
    let made = made_so(config, "runc");
    made.assert_is(VerdictState::Ready, "it has its devices", "");
    let grant = |device: &str, by| Grant { device: device.to_owned(), by };
    let by = Evidence::Configuration;
    let wanted = [grant("hugepages=2Mi", by), grant("profile=latency", by)];
    assert_eq!(made.status().containers[0].devices, wanted);
    // Where there is no bundle the environment says it, which a program may change.
    let made = Made::new();
    made.file("/proc/77/environ", b"ONLOAD_CTK_HUGEPAGES_2MI=2Mi\0\xff=1\0");
    let by = Evidence::Environment;
    assert_eq!(made.status().containers[0].devices, [grant("hugepages=2Mi", by)]);
}

#[test]
fn the_devices_of_containers_are_listed_without_a_look_at_their_processes() {
    let config = r#"{"process":{"env":["ONLOAD_CTK_HUGEPAGES_2MI=2Mi","PATH=/bin"]}}"#;
    let made = made_so(config, "runc");
    let host = made.tree.host();
    let listed = list_grants(&host).unwrap();
    let wanted = ContainerGrants {
        container: "redis".to_owned(),
        engine: ContainerEngine::Docker,
        id: ID.to_owned(),
        devices: vec!["hugepages=2Mi".to_owned()],
    };
    assert_eq!(listed, [wanted]);
    // One that was made so and has ended, and one of a user that is called as it is.
    made.file("/proc/77/cgroup", format!("0::/user.slice/user-1000.slice/docker-{ID}.scope\n"));
    assert_eq!(list_grants(&host).unwrap(), []);
    let made = made_so("{}", "runc");
    let host = made.tree.host();
    assert_eq!(list_grants(&host).unwrap(), []);
}
