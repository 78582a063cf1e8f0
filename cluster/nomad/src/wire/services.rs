//! The services, as `build.rs` makes them.

#![allow(
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::pedantic,
    clippy::needless_pass_by_value
)]

include!(concat!(
    env!("OUT_DIR"),
    "/hashicorp.nomad.plugins.base.proto.BasePlugin.rs"
));
include!(concat!(
    env!("OUT_DIR"),
    "/hashicorp.nomad.plugins.device.DevicePlugin.rs"
));
include!(concat!(env!("OUT_DIR"), "/plugin.GRPCController.rs"));
include!(concat!(env!("OUT_DIR"), "/plugin.GRPCStdio.rs"));
include!(concat!(env!("OUT_DIR"), "/plugin.GRPCBroker.rs"));
