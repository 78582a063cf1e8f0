//! Reads and changes the settings of a virtual function through the interface of its physical function, in the host's
//! network namespace.

use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use onload_core::vf_config::VfConfig;
use onload_lease::{LeaseEntry, SavedVf};
use onload_sys::error::{Context as _, Result, bail, error};
use onload_sys::netlink::link::Link;
use onload_sys::netlink::vf::{VfChange, VfList, VfSettings};
use onload_sys::pci::PciAddress;

use crate::moves::lifecycle::RestoreError;
use crate::moves::netns::Netns;
use onload_lease::users::PCI_FUNCTIONS;

/// How virtual functions are found and configured.
#[derive(Clone, Debug, Default)]
pub struct VfAccess {
    /// Only for tests on machines without virtual functions.
    pub stand_ins: Option<Rc<dyn VfStandIns>>,
    /// Deadline for searching /proc for processes that have a function open. `None` if each search has its own time
    /// limit, that of a container's start.
    pub(in crate::moves) search_deadline: Option<Instant>,
    /// Completed searches.
    pub(in crate::moves) searches: Vec<EndedSearch>,
}

/// The result of a long search for a process that has a function open. The search runs without the device's lock, so
/// that no container waits for it. While the lease is `returning`, no further process can open the function.
#[derive(Clone, Debug)]
pub(in crate::moves) struct EndedSearch {
    pub(super) entry: LeaseEntry,
    pub(super) user: Result<Option<String>, String>,
}

/// A replacement for virtual functions and their files in sysfs and /dev, for tests.
pub trait VfStandIns: Debug {
    fn root(&self) -> &Path;
    /// Returns the interface of the physical function and the present settings.
    fn find(&self, pci: PciAddress) -> Result<Option<(String, VfSettings)>>;
    fn apply_change(&self, pci: PciAddress, change: VfChange) -> io::Result<()>;
}

/// A virtual function and the access to its physical function.
struct VirtualFunction<'a> {
    pf: PfAccess<'a>,
    settings: VfSettings,
}

enum PfAccess<'a> {
    Interface {
        netns: &'a Netns,
        link: Box<Link>,
        number: u32,
    },
    /// The name of the physical function's interface is last.
    StandIn(&'a dyn VfStandIns, PciAddress, String),
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

impl VfAccess {
    /// Limits the searches for all functions together to `timeout`.
    pub(in crate::moves) fn searching_for(&self, timeout: Duration) -> Self {
        let stand_ins = self.stand_ins.clone();
        let search_deadline = Some(Instant::now() + timeout);
        VfAccess { stand_ins, search_deadline, searches: Vec::new() }
    }

    /// Returns `None` if the function is missing or not a virtual function.
    fn find<'a>(
        &'a self,
        host_netns: &'a Netns,
        pci: PciAddress,
    ) -> Result<Option<VirtualFunction<'a>>> {
        if let Some(stand_in) = self.stand_ins.as_deref() {
            return Ok(stand_in.find(pci)?.map(|(name, settings)| VirtualFunction {
                pf: PfAccess::StandIn(stand_in, pci, name),
                settings,
            }));
        }
        let Some((physical, number)) = physical_function(Path::new(PCI_FUNCTIONS), pci)? else {
            return Ok(None);
        };
        let links = host_netns.links()?.into_iter();
        // Representors of virtual functions on the card's switch belong to the physical function too.
        for link in links.filter(|link| link.function == Some(physical)) {
            let vfs = host_netns.virtual_functions(link.index).with_context(|| {
                format!("asking {} for its virtual functions", link.display_name())
            })?;
            if let Some(settings) = find_settings(vfs, number, &link)? {
                let pf = PfAccess::Interface { netns: host_netns, link: Box::new(link), number };
                return Ok(Some(VirtualFunction { pf, settings }));
            }
        }
        bail!(
            "its physical function {physical} has no interface in this host's network namespace, by which virtual functions are set up; bind it to the kernel's driver, or bring its interface back"
        )
    }

    /// Checks everything that may fail before changing anything.
    pub(in crate::moves) fn examine(
        &self,
        host_netns: &Netns,
        pci: PciAddress,
        vf_config: &VfConfig,
    ) -> Result<SavedVf> {
        let given = vf_config.to_settings()?;
        let Some(VirtualFunction { pf, settings }) = self.find(host_netns, pci)? else {
            bail!(
                "PCI function {pci} is not a virtual function and cannot be set up for a container; remove the table vf from its pool or section, or the device from the pool"
            );
        };
        let mut changes = given.changes(&settings);
        if let Some(change) = changes.find(|change| change.current_setting(&settings).is_none()) {
            let name = change.name();
            bail!(
                "the driver of {}, its physical function, does not report the {name} of {pci}, so \
                 it could not be restored; remove {name} from the table vf of its pool or section",
                pf.display_name()
            );
        }
        let before = settings.restricted_to(&given);
        Ok(SavedVf { given, before })
    }

    /// Sets up a function for a container. A failure may leave some settings changed.
    pub(in crate::moves) fn set_up(
        &self,
        host_netns: &Netns,
        pci: PciAddress,
        saved: &SavedVf,
    ) -> Result<()> {
        let Some(vf) = self.find(host_netns, pci)? else {
            bail!("virtual function {pci} no longer exists; start a new container");
        };
        let address = saved.before.mac.filter(|_| saved.given.mac.is_some());
        // Setting the all-zero address first reveals a driver that rejects it, before the address changes.
        let first = address.filter(|mac| *mac == [0; 6]).map(VfChange::Mac);
        let changes = saved.given.required_changes(&vf.settings);
        for change in first.into_iter().chain(changes) {
            vf.pf.set(change).map_err(|error| {
                error!(
                    "{}, the physical function of {pci}, refuses {change}: {error}; remove {} from the table vf of its pool or section, or see what dmesg says",
                    vf.pf.display_name(),
                    change.name()
                )
            })?;
        }
        let remaining = self.differences(host_netns, pci, &saved.given)?;
        if !remaining.is_empty() {
            bail!(
                "{}, the physical function of {pci}, accepted {} but does not keep it; remove it \
                 from the table vf of its pool or section",
                vf.pf.display_name(),
                list(&remaining)
            );
        }
        Ok(())
    }

    /// Restores the settings of a function. A function that is gone needs no restoring.
    pub(in crate::moves) fn restore_settings(
        &self,
        host_netns: &Netns,
        pci: PciAddress,
        saved: &SavedVf,
    ) -> Result<(), RestoreError> {
        let begin = || format!("putting back virtual function {pci}");
        let Some(vf) = self.find(host_netns, pci).with_context(begin)? else {
            return Ok(());
        };
        let mut failed = None;
        for change in saved.before.required_changes(&vf.settings) {
            failed = failed.or(vf.pf.set(change).err());
        }
        let remaining = self.differences(host_netns, pci, &saved.before).with_context(begin)?;
        if remaining.is_empty() {
            return Ok(());
        }
        let cause = failed.map_or_else(String::new, |error| format!(" ({error})"));
        Err(RestoreError {
            error: error!(
                "{}: {} rejects {}{cause}; set it manually (ip link set {} vf), then run \
                 \"onload-ctk lease restore\"",
                begin(),
                vf.pf.display_name(),
                list(&remaining),
                vf.pf.display_name()
            ),
            differs: Some(format!("what {} sets: {}", vf.pf.display_name(), list(&remaining))),
        })
    }

    /// Returns the settings that differ from `expected`. A function that is gone has none.
    fn differences(
        &self,
        host_netns: &Netns,
        pci: PciAddress,
        expected: &VfSettings,
    ) -> Result<Vec<VfChange>> {
        let vf = self.find(host_netns, pci)?;
        Ok(vf.map_or_else(Vec::new, |vf| expected.differences(&vf.settings)))
    }
}

impl PfAccess<'_> {
    fn display_name(&self) -> String {
        match self {
            PfAccess::Interface { link, .. } => link.display_name(),
            PfAccess::StandIn(_, _, name) => name.clone(),
        }
    }

    fn set(&self, change: VfChange) -> io::Result<()> {
        match self {
            PfAccess::Interface { netns, link, number } => {
                netns.set_virtual_function(link.index, *number, change)
            }
            PfAccess::StandIn(stand_in, pci, _) => stand_in.apply_change(*pci, change),
        }
    }
}

fn list(changes: &[VfChange]) -> String {
    changes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
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
