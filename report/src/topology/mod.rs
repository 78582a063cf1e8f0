//! Where everything of a host is. [`read()`] makes a [`Topology`] of what discovery found. [`lines`] shows it as text;
//! a [`Drawing`] places it as boxes (pure), and [`svg()`] draws these. [`matrix()`] is the
//! distance of GPUs and NICs.

mod canvas;
mod card;
mod groups;
mod layout;
mod matrix;
mod model;
mod node_facts;
mod pairs;
mod panel;
mod places;
mod read;
mod svg;
#[cfg(test)]
mod tests;
mod text;

pub use canvas::{Drawing, Item, Rect, Shape, Style};
pub use layout::draw;
pub use matrix::matrix;
pub use model::{
    Bridge, Bus, Device, Function, Gpu, Interface, Memory, Nearest, NumaNode, Pages, Root, State,
    Topology,
};
pub use places::Seen;
pub use read::read;
pub use svg::svg;
pub use text::{Kind, Line, lines};
