//! Edits that a configuration already contains. No applier adds it again, so several entry points have the effect of
//! one, and applying twice has the effect of applying once.

use std::collections::BTreeSet;

use onload_cdi::oci::{DeviceRule, OciConfig, OciConfigError, OciHook};
use onload_cdi::{ContainerEdits, DeviceNode, Hook, HookName, Mount, deduplicate};
use onload_core::hook_arguments::HookArguments;

use super::verified_node::VerifiedNode;

/// Drops the edits and devices that the configuration already has from the same source, and returns
/// whether it has any.
pub(super) fn drop_existing_edits(
    edits: &mut ContainerEdits,
    devices: &mut Vec<VerifiedNode>,
    config: &OciConfig,
) -> Result<bool, OciConfigError> {
    let mut held = find_present_nodes(devices, config)?.into_iter();
    edits.mounts = deduplicate(std::mem::take(&mut edits.mounts));
    edits.hooks = deduplicate(std::mem::take(&mut edits.hooks));
    // The hook's checks have just been made.
    edits.hooks.retain(|hook| !is_check_only(hook));
    let before = edits.mounts.len() + edits.hooks.len() + devices.len();
    devices.retain(|_| held.next() != Some(true));
    edits.mounts.retain(|mount| !has_mount(config, mount));
    drop_held_hooks(&mut edits.hooks, config)?;
    Ok(edits.mounts.len() + edits.hooks.len() + devices.len() < before)
}

pub(crate) fn has_mount(config: &OciConfig, mount: &Mount) -> bool {
    config.mounts().iter().any(|held| {
        held.has_destination(&mount.container_path) && held.has_source(&mount.host_path)
    })
}

pub(crate) fn drop_held_hooks(
    hooks: &mut Vec<Hook>,
    config: &OciConfig,
) -> Result<(), OciConfigError> {
    let stages: BTreeSet<HookName> =
        hooks.iter().filter_map(|hook| hook.hook_name.parse().ok()).collect();
    for stage in stages {
        let held = config.hooks(stage)?;
        hooks.retain(|hook| {
            hook.hook_name != stage.as_str() || !held.contains(&OciHook::from(hook))
        });
    }
    Ok(())
}

fn is_check_only(hook: &Hook) -> bool {
    HookArguments::from_command(&hook.args).is_some_and(|(stage, arguments)| {
        let checks = !arguments.expect.is_empty();
        stage == "createRuntime"
            && checks
            && arguments.memlock.is_none()
            && arguments.lease.is_empty()
    })
}

/// Which of the nodes the configuration already has, with a rule that allows the wanted access.
fn find_present_nodes(
    devices: &[VerifiedNode],
    config: &OciConfig,
) -> Result<Vec<bool>, OciConfigError> {
    let is_of = |device: &VerifiedNode, major: i64, minor: i64| {
        (i64::from(device.host_node.major), i64::from(device.host_node.minor)) == (major, minor)
    };
    let mut has_node = vec![false; devices.len()];
    config.each_device(|device_entry| {
        if device_entry.type_ == "c" {
            for (has_node, device) in has_node.iter_mut().zip(devices) {
                *has_node |= is_of(device, device_entry.major, device_entry.minor)
                    && device_entry.path == device.path();
            }
        }
    })?;
    let mut has_rule = vec![false; devices.len()];
    for rule in config.device_rules()? {
        if let (true, Some("c"), Some(major), Some(minor)) =
            (rule.allow, rule.type_.as_deref(), rule.major, rule.minor)
        {
            for (has_rule, device) in has_rule.iter_mut().zip(devices) {
                *has_rule |= is_of(device, major, minor) && allows_access(&rule, &device.node);
            }
        }
    }
    let both = has_node.iter().zip(has_rule);
    Ok(both.map(|(node, rule)| *node && rule).collect())
}

/// Whether a rule allows all the access that a node needs.
fn allows_access(rule: &DeviceRule, node: &DeviceNode) -> bool {
    let access = node.permissions.as_deref().filter(|access| !access.is_empty()).unwrap_or("rwm");
    let granted = rule.access.as_deref().unwrap_or_default();
    access.chars().all(|letter| granted.contains(letter))
}
