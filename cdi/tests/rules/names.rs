use onload_cdi::{DeviceName, Kind, QualifiedName};

#[test]
fn qualified_names_are_split() {
    for (text, vendor, class, device) in [
        ("vendor.com/class=dev", "vendor.com", "class", "dev"),
        ("a/b=c", "a", "b", "c"),
        ("aa/b=cc", "aa", "b", "cc"),
        ("a/bb=cc", "a", "bb", "cc"),
        ("vendor.com/class=0", "vendor.com", "class", "0"),
        ("vendor1.com/class1=dev1", "vendor1.com", "class1", "dev1"),
        ("vendor1.com/class.sub=dev1", "vendor1.com", "class.sub", "dev1"),
        ("other-vendor1.com/class_1=dev_1", "other-vendor1.com", "class_1", "dev_1"),
        (
            "yet_another-vendor2.com/c-lass_2=dev_1:2.3",
            "yet_another-vendor2.com",
            "c-lass_2",
            "dev_1:2.3",
        ),
        ("vendor.com/vfio=0000:3b:00.0", "vendor.com", "vfio", "0000:3b:00.0"),
        ("Vendor.COM/Nic=ENS1", "Vendor.COM", "Nic", "ENS1"),
    ] {
        let name: QualifiedName = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(name.kind.vendor(), vendor, "{text}");
        assert_eq!(name.kind.class(), class, "{text}");
        assert_eq!(name.device.as_str(), device, "{text}");
        assert_eq!(name.to_string(), text);
    }
}

#[test]
fn invalid_names_are_rejected_with_the_part_and_rule() {
    for (text, message) in [
        (
            "_invalid.com/class=dev",
            "invalid vendor \"_invalid.com\": it starts with '_', expected a letter",
        ),
        (
            "0vendor.com/class=dev",
            "invalid vendor \"0vendor.com\": it starts with '0', expected a letter",
        ),
        ("invalid2.com-/class=dev", "invalid vendor \"invalid2.com-\": it ends with '-'"),
        (
            "invalid3.com/_class=dev",
            "invalid class \"_class\": it starts with '_', expected a letter",
        ),
        ("invalid4.com/class_=dev", "invalid class \"class_\": it ends with '_'"),
        ("invalid5.com/class=-dev", "invalid device name \"-dev\": it starts with '-'"),
        ("invalid6.com/class=dev:", "invalid device name \"dev:\": it ends with ':'"),
        ("*.com/*dev=*gpu*", "invalid vendor \"*.com\": it starts with '*'"),
        ("vendor.com/class=a+b", "invalid device name \"a+b\": '+' is not allowed"),
        ("vendor.com/class=a=b", "invalid device name \"a=b\": '=' is not allowed"),
        ("vendor.com/class=a/b", "invalid device name \"a/b\": '/' is not allowed"),
        ("vendor.com/cl/ass=dev", "invalid class \"cl/ass\": '/' is not allowed"),
        ("vendor.com/cl:ass=dev", "invalid class \"cl:ass\": ':' is not allowed"),
        ("vendor.com/class=d\u{e9}v", "invalid device name \"d\u{e9}v\": 'é' is not allowed"),
        ("vendor.com/class=dev\n", "is not allowed"),
        ("/class=dev", "is not a qualified device name"),
        ("/dev/null=x", "is not a qualified device name"),
        ("vendor.com/=dev", "invalid class in \"vendor.com/\": it is empty"),
        ("vendor.com/class=", "invalid device name in \"\": it is empty"),
        ("vendor.com/class", "is not a qualified device name"),
        ("vendor.com=dev", "is not a qualified device name"),
        ("=dev", "is not a qualified device name"),
        ("dev", "is not a qualified device name"),
        ("", "is not a qualified device name"),
    ] {
        let error = text.parse::<QualifiedName>().expect_err(text).to_string();
        assert!(error.contains(message), "{text:?}: {error}");
        assert!(!error.contains('\n'), "{error:?} is one line");
    }
}

#[test]
fn kinds_and_device_names_are_checked_alone() {
    assert_eq!(Kind::try_from("vendor.com/nic").expect("a kind").class(), "nic");
    assert!(Kind::try_from("vendor.com").is_err());
    assert!(Kind::try_from("vendor.com/nic=ens1").is_err());
    assert_eq!(DeviceName::try_from("2Mi").expect("a device").as_str(), "2Mi");
    assert!(DeviceName::try_from("b_").is_err());
    assert!(DeviceName::try_from("").is_err());
}

#[test]
fn names_have_no_length_limit() {
    let long = "a".repeat(4096);
    assert!(format!("{long}/{long}={long}").parse::<QualifiedName>().is_ok());
}
