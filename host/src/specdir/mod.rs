//! The directory for specifications. Readers never see an incomplete file.

mod directory;
mod manifest;
mod plan;
mod renumbered;
mod writer;

/// The default output directory.
pub const OUTPUT_DIR: &str = "/var/run/cdi";
/// Both names of the default output directory. Engines that read other directories do not find our specifications.
pub const SPEC_DIRS: [&str; 2] = [OUTPUT_DIR, "/run/cdi"];

pub use crate::engine_dirs::{engine_dirs, resolve_dirs};
pub use directory::{LOCK_NAME, SpecDir};
pub use manifest::{FILE_PREFIX, MANIFEST_NAME, Manifest, SpecFormat, sha256};
pub use plan::{DesiredSpecs, FileAction, FileStep, SpecPlan, plan};
pub use renumbered::{RenumberedNode, find_renumbered};
pub use writer::{LAST_RUN, WRITER_LOCK, is_daemon_writer, is_package_writer};
