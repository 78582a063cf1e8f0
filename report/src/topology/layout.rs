//! Places a topology on a picture: a heading with a legend, and the nodes as panels in columns. Pure.

use onload_core::class::Class;
use onload_sys::text::format_count;

use super::canvas::{Canvas, Drawing, Paint, Rect, Shape, TextStyle};
use super::model::{Bus, Occupancy, Topology, TopologyDevice, TopologyFunction};
use super::panel;

const WIDTH: i32 = 1200;
const MARGIN: i32 = 24;
const GAP: i32 = 16;
pub fn draw(topology: &Topology) -> Drawing {
    let mut canvas = Canvas::default();
    let top = draw_heading(&mut canvas, topology) + GAP;
    let (whole, half) = (WIDTH - 2 * MARGIN, (WIDTH - 2 * MARGIN - GAP) / 2);
    // The left end of each column, and how far it is filled.
    let (mut columns, width) = match topology.nodes.len() {
        ..2 => (vec![(MARGIN, top)], whole),
        _ => (vec![(MARGIN, top), (MARGIN + half + GAP, top)], half),
    };
    for node in &topology.nodes {
        let (panel, height) = panel::draw_panel(node, width);
        // The shorter column, and of two that are alike the left one.
        if let Some((x, end)) = columns.iter_mut().min_by_key(|(_, end)| *end) {
            canvas.append(panel, (*x, *end));
            *end += height + GAP;
        }
    }
    let end = columns.into_iter().map(|(_, end)| end).max().unwrap_or(top);
    Drawing { width: WIDTH, height: end - GAP + MARGIN, items: canvas.items }
}

/// Title, what there is in numbers, and the legend; gives the lower edge.
fn draw_heading(canvas: &mut Canvas, topology: &Topology) -> i32 {
    let room = WIDTH - 2 * MARGIN;
    let position = (MARGIN, MARGIN - 4);
    let title = "Devices of this host";
    let title = canvas.add_text(None, position, room / 2, TextStyle::Title, title);
    let position = (MARGIN, title.bottom());
    let line = canvas.add_text(None, position, room, TextStyle::Detail, &summary(topology));
    let is_paired = all_functions(topology).any(|function| {
        let gpu = function.gpu.as_ref();
        gpu.is_some_and(|gpu| !gpu.rdma.is_empty())
    });
    draw_legend(canvas, line.bottom() + 8, is_paired)
}

fn summary(topology: &Topology) -> String {
    let off_pci = topology.nodes.iter().flat_map(|node| &node.devices);
    let devices = all_functions(topology).flat_map(TopologyFunction::informative_devices);
    let devices: Vec<&TopologyDevice> = off_pci.chain(devices).collect();
    let count = |state| devices.iter().filter(|device| device.state == state).count();
    let drained = match count(Occupancy::Drained) {
        0 => String::new(),
        drained => format!(", {drained} drained"),
    };
    let known =
        if topology.holders_known { "" } else { "; who holds them is not known to this user" };
    let free = format_count(count(Occupancy::Free), "device", "devices");
    let (held, not_offered) = (count(Occupancy::Held), count(Occupancy::NotOffered));
    format!("{free} free, {held} held{drained}, {not_offered} not offered{known}")
}

/// All of them, virtual ones too.
fn all_functions(topology: &Topology) -> impl Iterator<Item = &TopologyFunction> {
    let roots = topology.nodes.iter().flat_map(|node| &node.roots);
    roots.flat_map(|root| bus_functions(&root.bus))
}

fn bus_functions(bus: &Bus) -> Vec<&TopologyFunction> {
    let bridged = bus.bridges.iter().flat_map(|bridge| bus_functions(&bridge.bus));
    let direct = bus.functions.iter();
    let direct =
        direct.flat_map(|function| [function].into_iter().chain(&function.virtual_functions));
    direct.chain(bridged).collect()
}

fn draw_legend(canvas: &mut Canvas, y: i32, is_paired: bool) -> i32 {
    let mut x = MARGIN;
    let mut sample = |canvas: &mut Canvas, shape: Shape, text: &str| {
        let rect = match shape {
            Shape::Pair => Rect::new(x, y + 8, 12, 2),
            _ => Rect::new(x, y + 3, 12, 12),
        };
        canvas.add(None, rect, shape);
        let text = canvas.add_text(None, (x + 18, y), WIDTH, TextStyle::Detail, text);
        x = text.right() + 18;
    };
    for class in Class::ALL.into_iter().filter(|class| class.is_in_topology()) {
        let paint = Paint { class: Some(class), state: Occupancy::Held };
        sample(canvas, Shape::Segment(paint), class.as_str());
    }
    for (state, text) in [
        (Occupancy::Free, "free"),
        (Occupancy::Held, "held"),
        (Occupancy::NotOffered, "not offered"),
    ] {
        let paint = Paint { class: None, state };
        sample(canvas, Shape::Segment(paint), text);
    }
    if is_paired {
        sample(canvas, Shape::Pair, "a GPU and its NIC");
    }
    for (is_isolated, text) in [(false, "CPU"), (true, "isolated CPU")] {
        sample(canvas, Shape::Cpu { is_isolated }, text);
    }
    y + TextStyle::Detail.height()
}
