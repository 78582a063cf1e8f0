//! `host plan` and `host apply`: the host itself, as the sections `[[sriov]]` and `[host]` want it.

use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use onload_core::config::Config;
use onload_core::host_settings::HostSettings;
use onload_host::boot::{self, ApplyOutcome, HostStep, RunningKernel, StepStage};
use rustix::process::geteuid;
use serde_json::json;

use super::open_host;
use crate::cli::{GlobalArgs, HostApplyArgs, HostPlanArgs, ListFormat};
use crate::exit::{CommandResult, ExitAnswer};
use crate::layout::format_table;
use crate::printer::Printer;

const NOTHING: &str = "nothing to change on this host";
const NOTHING_WANTED: &str =
    "nothing to change on this host: config.toml has neither [[sriov]] nor settings under [host]";

fn has_no_host_settings(config: &Config) -> bool {
    config.sriov.is_empty() && config.host == HostSettings::default()
}

fn format_step(step: &HostStep) -> String {
    let HostStep { subject, setting, now, wanted, .. } = step;
    format!("{subject}: {setting}: {now} -> {wanted}")
}

/// Reports each line of what was not done, the last as the error that ends the program.
fn report_failures(lines: Vec<String>, printer: &mut Printer) -> Result<()> {
    let mut lines = lines.into_iter().peekable();
    while let Some(line) = lines.next() {
        if lines.peek().is_none() {
            return Err(anyhow!(line));
        }
        printer.error(line);
    }
    Ok(())
}

pub fn plan(global: &GlobalArgs, args: &HostPlanArgs, printer: &mut Printer) -> CommandResult {
    let (host, config) = open_host(global)?;
    let plan = if host.is_running() {
        boot::plan(&host, &RunningKernel::default(), &config)
    } else {
        boot::plan(&host, &boot::OfflineKernel, &config)
    };
    match args.format {
        ListFormat::Table if !plan.steps.is_empty() => {
            let rows = plan.steps.iter().map(|step| {
                [
                    step.subject.to_string(),
                    step.setting.clone(),
                    step.now.clone(),
                    step.wanted.clone(),
                ]
            });
            let header = ["OF", "SETTING", "NOW", "WANTED"];
            let columns = printer.columns();
            printer.print(format_table(header, rows, columns))?;
        }
        ListFormat::Table if has_no_host_settings(&config) => {
            printer.note(NOTHING_WANTED);
        }
        ListFormat::Table if plan.refused.is_empty() => {
            printer.note(NOTHING);
        }
        ListFormat::Table => {}
        ListFormat::Json => {
            printer.print_json(&serde_json::to_value(&plan)?)?;
        }
    }
    printer.warnings(&plan.warnings);
    let refused = plan.refused.iter().map(ToString::to_string);
    report_failures(refused.collect(), printer)?;
    Ok(if plan.steps.is_empty() { ExitAnswer::Yes } else { ExitAnswer::No })
}

/// How long a driver may take to appear, or a device to be listed.
const TIMEOUT: Duration = Duration::from_secs(10);

pub fn apply(global: &GlobalArgs, args: &HostApplyArgs, printer: &mut Printer) -> CommandResult {
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
    printer.warnings(&outcome.warnings);
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
