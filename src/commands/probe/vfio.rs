//! A PCI function that vfio gives away, by the node of its group and by its own.

use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::io::Errno;

use super::files::open;
use super::system;

/// VFIO_NOIOMMU_IOMMU, VFIO_TYPE1v2_IOMMU and VFIO_TYPE1_IOMMU.
const NOIOMMU: usize = 8;
const IOMMUS: [usize; 2] = [3, 1];
const NODES: &str = "/dev/vfio";
const IOMMUFD: &str = "/dev/iommu";

/// By one after the other: a device that is open by one node is busy by the other.
pub(super) fn use_device(address: &str) -> Result<String> {
    let function = Path::new("/sys/bus/pci/devices").join(address);
    let mut reports = Vec::new();
    if let Some((node, kinds)) = find_group_node(&function, Path::new(NODES))? {
        reports.push(use_by_group(address, &node, kinds)?);
    }
    if let Some(node) = find_cdev(&function, Path::new(NODES)) {
        reports.push(use_by_cdev(address, &node)?);
    }
    if reports.is_empty() {
        bail!("looking for the vfio node of {address}: {NODES} in the container is missing");
    }
    Ok(reports.join("; "))
}

/// The node of the group, if the container has it, and the kinds of IOMMU that it may have.
fn find_group_node(function: &Path, nodes: &Path) -> Result<Option<(PathBuf, &'static [usize])>> {
    let link = function.join("iommu_group");
    let group = fs::read_link(&link)
        .with_context(|| format!("reading {}, the link to its IOMMU group", link.display()))?;
    let number = group.file_name().unwrap_or_default().to_string_lossy();
    let candidates = [
        (nodes.join(format!("noiommu-{number}")), &[NOIOMMU][..]),
        (nodes.join(&*number), &IOMMUS[..]),
    ];
    Ok(candidates.into_iter().find(|(node, _)| node.exists()))
}

/// The function's own node, if the container has it.
fn find_cdev(function: &Path, nodes: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(function.join("vfio-dev")).ok()?;
    let mut cdevs = entries.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        Some(nodes.join("devices").join(name))
    });
    cdevs.find(|node| node.exists())
}

fn use_by_group(address: &str, node: &Path, kinds: &[usize]) -> Result<String> {
    let container = open(&Path::new(NODES).join("vfio"))?;
    let version =
        system::api_version(&container).context("asking /dev/vfio/vfio for its version")?;
    let group = open(node)?;
    let node = node.display();
    if !system::is_viable(&group).with_context(|| format!("asking {node} for its status"))? {
        bail!(
            "asking {node} for its status: the group is not viable, since another driver has a function of it; onload-ctk discover --explain names it"
        );
    }
    system::set_container(&group, &container)
        .with_context(|| format!("putting {node} into a vfio container"))?;
    let mut set = Err(Errno::INVAL);
    for kind in kinds {
        set = system::set_iommu(&container, *kind);
        if set.is_ok() {
            break;
        }
    }
    set.with_context(|| format!("setting the IOMMU of {node}"))?;
    system::open_device(&group, &CString::new(address)?)
        .with_context(|| format!("opening {address} of {node}"))?;
    Ok(format!("{node} opens (vfio {version}), its group is viable, and {address} can be opened"))
}

fn use_by_cdev(address: &str, node: &Path) -> Result<String> {
    let iommufd = open(Path::new(IOMMUFD))?;
    let device = open(node)?;
    let node = node.display();
    system::bind(&device, &iommufd).with_context(|| format!("binding {node} to {IOMMUFD}"))?;
    let space = system::allocate_space(&iommufd)
        .with_context(|| format!("allocating an address space of {IOMMUFD}"))?;
    system::attach(&device, space)
        .with_context(|| format!("attaching {node} to an address space of {IOMMUFD}"))?;
    Ok(format!("{node} opens, and {address} has an address space of {IOMMUFD}"))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_function_that_is_not_there_is_said_by_name() {
        let error = format!("{:#}", use_device("ffff:ff:1f.7").unwrap_err());
        assert!(error.contains("ffff:ff:1f.7/iommu_group"), "{error}");
    }

    #[test]
    fn nodes_are_used_where_the_container_has_them() {
        let dir = tempfile::tempdir().unwrap();
        let (function, nodes) = (dir.path().join("function"), dir.path().join("vfio"));
        fs::create_dir_all(function.join("vfio-dev/vfio3")).unwrap();
        fs::create_dir_all(nodes.join("devices")).unwrap();
        symlink("/sys/kernel/iommu_groups/42", function.join("iommu_group")).unwrap();
        assert_eq!(find_group_node(&function, &nodes).unwrap(), None);
        assert_eq!(find_cdev(&function, &nodes), None);
        fs::write(nodes.join("devices/vfio4"), "").unwrap();
        assert_eq!(find_cdev(&function, &nodes), None);
        fs::write(nodes.join("devices/vfio3"), "").unwrap();
        let own = nodes.join("devices/vfio3");
        assert_eq!(find_cdev(&function, &nodes), Some(own));
        fs::write(nodes.join("42"), "").unwrap();
        let plain = Some((nodes.join("42"), &IOMMUS[..]));
        assert_eq!(find_group_node(&function, &nodes).unwrap(), plain);
        fs::write(nodes.join("noiommu-42"), "").unwrap();
        let without = Some((nodes.join("noiommu-42"), &[NOIOMMU][..]));
        assert_eq!(find_group_node(&function, &nodes).unwrap(), without);
    }

    #[test]
    fn what_is_no_vfio_node_is_refused() {
        let file = File::open("/dev/null").unwrap();
        for error in [
            system::api_version(&file).map(drop).unwrap_err(),
            system::is_viable(&file).map(drop).unwrap_err(),
            system::set_container(&file, &file).unwrap_err(),
            system::set_iommu(&file, NOIOMMU).unwrap_err(),
            system::open_device(&file, c"0000:00:00.0").unwrap_err(),
            system::bind(&file, &file).unwrap_err(),
            system::allocate_space(&file).map(drop).unwrap_err(),
            system::attach(&file, 1).unwrap_err(),
        ] {
            assert_eq!(error, Errno::NOTTY);
        }
    }
}
