//! Writes the specifications after a drain with the options of the last run.

use anyhow::Result;
use onload_core::config::Config;
use onload_host::drift::{Drift, DriftInput, find_drift};
use onload_host::generate::InstalledFiles;
use onload_host::host::Host;
use onload_host::specdir::{SpecDir, is_daemon_writer};

use crate::commands::discover_host;
use crate::commands::generate::{directory_path, find_directory, report};
use crate::printer::Printer;

/// With the kinds, the format and the version that they were written with.
pub(in crate::commands) fn rewrite_specs(
    host: &Host,
    config: &Config,
    printer: &mut Printer,
) -> Result<()> {
    if is_daemon_writer(host)? {
        printer.note("the daemon for Kubernetes updates the specifications");
        return Ok(());
    }
    let path = directory_path(host, None);
    let Some(directory) = find_directory(host, None)? else { return Ok(()) };
    let _lock = SpecDir::lock(&directory)?;
    let manifest = directory.read_manifest()?.map_err(anyhow::Error::msg)?;
    // If none were written, there is nothing to withdraw.
    let Some(manifest) = manifest else { return Ok(()) };
    let (inventory, pools) = discover_host(host, config, printer);
    let Drift { plan, .. } = find_drift(DriftInput {
        existing: &directory.read_files()?,
        manifest: Some(&manifest),
        inventory: &inventory,
        pools: &pools,
        config,
        installed: InstalledFiles::read(host, config)?,
    })?;
    directory.apply(&plan)?;
    report(&plan, &path, printer);
    for name in plan.left_files().chain(plan.undecided_files()) {
        printer.warning(format_args!(
            "{} was not changed, and may offer drained devices; \"onload-ctk cdi generate\" says \
             why",
            path.join(name).display()
        ));
    }
    Ok(())
}
