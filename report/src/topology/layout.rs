//! Places a topology on a picture: a heading with a legend, and the nodes as panels in columns. Pure.

use onload_core::class::Class;
use onload_sys::text::counted;

use super::canvas::{Canvas, Drawing, Paint, Rect, Shape, Style};
use super::model::{Bus, Device, Function, State, Topology};
use super::panel;

const WIDTH: i32 = 1200;
const MARGIN: i32 = 24;
const GAP: i32 = 16;
pub fn draw(topology: &Topology) -> Drawing {
    let mut canvas = Canvas::default();
    let top = heading(&mut canvas, topology) + GAP;
    let count = topology.nodes.len();
    let columns: usize = if count > 1 { 2 } else { 1 };
    let width = match columns {
        1 => WIDTH - 2 * MARGIN,
        _ => (WIDTH - 2 * MARGIN - GAP) / 2,
    };
    let mut ends = vec![top; columns];
    for node in &topology.nodes {
        let (panel, height) = panel::place(node, width);
        // The shorter column, and of two that are alike the left one.
        let column = ends.iter().enumerate().min_by_key(|(_, end)| **end);
        let column = column.map_or(0, |(column, _)| column);
        let x = i32::try_from(column).unwrap_or(0) * (width + GAP) + MARGIN;
        if let Some(end) = ends.get_mut(column) {
            canvas.append(panel, (x, *end));
            *end += height + GAP;
        }
    }
    let end = ends.into_iter().max().unwrap_or(top);
    Drawing {
        width: WIDTH,
        height: end - GAP + MARGIN,
        items: canvas.items,
    }
}

/// Title, what there is in numbers, and the legend; gives the lower edge.
fn heading(canvas: &mut Canvas, topology: &Topology) -> i32 {
    let room = WIDTH - 2 * MARGIN;
    let place = (MARGIN, MARGIN - 4);
    let title = "Devices of this host";
    let title = canvas.text(None, place, room / 2, Style::Title, title);
    let place = (MARGIN, title.bottom());
    let line = canvas.text(None, place, room, Style::Detail, &summary(topology));
    let mut is_paired = false;
    every(topology, &mut |function| {
        is_paired |= function
            .gpu
            .as_ref()
            .is_some_and(|gpu| !gpu.rdma.is_empty());
    });
    legend(canvas, line.bottom() + 8, is_paired)
}

fn summary(topology: &Topology) -> String {
    let mut counts = [0_usize; 4];
    let mut count = |device: &Device| {
        let at = match device.state {
            State::Free => 0,
            State::Held => 1,
            State::NotOffered => 2,
            State::Drained => 3,
        };
        counts[at] += 1;
    };
    for node in &topology.nodes {
        node.devices.iter().for_each(&mut count);
    }
    every(topology, &mut |function| {
        function.telling().for_each(&mut count);
    });
    let [free, held, not_offered, drained] = counts;
    let drained = match drained {
        0 => String::new(),
        drained => format!(", {drained} drained"),
    };
    let known = if topology.holders_known {
        ""
    } else {
        "; who holds them is not known to this user"
    };
    let free = counted(free, "device", "devices");
    format!("{free} free, {held} held{drained}, {not_offered} not offered{known}")
}

fn every(topology: &Topology, look: &mut impl FnMut(&Function)) {
    let roots = topology.nodes.iter().flat_map(|node| &node.roots);
    roots.for_each(|root| each(&root.bus, look));
}

fn each(bus: &Bus, look: &mut impl FnMut(&Function)) {
    for function in &bus.functions {
        look(function);
        function.virtual_functions.iter().for_each(&mut *look);
    }
    for bridge in &bus.bridges {
        each(&bridge.bus, look);
    }
}

fn legend(canvas: &mut Canvas, y: i32, is_paired: bool) -> i32 {
    let mut x = MARGIN;
    let mut sample = |canvas: &mut Canvas, shape: Shape, text: &str| {
        let rect = match shape {
            Shape::Pair => Rect::new(x, y + 8, 12, 2),
            _ => Rect::new(x, y + 3, 12, 12),
        };
        canvas.add(None, rect, shape);
        let text = canvas.text(None, (x + 18, y), WIDTH, Style::Detail, text);
        x = text.right() + 18;
    };
    for class in Class::ALL.into_iter().filter(|class| class.is_drawn()) {
        let paint = Paint {
            class: Some(class),
            state: State::Held,
        };
        sample(canvas, Shape::Segment(paint), class.as_str());
    }
    for (state, text) in [
        (State::Free, "free"),
        (State::Held, "held"),
        (State::NotOffered, "not offered"),
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
    y + Style::Detail.height()
}
