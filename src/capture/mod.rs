//! A host for a report of a fault: what discovery looked at, as a tree that discovery gives the same
//! answer for, with the addresses of its hardware masked.
//!
//! Read ([`tree`]), decide ([`filter`], [`mask`], [`standin`]), emit ([`archive`]).

pub(crate) mod archive;
pub(crate) mod filter;
pub(crate) mod mask;
pub(crate) mod standin;
pub(crate) mod tree;

pub(crate) use archive::pack;
pub(crate) use tree::CapturedTree;
