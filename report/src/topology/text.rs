//! A topology as lines of text, before they are wrapped at the width of a terminal.

use super::card::format_speed;
use super::groups::{describe_device, describe_holders, group_functions};
use super::model::{Bus, Topology, TopologyFunction, TopologyGpu, TopologyNumaNode};
use super::panel::{NOTHING_HERE, format_memory};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextLine {
    /// Before its first line.
    pub first: String,
    /// Before those that go on with it.
    pub rest: String,
    pub text: String,
    pub kind: LineKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineKind {
    Heading,
    Part,
    Detail,
}

pub fn render_lines(topology: &Topology) -> Vec<TextLine> {
    let mut lines = Vec::new();
    for node in &topology.nodes {
        node_lines(node, &mut lines);
    }
    if !topology.containers.is_empty() {
        let heading = "Containers, as they were created".to_owned();
        lines.push(new_line(LineKind::Heading, "", "", heading));
    }
    for container in &topology.containers {
        let text = format!("{}: {}", container.container, container.devices.join(", "));
        lines.push(new_line(LineKind::Part, "  ", "    ", text));
    }
    lines
}

fn node_lines(node: &TopologyNumaNode, lines: &mut Vec<TextLine>) {
    let mut add =
        |kind, indent: &str, text: String| lines.push(new_line(kind, indent, indent, text));
    add(LineKind::Heading, "", node.title());
    if let Some(cpus) = &node.cpus {
        let isolated =
            node.isolated_cpus.as_deref().map(|isolated| format!(" (isolated {isolated})"));
        let text = format!("CPUs {cpus}{}", isolated.unwrap_or_default());
        add(LineKind::Detail, "  ", text);
    }
    if let Some(memory) = &node.memory {
        add(LineKind::Detail, "  ", format!("memory {}", format_memory(memory)));
    }
    for pages in &node.hugepages {
        let (free, total) = (pages.free, pages.total);
        let text = format!("huge pages {}: {free} of {total} free", pages.name);
        add(LineKind::Detail, "  ", text);
    }
    if node.roots.is_empty() && node.devices.is_empty() {
        add(LineKind::Detail, "  ", NOTHING_HERE.to_owned());
    }
    for root in &node.roots {
        lines.push(new_line(LineKind::Part, "  ", "  ", root.name.clone()));
        bus_lines(&root.bus, "  ", lines);
    }
    for device in &node.devices {
        lines.push(new_line(LineKind::Part, "  ", "    ", describe_device(device)));
    }
}

/// Returns the functions of a bus as branches of the tree.
fn bus_lines(bus: &Bus, indent: &str, lines: &mut Vec<TextLine>) {
    let mut remaining = bus.bridges.len() + bus.functions.len();
    let mut branch = || {
        remaining -= 1;
        match remaining {
            0 => (format!("{indent}└─ "), format!("{indent}   ")),
            _ => (format!("{indent}├─ "), format!("{indent}│  ")),
        }
    };
    for bridge in &bus.bridges {
        let (first, rest) = branch();
        let link = bridge.link.map(|link| format!(", {link}"));
        let text = format!("{} bridge{}", bridge.address, link.unwrap_or_default());
        lines.push(new_line(LineKind::Part, &first, &rest, text));
        bus_lines(&bridge.bus, &rest, lines);
    }
    for function in &bus.functions {
        let (first, rest) = branch();
        lines.push(new_line(LineKind::Part, &first, &rest, function_text(function)));
        let gpu = function.gpu.iter().flat_map(TopologyGpu::details);
        let devices = function.informative_devices().map(describe_device);
        let groups = group_functions(&function.virtual_functions).into_iter().map(|group| {
            let held = describe_holders(&group.holders).map(|held| format!(", {held}"));
            let (name, description) = (group.name(), group.describe());
            format!("{name}: {description}{}", held.unwrap_or_default())
        });
        let (first, rest) = (format!("{rest}  "), format!("{rest}    "));
        for text in gpu.chain(devices).chain(groups) {
            lines.push(new_line(LineKind::Detail, &first, &rest, text));
        }
    }
}

fn function_text(function: &TopologyFunction) -> String {
    let first = function.interfaces.first();
    let driver = function.driver.as_deref().unwrap_or("no driver");
    let words: Vec<String> = [
        function.names(" "),
        Some(driver.to_owned()),
        first.and_then(|interface| interface.state.clone()),
        first.and_then(|interface| interface.speed_mbps).map(format_speed),
        function.link.map(|link| link.to_string()),
    ]
    .into_iter()
    .flatten()
    .collect();
    format!("{} {}", function.address, words.join(", "))
}

fn new_line(kind: LineKind, first: &str, rest: &str, text: String) -> TextLine {
    TextLine { first: first.to_owned(), rest: rest.to_owned(), text, kind }
}
