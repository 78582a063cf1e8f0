//! A PCI function as a card: its interfaces, its devices as chips, and its virtual functions, folded.

use onload_sys::text::format_count;

use super::canvas::{Canvas, Paint, Rect, Shape, Style, plain};
use super::groups::{Group, fold, held_by};
use super::model::{Device, Function, Gpu, Interface, State};

const PAD: i32 = 12;
const STRIPE: i32 = 5;
const CHIP: i32 = 22;
const GAP: i32 = 6;
const INSIDE: i32 = 9;
const SWATCH: i32 = 10;
const BAR: i32 = 12;
const LEAST: i32 = 6;
const BETWEEN: i32 = 2;
const SEPARATOR: &str = " · ";

/// Gives its lower edge.
pub(super) fn place(
    canvas: &mut Canvas,
    panel: usize,
    (x, y, width): (i32, i32, i32),
    function: &Function,
) -> i32 {
    let card = canvas.add(Some(panel), Rect::new(x, y, width, 0), Shape::Card);
    let stripe =
        canvas.add(Some(card), Rect::new(x, y, STRIPE, 0), Shape::Segment(paint(function)));
    let mut inside =
        Inside { canvas, card, x: x + STRIPE + PAD, y: y + PAD, width: width - STRIPE - 2 * PAD };
    inside.heading(function);
    let telling: Vec<&Device> = function.telling().collect();
    inside.chips(&telling, function);
    inside.holders(&telling);
    inside.virtual_functions(&function.virtual_functions);
    let bottom = inside.y + PAD - GAP;
    canvas.end(card, bottom);
    canvas.end(stripe, bottom);
    bottom
}

/// Places chips below each other where they do not fit beside, and gives the lower edge.
pub(super) fn chips<'d>(
    canvas: &mut Canvas,
    parent: usize,
    (left, top, width): (i32, i32, i32),
    devices: impl Iterator<Item = (&'d Device, String)>,
) -> i32 {
    let (mut x, mut y) = (left, top);
    for (device, label) in devices {
        let label = plain(&label);
        let room = width - 2 * INSIDE;
        let paint = Paint { class: Some(device.class), state: device.state };
        let style = Style::Chip(paint);
        let wanted = style.width(&label).min(room) + 2 * INSIDE;
        if x > left && x + wanted > left + width {
            (x, y) = (left, y + CHIP + GAP);
        }
        let chip = canvas.add(Some(parent), Rect::new(x, y, wanted, CHIP), Shape::Chip(paint));
        let text = canvas.text(
            Some(chip),
            (x + INSIDE, y + (CHIP - style.height()) / 2),
            room,
            style,
            &label,
        );
        let state = device.state.as_str();
        let why = device.reason.as_deref().map(|why| format!(": {why}"));
        let who = held_by(&device.holders).map(|who| format!(", {who}"));
        let note = format!(
            "{} {}: {state}{}{}",
            device.class,
            device.name,
            who.unwrap_or_default(),
            why.unwrap_or_default()
        );
        canvas.note(chip, &note);
        x = x.max(text.right() + INSIDE) + GAP;
    }
    y + CHIP
}

fn paint(function: &Function) -> Paint {
    Paint { class: function.class(), state: function.state() }
}

struct Inside<'c> {
    canvas: &'c mut Canvas,
    card: usize,
    x: i32,
    y: i32,
    width: i32,
}

impl Inside<'_> {
    fn heading(&mut self, function: &Function) {
        let names = function.names(", ");
        let address = function.address.to_string();
        let (parent, right) = (Some(self.card), self.x + self.width);
        let mut room = self.width;
        if names.is_some() {
            let place = (right, self.y + 1);
            let taken = self.canvas.text_ending(parent, place, room, Style::Detail, &address);
            room -= taken.width + GAP;
        }
        let name = names.unwrap_or(address);
        let line = self.canvas.text(parent, (self.x, self.y), room, Style::Name, &name);
        self.y = line.bottom();
        let driver = function.driver.as_deref().unwrap_or("no driver");
        let mut details = vec![driver.to_owned(), function.id.clone()];
        details.extend(function.interfaces.first().and_then(state_and_speed));
        details.extend(function.link.clone());
        self.line(0, &details.join(SEPARATOR));
        for text in function.gpu.iter().flat_map(Gpu::details) {
            self.line(0, &text);
        }
    }

    fn line(&mut self, indent: i32, text: &str) {
        let place = (self.x + indent, self.y);
        let room = self.width - indent;
        let line = self.canvas.text(Some(self.card), place, room, Style::Detail, text);
        self.y = line.bottom() + 2;
    }

    fn chips(&mut self, devices: &[&Device], function: &Function) {
        if devices.is_empty() {
            return;
        }
        self.y += 2;
        let labels = devices.iter().map(|device| (*device, label(device, function)));
        let place = (self.x, self.y, self.width);
        self.y = chips(self.canvas, self.card, place, labels) + GAP;
    }

    fn holders(&mut self, devices: &[&Device]) {
        for device in devices {
            if let Some(held) = held_by(&device.holders) {
                self.line(0, &format!("{} {held}", device.class));
            }
        }
    }

    fn virtual_functions(&mut self, functions: &[Function]) {
        if functions.is_empty() {
            return;
        }
        let count = functions.len();
        self.y += 2;
        self.line(0, &format_count(count, "virtual function", "virtual functions"));
        let groups = fold(functions);
        self.bar(&groups, count);
        for group in &groups {
            self.group(group);
        }
    }

    /// How many of them are what, at one look.
    fn bar(&mut self, groups: &[Group], count: usize) {
        let (Ok(number), Ok(count)) = (i32::try_from(groups.len()), i32::try_from(count)) else {
            return;
        };
        let room = self.width - (number - 1) * BETWEEN - number * LEAST;
        if room < 0 {
            return;
        }
        let mut x = self.x;
        for group in groups {
            let share = i64::from(room) * i64::try_from(group.count).unwrap_or(0);
            let width = LEAST + i32::try_from(share / i64::from(count)).unwrap_or(0);
            let rect = Rect::new(x, self.y, width, BAR);
            let shape = Shape::Segment(of_group(group));
            let segment = self.canvas.add(Some(self.card), rect, shape);
            let note = format!("{}: {}", group.name(), group.what());
            self.canvas.note(segment, &note);
            x += width + BETWEEN;
        }
        self.y += BAR + GAP;
    }

    fn group(&mut self, group: &Group) {
        let (parent, indent) = (Some(self.card), SWATCH + GAP);
        let swatch = Rect::new(self.x, self.y + 4, SWATCH, SWATCH);
        self.canvas.add(parent, swatch, Shape::Segment(of_group(group)));
        let place = (self.x + self.width, self.y);
        let room = self.width - indent;
        let what =
            self.canvas.text_ending(parent, place, room * 2 / 3, Style::Detail, &group.what());
        let place = (self.x + indent, self.y);
        let line =
            self.canvas.text(parent, place, room - what.width - GAP, Style::Detail, &group.name());
        self.y = line.bottom() + 2;
        if let Some(held) = held_by(&group.holders) {
            self.line(indent, &held);
        }
    }
}

fn of_group(group: &Group) -> Paint {
    Paint { class: group.classes.first().copied(), state: group.state }
}

fn state_and_speed(interface: &Interface) -> Option<String> {
    let speed = interface.speed_mbps.map(speed);
    let words: Vec<String> = interface.state.clone().into_iter().chain(speed).collect();
    (!words.is_empty()).then(|| words.join(SEPARATOR))
}

pub(super) fn speed(mbps: u64) -> String {
    match mbps % 1000 {
        0 => format!("{} Gbit/s", mbps / 1000),
        _ => format!("{mbps} Mbit/s"),
    }
}

/// What a chip says: the class, and the name where the card does not say it already.
fn label(device: &Device, function: &Function) -> String {
    let mut names = function.interfaces.iter().map(|i| i.name.as_str());
    let address = function.address.to_string();
    let class = device.class;
    let said = if names.any(|name| name == device.name) || address == device.name {
        class.to_string()
    } else {
        format!("{class} {}", device.name)
    };
    match device.state {
        State::Free => said,
        State::Held => format!("{said}{SEPARATOR}held"),
        State::Drained => format!("{said}{SEPARATOR}drained"),
        State::NotOffered => format!("{said}{SEPARATOR}not offered"),
    }
}
