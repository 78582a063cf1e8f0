//! What every part of onload-ctk shares, small and synchronous.
//!
//! Three kinds of things stand here. Words: the classes of devices ([`class`]), PCI addresses ([`pci`]),
//! container ids ([`container_id`]). Contracts between two programs of ours: the operator's
//! configuration ([`config`], [`select`], [`bundle`], [`host_settings`], [`kubernetes_settings`]), what a container asks for ([`request`]) and may have
//! ([`policy`]), the arguments that the generator writes and the hook reads ([`hook_arguments`], [`expect`]), which
//! devices stand for each other ([`pool`]), who has those that only so many may have ([`lease`]), and what cluster engines
//! have reserved for their tasks ([`ticket`]). Interfaces that containers get for themselves ([`netdev`]), and the
//! messages by which the kernel is told about them ([`netlink`]). And
//! careful access to files and processes
//! ([`fs`], [`run_dir`], [`processes`], [`mountinfo`], [`cpu_list`], [`elf`]).

pub mod bundle;
pub mod class;
pub mod config;
pub mod container_id;
pub mod cpu_list;
pub mod elf;
pub mod error;
pub mod expect;
pub mod fs;
pub mod hook_arguments;
pub mod host_settings;
pub mod kubernetes_settings;
pub mod lease;
pub mod mountinfo;
pub mod netdev;
pub mod netlink;
pub mod onload;
pub mod pci;
pub mod policy;
pub mod pool;
pub mod processes;
pub mod request;
pub mod run_dir;
pub mod select;
pub mod text;
pub mod ticket;
pub mod timestamp;
mod wanted;
