//! The kernel's virtual functions, or the stand-ins that tests install for them.

#[cfg(not(feature = "stand-ins"))]
pub(super) use super::kernel::*;
#[cfg(feature = "stand-ins")]
pub(super) use crate::moves::stand_ins::vf::*;
