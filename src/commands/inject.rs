//! `cdi inject`: devices into an OCI configuration, from stdin to stdout, as an engine would.

use std::io::{self, Read};
use std::path::Path;

use anyhow::Context;
use onload_cdi::oci::{Node, NodeInfo, NodeKind, OciConfig, apply, map_ids};
use onload_core::text::Chain;
use onload_host::host::{DeviceKind, Host};

use super::{known_devices, open_host, qualified, scan, spec_dirs, warn_of_files};
use crate::cli::{Global, Inject};
use crate::exit::Answer;
use crate::printer::Printer;

/// The nodes of a host, captured or running.
pub(super) struct Nodes<'h>(pub(super) &'h Host);

impl NodeInfo for Nodes<'_> {
    fn node(&self, host_path: &str) -> io::Result<Node> {
        let found = self
            .0
            .device_node(Path::new(host_path))
            .map_err(|error| io::Error::other(Chain(&error).to_string()))?;
        let node = found.ok_or(io::ErrorKind::NotFound)?;
        Ok(Node {
            kind: match node.kind {
                DeviceKind::Character => NodeKind::Char,
                DeviceKind::Block => NodeKind::Block,
            },
            major: node.major,
            minor: node.minor,
            mode: node.mode,
        })
    }
}

/// Runs the command.
///
/// # Errors
/// A device is in no specification, a node is missing, or stdin holds no OCI configuration.
pub fn run(global: &Global, args: &Inject, printer: &mut Printer) -> anyhow::Result<Answer> {
    let (host, _) = open_host(global)?;
    let names = qualified(&args.devices)?;
    let dirs = spec_dirs(&host, &args.spec_dir)?;
    let registry = scan(&dirs, printer);
    warn_of_files(&registry, printer);
    let mut edits = known_devices(&registry, &dirs, &names)?;
    let mut bytes = Vec::new();
    io::stdin()
        .lock()
        .read_to_end(&mut bytes)
        .context("reading the OCI configuration on stdin")?;
    let mut config = OciConfig::parse(&bytes).context("reading the OCI configuration on stdin")?;
    if config
        .has_namespace("user")
        .context("reading the OCI configuration on stdin")?
    {
        map_ids(&mut edits);
    }
    apply(&mut config, &edits, &Nodes(&host)).context("giving devices to the container")?;
    let changed = config.to_bytes();
    printer.print(String::from_utf8_lossy(&changed))?;
    printer.print("\n")?;
    Ok(Answer::Yes)
}
