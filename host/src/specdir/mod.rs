//! The directory for specifications: which files there onload-ctk wrote, what has to change, and
//! how to change it so that a reader never sees half a file.

mod directory;
mod engine_dirs;
mod manifest;
mod plan;
mod read;
mod renumbered;

pub use directory::{LOCK_NAME, SpecDir, SpecDirError};
pub use engine_dirs::{engine_dirs, given_or_engine_dirs};
pub use manifest::{FILE_PREFIX, Format, MANIFEST_NAME, Manifest};
pub use plan::{Action, Plan, Step, Wanted, plan};
pub use renumbered::{Renumbered, renumbered};
