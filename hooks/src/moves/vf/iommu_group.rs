//! The IOMMU group of a virtual function. A container that opens the group has all functions in it.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use onload_core::device_id::DeviceId;
use onload_core::vf_config::OWN_GROUPS;
use onload_lease::users::{
    FUNCTIONS, GROUPS, PCI_FUNCTIONS, describe_process, find_busy_group, find_group_user, try_open,
};
use onload_lease::{Leases, SavedState};
use onload_sys::error::{Result, bail};
use onload_sys::pci::PciAddress;
use onload_sys::processes::Processes;
use rustix::io::Errno;

use super::access::host_path;
use super::settings::{EndedSearch, VfAccess};
use crate::decide::sysfs::list_names;
use crate::moves::lifecycle::{DYING_TIMEOUT, PAUSE};
use crate::record::lease::START_SEARCH_TIMEOUT;

impl VfAccess {
    /// Searches for users of all functions that have to return, without a lock, until the deadline.
    pub(in crate::moves) fn search_all(mut self, leases: &Leases) -> Result<Self> {
        for entry in leases.list()?.into_iter().filter(|entry| entry.is_returning) {
            let record = entry.lease.as_ref().ok().and_then(|lease| lease.moved.as_ref());
            if let Some(SavedState::Function(function)) = record.map(|record| &record.saved) {
                let user = self.wait_until_unused(function.pci).map_err(|error| error.to_string());
                self.searches.push(EndedSearch { entry, user });
            }
        }
        // Any further search holds a lock.
        self.search_deadline = None;
        Ok(self)
    }

    /// Returns the result of the completed search if the lease has not changed, or of a short search.
    pub(super) fn find_last_user(
        &self,
        leases: &Leases,
        device: &DeviceId,
        pci: PciAddress,
    ) -> io::Result<Option<String>> {
        if let Some(search) = self.searches.iter().find(|search| search.entry.device == *device)
            && leases.list().is_ok_and(|entries| entries.contains(&search.entry))
        {
            return search.user.clone().map_err(|text| io::Error::new(ErrorKind::TimedOut, text));
        }
        self.wait_until_unused(pci)
    }

    /// Finds the process that has a function open although its container has exited: descriptors can be passed on. A process
    /// that was killed closes late, so this waits. Fails if the search of /proc timed out.
    pub(super) fn wait_until_unused(&self, pci: PciAddress) -> io::Result<Option<String>> {
        let deadline = self.search_deadline.unwrap_or(Instant::now() + START_SEARCH_TIMEOUT);
        let started = Instant::now();
        // The kernel answers at once, while the search for the process that has a busy group open may use up the time.
        while find_busy_group(&groups(pci)).is_some() && started.elapsed() < DYING_TIMEOUT {
            thread::sleep(PAUSE);
        }
        let mut user = find_user(pci, deadline)?;
        while user.is_some() && started.elapsed() < DYING_TIMEOUT {
            thread::sleep(PAUSE);
            match find_user(pci, deadline) {
                Ok(found) => user = found,
                // The search timed out for a process that had it open a moment ago.
                Err(_) => break,
            }
        }
        Ok(user)
    }
}

/// Fails if the group has another function, which the container would get without its being set up.
pub(super) fn check_alone(pci: PciAddress) -> Result<()> {
    if let Some(other) = find_other_in_group(&host_path(PCI_FUNCTIONS), pci) {
        bail!(
            "{pci} shares its IOMMU group with {other}, which would be passed with it without \
             these settings; remove the table vf of its pool, or {OWN_GROUPS}"
        );
    }
    Ok(())
}

/// Returns the nodes of a function's group, with and without an IOMMU.
fn groups(pci: PciAddress) -> Vec<PathBuf> {
    let function_dir = host_path(PCI_FUNCTIONS).join(pci.to_string());
    let link = std::fs::read_link(function_dir.join("iommu_group")).ok();
    let Some(number) = link.as_deref().and_then(Path::file_name).and_then(OsStr::to_str) else {
        return Vec::new();
    };
    let nodes = host_path(GROUPS);
    vec![nodes.join(number), nodes.join(format!("noiommu-{number}"))]
}

/// Finds the user of a function. Opening a group that is in use fails (drivers/vfio/group.c,
/// `vfio_group_fops_open`), whether a process has the group open or has bound a function's node. A function's node
/// that is open and not yet bound does not make the group busy and can be opened any number of times, so only /proc
/// shows it.
fn find_user(pci: PciAddress, deadline: Instant) -> io::Result<Option<String>> {
    let function_dir = host_path(PCI_FUNCTIONS).join(pci.to_string());
    let (processes, groups) = (Processes::default(), groups(pci));
    if let Some(user) = find_group_user(&groups, &processes, deadline) {
        return Ok(Some(user));
    }
    // Without CAP_SYS_RAWIO, opening a group without IOMMU does not show whether it is in use.
    let mut nodes: Vec<PathBuf> =
        groups.into_iter().filter(|group| try_open(group) == Err(Errno::PERM)).collect();
    for entry in std::fs::read_dir(function_dir.join("vfio-dev")).into_iter().flatten() {
        nodes.push(host_path(FUNCTIONS).join(entry?.file_name()));
    }
    for node in nodes {
        if let Some(opener) = processes.find_opener(&node, deadline)? {
            return Ok(Some(describe_process(opener)));
        }
    }
    Ok(None)
}
/// Returns another function of the group that is a virtual function or bound to vfio.
fn find_other_in_group(functions: &Path, pci: PciAddress) -> Option<PciAddress> {
    let group = functions.join(pci.to_string()).join("iommu_group/devices");
    list_names(&group).filter_map(|name| name.parse().ok()).find(|other: &PciAddress| {
        let function_dir = functions.join(other.to_string());
        let driver = std::fs::read_link(function_dir.join("driver")).unwrap_or_default();
        let name = driver.file_name().unwrap_or_default();
        let is_passed = name.as_encoded_bytes().starts_with(b"vfio")
            || function_dir.join("physfn").is_symlink();
        *other != pci && is_passed
    })
}

#[cfg(test)]
mod tests {
    use std::fs::create_dir_all;
    use std::os::unix::fs::symlink;
    use std::rc::Rc;

    use onload_sys::netlink::vf::{VfChange, VfSettings};

    use super::*;
    use crate::moves::stand_ins::{VfStandIns, install_functions};

    impl VfStandIns for tempfile::TempDir {
        fn root(&self) -> &Path {
            self.path()
        }

        fn find(&self, _: PciAddress) -> Result<Option<(String, VfSettings)>> {
            Ok(None)
        }

        fn apply_change(&self, _: PciAddress, _: VfChange) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_function_is_set_up_only_where_no_other_comes_with_it() {
        let tree = Rc::new(tempfile::tempdir().unwrap());
        let sys = tree.path().join(PCI_FUNCTIONS.trim_start_matches('/'));
        let pci: PciAddress = "0000:81:10.0".parse().unwrap();
        let check = || {
            install_functions(tree.clone());
            check_alone(pci).map_err(|error| error.to_string())
        };
        assert_eq!(check(), Ok(()), "without an IOMMU");
        let members = sys.join("0000:81:10.0/iommu_group/devices");
        for member in ["0000:81:10.0", "0000:80:01.0", "0000:81:10.2"] {
            create_dir_all(members.join(member)).unwrap();
            create_dir_all(sys.join(member)).unwrap();
        }
        symlink("../0000:81:00.0", sys.join("0000:81:10.0/physfn")).unwrap();
        symlink("../drivers/pcieport", sys.join("0000:80:01.0/driver")).unwrap();
        assert_eq!(check(), Ok(()), "with a bridge");
        for (link, to) in [("physfn", "../0000:81:00.0"), ("driver", "../drivers/vfio-pci")] {
            let link = sys.join("0000:81:10.2").join(link);
            symlink(to, &link).unwrap();
            let refused = check().unwrap_err();
            let says = "0000:81:10.0 shares its IOMMU group with 0000:81:10.2, ";
            assert!(refused.starts_with(says), "{refused}");
            std::fs::remove_file(link).unwrap();
        }
    }
}
