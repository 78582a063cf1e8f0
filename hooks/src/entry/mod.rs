//! The entry points of the two binaries, and of `container explain`.

pub mod caller;
pub mod create_runtime;
pub mod edit;
pub mod explain;
pub mod hook;
pub mod program;
pub mod system_log;
pub mod wrapper;
