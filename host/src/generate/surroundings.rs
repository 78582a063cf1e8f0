//! What specifications depend on besides a host's devices.

/// The directory of the socket of Onload's controller of shared queues.
pub const ONLOAD_SOCKET_DIR: &str = "/run/onload";

/// What specifications depend on besides a host's devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// The hook's binary exists at the configured path.
    pub hook: bool,
    /// [`PRELOAD_FILE`](onload_core::onload::PRELOAD_FILE) exists.
    pub preload_file: bool,
    /// [`ONLOAD_SOCKET_DIR`] exists.
    pub onload_socket: bool,
}
