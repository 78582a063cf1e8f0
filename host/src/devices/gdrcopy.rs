//! The class gdrcopy.

use onload_core::class::Class;

use super::attributes::{Attributes, text};
use super::device::{HostDevice, build_devices};
use super::function_index::FunctionIndex;
use crate::discover::gdrcopy::Gdrcopy;
use crate::discover::node::OfferedNode;

pub(super) fn devices(class: Class, function_index: &FunctionIndex<'_>) -> Vec<HostDevice> {
    build_devices(&function_index.inventory.gdrcopy, |gdrcopy| {
        let expected = Gdrcopy::expected().into_iter().collect();
        Some(HostDevice {
            nodes: vec![OfferedNode::exclusive(gdrcopy.node.clone(), expected)],
            ..HostDevice::new(class, gdrcopy.name)?
        })
    })
}

pub(super) fn attributes(_: &HostDevice, function_index: &FunctionIndex<'_>) -> Attributes {
    let gdrcopy = function_index.inventory.gdrcopy.first();
    let version = gdrcopy.and_then(|gdrcopy| gdrcopy.version.as_deref());
    Attributes::from([("driverVersion", text(version))])
}
