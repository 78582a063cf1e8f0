//! What goes over the wire: go-plugin's services and those of Nomad's device plugins (its plugins/base,
//! plugins/device, plugins/shared/hclspec and plugins/shared/structs).

pub mod base;
pub mod device;
pub mod go_plugin;
pub mod hclspec;
pub mod services;
pub mod structs;

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Empty {}
