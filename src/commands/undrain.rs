//! `undrain`: offers again what was drained.

use onload_host::drain;

use super::drain::{change, names, specs, words};
use super::{look, open_host};
use crate::cli::{Global, Undrain};
use crate::exit::Answer;
use crate::printer::Printer;

pub fn run(global: &Global, args: &Undrain, printer: &mut Printer) -> anyhow::Result<Answer> {
    let (host, config) = open_host(global)?;
    let before = drain::read(&host)?;
    let targets = if args.all {
        before.iter().map(|one| one.target.clone()).collect()
    } else {
        words::drained(&args.names, &before, || look(&host, &config, printer))?
    };
    if targets.is_empty() {
        let what = if args.all {
            "nothing".to_owned()
        } else {
            format!("nothing of {}", args.names.join(", "))
        };
        printer.note(format_args!("{what} is drained"));
        return Ok(Answer::Yes);
    }
    let offered = names(&targets);
    if args.dry_run {
        printer.print(format_args!("would undrain {offered}\n"))?;
        return Ok(Answer::Yes);
    }
    change(&host, |drain| {
        for target in &targets {
            drain.remove(target);
        }
    })?;
    printer.note(format_args!("{offered}: no longer drained"));
    specs::make(&host, &config, printer)?;
    Ok(Answer::Yes)
}
