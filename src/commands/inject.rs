//! `cdi inject`: devices into an OCI configuration, from stdin to stdout, as an engine would.

use std::io::{self, IsTerminal};
use std::path::Path;

use anyhow::{Context, bail};
use onload_cdi::oci::{HostNode, NodeLookup, OciConfig, OciConfigError, apply, map_ids};
use onload_host::host::Host;
use onload_sys::fs::regular;
use onload_sys::text::ErrorChain;

use super::device_name::parse_qualified_names;
use super::{open_host, resolve_devices, resolve_spec_dirs, scan, warn_of_files};
use crate::cli::{GlobalArgs, InjectArgs};
use crate::exit::{CommandResult, ExitAnswer};
use crate::printer::Printer;

/// Bytes of a configuration; those of engines have some ten thousand.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

pub(super) struct HostNodeLookup<'h>(pub(super) &'h Host);

impl NodeLookup for HostNodeLookup<'_> {
    fn node(&self, host_path: &str) -> io::Result<HostNode> {
        let entry = self
            .0
            .device_node(Path::new(host_path))
            .map_err(|error| io::Error::other(ErrorChain(&error).to_string()))?;
        entry.ok_or_else(|| {
            let message = format!(
                "device node {} not found; its specification may be out of date: run \
                 \"onload-ctk cdi check\"",
                self.0.outside_path(Path::new(host_path)).display()
            );
            io::Error::new(io::ErrorKind::NotFound, message)
        })
    }
}

const READ_CONTEXT: &str = "reading the OCI configuration on stdin";

fn read_error(error: OciConfigError) -> anyhow::Error {
    match error {
        OciConfigError::Read(cause) => anyhow::Error::new(cause).context(READ_CONTEXT),
        error => anyhow::Error::new(error).context(READ_CONTEXT),
    }
}

pub fn run(global: &GlobalArgs, args: &InjectArgs, printer: &mut Printer) -> CommandResult {
    let (host, _) = open_host(global)?;
    let dirs = resolve_spec_dirs(&host, &args.from.spec_dir)?;
    let registry = scan(&dirs, printer);
    let names = parse_qualified_names(&args.devices, &registry)?;
    warn_of_files(&registry, printer);
    let mut edits = resolve_devices(&registry, &dirs, &names)?;
    let stdin = io::stdin().lock();
    if stdin.is_terminal() {
        printer.note("reading an OCI configuration (config.json) from the terminal; end it with Ctrl-D, or stop with Ctrl-C");
    }
    let bytes = regular::read_at_most(stdin, MAX_BYTES).context(READ_CONTEXT)?;
    if bytes.trim_ascii().is_empty() {
        bail!("{READ_CONTEXT}: the input is empty; redirect a config.json: < config.json");
    }
    let mut config = OciConfig::parse(&bytes).map_err(read_error)?;
    if !config.namespace_paths("user").map_err(read_error)?.is_empty() {
        map_ids(&mut edits);
    }
    apply(&mut config, &edits, &HostNodeLookup(&host))
        .context("adding devices to the container")?;
    let changed = config.into_bytes();
    printer.print(String::from_utf8_lossy(&changed))?;
    printer.print("\n")?;
    Ok(ExitAnswer::Yes)
}
