//! Which provider libraries make RDMA devices usable in an image: its own, or files of the host that are mounted into
//! it. A provider fits by three versions: the private ABI between it and libibverbs, glibc, and the kernel's ABI of
//! the driver. What decides is the symbols, since a private ABI grew without a new number.

use std::path::{Path, PathBuf};

use onload_sys::fs::trust::Trusted;

use crate::image::container_root::ContainerRoot;

/// An RDMA device that the container gets, as the host's sysfs shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RdmaDevice {
    /// For instance `mlx5_0`.
    pub name: String,
    /// The kernel driver: the name of its module, for instance `mlx5_core`, `mlx5_ib` or `rdma_rxe`, or of its
    /// provider, `mlx5` or `rxe`.
    pub driver: String,
    /// `/sys/class/infiniband_verbs/uverbsN/abi_version`.
    pub kernel_abi: Option<u32>,
}

/// The image, with nothing of ours mounted.
pub(crate) struct Image<'a> {
    pub root: &'a ContainerRoot,
    /// `LD_LIBRARY_PATH` of the container's configuration.
    pub library_path: Option<&'a str>,
    /// Whether one of the container's mounts hides a path.
    pub covered: &'a dyn Fn(&Path) -> bool,
}

/// A regular file of the host, with no link on its path, and where it is mounted: read-only, nosuid, nodev.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LibraryMount {
    pub source: PathBuf,
    pub target: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// A provider is added, and no file of the image is covered.
    Add,
    /// The image's provider is covered by the host's.
    Cover,
    /// The host's libibverbs, librdmacm and providers replace the image's, or are all that there is.
    Replace,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The image's own libraries serve all devices.
    Fits,
    Mount { way: Way, files: Vec<LibraryMount> },
    /// Nothing fits: which version is where, and what would fit.
    Unfit(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judgement {
    pub verdict: Verdict,
    /// What could not be examined and was taken to fit; for the debug log.
    pub notes: Vec<String>,
}

/// `host` is the host's file system.
pub(crate) fn judge(image: &Image<'_>, host: &Trusted, devices: &[RdmaDevice]) -> Judgement {
    let _ = (image.root, image.library_path, image.covered, host, devices);
    Judgement {
        verdict: Verdict::Unfit("provider libraries are not judged yet".to_owned()),
        notes: Vec::new(),
    }
}
