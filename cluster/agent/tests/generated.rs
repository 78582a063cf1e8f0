//! The messages and services of the engines are what the agents' .proto files say.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use tonic_prost_build::Builder;

/// Holds the committed code of an agent against what is generated now, by protox instead of protoc.
#[track_caller]
fn compare(agent: &str, files: &[&str], with: impl Fn(Builder) -> Builder) {
    let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(agent);
    let generate = |into: &Path| {
        let descriptors = protox::compile(files, [agent.join("proto")]).unwrap();
        let generator =
            tonic_prost_build::configure().build_transport(false).btree_map(".").out_dir(into);
        with(generator).compile_fds(descriptors).unwrap();
    };
    let committed = agent.join("generated");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        generate(&committed);
    }
    let dir = tempfile::tempdir().unwrap();
    generate(dir.path());
    let names = |dir: &Path| {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let mut differing = [names(dir.path()), names(&committed)].concat();
    differing.sort();
    differing.dedup();
    let text = |dir: &Path, name: &OsString| fs::read_to_string(dir.join(name)).ok();
    differing.retain(|name| text(dir.path(), name) != text(&committed, name));
    assert!(
        differing.is_empty(),
        "{differing:?} differ in {}; to accept them, run: UPDATE_GOLDEN=1 cargo test -p onload-agent --test generated",
        committed.display()
    );
}

#[test]
fn the_committed_code_of_kubelet_s_protocols_is_that_of_the_proto_files() {
    const FILES: [&str; 6] = [
        "deviceplugin.proto",
        "pluginregistration.proto",
        "dra-v1.proto",
        "dra-v1beta1.proto",
        "dra-health.proto",
        "podresources.proto",
    ];
    // v1beta1 of DRA has the messages of v1, but for a field that it passes over.
    let same = (".k8s.io.kubelet.pkg.apis.dra.v1beta1", "crate::wire::dra");
    compare("kubernetes", &FILES, |generator| generator.extern_path(same.0, same.1));
}

#[test]
fn the_committed_code_of_nomad_s_and_go_plugin_s_protocols_is_that_of_the_proto_files() {
    let files = ["base.proto", "device.proto", "go_plugin.proto"];
    compare("nomad", &files, |generator| generator.include_file("mod.rs"));
}

#[test]
fn the_committed_code_of_nri_and_ttrpc_is_that_of_the_proto_files() {
    // The plugin writes these to the config.json of a container.
    const MESSAGES: [&str; 10] = [
        "Mount",
        "Hooks",
        "Hook",
        "LinuxNamespace",
        "LinuxDevice",
        "LinuxResources",
        "LinuxDeviceCgroup",
        "HugepageLimit",
        "POSIXRlimit",
        "User",
    ];
    const VALUES: [&str; 4] =
        ["OptionalInt", "OptionalInt64", "OptionalUInt32", "OptionalFileMode"];
    const OPTIONAL: [&str; 6] = [
        "Hook.timeout",
        "LinuxDevice.file_mode",
        "LinuxDevice.uid",
        "LinuxDevice.gid",
        "LinuxDeviceCgroup.major",
        "LinuxDeviceCgroup.minor",
    ];
    compare("nri", &["api.proto", "ttrpc.proto"], |generator| {
        let mut generator = generator.include_file("mod.rs").field_attribute(
            "LinuxNamespace.path",
            "#[serde(skip_serializing_if = \"String::is_empty\")]",
        );
        for message in MESSAGES {
            let attribute = "#[derive(serde::Serialize)] #[serde(rename_all = \"camelCase\")]";
            generator = generator.type_attribute(message, attribute);
        }
        for value in VALUES {
            let attribute = "#[derive(serde::Serialize)] #[serde(transparent)]";
            generator = generator.type_attribute(value, attribute);
        }
        for field in OPTIONAL {
            let attribute = "#[serde(skip_serializing_if = \"Option::is_none\")]";
            generator = generator.field_attribute(field, attribute);
        }
        generator
    });
}
