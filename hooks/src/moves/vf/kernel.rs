//! Reads and changes the settings of a virtual function through the interface of its physical function, in the host's
//! network namespace.

use std::io;
use std::path::{Path, PathBuf};

use onload_lease::users::PCI_FUNCTIONS;
use onload_sys::error::{Context as _, Result, bail};
use onload_sys::netlink::link::Link;
use onload_sys::netlink::vf::{VfChange, VfList, VfSettings};
use onload_sys::pci::PciAddress;

use crate::moves::netns::Netns;

pub(crate) struct VirtualFunction {
    /// The name and index of the interface of the physical function.
    pub pf_name: String,
    pub pf_index: u32,
    /// The number of the function among those of the physical function.
    pub number: u32,
    pub settings: VfSettings,
}

/// Returns `None` if the function is missing or not a virtual function.
pub(in crate::moves) fn find(
    host_netns: &Netns,
    pci: PciAddress,
) -> Result<Option<VirtualFunction>> {
    let Some((physical, number)) = physical_function(Path::new(PCI_FUNCTIONS), pci)? else {
        return Ok(None);
    };
    let links = host_netns.links()?.into_iter();
    // Representors of virtual functions on the card's switch belong to the physical function too.
    for link in links.filter(|link| link.function == Some(physical)) {
        let pf_name = link.display_name();
        let vfs = host_netns
            .virtual_functions(link.index)
            .with_context(|| format!("asking {pf_name} for its virtual functions"))?;
        if let Some(settings) = find_settings(vfs, number, &link)? {
            return Ok(Some(VirtualFunction { pf_name, pf_index: link.index, number, settings }));
        }
    }
    bail!(
        "its physical function {physical} has no interface in this host's network namespace, by which virtual functions are set up; bind it to the kernel's driver, or bring its interface back"
    )
}

pub(in crate::moves) fn apply_change(
    host_netns: &Netns,
    _: PciAddress,
    vf: &VirtualFunction,
    change: VfChange,
) -> io::Result<()> {
    host_netns.set_virtual_function(vf.pf_index, vf.number, change)
}

/// Returns the path of a file in sysfs or /dev.
pub(in crate::moves) fn host_path(path: &str) -> PathBuf {
    path.into()
}

/// Returns the settings of a virtual function in an interface's answer. `None` if the interface does not belong to the
/// physical function.
fn find_settings(mut vfs: VfList, number: u32, link: &Link) -> Result<Option<VfSettings>> {
    let count = vfs.reported.len();
    let settings = vfs.reported.remove(&number);
    if settings.is_none() && u32::try_from(count).is_ok_and(|count| count < vfs.count) {
        bail!(
            "the kernel reports {count} of the {} virtual functions of {}, its physical function, \
             but not number {number}: its answer is truncated with more than about 330; create \
             fewer, or remove the table vf from its pool or section",
            vfs.count,
            link.display_name()
        );
    }
    Ok(settings)
}

/// Returns the physical function of a virtual function, and the virtual function's number
/// (Documentation/ABI/testing/sysfs-bus-pci).
fn physical_function(functions: &Path, pci: PciAddress) -> Result<Option<(PciAddress, u32)>> {
    let function_dir = functions.join(pci.to_string());
    let target = |path: &Path| {
        std::fs::read_link(path).ok()?.file_name()?.to_str()?.parse::<PciAddress>().ok()
    };
    let Some(physical) = target(&function_dir.join("physfn")) else {
        return Ok(None);
    };
    let directory = functions.join(physical.to_string());
    let reading = || format!("reading {directory:?}");
    for entry in std::fs::read_dir(&directory).with_context(reading)? {
        let entry = entry.with_context(reading)?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("virtfn"));
        if let Some(number) = number.and_then(|number| number.parse().ok())
            && target(&entry.path()) == Some(pci)
        {
            return Ok(Some((physical, number)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn pci(text: &str) -> PciAddress {
        text.parse().unwrap()
    }

    #[test]
    fn a_virtual_function_has_a_physical_one_and_a_number_there() {
        let tree = tempfile::tempdir().unwrap();
        let (pf, vf) = ("0000:81:00.0", "0000:81:10.2");
        for name in [pf, vf] {
            std::fs::create_dir(tree.path().join(name)).unwrap();
        }
        assert_eq!(physical_function(tree.path(), pci(vf)).unwrap(), None);
        symlink("../0000:81:00.0", tree.path().join(vf).join("physfn")).unwrap();
        // Between the removal of the one link and of the other.
        assert_eq!(physical_function(tree.path(), pci(vf)).unwrap(), None);
        for (number, target) in [(0, "0000:81:10.0"), (10, vf)] {
            let link = tree.path().join(pf).join(format!("virtfn{number}"));
            symlink(format!("../{target}"), link).unwrap();
        }
        let found = physical_function(tree.path(), pci(vf)).unwrap();
        assert_eq!(found, Some((pci(pf), 10)));
        assert_eq!(physical_function(tree.path(), pci(pf)).unwrap(), None);
        assert_eq!(physical_function(tree.path(), pci("0000:99:00.0")).unwrap(), None);
    }

    #[test]
    fn a_function_that_the_kernel_had_no_room_for_is_not_said_to_lack_its_physical_one() {
        let link = Link { name: b"ens1f0".to_vec(), ..Link::default() };
        let find = |count: u32, number: u32| {
            let vfs =
                VfList { reported: [0, 1].map(|vf| (vf, VfSettings::default())).into(), count };
            find_settings(vfs, number, &link)
        };
        assert!(find(2, 1).unwrap().is_some() && find(400, 1).unwrap().is_some());
        assert!(find(2, 7).unwrap().is_none());
        let error = find(400, 7).unwrap_err().to_string();
        let begin = "the kernel reports 2 of the 400 virtual functions of ens1f0, its physical function, but not number 7: ";
        assert!(error.starts_with(begin), "{error}");
        // One that stands for a virtual function.
        assert!(find_settings(VfList::default(), 0, &link).unwrap().is_none());
    }
}
