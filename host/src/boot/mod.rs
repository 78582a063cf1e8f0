//! Virtual functions, huge pages and other host settings of the sections `[[sriov]]` and `[host]`. [`plan()`] reads and
//! decides without changing anything; [`apply()`] carries out the plan and checks each step.

mod af_xdp;
mod apply;
mod function_users;
mod hugepages;
mod kernel;
mod plan;
mod running_kernel;
mod sriov;
mod step;
#[cfg(test)]
mod tests;

pub use apply::{ApplyOutcome, StepStage, apply};
pub use kernel::{HostKernel, KernelReader, OfflineKernel, VfChange, VfSettings};
pub use plan::plan;
pub use running_kernel::RunningKernel;
pub use step::{Effect, HostPlan, HostStep, StepAction, StepRefusal, StepSubject};
