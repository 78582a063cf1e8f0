//! The health of devices for the status of pods: kubelet shows it for each container with a device.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use onload_host::offers::{Health, HostDevice, Sharing};

use crate::names::{NodeName, device_label, is_allocatable, truncate};
use crate::snapshot::KubernetesSnapshot;
use crate::wire::dra_health::{
    DeviceHealth, DeviceIdentifier, HealthStatus, NodeWatchResourcesResponse,
};

/// Interval for sending all devices again: after 30 s without a message kubelet reports a device as unknown.
pub(super) const REPEAT_INTERVAL: Duration = Duration::from_secs(10);
/// Limit of kubelet for a message, in bytes.
const MAX_MESSAGE_BYTES: usize = 1024;
/// Limit for all messages of an answer, in bytes: kubelet's client accepts 4 MiB (`defaultClientMaxReceiveMessageSize`
/// of grpc-go), and the names of 4096 devices need a part of it.
const MAX_RESPONSE_BYTES: usize = 2 * 1024 * 1024;
/// With names of at most 63 bytes and pools of about a hundred bytes, this number of devices fits into the rest.
const MAX_DEVICES: usize = 8192;
/// The host is surveyed every minute and at each change. Older data counts as unknown.
const STALE: Duration = Duration::from_secs(300);

/// Lists all devices of a node for kubelet. A device that claims share is listed by its name and by the name of each
/// slot, whichever of these is published.
pub(super) fn list_devices(
    snapshot: &KubernetesSnapshot,
    node: &NodeName,
) -> NodeWatchResourcesResponse {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    let devices = snapshot.devices.iter().filter(|device| is_allocatable(device));
    let whole = devices.clone().map(|device| (device, None));
    let of_slots = devices.flat_map(|device| {
        let slots = 0..slot_count(device, snapshot);
        slots.map(move |slot| (device, Some(slot)))
    });
    let entries: Vec<(&HostDevice, Option<u32>)> =
        whole.chain(of_slots).take(MAX_DEVICES).collect();
    let max_length = MAX_MESSAGE_BYTES.min(MAX_RESPONSE_BYTES / entries.len().max(1));
    let age = snapshot.taken.elapsed();
    let mut devices = Vec::with_capacity(entries.len());
    for (device, slot) in entries {
        let (health, message) = device_health(device, age);
        devices.push(DeviceHealth {
            device: Some(DeviceIdentifier {
                pool_name: node.pool_name(device.class),
                device_name: device_label(&device.name, slot),
            }),
            health: health.into(),
            last_updated_time: now,
            health_check_timeout_seconds: 0,
            message: truncate(&message, max_length).to_owned(),
        });
    }
    NodeWatchResourcesResponse { devices }
}

fn slot_count(device: &HostDevice, snapshot: &KubernetesSnapshot) -> u32 {
    match device.sharing {
        Sharing::Exclusive => 0,
        Sharing::Shared => device.slots.unwrap_or(snapshot.config.kubernetes.slots.get()),
    }
}

/// Returns the health of a device. Use by containers of claims does not make it unhealthy.
fn device_health(device: &HostDevice, age: Duration) -> (HealthStatus, String) {
    if age > STALE {
        let message = format!("the host was read {} s ago", age.as_secs());
        return (HealthStatus::Unknown, message);
    }
    match device.health_excluding(|lease| lease.claim.is_some()) {
        Health::Healthy => (HealthStatus::Healthy, String::new()),
        Health::Unhealthy(reason) => (HealthStatus::Unhealthy, reason),
    }
}

pub(super) fn is_same(
    one: &NodeWatchResourcesResponse,
    other: &NodeWatchResourcesResponse,
) -> bool {
    one.devices.iter().map(without_time).eq(other.devices.iter().map(without_time))
}

fn without_time(health: &DeviceHealth) -> (Option<&DeviceIdentifier>, i32, &str) {
    (health.device.as_ref(), health.health, &health.message)
}

#[cfg(test)]
mod tests {
    use onload_core::class::Class;
    use onload_core::kubernetes_settings::KubernetesSettings;
    use onload_host::offers::DeviceLease;
    use prost::Message;

    use super::*;
    use crate::dra::test_offers::{self, offer};

    fn snapshot(devices: Vec<HostDevice>) -> KubernetesSnapshot {
        test_offers::snapshot(devices, KubernetesSettings::default())
    }

    fn exclusive(name: &str, health: Health) -> HostDevice {
        HostDevice { sharing: Sharing::Exclusive, health, ..offer(Class::Vfio, name) }
    }

    fn listed(devices: Vec<HostDevice>) -> NodeWatchResourcesResponse {
        list_devices(&snapshot(devices), &"n1".parse().unwrap())
    }

    fn listed_health(listing: &NodeWatchResourcesResponse) -> Vec<(&str, i32, &str)> {
        let listed = listing.devices.iter().map(|device| {
            let name = device.device.as_ref().unwrap().device_name.as_str();
            (name, device.health, device.message.as_str())
        });
        listed.collect()
    }

    #[test]
    fn each_device_is_told_with_the_words_of_discovery() {
        let reason = "bound to igbvf; bind it to vfio-pci";
        let listing = listed(vec![
            exclusive("0000:81:10.0", Health::Healthy),
            exclusive("0000:81:10.1", Health::Unhealthy(reason.to_owned())),
        ]);
        let (healthy, unhealthy) = (HealthStatus::Healthy.into(), HealthStatus::Unhealthy.into());
        let expected = [("0000-81-10-0", healthy, ""), ("0000-81-10-1", unhealthy, reason)];
        assert_eq!(listed_health(&listing), expected);
        let pool = &listing.devices[0].device.as_ref().unwrap().pool_name;
        assert_eq!(pool, "n1/vfio");
        assert!(listing.devices[0].last_updated_time > 1_700_000_000);
    }

    #[test]
    fn a_shared_device_is_told_by_its_name_and_by_those_of_its_slots() {
        let shared = HostDevice { slots: Some(2), ..offer(Class::Nic, "ens1") };
        let listing = listed(vec![shared, offer(Class::Hugepages, "2Mi")]);
        let names: Vec<&str> = listed_health(&listing).iter().map(|(name, ..)| *name).collect();
        assert_eq!(names, ["ens1", "ens1-slot-0", "ens1-slot-1"]);
    }

    #[test]
    fn what_a_claim_holds_is_healthy_and_what_others_hold_is_not() {
        let lease = |claim: Option<&str>| {
            let holder =
                r#"{"reservation":{"token":"00000000000000000000000000000000","expiresMs":1}}"#;
            let claim = claim.map_or(String::new(), |uid| format!(r#""claim":"{uid}","#));
            let text = format!(
                r#"{{"boot":"b","container":"web","bundle":"/b",{claim}"holder":{holder},"entryPoint":"x","since":0}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let held = |claim| HostDevice {
            leases: vec![DeviceLease {
                slot: 0,
                lease: Some(lease(claim)),
                text: "container web".to_owned(),
            }],
            ..exclusive("0000:81:10.0", Health::Healthy)
        };
        let of_claim = listed(vec![held(Some("u1"))]);
        assert_eq!(of_claim.devices[0].health, i32::from(HealthStatus::Healthy));
        let of_other = listed(vec![held(None)]);
        assert_eq!(of_other.devices[0].health, i32::from(HealthStatus::Unhealthy));
        assert!(of_other.devices[0].message.contains("in use by container web"));
    }

    #[test]
    fn a_long_reason_is_cut_at_a_character() {
        let reason = format!("x{}", "é".repeat(2000));
        let listing = listed(vec![exclusive("a", Health::Unhealthy(reason))]);
        let message = &listing.devices[0].message;
        assert!((1023..=1024).contains(&message.len()), "{}", message.len());
        assert_eq!(truncate("é", 1), "");
    }

    #[test]
    fn whatever_a_node_has_kubelet_can_read_the_answer() {
        let reason = Health::Unhealthy("x".repeat(2000));
        let many = (0..6000).map(|at| exclusive(&format!("a{at:059}"), reason.clone()));
        let nic = HostDevice { slots: Some(10_000), ..offer(Class::Vfio, "z") };
        let devices: Vec<HostDevice> = many.chain([nic]).collect();
        let listing = listed(devices);
        assert_eq!(listing.devices.len(), MAX_DEVICES);
        assert!(listing.encoded_len() < 4 * 1024 * 1024, "{}", listing.encoded_len());
    }

    #[test]
    fn an_old_look_at_the_host_says_nothing() {
        let (status, message) = device_health(&offer(Class::Nic, "ens1"), Duration::from_secs(301));
        assert_eq!(status, HealthStatus::Unknown);
        assert_eq!(message, "the host was read 301 s ago");
    }

    #[test]
    fn two_lists_are_the_same_whatever_the_time_is() {
        let one = listed(vec![exclusive("a", Health::Healthy)]);
        let mut other = one.clone();
        other.devices[0].last_updated_time += 10;
        assert!(is_same(&one, &other));
        other.devices[0].message = "held".to_owned();
        assert!(!is_same(&one, &other));
        assert!(!is_same(&one, &listed(Vec::new())));
    }
}
