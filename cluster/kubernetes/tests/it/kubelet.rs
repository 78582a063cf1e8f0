//! The daemon as kubelet sees it: registration, lists, allocation, restarts. The kubelet is a mock
//! (`support/kubelet.rs`); messages go over real sockets.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{AgentHost, Daemon, MockKubelet, get, get_as};
use onload_test_needs as needs;

const CAPTURED: &str = "debian13-2numa-onload-rxe-vfio";
const X2: &str = "x2-2port-sriov";
const VFIO: &str = "onload.dev/vfio";
const NIC: &str = "onload.dev/nic";

fn socket_of(host: &AgentHost, resource: &str) -> PathBuf {
    let name = resource.replacen('/', "_", 1);
    host.plugin_dir().join(format!("onload-kubernetes.{name}.sock"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_class_of_a_host_is_a_resource_with_its_devices() {
    let host = AgentHost::captured(CAPTURED);
    let kubelet = MockKubelet::start(&host.plugin_dir());
    let mut daemon = Daemon::start(&host);
    let vfio = kubelet.registered(VFIO).await;
    assert_eq!(vfio.ids(), ["0000:81:10.0", "0000:81:10.2"]);
    assert!(vfio.unhealthy().is_empty(), "{:?}", vfio.devices);
    let nodes = vfio.devices.0.iter().map(|device| {
        let topology = device.topology.as_ref().unwrap();
        topology.nodes.iter().map(|node| node.id).collect()
    });
    assert_eq!(nodes.collect::<Vec<Vec<i64>>>(), [[1], [1]]);
    assert_eq!(vfio.request.version, "v1beta1");
    assert!(vfio.options.get_preferred_allocation_available);
    assert!(!vfio.options.pre_start_required);
    let nic = kubelet.registered(NIC).await;
    let slots: Vec<String> = (0..10).map(|slot| format!("ens1-{slot}")).collect();
    assert_eq!(nic.ids(), slots);
    // Nobody knows on which node a soft-RoCE device is.
    let rdma = kubelet.registered("onload.dev/rdma").await;
    assert!(rdma.devices.0.iter().all(|device| device.topology.is_none()));
    for resource in ["nic-plain", "nic-nodes", "ptp"] {
        kubelet.registered(&format!("onload.dev/{resource}")).await;
    }
    let mut resources = kubelet.resources();
    resources.retain(|name| name.contains("hugepages") || name.contains("profile"));
    assert!(resources.is_empty(), "{resources:?}");
    assert!(daemon.terminate().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_gets_cdi_devices_and_the_variables_of_its_functions() {
    let host = AgentHost::captured(CAPTURED);
    let kubelet = MockKubelet::start(&host.plugin_dir());
    let _daemon = Daemon::start(&host);
    let vfio = kubelet.registered(VFIO).await;
    let answer = vfio.allocate(&["0000:81:10.2", "0000:81:10.0"]).await.unwrap();
    let [container] = &answer.container_responses[..] else {
        panic!("{answer:?}");
    };
    let cdi: Vec<&str> = container.cdi_devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(cdi, ["onload.dev/vfio=0000:81:10.0", "onload.dev/vfio=0000:81:10.2"]);
    let variable = |name: &str| container.envs[name].as_str();
    assert_eq!(variable("PCIDEVICE_ONLOAD_DEV_VFIO"), "0000:81:10.0,0000:81:10.2");
    let info: serde_json::Value =
        serde_json::from_str(variable("PCIDEVICE_ONLOAD_DEV_VFIO_INFO")).unwrap();
    let function = &info["0000:81:10.0"];
    assert_eq!(function["generic"]["deviceID"], "0000:81:10.0");
    assert_eq!(function["vfio"]["dev-mount"], "/dev/vfio/15");
    assert_eq!(function["vfio"]["mount"], "/dev/vfio/vfio");
    let nic = kubelet.registered(NIC).await;
    assert_eq!(nic.cdi(&["ens1-3", "ens1-1"]).await, ["onload.dev/nic=ens1"]);
    assert_eq!(vfio.preferred(&["0000:81:10.0", "0000:81:10.2"], 2).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_kubelet_should_not_ask_for_is_refused_with_words_of_discovery() {
    let host = AgentHost::captured(X2);
    let kubelet = MockKubelet::start(&host.plugin_dir());
    let mut daemon = Daemon::start(&host);
    let vfio = kubelet.registered(VFIO).await;
    for (ids, says) in [
        (
            &["0000:65:00.7"][..],
            "onload.dev/vfio: device \"0000:65:00.7\" is not offered: bound to no driver; run \"driverctl",
        ),
        (
            &["ens1-0"],
            "onload.dev/vfio: unknown device \"ens1-0\"; the resource has 0000:65:00.3, 0000:65:00.6",
        ),
        (&["0000:65:00.3", "0000:65:00.3"], "is requested twice"),
        (&[], "no device is requested"),
        (&["../../etc"], "unknown device"),
    ] {
        let error = vfio.allocate(ids).await.unwrap_err();
        assert!(error.message().contains(says), "{ids:?}: {error}");
    }
    daemon.logged(&["not allocated", "bound to no driver"]);
    // It goes on as before.
    assert_eq!(vfio.cdi(&["0000:65:00.3"]).await, ["onload.dev/vfio=0000:65:00.3"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_names_and_pools_are_resources_and_share_no_exclusive_device() {
    let host = AgentHost::captured(X2);
    host.config(
        r#"
        [pools.fast]
        class = "vfio"
        select = { addresses = ["0000:65:00.3"] }
        [kubernetes]
        classes = ["nic", "vfio"]
        slots = 2
        [kubernetes.resources]
        "amd.com/onload" = { class = "nic", slots = 3 }
        "#,
    );
    let kubelet = MockKubelet::start(&host.plugin_dir());
    let _daemon = Daemon::start(&host);
    assert_eq!(kubelet.registered("onload.dev/fast").await.ids(), ["0000:65:00.3"]);
    assert_eq!(kubelet.registered(VFIO).await.ids(), ["0000:65:00.6"]);
    assert_eq!(kubelet.registered("amd.com/onload").await.ids().len(), 6);
    assert_eq!(kubelet.registered(NIC).await.ids().len(), 4);
    assert_eq!(kubelet.resources().len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_leaves_its_specification_turns_unhealthy_and_comes_back() {
    let host = AgentHost::captured(CAPTURED);
    let kubelet = MockKubelet::start(&host.plugin_dir());
    let mut daemon = Daemon::start(&host);
    let first = kubelet.registered(VFIO).await;
    assert!(first.unhealthy().is_empty());
    let file = host.spec_dir().join("onload.dev-vfio.json");
    let whole = fs::read(&file).unwrap();
    host.remove_from_spec("vfio", "0000:81:10.2");
    // Before the list says it, the request is refused: the specification on disk decides.
    let error = first.allocate(&["0000:81:10.2"]).await.unwrap_err();
    assert!(error.message().contains("0000:81:10.2"), "{error}");
    let second = kubelet.until(VFIO, |plugin| !plugin.unhealthy().is_empty()).await;
    assert_eq!(second.unhealthy(), ["0000:81:10.2"]);
    assert_eq!(second.ids(), first.ids());
    daemon.logged(&["device unhealthy", "0000:81:10.2"]);
    assert_eq!(second.cdi(&["0000:81:10.0"]).await, ["onload.dev/vfio=0000:81:10.0"]);
    fs::write(&file, whole).unwrap();
    kubelet.until(VFIO, |plugin| plugin.unhealthy().is_empty()).await;
    daemon.logged(&["device healthy", "0000:81:10.2"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_is_sent_again_only_if_it_differs() {
    let host = AgentHost::captured(CAPTURED);
    let kubelet = MockKubelet::start(&host.plugin_dir());
    let _daemon = Daemon::start(&host);
    kubelet.registered(NIC).await;
    host.remove_from_spec("vfio", "0000:81:10.2");
    kubelet.until(VFIO, |plugin| !plugin.unhealthy().is_empty()).await;
    // The look at the host that changed the one list left the other as it was.
    assert_eq!(kubelet.registered(NIC).await.devices.1, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_kubelet_is_registered_with_at_a_new_socket() {
    let host = AgentHost::captured(CAPTURED);
    let mut kubelet = MockKubelet::start(&host.plugin_dir());
    let mut daemon = Daemon::start(&host);
    for _ in 0..3 {
        let vfio = kubelet.registered(VFIO).await;
        assert_eq!(vfio.cdi(&["0000:81:10.0"]).await.len(), 1);
        kubelet.kill().await;
        // It removes every socket before it makes its own.
        kubelet = MockKubelet::start(&host.plugin_dir());
    }
    kubelet.registered(VFIO).await;
    kubelet.registered(NIC).await;
    assert!(daemon.is_running());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubelet_that_was_away_and_listens_late_has_all_resources_within_seconds() {
    let host = AgentHost::captured(CAPTURED);
    host.config("[kubernetes]\nclasses = [\"nic\", \"vfio\"]\n");
    let kubelet = MockKubelet::start(&host.plugin_dir());
    let mut daemon = Daemon::start(&host);
    kubelet.registered(VFIO).await;
    kubelet.registered(NIC).await;
    // Its socket stays, and each attempt that it refuses doubles the wait.
    kubelet.kill().await;
    tokio::time::sleep(Duration::from_secs(9)).await;
    let deaf = Duration::from_millis(300);
    let kubelet = MockKubelet::listening_after(&host.plugin_dir(), deaf);
    let begun = Instant::now();
    kubelet.registered(VFIO).await;
    kubelet.registered(NIC).await;
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    // It comes and goes as it is updated, and nothing is wrong.
    let line = daemon.logged(&["offering it failed; trying again", "dialling kubelet"]);
    assert_eq!(line["level"], "INFO", "{line}");
    let reason = line["reason"].as_str().unwrap();
    assert_eq!(reason.matches("os error").count(), 1, "{reason}");
    assert_eq!(daemon.count(&["\"level\":\"ERROR\""]), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubelet_that_comes_later_is_waited_for() {
    let host = AgentHost::captured(CAPTURED);
    let mut daemon = Daemon::start(&host);
    daemon.logged(&["waiting for the directory of the device plugins"]);
    fs::create_dir(host.plugin_dir()).unwrap();
    daemon.logged(&["serving /metrics", "http.sock"]);
    assert_eq!(get(&daemon.http, "/healthz").1, "ok\n");
    let kubelet = MockKubelet::start(&host.plugin_dir());
    kubelet.registered(VFIO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_registration_is_tried_again_and_said_once() {
    let host = AgentHost::captured(CAPTURED);
    host.config("[kubernetes]\nclasses = [\"vfio\"]\n");
    let texts = ["the ResourceName is invalid"; 3];
    let kubelet = MockKubelet::refusing(&host.plugin_dir(), &texts);
    let mut daemon = Daemon::start(&host);
    kubelet.attempts(4).await;
    kubelet.registered(VFIO).await;
    daemon.logged(&["registered with kubelet"]);
    assert_eq!(daemon.count(&["kubelet refused it: the ResourceName is invalid"]), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_that_is_removed_and_a_stream_that_ends_are_noticed() {
    let host = AgentHost::captured(CAPTURED);
    host.config("[kubernetes]\nclasses = [\"vfio\"]\n");
    let kubelet = MockKubelet::start(&host.plugin_dir());
    let mut daemon = Daemon::start(&host);
    kubelet.registered(VFIO).await;
    fs::remove_file(socket_of(&host, VFIO)).unwrap();
    daemon.logged(&["registering again", "its socket was removed"]);
    kubelet.registered_again(VFIO, 2).await;
    kubelet.forget(VFIO);
    daemon.logged(&["registering again", "kubelet closed the list of devices"]);
    kubelet.registered_again(VFIO, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_takes_the_sockets_away_and_a_killed_daemon_is_followed() {
    let host = AgentHost::captured(CAPTURED);
    let kubelet = MockKubelet::start(&host.plugin_dir());
    let first = Daemon::start(&host);
    kubelet.registered(VFIO).await;
    let socket = socket_of(&host, VFIO);
    assert!(fs::metadata(&socket).unwrap().file_type().is_socket());
    first.signal_term();
    let (status, message) = first.ended();
    assert!(status.success() && message.contains("ending"), "{message}");
    assert!(!message.contains("registering again"), "{message}");
    let left: Vec<_> =
        fs::read_dir(host.plugin_dir()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["kubelet.sock"]);
    kubelet.forget(VFIO);
    let second = Daemon::start(&host);
    kubelet.registered(VFIO).await;
    // SIGKILL leaves them.
    drop(second);
    assert!(socket.exists());
    kubelet.forget(VFIO);
    let _third = Daemon::start(&host);
    kubelet.registered(VFIO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_daemon_is_refused_and_the_first_goes_on() {
    let host = AgentHost::captured(CAPTURED);
    let kubelet = MockKubelet::start(&host.plugin_dir());
    let mut first = Daemon::start(&host);
    let vfio = kubelet.registered(VFIO).await;
    let (status, message) = Daemon::start(&host).ended();
    assert_eq!(status.code(), Some(2), "{message}");
    assert!(
        message.contains("another onload-kubernetes already offers the devices of this host"),
        "{message}"
    );
    assert!(message.contains("stop it first"), "{message}");
    assert_eq!(vfio.cdi(&["0000:81:10.0"]).await.len(), 1);
    assert!(first.is_running());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_on_kubelet_s_directory_by_another_stops_nothing() {
    let host = AgentHost::captured(CAPTURED);
    let kubelet = MockKubelet::start(&host.plugin_dir());
    let directory = fs::File::open(host.plugin_dir()).unwrap();
    let exclusive = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    rustix::fs::flock(&directory, exclusive).unwrap();
    let mut daemon = Daemon::start(&host);
    kubelet.registered(VFIO).await;
    assert!(daemon.is_running());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_is_replaced_behind_its_mount_ends_the_daemon() {
    if !needs::mount_namespace("a bind mount") {
        return;
    }
    let host = AgentHost::captured(CAPTURED);
    let real = host.plugin_dir().with_file_name("device-plugins-of-kubelet");
    fs::create_dir_all(&real).unwrap();
    fs::create_dir_all(host.plugin_dir()).unwrap();
    let kubelet = MockKubelet::start(&real);
    let mount = format!("mount --bind '{}' '{}'", real.display(), host.plugin_dir().display());
    let mut daemon = Daemon::wrapped(&host, |program| {
        let mut command = Command::new("unshare");
        let script = format!("{mount} && exec \"$0\" \"$@\"");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
        command.arg(program);
        command
    });
    kubelet.registered(VFIO).await;
    kubelet.kill().await;
    assert!(daemon.is_running());
    fs::remove_dir_all(&real).unwrap();
    fs::create_dir(&real).unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    while daemon.is_running() {
        assert!(Instant::now() < end);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (status, log) = daemon.ended();
    assert!(!status.success() && log.contains("was replaced on the host"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_something_else_has_is_left_and_the_other_resources_are_offered() {
    let host = AgentHost::captured(CAPTURED);
    let kubelet = MockKubelet::start(&host.plugin_dir());
    let taken = socket_of(&host, VFIO);
    fs::write(&taken, "precious").unwrap();
    let mut daemon = Daemon::start(&host);
    kubelet.registered(NIC).await;
    let line = daemon.logged(&["offering it failed; trying again", "has this name"]);
    assert_eq!(line["resource"], VFIO);
    assert_eq!(fs::read_to_string(&taken).unwrap(), "precious");
    fs::remove_file(&taken).unwrap();
    kubelet.registered(VFIO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_configuration_is_taken_and_a_broken_one_changes_nothing() {
    let host = AgentHost::captured(CAPTURED);
    host.config("[kubernetes]\nclasses = [\"vfio\"]\n");
    let kubelet = MockKubelet::start(&host.plugin_dir());
    let mut daemon = Daemon::start(&host);
    kubelet.registered(VFIO).await;
    host.config("[kubernetes]\nclasses = \n");
    let line = daemon.logged(&["the configuration is invalid"]);
    assert!(line["error"].as_str().unwrap().contains("line 2"), "{line}");
    // A line for the same error would come with each look at the host.
    host.remove_from_spec("vfio", "0000:81:10.2");
    kubelet.until(VFIO, |plugin| !plugin.unhealthy().is_empty()).await;
    assert_eq!(daemon.count(&["the configuration is invalid"]), 1);
    host.config("[kubernetes]\nclasses = [\"nic\"]\nslots = 4\n");
    let nic = kubelet.registered(NIC).await;
    assert_eq!(nic.ids().len(), 4);
    // What a pod has stays known, and nobody gets more of it.
    let vfio = kubelet.until(VFIO, |plugin| plugin.ids().is_empty()).await;
    let error = vfio.allocate(&["0000:81:10.0"]).await.unwrap_err();
    assert!(error.message().contains("the resource has nothing"), "{error}");
    host.config("[kubernetes]\nclasses = [\"vfio\", \"nic\"]\nslots = 4\n");
    kubelet.until(VFIO, |plugin| plugin.ids().len() == 2).await;
}

/// It finds the file by its watch: the next look by time comes after a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_drained_is_unhealthy_until_it_is_offered_again() {
    let host = AgentHost::captured(CAPTURED);
    host.config("[kubernetes]\nclasses = [\"vfio\"]\n");
    let kubelet = MockKubelet::start(&host.plugin_dir());
    let mut daemon = Daemon::start(&host);
    let vfio = kubelet.registered(VFIO).await;
    assert_eq!(vfio.unhealthy(), [""; 0]);
    let file = host.root().join("etc/onload-ctk/drain.json");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let text = r#"{"version":1,"drained":[{"class":"vfio","name":"0000:81:10.0","since":0,"reason":"new firmware"}]}"#;
    fs::write(&file, text).unwrap();
    let vfio = kubelet.until(VFIO, |plugin| plugin.unhealthy() == ["0000:81:10.0"]).await;
    daemon.logged(&["drained since 1970-01-01T00:00:00Z: new firmware"]);
    let error = vfio.allocate(&["0000:81:10.0"]).await.unwrap_err();
    assert!(error.message().contains("drained since "), "{error}");
    fs::remove_file(&file).unwrap();
    let all = kubelet.until(VFIO, |plugin| plugin.unhealthy().is_empty());
    assert_eq!(all.await.ids().len(), 2);
}

#[test]
fn an_address_that_the_file_changes_is_told_only_where_the_file_says_it() {
    let host = AgentHost::captured(CAPTURED);
    let changed = "listen has changed";
    for by_file in [false, true] {
        host.config("[kubernetes]\nlisten = \"\"\n");
        let mut daemon = Daemon::with(&host, |command| {
            if by_file {
                command.env_remove("ONLOAD_KUBERNETES_LISTEN");
            }
        });
        daemon.logged(&["onload.dev/vfio", "healthy"]);
        host.config("[kubernetes]\nlisten = \"127.0.0.1:9999\"\n");
        daemon.logged(&["the configuration has changed"]);
        assert_eq!(daemon.count(&[changed]), usize::from(by_file));
    }
}

#[test]
fn a_configuration_that_is_broken_at_the_start_is_an_error() {
    let host = AgentHost::empty();
    host.config("[kubernetes]\nslotz = 1\n");
    let (status, message) = Daemon::start(&host).ended();
    assert_eq!(status.code(), Some(2));
    assert!(message.contains("unknown key \"kubernetes.slotz\"; did you mean"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_devices_fit_into_the_messages() {
    let host = AgentHost::captured(CAPTURED);
    host.config("[kubernetes]\nclasses = [\"nic\", \"rdma\"]\nslots = 4096\n[kubernetes.resources]\n\"a.io/most\" = { class = \"rdma\", slots = 32768 }\n");
    let kubelet = MockKubelet::start(&host.plugin_dir());
    let mut daemon = Daemon::start(&host);
    let nic = kubelet.registered(NIC).await;
    assert_eq!(nic.ids().len(), 4096);
    let ids = nic.ids();
    assert_eq!(nic.preferred(&ids, 3).await.len(), 3);
    assert_eq!(nic.cdi(&ids).await, ["onload.dev/nic=ens1"]);
    // Two devices with 32768 slots each are more than kubelet receives.
    let most = kubelet.registered("a.io/most").await;
    assert_eq!(most.ids().len(), 32_768);
    daemon.logged(&["left out", "a.io/most would have 65536 slots, but kubelet allows 32768"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_and_health_are_served() {
    let host = AgentHost::captured(CAPTURED);
    let kubelet = MockKubelet::start(&host.plugin_dir());
    let daemon = Daemon::start(&host);
    let vfio = kubelet.registered(VFIO).await;
    vfio.cdi(&["0000:81:10.0"]).await;
    vfio.allocate(&["none"]).await.unwrap_err();
    let (head, body) = get_as(&daemon.http, "/metrics", OPEN_METRICS);
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    for line in [
        r#"onload_kubernetes_devices{resource="onload.dev/vfio",health="healthy"} 2"#,
        r#"onload_kubernetes_devices{resource="onload.dev/vfio",health="unhealthy"} 0"#,
        r#"onload_kubernetes_allocated_since_start{resource="onload.dev/vfio"} 1"#,
        r#"onload_kubernetes_requests_total{method="Allocate",outcome="ok"} 1"#,
        r#"onload_kubernetes_requests_total{method="Allocate",outcome="error"} 1"#,
        r#"onload_kubernetes_registrations_total{resource="onload.dev/vfio",outcome="ok"} 1"#,
        r#"onload_ctk_devices{class="vfio",health="healthy"} 2.0"#,
    ] {
        assert!(body.lines().any(|other| other == line), "{line}:\n{body}");
    }
    assert!(body.ends_with("# EOF\n"));
    assert!(get(&daemon.http, "/other").0.starts_with("HTTP/1.1 404"));
}

/// What Prometheus accepts before all else.
const OPEN_METRICS: &str =
    "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2";

const READER: &str = "
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as families
for family in families(sys.stdin.read()):
    print(family.name)
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_metrics_of_the_host_are_served_with_the_daemons_own_and_none_twice() {
    let host = AgentHost::captured(CAPTURED);
    host.lease("vfio:0000:81:10.2", None);
    let kubelet = MockKubelet::start(&host.plugin_dir());
    let daemon = Daemon::start(&host);
    kubelet.registered(VFIO).await;
    let (_, body) = get_as(&daemon.http, "/metrics", OPEN_METRICS);
    for line in [
        r#"onload_ctk_leases{class="vfio"} 1.0"#,
        r#"onload_ctk_devices_held{class="vfio"} 1.0"#,
        r#"onload_ctk_hugepages_bytes{node="1",size="1Gi"} 2147483648.0"#,
        r#"onload_ctk_interface_up{interface="ens1"} 1.0"#,
    ] {
        assert!(body.lines().any(|other| other == line), "{line}:\n{body}");
    }
    assert_eq!(body.matches("# EOF").count(), 1);
    assert!(body.ends_with("# EOF\n"));
    let mut helped: Vec<&str> =
        body.lines().filter_map(|line| line.strip_prefix("# HELP ")).collect();
    let count = helped.len();
    helped.sort_unstable();
    helped.dedup_by_key(|help| help.split(' ').next());
    assert_eq!(helped.len(), count, "{body}");
    let mut python = Command::new("/usr/bin/python3");
    if needs::that(
        python
            .args(["-c", "import prometheus_client.openmetrics.parser"])
            .status()
            .is_ok_and(|status| status.success()),
        "python3-prometheus-client is not installed",
    ) {
        let (is_good, message) =
            needs::asked(Command::new("/usr/bin/python3").args(["-c", READER]), &body);
        assert!(is_good, "{message}\n{body}");
    }
    if needs::programs(&["promtool"]) {
        // It has no other reader, and curl accepts everything.
        let (head, body) = get(&daemon.http, "/metrics");
        assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
        let (is_good, message) =
            needs::asked(Command::new("promtool").args(["check", "metrics"]), &body);
        assert!(is_good && message.is_empty(), "{message}\n{body}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_is_in_use_stops_no_device() {
    let host = AgentHost::captured(CAPTURED);
    let kubelet = MockKubelet::start(&host.plugin_dir());
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let mut daemon = Daemon::with(&host, |command| {
        command.args(["--listen", &address]);
    });
    kubelet.registered(VFIO).await;
    let setting = "change --listen or ONLOAD_KUBERNETES_LISTEN";
    daemon.logged(&["serving metrics and health failed; trying again", &address, setting]);
    // The probes ask elsewhere.
    daemon.logged(&["serving /metrics", "health.sock"]);
    assert_eq!(daemon.health(&[]), (Some(0), "ok\n".to_owned()));
    drop(other);
    daemon.logged(&["serving /metrics", &address]);
    assert_eq!(daemon.count(&["serving metrics and health failed"]), 1);
}

#[test]
fn an_address_of_the_configuration_that_is_in_use_is_named_with_its_key() {
    let host = AgentHost::captured(CAPTURED);
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    host.config(&format!("[kubernetes]\nlisten = \"{address}\"\n"));
    let mut daemon = Daemon::with(&host, |command| {
        command.env_remove("ONLOAD_KUBERNETES_LISTEN");
    });
    daemon.logged(&["serving metrics and health failed", "change [kubernetes] listen"]);
}

#[test]
fn requests_that_never_end_take_few_descriptors_and_are_ended() {
    use std::io::Write;
    let host = AgentHost::captured(CAPTURED);
    let mut daemon = Daemon::start(&host);
    daemon.logged(&["serving /metrics", "http.sock"]);
    daemon.logged(&["serving /metrics", "health.sock"]);
    let half_sent = |_| {
        let mut stream = std::os::unix::net::UnixStream::connect(&daemon.http).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: ").unwrap();
        stream
    };
    let attackers: Vec<_> = (0..60).map(half_sent).collect();
    // An answer comes when those before it have been ended.
    assert!(get(&daemon.http, "/metrics").0.starts_with("HTTP/1.1 200"));
    let fds = || fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
    assert!(fds().count() < 60, "{}", fds().count());
    assert_eq!(daemon.health(&[]), (Some(0), "ok\n".to_owned()));
    drop(attackers);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_is_ready_when_kubelet_has_taken_its_resources() {
    let host = AgentHost::captured(CAPTURED);
    host.config("[kubernetes]\nclasses = [\"vfio\"]\n");
    fs::create_dir(host.plugin_dir()).unwrap();
    let mut daemon = Daemon::start(&host);
    daemon.logged(&["serving /metrics", "http.sock"]);
    daemon.logged(&["serving /metrics", "health.sock"]);
    let waiting = "kubelet has not accepted onload.dev/vfio\n".to_owned();
    assert_eq!(daemon.health(&[]), (Some(0), "ok\n".to_owned()));
    assert_eq!(daemon.health(&["--ready"]), (Some(1), waiting.clone()));
    let (head, body) = get(&daemon.http, "/readyz");
    assert!(head.starts_with("HTTP/1.1 503"), "{head}");
    assert_eq!(body, waiting);
    let kubelet = MockKubelet::start(&host.plugin_dir());
    kubelet.registered(VFIO).await;
    daemon.logged(&["registered with kubelet"]);
    assert_eq!(daemon.health(&["--ready"]), (Some(0), "ok\n".to_owned()));
    assert!(get(&daemon.http, "/readyz").0.starts_with("HTTP/1.1 200"));
    assert!(daemon.terminate().success());
    let (status, message) = daemon.health(&[]);
    assert_eq!(status, Some(2));
    assert!(
        message.starts_with("onload-kubernetes: reading the health of the daemon at "),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_cannot_be_written_stops_no_device() {
    let full = std::path::Path::new("/dev/full");
    if !needs::that(full.exists(), "/dev/full") {
        return;
    }
    let host = AgentHost::captured(CAPTURED);
    let kubelet = MockKubelet::start(&host.plugin_dir());
    let mut daemon = Daemon::with(&host, |command| {
        command.stderr(fs::File::create(full).unwrap());
    });
    let vfio = kubelet.registered(VFIO).await;
    assert_eq!(vfio.cdi(&["0000:81:10.0"]).await.len(), 1);
    assert!(daemon.terminate().success());
}

/// Descriptors of a process beyond which it gets no more.
fn limit_descriptors(daemon: &Daemon, most: u64) {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
    let pid = Pid::from_raw(i32::try_from(daemon.pid()).unwrap());
    let limit = Rlimit { current: Some(most), ..getrlimit(Resource::Nofile) };
    prlimit(pid, Resource::Nofile, limit).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_without_descriptors_goes_on_when_it_has_some_again() {
    let host = AgentHost::captured(CAPTURED);
    let kubelet = MockKubelet::start(&host.plugin_dir());
    let mut daemon = Daemon::start(&host);
    kubelet.registered(VFIO).await;
    limit_descriptors(&daemon, 1);
    let socket = std::os::unix::net::UnixStream::connect(socket_of(&host, VFIO)).unwrap();
    daemon.logged(&["accepting a connection failed; trying again"]);
    limit_descriptors(&daemon, 1024);
    drop(socket);
    assert!(daemon.is_running());
    let (head, _) = get(&daemon.http, "/healthz");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    kubelet.kill().await;
    let kubelet = MockKubelet::start(&host.plugin_dir());
    kubelet.registered(VFIO).await;
}
