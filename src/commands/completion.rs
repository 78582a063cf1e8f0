//! `completion`: scripts for shells, from the definition of the command line.

use clap::CommandFactory;

use crate::cli::{Cli, Completion};
use crate::exit::Answer;
use crate::printer::Printer;

/// Runs the command.
///
/// # Errors
/// Nobody reads stdout.
pub fn run(args: &Completion, printer: &mut Printer) -> anyhow::Result<Answer> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "onload-ctk", &mut script);
    printer.print(String::from_utf8_lossy(&script))?;
    Ok(Answer::Yes)
}
