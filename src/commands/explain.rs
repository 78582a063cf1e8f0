//! `container explain`: shows what the request of a bundle would change, as a diff, and why. It
//! runs the same function as the entry points.

use std::io;
use std::path::Path;

use anyhow::anyhow;
use onload_cdi::oci::{HostNode, NodeLookup};
use onload_core::class::Class;
use onload_core::config::{CONFIG_PATH, Config, HookConfig};
use onload_core::drain::DrainList;
use onload_hooks::decide::host::{HostView, Privilege, Settings, ThisHost};
use onload_hooks::decide::specs::Specs;
use onload_hooks::decide::sysfs::Sysfs;
use onload_hooks::entry::explain;
use onload_hooks::record::lease::Viewer;
use onload_host::host::Host;
use onload_sys::elf::ElfSummary;
use onload_sys::fs::trust::TrustedTree;
use onload_sys::netlink::link::Link;

use super::inject::Nodes;
use super::{open_host, print_diff};
use crate::cli::{Explain, Global};
use crate::exit::Answer;
use crate::printer::Printer;
use crate::rights::is_of;

pub fn run(global: &Global, args: &Explain, printer: &mut Printer) -> anyhow::Result<Answer> {
    let (host, config) = open_host(global)?;
    let seen = Seen::new(&host, global, &config)?;
    let viewer = Viewer::below(&global.host_root);
    let explanation = explain::explain(&args.bundle, &seen, &viewer);
    let explanation = explanation.map_err(|error| with_advice(error.into()))?;
    for warning in &explanation.warnings {
        printer.warning(warning);
    }
    if let Some(refusal) = &explanation.refusal {
        printer.error(format_args!("the container would not start: {refusal}"));
        return Ok(Answer::No);
    }
    for reason in &explanation.reasons {
        printer.note(reason);
    }
    if explanation.before == explanation.after {
        printer.note("nothing would be changed");
        return Ok(Answer::Yes);
    }
    let path = args.bundle.join("config.json");
    let (before, after) = (&explanation.before, &explanation.after);
    print_diff(&path, Some(before), Some(after), printer)?;
    Ok(Answer::Yes)
}

fn with_advice(error: anyhow::Error) -> anyhow::Error {
    let kinds = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
    if is_of(error.as_ref(), &kinds) {
        anyhow!("{error:#}; a bundle is the directory that holds the config.json of a container")
    } else {
        error
    }
}

/// A host as the doors look at it, with the nodes of a captured one and the configuration that was
/// named on the command line.
struct Seen<'h> {
    nodes: Nodes<'h>,
    this_host: ThisHost,
    settings: Settings,
}

impl<'h> Seen<'h> {
    fn new(host: &'h Host, global: &Global, config: &Config) -> onload_sys::error::Result<Self> {
        let standard = Path::new(CONFIG_PATH);
        let this_host = if host.is_running() {
            ThisHost::new()?
        } else {
            ThisHost::below(&global.host_root, standard)?
        };
        let file = global.config.clone().unwrap_or_else(|| host.outside_path(standard));
        Ok(Seen {
            nodes: Nodes(host),
            this_host,
            settings: Settings { config: HookConfig::from(config), file },
        })
    }
}

impl NodeLookup for Seen<'_> {
    fn node(&self, host_path: &str) -> io::Result<HostNode> {
        self.nodes.node(host_path)
    }
}

impl HostView for Seen<'_> {
    fn settings(&self) -> onload_sys::error::Result<Settings> {
        Ok(self.settings.clone())
    }

    fn specs(&self, wanted: &[Class]) -> onload_sys::error::Result<Specs> {
        self.this_host.specs(wanted)
    }

    fn sysfs(&self) -> Sysfs {
        self.this_host.sysfs()
    }

    fn privilege(&self) -> Privilege {
        self.this_host.privilege()
    }

    fn preload_file(&self) -> onload_sys::error::Result<()> {
        self.this_host.preload_file()
    }

    fn files(&self) -> &TrustedTree {
        self.this_host.files()
    }

    fn drain(&self) -> onload_sys::error::Result<DrainList> {
        self.this_host.drain()
    }

    fn interfaces(&self) -> onload_sys::error::Result<Vec<Link>> {
        self.this_host.interfaces()
    }

    fn library(&self, path: &str) -> Option<ElfSummary> {
        self.this_host.library(path)
    }

    fn user_map(&self, pid: u32) -> Option<String> {
        self.this_host.user_map(pid)
    }
}
