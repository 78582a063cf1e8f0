//! The services, as `build.rs` makes them.

#![allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::pedantic,
    clippy::needless_pass_by_value
)]

include!(concat!(env!("OUT_DIR"), "/v1beta1.Registration.rs"));
include!(concat!(env!("OUT_DIR"), "/v1beta1.DevicePlugin.rs"));
