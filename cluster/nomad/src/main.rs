//! `onload-nomad-device`: parse, shake hands, serve, report errors.

use std::env;
use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use onload_core::text::Chain;
use onload_nomad::cli::Cli;
use onload_nomad::plugin::handshake::Handshake;
use onload_nomad::plugin::serve::serve;
use onload_nomad::surveyor::Surveyor;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to be told that this failed.
            let _ = writeln!(
                io::stderr(),
                "onload-nomad-device: {}",
                Chain(error.as_ref())
            );
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<(), Box<dyn Error>> {
    let handshake = Handshake::of(|name| env::var_os(name))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let surveyor = Surveyor::new(cli.into());
    let served = runtime.block_on(serve(&handshake, surveyor));
    // The thread that looks at the host is not waited for.
    runtime.shutdown_background();
    Ok(served?)
}
