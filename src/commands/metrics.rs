//! `metrics`: numbers of a host for collectors.

use std::time::SystemTime;

use anyhow::Context;
use onload_cdi::Registry;
use onload_host::leases;
use onload_host::offers::build_offers;
use onload_host::pools::discover_with_pools;
use onload_host::specdir::FILE_PREFIX;
use onload_report::metrics::{MetricsInput, render_openmetrics};
use onload_report::status::list_grants;

use super::generate::write_file;
use super::status::inspect_containers;
use super::{open_host_of_incident, resolve_spec_dirs};
use crate::cli::{GlobalArgs, MetricsArgs};
use crate::exit::{CommandResult, ExitAnswer};
use crate::printer::Printer;

pub fn run(global: &GlobalArgs, args: &MetricsArgs, printer: &mut Printer) -> CommandResult {
    let (host, config) = open_host_of_incident(global, printer)?;
    let (inventory, pools) = discover_with_pools(&host, &config);
    let specs = Registry::scan(&resolve_spec_dirs(&host, &[])?);
    let leases = leases::list(&host);
    if let Err(error) = &leases {
        printer.warning(format_args!("leases and holders are omitted: {error:#}"));
    }
    let leases = leases.ok();
    let devices = build_offers(&inventory, &specs, &pools, leases.as_deref().unwrap_or_default());
    let has_specs = specs.paths().iter().any(|path| {
        let name = path.file_name().unwrap_or_default();
        name.as_encoded_bytes().starts_with(FILE_PREFIX.as_bytes())
    });
    if !devices.is_empty() && !has_specs {
        printer.warning(
            "no specification exists yet, so every device counts as unhealthy; run \"onload-ctk \
             cdi generate\"",
        );
    }
    let grantees = list_grants(&host).ok();
    let status = inspect_containers(&host, &inventory, printer).ok();
    let text = render_openmetrics(MetricsInput {
        host: &host,
        inventory: &inventory,
        devices: &devices,
        leases: leases.as_deref(),
        grantees: grantees.as_deref(),
        containers: status.as_ref().map(|status| status.containers.as_slice()),
        now: SystemTime::now(),
    })?;
    match &args.output {
        None => printer.print(text)?,
        Some(path) => {
            write_file(path, text.as_bytes()).context("writing metrics")?;
            printer.note(format_args!("wrote {}", path.display()));
        }
    }
    Ok(ExitAnswer::Yes)
}
