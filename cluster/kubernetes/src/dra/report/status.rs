//! Computes the status of a claim's devices from a snapshot of the host.

use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, NetworkDeviceData};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use onload_core::claim_uid::ClaimUid;
use onload_host::offers::{Health, HostDevice};
use onload_lease::{Lease, SavedState};

use crate::dra::DRIVER;
use crate::dra::prepare::{PreparedClaim, PreparedDevice};
use crate::dra::slices::is_claim_lease;
use crate::names::{NodeName, find_device, truncate};
use crate::snapshot::KubernetesSnapshot;

/// The condition of each device: whether a container of the claim can use it.
pub(super) const READY: &str = "Ready";
const YES: &str = "True";
const NO: &str = "False";
/// Limit for a message in bytes; the server accepts 32 KiB.
const MAX_MESSAGE: usize = 1024;

/// Returns the status of a claim's devices. A condition that has not changed since `before` keeps its time.
pub(super) fn device_statuses(
    uid: &ClaimUid,
    prepared_claim: &PreparedClaim,
    snapshot: &KubernetesSnapshot,
    node: &NodeName,
    before: &[AllocatedDeviceStatus],
) -> Vec<AllocatedDeviceStatus> {
    let mut statuses = Vec::new();
    for device in &prepared_claim.devices {
        let (pool, name) = (&device.pool, &device.device);
        let host_device = find_device(&snapshot.devices, node, pool, name);
        let (status, reason, message) = ready_condition(host_device);
        let before = before.iter().find(|other| {
            (pool, name, &device.share_id) == (&other.pool, &other.device, &other.share_id)
        });
        statuses.push(AllocatedDeviceStatus {
            driver: DRIVER.to_owned(),
            pool: device.pool.clone(),
            device: device.device.clone(),
            share_id: device.share_id.clone(),
            network_data: host_device
                .and_then(|host_device| network_data(uid, device, host_device)),
            conditions: Some(vec![Condition {
                type_: READY.to_owned(),
                status: status.to_owned(),
                reason: reason.to_owned(),
                message: truncate(&message, MAX_MESSAGE).to_owned(),
                last_transition_time: transition_time(before, status),
                observed_generation: None,
            }]),
            data: None,
        });
    }
    statuses
}

/// Returns the devices that have become unhealthy, or are new and unhealthy, with the reason.
pub(super) fn newly_unhealthy<'n>(
    before: &[AllocatedDeviceStatus],
    now: &'n [AllocatedDeviceStatus],
) -> Vec<(&'n AllocatedDeviceStatus, &'n str)> {
    let mut unhealthy = Vec::new();
    for device in now {
        let earlier = before.iter().find(|other| {
            (&other.pool, &other.device, &other.share_id)
                == (&device.pool, &device.device, &device.share_id)
        });
        if earlier.and_then(problem).is_none()
            && let Some(reason) = problem(device)
        {
            unhealthy.push((device, reason));
        }
    }
    unhealthy
}

/// Returns why containers of the claim cannot use a device, according to its status.
fn problem(device: &AllocatedDeviceStatus) -> Option<&str> {
    let condition = find_condition(device)?;
    (condition.status == NO).then_some(&condition.message)
}

fn ready_condition(device: Option<&HostDevice>) -> (&'static str, &'static str, String) {
    let Some(device) = device else {
        let message = "the node no longer offers it".to_owned();
        return (NO, "Gone", message);
    };
    match (&device.health, device.health_excluding(is_claim_lease)) {
        (Health::Unhealthy(reason), _) => (NO, "Unhealthy", reason.clone()),
        (_, Health::Unhealthy(reason)) => (NO, "Held", reason),
        (_, Health::Healthy) => (YES, "Prepared", String::new()),
    }
}

/// Returns the data of an interface in a pod of the claim. `None` before it has moved there and while it returns.
fn network_data(
    uid: &ClaimUid,
    device: &PreparedDevice,
    host_device: &HostDevice,
) -> Option<NetworkDeviceData> {
    let mut leases =
        host_device.leases.iter().filter_map(|device_lease| device_lease.lease.as_ref());
    leases.find(|lease| lease.claim.as_ref() == Some(uid) && has_interface(lease))?;
    device.network.clone()
}

fn has_interface(lease: &Lease) -> bool {
    lease.moved.as_ref().is_some_and(|move_record| {
        matches!(move_record.saved, SavedState::Interface(_)) && !move_record.returning
    })
}

fn transition_time(before: Option<&AllocatedDeviceStatus>, status: &str) -> Time {
    let before = before.and_then(find_condition);
    match before.filter(|before| before.status == status) {
        Some(before) => before.last_transition_time.clone(),
        None => {
            let now = Timestamp::now();
            // The server stores whole seconds.
            Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
        }
    }
}

fn find_condition(device: &AllocatedDeviceStatus) -> Option<&Condition> {
    let mut conditions = device.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == READY)
}

#[cfg(test)]
mod tests {
    use onload_core::class::Class;
    use onload_core::kubernetes_settings::KubernetesSettings;
    use onload_host::offers::{DeviceLease, Sharing};
    use serde_json::json;

    use super::*;
    use crate::dra::test_offers::{self, offer};

    const UID: &str = "0d7e3c1a-5c0f-4c57-9a4e-2b1f8f0f8f11";

    fn network_data() -> NetworkDeviceData {
        NetworkDeviceData {
            interface_name: Some("ens1v0".to_owned()),
            ips: Some(vec!["192.0.2.10/24".to_owned()]),
            hardware_address: Some("02:00:00:00:10:01".to_owned()),
        }
    }

    fn owner() -> PreparedClaim {
        let device = |pool: &str, device: &str, network| PreparedDevice {
            pool: pool.to_owned(),
            device: device.to_owned(),
            share_id: None,
            network,
        };
        PreparedClaim {
            devices: vec![
                device("n1/nic", "ens1-slot-2", None),
                device("n1/netdev", "ens1v0", Some(network_data())),
            ],
            ..PreparedClaim::default()
        }
    }

    fn interface(lease: Option<&str>) -> HostDevice {
        let leases = lease.map(|lease| DeviceLease {
            slot: 0,
            lease: Some(serde_json::from_str(lease).unwrap()),
            text: "container web of pod default/web".to_owned(),
        });
        HostDevice {
            sharing: Sharing::Exclusive,
            leases: leases.into_iter().collect(),
            ..offer(Class::Netdev, "ens1v0")
        }
    }

    fn lease(claim: &str, returning: bool) -> String {
        let moved = json!({"interface": {"name": "ens1v0", "mac": "02:00:00:00:10:01", "mtu": 1500, "queueLength": 1000,
            "flags": 3, "pci": "0000:3b:02.3"}, "namespace": 7, "returning": returning});
        let token = "00000000000000000000000000000000";
        json!({"boot": "b", "container": "web", "bundle": "/b", "claim": claim, "entryPoint": "x", "since": 0,
            "holder": {"reservation": {"token": token, "expiresMs": 1}}, "moved": moved})
        .to_string()
    }

    fn reported(
        nic: HostDevice,
        netdev: HostDevice,
        before: &[AllocatedDeviceStatus],
    ) -> Vec<AllocatedDeviceStatus> {
        let devices = vec![nic, netdev];
        let snapshot = test_offers::snapshot(devices, KubernetesSettings::default());
        let (uid, node) = (UID.parse().unwrap(), "n1".parse().unwrap());
        device_statuses(&uid, &owner(), &snapshot, &node, before)
    }

    fn nic() -> HostDevice {
        offer(Class::Nic, "ens1")
    }

    fn down() -> HostDevice {
        HostDevice { health: Health::Unhealthy("its link is down".to_owned()), ..nic() }
    }

    #[test]
    fn a_device_is_ready_until_it_is_not_and_its_time_is_that_of_the_change() {
        let mut first = reported(nic(), interface(None), &[]);
        let ready = find_condition(&first[0]).unwrap();
        assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("True", "Prepared"));
        let past = Time("2020-01-01T00:00:00Z".parse().unwrap());
        for device in &mut first {
            device.conditions.as_mut().unwrap()[0].last_transition_time = past.clone();
        }
        assert_eq!(reported(nic(), interface(None), &first), first);
        let second = reported(down(), interface(None), &first);
        let (bad, good) =
            (find_condition(&second[0]).unwrap(), find_condition(&second[1]).unwrap());
        assert_eq!((bad.status.as_str(), bad.reason.as_str()), ("False", "Unhealthy"));
        assert_eq!(bad.message, "its link is down");
        assert!(bad.last_transition_time.0 > past.0);
        assert_eq!(good.last_transition_time, past);
        let gone =
            |before: &[AllocatedDeviceStatus], now: &[AllocatedDeviceStatus]| -> Vec<String> {
                newly_unhealthy(before, now)
                    .into_iter()
                    .map(|(device, why)| format!("{} {why}", device.device))
                    .collect()
            };
        assert_eq!(gone(&first, &second), ["ens1-slot-2 its link is down"]);
        assert_eq!(gone(&second, &second), [""; 0]);
        assert_eq!(gone(&second, &first), [""; 0]);
    }

    #[test]
    fn an_interface_has_its_addresses_while_it_is_in_a_pod_of_the_claim() {
        let data =
            |lease: Option<&str>| reported(nic(), interface(lease), &[])[1].network_data.clone();
        assert_eq!(data(None), None);
        assert_eq!(data(Some(&lease(UID, false))), Some(network_data()));
        assert_eq!(data(Some(&lease(UID, true))), None);
        assert_eq!(data(Some(&lease("other", false))), None);
    }

    #[test]
    fn what_others_hold_and_what_is_gone_is_not_ready() {
        let mut held: serde_json::Value = serde_json::from_str(&lease("x", false)).unwrap();
        held.as_object_mut().unwrap().remove("claim");
        let held = reported(nic(), interface(Some(&held.to_string())), &[]);
        let held = find_condition(&held[1]).unwrap();
        assert_eq!(held.reason, "Held");
        assert!(held.message.contains("of pod default/web"), "{}", held.message);
        let snapshot = test_offers::snapshot(Vec::new(), KubernetesSettings::default());
        let (uid, node) = (UID.parse().unwrap(), "n1".parse().unwrap());
        let gone = device_statuses(&uid, &owner(), &snapshot, &node, &[]);
        assert_eq!(find_condition(&gone[0]).unwrap().reason, "Gone");
    }
}
