//! `onload-ctk`: parse, dispatch, report errors.

use std::process::ExitCode;

use onload_ctk::cli::{
    CdiCommand, Cli, Command, ConfigCommand, ContainerCommand, HostCommand, LeaseCommand,
    RuntimeCommand, early_color, format_usage_error,
};
use onload_ctk::commands;
use onload_ctk::exit::{CommandResult, FAILURE};
use onload_ctk::permissions;
use onload_ctk::printer::Printer;

fn main() -> ExitCode {
    match commands::completion::try_complete() {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => error.exit(),
    }
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(error) => {
            let line = format_usage_error(&error).unwrap_or_else(|| error.exit());
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
            // `{error:#}` includes the chain of causes.
            let advice = permissions::permission_advice(error.as_ref());
            printer.error(format_args!("{error:#}{advice}"));
            ExitCode::from(FAILURE)
        }
    }
}

fn run(cli: &Cli, printer: &mut Printer) -> CommandResult {
    let global = &cli.global;
    let Some(command) = &cli.command else {
        return commands::overview::run(global, cli.format, printer);
    };
    match command {
        Command::Discover(args) => commands::discover::run(global, args, printer),
        Command::Metrics(args) => commands::metrics::run(global, args, printer),
        Command::Status(args) => commands::status::run(global, args, printer),
        Command::Topology(args) => commands::topology::run(global, args, printer),
        Command::Try(args) => commands::trial::run(global, args, printer),
        Command::Doctor(args) => commands::doctor::run(global, args, printer),
        Command::Cdi(CdiCommand::Generate(args)) => commands::generate::run(global, args, printer),
        Command::Cdi(CdiCommand::Show(args)) => commands::show::run(global, args, printer),
        Command::Cdi(CdiCommand::Preview(args)) => commands::preview::run(global, args, printer),
        Command::Cdi(CdiCommand::List(args)) => commands::list::run(global, args, printer),
        Command::Cdi(CdiCommand::Check(args)) => commands::check::run(global, args, printer),
        Command::Cdi(CdiCommand::Validate(args)) => commands::validate::run(global, args, printer),
        Command::Cdi(CdiCommand::Inject(args)) => commands::inject::run(global, args, printer),
        Command::Config(ConfigCommand::Show(args)) => commands::config::show(global, args, printer),
        Command::Config(ConfigCommand::Validate(args)) => {
            commands::config::validate(global, args, printer)
        }
        Command::Config(ConfigCommand::Schema) => commands::config::print_schema(printer),
        Command::Container(ContainerCommand::Explain(args)) => {
            commands::explain::run(global, args, printer)
        }
        Command::Drain(args) => commands::drain::run(global, args, printer),
        Command::Undrain(args) => commands::drain::undrain(global, args, printer),
        Command::Lease(LeaseCommand::List(args)) => commands::lease::list(global, args, printer),
        Command::Lease(LeaseCommand::Release(args)) => {
            commands::lease::release(global, args, printer)
        }
        Command::Lease(LeaseCommand::Restore) => commands::lease::restore(global, printer),
        Command::Host(HostCommand::Plan(args)) => commands::host::plan(global, args, printer),
        Command::Host(HostCommand::Apply(args)) => commands::host::apply(global, args, printer),
        Command::Runtime(RuntimeCommand::Configure(args)) => {
            commands::configure::run(global, args, printer)
        }
        Command::Runtime(RuntimeCommand::Behind) => commands::behind::run(global, printer),
        Command::Completion(args) => commands::completion::run(args, printer),
        Command::Man(args) => commands::man::run(args),
        Command::Probe(args) => commands::probe::run(args, printer),
    }
}
