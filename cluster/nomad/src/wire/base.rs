//! What every plugin of Nomad is asked (plugins/base/proto/base.proto).

use super::hclspec::Spec;

/// What kind of plugin it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum PluginType {
    /// It does not say.
    Unknown = 0,
    Driver = 2,
    Device = 3,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PluginInfoResponse {
    #[prost(enumeration = "PluginType", tag = "1")]
    pub r#type: i32,
    /// The versions of the protocol that it speaks.
    #[prost(string, repeated, tag = "2")]
    pub plugin_api_versions: Vec<String>,
    #[prost(string, tag = "3")]
    pub plugin_version: String,
    #[prost(string, tag = "4")]
    pub name: String,
}

/// What may stand in its configuration.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ConfigSchemaResponse {
    #[prost(message, optional, tag = "1")]
    pub spec: Option<Spec>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SetConfigRequest {
    /// What the schema allows, as go-cty writes it; empty without a configuration. What Nomad says of itself
    /// (2) is of no use here.
    #[prost(bytes = "vec", tag = "1")]
    pub msgpack_config: Vec<u8>,
    /// The version of the protocol that Nomad chose.
    #[prost(string, tag = "3")]
    pub plugin_api_version: String,
}
