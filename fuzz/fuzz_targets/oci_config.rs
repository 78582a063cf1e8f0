//! An untrusted OCI configuration: unchanged, it is written as it was read, and edits change only
//! what they name.

#![no_main]

use std::io;

use libfuzzer_sys::fuzz_target;
use onload_cdi::ContainerEdits;
use onload_cdi::json::RawObject;
use onload_cdi::oci::{CapabilitySet, HostNode, NodeKind, NodeLookup, OciConfig, Rlimit, apply};

struct OneNode;

impl NodeLookup for OneNode {
    fn node(&self, _: &str) -> io::Result<HostNode> {
        Ok(HostNode { kind: NodeKind::Char, major: 1, minor: 3, mode: 0o666 })
    }
}

const EDITS: &str = r#"{"env": ["LD_PRELOAD=libonload.so"], "deviceNodes": [{"path": "/dev/null"}],
    "mounts": [{"hostPath": "/a", "containerPath": "/a", "options": ["bind"]}],
    "hooks": [{"hookName": "createRuntime", "path": "/h", "env": ["A=b"]}],
    "netDevices": [{"hostInterfaceName": "a", "name": "b"}],
    "additionalGids": [7], "intelRdt": {"closID": "x"}}"#;

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut config) = OciConfig::parse(bytes) else {
        return;
    };
    assert_eq!(config.to_bytes(), bytes.trim_ascii());
    inspect(&config);
    let edits: ContainerEdits = serde_json::from_str(EDITS).expect("our edits");
    if apply(&mut config, &edits, &OneNode).is_ok() {
        let written = config.to_bytes();
        let again = OciConfig::parse(&written).expect("what we wrote is read");
        assert_eq!(again.to_bytes(), written);
        untouched(bytes, &written);
        let value = again.env_value("LD_PRELOAD").expect("an environment");
        assert_eq!(value.as_deref(), Some("libonload.so"));
    }
    let limit = Rlimit { type_: "RLIMIT_MEMLOCK".to_owned(), hard: u64::MAX, soft: u64::MAX };
    if config.set_rlimit(&limit).is_ok()
        && config.add_capability(&CapabilitySet::ALL, "CAP_IPC_LOCK").is_ok()
    {
        let again = OciConfig::parse(&config.to_bytes()).expect("what we wrote is read");
        assert!(again.capabilities(CapabilitySet::Bounding).is_ok());
    }
});

/// Every key that is not opened keeps its value.
fn untouched(before: &[u8], after: &[u8]) {
    let [before, after] = [before, after].map(|text| RawObject::parse(text).expect("an object"));
    let is_other = |key: &str| !["process", "mounts", "linux", "hooks"].contains(&key);
    for (key, value) in before.matching_members(is_other) {
        let held = after.matching_members(|other| other == key).next();
        assert_eq!(held.map(|(_, held)| held), Some(value));
    }
}

fn inspect(config: &OciConfig) {
    let _ = (
        config.root_path(),
        config.each_arg(|_| ()),
        config.each_env(|_| ()),
        config.user(),
        config.rlimit("RLIMIT_NOFILE"),
    );
    let _ = (config.each_device(drop), config.device_rules(), config.hugepage_limits());
    let _ = config.namespace_paths("user");
    for (key, _) in config.annotations_with_prefix("") {
        let _ = config.annotation(&key);
    }
    for mount in config.mounts() {
        let _ = (mount.destination(), mount.type_(), mount.source(), mount.options());
    }
}
