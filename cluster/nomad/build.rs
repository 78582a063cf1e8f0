//! Makes the services of Nomad's plugins. Their messages are written by hand, so that no protoc is needed:
//! `src/wire/`.

// That is how a build script speaks to cargo.
#![allow(clippy::print_stdout)]

use tonic_build::manual::{Builder, Method, Service, ServiceBuilder};

const EMPTY: &str = "crate::wire::Empty";

/// A service by its package and name, with its methods.
type ServiceOf = (&'static str, &'static str, &'static [MethodOf]);
/// A method by its name, route, request, answer, and whether these are streams.
type MethodOf = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    Streams,
);

#[derive(Clone, Copy)]
enum Streams {
    None,
    Answer,
    Both,
}

const BASE: ServiceOf = (
    "hashicorp.nomad.plugins.base.proto",
    "BasePlugin",
    &[
        (
            "plugin_info",
            "PluginInfo",
            EMPTY,
            "crate::wire::base::PluginInfoResponse",
            Streams::None,
        ),
        (
            "config_schema",
            "ConfigSchema",
            EMPTY,
            "crate::wire::base::ConfigSchemaResponse",
            Streams::None,
        ),
        (
            "set_config",
            "SetConfig",
            "crate::wire::base::SetConfigRequest",
            EMPTY,
            Streams::None,
        ),
    ],
);
const DEVICE: ServiceOf = (
    "hashicorp.nomad.plugins.device",
    "DevicePlugin",
    &[
        (
            "fingerprint",
            "Fingerprint",
            EMPTY,
            "crate::wire::device::FingerprintResponse",
            Streams::Answer,
        ),
        (
            "reserve",
            "Reserve",
            "crate::wire::device::ReserveRequest",
            "crate::wire::device::ReserveResponse",
            Streams::None,
        ),
        (
            "stats",
            "Stats",
            "crate::wire::device::StatsRequest",
            "crate::wire::device::StatsResponse",
            Streams::Answer,
        ),
    ],
);
const CONTROLLER: ServiceOf = (
    "plugin",
    "GRPCController",
    &[("shutdown", "Shutdown", EMPTY, EMPTY, Streams::None)],
);
const STDIO: ServiceOf = (
    "plugin",
    "GRPCStdio",
    &[(
        "stream_stdio",
        "StreamStdio",
        EMPTY,
        "crate::wire::go_plugin::StdioData",
        Streams::Answer,
    )],
);
const BROKER: ServiceOf = (
    "plugin",
    "GRPCBroker",
    &[(
        "start_stream",
        "StartStream",
        "crate::wire::go_plugin::ConnInfo",
        "crate::wire::go_plugin::ConnInfo",
        Streams::Both,
    )],
);

fn method((name, route, input, output, streams): MethodOf) -> Method {
    let method = Method::builder()
        .name(name)
        .route_name(route)
        .input_type(input)
        .output_type(output)
        .codec_path("tonic_prost::ProstCodec");
    match streams {
        Streams::None => method.build(),
        Streams::Answer => method.server_streaming().build(),
        Streams::Both => method.client_streaming().server_streaming().build(),
    }
}

fn service((package, name, methods): ServiceOf) -> Service {
    let service = Service::builder().name(name).package(package);
    let methods = methods.iter().copied().map(method);
    methods.fold(service, ServiceBuilder::method).build()
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let services = [BASE, DEVICE, CONTROLLER, STDIO, BROKER];
    Builder::new().compile(&services.map(service));
}
