//! A slice for a dry run, whose result shows the server's features.

use k8s_openapi::api::resource::v1::{Device, ResourcePool, ResourceSlice, ResourceSliceSpec};

use super::device::{DeviceForm, UNHEALTHY, capacity, taint};
use super::pool::slice_metadata;
use crate::dra::DRIVER;
use crate::names::{NodeName, append_to_node};

pub fn probe(node: &NodeName, uid: &str) -> ResourceSlice {
    let form = DeviceForm::Shared(2);
    let shared = Device {
        name: "shared".to_owned(),
        allow_multiple_allocations: Some(true),
        capacity: Some(capacity(form)),
        ..Device::default()
    };
    let tainted = Device {
        name: "tainted".to_owned(),
        taints: Some(vec![taint(UNHEALTHY)]),
        ..Device::default()
    };
    ResourceSlice {
        metadata: slice_metadata(append_to_node(node.as_str(), "-onload-dev-probe"), node, uid),
        spec: ResourceSliceSpec {
            driver: DRIVER.to_owned(),
            node_name: Some(node.to_string()),
            pool: ResourcePool {
                name: append_to_node(node.as_str(), "/probe"),
                generation: 1,
                resource_slice_count: 1,
            },
            devices: Some(vec![shared, tainted]),
            ..ResourceSliceSpec::default()
        },
    }
}
