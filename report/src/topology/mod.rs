//! Where everything of a host is. [`read()`] makes a [`Topology`] of what discovery found. [`render_lines`] shows it as text;
//! a [`Drawing`] places it as boxes (pure), and [`render_svg()`] draws these. [`build_matrix()`] is the
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

pub use canvas::{Drawing, Item, Rect, Shape, TextStyle};
pub use layout::draw;
pub use matrix::build_matrix;
pub use model::{
    Bridge, Bus, NearestNics, NumaMemory, Occupancy, PageTotals, PcieRoot, Topology,
    TopologyDevice, TopologyFunction, TopologyGpu, TopologyInterface, TopologyNumaNode,
};
pub use places::TopologyInput;
pub use read::read;
pub use svg::render_svg;
pub use text::{LineKind, TextLine, render_lines};
