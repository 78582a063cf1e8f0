//! Reports to the API server, after kubelet has its answer: the state of devices in the status of each claim, and
//! Events for rejected claims and unhealthy devices of pods.
//!
//! [`status`] computes the state of a claim's devices, [`reporter`] keeps the claims up to date, and [`events`] limits
//! the rate of Events. Nothing waits for these reports, and without changes there are no requests.

mod events;
mod reporter;
mod status;

pub(super) use reporter::Reporter;
