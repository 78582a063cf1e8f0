//! The container's init process as the host sees it.

pub mod init;
pub mod limits;
