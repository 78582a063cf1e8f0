//! `cdi show`: what a container gets for some devices, and from which file.

use std::collections::HashSet;
use std::path::Path;

use onload_cdi::{
    ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice, ResolvedDevice, Spec, to_json,
};

use super::{known_devices, open_host, qualified, scan, spec_dirs, warn_of_files};
use crate::cli::{Global, Listing, Show};
use crate::exit::Answer;
use crate::layout::pairs;
use crate::printer::{HEADING, Printer, harmless};

pub fn run(global: &Global, args: &Show, printer: &mut Printer) -> anyhow::Result<Answer> {
    let (host, _) = open_host(global)?;
    let dirs = spec_dirs(&host, &args.from.spec_dir)?;
    let names = qualified(&args.devices)?;
    let registry = scan(&dirs, printer);
    warn_of_files(&registry, printer);
    let edits = known_devices(&registry, &dirs, &names)?;
    let found: Vec<ResolvedDevice<'_>> = names.iter().filter_map(|n| registry.device(n)).collect();
    match args.format {
        Listing::Table => print_table(&found, &edits, printer)?,
        Listing::Json => print_specs(&found, printer)?,
    }
    Ok(Answer::Yes)
}

fn print_table(
    found: &[ResolvedDevice<'_>],
    edits: &ContainerEdits,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let mut file: Option<&Path> = None;
    for device in found {
        if file != Some(device.path) {
            let path = device.path.display();
            printer.print(format_args!("{HEADING}{}{HEADING:#}\n", harmless(path)))?;
            file = Some(device.path);
        }
        printer.print(format_args!("  {}\n", device.name))?;
    }
    print_edits(edits, printer)
}

/// Prints container edits by sort, below each other.
pub(super) fn print_edits(edits: &ContainerEdits, printer: &mut Printer) -> anyhow::Result<()> {
    for (heading, lines) in sections(edits) {
        if lines.is_empty() {
            continue;
        }
        printer.print(format_args!("\n{HEADING}{heading}{HEADING:#}\n"))?;
        printer.print(pairs(&lines, printer.columns()))?;
    }
    Ok(())
}

type Line = (String, String);

/// The edits as headings with their lines. An edit that several devices bring is shown once, as a container
/// has it once.
fn sections(edits: &ContainerEdits) -> Vec<(&'static str, Vec<Line>)> {
    let alone = |text: String| (text, String::new());
    let nodes = edits.device_nodes.iter().map(node).collect();
    let variables = edits.env.iter().cloned().map(alone).collect();
    let interfaces = edits.net_devices.iter().map(interface).collect();
    let groups = edits.additional_gids.iter().map(ToString::to_string);
    let mut sections: Vec<(&'static str, Vec<Line>)> = vec![
        ("device nodes", nodes),
        ("mounts", mounts(&edits.mounts)),
        ("variables", variables),
        ("hooks", edits.hooks.iter().map(hook).collect()),
        ("network interfaces", interfaces),
        ("groups", groups.map(alone).collect()),
        ("cache and memory bandwidth", edits.intel_rdt.iter().map(rdt).collect()),
    ];
    for (_, lines) in &mut sections {
        let mut seen = HashSet::new();
        lines.retain(|line| seen.insert(line.clone()));
    }
    sections
}

fn node(node: &DeviceNode) -> Line {
    let access = node.permissions.as_deref().unwrap_or("rwm");
    let from = match node.source() {
        source if source == node.path => String::new(),
        source => format!(" from {source}"),
    };
    (node.path.clone(), format!("{access}{from}"))
}

/// Returns one line per mount. Files that are mounted the same way between the same two directories share a line.
fn mounts(mounts: &[Mount]) -> Vec<Line> {
    let mut groups: Vec<(&str, String, Vec<&str>)> = Vec::new();
    for mount in mounts {
        let (directory, name) = mount.container_path.rsplit_once('/').unwrap_or_default();
        let from = match (mount.type_.as_deref(), &mount.host_path) {
            (Some(kind), _) if kind != "bind" => format!("{kind} "),
            (_, host) if *host == mount.container_path => String::new(),
            (_, host) => match host.rsplit_once('/') {
                Some((directory, host)) if host == name => format!("from {directory} "),
                _ => format!("from {host} "),
            },
        };
        let how = format!("{from}{}", mount.options.join(","));
        let names = groups.iter_mut().find(|group| group.0 == directory && group.1 == how);
        match names {
            Some((.., names)) if names.contains(&name) => {}
            Some((.., names)) => names.push(name),
            None => groups.push((directory, how, vec![name])),
        }
    }
    let line = |(directory, how, names): (&str, String, Vec<&str>)| match *names {
        [name] => (format!("{directory}/{name}"), how),
        _ => (format!("{directory}/"), format!("{how}: {}", names.join(" "))),
    };
    groups.into_iter().map(line).collect()
}

fn hook(hook: &Hook) -> Line {
    let words = hook.args.get(1..).unwrap_or_default().join(" ");
    let stage = format!("stage {}", hook.hook_name);
    (format!("{} {words}", hook.path), stage)
}

fn interface(device: &NetDevice) -> Line {
    let host = format!("{} of the host", device.host_interface_name);
    (device.name.clone(), host)
}

fn rdt(class: &IntelRdt) -> Line {
    (class.clos_id.clone().unwrap_or_default(), class.schemata.join("; "))
}

/// The specifications as they would be if these devices were all that they have.
fn print_specs(found: &[ResolvedDevice<'_>], printer: &mut Printer) -> anyhow::Result<()> {
    let mut specs: Vec<(&Path, Spec)> = Vec::new();
    for device in found {
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
