//! ResourceSlices as pure functions of a host's offers.
//!
//! A slice is built when it is needed and dropped: all slices of 4096 devices at once would be most of this program's
//! memory.

mod device;
mod features;
mod pool;
mod probe;
mod summary;

pub use device::{DRAINED, HELD_TAINT, UNHEALTHY};
pub(crate) use device::{DeviceForm, attributes, is_claim_lease};
pub use features::DraFeatures;
pub use pool::{SliceInput, SlicePool};
pub use probe::probe;
pub use summary::{SliceSummary, fingerprint, lost_features};
