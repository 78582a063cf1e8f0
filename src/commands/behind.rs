//! `runtime behind`: the OCI runtime that the wrapper becomes. Where the package is removed while
//! containers are left, that runtime takes the wrapper's place: it alone finds their state.

use std::path::Path;

use anyhow::bail;
use onload_hooks::runtime::RUNTIMES;

use super::open_host;
use crate::cli::Global;
use crate::exit::Answer;
use crate::printer::Printer;

/// Runs the command.
///
/// # Errors
/// The configuration is not understood, or there is no such runtime.
pub fn run(global: &Global, printer: &mut Printer) -> anyhow::Result<Answer> {
    let (host, config) = open_host(global)?;
    let named = config.runtime.path;
    let candidates = match named.as_os_str().is_empty() {
        true => RUNTIMES.map(Path::new).to_vec(),
        false => vec![named.as_path()],
    };
    for path in candidates {
        if host.entry(path)?.is_some() {
            printer.print(format_args!("{}\n", path.display()))?;
            return Ok(Answer::Yes);
        }
    }
    bail!("looking for the OCI runtime behind onload-container-runtime: there is none")
}
