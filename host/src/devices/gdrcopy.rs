//! The class gdrcopy.

use onload_core::class::Class;

use super::attributes::{Attributes, text};
use super::device::{Device, made_of};
use super::places::Places;
use crate::discover::gdrcopy::Gdrcopy;
use crate::discover::node::DeviceNode;

pub(super) fn devices(class: Class, places: &Places<'_>) -> Vec<Device> {
    made_of(&places.inventory.gdrcopy, |gdrcopy| {
        let expected = Gdrcopy::expected().into_iter().collect();
        Some(Device {
            nodes: vec![DeviceNode::own(gdrcopy.node.clone(), expected)],
            ..Device::new(class, gdrcopy.name)?
        })
    })
}

pub(super) fn attributes(_: &Device, places: &Places<'_>) -> Attributes {
    let found = places.inventory.gdrcopy.first();
    let version = found.and_then(|gdrcopy| gdrcopy.version.as_deref());
    Attributes::from([("driverVersion", text(version))])
}
