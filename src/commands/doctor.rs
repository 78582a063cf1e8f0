//! `doctor`: what is wrong with a host, and what to do about it.

use std::path::Path;

use anstyle::Style;
use onload_cdi::Registry;
use onload_host::devices::inventory::Inventory;
use onload_host::pools::discover_with_pools;
use onload_host::settings;
use onload_report::doctor::{Check, Examined, Family, Verdict, examine};
use serde_json::json;

use super::{process, spec_dirs, watched_host};
use crate::cli::{Doctor, Global, Listing};
use crate::exit::Answer;
use crate::layout::{in_a_line, paragraph};
use crate::printer::{DIM, ERROR, GOOD, HEADING, Printer, WARNING};

const HANGING: &str = "           ";
const WORD: usize = 7;

pub fn run(global: &Global, args: &Doctor, printer: &mut Printer) -> anyhow::Result<Answer> {
    let (_, checks) = examined(global, printer)?;
    match args.format {
        Listing::Json => {
            let object = json!({
                "version": env!("CARGO_PKG_VERSION"),
                "verdict": overall(&checks),
                "checks": checks,
            });
            printer.print_json(&object)?;
        }
        Listing::Table => print(&checks, global.verbose, printer)?,
    }
    Ok(match overall(&checks) {
        Verdict::Fail => Answer::No,
        Verdict::Unknown => Answer::Unknown,
        Verdict::Pass | Verdict::Warn => Answer::Yes,
    })
}

/// What the host has, and what every check found.
pub(super) fn examined(
    global: &Global,
    printer: &mut Printer,
) -> anyhow::Result<(Inventory, Vec<Check>)> {
    let host = watched_host(global)?;
    let (config, problems) = settings::load_leniently(&host, global.config.as_deref())?;
    printer.progress("looking at this host");
    let (inventory, pools) = discover_with_pools(&host, &config);
    let specs = Registry::scan(&spec_dirs(&host, &[])?);
    let examined = Examined {
        host: &host,
        config: &config,
        config_problems: &problems,
        inventory: &inventory,
        pools: &pools,
        specs: &specs,
        version_of: &|program: &Path| process::version_of(&host, program),
    };
    let checks = examine(&examined, |name| {
        printer.progress(format_args!("checking {name}"));
    });
    printer.end_progress();
    Ok((inventory, checks))
}

/// The checks of a name, such as those of the engines one by one.
pub(super) fn of<'c>(checks: &'c [Check], name: &'static str) -> impl Iterator<Item = &'c Check> {
    checks.iter().filter(move |check| check.name == name)
}

/// What keeps containers of an engine from asking for devices.
pub(super) fn obstacle<'c>(checks: &'c [Check], engine: &Check) -> Option<&'c Check> {
    let names = ["engine-version", "engine-cdi", "engine-restarted"];
    let all = names.into_iter().flat_map(|name| of(checks, name));
    let mut own = all.filter(|check| check.finding.subject == engine.finding.subject);
    own.find(|check| check.finding.verdict != Verdict::Pass)
}

/// What a check found, with the first thing to do.
pub(super) fn advised(check: &Check) -> String {
    let finding = &check.finding;
    match finding.remedy.first() {
        Some(remedy) => format!("{}; {remedy}", finding.finding),
        None => finding.finding.clone(),
    }
}

/// A failed check decides, then one whose result is unknown.
fn overall(checks: &[Check]) -> Verdict {
    let mut order = [Verdict::Fail, Verdict::Unknown, Verdict::Warn].into_iter();
    let found = order.find(|verdict| of_verdict(checks, *verdict) > 0);
    found.unwrap_or(Verdict::Pass)
}

fn of_verdict(checks: &[Check], verdict: Verdict) -> usize {
    let checks = checks.iter();
    checks.filter(|check| check.finding.verdict == verdict).count()
}

fn print(checks: &[Check], verbose: bool, printer: &mut Printer) -> anyhow::Result<()> {
    let mut family: Option<Family> = None;
    for check in checks {
        if family.replace(check.family) != Some(check.family) {
            printer.print(format_args!("{HEADING}{}{HEADING:#}\n", check.family))?;
        }
        print_check(check, verbose, printer)?;
    }
    let count = |verdict| of_verdict(checks, verdict);
    let summary = format!(
        "{} passed, {} warned, {} failed, {} unknown",
        count(Verdict::Pass),
        count(Verdict::Warn),
        count(Verdict::Fail),
        count(Verdict::Unknown),
    );
    printer.print(paragraph("\n", "", &summary, printer.columns()))?;
    Ok(())
}

fn print_check(check: &Check, verbose: bool, printer: &mut Printer) -> anyhow::Result<()> {
    let (finding, columns) = (&check.finding, printer.columns());
    let style = style(finding.verdict);
    let word = finding.verdict.as_str();
    let gap = " ".repeat(WORD.saturating_sub(word.len()));
    let subject = finding.subject.as_deref();
    let subject = subject.map(|subject| format!(" {}", in_a_line(subject)));
    let text =
        format!("{}{}: {}", check.name, subject.unwrap_or_default(), in_a_line(&finding.finding));
    let first = format!("  {style}{word}{style:#}{gap}  ");
    printer.print(paragraph(&first, HANGING, &text, columns))?;
    if finding.verdict != Verdict::Pass || verbose {
        let paths = finding.looked_at.iter();
        let paths: Vec<String> = paths.map(|path| path.display().to_string()).collect();
        let text = format!("{DIM}looked at {}{DIM:#}", in_a_line(&paths.join(", ")));
        if !paths.is_empty() {
            printer.print(paragraph(HANGING, HANGING, &text, columns))?;
        }
    }
    for remedy in &finding.remedy {
        // A command or line is copied: it stays on one line.
        let remedy = in_a_line(&remedy.to_string());
        printer.print(format_args!("{HANGING}{remedy}\n"))?;
    }
    Ok(())
}

fn style(verdict: Verdict) -> Style {
    match verdict {
        Verdict::Pass => GOOD,
        Verdict::Warn | Verdict::Unknown => WARNING,
        Verdict::Fail => ERROR,
    }
}
