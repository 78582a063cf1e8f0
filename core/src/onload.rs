//! Names of Onload's and of our package's that more than one layer uses.

/// The library that a process has to load to be accelerated; by this bare name the loader finds it in
/// either of its default directories.
pub const LIBRARY: &str = "libonload.so";

/// The one-line file that is mounted at /etc/ld.so.preload; the package brings it.
pub const PRELOAD_FILE: &str = "/usr/share/onload-ctk/ld.so.preload";
