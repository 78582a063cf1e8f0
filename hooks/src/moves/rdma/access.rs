//! Access to RDMA devices: the kernel's, or in tests to stand-ins.

#[cfg(not(feature = "stand-ins"))]
pub(super) use super::ops::*;
#[cfg(feature = "stand-ins")]
pub(super) use crate::moves::stand_ins::rdma::*;
