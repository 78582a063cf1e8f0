//! A host: what it has, and the CDI specifications that describe it.
//!
//! [`host::Host`] is read through one root directory, so that a captured tree is a host like the
//! running one. [`discover`] produces an [`discover::inventory::Inventory`]; [`generate`] turns
//! that, with the [`pools`] of its devices, into specifications without reading the host again, each with its
//! [`spec_name`]; [`specdir`] puts them where engines read them. [`leases`] tells who has a device now,
//! and [`bundles`] where engines keep containers.
//! [`boot`] makes the host itself what the operator wants it to be. [`offers`] says what cluster engines may
//! give out of all that, and [`watch`] when it may have changed. [`drift`] compares what is on disk with what would
//! be written, [`doctor`] says what is wrong with all of it, [`metrics`] counts it, and
//! [`status`] says how containers do with it. [`topology`] shows where all of it is.

pub mod boot;
pub mod bundles;
pub mod discover;
pub mod doctor;
pub mod drift;
pub mod generate;
pub mod host;
pub mod leases;
pub mod metrics;
pub(crate) mod netlink;
pub mod offers;
pub(crate) mod pci_link;
pub mod pools;
pub mod settings;
pub mod spec_name;
pub mod specdir;
pub mod status;
pub mod topology;
pub mod watch;
