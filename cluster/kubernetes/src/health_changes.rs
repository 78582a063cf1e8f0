//! The changes of resources between two surveys, for the log.

use std::collections::BTreeMap;

use onload_core::class::Class;
use onload_host::offers::Health;

use crate::resources::Resource;

const MAX_LOGGED: usize = 32;

pub(crate) fn log(before: Option<&Resource>, now: &Resource) {
    let name = &now.name;
    let (healthy, unhealthy) = now.count();
    if before.is_none_or(|before| before.ids != now.ids || before.count() != now.count()) {
        tracing::info!(resource = %name, devices = now.devices.len(), healthy, unhealthy, "resource");
    }
    let lines = health_changes(before, now);
    for (device, reason) in lines.iter().take(MAX_LOGGED) {
        match reason {
            Some(reason) => {
                tracing::warn!(resource = %name, device, %reason, "device unhealthy");
            }
            None => tracing::info!(resource = %name, device, "device healthy"),
        }
    }
    if let Some(more) = lines.len().checked_sub(MAX_LOGGED + 1) {
        tracing::info!(resource = %name, more = more + 1, "and more devices");
    }
}

/// Returns the devices whose health or reason has changed. A new device is reported only if it is unhealthy.
fn health_changes<'a>(
    before: Option<&'a Resource>,
    now: &'a Resource,
) -> Vec<(&'a str, Option<&'a str>)> {
    let before: BTreeMap<(Class, &str), &Health> = before
        .into_iter()
        .flat_map(|resource| &resource.devices)
        .map(|device| ((device.class, device.name.as_str()), &device.health))
        .collect();
    let changed = now.devices.iter().filter(|device| {
        let before = before.get(&(device.class, device.name.as_str()));
        *before.unwrap_or(&&Health::Healthy) != &device.health
    });
    let lines = changed.map(|device| match &device.health {
        Health::Healthy => (device.name.as_str(), None),
        Health::Unhealthy(reason) => (device.name.as_str(), Some(reason.as_str())),
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use onload_core::kubernetes_settings::ResourceName;

    use super::*;
    use crate::resources::PluginDevice;

    fn with(devices: &[(&str, Option<&str>)]) -> Resource {
        let device = |(name, reason): &(&str, Option<&str>)| PluginDevice {
            class: Class::Vfio,
            name: (*name).to_owned(),
            cdi: Vec::new(),
            pci: None,
            pcie_root: None,
            numa_node: None,
            nodes: Vec::new(),
            slots: None,
            remaining: None,
            health: reason.map_or(Health::Healthy, |reason| Health::Unhealthy(reason.to_owned())),
        };
        let mut resource = Resource::empty(ResourceName::onload_dev("vfio").unwrap());
        resource.devices = devices.iter().map(device).collect();
        resource
    }

    #[test]
    fn a_device_is_told_when_its_health_or_its_reason_changes() {
        let first = with(&[("a", None), ("b", Some("held"))]);
        assert_eq!(health_changes(None, &first), [("b", Some("held"))]);
        assert_eq!(health_changes(Some(&first), &first), []);
        let second = with(&[("a", Some("gone")), ("b", None), ("c", None)]);
        let changes = [("a", Some("gone")), ("b", None)];
        assert_eq!(health_changes(Some(&first), &second), changes);
        let third = with(&[("a", Some("no specification"))]);
        assert_eq!(health_changes(Some(&second), &third), [("a", Some("no specification"))]);
    }
}
