//! Boxes and texts with their places, before anything is drawn. All lengths are pixels of a picture that is
//! 1200 wide.

use onload_core::class::Class;

use super::model::Occupancy;

/// Characters other than ASCII in our texts, all of normal width.
const WIDE_CHARACTERS: [char; 2] = ['·', '…'];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drawing {
    pub width: i32,
    pub height: i32,
    pub items: Vec<Item>,
}

/// Something in a picture. It is inside its parent, and overlaps none with the same parent; only wires and lines
/// may touch each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub rect: Rect,
    /// The item that it is inside of, by its place in the list.
    pub parent: Option<usize>,
    pub shape: Shape,
    pub note: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rect {
    pub x: i32,
    pub y: i32,
    pub width: i32,
    pub height: i32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    Panel,
    Card,
    Bridge,
    Wire,
    /// A part of a line between GPUs and their NIC.
    Pair,
    Chip(Paint),
    Segment(Paint),
    Cpu {
        is_isolated: bool,
    },
    Pages,
    PagesUsed,
    Text(TextStyle, String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paint {
    pub class: Option<Class>,
    pub state: Occupancy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextStyle {
    Title,
    Heading,
    Name,
    Detail,
    Chip(Paint),
}

impl Rect {
    pub fn new(x: i32, y: i32, width: i32, height: i32) -> Rect {
        Rect { x, y, width, height }
    }

    pub fn right(&self) -> i32 {
        self.x + self.width
    }

    pub fn bottom(&self) -> i32 {
        self.y + self.height
    }
}

impl TextStyle {
    pub fn size(self) -> i32 {
        match self {
            TextStyle::Title => 22,
            TextStyle::Heading => 16,
            TextStyle::Name => 14,
            TextStyle::Detail => 12,
            TextStyle::Chip(_) => 12,
        }
    }

    pub fn height(self) -> i32 {
        self.size() * 3 / 2
    }

    /// The width of a character in thousandths of the size, never less than in a font that is used: those with
    /// a fixed width have 600 or 602, and of the others no ordinary text has more on average.
    fn advance(self) -> i32 {
        match self {
            TextStyle::Title | TextStyle::Heading => 720,
            TextStyle::Name | TextStyle::Detail | TextStyle::Chip(_) => 610,
        }
    }

    pub fn width(self, text: &str) -> i32 {
        let characters = i32::try_from(text.chars().count()).unwrap_or(i32::MAX / 100_000);
        (characters * self.size() * self.advance()).div_euclid(1000) + 1
    }

    /// A text that fits into that many pixels: what is too long ends in `…`.
    fn truncate_to_width(self, text: &str, room: i32) -> String {
        if self.width(text) <= room {
            return text.to_owned();
        }
        let max = (room - 1).max(0) * 1000 / (self.size() * self.advance());
        let count = usize::try_from(max - 1).unwrap_or(0);
        match max {
            ..1 => String::new(),
            _ => text.chars().take(count).chain(['…']).collect(),
        }
    }
}

/// A text of a host in which nothing has a width that is not known, and nothing is forbidden in XML.
pub(super) fn sanitize(text: &str) -> String {
    let mut sanitized = String::new();
    for c in text.chars() {
        match c {
            ' '..='~' => sanitized.push(c),
            c if WIDE_CHARACTERS.contains(&c) => sanitized.push(c),
            c => sanitized.extend(c.escape_default()),
        }
    }
    sanitized
}

#[derive(Clone, Debug, Default)]
pub(super) struct Canvas {
    pub(super) items: Vec<Item>,
}

impl Canvas {
    pub(super) fn add(&mut self, parent: Option<usize>, rect: Rect, shape: Shape) -> usize {
        self.items.push(Item { rect, parent, shape, note: None });
        self.items.len() - 1
    }

    pub(super) fn add_note(&mut self, item: usize, note: &str) {
        self.items[item].note = Some(sanitize(note));
    }

    pub(super) fn end(&mut self, item: usize, bottom: i32) {
        let rect = &mut self.items[item].rect;
        rect.height = bottom - rect.y;
    }

    /// Draws as much as there is room for. Returns the used area.
    pub(super) fn add_text(
        &mut self,
        parent: Option<usize>,
        (x, y): (i32, i32),
        room: i32,
        style: TextStyle,
        text: &str,
    ) -> Rect {
        let sanitized = sanitize(text);
        let fitted = style.truncate_to_width(&sanitized, room);
        let rect = Rect::new(x, y, style.width(&fitted), style.height());
        if !fitted.is_empty() {
            let is_short = fitted != sanitized;
            let item = self.add(parent, rect, Shape::Text(style, fitted));
            if is_short {
                self.add_note(item, &sanitized);
            }
        }
        rect
    }

    /// With the place of its right end.
    pub(super) fn add_text_right(
        &mut self,
        parent: Option<usize>,
        (right, y): (i32, i32),
        room: i32,
        style: TextStyle,
        text: &str,
    ) -> Rect {
        let fitted = style.truncate_to_width(&sanitize(text), room);
        let x = right - style.width(&fitted);
        self.add_text(parent, (x, y), right - x, style, text)
    }

    pub(super) fn append(&mut self, other: Canvas, (x, y): (i32, i32)) {
        let offset = self.items.len();
        self.items.extend(other.items.into_iter().map(|mut item| {
            item.rect.x += x;
            item.rect.y += y;
            item.parent = item.parent.map(|parent| parent + offset);
            item
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_fits_its_room_whatever_it_is() {
        for style in [TextStyle::Title, TextStyle::Heading, TextStyle::Name, TextStyle::Detail] {
            for room in [-5, 0, 1, 8, 20, 100, 1000] {
                for text in ["", "a", "enp101s0f0np0", &"x".repeat(5000)] {
                    let shown = style.truncate_to_width(text, room);
                    let fits = style.width(&shown) <= room;
                    assert!(shown.is_empty() || fits, "{style:?} {room} {text}");
                }
            }
        }
        assert_eq!(TextStyle::Detail.truncate_to_width("enp101s0f0np0", 60), "enp101s…");
    }

    #[test]
    fn what_is_no_plain_text_is_written_out() {
        assert_eq!(sanitize("a<b>&\"\u{1b}é·"), "a<b>&\"\\u{1b}\\u{e9}·");
    }
}
