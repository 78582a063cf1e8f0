//! The input for reading a host's containers.

use std::io::Write;

use onload_host::devices::inventory::Inventory;
use onload_host::host::Host;
use onload_host::netlink::netns_links::NetnsLinks;
use onload_lease::LeaseEntry;

pub type NetworkLookup<'n> = &'n dyn Fn(u32) -> Option<NetnsLinks>;

/// Returns whether the kernel has a BPF program with this ID; `None` if unknown.
pub type ProgramLookup<'p> = &'p dyn Fn(u32) -> Option<bool>;

#[derive(Clone, Copy)]
pub struct StatusInput<'l> {
    pub host: &'l Host,
    pub inventory: &'l Inventory,
    /// Its leases; `None` if this user may not read them.
    pub leases: Option<&'l [LeaseEntry]>,
    pub networks: NetworkLookup<'l>,
    pub has_program: ProgramLookup<'l>,
}

/// A container as the processes that examine it are named.
#[derive(Clone, Copy, Debug)]
pub struct ExaminedContainer<'c> {
    /// Unique on this host.
    pub key: &'c str,
    /// Whether an engine of root's made it: users may make any number of others.
    pub is_of_root: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExaminationDepth {
    /// The processes in /proc. Reading it can be interrupted.
    Processes,
    /// Also file systems and the memory of programs, which may never answer.
    Everything,
}

/// Writes what it finds.
pub type Examination<'e> = &'e mut dyn FnMut(ExaminationDepth, &mut dyn Write);
/// Runs an examination, and returns what it has written by the time that the caller will not wait longer.
pub type RunExamination<'r> = &'r mut dyn FnMut(ExaminedContainer<'_>, Examination<'_>) -> Vec<u8>;
