//! The container's root file system, made by whoever made the image.

pub(crate) mod container_root;
pub(crate) mod overmount;
