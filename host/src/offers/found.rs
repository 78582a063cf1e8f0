//! A device of a class, before its specification, its leases and its pools are looked at.

use onload_core::pci::PciAddress;

use super::offer::Attributes;

#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    /// Its name as a CDI device; more than one if a container has several CDI devices only together.
    pub(super) names: Vec<String>,
    /// Other names by which it may be leased.
    pub(super) aliases: Vec<String>,
    pub(super) pci: Option<PciAddress>,
    pub(super) numa_node: Option<u32>,
    pub(super) attributes: Attributes,
    pub(super) trouble: Option<String>,
}
