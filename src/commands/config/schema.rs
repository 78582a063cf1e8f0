//! `config schema`: the JSON Schema of the configuration file.

use onload_core::config::config_schema;

use crate::exit::ExitAnswer;
use crate::printer::Printer;

pub fn run(printer: &mut Printer) -> anyhow::Result<ExitAnswer> {
    printer.print(serde_json::to_string_pretty(&config_schema())? + "\n")?;
    Ok(ExitAnswer::Yes)
}
