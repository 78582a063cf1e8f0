//! What stands in the container's root file system, whose content the image's author controls, and what its libc can load.

pub(crate) mod overmount;
pub(crate) mod preload;
pub(crate) mod rdma_libraries;
