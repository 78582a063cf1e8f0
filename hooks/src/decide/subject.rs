//! The container that something is decided for.

use std::path::Path;

use onload_cdi::oci::OciConfig;
use onload_core::container_id::ContainerId;
use onload_core::device_id::DeviceId;
use onload_core::request::Request;
use onload_core::token::Token;

/// Context of failures to read and change a configuration.
pub(crate) const CONFIG_JSON: &str = "config.json";

#[derive(Clone, Copy, Debug)]
pub struct ContainerRef<'a> {
    /// The directory that `root.path` is relative to, or an empty path if the engine has not created it.
    pub bundle: &'a Path,
    /// `None` if the entry point does not know it.
    pub id: Option<&'a ContainerId>,
    /// Whether the caller also sees the processes that are started in the container later: else a capability that
    /// is removed from the first process would return with the next one.
    pub sees_exec: bool,
}

/// A container, and what may be decided of it.
#[derive(Clone, Copy)]
pub(crate) struct DecisionSubject<'a> {
    pub config: &'a OciConfig,
    pub request: &'a Request,
    /// The devices that it leases through tickets, each with its ticket.
    pub tickets: &'a [(DeviceId, Token)],
    pub container: ContainerRef<'a>,
    /// Whether its image is known not to have a directory.
    pub lacks: &'a dyn Fn(&Path) -> bool,
}
