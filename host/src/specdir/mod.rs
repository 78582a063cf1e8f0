//! The directory for specifications, which a reader never sees with half a file.

mod directory;
mod engine_dirs;
mod manifest;
mod plan;
mod read;
mod renumbered;
mod writer;

/// Where specifications of the host as it is are written.
pub const OUTPUT_DIR: &str = "/var/run/cdi";
/// The same by either of its names. An engine that looks elsewhere does not find them.
pub const SPEC_DIRS: [&str; 2] = [OUTPUT_DIR, "/run/cdi"];

pub use directory::{LOCK_NAME, SpecDir};
pub use engine_dirs::{engine_dirs, resolve_dirs};
pub use manifest::{FILE_PREFIX, MANIFEST_NAME, Manifest, SpecFormat, sha256};
pub use plan::{DesiredSpecs, FileAction, FileStep, SpecPlan, plan};
pub use renumbered::{RenumberedNode, find_renumbered};
pub use writer::{LAST_RUN, WRITER_LOCK, is_daemon_writer, is_package_writer};
