//! The messages and services of kubelet's protocols are what their .proto files say.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;

const PROTOCOLS: [&str; 5] = [
    "deviceplugin",
    "pluginregistration",
    "dra-v1",
    "dra-v1beta1",
    "dra-health",
];

/// By protox instead of protoc. v1beta1 of DRA has the messages of v1, but for a field that it passes over.
fn generate(into: &Path) {
    let protocols = PROTOCOLS.map(|name| format!("{name}.proto"));
    let descriptors = protox::compile(
        protocols,
        [Path::new(env!("CARGO_MANIFEST_DIR")).join("proto")],
    )
    .unwrap();
    tonic_prost_build::configure()
        .build_transport(false)
        .btree_map(".")
        .extern_path(".k8s.io.kubelet.pkg.apis.dra.v1beta1", "crate::wire::dra")
        .out_dir(into)
        .compile_fds(descriptors)
        .unwrap();
}

#[test]
fn the_committed_code_is_that_of_the_proto_files() {
    onload_test_tree::assert_generated(env!("CARGO_MANIFEST_DIR"), generate);
}
