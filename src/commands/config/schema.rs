//! `config schema`: the JSON Schema of the configuration file.

use onload_core::config::config_schema;

use crate::exit::{CommandResult, ExitAnswer};
use crate::printer::Printer;

pub fn run(printer: &mut Printer) -> CommandResult {
    printer.print(serde_json::to_string_pretty(&config_schema())? + "\n")?;
    Ok(ExitAnswer::Yes)
}
