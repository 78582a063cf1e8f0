//! Many nodes and one API server: how often it is asked.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test")]

use std::collections::BTreeMap;

use crate::support::api_server::{ApiServer, Gates};
use crate::support::driver::Driver;
use crate::support::offers::{offer, unhealthy};
use k8s_openapi::api::resource::v1::ResourceSlice;
use onload_core::class::Class;
use onload_host::offers::HostDevice;
use serde_json::json;

const NODES: usize = 200;
/// One link of a hundred: each node has two.
const FLAPPING: usize = 4;

/// Two interfaces, and two functions for vfio: two pools.
fn offers(is_up: bool) -> Vec<HostDevice> {
    let ens1 = offer(Class::Nic, "ens1");
    vec![
        if is_up { ens1 } else { unhealthy(ens1) },
        offer(Class::Nic, "ens2"),
        offer(Class::Vfio, "0000:81:10.0"),
        offer(Class::Vfio, "0000:81:10.1"),
    ]
}

fn counts(counts: &[(&str, usize)]) -> BTreeMap<String, usize> {
    counts.iter().map(|(what, times)| ((*what).to_owned(), *times)).collect()
}

/// Waits until each has asked for all that it needs, and sees that it was no more.
async fn asked_exactly(server: &ApiServer, wanted: &[(&str, usize)]) {
    let wanted = counts(wanted);
    let number = wanted.values().sum();
    server.until_asked(|asked| asked.len() >= number).await;
    assert_eq!(server.counts(), wanted);
}

async fn all_published(drivers: &[Driver]) {
    for driver in drivers {
        driver.published_is(&[Class::Nic, Class::Vfio]).await;
    }
}

#[tokio::test]
async fn two_hundred_nodes_ask_as_often_as_the_page_says() {
    let server = ApiServer::start(Gates::ON).await;
    for class in [Class::Nic, Class::Vfio] {
        let name = format!("{class}.onload.dev");
        let spec = json!({"extendedResourceName": format!("onload.dev/{class}")});
        let object = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
            "metadata": {"name": name}, "spec": spec});
        server.put_class(&name, object);
    }
    let start = |node: usize| Driver::deciding(&server, &format!("n{node}"), offers(true));
    let mut drivers: Vec<Driver> = (0..NODES).map(start).collect();
    all_published(&drivers).await;
    let begun = [
        ("get nodes", 4 * NODES),
        ("list deviceclasses", NODES),
        ("list resourceclaims", NODES),
        ("list resourceslices", NODES),
        ("patch resourceslices", 2 * NODES),
        ("patch resourceslices (dry run)", NODES),
        ("watch deviceclasses", NODES),
        ("watch resourceslices", NODES),
    ];
    asked_exactly(&server, &begun).await;
    assert_eq!(server.slices().len(), 2 * NODES);

    // A rolling update: each node's driver is replaced by one that finds its slices there.
    server.forget_asked();
    let mut updated = Vec::new();
    for (node, driver) in drivers.drain(..).enumerate() {
        driver.stop().await;
        updated.push(start(node));
    }
    all_published(&updated).await;
    let rolled = [
        ("get nodes", 4 * NODES),
        ("list deviceclasses", NODES),
        ("list resourceslices", NODES),
        ("patch resourceslices (dry run)", NODES),
        ("watch deviceclasses", NODES),
        ("watch resourceslices", NODES),
    ];
    asked_exactly(&server, &rolled).await;

    // Nothing changes: nothing is asked. A look at the host is no change.
    server.forget_asked();
    for driver in &updated {
        driver.offer(offers(true));
    }
    tokio::task::yield_now().await;

    // Links that flap.
    for (node, driver) in updated.iter().enumerate().take(FLAPPING) {
        driver.offer(offers(false));
        let is_told = |slice: &ResourceSlice| {
            let first = &slice.spec.devices.as_ref().unwrap()[0];
            first.taints.is_some()
        };
        let name = format!("n{node}-onload-dev-nic-0");
        server.until_slice(&name, is_told).await;
        for flap in 0..100 {
            driver.offer(offers(flap % 2 == 0));
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(server.counts(), counts(&[("patch resourceslices", FLAPPING)]));
}
