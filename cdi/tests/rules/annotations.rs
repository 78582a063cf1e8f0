use std::collections::BTreeMap;

use onload_cdi::QualifiedName;
use onload_cdi::annotations::{AnnotationError, add, key, read, value};

use crate::told;

fn names(list: &[&str]) -> Vec<QualifiedName> {
    list.iter()
        .map(|name| name.parse().expect("a name"))
        .collect()
}

fn map(list: &[(&str, &str)]) -> BTreeMap<String, String> {
    list.iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

#[test]
fn a_key_is_made_of_plugin_and_device() {
    for (plugin, device, want) in [
        ("vendor.class", "device", "cdi.k8s.io/vendor.class_device"),
        (
            "v-e.n_d.or.cl-as_s",
            "d_e-v-i-c_e",
            "cdi.k8s.io/v-e.n_d.or.cl-as_s_d_e-v-i-c_e",
        ),
        (
            "v-e.n_d.or.cl-as_s",
            "d-e/v/i/c-e",
            "cdi.k8s.io/v-e.n_d.or.cl-as_s_d-e_v_i_c-e",
        ),
        ("p", "0", "cdi.k8s.io/p_0"),
    ] {
        assert_eq!(key(plugin, device).as_deref(), Ok(want));
    }
    assert!(key(&"p".repeat(61), "d").is_ok());
}

#[test]
fn a_key_that_kubernetes_would_refuse_is_refused() {
    let long = "p".repeat(62);
    for (plugin, device) in [
        ("", "device"),
        ("plugin", ""),
        ("_vendor.class", "device"),
        ("vendor.class", "device_"),
        ("vendor.class", "device/"),
        ("ven.dor-cl+ass", "device"),
        ("vendor.class", "dev+ice"),
        ("vendor/class", "device"),
        ("vendor.clässe", "device"),
        (long.as_str(), "d"),
    ] {
        assert!(key(plugin, device).is_err(), "{plugin} {device}");
    }
}

#[test]
fn requests_are_added_and_read_back() {
    let mut annotations = map(&[("other", "x")]);
    let first = names(&["vendor.com/class=device1"]);
    let second = names(&["vendor.com/class=device2", "vendor.com/class=device3"]);
    add(&mut annotations, "vendor.class", "device", &first).expect("an annotation");
    add(&mut annotations, "vendor.class", "devices", &second).expect("an annotation");
    let want = map(&[
        ("cdi.k8s.io/vendor.class_device", "vendor.com/class=device1"),
        (
            "cdi.k8s.io/vendor.class_devices",
            "vendor.com/class=device2,vendor.com/class=device3",
        ),
        ("other", "x"),
    ]);
    assert_eq!(annotations, want);
    assert_eq!(read(&annotations).expect("names"), [first, second].concat());
    assert_eq!(read(&map(&[("other", "not,a/name")])).expect("nothing"), []);
    assert_eq!(value(&[]), "");
}

#[test]
fn a_request_that_is_there_already_is_refused_and_changes_nothing() {
    let before = map(&[("cdi.k8s.io/vendor.class_device", "vendor.com/class=device1")]);
    let mut after = before.clone();
    let error = add(
        &mut after,
        "vendor.class",
        "device",
        &names(&["vendor.com/class=device2"]),
    );
    assert_eq!(
        error,
        Err(AnnotationError::Taken(
            "cdi.k8s.io/vendor.class_device".to_owned()
        ))
    );
    assert!(add(&mut after, "", "device", &[]).is_err());
    assert_eq!(after, before);
}

#[test]
fn a_value_with_anything_but_qualified_names_is_refused() {
    for value in [
        "",
        "device",
        "/dev/null",
        "vendor.com/class=a,",
        "vendor.com/class=a, vendor.com/class=b",
        "vendor.com/class=a,vendor.com/_class=b",
        "vendor.com/class",
    ] {
        let error = told(&read(&map(&[("cdi.k8s.io/x", value)])).expect_err(value));
        assert!(
            error.starts_with("reading the annotation \"cdi.k8s.io/x\": "),
            "{error}"
        );
    }
}
