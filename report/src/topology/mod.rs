//! The topology of a host. [`read()`] makes a [`Topology`] of what discovery found. [`render_lines`] shows it as text;
//! a [`Drawing`] places it as boxes (pure), and [`render_svg()`] draws these. [`build_matrix()`] is the distance of
//! GPUs and NICs.

mod build;
mod canvas;
mod card;
mod groups;
mod layout;
mod matrix;
mod model;
mod panel;
mod svg;
#[cfg(test)]
mod tests;
mod text;

pub use build::{TopologyInput, read};
pub use canvas::{Drawing, Item, Rect, Shape, TextStyle};
pub use card::format_speed;
pub use layout::draw;
pub use matrix::build_matrix;
pub use model::{
    Bridge, Bus, NearestNics, NumaMemory, Occupancy, PageTotals, PcieRoot, Topology,
    TopologyDevice, TopologyFunction, TopologyGpu, TopologyInterface, TopologyNumaNode,
};
pub use svg::render_svg;
pub use text::{LineKind, TextLine, render_lines};
