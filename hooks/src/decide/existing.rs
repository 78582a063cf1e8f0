//! Edits that a configuration already contains. No applier adds it again, so several entry points have the effect of
//! one, and applying twice has the effect of applying once.

use std::collections::BTreeSet;

use onload_cdi::oci::{HostNode, MountEntry, OciConfig, OciConfigError, OciHook};
use onload_cdi::{ContainerEdits, Hook, HookName, Mount, deduplicate};
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

pub(crate) fn is_bind(mount: &MountEntry) -> bool {
    mount.type_() == "bind"
        || mount.options().into_iter().any(|option| option == "bind" || option == "rbind")
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

/// Which of the nodes the configuration already has, with rules that allow the wanted access.
fn find_present_nodes(
    devices: &[VerifiedNode],
    config: &OciConfig,
) -> Result<Vec<bool>, OciConfigError> {
    let mut is_present = vec![false; devices.len()];
    config.each_device(|entry| {
        for (is_present, device) in is_present.iter_mut().zip(devices) {
            let HostNode { major, minor, .. } = device.host_node;
            *is_present |= entry.type_ == "c"
                && entry.path == device.path()
                && (entry.major, entry.minor) == (major.into(), minor.into());
        }
    })?;
    if is_present.contains(&true) {
        let rules = config.device_rules()?;
        for (is_present, device) in is_present.iter_mut().zip(devices) {
            *is_present &= device.rule().is_ok_and(|rule| rule.is_granted_by(&rules));
        }
    }
    Ok(is_present)
}
