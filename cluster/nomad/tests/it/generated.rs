//! The messages and services of Nomad and go-plugin are what the .proto files say.

#![allow(clippy::unwrap_used, reason = "a test")]

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
    onload_test_tree::assert_generated(env!("CARGO_MANIFEST_DIR"), generate);
}
