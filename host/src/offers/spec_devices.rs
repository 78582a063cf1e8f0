//! The devices in the specifications on disk.

use std::collections::BTreeMap;
use std::path::Path;

use onload_cdi::{ContainerEdits, Registry, RegistryError, ResolvedDevice};
use onload_core::class::Class;
use onload_core::config::CONFIG_PATH;
use onload_core::expectation::Expectation;
use onload_core::hook_arguments::HookArguments;
use onload_core::pool::{ANY, MEMBERS, SHARE};
use onload_sys::text::{ErrorChain, ShortList};

use crate::specdir::FILE_PREFIX;

/// The remedy for outdated specifications in a health's reason. An agent that writes them itself has another one.
pub const GENERATE: &str = "run \"onload-ctk cdi generate\"";
/// Names in a specification for several devices.
const GROUP_NAMES: [&str; 2] = ["all", ANY];

pub(super) struct SpecDevices<'r> {
    registry: &'r Registry,
    devices: BTreeMap<Class, BTreeMap<&'r str, ResolvedDevice<'r>>>,
}

impl<'r> SpecDevices<'r> {
    pub(super) fn new(registry: &'r Registry) -> SpecDevices<'r> {
        let classes = Class::ALL.map(|class| (class.cdi_kind(), class));
        let classes = BTreeMap::from(classes);
        let mut devices: BTreeMap<Class, BTreeMap<&str, ResolvedDevice<'_>>> = BTreeMap::new();
        for resolved in registry.devices() {
            let name = resolved.name.device.as_str();
            let class = classes.get(resolved.name.kind.as_str());
            let Some(class) = class.filter(|_| !is_several(name, &resolved)) else {
                continue;
            };
            devices.entry(*class).or_default().insert(name, resolved);
        }
        SpecDevices { registry, devices }
    }

    pub(super) fn names(&self, class: Class) -> impl Iterator<Item = &'r str> {
        let devices = self.devices.get(&class).into_iter();
        devices.flat_map(|devices| devices.keys().copied())
    }

    pub(super) fn has_device(&self, class: Class, name: &str) -> bool {
        let devices = self.devices.get(&class);
        devices.is_some_and(|devices| devices.contains_key(name))
    }

    pub(super) fn device_expectations(&self, class: Class, name: &str) -> Vec<Expectation> {
        let devices = self.devices.get(&class);
        let Some(resolved) = devices.and_then(|devices| devices.get(name)) else {
            return Vec::new();
        };
        let mut expected = expectations(&resolved.device.container_edits);
        expected.extend(expectations(&resolved.spec.container_edits));
        expected
    }

    /// Returns why a device is in no specification, or `None` if it is in one.
    pub(super) fn missing_reason(&self, class: Class, name: &str) -> Option<String> {
        if self.has_device(class, name) {
            return None;
        }
        let kind = class.cdi_kind();
        let conflict = self.registry.conflicts().iter().find(|conflict| {
            conflict.name.kind.as_str() == kind && conflict.name.device.as_str() == name
        });
        if let Some(conflict) = conflict {
            let paths: Vec<String> =
                conflict.paths.iter().map(|path| path.display().to_string()).collect();
            return Some(format!(
                "it is in {}, so engines reject it; remove it from all but one",
                ShortList(&paths)
            ));
        }
        if let Some((path, error)) = self.find_broken(class) {
            return Some(format!(
                "{} cannot be used: {}; {GENERATE}",
                path.display(),
                ErrorChain(error)
            ));
        }
        Some(if self.devices.contains_key(&class) {
            format!("no specification has {kind}={name}; {GENERATE}")
        } else {
            format!(
                "there is no specification of {kind}; {GENERATE}, with {class} in [cdi] kinds of \
                 {CONFIG_PATH}"
            )
        })
    }

    fn find_broken(&self, class: Class) -> Option<(&'r Path, &'r RegistryError)> {
        let prefix = format!("{FILE_PREFIX}{class}.");
        for (path, errors) in self.registry.errors() {
            let name = path.file_name().and_then(|name| name.to_str());
            let is_of_class = name.is_some_and(|name| name.starts_with(&prefix));
            for error in errors {
                match error {
                    RegistryError::Directory(_) => return Some((path, error)),
                    RegistryError::Conflict { .. } => {}
                    _ if is_of_class => return Some((path, error)),
                    _ => {}
                }
            }
        }
        None
    }
}

fn is_several(name: &str, resolved: &ResolvedDevice<'_>) -> bool {
    let annotations = &resolved.device.annotations;
    let is_pool = [MEMBERS, SHARE].iter().any(|key| annotations.contains_key(*key));
    is_pool || GROUP_NAMES.contains(&name)
}

fn expectations(edits: &ContainerEdits) -> Vec<Expectation> {
    let arguments = edits.hooks.iter().filter_map(|hook| HookArguments::from_command(&hook.args));
    arguments.flat_map(|(_, arguments)| arguments.expect).collect()
}
