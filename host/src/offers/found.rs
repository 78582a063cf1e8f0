//! A device of a class, before its specification, its leases and its pools are looked at.

use onload_core::pci::PciAddress;

use super::offer::Attributes;

/// A device that is offered or was.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    /// Its name as a CDI device; more than one if a container has several CDI devices only together.
    pub(super) names: Vec<String>,
    /// Other names by which it may be leased.
    pub(super) aliases: Vec<String>,
    pub(super) pci: Option<PciAddress>,
    /// The NUMA node of that function.
    pub(super) numa_node: Option<u32>,
    /// What users select it by.
    pub(super) attributes: Attributes,
    /// Why a container cannot use it, and what would change that.
    pub(super) trouble: Option<String>,
}
