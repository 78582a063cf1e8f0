//! `cdi show`: what a container gets for some devices, and from which file.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use anyhow::Result;
use onload_cdi::{
    ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice, ResolvedDevice, Spec, to_json,
};

use super::device_name::parse_qualified_names;
use super::{open_host, resolve_devices, resolve_spec_dirs, scan, warn_of_files};
use crate::cli::{GlobalArgs, ListFormat, ShowArgs};
use crate::exit::{CommandResult, ExitAnswer};
use crate::layout::format_pairs;
use crate::printer::{HEADING, Printer, escape_controls};

pub fn run(global: &GlobalArgs, args: &ShowArgs, printer: &mut Printer) -> CommandResult {
    let (host, _) = open_host(global)?;
    let dirs = resolve_spec_dirs(&host, &args.from.spec_dir)?;
    let registry = scan(&dirs, printer);
    let names = parse_qualified_names(&args.devices, &registry)?;
    warn_of_files(&registry, printer);
    let edits = resolve_devices(&registry, &dirs, &names)?;
    let devices: Vec<ResolvedDevice<'_>> =
        names.iter().filter_map(|name| registry.device(name)).collect();
    match args.format {
        ListFormat::Table => print_table(&devices, &edits, printer)?,
        ListFormat::Json => print_specs(&devices, printer)?,
    }
    Ok(ExitAnswer::Yes)
}

fn print_table(
    devices: &[ResolvedDevice<'_>],
    edits: &ContainerEdits,
    printer: &mut Printer,
) -> Result<()> {
    let mut file: Option<&Path> = None;
    for device in devices {
        if file != Some(device.path) {
            let path = device.path.display();
            printer.print(format_args!("{HEADING}{}{HEADING:#}\n", escape_controls(path)))?;
            file = Some(device.path);
        }
        printer.print(format_args!("  {}\n", device.name))?;
    }
    print_edits(edits, printer)
}

/// Prints container edits by sort, below each other.
pub(super) fn print_edits(edits: &ContainerEdits, printer: &mut Printer) -> Result<()> {
    for (heading, lines) in edit_sections(edits) {
        if lines.is_empty() {
            continue;
        }
        printer.print(format_args!("\n{HEADING}{heading}{HEADING:#}\n"))?;
        printer.print(format_pairs(&lines, printer.columns()))?;
    }
    Ok(())
}

type EditLine = (String, String);

/// The edits as headings with their lines. An edit that several devices bring is shown once, as a container
/// has it once.
fn edit_sections(edits: &ContainerEdits) -> Vec<(&'static str, Vec<EditLine>)> {
    let alone = |text: String| (text, String::new());
    let nodes = edits.device_nodes.iter().map(node_line).collect();
    let variables = edits.env.iter().cloned().map(alone).collect();
    let interfaces = edits.net_devices.iter().map(interface_line).collect();
    let groups = edits.additional_gids.iter().map(ToString::to_string);
    let mut sections: Vec<(&'static str, Vec<EditLine>)> = vec![
        ("device nodes", nodes),
        ("mounts", mounts(&edits.mounts)),
        ("variables", variables),
        ("hooks", edits.hooks.iter().map(hook_line).collect()),
        ("network interfaces", interfaces),
        ("groups", groups.map(alone).collect()),
        ("cache and memory bandwidth", edits.intel_rdt.iter().map(rdt_line).collect()),
    ];
    for (_, lines) in &mut sections {
        let mut seen = HashSet::new();
        lines.retain(|line| seen.insert(line.clone()));
    }
    sections
}

fn node_line(node: &DeviceNode) -> EditLine {
    let access = node.permissions.as_deref().unwrap_or("rwm");
    let from = match node.source() {
        source if source == node.path => String::new(),
        source => format!(" from {source}"),
    };
    (node.path.clone(), format!("{access}{from}"))
}

/// Files that are mounted the same way between the same two directories.
struct MountGroup<'m> {
    directory: &'m str,
    source: MountSource<'m>,
    details: String,
    names: BTreeSet<&'m str>,
}

#[derive(Clone, Copy, PartialEq)]
enum MountSource<'m> {
    /// The path that the file has in the container, or none on the host.
    Same,
    /// The directory of a file that has the same name in the container.
    Directory(&'m str),
    Path(&'m str),
}

/// Returns one line per group of mounts.
fn mounts(mounts: &[Mount]) -> Vec<EditLine> {
    let mut groups: Vec<MountGroup<'_>> = Vec::new();
    for mount in mounts {
        let (directory, name) = mount.container_path.rsplit_once('/').unwrap_or_default();
        let options = mount.options.join(",");
        let (source, details) = match (mount.type_.as_deref(), mount.host_path.as_str()) {
            (Some(kind), _) if kind != "bind" => (MountSource::Same, format!("{kind} {options}")),
            (_, host) if host == mount.container_path => (MountSource::Same, options),
            (_, host) => match host.rsplit_once('/') {
                Some((host_directory, host_name)) if host_name == name => {
                    (MountSource::Directory(host_directory), options)
                }
                _ => (MountSource::Path(host), options),
            },
        };
        match groups.iter_mut().find(|group| {
            (group.directory, group.source, &group.details) == (directory, source, &details)
        }) {
            Some(group) => drop(group.names.insert(name)),
            None => {
                groups.push(MountGroup { directory, source, details, names: [name].into() });
            }
        }
    }
    groups.iter().map(mount_line).collect()
}

fn mount_line(group: &MountGroup<'_>) -> EditLine {
    let MountGroup { directory, source, details, names } = group;
    let names: Vec<&str> = names.iter().copied().collect();
    let name = match *names {
        [name] => name,
        _ => "",
    };
    let from = match source {
        MountSource::Same => String::new(),
        MountSource::Directory(path) if !name.is_empty() => format!("from {path}/{name} "),
        MountSource::Directory(path) | MountSource::Path(path) => format!("from {path} "),
    };
    let list = if name.is_empty() { format!(": {}", names.join(" ")) } else { String::new() };
    (format!("{directory}/{name}"), format!("{from}{details}{list}"))
}

fn hook_line(hook: &Hook) -> EditLine {
    let words = hook.args.get(1..).unwrap_or_default().join(" ");
    let stage = format!("stage {}", hook.hook_name);
    (format!("{} {words}", hook.path), stage)
}

fn interface_line(device: &NetDevice) -> EditLine {
    let host = format!("{} of the host", device.host_interface_name);
    (device.name.clone(), host)
}

fn rdt_line(class: &IntelRdt) -> EditLine {
    (class.clos_id.clone().unwrap_or_default(), class.schemata.join("; "))
}

/// The specifications as they would be if these devices were all that they have.
fn print_specs(devices: &[ResolvedDevice<'_>], printer: &mut Printer) -> Result<()> {
    let mut specs: Vec<(&Path, Spec)> = Vec::new();
    for device in devices {
        let entry = device.device.clone();
        match specs.iter_mut().find(|(path, _)| *path == device.path) {
            Some((_, spec)) if spec.devices.contains(&entry) => {}
            Some((_, spec)) => spec.devices.push(entry),
            None => specs.push((device.path, Spec { devices: vec![entry], ..device.spec.clone() })),
        }
    }
    for (_, spec) in &specs {
        printer.print(to_json(spec))?;
    }
    Ok(())
}
