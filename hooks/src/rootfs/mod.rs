//! The container's root file system, made by whoever made the image.

pub mod container_root;
pub mod overmount;
