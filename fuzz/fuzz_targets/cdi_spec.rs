//! An untrusted CDI specification is read, checked, resolved, and written; reading it again gives
//! the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use onload_cdi::{
    Registry, Spec, SpecSource, from_json, from_yaml, lint, minimum_version, to_json, to_yaml,
    validate,
};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(spec) = from_json(bytes) {
        assert_eq!(from_json(to_json(&spec).as_bytes()).expect("our JSON is read"), spec);
        check(spec);
    }
    if let Ok(spec) = from_yaml(bytes) {
        let yaml = to_yaml(&spec);
        assert_eq!(from_yaml(yaml.as_bytes()).expect("our YAML is read"), spec, "{yaml}");
        check(spec);
    }
});

fn check(spec: Spec) {
    let valid = validate(&spec).is_ok();
    let _ = lint(&spec);
    if valid {
        let declared = spec.cdi_version.parse().expect("a valid version");
        assert!(minimum_version(&spec).version <= declared);
    }
    let devices = spec.devices.len();
    let source = SpecSource { path: "a.json".into(), priority: 0, content: Ok(spec) };
    let registry = Registry::from_sources(vec![source]);
    assert_eq!(registry.devices().count(), if valid { devices } else { 0 });
    assert_eq!(registry.errors().is_empty(), valid);
    let names: Vec<_> = registry.devices().map(|device| device.name.clone()).collect();
    assert!(registry.edits_for(&names).is_ok());
}
