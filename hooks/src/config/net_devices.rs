//! Interfaces in `linux.netDevices` of the configuration, requested by the engine or another vendor's specification.
//! The runtime moves them without a lease and does not restore them. Interfaces that this host offers as `netdev` are
//! moved by the hook of our specification instead, so that they are leased for every requester.

use std::iter;

use onload_cdi::oci::{OciConfig, OciConfigError};
use onload_cdi::{Hook, HookName};
use onload_core::class::Class;
use onload_core::hook_arguments::{HookArguments, InterfaceValue};
use onload_core::netdev::new_name::NewInterfaceName;
use onload_sys::error::{Context, Result, bail};
use onload_sys::netlink::link::Link;
use onload_sys::text::Quoted;

use crate::decide::host_view::{HostView, Privilege};
use crate::decide::subject::CONFIG_JSON;

/// Context of failures.
const ORIGIN: &str = "linux.netDevices";

/// Removes the offered interfaces from `linux.netDevices`, adds our hook for them, and returns a reason for each. The
/// runtime moves all other interfaces, which have no lease.
pub(super) fn move_to_hook(
    config: &mut OciConfig,
    host: &dyn HostView,
    privilege: Privilege,
) -> Result<Vec<String>> {
    let mut reasons = Vec::new();
    let interfaces_to_move = config.net_devices().context(CONFIG_JSON)?;
    // Runtimes move interfaces only for containers of root.
    if interfaces_to_move.is_empty() || !privilege.is_initial_namespace {
        return Ok(reasons);
    }
    let (specs, interfaces) = (host.specs(&[Class::Netdev])?, host.interfaces()?);
    for (key, inside) in interfaces_to_move {
        // The kernel accepts alternative names.
        let name = interfaces
            .iter()
            .find(|link| link.has_name(key.as_bytes()))
            .map_or_else(|| key.clone(), Link::display_name);
        let Some(resolved) = specs.find(Class::Netdev, &name) else {
            if let Some(drained) = host.drain()?.find(Class::Netdev, &name) {
                bail!("{ORIGIN}: netdev {} is {drained}", Quoted(&name));
            }
            continue;
        };
        let shared = &resolved.spec.container_edits.hooks;
        let hooks: Vec<Hook> = shared
            .iter()
            .chain(&resolved.device.container_edits.hooks)
            .filter_map(|hook| hook_for_interface(hook, &name, inside.as_deref()).transpose())
            .collect::<Result<_>>()?;
        // A pool, or one that a CNI plugin moves.
        if hooks.is_empty() {
            continue;
        }
        if is_moved_by_hook(config, &name).context(CONFIG_JSON)? {
            bail!(
                "{ORIGIN}: the container is given netdev {} by onload.dev too; request it once",
                Quoted(&name)
            );
        }
        config.remove_net_device(&key).context(CONFIG_JSON)?;
        config.add_hooks(&hooks).context(CONFIG_JSON)?;
        reasons.push(format!(
            "{ORIGIN}: {name} is offered as netdev, so onload-hook moves and leases it"
        ));
    }
    Ok(reasons)
}

/// Returns a specification's hook if it moves the interface, changed to use the name in the container.
fn hook_for_interface(hook: &Hook, name: &str, inside: Option<&str>) -> Result<Option<Hook>> {
    let Some((_, mut arguments)) = HookArguments::from_command(&hook.args) else {
        return Ok(None);
    };
    let [interface_argument] = arguments.netdev.as_slice() else {
        return Ok(None);
    };
    let interface = interface_argument.name.clone();
    if interface.to_string() != name {
        return Ok(None);
    }
    let mut hook = hook.clone();
    if let Some(inside) = inside.filter(|inside| *inside != name) {
        let value: NewInterfaceName = inside.parse().context(ORIGIN)?;
        arguments.rename = iter::once(InterfaceValue { interface, value }).collect();
        arguments.replace_in(&mut hook.args);
    }
    Ok(Some(hook))
}

/// Returns whether a hook of the configuration already moves the interface.
fn is_moved_by_hook(config: &OciConfig, name: &str) -> Result<bool, OciConfigError> {
    let mut is_moved = false;
    for stage in [HookName::CreateRuntime, HookName::Prestart] {
        for hook in config.hooks(stage)? {
            let arguments = HookArguments::from_command(hook.args.as_deref().unwrap_or_default());
            let mut interfaces = arguments.iter().flat_map(|(_, arguments)| &arguments.netdev);
            is_moved |= interfaces.any(|interface| interface.name.to_string() == name);
        }
    }
    Ok(is_moved)
}
