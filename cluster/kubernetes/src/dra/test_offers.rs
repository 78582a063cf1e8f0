//! Offers for the tests of this directory.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use onload_cdi::DeviceName;
use onload_core::class::Class;
use onload_core::kubernetes_settings::KubernetesSettings;
use onload_host::offers::{Attributes, Health, Offer, Sharing};

use crate::host_state::Snapshot;
use crate::resources::Plan;

pub(crate) fn offer(class: Class, name: &str) -> Offer {
    Offer {
        class,
        name: DeviceName::try_from(name).unwrap(),
        cdi: vec![format!("{}={name}", class.kind())],
        pools: Vec::new(),
        pci: None,
        pcie_root: None,
        numa_node: None,
        attributes: Attributes::new(),
        sharing: Sharing::Shared,
        slots: None,
        health: Health::Healthy,
        holder: None,
        leases: Vec::new(),
    }
}

pub(crate) fn snapshot(offers: Vec<Offer>, settings: KubernetesSettings) -> Snapshot {
    Snapshot {
        plan: Plan::default(),
        offers,
        settings,
        lease_hooks: BTreeMap::new(),
        nodes: BTreeMap::new(),
        cni_pools: BTreeSet::new(),
        not_offered: BTreeMap::new(),
        taken: Instant::now(),
    }
}
