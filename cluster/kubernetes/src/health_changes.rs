//! The changes of resources between two surveys, for the log.

use std::collections::BTreeMap;

use onload_core::class::Class;
use onload_host::offers::Health;

use crate::resources::{PluginDevice, Resource};

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
    for (device, left, reason) in slot_changes(before, now).take(MAX_LOGGED) {
        tracing::info!(resource = %name, device, left, %reason, "others have slots");
    }
    if let Some(more) = lines.len().checked_sub(MAX_LOGGED + 1) {
        tracing::info!(resource = %name, more = more + 1, "and more devices");
    }
}

fn devices_by_name(resource: Option<&Resource>) -> BTreeMap<(Class, &str), &PluginDevice> {
    resource
        .into_iter()
        .flat_map(|resource| &resource.devices)
        .map(|device| ((device.class, device.name.as_str()), device))
        .collect()
}

/// Returns the devices whose number of slots left by other containers has changed.
fn slot_changes<'a>(
    before: Option<&'a Resource>,
    now: &'a Resource,
) -> impl Iterator<Item = (&'a str, u32, &'a str)> {
    let before = devices_by_name(before);
    now.devices.iter().filter_map(move |device| {
        let (remaining, reason) = device.remaining.as_ref().filter(|remaining| remaining.0 > 0)?;
        let name = device.name.as_str();
        let before = before.get(&(device.class, name));
        let is_new = before.is_none_or(|before| before.remaining != device.remaining);
        is_new.then_some((name, *remaining, reason.as_str()))
    })
}

/// Returns the devices whose health or reason has changed. A new device is reported only if it is unhealthy.
fn health_changes<'a>(
    before: Option<&'a Resource>,
    now: &'a Resource,
) -> Vec<(&'a str, Option<&'a str>)> {
    let before = devices_by_name(before);
    let changed = now.devices.iter().filter(|device| {
        let before = before.get(&(device.class, device.name.as_str()));
        *before.map_or(&Health::Healthy, |before| &before.health) != device.health
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

    #[test]
    fn slots_of_others_are_told_of_the_device_that_changed_wherever_it_stands() {
        let names: Vec<String> = (0..40).map(|number| format!("d{number}")).collect();
        let devices: Vec<_> = names.iter().map(|name| (name.as_str(), None)).collect();
        let mut before = with(&devices);
        for device in &mut before.devices {
            device.remaining = Some((9, "pod a".to_owned()));
        }
        let mut now = before.clone();
        assert_eq!(slot_changes(Some(&before), &now).count(), 0);
        assert_eq!(slot_changes(None, &now).count(), 40);
        now.devices[39].remaining = Some((8, "pods a, b".to_owned()));
        let changes: Vec<_> = slot_changes(Some(&before), &now).collect();
        assert_eq!(changes, [("d39", 8, "pods a, b")]);
    }
}
