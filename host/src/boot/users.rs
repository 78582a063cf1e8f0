//! Who uses a virtual function: what is leased, open, or on the host's own way must not be taken away.

use std::path::{Path, PathBuf};

use onload_core::lease::{Lease, Listed};
use onload_core::pci::PciAddress;
use onload_core::text::Chain;

use super::kernel::Kernel;
use super::routes::{self, Routes};
use crate::discover::netdev::CLASS;
use crate::discover::pci::DEVICES;
use crate::host::{EntryKind, Host, HostError};
use crate::leases;

/// What tells of users.
pub(super) struct Users<'h> {
    host: &'h Host,
    kernel: &'h dyn Kernel,
    /// The leases whose holders may live, or why they cannot be read.
    leases: Result<Vec<Leased>, String>,
    routes: Routes,
}

/// A lease, and the IOMMU group of the function that its device is named after, if it is.
struct Leased {
    listed: Listed,
    address: Option<PciAddress>,
    group: Option<String>,
}

/// A virtual function, as far as users are concerned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Function<'f> {
    /// Its address.
    pub address: PciAddress,
    /// The driver that it is bound to.
    pub driver: Option<&'f str>,
}

impl<'h> Users<'h> {
    /// Reads leases and routes.
    pub(super) fn read(host: &'h Host, kernel: &'h dyn Kernel) -> Result<Self, HostError> {
        kernel.look_again();
        let leases = match leases::list(host) {
            Ok(listed) => {
                let held = listed.into_iter().filter(|lease| !lease.is_over);
                Ok(held
                    .map(|lease| leased(host, lease))
                    .collect::<Result<_, HostError>>()?)
            }
            Err(error) => Err(Chain(&error).to_string()),
        };
        Ok(Users {
            host,
            kernel,
            leases,
            routes: routes::read(host)?,
        })
    }

    /// Whether the host's default route goes through an interface.
    pub(super) fn is_on_default_route(&self, interface: &str) -> bool {
        self.routes.default.contains(interface)
    }

    /// Who uses a function, for people; none where nobody does.
    pub(super) fn of(&self, function: Function<'_>) -> Result<Option<String>, HostError> {
        let directory = Path::new(DEVICES).join(function.address.to_string());
        let group = self.host.link_name(&directory.join("iommu_group"))?;
        if let Some(lease) = self.lease_of(&function, &directory, group.as_deref())? {
            return Ok(Some(lease));
        }
        let is_vfios = function
            .driver
            .is_some_and(|driver| driver.contains("vfio"));
        if is_vfios {
            return self.opener(&directory, group.as_deref());
        }
        if let Some(program) = self.verbs(&directory)? {
            return Ok(Some(program));
        }
        self.network(&directory, function.driver)
    }

    fn lease_of(
        &self,
        function: &Function<'_>,
        directory: &Path,
        group: Option<&str>,
    ) -> Result<Option<String>, HostError> {
        let leases = match &self.leases {
            Ok(leases) => leases,
            Err(why) => return Ok(Some(format!("a container, perhaps ({why})"))),
        };
        let mut names = self.host.list(&directory.join("net"))?.names;
        names.extend(self.host.list(&directory.join("infiniband"))?.names);
        for Leased {
            listed,
            address,
            group: its_group,
        } in leases
        {
            let is_its = match address {
                Some(address) if *address == function.address => true,
                // A device of vfio has the name of one function of its group.
                Some(_) => group.is_some() && its_group.as_deref() == group,
                None => {
                    let name = listed.device.name.as_str();
                    names.iter().any(|own| own == name)
                }
            };
            let lease = listed.lease.as_ref();
            let is_known = |lease: &Lease| {
                let own = function.address.to_string();
                let moved = lease.moved.as_ref();
                lease.facts.values().any(|fact| *fact == own)
                    || moved.is_some_and(|moved| moved.facts.pci() == function.address)
            };
            if is_its || lease.is_ok_and(is_known) {
                return Ok(Some(match lease {
                    Ok(lease) => lease.to_string(),
                    Err(why) => {
                        format!("an unknown container, since its lease is not understood ({why})")
                    }
                }));
            }
        }
        Ok(None)
    }

    /// Who has the nodes of a function of vfio open.
    fn opener(&self, directory: &Path, group: Option<&str>) -> Result<Option<String>, HostError> {
        let own = self.host.list(&directory.join("vfio-dev"))?.names;
        let own = own
            .iter()
            .map(|name| PathBuf::from("/dev/vfio/devices").join(name));
        let of_group = group.into_iter().flat_map(|group| {
            ["", "noiommu-"].map(|prefix| PathBuf::from(format!("/dev/vfio/{prefix}{group}")))
        });
        let mut holders = own
            .chain(of_group)
            .filter_map(|node| self.kernel.holder(&node));
        Ok(holders.next())
    }

    /// Who uses its RDMA device, as DPDK's programs do with adapters that they drive so.
    fn verbs(&self, directory: &Path) -> Result<Option<String>, HostError> {
        let names = self.host.list(&directory.join("infiniband_verbs"))?.names;
        let nodes = names
            .iter()
            .map(|name| PathBuf::from("/dev/infiniband").join(name));
        Ok(nodes.filter_map(|node| self.kernel.holder(&node)).next())
    }

    /// What the host or another network namespace does with a function's interfaces.
    fn network(&self, directory: &Path, driver: Option<&str>) -> Result<Option<String>, HostError> {
        let net = directory.join("net");
        let interfaces = self.host.list(&net)?.names;
        let has_net = self.host.entry(&net)? == Some(EntryKind::Directory);
        // The kernel shows only those of this network namespace.
        if let (Some(driver), true, true) = (driver, has_net, interfaces.is_empty()) {
            return Ok(Some(format!(
                "another network namespace, which has its interface (driver {driver})"
            )));
        }
        for interface in interfaces {
            let entries = self.host.list(&Path::new(CLASS).join(&interface))?.names;
            let upper = entries.iter().find_map(|name| name.strip_prefix("upper_"));
            let what = if self.is_on_default_route(&interface) {
                "carries the default route".to_owned()
            } else if let Some(upper) = upper {
                format!("is below {upper}")
            } else if self.routes.any.contains(&interface) {
                "has routes".to_owned()
            } else {
                continue;
            };
            return Ok(Some(format!(
                "the host, whose interface {interface} {what}"
            )));
        }
        Ok(None)
    }
}

fn leased(host: &Host, listed: Listed) -> Result<Leased, HostError> {
    let address: Option<PciAddress> = listed.device.name.as_str().parse().ok();
    let group = match address {
        Some(address) => {
            let function = Path::new(DEVICES).join(address.to_string());
            host.link_name(&function.join("iommu_group"))?
        }
        None => None,
    };
    Ok(Leased {
        listed,
        address,
        group,
    })
}
