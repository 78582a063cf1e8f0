//! Boxes and texts with their places, before anything is drawn. All lengths are pixels of a picture that is
//! 1200 wide.

use onload_core::class::Class;

use super::model::Occupancy;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drawing {
    pub width: i32,
    pub height: i32,
    pub items: Vec<Item>,
}

/// Something in a picture. Of two items that overlap, the later one is inside of the other; only wires and lines may
/// touch each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub rect: Rect,
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
            TextStyle::Detail | TextStyle::Chip(_) => 12,
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
        match usize::try_from((room - 1) * 1000 / (self.size() * self.advance())) {
            Ok(max @ 1..) => text.chars().take(max - 1).chain(['…']).collect(),
            _ => String::new(),
        }
    }
}

/// A text of a host in which nothing has a width that is not known, and nothing is forbidden in XML.
pub(super) fn sanitize(text: &str) -> String {
    let mut sanitized = String::new();
    for c in text.chars() {
        match c {
            ' '..='~' | '·' | '…' => sanitized.push(c),
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
    pub(super) fn add(&mut self, rect: Rect, shape: Shape) -> usize {
        self.items.push(Item { rect, shape, note: None });
        self.items.len() - 1
    }

    pub(super) fn add_with_note(&mut self, rect: Rect, shape: Shape, note: &str) {
        self.items.push(Item { rect, shape, note: Some(sanitize(note)) });
    }

    pub(super) fn end(&mut self, item: usize, bottom: i32) {
        let rect = &mut self.items[item].rect;
        rect.height = bottom - rect.y;
    }

    /// Draws as much as there is room for. Returns the used area.
    pub(super) fn add_text(
        &mut self,
        (x, y): (i32, i32),
        room: i32,
        style: TextStyle,
        text: &str,
    ) -> Rect {
        let sanitized = sanitize(text);
        let fitted = style.truncate_to_width(&sanitized, room);
        let rect = Rect::new(x, y, style.width(&fitted), style.height());
        if !fitted.is_empty() {
            let note = (fitted != sanitized).then_some(sanitized);
            self.items.push(Item { rect, shape: Shape::Text(style, fitted), note });
        }
        rect
    }

    /// Draws a detail that ends at that place.
    pub(super) fn add_detail_right(
        &mut self,
        (right, y): (i32, i32),
        room: i32,
        text: &str,
    ) -> Rect {
        let style = TextStyle::Detail;
        let x = right - style.width(&style.truncate_to_width(&sanitize(text), room));
        self.add_text((x, y), right - x, style, text)
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
