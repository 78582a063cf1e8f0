//! `lease restore`: brings interfaces and RDMA devices back that containers left, and makes them and virtual functions
//! what they were.

use std::path::Path;

use anyhow::{Result, bail};
use onload_core::device_id::DeviceId;
use onload_hooks::moves;
use onload_host::leases;
use onload_lease::Leases;
use onload_sys::text::ErrorChain;

use super::format_device;
use crate::cli::GlobalArgs;
use crate::commands::open_host_of_incident;
use crate::exit::{CommandResult, ExitAnswer};
use crate::printer::Printer;

pub fn run(global: &GlobalArgs, printer: &mut Printer) -> CommandResult {
    if global.host_root != Path::new("/") {
        bail!(
            "restoring devices of {:?}: devices can be moved only on the host itself; omit \
             --host-root",
            global.host_root
        );
    }
    let (host, _) = open_host_of_incident(global, printer)?;
    let restored = match leases::open(&host)? {
        Some(leases) => restore_until_stable(|| restore_once(&leases))?,
        None => Vec::new(),
    };
    if restored.is_empty() {
        printer.note("nothing to restore");
    }
    let mut answer = ExitAnswer::Yes;
    for (device, failure) in &restored {
        match failure {
            None => printer.note(format_args!("{} is back", format_device(device))),
            Some(reason) => {
                printer.error(format_args!("{}: {reason}", format_device(device)));
                answer = ExitAnswer::No;
            }
        }
    }
    Ok(answer)
}

type RestoreOutcome = (DeviceId, Option<String>);

/// Repeats while devices return: systemd does not start a running unit again, so a device that
/// returns during a pass would be missed. Reports each restored device, and the last error of the
/// others.
fn restore_until_stable(
    mut run_pass: impl FnMut() -> Result<Vec<RestoreOutcome>>,
) -> Result<Vec<RestoreOutcome>> {
    let mut outcomes = Vec::new();
    loop {
        let (returned, failed): (Vec<RestoreOutcome>, Vec<RestoreOutcome>) =
            run_pass()?.into_iter().partition(|(_, failure)| failure.is_none());
        if returned.is_empty() {
            outcomes.extend(failed);
            return Ok(outcomes);
        }
        outcomes.extend(returned);
    }
}

/// One look.
fn restore_once(leases: &Leases) -> Result<Vec<RestoreOutcome>> {
    let mut outcomes = Vec::new();
    for outcome in moves::restore(leases)? {
        let reason = outcome.result.err().map(|error| ErrorChain(&error).to_string());
        outcomes.push((outcome.device, reason));
    }
    Ok(outcomes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restored(name: &str, why: Option<&str>) -> RestoreOutcome {
        let device = format!("netdev:{name}").parse().unwrap();
        (device, why.map(str::to_owned))
    }

    fn looks(passes: Vec<Vec<RestoreOutcome>>) -> Result<Vec<RestoreOutcome>> {
        let mut passes = passes.into_iter();
        let results = restore_until_stable(|| Ok(passes.next().unwrap()))?;
        assert!(passes.next().is_none(), "looked too few times");
        Ok(results)
    }

    #[test]
    fn what_comes_back_while_another_one_is_restored_is_restored_too() {
        let results =
            looks(vec![vec![restored("ens1v0", None)], vec![restored("ens1v1", None)], vec![]]);
        let both = vec![restored("ens1v0", None), restored("ens1v1", None)];
        assert_eq!(results.unwrap(), both);
    }

    #[test]
    fn what_does_not_come_is_told_once_and_looked_for_again_only_when_another_one_came() {
        let away = || restored("ens1v1", Some("it is away"));
        let results = looks(vec![vec![away(), restored("ens1v0", None)], vec![away()]]);
        assert_eq!(results.unwrap(), vec![restored("ens1v0", None), away()]);
        assert_eq!(looks(vec![vec![away()]]).unwrap(), vec![away()]);
        assert!(looks(vec![vec![]]).unwrap().is_empty());
    }
}
