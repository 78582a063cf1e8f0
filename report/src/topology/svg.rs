//! Draws a picture as SVG 1.1. Its colours are classes of a style sheet, in light and in dark.

use onload_core::class::Class;
use svg::Document;
use svg::node::Text as Content;
use svg::node::element::{Group, Rectangle, Style as StyleSheet, Text, Title};

use super::canvas::{Drawing, Item, Paint, Rect, Shape, TextStyle};
use super::model::Occupancy;

/// The style sheet. A class sets the colour, and a state says how it fills.
const STYLE: &str = "
svg { color-scheme: light dark; }
text { font-family: ui-monospace, 'DejaVu Sans Mono', 'Liberation Mono', Menlo, Consolas, monospace; fill: #1f2933; }
.title, .heading { font-family: 'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif; font-weight: 600; }
.title { font-size: 22px; } .heading { font-size: 16px; }
.name { font-size: 14px; font-weight: 600; } .detail { font-size: 12px; fill: #5b6875; } .label { font-size: 12px; }
.page { fill: #f3f5f8; } .panel { fill: #ffffff; stroke: #d5dbe3; } .card { fill: #f8fafc; stroke: #d5dbe3; }
.bridge { fill: #eef1f5; stroke: #d5dbe3; } .wire { fill: #b8c1cc; } .pair { fill: #7a3fd0; }
.cpu { fill: #c9d3de; } .isolated { fill: #d9467a; } .pages { fill: #e4e9ef; } .used { fill: #6b7a8c; }
.none { color: #6b7a8c; } .nic { color: #1d6fd8; } .zf { color: #0b8494; } .rdma { color: #7a3fd0; }
.vfio { color: #c25e00; } .ptp { color: #1f8a4c; } .pps { color: #7d7a00; } .netdev { color: #a3348f; }
.hugepages { color: #8a5a2b; } .gdrcopy { color: #b3261e; }
.free { fill: currentColor; fill-opacity: .16; stroke: currentColor; }
.held { fill: currentColor; stroke: currentColor; }
.not-offered { fill: none; stroke: #9aa5b1; stroke-dasharray: 3 2; }
.label.free { fill: currentColor; fill-opacity: 1; stroke: none; } .label.held { fill: #ffffff; stroke: none; }
.label.not-offered { fill: #5b6875; stroke: none; }
@media (prefers-color-scheme: dark) {
text { fill: #e6ebf1; } .detail { fill: #9fabb8; }
.page { fill: #0e1319; } .panel { fill: #161d26; stroke: #2b3644; } .card { fill: #1b2430; stroke: #2f3b4a; }
.bridge { fill: #202a37; stroke: #2f3b4a; } .wire { fill: #46546a; } .pair { fill: #b48cff; }
.cpu { fill: #3d4b5c; } .isolated { fill: #f272a0; } .pages { fill: #2a3543; } .used { fill: #93a1b2; }
.none { color: #93a1b2; } .nic { color: #63a9ff; } .zf { color: #3cc5d6; } .rdma { color: #b48cff; }
.vfio { color: #ffa24d; } .ptp { color: #5bd08a; } .pps { color: #d3cf4a; } .netdev { color: #ea86d8; }
.hugepages { color: #d8a878; } .gdrcopy { color: #ff8a80; }
.not-offered { stroke: #5d6b7b; }
.label.held { fill: #0e1319; } .label.not-offered { fill: #9fabb8; }
}
";

/// Returns the picture as a complete file. Texts from the host are only in text nodes.
pub fn render_svg(drawing: &Drawing) -> String {
    let page = Rect::new(0, 0, drawing.width, drawing.height);
    let start = Document::new()
        .set("xmlns", "http://www.w3.org/2000/svg")
        .set("viewBox", (0, 0, drawing.width, drawing.height))
        .set("width", drawing.width)
        .set("height", drawing.height)
        .add(StyleSheet::new(STYLE))
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
