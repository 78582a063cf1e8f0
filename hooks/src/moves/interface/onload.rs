//! Interfaces that Onload uses by AF_XDP. An interface is registered in the network namespace where it is (Onload,
//! `src/driver/linux_resource/sysfs.c`), and stays registered when it moves.
//!
//! Onload attaches its XDP program directly to the interface's driver (`xdp_set_link` in its `src/lib/efhw/af_xdp.c`).
//! Netlink does not report that program, so removing what a container attached never removes Onload's. But a container
//! with CAP_BPF and CAP_NET_ADMIN that attaches a program replaces Onload's in the driver, and the kernel frees that one.
//! It cannot be attached again: Onload neither registers an interface twice (EALREADY) nor unregisters one that it uses
//! (EBUSY). So the ID of Onload's program on an interface is saved, and an interface that returns without it is not given
//! to the next container as an accelerated one. The ID is that of the program which appeared when the interface was
//! registered here. If the host registered it, interfaces and programs are paired by their order of creation, if there
//! are equally many.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::SystemTime;

use onload_core::onload::STACKS;
use onload_lease::{OnloadRegistration, SavedInterface};
use onload_sys::error::{Context as _, Error, Result};
use onload_sys::{bail, bpf};
use rustix::io::Errno;

use crate::moves::netns::Netns;

const REGISTER: &str = "/sys/module/sfc_resource/afxdp/register";
/// Onload's list of interfaces, in directories `NNN_<interface>` (Onload, `src/lib/efhw/debugfs_nic.c`), which keep the
/// names at registration.
const NIC_LIST: &str = "/sys/kernel/debug/sfc_resource/nics";
/// Files in these directories: the current name, the hardware address at registration, and the kind, which ends in
/// `AF_XDP`.
const NAME: &str = "net_dev";
const ADDRESS: &str = "mac_addr";
const KIND: &str = "devtype";
const AF_XDP: &str = "AF_XDP";
const PROGRAM: &[u8] = b"xdpsock";

/// An interface that Onload uses by AF_XDP, in any namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AfXdpInterface {
    name: String,
    address: String,
    /// Time of registration in nanoseconds since 1970.
    since: u64,
}

impl AfXdpInterface {
    /// Compares addresses too, since a container may give its own interface the name of another one.
    fn matches(&self, saved: &SavedInterface) -> bool {
        let addresses = [Some(&saved.mac), saved.permanent_mac.as_ref()];
        self.name == saved.name && addresses.contains(&Some(&self.address))
    }
}

/// Registers an interface of a network namespace unless it is registered. Returns its registration if Onload reports
/// it.
pub(super) fn register(
    netns: &Netns,
    saved: &SavedInterface,
) -> Result<Option<OnloadRegistration>> {
    let failed = || {
        format!(
            "registering interface {} with Onload for AF_XDP; the kernel's log (dmesg) may say more, and \
             \"onload-ctk doctor\" whether Onload works",
            saved.name
        )
    };
    let write = || {
        let mut file = fs::OpenOptions::new().write(true).open(REGISTER)?;
        // The kernel treats one write as one value.
        file.write_all(format!("{}\n", saved.name).as_bytes())
    };
    let before = bpf::interface::find_xdp_programs(PROGRAM);
    match netns.run_inside(write) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::ALREADY) => {
            return Ok(read_registration(saved));
        }
        written => written.with_context(failed)?,
    }
    // The write succeeds before Onload has tried, and only the kernel log has the result.
    let Some(interfaces) = list_interfaces() else {
        return Ok(None);
    };
    let interface = interfaces
        .into_iter()
        .find(|interface| interface.matches(saved))
        .ok_or_else(|| Error::new(failed()))?;
    Ok(Some(OnloadRegistration {
        since: interface.since,
        program: find_added(&before, &bpf::interface::find_xdp_programs(PROGRAM)),
    }))
}

fn find_added(before: &BTreeSet<u32>, after: &BTreeSet<u32>) -> Option<u32> {
    let mut added = after.difference(before);
    added.next().copied().filter(|_| added.next().is_none())
}

pub(super) fn read_registration(saved: &SavedInterface) -> Option<OnloadRegistration> {
    let interfaces = list_interfaces()?;
    let interface = interfaces.iter().find(|interface| interface.matches(saved))?;
    Some(OnloadRegistration {
        since: interface.since,
        program: find_program(interface, &interfaces, &bpf::interface::find_xdp_programs(PROGRAM)),
    })
}

/// Returns the ID of Onload's program on an interface. The kernel numbers programs in the order of loading.
fn find_program(
    interface: &AfXdpInterface,
    interfaces: &[AfXdpInterface],
    programs: &BTreeSet<u32>,
) -> Option<u32> {
    if interfaces.len() != programs.len()
        || interfaces.iter().filter(|other| other.since == interface.since).count() != 1
    {
        return None;
    }
    let before = interfaces.iter().filter(|other| other.since < interface.since).count();
    programs.iter().nth(before).copied()
}

/// Fails if an interface has returned without Onload's program. Registers it again if Onload's modules were reloaded.
pub(super) fn restore(host_netns: &Netns, saved: &SavedInterface) -> Result<()> {
    let (Some(registration), Some(interfaces)) = (&saved.onload, list_interfaces()) else {
        return Ok(());
    };
    match interfaces.iter().find(|interface| interface.matches(saved)) {
        // Unloading the module ends its registrations.
        None if Path::new(REGISTER).exists() => register(host_netns, saved).map(drop),
        Some(now)
            if is_missing(registration, now.since, &bpf::interface::find_xdp_programs(PROGRAM)) =>
        {
            bail!(
                "interface {} ({}) is back, but Onload does not reach it: another XDP program replaced Onload's in the \
                 container; stop what has stacks of Onload, run `onload_tool reload`, then \"onload-ctk lease restore\", \
                 which registers it again (\"onload-ctk doctor\" lists all commands)",
                saved.name,
                saved.pci
            )
        }
        _ => Ok(()),
    }
}

/// Returns whether Onload's program is gone while the registration remains.
fn is_missing(registration: &OnloadRegistration, since: u64, programs: &BTreeSet<u32>) -> bool {
    registration.since == since
        && registration.program.is_some_and(|program| !programs.contains(&program))
}

/// Returns whether Onload has a stack, orphaned ones included, and may have the interface in its list. A file that cannot
/// be read counts as yes.
pub(super) fn may_have_stack(interface: &str) -> bool {
    may_have_stack_in(Path::new(STACKS), Path::new(NIC_LIST), interface)
}

fn may_have_stack_in(stacks: &Path, nic_list: &Path, interface: &str) -> bool {
    match fs::read_to_string(stacks) {
        Ok(stacks) if stacks.trim().is_empty() => return false,
        // The driver is not loaded.
        Err(_) if !stacks.parent().is_some_and(Path::exists) => return false,
        _ => {}
    }
    let Ok(entries) = fs::read_dir(nic_list) else {
        return true;
    };
    entries.flatten().any(|entry| {
        let name = fs::read_to_string(entry.path().join(NAME));
        name.map_or(true, |name| name.trim_end() == interface)
    })
}

fn list_interfaces() -> Option<Vec<AfXdpInterface>> {
    list_interfaces_in(Path::new(NIC_LIST))
}

fn list_interfaces_in(dir: &Path) -> Option<Vec<AfXdpInterface>> {
    let attribute = |entry: &fs::DirEntry, name: &str| {
        let text = fs::read_to_string(entry.path().join(name)).ok()?;
        Some(text.trim_end().to_owned())
    };
    let read = |entry: &fs::DirEntry| {
        let kind = attribute(entry, KIND)?;
        let since =
            entry.metadata().ok()?.modified().ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        kind.ends_with(AF_XDP).then_some(AfXdpInterface {
            name: attribute(entry, NAME)?,
            address: attribute(entry, ADDRESS)?,
            since: since.as_nanos().try_into().ok()?,
        })
    };
    let entries = fs::read_dir(dir).ok()?;
    Some(entries.flatten().filter_map(|entry| read(&entry)).collect())
}

#[cfg(test)]
mod tests {
    use onload_sys::netlink::link::Link;

    use super::*;
    use crate::moves::interface::saved;

    fn listed(name: &str, address: &str, since: u64) -> AfXdpInterface {
        let (name, address) = (name.to_owned(), address.to_owned());
        AfXdpInterface { name, address, since }
    }

    fn set(programs: &[u32]) -> BTreeSet<u32> {
        programs.iter().copied().collect()
    }

    #[test]
    fn an_interface_is_known_by_the_name_that_it_has_now() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(list_interfaces_in(&dir.path().join("nics")), None);
        for (entry, name, kind) in
            [("000_ens1", "eth7", "4:0:0 => AF_XDP"), ("001_ens2", "ens2", "1:41:2 => EF10")]
        {
            let entry = dir.path().join(entry);
            fs::create_dir(&entry).unwrap();
            fs::write(entry.join(NAME), format!("{name}\n")).unwrap();
            fs::write(entry.join(ADDRESS), "02:00:00:00:10:01\n").unwrap();
            fs::write(entry.join(KIND), format!("{kind}\n")).unwrap();
        }
        let found = list_interfaces_in(dir.path()).unwrap();
        let since = found[0].since;
        assert_ne!(since, 0);
        assert_eq!(found, [listed("eth7", "02:00:00:00:10:01", since)]);
    }

    #[test]
    fn an_interface_has_a_stack_if_any_exists_and_nothing_says_that_it_is_another_interface_s() {
        let dir = tempfile::tempdir().unwrap();
        let (stacks, nics) = (dir.path().join("onload/stacks"), dir.path().join("nics"));
        let may_have = |interface| may_have_stack_in(&stacks, &nics, interface);
        assert!(!may_have("ens1"), "without Onload");
        fs::create_dir(dir.path().join("onload")).unwrap();
        assert!(may_have("ens1"), "without the file");
        fs::write(&stacks, "\n").unwrap();
        assert!(!may_have("ens1"), "without stacks");
        // That of a program that has ended.
        fs::write(&stacks, "0: 0 0 90 73 0 4 2 0 0 0 0 58\n").unwrap();
        assert!(may_have("ens1"), "without the list");
        fs::create_dir_all(nics.join("000_ens1")).unwrap();
        assert!(may_have("ens2"), "without a name in the list");
        fs::write(nics.join("000_ens1").join(NAME), "ens1\n").unwrap();
        assert_eq!(["ens1", "ens2"].map(may_have), [true, false]);
        fs::remove_file(&stacks).unwrap();
        fs::create_dir(&stacks).unwrap();
        assert!(may_have("ens1"), "stacks that cannot be read");
    }

    #[test]
    fn an_interface_that_has_the_name_of_another_is_not_that_one() {
        let link = Link {
            name: b"ens1v0".to_vec(),
            address: vec![2, 0, 0, 0, 0, 1],
            permanent_address: vec![2, 0, 0, 0, 0, 2],
            ..Link::default()
        };
        let facts = saved::save_interface(&link, "0000:03:10.0".parse().unwrap());
        for (name, address, is_it) in [
            ("ens1v0", "02:00:00:00:00:01", true),
            ("ens1v0", "02:00:00:00:00:02", true),
            ("ens1v0", "02:00:00:00:00:03", false),
            ("ens1v1", "02:00:00:00:00:01", false),
        ] {
            let one = listed(name, address, 0);
            assert_eq!(one.matches(&facts), is_it, "{one:?}");
        }
    }

    #[test]
    fn the_program_of_an_interface_is_kept_only_where_it_is_known() {
        assert_eq!(find_added(&set(&[7]), &set(&[7, 9])), Some(9));
        assert_eq!(find_added(&set(&[7]), &set(&[7])), None);
        // Another process loaded one at that moment.
        assert_eq!(find_added(&set(&[7]), &set(&[7, 9, 10])), None);

        let [first, second] = [listed("a", "", 20), listed("b", "", 10)];
        let both = [first.clone(), second.clone()];
        let find = |own, programs: &[u32]| find_program(own, &both, &set(programs));
        assert_eq!((find(&first, &[7, 9]), find(&second, &[7, 9])), (Some(9), Some(7)));
        // One belongs to another process, or an interface has none.
        assert_eq!((find(&first, &[7, 9, 11]), find(&first, &[9])), (None, None));
        let twins = [first.clone(), listed("c", "", 20)];
        assert_eq!(find_program(&first, &twins, &set(&[7, 9])), None);
    }

    #[test]
    fn a_program_is_missed_on_the_interface_that_had_it_and_while_its_registration_stands() {
        let kept = |program| OnloadRegistration { since: 10, program };
        assert!(is_missing(&kept(Some(7)), 10, &set(&[])));
        // That of another one, or one that a container calls as Onload's is called, does not stand in for it.
        assert!(is_missing(&kept(Some(7)), 10, &set(&[8, 9])));
        assert!(!is_missing(&kept(Some(7)), 10, &set(&[7])));
        assert!(!is_missing(&kept(None), 10, &set(&[])), "not known");
        assert!(!is_missing(&kept(Some(7)), 11, &set(&[])), "the modules were reloaded");
    }
}
