//! Interfaces that may move into a container's network namespace: those of PCI functions that the host does not use.
//! The configuration chooses which are offered (`[discover] offer-netdevs`, or a pool), since an idle interface may
//! belong to a virtual machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use onload_core::class::Class;
use onload_core::config::Config;
use onload_core::netdev::usage::{ExtraUses, NetworkState, is_below};
use onload_sys::pci::PciAddress;
use onload_sys::text::{ErrorChain, Quoted};
use serde::Serialize;

use crate::discover::netdev::{NetworkInterface, SYS_CLASS_NET, group_by_function};
use crate::discover::pci::{PciFunction, PciFunctions};
use crate::discover::probe::Probe;
use crate::discover::taken_names::TakenNames;
use crate::host::{Host, HostError};

const RDMA_CLASS: &str = "/sys/class/infiniband";
/// The directory of software devices.
const SOFTWARE: &str = "/sys/devices/virtual";
const VDPA_DEVICES: &str = "/sys/bus/vdpa/devices";

const NOT_RECORDED_REASON: &str = "could not determine its users: the host's interfaces, addresses \
    and routes are not recorded here; run onload-ctk on the host itself, in its network namespace";

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Netdev {
    pub name: String,
    /// The name under which it is offered.
    pub device: String,
    pub pci_address: PciAddress,
    pub numa_node: Option<u32>,
    pub driver: Option<String>,
    /// `operstate`; `held` while a container has it.
    pub state: Option<String>,
    /// Mbit/s.
    pub speed_mbps: Option<u64>,
    /// Why the container that should have it does not.
    #[serde(skip)]
    pub(crate) trouble: Option<String>,
}

impl Netdev {
    /// Returns the interface's name. `None` while a CNI plugin has moved it under an unknown name.
    pub fn interface(&self) -> Option<&str> {
        let is_unknown = self.name == self.pci_address.to_string();
        (!is_unknown).then_some(self.name.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MovableInterface {
    pub(crate) netdev: Netdev,
    pub(crate) obstacle: Option<String>,
    pub(crate) is_named: bool,
}

pub(crate) fn may_offer_interfaces(config: &Config) -> bool {
    let mut pools = config.pools.values();
    !config.discover.offer_netdevs.is_empty() || pools.any(|pool| pool.class == Class::Netdev)
}

struct MovabilityCheck<'a> {
    config: &'a Config,
    functions: &'a PciFunctions,
    /// The host's network, or the reason why the use of interfaces is unknown.
    network: Result<NetworkState, String>,
    soft_rdma: BTreeMap<String, String>,
    vdpa: BTreeMap<PathBuf, String>,
    by_function: BTreeMap<PciAddress, Vec<&'a NetworkInterface>>,
}

/// Reads the interfaces of PCI functions, sorted by name. Empty if the configuration offers none.
pub(crate) fn read(
    probe: &Probe<'_>,
    functions: &PciFunctions,
    interfaces: &[NetworkInterface],
    config: &Config,
) -> Vec<MovableInterface> {
    if !may_offer_interfaces(config) {
        return Vec::new();
    }
    let network = match probe.host().network() {
        Ok(network) => network.ok_or_else(|| NOT_RECORDED_REASON.to_owned()),
        Err(error) => {
            let unknown = format!("could not determine its users: {}", ErrorChain(&error));
            probe.ok_or_warn::<()>(Err(error));
            Err(unknown)
        }
    };
    let check = MovabilityCheck {
        config,
        functions,
        network,
        soft_rdma: read_soft_rdma(probe),
        vdpa: probe.ok_or_warn(read_vdpa(probe.host()).map(Some)).unwrap_or_default(),
        by_function: group_by_function(interfaces),
    };
    let mut taken_names = TakenNames::default();
    interfaces
        .iter()
        .filter_map(|interface| check.judge(probe, interface, &mut taken_names))
        .collect()
}

impl MovabilityCheck<'_> {
    fn judge(
        &self,
        probe: &Probe<'_>,
        interface: &NetworkInterface,
        taken_names: &mut TakenNames,
    ) -> Option<MovableInterface> {
        let pci = interface.pci()?;
        let function = self.functions.get(pci);
        let obstacle = self
            .find_obstacle(interface, pci, function)
            .or_else(|| intermediate_device_reason(probe, &interface.name, pci));
        let (device, obstacle) = match (taken_names.choose(&interface.name, Some(pci)), obstacle) {
            (Ok(device), obstacle) => (device, obstacle),
            (Err(reason), _) => (interface.name.clone(), Some(reason)),
        };
        let patterns = &self.config.discover.offer_netdevs;
        Some(MovableInterface {
            netdev: Netdev {
                name: interface.name.clone(),
                device,
                pci_address: pci,
                numa_node: function.and_then(|function| function.numa_node),
                driver: interface.driver().map(str::to_owned),
                state: interface.operstate.clone(),
                speed_mbps: interface.speed_mbps,
                trouble: None,
            },
            obstacle,
            is_named: patterns.iter().any(|glob| glob.matches(&interface.name)),
        })
    }

    fn find_obstacle(
        &self,
        interface: &NetworkInterface,
        pci: PciAddress,
        function: Option<&PciFunction>,
    ) -> Option<String> {
        let settings = &self.config.discover;
        if settings.ignored_interfaces.contains(&interface.name) {
            let ignored = "ignored: it is in [discover] ignored-interfaces; remove it there";
            return Some(ignored.to_owned());
        }
        if interface.is_ipoib() {
            return Some(
                "IP over InfiniBand, whose address belongs to its port; this is unsupported"
                    .to_owned(),
            );
        }
        let mut function_interfaces = self.by_function.get(&pci)?.iter();
        if let Some(other) = function_interfaces.find(|other| other.name != interface.name) {
            return Some(format!(
                "its PCI function has another interface, {}, and a returning interface is \
                 identified by its function; this is unsupported",
                Quoted(&other.name)
            ));
        }
        let has_functions = function.is_some_and(|function| !function.virtual_functions.is_empty());
        if has_functions && !settings.offer_pf_with_vfs {
            return Some(
                "it has virtual functions, with which its holder can interfere; set [discover] \
                 offer-pf-with-vfs to offer it anyway"
                    .to_owned(),
            );
        }
        self.find_user(interface, pci)
    }

    fn find_user(&self, interface: &NetworkInterface, pci: PciAddress) -> Option<String> {
        let network = match &self.network {
            Ok(network) => network,
            Err(unknown) => return Some(unknown.clone()),
        };
        let Some(link) = network.link(&interface.name) else {
            let reason = "could not determine its users: the kernel's netlink answer does not \
                contain it; run onload-ctk in the host's network namespace";
            return Some(reason.to_owned());
        };
        let extra_uses = ExtraUses {
            soft_rdma: self.soft_rdma.get(&interface.name).map(String::as_str),
            vdpa: find_vdpa(&self.vdpa, pci),
            // Only root can read these, and discovery may run as another user. The hook checks them before a move.
            ..ExtraUses::default()
        };
        let uses = network.describe_uses(link, extra_uses);
        match uses.as_slice() {
            [] => None,
            [only] => Some(only.clone()),
            several => Some(format!("{} reasons: {}", several.len(), several.join("; "))),
        }
    }
}

/// Returns why an interface is not the function's own: another device is in between, for example of virtio or a
/// subfunction.
fn intermediate_device_reason(
    probe: &Probe<'_>,
    interface: &str,
    pci: PciAddress,
) -> Option<String> {
    let directory = probe.resolve(Path::new(SYS_CLASS_NET).join(interface))?;
    let device = directory.parent().and_then(Path::parent)?.file_name()?;
    let is_own = device.to_str() == Some(pci.to_string().as_str());
    (!is_own).then(|| {
        format!(
            "it does not belong to {pci} directly: {} is between them, and a returning interface \
             is identified by its function; this is unsupported",
            Quoted(&device.to_string_lossy())
        )
    })
}

/// Returns software RDMA devices by their interface (`parent_show` in drivers/infiniband/sw/rxe/rxe_verbs.c).
pub(crate) fn read_soft_rdma(probe: &Probe<'_>) -> BTreeMap<String, String> {
    let by_interface = probe.list(RDMA_CLASS).into_iter().filter_map(|device| {
        let directory = probe.resolve(Path::new(RDMA_CLASS).join(&device))?;
        let is_software = directory.starts_with(SOFTWARE);
        let interface = is_software.then(|| probe.attribute(directory.join("parent")));
        Some((interface??, device))
    });
    by_interface.collect()
}

/// Returns the vDPA devices by directory.
pub(crate) fn read_vdpa(host: &Host) -> Result<BTreeMap<PathBuf, String>, HostError> {
    let mut devices = BTreeMap::new();
    for name in host.list(Path::new(VDPA_DEVICES))?.names {
        if let Some(path) = host.resolve(&Path::new(VDPA_DEVICES).join(&name))? {
            devices.insert(path, name);
        }
    }
    Ok(devices)
}

pub(crate) fn find_vdpa(devices: &BTreeMap<PathBuf, String>, function: PciAddress) -> Option<&str> {
    let mut devices = devices.iter();
    let (_, name) = devices.find(|(path, _)| is_below(path, function))?;
    Some(name)
}
