//! Why a container does not get what it requests, whichever path would apply it.

use onload_cdi::oci::OciConfigError;
use onload_core::policy::PolicyViolation;
use onload_core::request::RequestError;

use super::addresses::NoMove;
use super::nodes::NodeError;
use super::pools::PoolRefusal;
use super::variable::VariableError;
use crate::config_json::scan;
use crate::host::HostFilesError;
use crate::host::specs::SpecsError;

/// Why the container must not start.
#[derive(Debug, thiserror::Error)]
pub enum DecisionError {
    /// config.json cannot be read or changed.
    #[error("config.json")]
    Config(#[from] OciConfigError),
    /// config.json asks for something and is larger than any real one.
    #[error(
        "config.json has onload.dev annotations, or the variable ONLOAD_CTK_REQUEST, and is larger than {} bytes",
        scan::MAX_BYTES
    )]
    TooLarge,
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The variable of the container's environment is invalid, or its ticket not good.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// The operator does not allow the request.
    #[error(transparent)]
    Policy(#[from] PolicyViolation),
    /// The files of the host cannot be used.
    #[error(transparent)]
    Host(#[from] HostFilesError),
    /// The specifications cannot be used, or do not offer a requested name.
    #[error(transparent)]
    Specs(#[from] SpecsError),
    #[error(transparent)]
    Pools(#[from] PoolRefusal),
    /// An address cannot be set.
    #[error(transparent)]
    Address(#[from] NoMove),
    /// A device node is not what it should be.
    #[error(transparent)]
    Node(#[from] NodeError),
}

impl onload_core::error::Typed for DecisionError {}
