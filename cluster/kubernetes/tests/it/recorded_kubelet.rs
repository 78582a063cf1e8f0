//! The daemon is asked what a real kubelet asked, byte for byte, and answers as it did then
//! (`recorded/README.md`).

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;

use crate::support::{AgentHost, Daemon, MockKubelet, Plugin};
use onload_kubernetes::resources::SpecAuthor;
use onload_kubernetes::wire::device_plugin::{
    AllocateRequest, AllocateResponse, DevicePluginOptions, ListAndWatchResponse,
    PreferredAllocationRequest, PreferredAllocationResponse, RegisterRequest,
};
use prost::Message;
use serde_json::Value;
use tonic::{Code, Status};

const CAPTURED: &str = "debian13-2numa-onload-rxe-vfio";

/// One line of `calls.jsonl`.
struct Call(Value);

impl Call {
    fn all() -> Vec<Call> {
        let text = include_str!("../recorded/kubelet-1.36.2/calls.jsonl");
        text.lines().map(|line| serde_json::from_str(line).unwrap()).map(Call).collect()
    }

    fn word(&self, key: &str) -> Option<&str> {
        self.0[key].as_str()
    }

    fn is(&self, name: &str) -> bool {
        self.word("call") == Some(name)
    }

    fn resource(&self) -> &str {
        self.word("resource").unwrap()
    }

    /// The message of a member, whose bytes stand in hexadecimal.
    fn message<M: Message + Default>(&self, key: &str) -> M {
        let digits = self.word(key).unwrap().as_bytes();
        let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
        let bytes: Vec<u8> = digits.chunks(2).map(byte).collect();
        M::decode(&bytes[..]).unwrap()
    }
}

async fn allocate(plugin: &Plugin, call: &Call) -> Result<AllocateResponse, Status> {
    let request: AllocateRequest = call.message("request");
    let mut client = plugin.client.clone();
    Ok(client.allocate(request).await?.into_inner())
}

async fn preferred(plugin: &Plugin, call: &Call) -> PreferredAllocationResponse {
    let request: PreferredAllocationRequest = call.message("request");
    let mut client = plugin.client.clone();
    let answer = client.get_preferred_allocation(request).await;
    answer.unwrap().into_inner()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_kubelet_is_answered_as_it_was() {
    let host = AgentHost::captured(CAPTURED);
    let kubelet = MockKubelet::start(&host.plugin_dir());
    let _daemon = Daemon::start(&host);
    let mut seen = [0; 5];
    for call in Call::all() {
        let plugin = kubelet.registered(call.resource()).await;
        if call.is("Register") {
            assert_eq!(plugin.request, call.message::<RegisterRequest>("request"));
            seen[0] += 1;
        } else if call.is("GetDevicePluginOptions") {
            let answer: DevicePluginOptions = call.message("answer");
            assert_eq!(plugin.options, answer);
            seen[1] += 1;
        } else if call.is("GetPreferredAllocation") {
            let answer: PreferredAllocationResponse = call.message("answer");
            assert_eq!(preferred(&plugin, &call).await, answer);
            seen[2] += 1;
        } else if call.is("Allocate") && call.word("status").is_none() {
            let answer: AllocateResponse = call.message("answer");
            assert_eq!(allocate(&plugin, &call).await.unwrap(), answer);
            seen[3] += 1;
        } else if call.is("ListAndWatch") {
            let answer: ListAndWatchResponse = call.message("answer");
            // Those of when a specification was taken away stand in the next test.
            if answer.devices.iter().all(|device| device.health == "Healthy") {
                assert_eq!(plugin.devices.0, answer.devices);
                seen[4] += 1;
            }
        }
    }
    assert!(seen.iter().all(|seen| *seen > 0), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_without_a_specification_are_listed_and_refused_as_they_were() {
    let host = AgentHost::captured(CAPTURED);
    let kubelet = MockKubelet::start(&host.plugin_dir());
    let _daemon = Daemon::start(&host);
    let calls = Call::all();
    let refused = calls.iter().find(|call| call.word("status").is_some()).unwrap();
    kubelet.registered(refused.resource()).await;
    fs::remove_file(host.spec_dir().join("onload.dev-vfio.json")).unwrap();
    let is_unhealthy = |plugin: &Plugin| plugin.unhealthy().len() == 2;
    let now = kubelet.until(refused.resource(), is_unhealthy).await;
    let mut lists = calls
        .iter()
        .filter(|call| call.is("ListAndWatch"))
        .map(|call| call.message::<ListAndWatchResponse>("answer"));
    assert!(lists.any(|list| list.devices == now.devices.0), "{:?}", now.devices);
    let status = allocate(&now, refused).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(refused.word("status"), Some("FAILED_PRECONDITION"));
}

/// What the daemon says is what the owner of a pod reads: kubelet shows it whole.
#[test]
fn a_refusal_reaches_the_owner_of_the_pod() {
    let calls = Call::all();
    let refused = calls.iter().find(|call| call.word("status").is_some()).unwrap();
    let name = "onload.dev/vfio=0000:81:10.0".to_owned();
    let now =
        format!("{}: {}", refused.resource(), SpecAuthor::Operator.missing_spec_reason(&name));
    assert_eq!(refused.word("message"), Some(now.as_str()));
    let events = include_str!("../recorded/kubelet-1.36.2/events.txt");
    assert!(events.contains(&now), "{events}");
}
