//! Network data of a claim's device, for programs in its pods and for the status of the claim.

use k8s_openapi::api::resource::v1::NetworkDeviceData;
use onload_core::class::Class;
use onload_core::device_id::DeviceId;
use onload_host::offers::HostDevice;
use onload_lease::SavedState;
use onload_sys::netlink::link::format_hwaddr;

use super::{PrepareContext, interface};
use crate::dra::pool_selectors::PoolSelectors;
use crate::dra::prepare::allocation::AllocatedDevice;
use crate::dra::prepare::claim_spec::PreparedDevice;
use crate::dra::prepare::metadata::DeviceMetadata;
use crate::dra::resource_names::resource_name;
use crate::dra::slices::{DeviceForm, attributes};
use crate::names::parse_slot;

/// Limit of the API server (resource.k8s.io/v1, `NetworkDeviceData.ips`).
const MAX_ADDRESSES: usize = 16;

impl PrepareContext<'_> {
    pub(super) fn describe(
        &self,
        allocated: &AllocatedDevice,
        device: &HostDevice,
    ) -> DeviceMetadata {
        let resource = resource_name(device, &self.snapshot.config.kubernetes);
        let pools = PoolSelectors::new(device.class, &self.snapshot.devices);
        let form = parse_slot(&allocated.device).map_or(DeviceForm::One, DeviceForm::Slot);
        DeviceMetadata {
            request: allocated.request.clone(),
            chosen: allocated.chosen.clone(),
            attributes: attributes(device, form, resource.as_ref(), &pools),
            prepared: PreparedDevice {
                pool: allocated.pool.clone(),
                device: allocated.device.clone(),
                share_id: allocated.share_id.clone(),
                network: self.network_data(allocated, device),
            },
        }
    }

    /// Returns the data of an interface in the pod that is known before the interface moves. A CNI plugin may change it.
    fn network_data(
        &self,
        allocated: &AllocatedDevice,
        host_device: &HostDevice,
    ) -> Option<NetworkDeviceData> {
        if host_device.class != Class::Netdev
            || allocated.is_admin
            || self.snapshot.is_moved_by_cni(host_device)
        {
            return None;
        }
        let netdev_name = interface::netdev_argument(host_device)?.name;
        let parameters = &allocated.parameters;
        let name = parameters.name.as_ref().map(|name| name.value.to_string());
        let configured = self.snapshot.config.netdev.get(host_device.name.as_str());
        let addresses = match (&parameters.address, configured) {
            (Some(parameter), _) => parameter.value.as_slice(),
            (None, Some(configured)) => configured.addresses.as_slice(),
            (None, None) => &[],
        };
        let ips: Vec<String> =
            addresses.iter().take(MAX_ADDRESSES).map(ToString::to_string).collect();
        let device = DeviceId { class: host_device.class, name: host_device.name.clone() };
        let set = self.snapshot.vf.get(&device).and_then(|vf| vf.mac);
        Some(NetworkDeviceData {
            interface_name: Some(name.unwrap_or_else(|| netdev_name.to_string())),
            ips: (!ips.is_empty()).then_some(ips),
            hardware_address: address_in_container(host_device)
                .or_else(|| set.map(|mac| mac.to_string())),
        })
    }
}

/// Returns the hardware address of an interface in a container.
fn address_in_container(device: &HostDevice) -> Option<String> {
    device.leases.iter().find_map(|device_lease| {
        let move_record = device_lease.lease.as_ref()?.moved.as_ref()?;
        saved_address(&move_record.saved)
    })
}

/// Returns the address that was set for the container, or else the original one.
fn saved_address(saved: &SavedState) -> Option<String> {
    let SavedState::Interface(saved) = saved else {
        return None;
    };
    let vf_mac = saved.vf.as_ref().and_then(|vf| vf.given.mac);
    Some(vf_mac.map_or_else(|| saved.mac.clone(), |mac| format_hwaddr(&mac)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hardware_address_is_that_in_the_container() {
        let facts = |vf: &str| -> SavedState {
            let json = format!(
                r#"{{"interface":{{"name":"ens1v0","mac":"02:00:00:00:00:01","mtu":1500,"queueLength":1000,
                "flags":0,"pci":"0000:81:11.0","vf":{{"given":{vf},"before":{{"mac":"02:00:00:00:00:01"}}}}}}}}"#
            );
            serde_json::from_str(&json).unwrap()
        };
        let given = saved_address(&facts(r#"{"mac":"02:00:00:00:10:01"}"#));
        assert_eq!(given.as_deref(), Some("02:00:00:00:10:01"));
        let kept = saved_address(&facts(r#"{"spoofCheck":true}"#));
        assert_eq!(kept.as_deref(), Some("02:00:00:00:00:01"));
    }
}
