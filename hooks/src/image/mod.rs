//! The container's root file system, whose content the image's author controls, and what its libc can load.

pub(crate) mod container_root;
pub(crate) mod overmount;
pub(crate) mod preload;
#[allow(dead_code, reason = "nothing applies a judgement yet")]
pub(crate) mod providers;
pub(crate) mod rdma_libraries;
