//! Places a topology on a picture: a heading with a legend, and the nodes as panels in columns. Pure.

use onload_core::class::Class;
use onload_sys::text::format_count;

use super::canvas::{Canvas, Drawing, Paint, Rect, Shape, TextStyle};
use super::model::{Bus, Occupancy, Topology, TopologyDevice, TopologyFunction};
use super::panel;

const WIDTH: i32 = 1200;
const MARGIN: i32 = 24;
const GAP: i32 = 16;

/// Draws a topology below a title.
pub fn draw(topology: &Topology, title: &str) -> Drawing {
    let (whole, half) = (WIDTH - 2 * MARGIN, (WIDTH - 2 * MARGIN - GAP) / 2);
    // The left end of each column.
    let (lefts, width) = match topology.nodes.len() {
        ..2 => (vec![MARGIN], whole),
        _ => (vec![MARGIN, MARGIN + half + GAP], half),
    };
    let panels: Vec<(Canvas, i32)> =
        topology.nodes.iter().map(|node| panel::draw_panel(node, width)).collect();
    let mut canvas = Canvas::default();
    let shapes = panels.iter().flat_map(|(panel, _)| &panel.items).map(|item| &item.shape);
    let legend = Legend::of_shapes(shapes);
    let top = draw_heading(&mut canvas, topology, title, &legend) + GAP;
    let mut ends = vec![top; lefts.len()];
    for (index, (panel, height)) in panels.into_iter().enumerate() {
        // Nodes are read from left to right, in the order of their numbers.
        let column = index % lefts.len();
        canvas.items.extend(panel.items.into_iter().map(|mut item| {
            item.rect.x += lefts[column];
            item.rect.y += ends[column];
            item
        }));
        ends[column] += height + GAP;
    }
    let end = ends.into_iter().max().unwrap_or(top);
    Drawing { width: WIDTH, height: end - GAP + MARGIN, items: canvas.items }
}

/// Draws the title, the numbers of devices and the legend. Returns the lower edge.
fn draw_heading(canvas: &mut Canvas, topology: &Topology, title: &str, legend: &Legend) -> i32 {
    let room = WIDTH - 2 * MARGIN;
    let title = canvas.add_text((MARGIN, MARGIN - 4), room, TextStyle::Title, title);
    let position = (MARGIN, title.bottom());
    let line = canvas.add_text(position, room, TextStyle::Detail, &summary(topology));
    draw_legend(canvas, line.bottom() + 8, legend)
}

/// The contents of a picture, which its legend explains.
#[derive(Default)]
struct Legend {
    classes: Vec<Class>,
    states: Vec<Occupancy>,
    has_pair: bool,
    /// Whether there are CPUs that are not isolated, and isolated ones.
    cpus: [bool; 2],
}

impl Legend {
    fn of_shapes<'s>(shapes: impl Iterator<Item = &'s Shape>) -> Legend {
        let mut legend = Legend::default();
        for shape in shapes {
            match shape {
                Shape::Chip(paint) | Shape::Segment(paint) => {
                    // Only what is free or held has the colour of its class.
                    if matches!(paint.state, Occupancy::Free | Occupancy::Held) {
                        legend.classes.extend(paint.class);
                    }
                    legend.states.push(paint.state);
                }
                Shape::Pair => legend.has_pair = true,
                Shape::Cpu { is_isolated } => legend.cpus[usize::from(*is_isolated)] = true,
                _ => {}
            }
        }
        legend
    }
}

fn summary(topology: &Topology) -> String {
    let off_pci = topology.nodes.iter().flat_map(|node| &node.devices);
    let buses = topology.nodes.iter().flat_map(|node| &node.roots).map(|root| &root.bus);
    let functions = buses.flat_map(bus_functions);
    let devices = functions.flat_map(TopologyFunction::informative_devices);
    let devices: Vec<&TopologyDevice> = off_pci.chain(devices).collect();
    let count = |state| devices.iter().filter(|device| device.state == state).count();
    let drained = match count(Occupancy::Drained) {
        0 => String::new(),
        drained => format!(", {drained} drained"),
    };
    let known = if topology.holders_known { "" } else { "; only root can see the holders" };
    let free = format_count(count(Occupancy::Free), "device", "devices");
    let (held, not_offered) = (count(Occupancy::Held), count(Occupancy::NotOffered));
    format!("{free} free, {held} held{drained}, {not_offered} not offered{known}")
}

/// All functions, virtual ones too.
fn bus_functions(bus: &Bus) -> Vec<&TopologyFunction> {
    let bridged = bus.bridges.iter().flat_map(|bridge| bus_functions(&bridge.bus));
    bus.functions
        .iter()
        .flat_map(|function| [function].into_iter().chain(&function.virtual_functions))
        .chain(bridged)
        .collect()
}

fn draw_legend(canvas: &mut Canvas, y: i32, legend: &Legend) -> i32 {
    let mut x = MARGIN;
    let mut sample = |canvas: &mut Canvas, shape: Shape, text: &str| {
        let rect = match shape {
            Shape::Pair => Rect::new(x, y + 8, 12, 2),
            _ => Rect::new(x, y + 3, 12, 12),
        };
        canvas.add(rect, shape);
        let text = canvas.add_text((x + 18, y), WIDTH, TextStyle::Detail, text);
        x = text.right() + 18;
    };
    for class in Class::ALL.into_iter().filter(|class| legend.classes.contains(class)) {
        let paint = Paint { class: Some(class), state: Occupancy::Held };
        sample(canvas, Shape::Segment(paint), class.as_str());
    }
    for state in [Occupancy::Free, Occupancy::Held, Occupancy::Drained, Occupancy::NotOffered] {
        if legend.states.contains(&state) {
            sample(canvas, Shape::Segment(Paint { class: None, state }), state.as_str());
        }
    }
    if legend.has_pair {
        sample(canvas, Shape::Pair, "a GPU and its NIC");
    }
    for (is_isolated, text) in [(false, "CPU"), (true, "isolated CPU")] {
        if legend.cpus[usize::from(is_isolated)] {
            sample(canvas, Shape::Cpu { is_isolated }, text);
        }
    }
    y + TextStyle::Detail.height()
}
