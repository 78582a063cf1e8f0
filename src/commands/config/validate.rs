//! `config validate`: reads a configuration file as strictly as every command that uses it.

use super::read_valid;
use crate::cli::{ConfigValidateArgs, GlobalArgs};
use crate::exit::{CommandResult, ExitAnswer};
use crate::printer::Printer;

pub fn run(global: &GlobalArgs, args: &ConfigValidateArgs, printer: &mut Printer) -> CommandResult {
    let config_file = args.file.as_deref().or(global.config.as_deref());
    match read_valid(global, config_file)? {
        (path, Some(_)) => printer.note(format_args!("{path} is valid")),
        (path, None) => printer.note(format_args!("{path} does not exist")),
    }
    Ok(ExitAnswer::Yes)
}
