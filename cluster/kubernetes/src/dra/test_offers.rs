//! Offers for the tests of this directory.

use std::collections::BTreeMap;
use std::time::Instant;

use onload_core::class::Class;
use onload_core::config::Config;
use onload_core::kubernetes_settings::KubernetesSettings;
use onload_host::offers::{Attributes, HostDevice};

use crate::resources::{ResourcePlan, SpecAuthor};
use crate::snapshot::KubernetesSnapshot;

pub(crate) fn offer(class: Class, name: &str) -> HostDevice {
    HostDevice {
        cdi: vec![format!("{}={name}", class.cdi_kind())],
        attributes: Attributes::new(),
        ..HostDevice::new(class, name).unwrap()
    }
}

pub(crate) fn snapshot(
    devices: Vec<HostDevice>,
    settings: KubernetesSettings,
) -> KubernetesSnapshot {
    KubernetesSnapshot {
        plan: ResourcePlan::default(),
        devices,
        config: Config { kubernetes: settings, ..Config::default() },
        written_by: SpecAuthor::Operator,
        lease_hooks: BTreeMap::new(),
        nodes: BTreeMap::new(),
        vf: BTreeMap::new(),
        exclusions: Vec::new(),
        taken: Instant::now(),
    }
}
