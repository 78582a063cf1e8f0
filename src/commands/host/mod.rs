//! `host plan` and `host apply`: the host itself, as the sections `[[sriov]]` and `[host]` want it.

pub mod apply;
pub mod plan;

use anyhow::{Result, anyhow};
use onload_core::config::Config;
use onload_core::host_settings::HostSettings;
use onload_host::boot::HostStep;

use crate::printer::Printer;

const NOTHING: &str = "nothing to change on this host";
const NOTHING_WANTED: &str =
    "nothing to change on this host: config.toml has neither [[sriov]] nor settings under [host]";

fn has_no_host_settings(config: &Config) -> bool {
    config.sriov.is_empty() && config.host == HostSettings::default()
}

fn format_step(step: &HostStep) -> String {
    let HostStep { subject, setting, now, wanted, .. } = step;
    format!("{subject}: {setting}: {now} -> {wanted}")
}

/// Reports each line of what was not done, the last as the error that ends the program.
fn report_failures(lines: Vec<String>, printer: &mut Printer) -> Result<()> {
    let mut lines = lines.into_iter().peekable();
    while let Some(line) = lines.next() {
        if lines.peek().is_none() {
            return Err(anyhow!(line));
        }
        printer.error(line);
    }
    Ok(())
}
