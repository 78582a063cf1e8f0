//! The kernel as we speak to it: files opened with care ([`fs`]), processes and their cgroups ([`processes`]), mounts
//! ([`mountinfo`], [`mount_api`]), network interfaces and their namespaces ([`netlink`], [`ethtool`], [`netns`]), programs that
//! the kernel runs ([`bpf`]), PCI addresses ([`pci`]) and device device_number ([`device_number`]), ELF files ([`elf`]) and where
//! the loader finds them ([`ld_cache`]); and how a failure is said ([`mod@error`]).

pub mod bpf;
pub mod child;
pub mod cpu_list;
pub mod device_number;
pub mod elf;
pub mod error;
pub mod ethtool;
pub mod fs;
pub mod ld_cache;
pub mod mount_api;
pub mod mountinfo;
pub mod netlink;
pub mod netns;
pub mod pci;
pub mod processes;
pub mod text;
