//! The resources of a node and what containers get of them, as pure functions of the host's offers and kubelet's
//! requests.

mod allocate;
mod folded_names;
mod id;
mod pci_variables;
mod plan;
mod preferred_allocation;
mod resource;
#[cfg(test)]
pub(crate) mod test_devices;

pub use allocate::{AllocateContext, SpecAuthor, allocate};
pub(crate) use folded_names::{device_class_name, replace_punctuation};
pub(crate) use pci_variables::{VariableDevice, pci_variables};
pub use plan::{ResourcePlan, is_pod_lease, plan};
pub(crate) use plan::{container_nodes, matches_source};
pub use preferred_allocation::choose_preferred;
pub use resource::{PluginDevice, Resource};
