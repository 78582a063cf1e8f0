//! What go-plugin asks beside Nomad (internal/plugin/grpc_stdio.proto and grpc_broker.proto of
//! hashicorp/go-plugin).

/// What the plugin wrote to its standard output or error.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct StdioData {
    /// 1 for standard output, 2 for standard error.
    #[prost(int32, tag = "1")]
    pub channel: i32,
    /// The bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub data: Vec<u8>,
}

/// A connection that one side offers the other. There are none between Nomad and a device plugin.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ConnInfo {
    #[prost(uint32, tag = "1")]
    pub service_id: u32,
    /// `unix` or `tcp`.
    #[prost(string, tag = "2")]
    pub network: String,
    /// Where.
    #[prost(string, tag = "3")]
    pub address: String,
}
