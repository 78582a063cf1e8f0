//! Access to virtual functions: the kernel's, or in tests to stand-ins.

#[cfg(not(feature = "stand-ins"))]
pub(super) use super::kernel::*;
#[cfg(feature = "stand-ins")]
pub(super) use crate::moves::stand_ins::vf::*;
