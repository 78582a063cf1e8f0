//! `onload-kubernetes`: parse, dispatch, report errors.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use onload_host::host::Host;
use onload_kubernetes::cli::{
    HealthArgs, InstallArgs, KubernetesArgs, KubernetesCli, KubernetesCommand, UninstallArgs,
};
use onload_kubernetes::install::{self, InstallReport, InstallSite};
use onload_kubernetes::observe::health::query;
use onload_kubernetes::run;
use onload_sys::fs::trust::TrustedOwners;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let cli = KubernetesCli::parse();
    match dispatch(&cli) {
        Ok(status) => status,
        Err(error) => {
            // A failure here cannot be reported.
            let _ = writeln!(io::stderr(), "onload-kubernetes: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn dispatch(cli: &KubernetesCli) -> Result<ExitCode> {
    match &cli.command {
        KubernetesCommand::Run(args) => run::run(&cli.global, args)?,
        KubernetesCommand::Health(args) => return health(args),
        KubernetesCommand::Install(args) => install(&cli.global, args)?,
        KubernetesCommand::Uninstall(args) => return uninstall(&cli.global, *args),
    }
    Ok(ExitCode::SUCCESS)
}

fn install(global: &KubernetesArgs, args: &InstallArgs) -> Result<()> {
    install::refuse_user_namespace()?;
    let host = Host::open(&global.host_root)?;
    let (site, config) = (install_site(global, &host), args.default_config.as_deref());
    print(&install::install(&site, &args.from, config, args.force)?)?;
    Ok(())
}

fn health(args: &HealthArgs) -> Result<ExitCode> {
    let path = if args.ready { "/readyz" } else { "/healthz" };
    let (is_good, text) = query(&args.health_socket, path)?;
    io::stdout().write_all(text.as_bytes())?;
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn uninstall(global: &KubernetesArgs, args: UninstallArgs) -> Result<ExitCode> {
    install::refuse_user_namespace()?;
    let host = Host::open(&global.host_root)?;
    let report = install::uninstall(&install_site(global, &host))?;
    print(&report)?;
    if !report.in_use.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    if args.stay {
        wait_for_term()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn install_site<'p>(global: &'p KubernetesArgs, host: &'p Host) -> InstallSite<'p> {
    InstallSite { host, directory: &global.hook_dir, owners: TrustedOwners::root() }
}

fn print(report: &InstallReport) -> io::Result<()> {
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
