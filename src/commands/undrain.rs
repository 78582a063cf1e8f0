//! `undrain`: offers again what was drained.

use onload_host::drain;
use serde_json::json;

use super::drain::{format_targets, specs, targets, update_drain};
use super::{discover_host, open_host};
use crate::cli::{GlobalArgs, ListFormat, UndrainArgs};
use crate::exit::{CommandResult, ExitAnswer};
use crate::printer::Printer;

pub fn run(global: &GlobalArgs, args: &UndrainArgs, printer: &mut Printer) -> CommandResult {
    let (host, config) = open_host(global)?;
    let before = drain::read(&host)?;
    let targets = if args.all {
        before.iter().map(|entry| entry.target.clone()).collect()
    } else {
        targets::resolve_drained(&args.names, &before, || discover_host(&host, &config, printer))?
    };
    let is_json = args.format == ListFormat::Json;
    if is_json {
        let names: Vec<String> = targets.iter().map(ToString::to_string).collect();
        printer.print_json(&json!({
            "version": env!("CARGO_PKG_VERSION"),
            "undrained": names,
            "dry_run": args.dry_run,
        }))?;
    }
    if targets.is_empty() {
        let subject = if args.all {
            "nothing".to_owned()
        } else {
            format!("nothing of {}", args.names.join(", "))
        };
        printer.note(format_args!("{subject} is drained"));
        return Ok(ExitAnswer::Yes);
    }
    let names = format_targets(&targets);
    if args.dry_run {
        if !is_json {
            printer.print(format_args!("would undrain {names}\n"))?;
        }
        return Ok(ExitAnswer::Yes);
    }
    update_drain(&host, |drain| {
        for target in &targets {
            drain.remove(target);
        }
    })?;
    printer.note(format_args!("{names}: no longer drained"));
    specs::rewrite_specs(&host, &config, printer)?;
    Ok(ExitAnswer::Yes)
}
