use onload_cdi::json::{MAX_STRING, MAX_VALUES, RawError, RawObject};
use onload_cdi::oci::{
    CapabilitySet, HugepageLimit, MountEntry, OciConfig, OciConfigError, Rlimit,
};
use onload_cdi::{Hook, HookName};
use proptest::prelude::*;
use serde_json::Value;

use crate::{error_chain, strings};

/// JSON texts with spellings and white space that no writer would choose.
fn json_text() -> impl Strategy<Value = String> {
    let number = prop_oneof![
        "-?(0|[1-9][0-9]{0,40})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?",
        Just("1e3".to_owned()),
        Just("0.10".to_owned()),
        Just("123456789012345678901234567890".to_owned()),
    ];
    let text = prop_oneof![
        any::<String>().prop_map(|text| Value::from(text).to_string()),
        "\"(\\\\u[0-9a-fA-F]{4}|\\\\/|\\\\n|[a-z ]){0,8}\"",
    ];
    let word = prop_oneof![Just("null"), Just("true"), Just("false")].prop_map(str::to_owned);
    let leaf = prop_oneof![number, text, word];
    leaf.prop_recursive(6, 64, 8, |inner| {
        let space = || "[ \n\r\t]{0,2}";
        let element = (space(), inner.clone(), space()).prop_map(|(a, b, c)| format!("{a}{b}{c}"));
        prop_oneof![
            (prop::collection::vec(element, 0..6), space()).prop_map(|(list, space)| format!(
                "[{}]",
                if list.is_empty() { space } else { list.join(",") }
            )),
            object_text(inner, space()),
        ]
    })
}

fn object_text(
    value: impl Strategy<Value = String>,
    space: &'static str,
) -> impl Strategy<Value = String> {
    let key = "[a-zA-Z_.é/\"\\\\]{0,6}".prop_map(|key| Value::from(key).to_string());
    let member = (space, value, space).prop_map(|(a, b, c)| format!("{a}:{c}{b}{a}"));
    prop::collection::btree_map(key, member, 0..6).prop_map(|members| {
        let members: Vec<String> =
            members.into_iter().map(|(key, value)| format!("{key}{value}")).collect();
        format!("{{{}}}", members.join(","))
    })
}

proptest! {
    #[test]
    fn objects_round_trip(text in object_text(json_text(), "[ \n\t]{0,2}")) {
        let object = RawObject::parse(text.as_bytes()).expect("an object");
        prop_assert_eq!(object.to_bytes(), text.as_bytes());
    }

    #[test]
    fn a_change_preserves_other_spellings(
        text in object_text(json_text(), "[ \n\t]{0,2}"),
        which in any::<prop::sample::Index>(),
    ) {
        let before = RawObject::parse(text.as_bytes()).expect("an object");
        prop_assume!(!before.is_empty());
        let key = before.keys().nth(which.index(before.len())).expect("a key").into_owned();
        let mut object = before.clone();
        object.write(&key, &true).expect("a value");
        let after = RawObject::parse(&object.to_bytes()).expect("what was written");
        prop_assert!(before.keys().eq(after.keys()));
        for (name, value) in after.matching_members(|_| true) {
            let (_, held) = before.matching_members(|key| key == name).next().expect("a value");
            let want = if name == key { "true" } else { held };
            prop_assert_eq!(value, want);
        }
        object.remove(&key);
        prop_assert_eq!(RawObject::parse(&object.to_bytes()).expect("JSON").len(), before.len() - 1);
    }

    #[test]
    fn arrays_round_trip(elements in prop::collection::vec(json_text(), 0..6)) {
        let text = format!("{{\"a\": [{}]}}", elements.join(" ,\n"));
        let mut object = RawObject::parse(text.as_bytes()).expect("an object");
        let array_of = |object: &RawObject| object.array("a").expect("an array").expect("a value");
        let mut array = array_of(&object);
        object.set_array("b", &array);
        let both = RawObject::parse(&object.to_bytes()).expect("what was written");
        let text_of = |key: &str| both.matching_members(|held| held == key).next().expect("a value").1.to_owned();
        prop_assert_eq!(text_of("b"), text_of("a"));
        array.push_value("x").expect("a value");
        object.set_array("a", &array);
        let after = array_of(&RawObject::parse(&object.to_bytes()).expect("what was written"));
        let found: Vec<_> = after.iter().collect();
        let mut want: Vec<&str> = elements.iter().map(String::as_str).collect();
        want.push("\"x\"");
        prop_assert_eq!(found, want);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = RawObject::parse(&bytes);
        let _ = OciConfig::parse(&bytes);
        let _ = onload_cdi::from_json(&bytes);
    }

    #[test]
    fn setting_variables_preserves_the_rest(extra in json_text(), inner in json_text()) {
        let text = format!(r#"{{"x": {extra}, "process": {{"cwd": "/", "y": {inner} , "env": ["A=1"]}}, "z": 1e3}}"#);
        let mut config = OciConfig::parse(text.as_bytes()).expect("a configuration");
        prop_assert_eq!(config.to_bytes(), text.as_bytes());
        config.append_env(&strings(&["A=2"])).expect("a variable");
        let want = format!(r#"{{"x":{extra},"process":{{"cwd":"/","y":{inner},"env":["A=2"]}},"z":1e3}}"#);
        prop_assert_eq!(String::from_utf8(config.to_bytes()).expect("text"), want);
    }
}

#[test]
fn number_and_string_spellings_survive_a_change() {
    let text = r#"{"a": 1e3, "b":0.10,"c" : 123456789012345678901234567890, "\u0064": "\u00e9\/", "e": -0, "f": "\ud800"}"#;
    let mut object = RawObject::parse(text.as_bytes()).expect("an object");
    object.write("g", &1).expect("a value");
    let want = r#"{"a":1e3,"b":0.10,"c":123456789012345678901234567890,"\u0064":"\u00e9\/","e":-0,"f":"\ud800","g":1}"#;
    assert_eq!(String::from_utf8(object.to_bytes()).expect("text"), want);
    assert_eq!(object.read::<String>("d").expect("a text").as_deref(), Some("é/"));
}

#[test]
fn deep_nesting_costs_no_stack() {
    for depth in [10_000, 1_000_000] {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let deep = format!("{}1{}", open.repeat(depth), close.repeat(depth));
            let text = format!(
                r#"{{"annotations":{{}},"deep":{deep},"process":{{"deep":{deep}}},"mounts":[{{"deep":{deep}}}]}}"#
            );
            let mut config = OciConfig::parse(text.as_bytes()).expect("a configuration");
            assert_eq!(config.to_bytes(), text.as_bytes());
            config.append_env(&strings(&["A=b"])).expect("a variable");
            config.mounts_mut();
            let bytes = config.to_bytes();
            assert!(bytes.len() > text.len() && bytes.ends_with(b"}"));
        }
    }
}

#[test]
fn duplicate_keys_are_rejected_on_opening() {
    for text in [
        r#"{"process": {}, "process": {}}"#,
        r#"{"a": 1, "b": 2, "a": 1}"#,
        r#"{"a": 1, "\u0061": 1}"#,
        r#"{"process": {"env": [], "env": ["A=b"]}}"#,
        r#"{"hooks": {"prestart": [], "prestart": []}}"#,
        r#"{"linux": {"devices": [], "devices": []}}"#,
        r#"{"annotations": {"vendor.com/nic": "a", "vendor.com/nic": "b"}}"#,
        r#"{"mounts": [{"destination": "/a", "destination": "/b"}]}"#,
    ] {
        let error = error_chain(&OciConfig::parse(text.as_bytes()).expect_err(text));
        assert!(error.contains("duplicate key"), "{text}: {error}");
    }
    let unopened = r#"{"windows": {"a": 1, "a": 2}}"#;
    assert_eq!(
        OciConfig::parse(unopened.as_bytes()).expect("not ours").to_bytes(),
        unopened.as_bytes()
    );
    let inside = r#"{"process": {"user": {"uid": 0, "uid": 1000}}}"#;
    let mut config = OciConfig::parse(inside.as_bytes()).expect("not opened yet");
    assert!(config.user().is_err());
    assert!(config.add_additional_gid(5).is_err());
}

#[test]
fn keys_in_the_wrong_case_are_rejected() {
    for text in [
        r#"{"Process": {}}"#,
        r#"{"mounts": [], "Mounts": []}"#,
        r#"{"process": {"Env": []}}"#,
        r#"{"linux": {"netdevices": {}}}"#,
        r#"{"hooks": {"createruntime": []}}"#,
    ] {
        let error = error_chain(&OciConfig::parse(text.as_bytes()).expect_err(text));
        assert!(error.contains("only in case"), "{text}: {error}");
    }
    assert!(OciConfig::parse(br#"{"annotations": {"A": "1", "a": "2"}}"#).is_ok());
}

#[test]
fn net_devices_are_read_and_removed() {
    let text = r#"{"linux": {"a": 1e3, "netDevices": {"eth0": {"name": "net0", "odd": 1.0}, "eth1": {}, "eth2": {"name": ""}, "eth3": null}}}"#;
    let mut config = OciConfig::parse(text.as_bytes()).expect("a configuration");
    let named = |host: &str, name: Option<&str>| (host.to_owned(), name.map(str::to_owned));
    let all = [
        named("eth0", Some("net0")),
        named("eth1", None),
        named("eth2", None),
        named("eth3", None),
    ];
    assert_eq!(config.net_devices().expect("a list"), all);
    for host in ["eth1", "eth2", "eth3", "eth9"] {
        config.remove_net_device(host).expect("a change");
    }
    let written = String::from_utf8(config.to_bytes()).expect("text");
    assert!(written.contains(r#"{"name": "net0", "odd": 1.0}"#), "{written}");
    assert!(written.contains("1e3") && !written.contains("eth1"), "{written}");
    config.remove_net_device("eth0").expect("a change");
    let written = String::from_utf8(config.to_bytes()).expect("text");
    assert!(!written.contains("netDevices"), "{written}");
    assert!(config.net_devices().expect("a list").is_empty());
    for wrong in [
        r#"{"linux": {"netDevices": []}}"#,
        r#"{"linux": {"netDevices": {"eth0": "net0"}}}"#,
        r#"{"linux": {"netDevices": {"eth0": {"NAME": "net0"}}}}"#,
    ] {
        let config = OciConfig::parse(wrong.as_bytes()).expect(wrong);
        assert!(config.net_devices().is_err(), "{wrong}");
    }
}

#[test]
fn rejects_malformed_configurations() {
    for text in [
        "",
        " ",
        "null",
        "[]",
        "1",
        "\"a\"",
        "{",
        "{}}",
        "{,}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{'a':1}",
        "{\"a\":01}",
        "{\"a\":+1}",
        "{\"a\":NaN}",
        "{\"a\":\"\n\"}",
        "{\"a\" 1}",
        "{1:2}",
        "\u{feff}{}",
        r#"{"process": []}"#,
        r#"{"mounts": {}}"#,
        r#"{"mounts": [1]}"#,
        r#"{"linux": "x"}"#,
        r#"{"hooks": 1}"#,
        r#"{"annotations": []}"#,
    ] {
        assert!(OciConfig::parse(text.as_bytes()).is_err(), "{text}");
    }
    assert!(matches!(RawObject::parse(b"{\"a\": \"\xff\"}"), Err(RawError::Utf8(7))));
}

#[test]
fn null_parts_count_as_absent_and_are_preserved() {
    let text = r#"{"process":null,"mounts":null,"linux":null,"hooks":null,"annotations":null}"#;
    let mut config = OciConfig::parse(text.as_bytes()).expect("a configuration");
    assert!(config.process().is_none() && config.mounts().is_empty());
    assert_eq!(config.to_bytes(), text.as_bytes());
    config.append_env(&strings(&["A=b"])).expect("a variable");
    let hook = Hook { hook_name: HookName::Poststop.into(), ..Hook::default() };
    config.add_hooks(&[hook]).expect("a hook");
    let want = r#"{"process":{"env":["A=b"]},"mounts":null,"linux":null,"hooks":{"poststop":[{"path":""}]},"annotations":null}"#;
    assert_eq!(String::from_utf8(config.to_bytes()).expect("text"), want);
}

const CONFIG: &str = r#"{"ociVersion":"1.2.0","root":{"path":"rootfs"},"process":{"args":["sh"],
    "env":["PATH=/bin","A=1","A=2"],"user":{"uid":7,"gid":8,"additionalGids":[9]},
    "capabilities":{"bounding":["CAP_CHOWN"],"effective":null},
    "rlimits":[{"type":"RLIMIT_NOFILE","hard":18446744073709551615,"soft":1024,"odd":1}]},
    "mounts":[{"destination":"/proc","type":"proc","source":"proc","options":["ro"]},{}],
    "linux":{"namespaces":[{"type":"mount"},{"type":"user","path":"/x"}],
    "resources":{"hugepageLimits":[{"pageSize":"2MB","limit":5}],"devices":[{"allow":false,"access":"rwm"}]},
    "devices":[{"path":"/dev/a","type":"c","major":1,"minor":2,"fileMode":438}]},
    "hooks":{"poststop":[{"path":"/h","args":["h"],"timeout":3}]},
    "annotations":{"b":"2","a":"1","n":3}}"#;

fn collect_strings(
    each: impl FnOnce(&mut dyn FnMut(&str)) -> Result<(), OciConfigError>,
) -> Vec<String> {
    let mut all = Vec::new();
    each(&mut |one| all.push(one.to_owned())).expect("texts");
    all
}

#[test]
fn accessors_read_a_configuration() {
    let config = OciConfig::parse(CONFIG.as_bytes()).expect("a configuration");
    assert_eq!(config.root_path().expect("a path").as_deref(), Some("rootfs"));
    assert_eq!(collect_strings(|take| config.each_arg(take)), ["sh"]);
    assert_eq!(config.env_value("A").expect("a variable").as_deref(), Some("2"));
    assert_eq!(config.env_value("PAT").expect("no variable"), None);
    let user = config.user().expect("a user");
    assert_eq!((user.uid, user.gid), (7, 8));
    let limit = config.rlimit("RLIMIT_NOFILE").expect("limits").expect("a limit");
    assert_eq!((limit.hard, limit.soft), (u64::MAX, 1024));
    assert_eq!(config.rlimit("RLIMIT_MEMLOCK").expect("limits"), None);
    assert_eq!(config.capabilities(CapabilitySet::Bounding).expect("a set"), ["CAP_CHOWN"]);
    assert_eq!(config.capabilities(CapabilitySet::Effective).expect("a set"), [""; 0]);
    let mount = &config.mounts()[0];
    assert_eq!(
        (mount.destination(), mount.type_(), mount.source()),
        ("/proc".into(), "proc".into(), "proc".into())
    );
    assert_eq!(mount.options(), ["ro"]);
    assert_eq!(config.mounts()[1].destination(), "");
    assert_eq!(config.namespace_paths("user").expect("namespaces"), ["/x"]);
    assert!(config.namespace_paths("network").expect("namespaces").is_empty());
    let mut modes = Vec::new();
    let devices = config.each_device(|device| modes.push(device.file_mode));
    devices.expect("devices");
    assert_eq!(modes, [Some(0o666)]);
    assert!(!config.device_rules().expect("rules")[0].allow);
    assert_eq!(config.hugepage_limits().expect("limits")[0].limit, 5);
    assert_eq!(config.hooks(HookName::Poststop).expect("hooks")[0].timeout, Some(3));
    assert!(config.hooks(HookName::Prestart).expect("hooks").is_empty());
    let keys = config.annotations_with_prefix("").map(|(key, _)| key);
    assert_eq!(keys.collect::<Vec<_>>(), ["b", "a", "n"]);
    assert_eq!(config.annotation("a").expect("a text").as_deref(), Some("1"));
    assert_eq!(config.annotation("c").expect("absent"), None);
    assert!(config.annotation("n").is_err());
    assert_eq!(config.to_bytes(), CONFIG.as_bytes());
}

#[test]
fn accessors_change_a_configuration() {
    let mut config = OciConfig::parse(CONFIG.as_bytes()).expect("a configuration");
    let memlock = Rlimit { type_: "RLIMIT_MEMLOCK".to_owned(), hard: u64::MAX, soft: 1 };
    let nofile = Rlimit { type_: "RLIMIT_NOFILE".to_owned(), hard: 5, soft: 4 };
    config.set_rlimit(&memlock).expect("a limit");
    config.set_rlimit(&nofile).expect("a limit");
    let limits = config.process().expect("a process").read("rlimits");
    assert_eq!(limits.expect("limits"), Some(vec![nofile, memlock]));
    for _ in 0..2 {
        config.add_capability(&CapabilitySet::ALL, "CAP_IPC_LOCK").expect("a capability");
    }
    assert_eq!(
        config.capabilities(CapabilitySet::Bounding).expect("a set"),
        ["CAP_CHOWN", "CAP_IPC_LOCK"]
    );
    assert_eq!(config.capabilities(CapabilitySet::Ambient).expect("a set"), ["CAP_IPC_LOCK"]);
    let limit = |page_size: &str, limit| HugepageLimit { page_size: page_size.to_owned(), limit };
    config.set_hugepage_limits(&[limit("1GB", 1 << 30), limit("2MB", 1 << 27)]).expect("limits");
    assert_eq!(
        config.hugepage_limits().expect("limits"),
        [limit("2MB", 1 << 27), limit("1GB", 1 << 30)]
    );
    config.append_env(&strings(&["A=3", "B=4=5"])).expect("variables");
    assert_eq!(collect_strings(|take| config.each_env(take)), ["PATH=/bin", "A=3", "B=4=5"]);
    let other = MountEntry::new("/proc", "proc", "other", &[]).expect("a mount");
    *config.mounts_mut() = vec![other];
    let written = OciConfig::parse(&config.to_bytes()).expect("what was written");
    assert_eq!((written.mounts().len(), written.mounts()[0].source()), (1, "other".to_owned()));
    let keys = written.annotations_with_prefix("").map(|(key, _)| key);
    assert_eq!(keys.collect::<Vec<_>>(), ["b", "a", "n"]);
}

/// Runtimes set the limits one after the other.
#[test]
fn last_rlimit_of_a_type_takes_effect() {
    let twice = r#"{"process":{"rlimits":[{"type":"A","hard":1,"soft":1},{"type":"B","hard":7,"soft":7},
        {"type":"A","hard":3,"soft":2}]}}"#;
    let mut config = OciConfig::parse(twice.as_bytes()).expect("a configuration");
    let limit = |type_: &str, hard, soft| Rlimit { type_: type_.to_owned(), hard, soft };
    assert_eq!(config.rlimit("A").expect("limits"), Some(limit("A", 3, 2)));
    let set = limit("A", 5, 5);
    config.set_rlimit(&set).expect("a limit");
    let limits = config.process().expect("a process").read("rlimits");
    assert_eq!(limits.expect("limits"), Some(vec![set, limit("B", 7, 7)]));
}

#[test]
fn accessor_errors_name_the_path() {
    let config = OciConfig::parse(
        br#"{"process":{"env":[1],"rlimits":[{"type":"X"}]},"linux":{"devices":{}}}"#,
    )
    .expect("a configuration");
    for (error, place) in [
        (
            error_chain(&config.each_env(|_| ()).expect_err("a number")),
            "reading config.json: process: env: ",
        ),
        (
            error_chain(&config.rlimit("X").expect_err("no limits")),
            "reading config.json: process: rlimits: ",
        ),
        (
            error_chain(&config.each_device(drop).expect_err("an object")),
            "reading config.json: linux: devices: ",
        ),
    ] {
        assert!(error.starts_with(place), "{error}");
    }
}

/// The value of `a` as text, where `a` is this JSON text.
fn read_a<T: serde::de::DeserializeOwned>(json: &str) -> Result<T, RawError> {
    let object = RawObject::parse(format!("{{\"a\":{json}}}").as_bytes()).expect("an object");
    object.read("a").map(|value| value.expect("a value"))
}

#[test]
fn strings_that_no_program_can_get_are_rejected() {
    // Go's encoding/json writes <, > and & as six bytes each.
    let longest = "\\u003c".repeat(MAX_STRING);
    let read: String = read_a(&format!("\"{longest}\"")).expect("a string");
    assert_eq!(read.len(), MAX_STRING);
    let read = read_a::<String>(&format!("\"{longest}x\""));
    let error = error_chain(&read.expect_err("a string that is too long"));
    assert_eq!(
        error,
        "a: a string of more than 131072 bytes; the kernel gives no program a longer one"
    );
    let read = read_a::<Vec<String>>(&format!("[\"\",\"{longest}x\"]"));
    read.expect_err("a string that is too long");
}

#[test]
fn list_limit_counts_nested_values() {
    for (value, each) in [("0", 1), ("\",,[\"", 1), ("[0]", 2), ("{\"b\":0,\"c\":1}", 3)] {
        let most = MAX_VALUES / each;
        let list = |count: usize| format!("[{}]", vec![value; count].join(", "));
        let read: Vec<Value> = read_a(&list(most)).expect("a list");
        assert_eq!(read.len(), most, "{value}");
        let read = read_a::<Vec<Value>>(&list(most + 1));
        let error = error_chain(&read.expect_err("a list that is too long"));
        assert!(error.contains("more than 100000 values"), "{value}: {error}");
    }
}
