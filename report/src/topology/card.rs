//! A PCI function as a card: its interfaces, its devices as chips, and its virtual functions, folded.

use onload_host::discover::pcie_link::PcieLink;
use onload_sys::text::format_count;

use super::canvas::{Canvas, Paint, Rect, Shape, TextStyle, sanitize};
use super::groups::{FunctionGroup, describe_device, describe_holders, group_functions};
use super::model::{Occupancy, TopologyDevice, TopologyFunction, TopologyGpu};

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
    (x, y, width): (i32, i32, i32),
    function: &TopologyFunction,
) -> i32 {
    let card = canvas.add(Rect::new(x, y, width, 0), Shape::Card);
    // A GPU is never offered, so its state says nothing.
    let stripe = (function.gpu.is_none() || function.class().is_some()).then(|| {
        let paint = Paint { class: function.class(), state: function.state() };
        canvas.add(Rect::new(x, y, STRIPE, 0), Shape::Segment(paint))
    });
    let (x, y, width) = (x + STRIPE + PAD, y + PAD, width - STRIPE - 2 * PAD);
    let mut content = CardContent { canvas, x, y, width };
    content.heading(function);
    content.devices(function);
    content.virtual_functions(&function.virtual_functions);
    let bottom = content.y + PAD - GAP;
    for item in [card].into_iter().chain(stripe) {
        canvas.end(item, bottom);
    }
    bottom
}

/// Places chips in rows. Returns the lower edge.
pub(super) fn draw_chips<'d>(
    canvas: &mut Canvas,
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
        let reason = device.reason.as_deref().map(|reason| format!(": {reason}"));
        let note = format!("{}{}", describe_device(device), reason.unwrap_or_default());
        canvas.add_with_note(Rect::new(x, y, chip_width, CHIP), Shape::Chip(paint), &note);
        let position = (x + INNER_MARGIN, y + (CHIP - style.height()) / 2);
        let text = canvas.add_text(position, room, style, &label);
        x = x.max(text.right() + INNER_MARGIN) + GAP;
    }
    y + CHIP
}

struct CardContent<'c> {
    canvas: &'c mut Canvas,
    x: i32,
    y: i32,
    width: i32,
}

impl CardContent<'_> {
    fn heading(&mut self, function: &TopologyFunction) {
        let names = function.names(", ");
        let address = function.address.to_string();
        let mut room = self.width;
        if names.is_some() {
            let position = (self.x + self.width, self.y + 1);
            room -= self.canvas.add_detail_right(position, room, &address).width + GAP;
        }
        let name = names.unwrap_or(address);
        let line = self.canvas.add_text((self.x, self.y), room, TextStyle::Name, &name);
        self.y = line.bottom();
        let first = function.interfaces.first();
        let details = [
            Some(function.driver.clone().unwrap_or("no driver".to_owned())),
            Some(function.id.clone()),
            first.and_then(|interface| interface.state.clone()),
            first.and_then(|interface| interface.speed_mbps).map(format_speed),
            function.link.map(PcieLink::short),
        ];
        self.line(0, &details.into_iter().flatten().collect::<Vec<_>>().join(SEPARATOR));
        for text in function.gpu.iter().flat_map(TopologyGpu::details) {
            self.line(0, &text);
        }
    }

    fn line(&mut self, indent: i32, text: &str) {
        let (position, room) = ((self.x + indent, self.y), self.width - indent);
        let line = self.canvas.add_text(position, room, TextStyle::Detail, text);
        self.y = line.bottom() + 2;
    }

    fn devices(&mut self, function: &TopologyFunction) {
        if function.informative_devices().next().is_some() {
            let devices = function.informative_devices();
            let labels = devices.map(|device| (device, chip_label(device, function)));
            let area = (self.x, self.y + 2, self.width);
            self.y = draw_chips(self.canvas, area, labels) + GAP;
        }
        for device in function.informative_devices() {
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
            let note = format!("{}: {}", group.name(), group.describe());
            let rect = Rect::new(x, self.y, width, BAR);
            self.canvas.add_with_note(rect, Shape::Segment(group_paint(group)), &note);
            x += width + CHIP_GAP;
        }
        self.y += BAR + GAP;
    }

    fn group(&mut self, group: &FunctionGroup) {
        let indent = SWATCH + GAP;
        let swatch = Rect::new(self.x, self.y + 4, SWATCH, SWATCH);
        self.canvas.add(swatch, Shape::Segment(group_paint(group)));
        let (position, room) = ((self.x + self.width, self.y), self.width - indent);
        let description = self.canvas.add_detail_right(position, room * 2 / 3, &group.describe());
        let (position, room) = ((self.x + indent, self.y), room - description.width - GAP);
        let line = self.canvas.add_text(position, room, TextStyle::Detail, &group.name());
        self.y = line.bottom() + 2;
        if let Some(held) = describe_holders(&group.holders) {
            self.line(indent, &held);
        }
    }
}

fn group_paint(group: &FunctionGroup) -> Paint {
    Paint { class: group.classes.first().copied(), state: group.state }
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
    let mut names = function.interfaces.iter().map(|interface| interface.name.as_str());
    let is_shown =
        names.any(|name| name == device.name) || function.address.to_string() == device.name;
    let name = if is_shown { String::new() } else { format!(" {}", device.name) };
    let state = match device.state {
        Occupancy::Free => String::new(),
        state => format!("{SEPARATOR}{}", state.as_str()),
    };
    format!("{}{name}{state}", device.class)
}
