//! `config validate`: reads a configuration file as strictly as every command that uses it.

use onload_host::settings;

use crate::cli::{ConfigValidateArgs, GlobalArgs};
use crate::commands::open_traced_host;
use crate::exit::ExitAnswer;
use crate::printer::Printer;

pub fn run(
    global: &GlobalArgs,
    args: &ConfigValidateArgs,
    printer: &mut Printer,
) -> anyhow::Result<ExitAnswer> {
    let host = open_traced_host(global)?;
    let config_file = args.file.as_deref().or(global.config.as_deref());
    settings::load(&host, config_file)?;
    let path = settings::config_path(&host, config_file);
    let path = path.display();
    match settings::read(&host, config_file)? {
        Some(_) => printer.note(format_args!("{path} is valid")),
        None => printer.note(format_args!("{path} does not exist")),
    }
    Ok(ExitAnswer::Yes)
}
