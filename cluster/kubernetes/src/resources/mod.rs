//! Which resources a node has, and what containers get of them: pure functions of what the host offers and
//! of what kubelet asks.

mod allocate;
mod id;
mod pcidevice;
mod plan;
mod preferred;
mod resource;
#[cfg(test)]
pub(crate) mod test_devices;

pub use allocate::{Surroundings, WrittenBy, allocate};
pub(crate) use pcidevice::{Function, variables};
pub(crate) use plan::nodes;
pub use plan::{Plan, is_of_a_pod, plan};
pub use preferred::preferred;
pub use resource::{Device, Resource};
