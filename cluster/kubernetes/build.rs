//! Makes the services of kubelet's protocols. Their messages are written by hand, so that no protoc is
//! needed: `src/wire/`.

// That is how a build script speaks to cargo.
#![allow(clippy::print_stdout)]

use tonic_build::manual::{Builder, Method, Service};

/// A method: its name in Rust and in the protocol, what it takes and gives, and whether it gives many.
type Row = (&'static str, &'static str, &'static str, &'static str, bool);

const DEVICE_PLUGIN: [Row; 5] = [
    (
        "get_device_plugin_options",
        "GetDevicePluginOptions",
        "messages::Empty",
        "messages::DevicePluginOptions",
        false,
    ),
    (
        "list_and_watch",
        "ListAndWatch",
        "messages::Empty",
        "messages::ListAndWatchResponse",
        true,
    ),
    (
        "get_preferred_allocation",
        "GetPreferredAllocation",
        "messages::PreferredAllocationRequest",
        "messages::PreferredAllocationResponse",
        false,
    ),
    (
        "allocate",
        "Allocate",
        "messages::AllocateRequest",
        "messages::AllocateResponse",
        false,
    ),
    (
        "pre_start_container",
        "PreStartContainer",
        "messages::PreStartContainerRequest",
        "messages::PreStartContainerResponse",
        false,
    ),
];

const DEVICE_PLUGIN_REGISTRATION: [Row; 1] = [(
    "register",
    "Register",
    "messages::RegisterRequest",
    "messages::Empty",
    false,
)];

const PLUGIN_REGISTRATION: [Row; 2] = [
    (
        "get_info",
        "GetInfo",
        "registration::InfoRequest",
        "registration::PluginInfo",
        false,
    ),
    (
        "notify_registration_status",
        "NotifyRegistrationStatus",
        "registration::RegistrationStatus",
        "registration::RegistrationStatusResponse",
        false,
    ),
];

/// Those of v1 and v1beta1 alike: v1beta1 lacks a field that it passes over.
const DRA_PLUGIN: [Row; 2] = [
    (
        "node_prepare_resources",
        "NodePrepareResources",
        "dra::NodePrepareResourcesRequest",
        "dra::NodePrepareResourcesResponse",
        false,
    ),
    (
        "node_unprepare_resources",
        "NodeUnprepareResources",
        "dra::NodeUnprepareResourcesRequest",
        "dra::NodeUnprepareResourcesResponse",
        false,
    ),
];

const DRA_HEALTH: [Row; 1] = [(
    "node_watch_resources",
    "NodeWatchResources",
    "dra_health::NodeWatchResourcesRequest",
    "dra_health::NodeWatchResourcesResponse",
    true,
)];

fn method(row: Row) -> Method {
    let (name, route, input, output, server_streaming) = row;
    let path = |message: &str| format!("crate::wire::{message}");
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

fn service(package: &str, name: &str, methods: &[Row]) -> Service {
    let service = Service::builder().name(name).package(package);
    let methods = methods.iter().copied();
    methods
        .fold(service, |service, row| service.method(method(row)))
        .build()
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let services = [
        service("v1beta1", "Registration", &DEVICE_PLUGIN_REGISTRATION),
        service("v1beta1", "DevicePlugin", &DEVICE_PLUGIN),
        service("pluginregistration", "Registration", &PLUGIN_REGISTRATION),
        service("k8s.io.kubelet.pkg.apis.dra.v1", "DRAPlugin", &DRA_PLUGIN),
        service(
            "k8s.io.kubelet.pkg.apis.dra.v1beta1",
            "DRAPlugin",
            &DRA_PLUGIN,
        ),
        // Its package is v1alpha1 and nothing before it, unlike those above.
        service("v1alpha1", "DRAResourceHealth", &DRA_HEALTH),
    ];
    Builder::new().compile(&services);
}
