//! Makes the services of the device plugin's protocol. Their messages are written by hand, so that no
//! protoc is needed: `src/wire/messages.rs`.

// That is how a build script speaks to cargo.
#![allow(clippy::print_stdout)]

use tonic_build::manual::{Builder, Method, Service};

/// The package of the protocol, which is its version too.
const PACKAGE: &str = "v1beta1";

fn method(name: &str, route: &str, input: &str, output: &str, server_streaming: bool) -> Method {
    let path = |message: &str| format!("crate::wire::messages::{message}");
    let method = Method::builder()
        .name(name)
        .route_name(route)
        .input_type(path(input))
        .output_type(path(output))
        .codec_path("tonic_prost::ProstCodec");
    match server_streaming {
        true => method.server_streaming().build(),
        false => method.build(),
    }
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let registration = Service::builder()
        .name("Registration")
        .package(PACKAGE)
        .method(method(
            "register",
            "Register",
            "RegisterRequest",
            "Empty",
            false,
        ))
        .build();
    let methods = [
        (
            "get_device_plugin_options",
            "GetDevicePluginOptions",
            "Empty",
            "DevicePluginOptions",
            false,
        ),
        (
            "list_and_watch",
            "ListAndWatch",
            "Empty",
            "ListAndWatchResponse",
            true,
        ),
        (
            "get_preferred_allocation",
            "GetPreferredAllocation",
            "PreferredAllocationRequest",
            "PreferredAllocationResponse",
            false,
        ),
        (
            "allocate",
            "Allocate",
            "AllocateRequest",
            "AllocateResponse",
            false,
        ),
        (
            "pre_start_container",
            "PreStartContainer",
            "PreStartContainerRequest",
            "PreStartContainerResponse",
            false,
        ),
    ];
    let plugin = Service::builder().name("DevicePlugin").package(PACKAGE);
    let plugin = methods.into_iter().fold(plugin, |plugin, method_of| {
        let (name, route, input, output, streaming) = method_of;
        plugin.method(method(name, route, input, output, streaming))
    });
    Builder::new().compile(&[registration, plugin.build()]);
}
