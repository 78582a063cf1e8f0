//! Discovery: one file per resource, each with pure parsers; all reading goes through [`Probe`].

pub mod names;
pub mod netdev;
pub mod pci;
pub mod probe;

pub use probe::Probe;
