//! The claims of a cluster, as the API server knows them.

use std::fmt;

use k8s_openapi::api::resource::v1::ResourceClaim;
use onload_core::text::Chain;

use crate::dra::api::Api;

/// Who knows claims.
#[tonic::async_trait]
pub trait Claims: fmt::Debug + Send + Sync {
    /// The claim of that name; `None` if there is none.
    ///
    /// # Errors
    /// Why it could not be asked for, in a line for people.
    async fn claim(&self, namespace: &str, name: &str) -> Result<Option<ResourceClaim>, String>;
}

#[tonic::async_trait]
impl Claims for Api {
    async fn claim(&self, namespace: &str, name: &str) -> Result<Option<ResourceClaim>, String> {
        let claim = Api::claim(self, namespace, name).await;
        claim.map_err(|error| Chain(&error).to_string())
    }
}
