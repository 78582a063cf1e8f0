//! `host plan`: what `host apply` would change.

use onload_host::boot;

use super::{NOTHING, NOTHING_WANTED, has_no_host_settings, report_failures};
use crate::cli::{GlobalArgs, HostPlanArgs, ListFormat};
use crate::commands::open_host;
use crate::exit::{CommandResult, ExitAnswer};
use crate::layout::format_table;
use crate::printer::Printer;

pub fn run(global: &GlobalArgs, args: &HostPlanArgs, printer: &mut Printer) -> CommandResult {
    let (host, config) = open_host(global)?;
    let plan = if host.is_running() {
        boot::plan(&host, &boot::RunningKernel::default(), &config)
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
    for warning in &plan.warnings {
        printer.warning(warning);
    }
    let refused = plan.refused.iter().map(ToString::to_string);
    report_failures(refused.collect(), printer)?;
    Ok(if plan.steps.is_empty() { ExitAnswer::Yes } else { ExitAnswer::No })
}
