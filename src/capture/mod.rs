//! Captures a host for a bug report: what discovery read, as a tree for which discovery gives the same answer, with
//! hardware addresses masked.

pub(crate) mod archive;
pub(crate) mod filter;
pub(crate) mod mask;
pub(crate) mod stub;
pub(crate) mod tree;
mod vpd;

pub(crate) use archive::pack;
pub(crate) use tree::CapturedTree;
