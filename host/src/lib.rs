//! A host and its CDI specifications. [`host::Host`] reads through one root directory, so that a captured tree works
//! like the running host; [`discover`] creates an inventory, [`generate`] turns it and the [`pools`] of its devices
//! into specifications without reading the host again, and [`specdir`] writes them where engines read them. [`boot`]
//! sets the host up by the configuration, [`offers`] lists the devices for cluster engines, and [`watch`] waits for
//! changes.

pub mod boot;
pub mod devices;
pub mod discover;
pub mod drain;
pub mod drift;
mod engine_dirs;
pub mod generate;
pub mod host;
pub mod leases;
pub mod netlink;
pub mod offers;
pub mod pools;
pub mod settings;
pub mod spec_index;
pub mod spec_name;
pub mod specdir;
pub mod watch;
