//! A PCI function as a card: its interfaces, its devices as chips, and its virtual functions, folded.

use onload_host::discover::pcie_link::PcieLink;
use onload_sys::text::format_count;

use super::canvas::{Canvas, Paint, Rect, Shape, TextStyle, sanitize};
use super::groups::{FunctionGroup, describe_holders, group_functions};
use super::model::{Occupancy, TopologyDevice, TopologyFunction, TopologyGpu, TopologyInterface};

const PAD: i32 = 12;
const STRIPE: i32 = 5;
const CHIP: i32 = 22;
const GAP: i32 = 6;
const INNER_MARGIN: i32 = 9;
const SWATCH: i32 = 10;
const BAR: i32 = 12;
const MIN_GAP: i32 = 6;
const CHIP_GAP: i32 = 2;
const SEPARATOR: &str = " · ";

/// Gives its lower edge.
pub(super) fn draw_card(
    canvas: &mut Canvas,
    panel: usize,
    (x, y, width): (i32, i32, i32),
    function: &TopologyFunction,
) -> i32 {
    let card = canvas.add(Some(panel), Rect::new(x, y, width, 0), Shape::Card);
    // A GPU is never offered, so its state says nothing.
    let stripe = (function.gpu.is_none() || function.class().is_some()).then(|| {
        let shape = Shape::Segment(function_paint(function));
        canvas.add(Some(card), Rect::new(x, y, STRIPE, 0), shape)
    });
    let mut content = CardContent {
        canvas,
        card,
        x: x + STRIPE + PAD,
        y: y + PAD,
        width: width - STRIPE - 2 * PAD,
    };
    content.heading(function);
    let devices: Vec<&TopologyDevice> = function.informative_devices().collect();
    content.chips(&devices, function);
    content.holders(&devices);
    content.virtual_functions(&function.virtual_functions);
    let bottom = content.y + PAD - GAP;
    canvas.end(card, bottom);
    if let Some(stripe) = stripe {
        canvas.end(stripe, bottom);
    }
    bottom
}

/// Places chips in rows. Returns the lower edge.
pub(super) fn draw_chips<'d>(
    canvas: &mut Canvas,
    parent: usize,
    (left, top, width): (i32, i32, i32),
    devices: impl Iterator<Item = (&'d TopologyDevice, String)>,
) -> i32 {
    let (mut x, mut y) = (left, top);
    for (device, label) in devices {
        let label = sanitize(&label);
        let room = width - 2 * INNER_MARGIN;
        let paint = Paint { class: Some(device.class), state: device.state };
        let style = TextStyle::Chip(paint);
        let chip_width = style.width(&label).min(room) + 2 * INNER_MARGIN;
        if x > left && x + chip_width > left + width {
            (x, y) = (left, y + CHIP + GAP);
        }
        let chip = canvas.add(Some(parent), Rect::new(x, y, chip_width, CHIP), Shape::Chip(paint));
        let text = canvas.add_text(
            Some(chip),
            (x + INNER_MARGIN, y + (CHIP - style.height()) / 2),
            room,
            style,
            &label,
        );
        let state = device.state_text();
        let reason = device.reason.as_deref().map(|reason| format!(": {reason}"));
        let holders = describe_holders(&device.holders).map(|holders| format!(", {holders}"));
        let note = format!(
            "{} {}: {state}{}{}",
            device.class,
            device.name,
            holders.unwrap_or_default(),
            reason.unwrap_or_default()
        );
        canvas.add_note(chip, &note);
        x = x.max(text.right() + INNER_MARGIN) + GAP;
    }
    y + CHIP
}

fn function_paint(function: &TopologyFunction) -> Paint {
    Paint { class: function.class(), state: function.state() }
}

struct CardContent<'c> {
    canvas: &'c mut Canvas,
    card: usize,
    x: i32,
    y: i32,
    width: i32,
}

impl CardContent<'_> {
    fn heading(&mut self, function: &TopologyFunction) {
        let names = function.names(", ");
        let address = function.address.to_string();
        let (parent, right) = (Some(self.card), self.x + self.width);
        let mut room = self.width;
        if names.is_some() {
            let position = (right, self.y + 1);
            let address_rect =
                self.canvas.add_text_right(parent, position, room, TextStyle::Detail, &address);
            room -= address_rect.width + GAP;
        }
        let name = names.unwrap_or(address);
        let line = self.canvas.add_text(parent, (self.x, self.y), room, TextStyle::Name, &name);
        self.y = line.bottom();
        let driver = function.driver.as_deref().unwrap_or("no driver");
        let mut details = vec![driver.to_owned(), function.id.clone()];
        details.extend(function.interfaces.first().and_then(state_and_speed));
        details.extend(function.link.map(PcieLink::short));
        self.line(0, &details.join(SEPARATOR));
        for text in function.gpu.iter().flat_map(TopologyGpu::details) {
            self.line(0, &text);
        }
    }

    fn line(&mut self, indent: i32, text: &str) {
        let position = (self.x + indent, self.y);
        let room = self.width - indent;
        let line = self.canvas.add_text(Some(self.card), position, room, TextStyle::Detail, text);
        self.y = line.bottom() + 2;
    }

    fn chips(&mut self, devices: &[&TopologyDevice], function: &TopologyFunction) {
        if devices.is_empty() {
            return;
        }
        self.y += 2;
        let labels = devices.iter().map(|device| (*device, chip_label(device, function)));
        let area = (self.x, self.y, self.width);
        self.y = draw_chips(self.canvas, self.card, area, labels) + GAP;
    }

    fn holders(&mut self, devices: &[&TopologyDevice]) {
        for device in devices {
            if let Some(held) = describe_holders(&device.holders) {
                self.line(0, &format!("{} {held}", device.class));
            }
        }
    }

    fn virtual_functions(&mut self, functions: &[TopologyFunction]) {
        if functions.is_empty() {
            return;
        }
        let count = functions.len();
        self.y += 2;
        self.line(0, &format_count(count, "virtual function", "virtual functions"));
        let groups = group_functions(functions);
        self.bar(&groups, count);
        for group in &groups {
            self.group(group);
        }
    }

    /// How many of them are what, at one look.
    fn bar(&mut self, groups: &[FunctionGroup], count: usize) {
        let (Ok(number), Ok(count)) = (i32::try_from(groups.len()), i32::try_from(count)) else {
            return;
        };
        let room = self.width - (number - 1) * CHIP_GAP - number * MIN_GAP;
        if room < 0 {
            return;
        }
        let mut x = self.x;
        for group in groups {
            let share = i64::from(room) * i64::try_from(group.count).unwrap_or(0);
            let width = MIN_GAP + i32::try_from(share / i64::from(count)).unwrap_or(0);
            let rect = Rect::new(x, self.y, width, BAR);
            let shape = Shape::Segment(group_paint(group));
            let segment = self.canvas.add(Some(self.card), rect, shape);
            let note = format!("{}: {}", group.name(), group.describe());
            self.canvas.add_note(segment, &note);
            x += width + CHIP_GAP;
        }
        self.y += BAR + GAP;
    }

    fn group(&mut self, group: &FunctionGroup) {
        let (parent, indent) = (Some(self.card), SWATCH + GAP);
        let swatch = Rect::new(self.x, self.y + 4, SWATCH, SWATCH);
        self.canvas.add(parent, swatch, Shape::Segment(group_paint(group)));
        let position = (self.x + self.width, self.y);
        let room = self.width - indent;
        let description = self.canvas.add_text_right(
            parent,
            position,
            room * 2 / 3,
            TextStyle::Detail,
            &group.describe(),
        );
        let position = (self.x + indent, self.y);
        let line = self.canvas.add_text(
            parent,
            position,
            room - description.width - GAP,
            TextStyle::Detail,
            &group.name(),
        );
        self.y = line.bottom() + 2;
        if let Some(held) = describe_holders(&group.holders) {
            self.line(indent, &held);
        }
    }
}

fn group_paint(group: &FunctionGroup) -> Paint {
    Paint { class: group.classes.first().copied(), state: group.state }
}

fn state_and_speed(interface: &TopologyInterface) -> Option<String> {
    let speed = interface.speed_mbps.map(format_speed);
    let words: Vec<String> = interface.state.clone().into_iter().chain(speed).collect();
    (!words.is_empty()).then(|| words.join(SEPARATOR))
}

/// Formats a speed in Mbit/s, from 1 Gbit/s on in Gbit/s.
pub fn format_speed(mbps: u64) -> String {
    match (mbps / 1000, mbps % 1000) {
        (0, _) => format!("{mbps} Mbit/s"),
        (whole, 0) => format!("{whole} Gbit/s"),
        (whole, rest) => {
            let rest = format!("{rest:03}");
            format!("{whole}.{} Gbit/s", rest.trim_end_matches('0'))
        }
    }
}

/// Returns the text of a chip: the class, and the name unless the card shows it.
fn chip_label(device: &TopologyDevice, function: &TopologyFunction) -> String {
    let mut names = function.interfaces.iter().map(|i| i.name.as_str());
    let address = function.address.to_string();
    let class = device.class;
    let label = if names.any(|name| name == device.name) || address == device.name {
        class.to_string()
    } else {
        format!("{class} {}", device.name)
    };
    match device.state {
        Occupancy::Free => label,
        Occupancy::Held => format!("{label}{SEPARATOR}held"),
        Occupancy::Drained => format!("{label}{SEPARATOR}drained"),
        Occupancy::NotOffered => format!("{label}{SEPARATOR}not offered"),
    }
}
