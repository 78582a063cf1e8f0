//! Settings of a claim or its class for an interface in the pod, or for a virtual function.

use std::collections::BTreeSet;
use std::fmt::Display;

use anyhow::{Context, Error, Result, anyhow, bail};
use onload_core::class::Class;
use onload_core::device_id::DeviceId;
use onload_core::hook_arguments::{HookArguments, InterfaceValue, NetdevArgument};
use onload_core::host_settings::InterfaceName;
use onload_core::kubernetes_settings::KubernetesSettings;
use onload_core::netdev::address::Network;
use onload_core::vf_config::VfConfig;
use onload_host::offers::{Attribute, HostDevice};
use onload_sys::text::ShortList;

use crate::dra::prepare::allocation::AllocatedDevice;
use crate::dra::prepare::claim_spec::ClaimDevice;
use crate::dra::prepare::parameters::{Author, Parameter, Parameters, misplaced_error};
use crate::snapshot::KubernetesSnapshot;

/// The minimum MTU for IPv6 (RFC 8200, 5). The kernel disables IPv6 on an interface with less.
const MIN_IPV6_MTU: u32 = 1280;

/// Returns the interface with the settings of a claim or its class, if there are any.
pub(super) fn pod_interface(
    snapshot: &KubernetesSnapshot,
    host_device: &HostDevice,
    allocated: &AllocatedDevice,
) -> Result<Option<HookArguments>> {
    let Some((parameter, is_of_request)) = first_interface_parameter(host_device.class, allocated)
    else {
        return Ok(None);
    };
    if host_device.class != Class::Netdev {
        if is_of_request {
            let classes = match parameter {
                "vlan" => "netdev or vfio",
                _ => "netdev",
            };
            return Err(misplaced_error(parameter, classes, host_device));
        }
        return Ok(None);
    }
    let device = &host_device.name;
    if snapshot.is_moved_by_cni(host_device) {
        bail!(
            "parameter {parameter}: a CNI plugin moves {device} and configures it; set this in the \
             plugin's configuration"
        );
    }
    check(&snapshot.config.kubernetes, allocated)?;
    let netdev = netdev_argument(host_device).with_context(|| {
        format!(
            "parameter {parameter}: could not determine which interface {device} is; run \
             `onload-ctk discover` on the node"
        )
    })?;
    let Parameters { name, mtu, address, routes, .. } = &allocated.parameters;
    let addresses = address.iter().flat_map(|parameter| &parameter.value);
    let routes = routes.iter().flat_map(|parameter| &parameter.value);
    Ok(Some(HookArguments {
        address: interface_values(&netdev, addresses),
        route: interface_values(&netdev, routes),
        mtu: interface_values(&netdev, mtu.iter().map(|parameter| &parameter.value)),
        rename: interface_values(&netdev, name.iter().map(|parameter| &parameter.value)),
        netdev: vec![netdev],
        ..HookArguments::default()
    }))
}

fn interface_values<'a, T: Clone + 'a>(
    netdev: &NetdevArgument,
    values: impl Iterator<Item = &'a T>,
) -> Vec<InterfaceValue<T>> {
    let with_interface =
        |value: &T| InterfaceValue { interface: netdev.name.clone(), value: value.clone() };
    values.map(with_interface).collect()
}

/// Returns the settings of a device's virtual function, if there are any. Like other containers, a claim may choose
/// only VLANs that the operator lists for the device.
pub(super) fn vf_config(
    snapshot: &KubernetesSnapshot,
    device: &DeviceId,
    is_leased: bool,
    allocated: &AllocatedDevice,
) -> Result<Option<VfConfig>> {
    if !Class::FUNCTION_CLASSES.contains(&device.class) {
        return Ok(None);
    }
    let mut vf = snapshot.vf.get(device).cloned();
    if let Some(vlan) = &allocated.parameters.vlan {
        if !is_leased {
            bail!(
                "parameter vlan: the specification of {device} on this node has no hook to set it; \
                 run `onload-ctk cdi generate` there"
            );
        }
        let vf = vf.get_or_insert_default();
        match vlan.author {
            Author::Class => vf.vlan = Some(vlan.value),
            Author::Claim => vf.choose(vlan.value).map_err(|refused| {
                anyhow!(
                    "parameter vlan: {device}, which \"vlans\" in the table vf of its pool or device says on this node: {refused}; ask its operator for vlans there, or for a DeviceClass with it"
                )
            })?,
        }
    }
    vf.as_ref().map(VfConfig::to_settings).transpose().with_context(|| device.to_string())?;
    Ok(vf)
}

/// Returns a parameter that applies only to interfaces, preferring one of this request.
fn first_interface_parameter(
    class: Class,
    allocated: &AllocatedDevice,
) -> Option<(&'static str, bool)> {
    let parameters = &allocated.parameters;
    // Functions without an interface support a VLAN too.
    let is_bare = class != Class::Netdev && Class::FUNCTION_CLASSES.contains(&class);
    let vlan = parameters.vlan.as_ref().filter(|_| !is_bare);
    fn is_request_parameter<T>(parameter: Option<&Parameter<T>>) -> Option<bool> {
        parameter.map(|parameter| parameter.is_of_request)
    }
    let all = [
        ("name", is_request_parameter(parameters.name.as_ref())),
        ("mtu", is_request_parameter(parameters.mtu.as_ref())),
        ("vlan", is_request_parameter(vlan)),
        ("address", is_request_parameter(parameters.address.as_ref())),
        ("routes", is_request_parameter(parameters.routes.as_ref())),
    ];
    all.into_iter()
        .filter_map(|(parameter, is_of_request)| Some((parameter, is_of_request?)))
        .max_by_key(|(_, is_of_request)| *is_of_request)
}

/// Checks a claim's parameters against the operator's limits, since any user who may create pods can write claims.
/// Parameters of a class come from the cluster's administrator.
fn check(settings: &KubernetesSettings, allocated: &AllocatedDevice) -> Result<()> {
    let parameters = &allocated.parameters;
    // A container that chooses an address can impersonate any machine of its network.
    for address in claim_value(parameters.address.as_ref()).into_iter().flatten() {
        if !settings.addresses.iter().any(|network| network.contains(address)) {
            return Err(not_allowed_error(&settings.addresses, address, "address", "addresses"));
        }
    }
    for route in claim_value(parameters.routes.as_ref()).into_iter().flatten() {
        if !settings.routes.iter().any(|network| network.contains_network(&route.network)) {
            return Err(not_allowed_error(&settings.routes, route, "routes", "routes"));
        }
    }
    if let Some(mtu) = claim_value(parameters.mtu.as_ref())
        && mtu.get() > settings.mtu.get()
    {
        bail!(
            "parameter mtu is {mtu}, but this node allows claims at most {}; ask its operator for \
             mtu under [kubernetes], or for a DeviceClass with it",
            settings.mtu
        );
    }
    let mut addresses = parameters.address.iter().flat_map(|parameter| &parameter.value);
    if let Some(Parameter { value: mtu, .. }) = &parameters.mtu
        && mtu.get() < MIN_IPV6_MTU
        && let Some(address) = addresses.find(|address| address.address().is_ipv6())
    {
        bail!(
            "parameter mtu is {mtu}, but an interface with an IPv6 address such as {address} needs \
             at least {MIN_IPV6_MTU}"
        );
    }
    Ok(())
}

fn claim_value<T>(parameter: Option<&Parameter<T>>) -> Option<&T> {
    let parameter = parameter?;
    (parameter.author == Author::Claim).then_some(&parameter.value)
}

fn not_allowed_error(
    networks: &[Network],
    value: &impl Display,
    parameter: &str,
    key: &str,
) -> Error {
    let names: Vec<String> = networks.iter().map(ToString::to_string).collect();
    let allowed = if names.is_empty() { "none".to_owned() } else { ShortList(&names).to_string() };
    anyhow!(
        "parameter {parameter} sets {value}, which is in none of the networks that this node allows to claims ({allowed}); \
         ask its operator for {key} under [kubernetes], or for a DeviceClass with it"
    )
}

pub(super) fn netdev_argument(device: &HostDevice) -> Option<NetdevArgument> {
    let Some(Attribute::Text(name)) = device.attributes.get("interface") else {
        return None;
    };
    let name = InterfaceName::try_from(name.clone()).ok()?;
    let pci = device.pci?;
    Some(NetdevArgument { name, pci })
}

/// Fails if two interfaces have the same address, for which both would answer, or the same name, which a pod cannot
/// have twice.
pub(super) fn refuse_twice(before: &[ClaimDevice], added: &[ClaimDevice]) -> Result<()> {
    let mut taken: BTreeSet<(&str, String)> = before.iter().flat_map(unique_values).collect();
    for (parameter, value) in added.iter().flat_map(unique_values) {
        if !taken.insert((parameter, value.clone())) {
            bail!(
                "parameter {parameter} sets {value} for two devices of the claim; name the request that it is for in requests of the configuration"
            );
        }
    }
    Ok(())
}

fn unique_values(device: &ClaimDevice) -> Vec<(&'static str, String)> {
    let Some(interface) = &device.interface else {
        return Vec::new();
    };
    let names = interface.rename.iter().map(|name| ("name", name.value.to_string()));
    let addresses = interface.address.iter();
    names.chain(addresses.map(|address| ("address", address.value.address().to_string()))).collect()
}
