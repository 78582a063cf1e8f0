//! A host, and the CDI specifications that describe it. [`host::Host`] reads through one root directory, so that a
//! captured tree is a host like the running one; [`discover`] makes an inventory of it, [`generate`] turns that with
//! the [`pools`] of its devices into specifications without reading the host again, and [`specdir`] puts them where
//! engines read them. [`boot`] makes the host what the operator wants, [`offers`] says what cluster engines may give,
//! and [`watch`] when it may have changed.

pub mod boot;
pub mod devices;
pub mod discover;
pub mod drain;
pub mod drift;
pub mod generate;
pub mod host;
pub mod leases;
pub mod netlink;
pub mod offers;
pub mod pools;
pub mod settings;
pub mod spec_name;
pub mod specdir;
pub mod watch;
