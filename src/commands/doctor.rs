//! `doctor`: what is wrong with a host, and what to do about it.

use std::path::Path;

use anstyle::Style;
use anyhow::Result;
use onload_cdi::Registry;
use onload_core::config::CONFIG_PATH;
use onload_host::devices::inventory::Inventory;
use onload_host::leases;
use onload_host::pools::discover_with_pools;
use onload_host::settings;
use onload_report::doctor::{Check, CheckContext, CheckFamily, CheckVerdict, run_checks};
use serde_json::json;

use super::{open_traced_host, process, resolve_spec_dirs};
use crate::cli::{DoctorArgs, GlobalArgs, ListFormat};
use crate::exit::{CommandResult, ExitAnswer};
use crate::layout::{format_paragraph, to_one_line};
use crate::printer::{DIM, ERROR, GOOD, HEADING, Printer, WARNING};

const HANGING: &str = "           ";
const WORD: usize = 7;
const WORST_FIRST: [CheckVerdict; 3] =
    [CheckVerdict::Fail, CheckVerdict::Unknown, CheckVerdict::Warn];

pub fn run(global: &GlobalArgs, args: &DoctorArgs, printer: &mut Printer) -> CommandResult {
    let (_, mut checks) = check_host(global, printer)?;
    if !args.check.is_empty() {
        checks.retain(|check| args.check.iter().any(|name| name == check.name));
    }
    match args.format {
        ListFormat::Json => {
            let object = json!({
                "version": env!("CARGO_PKG_VERSION"),
                "verdict": worst_verdict(&checks),
                "checks": checks.iter().filter(|check| !args.problems || check.finding.verdict.is_problem()).collect::<Vec<_>>(),
            });
            printer.print_json(&object)?;
        }
        ListFormat::Table => print(&checks, args.problems, global.verbose, printer)?,
    }
    Ok(match worst_verdict(&checks) {
        CheckVerdict::Fail => ExitAnswer::No,
        CheckVerdict::Unknown => ExitAnswer::Unknown,
        CheckVerdict::Pass | CheckVerdict::Warn | CheckVerdict::Skipped => ExitAnswer::Yes,
    })
}

/// Returns the inventory and the findings of all checks.
pub(super) fn check_host(
    global: &GlobalArgs,
    printer: &mut Printer,
) -> Result<(Inventory, Vec<Check>)> {
    let host = open_traced_host(global)?;
    let (config, problems) = settings::load_leniently(&host, global.config.as_deref())?;
    printer.progress("reading this host");
    let (inventory, pools) = discover_with_pools(&host, &config);
    let specs = Registry::scan(&resolve_spec_dirs(&host, &[])?);
    // Without the right to read them, the check `discovery` reports that.
    let leases = leases::list(&host).unwrap_or_default();
    let context = CheckContext {
        host: &host,
        config: &config,
        config_file: global.config.as_deref().unwrap_or(Path::new(CONFIG_PATH)),
        config_problems: &problems,
        inventory: &inventory,
        pools: &pools,
        leases: &leases,
        specs: &specs,
        version_of: &|program: &Path| process::read_version(&host, program),
    };
    let checks = run_checks(&context, |name| {
        printer.progress(format_args!("checking {name}"));
    });
    printer.end_progress();
    Ok((inventory, checks))
}

/// The checks of a name, such as those of the engines one by one.
pub(super) fn checks_named<'c>(
    checks: &'c [Check],
    name: &'static str,
) -> impl Iterator<Item = &'c Check> {
    checks.iter().filter(move |check| check.name == name)
}

/// Returns what prevents containers of an engine from requesting devices.
pub(super) fn find_obstacle<'c>(checks: &'c [Check], engine: &Check) -> Option<&'c Check> {
    let names = ["engine-version", "engine-cdi", "engine-restarted"];
    let mut related = names
        .into_iter()
        .flat_map(|name| checks_named(checks, name))
        .filter(|check| check.finding.subject == engine.finding.subject);
    related.find(|check| {
        let verdict = check.finding.verdict;
        // CDI that is on until a restart is a warning.
        verdict.is_problem() && (check.name, verdict) != ("engine-cdi", CheckVerdict::Warn)
    })
}

/// Formats a finding with its first remedy.
pub(super) fn format_finding(check: &Check) -> String {
    let finding = &check.finding;
    match finding.remedy.first() {
        Some(remedy) => format!("{}; {remedy}", finding.finding),
        None => finding.finding.clone(),
    }
}

/// A failed check decides, then one whose result is unknown.
fn worst_verdict(checks: &[Check]) -> CheckVerdict {
    WORST_FIRST
        .into_iter()
        .find(|verdict| count_verdict(checks, *verdict) > 0)
        .unwrap_or(CheckVerdict::Pass)
}

fn count_verdict(checks: &[Check], verdict: CheckVerdict) -> usize {
    checks.iter().filter(|check| check.finding.verdict == verdict).count()
}

/// Prints the problems, then the other checks by family, then the skipped ones by reason.
fn print(
    checks: &[Check],
    only_problems: bool,
    verbose: bool,
    printer: &mut Printer,
) -> Result<()> {
    let mut problems: Vec<&Check> =
        checks.iter().filter(|check| check.finding.verdict.is_problem()).collect();
    problems.sort_by_key(|check| WORST_FIRST.iter().position(|v| *v == check.finding.verdict));
    if !problems.is_empty() {
        printer.print(format_args!("{HEADING}Problems{HEADING:#}\n"))?;
    }
    for check in problems {
        print_check(check, verbose, printer)?;
    }
    if !only_problems {
        print_passed(checks, verbose, printer)?;
        print_skipped(checks, printer)?;
    }
    let count = |verdict| count_verdict(checks, verdict);
    let summary = format!(
        "{} passed, {} warned, {} failed, {} unknown, {} skipped",
        count(CheckVerdict::Pass),
        count(CheckVerdict::Warn),
        count(CheckVerdict::Fail),
        count(CheckVerdict::Unknown),
        count(CheckVerdict::Skipped),
    );
    printer.print(format_paragraph("\n", "", &summary, printer.columns()))?;
    Ok(())
}

fn print_passed(checks: &[Check], verbose: bool, printer: &mut Printer) -> Result<()> {
    let mut family: Option<CheckFamily> = None;
    for check in checks.iter().filter(|check| check.finding.verdict == CheckVerdict::Pass) {
        if family.replace(check.family) != Some(check.family) {
            printer.print(format_args!("{HEADING}{}{HEADING:#}\n", check.family))?;
        }
        print_check(check, verbose, printer)?;
    }
    Ok(())
}

fn print_skipped(checks: &[Check], printer: &mut Printer) -> Result<()> {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for check in checks.iter().filter(|check| check.finding.verdict == CheckVerdict::Skipped) {
        let reason = check.finding.finding.as_str();
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, names)) => names.push(check.name),
            None => reasons.push((reason, vec![check.name])),
        }
    }
    if !reasons.is_empty() {
        printer.print(format_args!("{HEADING}Skipped{HEADING:#}\n"))?;
    }
    for (reason, names) in reasons {
        let first = format!("  {DIM}skipped{DIM:#}  ");
        let text = format!("{}: {reason}", names.join(", "));
        printer.print(format_paragraph(&first, HANGING, &text, printer.columns()))?;
    }
    Ok(())
}

fn print_check(check: &Check, verbose: bool, printer: &mut Printer) -> Result<()> {
    let (finding, columns) = (&check.finding, printer.columns());
    let style = style(finding.verdict);
    let word = finding.verdict.as_str();
    let gap = " ".repeat(WORD.saturating_sub(word.len()));
    let subject = finding.subject.as_deref().map(|subject| format!(" {}", to_one_line(subject)));
    let text =
        format!("{}{}: {}", check.name, subject.unwrap_or_default(), to_one_line(&finding.finding));
    let first = format!("  {style}{word}{style:#}{gap}  ");
    printer.print(format_paragraph(&first, HANGING, &text, columns))?;
    if finding.verdict.is_problem() || verbose {
        let paths: Vec<String> =
            finding.looked_at.iter().map(|path| path.display().to_string()).collect();
        let text = format!("{DIM}looked at {}{DIM:#}", to_one_line(&paths.join(", ")));
        if !paths.is_empty() {
            printer.print(format_paragraph(HANGING, HANGING, &text, columns))?;
        }
    }
    for remedy in &finding.remedy {
        // A command or line is copied: it stays on one line.
        let remedy = to_one_line(&remedy.to_string());
        printer.print(format_args!("{HANGING}{remedy}\n"))?;
    }
    Ok(())
}

fn style(verdict: CheckVerdict) -> Style {
    match verdict {
        CheckVerdict::Pass | CheckVerdict::Skipped => GOOD,
        CheckVerdict::Warn | CheckVerdict::Unknown => WARNING,
        CheckVerdict::Fail => ERROR,
    }
}
