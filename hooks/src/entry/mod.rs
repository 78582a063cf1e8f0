//! The entry points of the two binaries, and of `container explain`.

pub(crate) mod caller;
pub(crate) mod create_runtime;
pub(crate) mod edit;
pub mod explain;
pub mod hook;
pub(crate) mod log_file;
pub mod program;
pub(crate) mod system_log;
pub mod wrapper;
