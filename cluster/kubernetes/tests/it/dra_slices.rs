//! ResourceSlices, held against what an API server takes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};

use crate::support::limits;
use crate::support::offers::{captured, held, held_by_pod, offer, unhealthy, vf, vfs};
use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use onload_core::class::Class;
use onload_core::kubernetes_settings::KubernetesSettings;
use onload_host::offers::{HostDevice, Sharing};
use onload_kubernetes::dra::slices::{
    DRAINED, DraFeatures, HELD_TAINT, SliceInput, SlicePool, UNHEALTHY, fingerprint, lost_features,
    probe,
};
use onload_kubernetes::names::NodeName;
use proptest::prelude::*;

const PF: &str = "0000:81:00.0";

fn node() -> NodeName {
    "n1".parse().unwrap()
}

fn with_pool<T>(
    devices: &[HostDevice],
    class: Class,
    features: DraFeatures,
    take: impl FnOnce(&SlicePool<'_>) -> T,
) -> T {
    let node = node();
    let wanted =
        SliceInput { node: &node, uid: "u-1", devices, settings: &KubernetesSettings::default() };
    take(&SlicePool::new(wanted, class, features))
}

fn slices(devices: &[HostDevice], class: Class, features: DraFeatures) -> Vec<ResourceSlice> {
    with_pool(devices, class, features, |pool| {
        (0..pool.slices()).map(|at| pool.slice(at, 3)).collect()
    })
}

fn devices(host_devices: &[HostDevice], class: Class, features: DraFeatures) -> Vec<Device> {
    slices(host_devices, class, features)
        .into_iter()
        .flat_map(|slice| slice.spec.devices.unwrap_or_default())
        .collect()
}

fn names(devices: &[Device]) -> Vec<&str> {
    devices.iter().map(|device| device.name.as_str()).collect()
}

fn taints(device: &Device) -> Vec<&str> {
    device.taints.iter().flatten().map(|taint| taint.key.as_str()).collect()
}

fn legal(slices: &[ResourceSlice]) {
    let mut names = BTreeSet::new();
    let mut devices = BTreeSet::new();
    for slice in slices {
        assert_eq!(limits::problems(slice), Vec::<String>::new());
        assert!(names.insert(slice.metadata.name.clone()), "{:?}", slice.metadata.name);
        let count = slice.spec.pool.resource_slice_count;
        assert_eq!(usize::try_from(count).unwrap(), slices.len());
        for device in slice.spec.devices.iter().flatten() {
            assert!(devices.insert(device.name.clone()), "{}", device.name);
        }
    }
}

const FEATURES: [DraFeatures; 4] = [
    DraFeatures::ALL,
    DraFeatures::NONE,
    DraFeatures { sharing: false, taints: true },
    DraFeatures { sharing: true, taints: false },
];

#[test]
fn what_captured_hosts_offer_is_taken_with_any_features() {
    for host in ["debian13-2numa-onload-rxe-vfio", "x2-2port-sriov"] {
        let devices = captured(host);
        let mut classes = 0;
        for (class, features) in
            Class::ALL.into_iter().flat_map(|class| FEATURES.map(|features| (class, features)))
        {
            let slices = slices(&devices, class, features);
            legal(&slices);
            classes += usize::from(!slices.is_empty());
        }
        assert!(classes >= 8, "{host}: {classes}");
        for class in [Class::Hugepages, Class::Profile] {
            assert!(slices(&devices, class, DraFeatures::ALL).is_empty());
        }
    }
}

#[test]
fn all_devices_of_a_class_have_the_same_attributes_of_ours() {
    let host_devices = captured("debian13-2numa-onload-rxe-vfio");
    for (class, features) in
        Class::ALL.into_iter().flat_map(|class| FEATURES.map(|features| (class, features)))
    {
        let own = |device: &Device| -> BTreeSet<String> {
            let attributes = device.attributes.iter().flatten().map(|(name, _)| name);
            let capacities = device.capacity.iter().flatten().map(|(name, _)| name);
            attributes.filter(|name| !name.contains('/')).chain(capacities).cloned().collect()
        };
        let all: BTreeSet<_> = devices(&host_devices, class, features).iter().map(own).collect();
        assert!(all.len() <= 1, "{class}: {all:?}");
    }
}

#[test]
fn a_device_is_found_by_the_names_that_drivers_share() {
    let host_devices = captured("debian13-2numa-onload-rxe-vfio");
    let vfio = devices(&host_devices, Class::Vfio, DraFeatures::ALL);
    let device = vfio.iter().find(|device| device.name == "0000-81-10-0").unwrap();
    let attributes = device.attributes.as_ref().unwrap();
    for name in ["resource.kubernetes.io/pciBusID", "dra.net/pciAddress", "name"] {
        assert_eq!(attributes[name].string.as_deref(), Some("0000:81:10.0"), "{name}");
    }
    for name in ["resource.kubernetes.io/numaNode", "dra.net/numaNode"] {
        assert_eq!(attributes[name].int, Some(1), "{name}");
    }
    let root = attributes["resource.kubernetes.io/pcieRoot"].string.as_deref();
    assert!(root.is_some_and(|root| root.starts_with("pci0000:")), "{root:?}");
    // A device without a PCI function has none of them, since nothing is like it.
    let rdma = devices(&host_devices, Class::Rdma, DraFeatures::ALL);
    let attributes = rdma
        .iter()
        .find(|device| device.name.starts_with("rxe"))
        .unwrap()
        .attributes
        .as_ref()
        .unwrap();
    assert!(attributes.keys().all(|name| !name.contains('/')), "{attributes:?}");
}

#[test]
fn a_version_is_three_numbers_with_the_full_text_beside_it() {
    let nics = devices(&[offer(Class::Nic, "ens1")], Class::Nic, DraFeatures::ALL);
    let attributes = nics[0].attributes.as_ref().unwrap();
    assert_eq!(attributes["onloadVersion"].version.as_deref(), Some("9.1.0"));
    assert_eq!(attributes["onload"].string.as_deref(), Some("9.1.0.86"));
}

#[test]
fn a_shared_device_is_one_where_capacity_is_counted_and_one_a_slot_elsewhere() {
    let mut other = offer(Class::Nic, "ens2");
    other.slots = Some(2);
    let host_devices = [offer(Class::Nic, "ens1"), other];
    let counted = devices(&host_devices, Class::Nic, DraFeatures::ALL);
    assert_eq!(names(&counted), ["ens1", "ens2"]);
    let capacity = &counted[0].capacity.as_ref().unwrap()["slots"];
    assert_eq!(capacity.value.0, "10");
    let policy = capacity.request_policy.as_ref().unwrap();
    assert_eq!(policy.default.as_ref().unwrap().0, "1");
    assert_eq!(counted[0].allow_multiple_allocations, Some(true));
    let numbered = devices(&host_devices, Class::Nic, DraFeatures::NONE);
    assert_eq!(numbered.len(), 12);
    // The scheduler takes the first that are free: two are of both.
    assert_eq!(
        names(&numbered)[..5],
        ["ens1-slot-0", "ens2-slot-0", "ens1-slot-1", "ens2-slot-1", "ens1-slot-2"]
    );
    assert!(numbered.iter().all(|device| device.allow_multiple_allocations.is_none()));
    let slot = numbered[11].attributes.as_ref().unwrap()["slot"].int;
    assert_eq!(slot, Some(9));
}

#[test]
fn a_shared_device_with_one_slot_is_taken_too() {
    let mut alone = offer(Class::Nic, "ens1");
    alone.slots = Some(1);
    let [left] = of_four(&[held, by_annotation, held]);
    for nic in [alone, left] {
        let slices = slices(&[nic], Class::Nic, DraFeatures::ALL);
        legal(&slices);
        let device = &slices[0].spec.devices.as_ref().unwrap()[0];
        assert_eq!(device.capacity.as_ref().unwrap()["slots"].value.0, "1");
        assert_eq!(device.allow_multiple_allocations, Some(true));
    }
}

#[test]
fn the_first_slots_are_of_different_devices_over_all_slices() {
    let nics: Vec<String> = (0..20).map(|at| format!("ens{at:02}")).collect();
    let mut host_devices: Vec<HostDevice> =
        nics.iter().map(|name| offer(Class::Nic, name)).collect();
    // One has no slot left, and one is a single container's.
    host_devices[3].slots = Some(1);
    host_devices[3] = held(host_devices[3].clone());
    host_devices[4].sharing = Sharing::Exclusive;
    let numbered = DraFeatures { taints: true, ..DraFeatures::NONE };
    let slices = slices(&host_devices, Class::Nic, numbered);
    legal(&slices);
    let counts = slices.iter().map(|slice| slice.spec.devices.iter().flatten().count());
    assert_eq!(counts.collect::<Vec<_>>(), [64, 64, 54]);
    let mut free = devices(&host_devices, Class::Nic, numbered);
    free.retain(|device| taints(device).is_empty());
    let first: BTreeSet<String> = free.iter().take(19).map(named).collect();
    assert_eq!(first.len(), 19);
    let last: BTreeSet<String> = free.iter().rev().take(18).map(named).collect();
    assert_eq!(last.len(), 18);
}

/// The real name of what it is a slot of.
fn named(device: &Device) -> String {
    let attributes = device.attributes.as_ref().unwrap();
    attributes["name"].string.clone().unwrap()
}

/// A NIC of four slots that these containers have.
fn of_four(holders: &[fn(HostDevice) -> HostDevice]) -> [HostDevice; 1] {
    let mut nic = offer(Class::Nic, "ens1");
    nic.slots = Some(4);
    [holders.iter().fold(nic, |nic, hold| hold(nic))]
}

fn by_a_claim(device: HostDevice) -> HostDevice {
    held_by_pod(device, Some("u-1"))
}

fn by_annotation(device: HostDevice) -> HostDevice {
    held_by_pod(device, None)
}

#[test]
fn slots_that_containers_without_a_claim_have_are_not_offered() {
    let offered = |holders: &[fn(HostDevice) -> HostDevice]| {
        let devices = devices(&of_four(holders), Class::Nic, DraFeatures::ALL);
        let capacity = &devices[0].capacity.as_ref().unwrap()["slots"];
        let range = capacity.request_policy.as_ref().unwrap();
        let most = range.valid_range.as_ref().unwrap().max.as_ref();
        assert_eq!(most, Some(&capacity.value));
        (capacity.value.0.parse().unwrap(), taints(&devices[0]).len())
    };
    assert_eq!(offered(&[]), (4, 0));
    assert_eq!(offered(&[held, by_annotation, held]), (1, 0));
    // The scheduler counts those of claims.
    assert_eq!(offered(&[by_a_claim, by_a_claim, by_a_claim]), (4, 0));
    assert_eq!(offered(&[by_a_claim, held, by_a_claim]), (3, 0));
    // Who has the last one is told by the taint.
    assert_eq!(offered(&[held, held, held, held]), (4, 1));
    assert_eq!(offered(&[held, held, held, held, held]), (4, 1));
}

#[test]
fn the_last_slots_are_those_that_containers_without_a_claim_have() {
    let numbered = |taints| DraFeatures { taints, ..DraFeatures::NONE };
    let held_ones = |holders: &[fn(HostDevice) -> HostDevice]| -> Vec<bool> {
        let devices = devices(&of_four(holders), Class::Nic, numbered(true));
        devices.iter().map(|device| taints(device) == [HELD_TAINT]).collect()
    };
    assert_eq!(held_ones(&[by_a_claim]), [false; 4]);
    let last = [false, false, true, true];
    assert_eq!(held_ones(&[held, by_a_claim, by_annotation]), last);
    assert_eq!(held_ones(&[held, held, held, held]), [true; 4]);
    let host_devices = of_four(&[held, by_annotation]);
    let left = devices(&host_devices, Class::Nic, numbered(false));
    assert_eq!(names(&left), ["ens1-slot-0", "ens1-slot-1"]);
}

#[test]
fn slots_that_would_be_too_many_devices_are_fewer_and_said() {
    let mut shared = offer(Class::Rdma, "mlx5_0");
    shared.slots = Some(30_000);
    let devices = [shared.clone(), offer(Class::Rdma, "mlx5_1")];
    with_pool(&devices, Class::Rdma, DraFeatures::NONE, |pool| {
        assert_eq!(pool.devices(), 2048 + 10);
        assert!(pool.left_out()[0].starts_with("rdma mlx5_0 has 2048 of its 30000 slots"));
    });
    with_pool(&devices, Class::Rdma, DraFeatures::ALL, |pool| {
        assert_eq!((pool.devices(), pool.left_out().len()), (2, 0));
    });
}

#[test]
fn what_cannot_be_used_now_has_a_taint_or_is_not_there() {
    let host_devices = [
        offer(Class::Vfio, "0000:81:10.0"),
        unhealthy(offer(Class::Vfio, "0000:81:10.1")),
        held(offer(Class::Vfio, "0000:81:10.2")),
        HostDevice { is_drained: true, ..unhealthy(held(offer(Class::Vfio, "0000:81:10.3"))) },
    ];
    let tainted = devices(&host_devices, Class::Vfio, DraFeatures::ALL);
    let all: Vec<Vec<&str>> = tainted.iter().map(taints).collect();
    assert_eq!(all, [vec![], vec![UNHEALTHY], vec![HELD_TAINT], vec![DRAINED]]);
    let effects = tainted.iter().flat_map(|device| device.taints.iter().flatten());
    assert!(effects.clone().all(|taint| taint.effect == "NoSchedule"));
    let left = devices(&host_devices, Class::Vfio, DraFeatures::NONE);
    assert_eq!(names(&left), ["0000-81-10-0"]);
}

#[test]
fn a_device_that_a_pod_has_without_a_claim_has_a_taint() {
    let taints_with = |claim| {
        let host_devices = [held_by_pod(offer(Class::Vfio, "0000:81:10.0"), claim)];
        let devices = devices(&host_devices, Class::Vfio, DraFeatures::ALL);
        taints(&devices[0]).iter().map(|key| (*key).to_owned()).collect::<Vec<String>>()
    };
    assert_eq!(taints_with(None), [HELD_TAINT]);
    assert_eq!(taints_with(Some("u-1")), [""; 0]);
}

#[test]
fn a_function_is_not_offered_with_those_made_of_it() {
    let host_devices = [
        offer(Class::Vfio, PF),
        vf("0000:81:00.1", PF),
        vf("0000:81:00.2", PF),
        offer(Class::Vfio, "0000:82:00.0"),
    ];
    let left = devices(&host_devices, Class::Vfio, DraFeatures::ALL);
    assert_eq!(names(&left), ["0000-81-00-1", "0000-81-00-2", "0000-82-00-0"]);
    assert!(left.iter().all(|device| taints(device).is_empty()));
    with_pool(&host_devices, Class::Vfio, DraFeatures::ALL, |pool| {
        assert!(pool.left_out()[0].contains("offer-pf-with-vfs"), "{:?}", pool.left_out());
    });
    for taken in [held(offer(Class::Vfio, PF)), held_by_pod(offer(Class::Vfio, PF), None)] {
        let family = [taken, vf("0000:81:00.1", PF)];
        assert_eq!(taints(&devices(&family, Class::Vfio, DraFeatures::ALL)[0]), [HELD_TAINT]);
        assert!(devices(&family, Class::Vfio, DraFeatures::NONE).is_empty());
    }
}

#[test]
fn a_slice_has_128_devices_and_64_where_one_has_a_taint() {
    let mut devices = vfs(300);
    let count = |devices: &[HostDevice]| slices(devices, Class::Vfio, DraFeatures::ALL).len();
    assert_eq!(count(&devices), 3);
    devices[299] = unhealthy(devices[299].clone());
    assert_eq!(count(&devices), 5);
    legal(&slices(&devices, Class::Vfio, DraFeatures::ALL));
    let first = &slices(&devices, Class::Vfio, DraFeatures::ALL)[0];
    assert_eq!(first.metadata.name.as_deref(), Some("n1-onload-dev-vfio-0"));
    assert_eq!((first.spec.pool.name.as_str(), first.spec.pool.generation), ("n1/vfio", 3));
    let owner = &first.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!(
        (owner.kind.as_str(), owner.uid.as_str(), owner.controller),
        ("Node", "u-1", Some(true))
    );
}

#[test]
fn the_generation_and_the_time_of_a_taint_are_no_content() {
    let devices = [unhealthy(offer(Class::Nic, "ens1"))];
    let mut slice = slices(&devices, Class::Nic, DraFeatures::ALL).remove(0);
    let first = fingerprint(&slice);
    slice.spec.pool.generation = 99;
    slice.metadata.resource_version = Some("5".to_owned());
    let time = serde_json::from_str("\"2026-11-22T09:00:00Z\"").unwrap();
    let device = &mut slice.spec.devices.as_mut().unwrap()[0];
    device.taints.as_mut().unwrap()[0].time_added = Some(time);
    assert_eq!(fingerprint(&slice), first);
    slice.spec.devices.as_mut().unwrap()[0].taints = None;
    assert_ne!(fingerprint(&slice), first);
    let mut of_other_node = slices(&devices, Class::Nic, DraFeatures::ALL).remove(0);
    of_other_node.metadata.owner_references.as_mut().unwrap()[0].uid = "u-2".to_owned();
    assert_ne!(fingerprint(&of_other_node), first);
}

#[test]
fn what_the_server_dropped_is_told_from_what_it_changed() {
    let sent = probe(&node(), "u-1");
    assert_eq!(limits::problems(&sent), Vec::<String>::new());
    assert_eq!(lost_features(&sent.spec, &sent.spec), (DraFeatures::NONE, false));
    let mut kept = sent.spec.clone();
    for device in kept.devices.as_mut().unwrap() {
        device.taints = None;
    }
    let taints = DraFeatures { taints: true, ..DraFeatures::NONE };
    assert_eq!(lost_features(&sent.spec, &kept), (taints, false));
    for device in kept.devices.as_mut().unwrap() {
        device.allow_multiple_allocations = None;
    }
    assert_eq!(lost_features(&sent.spec, &kept), (DraFeatures::ALL, false));
    kept.devices.as_mut().unwrap()[0].name = "other".to_owned();
    assert!(lost_features(&sent.spec, &kept).1);
}

fn any_offer() -> impl Strategy<Value = HostDevice> {
    let class = prop::sample::select(vec![Class::Nic, Class::Rdma, Class::Vfio, Class::Ptp]);
    let name = prop_oneof![
        "[A-Za-z][A-Za-z0-9_.:-]{0,80}[a-z0-9]",
        "(mlx5|rxe)[-_][0-9]{1,3}",
        "0000:8[0-3]:0[0-3]\\.[0-7]",
    ];
    (class, name, any::<[bool; 4]>(), 1_u32..2000, ".{0,200}").prop_map(
        |(class, name, [is_exclusive, is_unhealthy, is_held, is_vf], slots, text)| {
            let mut device = offer(class, &name);
            device.sharing = match is_exclusive {
                true => Sharing::Exclusive,
                false => Sharing::Shared,
            };
            device.slots = (slots % 2 == 0 && !is_exclusive).then_some(slots);
            device.pools = vec![text.clone()];
            device.attributes.insert("interface", onload_host::offers::Attribute::Text(text));
            if is_vf && class == Class::Vfio {
                let pf = onload_host::offers::Attribute::Text("0000:80:00.0".to_owned());
                device.attributes.insert("pf", pf);
            }
            match (is_unhealthy, is_held) {
                (true, _) => unhealthy(device),
                (false, true) => held(device),
                (false, false) => device,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_a_host_offers_is_legal_and_nothing_is_there_twice(
        offers in prop::collection::vec(any_offer(), 0..60)
    ) {
        let unique: BTreeMap<(Class, String), HostDevice> =
            offers.into_iter().map(|offer| ((offer.class, offer.name.to_string()), offer)).collect();
        let offers: Vec<HostDevice> = unique.into_values().collect();
        for class in [Class::Nic, Class::Rdma, Class::Vfio, Class::Ptp] {
            for features in FEATURES {
                legal(&slices(&offers, class, features));
            }
        }
    }
}
