//! `host apply`: makes the host what the configuration wants it to be.

use std::time::Duration;

use anyhow::{Result, bail};
use onload_host::boot::{self, ApplyOutcome, HostStep, RunningKernel, StepStage};
use rustix::process::geteuid;
use serde_json::json;

use super::{NOTHING, NOTHING_WANTED, format_step, has_no_host_settings, report_failures};
use crate::cli::{GlobalArgs, HostApplyArgs, ListFormat};
use crate::commands::open_host;
use crate::exit::{CommandResult, ExitAnswer};
use crate::printer::Printer;

/// How long a driver may take to appear, or a device to be listed.
const TIMEOUT: Duration = Duration::from_secs(10);

pub fn run(global: &GlobalArgs, args: &HostApplyArgs, printer: &mut Printer) -> CommandResult {
    let (host, config) = open_host(global)?;
    if !host.is_running() {
        bail!(
            "changing the host below {}: it is not the running host; omit --host-root, or run \
             \"onload-ctk host plan\" to see what would change",
            global.host_root.display()
        );
    }
    if has_no_host_settings(&config) {
        if args.format == ListFormat::Json {
            print_json(&[], &ApplyOutcome::default(), printer)?;
        }
        printer.note(NOTHING_WANTED);
        return Ok(ExitAnswer::Yes);
    }
    if !geteuid().is_root() {
        bail!("changing this host: permission denied; run as root");
    }
    let kernel = RunningKernel::default();
    printer.progress("comparing this host with config.toml");
    let mut done = Vec::new();
    let mut report = |stage: StepStage, step: &HostStep| match stage {
        StepStage::Begins => printer.progress(format_step(step)),
        StepStage::Done => {
            printer.note(format_step(step));
            done.push(step.clone());
        }
    };
    let outcome = boot::apply(&host, &kernel, &config, TIMEOUT, &mut report);
    printer.end_progress();
    if args.format == ListFormat::Json {
        print_json(&done, &outcome, printer)?;
    }
    for warning in &outcome.warnings {
        printer.warning(warning);
    }
    if outcome.done == 0 && outcome.failed.is_empty() {
        printer.note(NOTHING);
    }
    report_failures(outcome.failed, printer)?;
    Ok(ExitAnswer::Yes)
}

fn print_json(done: &[HostStep], outcome: &ApplyOutcome, printer: &mut Printer) -> Result<()> {
    printer.print_json(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "done": done,
        "failed": outcome.failed,
        "warnings": outcome.warnings,
    }))?;
    Ok(())
}
