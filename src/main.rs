//! `onload-ctk`: parse, dispatch, report errors.

use std::process::ExitCode;

use onload_ctk::cli::{Cdi, Cli, Command, Container, Host, Lease, Runtime, early_color, refusal};
use onload_ctk::commands;
use onload_ctk::exit::{Answer, FAILURE};
use onload_ctk::printer::Printer;
use onload_ctk::rights;

fn main() -> ExitCode {
    match commands::completion::answer() {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => error.exit(),
    }
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(error) => {
            let line = refusal(&error).unwrap_or_else(|| error.exit());
            Printer::new(early_color().into(), false, false).error(line);
            return ExitCode::from(FAILURE);
        }
    };
    let global = &cli.global;
    let mut printer = Printer::new(global.color.into(), global.quiet, global.verbose);
    let result = run(&cli, &mut printer).and_then(|answer| {
        printer.flush()?;
        Ok(answer)
    });
    match result {
        Ok(answer) => answer.into(),
        Err(error) => {
            // With its causes, each of which says itself alone.
            let advice = rights::advice(error.as_ref());
            printer.error(format_args!("{error:#}{advice}"));
            ExitCode::from(FAILURE)
        }
    }
}

fn run(cli: &Cli, printer: &mut Printer) -> anyhow::Result<Answer> {
    let global = &cli.global;
    let Some(command) = &cli.command else {
        return commands::overview::run(global, printer);
    };
    match command {
        Command::Discover(args) => commands::discover::run(global, args, printer),
        Command::Metrics(args) => commands::metrics::run(global, args, printer),
        Command::Status(args) => commands::status::run(global, args, printer),
        Command::Topology(args) => commands::topology::run(global, args, printer),
        Command::Try(args) => commands::trial::run(global, args, printer),
        Command::Doctor(args) => commands::doctor::run(global, args, printer),
        Command::Cdi(Cdi::Generate(args)) => commands::generate::run(global, args, printer),
        Command::Cdi(Cdi::Show(args)) => commands::show::run(global, args, printer),
        Command::Cdi(Cdi::Preview(args)) => commands::preview::run(global, args, printer),
        Command::Cdi(Cdi::List(args)) => commands::list::run(global, args, printer),
        Command::Cdi(Cdi::Check(args)) => commands::check::run(global, args, printer),
        Command::Cdi(Cdi::Validate(args)) => commands::validate::run(global, args, printer),
        Command::Cdi(Cdi::Inject(args)) => commands::inject::run(global, args, printer),
        Command::Container(Container::Explain(args)) => {
            commands::explain::run(global, args, printer)
        }
        Command::Drain(args) => commands::drain::run(global, args, printer),
        Command::Undrain(args) => commands::undrain::run(global, args, printer),
        Command::Lease(Lease::List(args)) => commands::lease::list::run(global, args, printer),
        Command::Lease(Lease::Release(args)) => {
            commands::lease::release::run(global, args, printer)
        }
        Command::Lease(Lease::Restore) => commands::lease::restore::run(global, printer),
        Command::Host(Host::Plan(args)) => commands::host::plan::run(global, args, printer),
        Command::Host(Host::Apply) => commands::host::apply::run(global, printer),
        Command::Runtime(Runtime::Configure(args)) => {
            commands::configure::run(global, args, printer)
        }
        Command::Runtime(Runtime::Behind) => commands::behind::run(global, printer),
        Command::Completion(args) => commands::completion::run(args, printer),
        Command::Man(args) => commands::man::run(args),
        Command::Probe(args) => commands::probe::run(args, printer),
    }
}
