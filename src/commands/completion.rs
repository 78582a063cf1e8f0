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
    // clap_complete 4.6 writes the hyphen of our name in two ways into the script for bash, and then
    // knows no command below the first word.
    let script = String::from_utf8_lossy(&script).replace("onload__subcmd__ctk", "onload__ctk");
    printer.print(script)?;
    Ok(Answer::Yes)
}
