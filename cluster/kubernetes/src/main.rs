//! `onload-kubernetes`: parse, dispatch, report errors.

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use onload_core::text::Chain;
use onload_kubernetes::cli::{Cli, Command};
use onload_kubernetes::run;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match dispatch(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to be told that this failed.
            let _ = writeln!(
                std::io::stderr(),
                "onload-kubernetes: {}",
                Chain(error.as_ref())
            );
            ExitCode::from(2)
        }
    }
}

fn dispatch(cli: &Cli) -> Result<(), Box<dyn Error>> {
    match &cli.command {
        Command::Run(args) => Ok(run::run(&cli.global, args)?),
    }
}
