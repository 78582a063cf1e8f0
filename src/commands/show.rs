//! `cdi show`: what a container gets for some devices, and from which file.

use std::collections::{BTreeMap, HashSet};
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

/// Returns one line for all files that are mounted the same way between the same two directories.
fn mounts(mounts: &[Mount]) -> Vec<EditLine> {
    let mut groups: Vec<(MountKey<'_>, BTreeMap<&str, &str>)> = Vec::new();
    for mount in mounts {
        let host = mount.host_path.as_str();
        let (directory, name) = mount.container_path.rsplit_once('/').unwrap_or_default();
        let options = mount.options.join(",");
        let other_type = mount.type_.as_deref().filter(|kind| *kind != "bind");
        let source = match host.rsplit_once('/') {
            _ if other_type.is_some() || host == mount.container_path => None,
            Some((host_directory, host_name)) if host_name == name => Some(host_directory),
            _ => Some(host),
        };
        let details = match other_type {
            Some(kind) => format!("{kind} {options}"),
            None => options,
        };
        let key = (directory, source, details);
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, names)) => drop(names.insert(name, host)),
            None => groups.push((key, BTreeMap::from([(name, host)]))),
        }
    }
    groups.iter().map(|(key, names)| mount_line(key, names)).collect()
}

/// The directory in the container, the directory or renamed file on the host if it has another path, and the details.
type MountKey<'m> = (&'m str, Option<&'m str>, String);

fn mount_line(
    (directory, source, details): &MountKey<'_>,
    names: &BTreeMap<&str, &str>,
) -> EditLine {
    let format_source = |path: &str| match source {
        Some(_) => format!("from {path} "),
        None => String::new(),
    };
    if let Some((name, host)) = names.first_key_value()
        && names.len() == 1
    {
        return (format!("{directory}/{name}"), format!("{}{details}", format_source(host)));
    }
    let list: Vec<&str> = names.keys().copied().collect();
    let from = format_source(source.unwrap_or_default());
    (format!("{directory}/"), format!("{from}{details}: {}", list.join(" ")))
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
