//! `runtime behind`: the OCI runtime that the wrapper becomes. If the package is removed while containers are left,
//! that runtime replaces the wrapper, since only it finds their state.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use onload_core::config::CONFIG_PATH;
use onload_engines::oci_runtime::find_runtime_behind;
use onload_hooks::entry::wrapper::configured_runtime;
use onload_hooks::record::runtime_record::{self, RuntimeRecord};
use onload_host::host::Host;
use onload_lease::run_dir::RUN_DIR;
use onload_sys::fs::regular;
use onload_sys::text::format_count;

use crate::cli::GlobalArgs;
use crate::exit::{CommandResult, ExitAnswer};
use crate::printer::Printer;

/// Bytes of a configuration; the file that comes with the package has some thousand.
const MAX_BYTES: u64 = 1024 * 1024;

pub fn run(global: &GlobalArgs, printer: &mut Printer) -> CommandResult {
    let host = Host::open(&global.host_root)?;
    let counts = count_by_runtime(&host)?;
    let mut most_used: Option<(&PathBuf, usize)> = None;
    for (runtime, count) in &counts {
        let is_used_more = most_used.is_none_or(|(_, most)| *count >= most);
        if is_used_more && host.entry(runtime)?.is_some() {
            most_used = Some((runtime, *count));
        }
    }
    let runtime = match most_used {
        Some((runtime, _)) => runtime.clone(),
        None => read_configured_runtime(&host, global.config.as_deref())?,
    };
    for (other, count) in counts.iter().filter(|(other, _)| **other != runtime) {
        printer.warning(format_args!(
            "{} created by {other}, which {} does not find: end these with {other} first",
            format_count(*count, "container was", "containers were"),
            runtime.display(),
            other = other.display()
        ));
    }
    printer.print(format_args!("{}\n", runtime.display()))?;
    Ok(ExitAnswer::Yes)
}

fn count_by_runtime(host: &Host) -> Result<BTreeMap<PathBuf, usize>> {
    let dir = Path::new(RUN_DIR).join(runtime_record::NAME);
    let mut counts = BTreeMap::<PathBuf, usize>::new();
    for name in host.list(&dir)?.names {
        if name == runtime_record::CONFIGURED {
            continue;
        }
        // If the file has vanished since it was listed, its container has exited.
        let Some(bytes) = host.bytes(&dir.join(name), MAX_BYTES)? else {
            continue;
        };
        if let Ok(record) = RuntimeRecord::parse(&bytes) {
            *counts.entry(record.runtime).or_default() += 1;
        }
    }
    Ok(counts)
}

/// The runtime that the wrapper starts for new containers.
fn read_configured_runtime(host: &Host, file: Option<&Path>) -> Result<PathBuf> {
    let named = read_named_runtime(host, file)?;
    find_runtime_behind(host, &named)?
        .context("looking for the OCI runtime behind onload-container-runtime: none is installed")
}

/// The runtime that the configuration names, whatever else is wrong with it: the wrapper reads it so. Empty if it names
/// none.
pub(super) fn read_named_runtime(host: &Host, file: Option<&Path>) -> Result<PathBuf> {
    let config_path =
        file.map_or_else(|| host.outside_path(Path::new(CONFIG_PATH)), Path::to_owned);
    let bytes = match file {
        None => host.bytes(Path::new(CONFIG_PATH), MAX_BYTES)?,
        Some(path) => Some(
            regular::read(path, MAX_BYTES)
                .with_context(|| format!("reading configuration {}", path.display()))?,
        ),
    };
    let runtime = configured_runtime(&String::from_utf8_lossy(&bytes.unwrap_or_default()));
    runtime.with_context(|| {
        let config_path = config_path.display();
        format!("reading configuration {config_path}: [runtime] does not name the runtime clearly")
    })
}
