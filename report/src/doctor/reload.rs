//! The commands that reload Onload's driver and apply its configuration again.

use onload_sys::text::ShortList;

use super::check::{Finding, Remedy};
use super::context::{CheckContext, HostResult};
use crate::status::{StackUser, list_stack_users};

/// Returns a finding with the commands to reload the driver, and one to run after that. `onload_tool reload` fails while
/// a stack lives, so what has one is stopped before. It ends the registrations for AF_XDP.
pub(super) fn reload_finding(
    context: &CheckContext<'_>,
    text: &str,
    new_finding: fn(String, Remedy) -> Finding,
    then: Option<Remedy>,
) -> HostResult<Finding> {
    let users = list_stack_users(context.host)?;
    let mut text = text.to_owned();
    if !users.is_empty() {
        let names: Vec<String> = users.iter().map(ToString::to_string).collect();
        text += &format!("; first stop the holders of Onload stacks: {}", ShortList(&names));
    }
    let reapply = reapply_remedy(context)?;
    if reapply.is_some() || then.is_some() {
        text += "; a reload drops the registrations for AF_XDP";
    }
    let steps = users
        .iter()
        .filter_map(StackUser::stop_command)
        .map(Remedy::run)
        .chain([Remedy::run("onload_tool reload")])
        .chain(reapply)
        .chain(then)
        .chain([Remedy::run("onload-ctk undrain nic")]);
    let drain = Remedy::run("onload-ctk drain nic");
    Ok(steps.fold(new_finding(text, drain), Finding::with_remedy))
}

/// Returns the command that applies the configuration to reloaded modules, if it has settings for them: starting the
/// unit that does so at boot.
pub(super) fn reapply_remedy(context: &CheckContext<'_>) -> HostResult<Option<Remedy>> {
    let host = &context.config.host;
    if host.af_xdp.is_empty() && host.af_xdp_flow_filters.is_none() {
        return Ok(None);
    }
    Ok(Some(Remedy::run(if context.has_units()? {
        "systemctl restart onload-host.service"
    } else {
        "onload-ctk host apply"
    })))
}
