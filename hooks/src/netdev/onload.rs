//! Interfaces that Onload reaches by AF_XDP: they are registered in the network namespace where they are (Onload,
//! `src/driver/linux_resource/sysfs.c`), and stay it wherever they move.
//!
//! Onload gives its XDP program to the interface's driver itself (`xdp_set_link` in its `src/lib/efhw/af_xdp.c`), so that
//! the kernel's own records, and with them netlink, know nothing of it. What the way back detaches is therefore never
//! Onload's, and nothing that a container attaches stays. But a container with CAP_BPF and CAP_NET_ADMIN that attaches
//! one takes Onload's out of the driver, and the kernel ends that program. It cannot be put back: Onload neither registers
//! an interface twice (EALREADY) nor lets go of one that it has (EBUSY). So the numbers of Onload's programs are kept,
//! and an interface that came back without its own is not given to the next container as an accelerated one.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use onload_core::lease::InterfaceFacts;
use rustix::io::Errno;

use super::error::NetdevError;
use super::programs;
use crate::netns::Netns;

/// Where interfaces are registered.
const REGISTER: &str = "/sys/module/sfc_resource/afxdp/register";
/// Where they are listed, in directories `NNN_<interface>` (Onload, `src/lib/efhw/debugfs_nic.c`). The names of these
/// are from when they were registered.
const LISTED: &str = "/sys/kernel/debug/sfc_resource/nics";
/// What is said of them there: the name of today, and a kind that ends in this word.
const NAME: &str = "net_dev";
const KIND: &str = "devtype";
const AF_XDP: &str = "AF_XDP";
/// What Onload calls its program.
const PROGRAM: &[u8] = b"xdpsock";

/// Registers an interface of a network namespace, if it is not.
///
/// # Errors
/// [`NetdevError::NotRegistered`].
pub(super) fn register(netns: &Netns, name: &[u8]) -> Result<(), NetdevError> {
    let failed = |source: Option<io::Error>| NetdevError::NotRegistered {
        name: String::from_utf8_lossy(name).into_owned(),
        source,
    };
    let write = || {
        let mut file = fs::OpenOptions::new().write(true).open(REGISTER)?;
        // The kernel takes one write as one value.
        file.write_all(&[name, b"\n"].concat())
    };
    match netns.inside(write) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::ALREADY) => {}
        told => told.map_err(|error| failed(Some(error)))?,
    }
    // The kernel answers before Onload has tried, and only its log has what came of it.
    match is_registered(name) {
        Some(false) => Err(failed(None)),
        _ => Ok(()),
    }
}

/// Whether an interface of that name is registered; none where that is not told.
fn is_registered(name: &[u8]) -> Option<bool> {
    let listed = listed()?;
    Some(listed.iter().any(|own| own.as_bytes() == name))
}

/// The numbers of Onload's programs, for an interface of that name that is registered.
pub(super) fn programs_beside(name: &[u8]) -> Option<Box<[u32]>> {
    let is_registered = is_registered(name) == Some(true);
    is_registered.then(|| programs::named(PROGRAM).into_iter().collect())
}

/// That an interface that is back is registered as it was. After Onload's modules were loaded anew it is registered again.
///
/// # Errors
/// [`NetdevError::NotRegistered`], and [`NetdevError::WithoutProgram`] where a container took Onload's program from it.
pub(super) fn restore(home: &Netns, facts: &InterfaceFacts) -> Result<(), NetdevError> {
    let Some(kept) = &facts.onload_programs else {
        return Ok(());
    };
    let name = facts.name.as_bytes();
    match is_registered(name) {
        // A registration ends with the module.
        Some(false) if Path::new(REGISTER).exists() => return register(home, name),
        Some(true) => {}
        _ => return Ok(()),
    }
    let count = listed().unwrap_or_default().len();
    match is_missing(kept, &programs::named(PROGRAM), count) {
        true => Err(NetdevError::WithoutProgram {
            name: facts.name.clone(),
            pci: facts.pci,
        }),
        false => Ok(()),
    }
}

/// Whether one of Onload's programs has gone while all its interfaces stayed: each has one. After the modules were loaded
/// anew all are others, and each interface has its own again.
fn is_missing(kept: &[u32], now: &BTreeSet<u32>, interfaces: usize) -> bool {
    now.len() < interfaces && kept.iter().any(|id| !now.contains(id))
}

/// The names of the interfaces that Onload reaches by AF_XDP, wherever they are.
fn listed() -> Option<Vec<String>> {
    listed_in(Path::new(LISTED))
}

fn listed_in(dir: &Path) -> Option<Vec<String>> {
    let attribute = |entry: &fs::DirEntry, name: &str| {
        let text = fs::read_to_string(entry.path().join(name)).ok()?;
        Some(text.trim_end().to_owned())
    };
    let name = |entry: &fs::DirEntry| {
        let kind = attribute(entry, KIND)?;
        let name = attribute(entry, NAME)?;
        kind.ends_with(AF_XDP).then_some(name)
    };
    let entries = fs::read_dir(dir).ok()?;
    Some(entries.flatten().filter_map(|entry| name(&entry)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_known_by_the_name_that_it_has_now() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(listed_in(&dir.path().join("nics")), None);
        for (entry, name, kind) in [
            ("000_ens1", "eth7", "4:0:0 => AF_XDP"),
            ("001_ens2", "ens2", "1:41:2 => EF10"),
        ] {
            let entry = dir.path().join(entry);
            fs::create_dir(&entry).unwrap();
            fs::write(entry.join(NAME), format!("{name}\n")).unwrap();
            fs::write(entry.join(KIND), format!("{kind}\n")).unwrap();
        }
        assert_eq!(listed_in(dir.path()), Some(vec!["eth7".to_owned()]));
    }

    #[test]
    fn a_program_of_onload_is_missed_only_while_an_interface_has_none() {
        let is_missing = |kept: &[u32], now: &[u32], interfaces| {
            is_missing(kept, &now.iter().copied().collect(), interfaces)
        };
        assert!(is_missing(&[7], &[], 1), "a container replaced it");
        assert!(is_missing(&[7, 9], &[9], 2));
        // One that a container calls as Onload's is called does not stand in for it.
        assert!(!is_missing(&[7], &[7, 8], 1));
        assert!(!is_missing(&[7], &[7], 1));
        assert!(!is_missing(&[7], &[12], 1), "the modules were loaded anew");
        assert!(
            !is_missing(&[7, 9], &[9], 1),
            "another one went with its interface"
        );
        // Those of other interfaces were missing before.
        assert!(!is_missing(&[9], &[9], 2));
    }
}
