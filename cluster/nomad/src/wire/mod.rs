//! The protocol, generated from the files in `proto/` (cluster/agent/tests/generated.rs): the services of go-plugin and
//! of Nomad's device plugins.

#[allow(
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::pedantic,
    clippy::needless_pass_by_value
)]
mod generated {
    include!("../../generated/mod.rs");
}

pub use generated::hashicorp::nomad::plugins::base::proto as base;
pub use generated::hashicorp::nomad::plugins::device;
pub use generated::hashicorp::nomad::plugins::shared::{hclspec, structs};
pub use generated::plugin as go_plugin;
