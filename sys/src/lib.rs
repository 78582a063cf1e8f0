//! The kernel as we speak to it: files opened with care ([`fs`]), processes and their cgroups ([`processes`]), mounts
//! ([`mountinfo`]), netlink ([`netlink`]), PCI addresses ([`pci`]) and device numbers ([`numbers`]), ELF files ([`elf`]); and
//! how a failure is said ([`error`]).

pub mod cpu_list;
pub mod elf;
pub mod error;
pub mod fs;
pub mod mountinfo;
pub mod netlink;
pub mod numbers;
pub mod pci;
pub mod processes;
pub mod text;
