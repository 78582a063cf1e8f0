//! The commands, one a file: what each reads, decides and prints.

pub mod behind;
pub mod check;
pub mod completion;
pub mod config;
pub mod configure;
mod device_name;
pub mod discover;
pub mod doctor;
pub mod drain;
mod engine_file;
mod engine_record;
pub mod explain;
pub mod generate;
pub mod host;
pub mod inject;
mod interrupt;
pub mod lease;
pub mod list;
pub mod man;
pub mod metrics;
pub mod overview;
mod pools;
pub mod preview;
pub mod probe;
mod process;
mod reasons;
mod restart;
mod runtime_containers;
pub mod show;
pub mod status;
pub mod topology;
pub mod trial;
pub mod validate;

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use onload_cdi::{CdiVersion, ContainerEdits, QualifiedName, Registry};
use onload_core::class::Class;
use onload_core::config::Config;
use onload_host::devices::inventory::Inventory;
use onload_host::discover::exclusion::Exclusion;
use onload_host::discover::unread;
use onload_host::generate::{GeneratedSpecs, InstalledFiles, bundle_exclusions, generate};
use onload_host::host::{DEVICE_TABLE, Host};
use onload_host::pools::{NamedPool, PoolSet, discover_with_pools};
use onload_host::specdir::OUTPUT_DIR;
use onload_host::{settings, specdir};
use onload_sys::text::ErrorChain;

use crate::cli::GlobalArgs;
use crate::permissions;
use crate::printer::{Printer, log_read};

/// Letters in which a device may differ from the one that was meant.
const MAX_TYPING_ERRORS: usize = 3;

fn open_host(global: &GlobalArgs) -> Result<(Host, Config)> {
    let host = open_traced_host(global)?;
    if let Some(path) = global.config.as_deref().filter(|_| global.verbose) {
        log_read(path);
    }
    let config = settings::load(&host, global.config.as_deref())?;
    Ok((host, config))
}

/// As [`open_host`], for the tools of an incident: they warn of what is wrong with the configuration, and use the rest.
fn open_host_of_incident(global: &GlobalArgs, printer: &mut Printer) -> Result<(Host, Config)> {
    let host = open_traced_host(global)?;
    let (config, problems) = settings::load_leniently(&host, global.config.as_deref())?;
    for problem in problems {
        printer.warning(format_args!("{problem:#}"));
    }
    Ok((host, config))
}

/// A host; with `--verbose` each file and directory that is read is told of on stderr.
fn open_traced_host(global: &GlobalArgs) -> Result<Host> {
    let mut host = Host::open(&global.host_root)?;
    check_host_root(&host, &global.host_root)?;
    if global.verbose {
        host.watch(log_read);
    }
    Ok(host)
}

/// An empty directory would look like a host without devices.
fn check_host_root(host: &Host, root: &Path) -> Result<()> {
    if host.is_running() {
        return Ok(());
    }
    if root.join("overlay.table").exists() {
        bail!(
            "opening host root {}: it contains only the differences from another host \
             (overlay.table); copy it over that host's directory first",
            root.display()
        );
    }
    // A capture of an empty host has nothing but its table of devices.
    let is_capture = root.join(DEVICE_TABLE).exists();
    if !is_capture
        && !["sys", "proc", "etc", "usr", "var"]
            .iter()
            .any(|directory| root.join(directory).is_dir())
    {
        bail!(
            "opening host root {}: it contains none of sys, proc, etc, usr and var; use a \
             directory with an unpacked capture or a mounted root file system",
            root.display()
        );
    }
    Ok(())
}

/// The devices of some directories; with `--verbose` each directory and file is told of.
fn scan(dirs: &[PathBuf], printer: &mut Printer) -> Registry {
    let registry = Registry::scan(dirs);
    let paths = registry.paths();
    for dir in dirs {
        printer.log_lookup(dir, dir.is_dir());
        for path in paths.iter().filter(|p| p.parent() == Some(dir)) {
            printer.log_read(path);
        }
    }
    registry
}

/// Why these classes are undecided, and what to do about it.
fn unread_reasons(inventory: &Inventory, includes: impl Fn(&Class) -> bool) -> String {
    let unread = inventory.unread.iter().filter(|unread| unread.kinds.iter().any(&includes));
    let reasons: Vec<&str> = unread.clone().map(|unread| unread.reason.as_str()).collect();
    reasons.join(", ") + unread::advice(unread)
}

fn warn_of_unread(inventory: &Inventory, printer: &mut Printer) {
    if !inventory.unread.is_empty() {
        let classes: Vec<&str> = inventory.undecided_classes().iter().map(|c| c.as_str()).collect();
        printer.warning(format_args!(
            "parts of this host could not be read, so the list of devices may be incomplete ({}){}",
            classes.join(", "),
            unread::advice(&inventory.unread)
        ));
    }
}

fn discover_host(host: &Host, config: &Config, printer: &mut Printer) -> (Inventory, PoolSet) {
    let (inventory, pools) = discover_with_pools(host, config);
    printer.warnings(&inventory.warnings);
    warn_of_unread(&inventory, printer);
    (inventory, pools)
}

/// Generates the specifications of these classes, for readers of CDI up to that version, and returns them with the pools that
/// are in them.
fn generate_specs(
    inventory: &Inventory,
    mut pools: PoolSet,
    classes: &[Class],
    newest: Option<CdiVersion>,
    config: &Config,
    installed: InstalledFiles,
    printer: &mut Printer,
) -> Result<(GeneratedSpecs, Vec<NamedPool>)> {
    // A bundle may have members of pools of any class.
    if !classes.contains(&Class::Bundle) {
        pools.offered.retain(|pool| classes.contains(&pool.class));
    }
    if let Some(newest) = newest {
        pools.drop_unsupported(newest);
    }
    printer.warnings(&pools.warnings);
    let mut specs = generate(inventory, &pools.offered, config, installed)?;
    if classes.contains(&Class::Bundle) {
        for Exclusion { name, reason, .. } in bundle_exclusions(&specs, config, &inventory.drain) {
            printer.warning(format_args!(
                "bundle {name} is not offered: {reason}; \"onload-ctk discover --explain\" says \
                 more"
            ));
        }
    }
    specs.retain(|name, _| classes.contains(&name.class));
    Ok((specs, pools.offered))
}

/// An operator may want a boot to fail rather than to go on without its interface.
fn require_nic(inventory: &Inventory, config: &Config) -> Result<()> {
    if config.discover.missing_nic_is_error && inventory.nics.is_empty() {
        bail!(
            "looking for accelerated interfaces: none found, and [discover] missing-nic-is-error \
             is set; \"onload-ctk discover --explain\" says why"
        );
    }
    Ok(())
}

/// The specification directories as given, else those of the host, links in them followed inside
/// it.
fn resolve_spec_dirs(host: &Host, explicit: &[PathBuf]) -> Result<Vec<PathBuf>> {
    if let Some(missing) = explicit.iter().find(|dir| !dir.is_dir()) {
        bail!(
            "reading specifications: {} is not a directory; correct --spec-dir",
            missing.display()
        );
    }
    Ok(specdir::resolve_dirs(host, explicit)?)
}

fn make_directory(path: &Path) -> io::Result<()> {
    if path.exists() && !path.is_dir() {
        let message = "the name is in use";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
    }
    std::fs::create_dir_all(path)
}

/// Returns a unified diff of a file. `None` is the text of a file that does not exist.
fn format_diff(path: &Path, old: Option<&str>, new: Option<&str>) -> String {
    let path = path.display().to_string();
    let header = |text: Option<&str>| text.map_or("/dev/null", |_| &path);
    let texts = [old, new].map(Option::unwrap_or_default);
    let diff = similar::TextDiff::from_lines(texts[0], texts[1]);
    diff.unified_diff().header(header(old), header(new)).to_string()
}

fn print_diff(
    path: &Path,
    old: Option<&str>,
    new: Option<&str>,
    printer: &mut Printer,
) -> io::Result<()> {
    printer.print(format_diff(path, old, new))
}

fn unchanged_message(path: &Path) -> String {
    format!("nothing to change in {}", path.display())
}

fn join_paths(dirs: &[PathBuf]) -> String {
    let dirs: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
    dirs.join(" and ")
}

fn warn_of_files(registry: &Registry, printer: &mut Printer) {
    for (path, errors) in registry.errors() {
        for error in errors {
            let advice = permissions::permission_advice(error);
            printer.warning(format_args!("{}: {}{advice}", path.display(), ErrorChain(error)));
        }
    }
}

/// An error says where it was looked for and what is spelled like it.
fn resolve_devices(
    registry: &Registry,
    dirs: &[PathBuf],
    names: &[QualifiedName],
) -> Result<ContainerEdits> {
    registry.edits_for(names).map_err(|error| {
        let suggestion = error
            .names
            .iter()
            .find_map(|name| similar_device(registry, name))
            .map(|name| format!("; did you mean {name}?"));
        anyhow!(
            "{error} (looked in {}){}; \"onload-ctk cdi list\" lists the devices, \"onload-ctk \
             discover --explain\" says why others are not offered",
            join_paths(dirs),
            suggestion.unwrap_or_default()
        )
    })
}

/// The device that is spelled most like a name, if any is. A kind that there is was not misspelled: a
/// device of another one is another product.
fn similar_device(registry: &Registry, name: &QualifiedName) -> Option<String> {
    let name_text = name.to_string();
    let kind = name.kind.to_string();
    let is_ours = Class::ALL.iter().any(|class| class.cdi_kind() == kind);
    let is_kind = is_ours || registry.devices().any(|device| device.name.kind == name.kind);
    registry
        .devices()
        .map(|device| device.name)
        .filter(|candidate| !is_kind || candidate.kind == name.kind)
        .map(ToString::to_string)
        .map(|candidate| (strsim::damerau_levenshtein(&name_text, &candidate), candidate))
        .filter(|(distance, _)| *distance <= MAX_TYPING_ERRORS)
        .min()
        .map(|(_, candidate)| candidate)
}
