//! The kernel's RDMA devices, or the stand-ins that tests install for them.

#[cfg(not(feature = "stand-ins"))]
pub(super) use super::ops::*;
#[cfg(feature = "stand-ins")]
pub(super) use crate::moves::stand_ins::rdma::*;
