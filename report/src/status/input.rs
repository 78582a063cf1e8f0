//! What a look at a host is made with.

use std::path::Path;

use onload_core::lease::LeaseEntry;
use onload_host::devices::inventory::Inventory;
use onload_host::host::Host;
use onload_host::netlink::netns_links::NetnsLinks;

use super::process::proc_dir;

/// Reads so many bytes of a file of a process, which may make its reader wait for good: such a file is not
/// known.
pub type GuardedRead<'g> = &'g dyn Fn(&Path, usize) -> Option<Vec<u8>>;

pub type NetworkLookup<'n> = &'n dyn Fn(u32) -> Option<NetnsLinks>;

#[derive(Clone, Copy)]
pub struct StatusInput<'l> {
    pub host: &'l Host,
    pub inventory: &'l Inventory,
    /// Its leases; none where they are not ours to see.
    pub leases: Option<&'l [LeaseEntry]>,
    pub guarded: GuardedRead<'l>,
    pub networks: NetworkLookup<'l>,
}

impl StatusInput<'_> {
    /// A file of a process, read so.
    pub(super) fn read_guarded(&self, pid: u32, name: &str, max: usize) -> Option<Vec<u8>> {
        let path = proc_dir(pid).join(name);
        (self.guarded)(&self.host.outside_path(&path), max)
    }
}
