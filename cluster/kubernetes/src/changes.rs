//! What of the resources differs from one look at the host to the next, for the log.

use std::collections::BTreeMap;

use onload_host::offers::Health;

use crate::resources::{Device, Resource};

const TOLD: usize = 32;

pub(crate) fn log(before: Option<&Resource>, now: &Resource) {
    let name = &now.name;
    let (healthy, unhealthy) = now.count();
    if before.is_none_or(|before| before.ids != now.ids || before.count() != now.count()) {
        tracing::info!(resource = %name, devices = now.devices.len(), healthy, unhealthy, "resource");
    }
    let lines = lines(before, now);
    for (device, reason) in lines.iter().take(TOLD) {
        match reason {
            Some(reason) => {
                tracing::warn!(resource = %name, device, %reason, "device unhealthy");
            }
            None => tracing::info!(resource = %name, device, "device healthy"),
        }
    }
    for device in now.devices.iter().take(TOLD) {
        let before =
            before.and_then(|before| before.devices.iter().find(|other| is_same(device, other)));
        let before = before.and_then(|before| before.left.as_ref());
        if let Some((left, reason)) = device
            .left
            .as_ref()
            .filter(|left| left.0 > 0 && Some(*left) != before)
        {
            tracing::info!(resource = %name, device = device.name, left, %reason, "others have slots");
        }
    }
    if let Some(more) = lines.len().checked_sub(TOLD + 1) {
        tracing::info!(resource = %name, more = more + 1, "and more devices");
    }
}

fn is_same(one: &Device, other: &Device) -> bool {
    (one.class, &one.name) == (other.class, &other.name)
}

/// The devices that became healthy or unhealthy, or are so for another reason. A new one is healthy unless it
/// is told.
fn lines<'a>(before: Option<&'a Resource>, now: &'a Resource) -> Vec<(&'a str, Option<&'a str>)> {
    let before = before.into_iter().flat_map(|before| &before.devices);
    let before: BTreeMap<_, &Health> = before
        .map(|device| ((device.class, &device.name), &device.health))
        .collect();
    let changed = now.devices.iter().filter(|device| {
        let before = before.get(&(device.class, &device.name));
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
    use onload_core::class::Class;
    use onload_core::kubernetes_settings::ResourceName;

    use super::*;

    fn with(devices: &[(&str, Option<&str>)]) -> Resource {
        let device = |(name, reason): &(&str, Option<&str>)| Device {
            class: Class::Vfio,
            name: (*name).to_owned(),
            cdi: Vec::new(),
            pci: None,
            pcie_root: None,
            numa_node: None,
            nodes: Vec::new(),
            slots: None,
            left: None,
            health: reason.map_or(Health::Healthy, |reason| {
                Health::Unhealthy(reason.to_owned())
            }),
        };
        let mut resource = Resource::empty(ResourceName::own("vfio").unwrap());
        resource.devices = devices.iter().map(device).collect();
        resource
    }

    #[test]
    fn a_device_is_told_when_its_health_or_its_reason_changes() {
        let first = with(&[("a", None), ("b", Some("held"))]);
        assert_eq!(lines(None, &first), [("b", Some("held"))]);
        assert_eq!(lines(Some(&first), &first), []);
        let second = with(&[("a", Some("gone")), ("b", None), ("c", None)]);
        let told = [("a", Some("gone")), ("b", None)];
        assert_eq!(lines(Some(&first), &second), told);
        let third = with(&[("a", Some("no specification"))]);
        assert_eq!(
            lines(Some(&second), &third),
            [("a", Some("no specification"))]
        );
    }
}
