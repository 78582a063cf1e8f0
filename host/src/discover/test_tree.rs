//! Discovery on the hosts of its tests.

use onload_core::config::DiscoverConfig;
use onload_test_tree::sample;

pub(crate) use onload_test_tree::Tree;

use crate::discover::exclusion::Exclusion;
use crate::discover::netdev;
use crate::discover::pci::PciFunctions;
use crate::discover::probe::Probe;
use crate::host::Host;

pub(crate) trait AsHost {
    /// The host as built so far.
    fn host(&self) -> Host;
}

impl AsHost for Tree {
    fn host(&self) -> Host {
        Host::open(self.root()).unwrap()
    }
}

/// The result of discovering one resource.
pub(crate) struct Discovered<D> {
    pub(crate) devices: Vec<D>,
    pub(crate) not_offered: Vec<Exclusion>,
    pub(crate) warnings: Vec<String>,
}

impl<D> Discovered<D> {
    /// The reasons as `name: reason`.
    pub(crate) fn reasons(&self) -> Vec<String> {
        self.not_offered.iter().map(|entry| format!("{}: {}", entry.name, entry.reason)).collect()
    }
}

/// Discovers one resource of a host.
pub(crate) fn discover<D>(
    host: &Host,
    read: impl FnOnce(&Probe<'_>, &PciFunctions, &[netdev::NetworkInterface]) -> Vec<D>,
) -> Discovered<D> {
    let probe = Probe::new(host);
    let functions = PciFunctions::read(&probe);
    let interfaces = netdev::read(&probe);
    let devices = read(&probe, &functions, &interfaces);
    Discovered { devices, not_offered: probe.not_offered(), warnings: probe.warnings() }
}

/// One of the hosts that come with the sources, except the overlays.
pub(crate) fn sample(name: &str) -> Host {
    Host::open(&sample::whole(name)).unwrap()
}

/// A configuration that allows everything.
pub(crate) fn generous() -> DiscoverConfig {
    DiscoverConfig {
        offer_umad: true,
        offer_issm: true,
        offer_pf_with_vfs: true,
        ..DiscoverConfig::default()
    }
}
