//! The container's root file system, whose content the image's author controls, and the libraries that its libc can
//! load.

use std::path::Path;

use onload_cdi::oci::OciConfig;
use onload_sys::error::{Context, Result};
use onload_sys::fs::container_root::ContainerRoot;

use crate::decide::subject::CONFIG_JSON;

pub(crate) mod overmount;
pub(crate) mod preload;
pub(crate) mod rdma_libraries;

/// The root of a bundle's container as this process sees it; `None` where nothing is in it yet. For a user namespace that
/// lacks its own user, podman names an empty directory, and mounts the image on it after the precreate hooks, where only
/// the runtime and its hooks see it (libpod since 5.2, `getRootPathForOCI` and `createRootlessContainer`).
pub(crate) fn open_root(bundle: &Path, config: &OciConfig) -> Result<Option<ContainerRoot>> {
    let path = config.root_path().context(CONFIG_JSON)?.unwrap_or_default();
    let root = ContainerRoot::open(&bundle.join(path))?;
    Ok((!root.is_empty()).then_some(root))
}
