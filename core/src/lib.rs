//! What every part of onload-ctk shares, small and synchronous.
//!
//! There are three groups of modules. Terms: the device classes ([`class`]), PCI addresses
//! ([`pci`]), container ids ([`container_id`]). Contracts between two of onload-ctk's programs: the
//! operator's configuration ([`config`]), what a container requests ([`request`]) and may have
//! ([`policy`]), and the arguments that the generator writes and the hook reads
//! ([`hook_arguments`], [`expect`]). And careful access to files ([`fs`], [`run_dir`],
//! [`mountinfo`], [`elf`]).

pub mod class;
pub mod config;
pub mod container_id;
pub mod elf;
pub mod expect;
pub mod fs;
pub mod hook_arguments;
pub mod mountinfo;
pub mod onload;
pub mod pci;
pub mod policy;
pub mod request;
pub mod run_dir;
pub mod text;
