//! `onload-kubernetes`: parse, dispatch, report errors.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use onload_host::host::Host;
use onload_kubernetes::cli::{Cli, Command, Global, Health, Install, Uninstall};
use onload_kubernetes::install::{self, Place, Report};
use onload_kubernetes::observe::health::ask;
use onload_kubernetes::run;
use onload_sys::fs::trust::TrustedOwners;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match dispatch(&cli) {
        Ok(status) => status,
        Err(error) => {
            // Nobody is left to be told that this failed.
            let _ = writeln!(io::stderr(), "onload-kubernetes: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn dispatch(cli: &Cli) -> Result<ExitCode> {
    match &cli.command {
        Command::Run(args) => run::run(&cli.global, args)?,
        Command::Health(args) => return health(args),
        Command::Install(args) => install(&cli.global, args)?,
        Command::Uninstall(args) => return uninstall(&cli.global, *args),
    }
    Ok(ExitCode::SUCCESS)
}

fn install(global: &Global, args: &Install) -> Result<()> {
    install::refuse_user_namespace()?;
    let host = Host::open(&global.host_root)?;
    let (place, config) = (place(global, &host), args.default_config.as_deref());
    print(&install::install(&place, &args.from, config, args.force)?)?;
    Ok(())
}

fn health(args: &Health) -> Result<ExitCode> {
    let state = ask(&args.health_socket)?;
    let reason = if args.ready { state.not_ready } else { state.stuck };
    let (line, status) = match reason {
        None => ("ok".to_owned(), ExitCode::SUCCESS),
        Some(reason) => (reason, ExitCode::FAILURE),
    };
    writeln!(io::stdout(), "{line}")?;
    Ok(status)
}

fn uninstall(global: &Global, args: Uninstall) -> Result<ExitCode> {
    install::refuse_user_namespace()?;
    let host = Host::open(&global.host_root)?;
    let report = install::uninstall(&place(global, &host))?;
    print(&report)?;
    if !report.in_use.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    if args.stay {
        wait_for_term()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn place<'p>(global: &'p Global, host: &'p Host) -> Place<'p> {
    Place { host, directory: &global.hook_dir, owners: TrustedOwners::root() }
}

fn print(report: &Report) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for line in report.done.iter().chain(&report.kept).chain(&report.in_use) {
        writeln!(out, "{line}")?;
    }
    out.flush()
}

fn wait_for_term() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        signal(SignalKind::terminate())?.recv().await;
        Ok(())
    })
}
