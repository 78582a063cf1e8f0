use std::collections::BTreeMap;

use onload_cdi::{
    CdiVersion, ContainerEdits, Device, DeviceNode, IntelRdt, Mount, NetDevice, Spec,
    minimum_version, validate,
};

use crate::{edits, spec_with, strings};

fn shared(container_edits: ContainerEdits) -> Spec {
    Spec { container_edits, ..Spec::default() }
}

fn of_device(container_edits: ContainerEdits) -> Spec {
    let devices = vec![Device::default(), Device { container_edits, ..Device::default() }];
    Spec { devices, ..Spec::default() }
}

fn named(name: &str) -> Spec {
    let devices = vec![Device { name: name.into(), ..Device::default() }];
    Spec { devices, ..Spec::default() }
}

fn of_kind(kind: &str) -> Spec {
    Spec { kind: kind.into(), ..Spec::default() }
}

#[test]
fn minimum_version_names_the_newest_fields() {
    let note = BTreeMap::from([("example.com/key".to_owned(), "value".to_owned())]);
    let rdt = |rdt| ContainerEdits { intel_rdt: Some(rdt), ..ContainerEdits::default() };
    let typed = Mount { type_: Some("bind".to_owned()), ..Mount::default() };
    let moved = DeviceNode { host_path: Some("/dev/x".to_owned()), ..DeviceNode::default() };
    let lines = IntelRdt { schemata: strings(&["L3:0=ff"]), ..IntelRdt::default() };
    let watched = IntelRdt { enable_monitoring: true, ..IntelRdt::default() };
    let groups = ContainerEdits { additional_gids: vec![1], ..ContainerEdits::default() };
    let interfaces =
        ContainerEdits { net_devices: vec![NetDevice::default()], ..ContainerEdits::default() };
    let mounts =
        ContainerEdits { mounts: vec![Mount::default(), typed], ..ContainerEdits::default() };
    let nodes = ContainerEdits { device_nodes: vec![moved], ..ContainerEdits::default() };
    let mut annotated_device = named("a");
    annotated_device.devices[0].annotations = note.clone();
    let newest = Spec {
        annotations: note.clone(),
        container_edits: ContainerEdits {
            additional_gids: vec![1],
            net_devices: vec![NetDevice::default()],
            ..ContainerEdits::default()
        },
        ..Spec::default()
    };
    for (spec, version, fields) in [
        (Spec::default(), "0.3.0", vec![]),
        (shared(mounts.clone()), "0.4.0", vec!["containerEdits.mounts[1].type"]),
        (of_device(mounts), "0.4.0", vec!["devices[1].containerEdits.mounts[1].type"]),
        (shared(nodes.clone()), "0.5.0", vec!["containerEdits.deviceNodes[0].hostPath"]),
        (of_device(nodes), "0.5.0", vec!["devices[1].containerEdits.deviceNodes[0].hostPath"]),
        (named("0example"), "0.5.0", vec!["devices[0].name"]),
        (named("a0"), "0.3.0", vec![]),
        (Spec { annotations: note, ..Spec::default() }, "0.6.0", vec!["annotations"]),
        (annotated_device, "0.6.0", vec!["devices[0].annotations"]),
        (of_kind("example.com/example.class"), "0.6.0", vec!["kind"]),
        (of_kind("example.com/class"), "0.3.0", vec![]),
        (shared(groups.clone()), "0.7.0", vec!["containerEdits.additionalGids"]),
        (of_device(groups), "0.7.0", vec!["devices[1].containerEdits.additionalGids"]),
        (shared(rdt(IntelRdt::default())), "0.7.0", vec!["containerEdits.intelRdt"]),
        (of_device(rdt(IntelRdt::default())), "0.7.0", vec!["devices[1].containerEdits.intelRdt"]),
        (shared(rdt(lines)), "1.1.0", vec!["containerEdits.intelRdt.schemata"]),
        (shared(rdt(watched)), "1.1.0", vec!["containerEdits.intelRdt.enableMonitoring"]),
        (shared(interfaces.clone()), "1.1.0", vec!["containerEdits.netDevices"]),
        (of_device(interfaces), "1.1.0", vec!["devices[1].containerEdits.netDevices"]),
        (newest, "1.1.0", vec!["containerEdits.netDevices"]),
    ] {
        let found = minimum_version(&spec);
        assert_eq!(found.version.as_str(), version, "{spec:?}");
        assert_eq!(found.fields, fields, "{spec:?}");
    }
}

#[test]
fn empty_fields_require_no_version() {
    let spec = spec_with(edits(
        r#"{"deviceNodes": [{"path": "/dev/a", "hostPath": ""}],
            "mounts": [{"hostPath": "/a", "containerPath": "/a", "type": ""}],
            "netDevices": [], "additionalGids": []}"#,
    ));
    assert_eq!(minimum_version(&spec).version, CdiVersion::EARLIEST);
}

#[test]
fn declared_version_must_be_known_and_sufficient() {
    let plain = || spec_with(edits(r#"{"env": ["A=b"]}"#));
    let groups = || spec_with(edits(r#"{"additionalGids": [1]}"#));
    for (version, spec, message) in [
        ("1.1.0", plain(), None),
        ("v1.1.0", plain(), None),
        ("0.3.0", plain(), None),
        ("0.8.0", plain(), None),
        ("1.0.0", plain(), None),
        ("0.1.0", plain(), Some("0.1.0 is too low, expected 0.3.0")),
        ("v0.2.0", plain(), Some("0.2.0 is too low, expected 0.3.0")),
        ("1.2.0", plain(), Some("unknown CDI version \"1.2.0\"")),
        ("0.5", plain(), Some("unknown CDI version \"0.5\"")),
        ("vv1.1.0", plain(), Some("unknown CDI version")),
        ("not-a-version", plain(), Some("unknown CDI version \"not-a-version\"")),
        ("", plain(), Some("unknown CDI version \"\"")),
        (
            "0.6.0",
            groups(),
            Some(
                "0.6.0 is too low, expected 0.7.0 because of \
                 devices[0].containerEdits.additionalGids",
            ),
        ),
        ("0.7.0", groups(), None),
        ("1.1.0", groups(), None),
    ] {
        let result = validate(&Spec { cdi_version: version.to_owned(), ..spec });
        match (result, message) {
            (Ok(()), None) => {}
            (Err(problems), Some(message)) => {
                assert_eq!(problems[0].location, "cdiVersion", "{version}");
                assert!(problems[0].fault.starts_with(message), "{version}: {}", problems[0]);
            }
            (result, message) => panic!("{version}: {result:?}, want {message:?}"),
        }
    }
}

#[test]
fn versions_are_ordered_by_release() {
    assert!(CdiVersion::ALL.is_sorted());
    assert_eq!(CdiVersion::ALL.last(), Some(&CdiVersion::CURRENT));
    for version in CdiVersion::ALL {
        assert_eq!(version.as_str().parse(), Ok(version));
        assert_eq!(format!("v{version}").parse(), Ok(version));
    }
    assert!(CdiVersion::V1_0_0 > CdiVersion::V0_8_0);
}
