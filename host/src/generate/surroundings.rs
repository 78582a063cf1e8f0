//! What of the host matters for specifications beside its devices.

/// The directory of the socket of Onload's controller of shared queues.
pub const ONLOAD_SOCKET_DIR: &str = "/run/onload";

/// What of the host matters beside its devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// The hook's binary is where the configuration says.
    pub hook: bool,
    /// [`PRELOAD_FILE`](onload_core::onload::PRELOAD_FILE) is there.
    pub preload_file: bool,
    /// [`ONLOAD_SOCKET_DIR`] is there.
    pub onload_socket: bool,
}
