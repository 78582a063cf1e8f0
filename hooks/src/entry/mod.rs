//! The entry points of the two binaries, and of `container explain`.

pub mod allocator;
pub(crate) mod caller;
pub(crate) mod config_edit;
pub(crate) mod create_runtime;
pub mod explain;
pub mod hook;
pub(crate) mod log_file;
pub mod program;
pub(crate) mod system_log;
pub mod wrapper;
