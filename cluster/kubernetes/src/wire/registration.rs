//! Registration of plugins that kubelet dials
//! (staging/src/k8s.io/kubelet/pkg/apis/pluginregistration/v1/api.proto of Kubernetes).

/// Who are you?
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct InfoRequest {}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PluginInfo {
    /// What kind it is of, such as [`super::DRA_PLUGIN`].
    #[prost(string, tag = "1")]
    pub r#type: String,
    /// What it is called; for a DRA driver the name of the driver.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The absolute path of the socket where it serves.
    #[prost(string, tag = "3")]
    pub endpoint: String,
    /// The services that it has there, the newest first: kubelet takes the first that it knows.
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

/// How kubelet likes it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RegistrationStatus {
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    #[prost(string, tag = "2")]
    pub error: String,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct RegistrationStatusResponse {}
