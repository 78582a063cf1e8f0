//! `host plan` and `host apply`: the host itself, as the sections `[[sriov]]` and `[host]` want it.

pub mod apply;
pub mod plan;

use anyhow::{Result, anyhow};
use onload_core::config::Config;
use onload_core::host_settings::HostSettings;
use onload_host::boot::{Absent, Kernel, Running, Step};
use onload_host::host::Host;

use crate::printer::Printer;

const NOTHING: &str = "nothing to change on this host";
const NOTHING_WANTED: &str =
    "nothing to change on this host: config.toml has neither [[sriov]] nor anything under [host]";

fn wants_nothing(config: &Config) -> bool {
    config.sriov.is_empty() && config.host == HostSettings::default()
}

fn kernel(host: &Host) -> Box<dyn Kernel> {
    if host.is_running() {
        Box::new(Running::default())
    } else {
        Box::new(Absent)
    }
}

fn line(step: &Step) -> String {
    let Step {
        subject,
        setting,
        now,
        wanted,
        ..
    } = step;
    format!("{subject}: {setting}: {now} -> {wanted}")
}

/// Reports each line of what was not done, the last as the error that ends the program.
fn all_or_error(lines: Vec<String>, printer: &mut Printer) -> Result<()> {
    let mut lines = lines.into_iter().peekable();
    while let Some(line) = lines.next() {
        if lines.peek().is_none() {
            return Err(anyhow!(line));
        }
        printer.error(line);
    }
    Ok(())
}
