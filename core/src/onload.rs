//! Names from Onload and from this package that more than one layer uses.

/// The library that a process has to load to be accelerated. The loader finds it by this bare name
/// in either of its default directories.
pub const LIBRARY: &str = "libonload.so";

/// The one-line file that is mounted at /etc/ld.so.preload; the package installs it.
pub const PRELOAD_FILE: &str = "/usr/share/onload-ctk/ld.so.preload";
