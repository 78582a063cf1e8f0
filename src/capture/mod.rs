//! A host for a report of a fault: what discovery looked at, as a tree that discovery gives the same
//! answer for, with the addresses of its hardware masked.
//!
//! Read ([`tree`]), decide ([`filter`], [`mask`], [`standin`]), emit ([`archive`]).

pub mod archive;
pub mod filter;
pub mod mask;
pub mod standin;
pub mod tree;

pub use archive::pack;
pub use tree::CapturedTree;
