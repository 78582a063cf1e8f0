//! The container's init process as the host sees it.

pub(crate) mod init;
pub(crate) mod limits;
