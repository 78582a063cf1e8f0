//! Discovery: one file per resource, each with pure parsers; all reading goes through [`Probe`].

pub mod names;
pub mod netdev;
pub mod nic;
pub mod onload;
pub mod pci;
pub mod probe;
pub mod profile;
pub mod program;
pub mod tcpdirect;

pub use probe::Probe;
