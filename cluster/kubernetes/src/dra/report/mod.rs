//! What the API server is told of prepared claims, when kubelet has its answer already: how their devices are, in the
//! status of each claim, and why a claim was refused or a device under a pod went bad, as Events.
//!
//! [`status`] says how the devices of a claim are, [`reporter`] keeps the claims so, and [`events`] writes no more Events
//! than are read. Nothing waits for any of this, and while nothing changes nothing is asked.

mod events;
mod reporter;
mod status;

pub(super) use reporter::Reporter;
