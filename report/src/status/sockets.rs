//! Which sockets are of the kernel's TCP and UDP. Those that Onload has taken over are in none of these tables under a
//! descriptor of the program.

use std::collections::BTreeSet;

use onload_host::host::Host;

use super::process::directory;

const TABLES: [&str; 4] = ["tcp", "tcp6", "udp", "udp6"];
/// The column of a socket's inode (proc_pid_net(5)).
const INODE: usize = 9;

/// In the network of a process; none where a table cannot be read.
pub(super) fn of_kernel(host: &Host, pid: u32, inodes: &BTreeSet<u64>) -> Option<BTreeSet<u64>> {
    let mut found = BTreeSet::new();
    for table in TABLES {
        let wanted = |line: &[u8]| inode(line).is_some_and(|inode| inodes.contains(&inode));
        let path = directory(pid).join("net").join(table);
        // A kernel without IPv6 has no tables of it.
        let lines = host.lines(&path, &wanted).ok()?.unwrap_or_default();
        found.extend(lines.split(|byte| *byte == b'\n').filter_map(inode));
    }
    Some(found)
}

fn inode(line: &[u8]) -> Option<u64> {
    let mut words = line
        .split(|byte| *byte == b' ')
        .filter(|word| !word.is_empty());
    std::str::from_utf8(words.nth(INODE)?).ok()?.parse().ok()
}
