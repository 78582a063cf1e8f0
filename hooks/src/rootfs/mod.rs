//! The container's root file system, whose content the image's author controls.

pub(crate) mod container_root;
pub(crate) mod overmount;
