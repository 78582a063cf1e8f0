//! The IOMMU group of a virtual function. A container that opens the group has all functions in it.

use std::io;
use std::path::Path;
use std::thread;
use std::time::Instant;

use onload_core::device_id::DeviceId;
use onload_core::vf_config::OWN_GROUPS;
use onload_lease::users::{PCI_FUNCTIONS, find_user, is_group_busy};
use onload_sys::error::{Result, bail};
use onload_sys::pci::PciAddress;
use onload_sys::processes::Processes;

use super::access::host_path;
use crate::decide::sysfs::list_names;
use crate::moves::lifecycle::{DYING_TIMEOUT, PAUSE};

/// Finds the process that has a function open although its container has exited: descriptors can be passed on. A process
/// that was killed closes late, so this waits. Fails if the search of /proc timed out.
pub(in crate::moves) fn wait_until_unused(
    device: &DeviceId,
    deadline: Instant,
) -> io::Result<Option<String>> {
    let started = Instant::now();
    let root = host_path("/");
    // The kernel answers at once, while the search for the process that has a busy group open may use up the time.
    while is_group_busy(&root, device) && started.elapsed() < DYING_TIMEOUT {
        thread::sleep(PAUSE);
    }
    let mut user = find_user(&root, device, &Processes::default(), deadline)?;
    while user.is_some() && started.elapsed() < DYING_TIMEOUT {
        thread::sleep(PAUSE);
        match find_user(&root, device, &Processes::default(), deadline) {
            Ok(found) => user = found,
            // The search timed out for a process that had it open a moment ago.
            Err(_) => break,
        }
    }
    Ok(user)
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
