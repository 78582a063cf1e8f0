//! `onload-nomad-device`: parse, shake hands, serve, report errors.

use std::env;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use onload_nomad::cli::NomadCli;
use onload_nomad::log;
use onload_nomad::plugin::handshake::{self, Handshake};
use onload_nomad::plugin::serve::serve;
use onload_nomad::surveyor::NomadSurveyor;

fn main() -> ExitCode {
    log::start();
    let cli = match NomadCli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && is_plugin() => {
            let lines = error.to_string();
            let message = lines.lines().next().unwrap_or_default().trim_start_matches("error: ");
            tracing::error!(
                "{message}; correct args in the block of this plugin in the agent's configuration"
            );
            return ExitCode::from(2);
        }
        Err(error) => error.exit(),
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::FAILURE
        }
    }
}

fn is_plugin() -> bool {
    handshake::is_started_by_nomad(|name| env::var_os(name))
}

/// Reports an error in the log's format to an agent, which shows the level only of such lines.
fn report(error: &anyhow::Error) {
    if is_plugin() {
        tracing::error!("{error:#}");
    } else {
        // A failure here cannot be reported.
        let _ = writeln!(io::stderr(), "onload-nomad-device: {error:#}");
    }
}

fn run(cli: NomadCli) -> anyhow::Result<()> {
    let handshake = Handshake::from_environment(|name| env::var_os(name))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let surveyor = NomadSurveyor::new(cli);
    let served = runtime.block_on(serve(&handshake, surveyor));
    // Does not wait for the thread that surveys the host.
    runtime.shutdown_background();
    served
}
