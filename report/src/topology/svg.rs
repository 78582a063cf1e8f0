//! Draws a picture as SVG 1.1. Its colours are classes of a style sheet, in light and in dark.

use onload_core::class::Class;
use svg::Document;
use svg::node::Text as Content;
use svg::node::element::{Group, Rectangle, Style as StyleSheet, Text, Title};

use super::canvas::{Drawing, Item, Paint, Rect, Shape, TextStyle};
use super::model::Occupancy;

/// The style sheet. A class sets the colour, and a state says how it fills.
const STYLE: &str = include_str!("style.css");

/// Returns the picture as a complete file. Texts from the host are only in text nodes.
pub fn render_svg(drawing: &Drawing) -> String {
    let page = Rect::new(0, 0, drawing.width, drawing.height);
    let start = Document::new()
        .set("xmlns", "http://www.w3.org/2000/svg")
        .set("viewBox", (0, 0, drawing.width, drawing.height))
        .set("width", drawing.width)
        .set("height", drawing.height)
        .add(StyleSheet::new(format!("\n{STYLE}")))
        .add(rectangle(&page, 0).set("class", "page"));
    let document = drawing.items.iter().fold(start, |document, item| document.add(draw_item(item)));
    format!("{document}\n")
}

/// An item, with what is said of it where somebody points at it.
fn draw_item(item: &Item) -> Group {
    let rect = &item.rect;
    let (rounded, class) = appearance(&item.shape);
    let group = match &item.shape {
        Shape::Text(style, text) => Group::new().add(line(rect, *style, text, class)),
        _ => Group::new().add(rectangle(rect, rounded).set("class", class)),
    };
    match &item.note {
        Some(note) => group.add(Title::new("").add(Content::new(note.as_str()))),
        None => group,
    }
}

fn appearance(shape: &Shape) -> (i32, String) {
    let (rounded, class) = match shape {
        Shape::Panel => (10, "panel"),
        Shape::Card => (6, "card"),
        Shape::Bridge => (8, "bridge"),
        Shape::Wire => (0, "wire"),
        Shape::Pair => (0, "pair"),
        Shape::Chip(paint) => return (11, paint_class(paint)),
        Shape::Segment(paint) => return (2, paint_class(paint)),
        Shape::Cpu { is_isolated: false } => (2, "cpu"),
        Shape::Cpu { is_isolated: true } => (2, "isolated"),
        Shape::Pages => (5, "pages"),
        Shape::PagesUsed => (3, "used"),
        Shape::Text(TextStyle::Title, _) => (0, "title"),
        Shape::Text(TextStyle::Heading, _) => (0, "heading"),
        Shape::Text(TextStyle::Name, _) => (0, "name"),
        Shape::Text(TextStyle::Detail, _) => (0, "detail"),
        Shape::Text(TextStyle::Chip(paint), _) => {
            return (0, format!("label {}", paint_class(paint)));
        }
    };
    (rounded, class.to_owned())
}

fn paint_class(paint: &Paint) -> String {
    let class = paint.class.map_or("none", Class::as_str);
    let state = match paint.state {
        Occupancy::Free => "free",
        Occupancy::Held => "held",
        Occupancy::Drained | Occupancy::NotOffered => "not-offered",
    };
    format!("{class} {state}")
}

fn rectangle(rect: &Rect, rounded: i32) -> Rectangle {
    let shape = Rectangle::new()
        .set("x", rect.x)
        .set("y", rect.y)
        .set("width", rect.width)
        .set("height", rect.height);
    match rounded {
        0 => shape,
        rounded => shape.set("rx", rounded),
    }
}

/// Returns a line of text, with its baseline a little below the middle.
fn line(rect: &Rect, style: TextStyle, text: &str, class: String) -> Text {
    let y = rect.y + style.height() / 2 + style.size() * 7 / 20;
    Text::new(text).set("x", rect.x).set("y", y).set("class", class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_that_can_be_drawn_has_a_colour_in_light_and_in_dark() {
        let off_pci = [Class::Hugepages, Class::Gdrcopy];
        for class in Class::ALL.into_iter().filter(|class| class.is_in_topology()).chain(off_pci) {
            let rule = format!(".{class} {{ color: #");
            assert_eq!(STYLE.matches(&rule).count(), 2, "{class}");
        }
    }
}
