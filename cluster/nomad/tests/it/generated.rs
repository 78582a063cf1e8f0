//! The messages and services of Nomad and go-plugin are what the .proto files say.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::Path;

/// By protox instead of protoc.
fn generate(into: &Path) {
    let descriptors = protox::compile(
        ["base.proto", "device.proto", "go_plugin.proto"],
        [Path::new(env!("CARGO_MANIFEST_DIR")).join("proto")],
    )
    .unwrap();
    tonic_prost_build::configure()
        .build_transport(false)
        .btree_map(".")
        .include_file("mod.rs")
        .out_dir(into)
        .compile_fds(descriptors)
        .unwrap();
}

#[test]
fn the_committed_code_is_that_of_the_proto_files() {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("generated");
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
    assert_eq!(names(dir.path()), names(&committed));
    for name in names(&committed) {
        let [made, there] =
            [dir.path(), &committed].map(|dir| fs::read_to_string(dir.join(&name)).unwrap());
        assert!(
            made == there,
            "{name:?} differs: run this test with UPDATE_GOLDEN=1, and look at the change"
        );
    }
}
