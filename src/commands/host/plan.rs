//! `host plan`: what `host apply` would change.

use onload_host::boot;

use super::{NOTHING, NOTHING_WANTED, all_or_error, wants_nothing};
use crate::cli::{Global, HostPlan, Listing};
use crate::commands::open_host;
use crate::exit::Answer;
use crate::layout::table;
use crate::printer::Printer;

pub fn run(global: &Global, args: &HostPlan, printer: &mut Printer) -> anyhow::Result<Answer> {
    let (host, config) = open_host(global)?;
    let plan = if host.is_running() {
        boot::plan(&host, &boot::RunningKernel::default(), &config)
    } else {
        boot::plan(&host, &boot::OfflineKernel, &config)
    };
    match args.format {
        Listing::Table if !plan.steps.is_empty() => {
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
            printer.print(table(header, rows, columns))?;
        }
        Listing::Table if wants_nothing(&config) => {
            printer.note(NOTHING_WANTED);
        }
        Listing::Table if plan.refused.is_empty() => {
            printer.note(NOTHING);
        }
        Listing::Table => {}
        Listing::Json => {
            printer.print_json(&serde_json::to_value(&plan)?)?;
        }
    }
    for warning in &plan.warnings {
        printer.warning(warning);
    }
    let refused = plan.refused.iter().map(ToString::to_string);
    all_or_error(refused.collect(), printer)?;
    Ok(if plan.steps.is_empty() { Answer::Yes } else { Answer::No })
}
