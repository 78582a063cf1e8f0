//! What containers of a claim get. Nothing is read or written here.

mod interface;
mod network_data;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, anyhow, bail};
use onload_cdi::DeviceName;
use onload_core::class::Class;
use onload_core::kubernetes_settings::ResourceName;
use onload_core::lease::{ClaimUid, DeviceId as LeasedDevice};
use onload_host::offers::{Health, Offer, Sharing};
use onload_sys::text::{Quoted, ShortList};

use super::allocation::AllocatedDevice;
use super::claim_spec::{ClaimDevice, VariablesByRequest, cdi_device_name, cdi_request_name};
use super::metadata::DeviceMetadata;
use super::parameters::misplaced_error;
use crate::dra::slices::pf_of;
use crate::names::{DeviceNames, NodeName};
use crate::resources::{VariableDevice, pci_variables};
use crate::snapshot::KubernetesSnapshot;
use crate::wire::dra::Device;

#[derive(Clone, Copy, Debug)]
pub(crate) struct PrepareContext<'a> {
    pub(crate) node: &'a NodeName,
    pub(crate) names: &'a DeviceNames,
    pub(crate) snapshot: &'a KubernetesSnapshot,
    /// The CDI devices that specifications on disk have now.
    pub(crate) specs: &'a BTreeSet<String>,
}

/// What kubelet is answered, and what has to be done before.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PrepareDecision {
    pub(crate) devices: Vec<Device>,
    pub(crate) leased: Vec<ClaimDevice>,
    /// What nobody else may have then: the physical function of a virtual one, and those made of a physical one.
    pub(crate) beside: Vec<ClaimDevice>,
    /// What containers are told that asked for resources.
    pub(crate) variables: VariablesByRequest,
    pub(crate) described: Vec<DeviceMetadata>,
}

/// Decides for each device of an allocation: one that cannot be given refuses all.
pub(crate) fn decide(
    all: Vec<AllocatedDevice>,
    uid: &ClaimUid,
    around: PrepareContext<'_>,
) -> Result<PrepareDecision> {
    let mut decision =
        PrepareDecision { variables: around.device_variables(&all)?, ..PrepareDecision::default() };
    for allocated in all {
        let given = around.add_device(&allocated, uid, &mut decision);
        let mut cdi_device_ids = given.with_context(|| describe_request(&allocated.request))?;
        cdi_device_ids.push(cdi_request_name(uid, &allocated.request));
        decision.devices.push(Device {
            request_names: vec![allocated.request],
            pool_name: allocated.pool,
            device_name: allocated.device,
            cdi_device_ids,
            share_id: allocated.share_id,
        });
    }
    Ok(decision)
}

fn describe_request(request: &str) -> String {
    format!("request {}", Quoted(request))
}

impl PrepareContext<'_> {
    /// Notes what is to be done for a device; the CDI devices that give it.
    fn add_device(
        &self,
        allocated: &AllocatedDevice,
        uid: &ClaimUid,
        decision: &mut PrepareDecision,
    ) -> Result<Vec<String>> {
        let offer = self.find_device(allocated)?;
        let class = effective_class(offer, allocated)?;
        let profile = profile_name(offer, allocated)?;
        let in_pod = interface::pod_interface(self.snapshot, offer, allocated)?;
        let is_leased = self.snapshot.lease_hooks.contains_key(&class);
        decision.described.push(self.describe(allocated, offer));
        if allocated.is_admin && (is_leased || offer.sharing == Sharing::Exclusive) {
            // Who only watches takes a device away from nobody, also where no hook leases it.
            return Ok(Vec::new());
        }
        let own = self.cdi_devices(offer, class)?;
        let leased = |name| claim_device(&allocated.request, offer, class, name);
        let mut leased: Vec<ClaimDevice> = own.iter().map(leased).collect();
        for leased in &mut leased {
            let vf = interface::vf_config(self.snapshot, &leased.device, is_leased, allocated)?;
            // An interface is one CDI device.
            leased.interface.clone_from(&in_pod);
            // The device's own hook does what the operator alone says.
            let is_said = in_pod.is_some() || allocated.parameters.vlan.is_some();
            leased.vf = vf.filter(|_| is_said);
        }
        let is_set_up = leased.iter().any(|leased| leased.vf.is_some());
        let profile = self.profile_device(profile)?;
        let mut ids = Vec::new();
        if is_leased {
            interface::refuse_twice(&decision.leased, &leased)?;
            // The hook of the claim has to come before the device's own, which then finds that the container has the
            // device already.
            ids.extend(leased.iter().map(|leased| cdi_device_name(uid, &leased.device)));
            decision.leased.extend(leased);
            let family = self.excluded_functions(&allocated.request, offer);
            decision.beside.extend(family);
        }
        // An interface has nothing but its hook, which would want the function as the operator alone says. That of a vfio
        // function leaves to the claim's what that has set up, and brings nodes.
        if !(is_set_up && class == Class::Netdev) {
            ids.extend(own.iter().map(|name| qualified_name(class, name)));
        }
        ids.extend(profile);
        Ok(ids)
    }

    fn find_device(&self, allocated: &AllocatedDevice) -> Result<&Offer> {
        let (pool, device) = (&allocated.pool, &allocated.device);
        let offers = &self.snapshot.offers;
        let found = self.names.find_device(offers, self.node, pool, device);
        found.ok_or_else(|| {
            let quoted = Quoted(device);
            match self.exclusion_reason(pool, device) {
                Some(reason) => anyhow!("device {quoted} is not offered: {reason}"),
                None => anyhow!(
                    "this node has no device {quoted} in pool {}; delete the pod, so that its claim is allocated anew",
                    Quoted(pool)
                ),
            }
        })
    }

    /// What a device plugin tells of the functions of each request that is for a resource.
    fn device_variables(&self, devices: &[AllocatedDevice]) -> Result<VariablesByRequest> {
        let mut requests: BTreeMap<&str, (&ResourceName, Vec<&Offer>)> = BTreeMap::new();
        for allocated in devices {
            let Some(resource) = &allocated.resource else {
                continue;
            };
            let offer = self.find_device(allocated);
            let offer = offer.with_context(|| describe_request(&allocated.request))?;
            let request = requests.entry(&allocated.request);
            request.or_insert((resource, Vec::new())).1.push(offer);
        }
        let told = requests.into_iter().map(|(request, (resource, offers))| {
            let functions = offers.into_iter().map(|offer| self.variable_device(offer));
            (request.to_owned(), pci_variables(resource, functions))
        });
        Ok(told.filter(|(_, variables)| !variables.is_empty()).collect())
    }

    fn variable_device<'o>(&'o self, offer: &'o Offer) -> VariableDevice<'o> {
        let nodes = self.snapshot.nodes.get(&(offer.class, offer.name.clone()));
        VariableDevice {
            class: offer.class,
            name: offer.name.as_str(),
            pci: offer.pci,
            nodes: nodes.map_or(&[], Vec::as_slice),
        }
    }

    /// The functions that exclude one: who has them may have the same hardware.
    fn excluded_functions(&self, request: &str, offer: &Offer) -> Vec<ClaimDevice> {
        let is_of =
            |child: &Offer, parent: &Offer| parent.pci.is_some() && pf_of(child) == parent.pci;
        let others = self.snapshot.offers.iter();
        let others =
            others.filter(|other| offer.class.is_iommu_group() && other.class == offer.class);
        let family = others.filter(|other| is_of(other, offer) || is_of(offer, other));
        let all = family.flat_map(|other| cdi_device_names(other).chain([other.name.clone()]));
        let all: BTreeSet<DeviceName> = all.collect();
        let leased = all
            .iter()
            .map(|name| ClaimDevice { most: 1, ..claim_device(request, offer, offer.class, name) });
        leased.collect()
    }

    /// What discovery says of a device that has this name, or had it.
    fn exclusion_reason(&self, pool: &str, device: &str) -> Option<String> {
        let class = self.node.parse_pool(pool)?;
        let mut not_offered = self.snapshot.not_offered.iter();
        let found = not_offered.find(|refused| {
            let name = DeviceName::try_from(refused.name.as_str());
            refused.kind == class.into()
                && name.is_ok_and(|name| self.names.device_name(class, &name, None) == device)
        })?;
        Some(found.reason.clone())
    }

    fn cdi_devices(&self, offer: &Offer, class: Class) -> Result<Vec<DeviceName>> {
        let mut names: Vec<DeviceName> = cdi_device_names(offer).collect();
        if names.is_empty() {
            names.push(offer.name.clone());
        }
        let has = |name: &&DeviceName| self.specs.contains(&qualified_name(class, name));
        match names.iter().find(|name| !has(name)) {
            None => Ok(names),
            Some(name) => bail!(self.missing_spec_reason(offer, class, name)),
        }
    }

    /// Why a container would not find the device, in the words of discovery where it has some.
    fn missing_spec_reason(&self, offer: &Offer, class: Class, name: &DeviceName) -> String {
        let (id, written_by) = (qualified_name(class, name), self.snapshot.written_by);
        match &offer.health {
            Health::Unhealthy(reason) if class == offer.class => {
                format!("{id}: {}", written_by.with_node_advice(reason))
            }
            _ => written_by.missing_spec_reason(&id),
        }
    }

    fn profile_device(&self, profile: Option<&DeviceName>) -> Result<Option<String>> {
        let Some(name) = profile else {
            return Ok(None);
        };
        let id = qualified_name(Class::Profile, name);
        if self.specs.contains(&id) {
            return Ok(Some(id));
        }
        let prefix = format!("{}=", Class::Profile.cdi_kind());
        let there = self.specs.iter();
        let there = there.filter_map(|id| id.strip_prefix(&prefix));
        let there: Vec<String> = there.map(str::to_owned).collect();
        let there = ShortList(&there);
        bail!("no CDI specification has {id}; this node has the profiles {there}")
    }
}

/// The names of its CDI devices.
fn cdi_device_names(offer: &Offer) -> impl Iterator<Item = DeviceName> {
    let names = offer.cdi.iter().filter_map(|name| name.split_once('='));
    names.filter_map(|(_, name)| DeviceName::try_from(name).ok())
}

fn qualified_name(class: Class, name: &DeviceName) -> String {
    format!("{}={name}", class.cdi_kind())
}

fn claim_device(request: &str, offer: &Offer, class: Class, name: &DeviceName) -> ClaimDevice {
    let name = name.clone();
    ClaimDevice {
        request: request.to_owned(),
        device: LeasedDevice { class, name },
        most: offer.max_holders().unwrap_or(u32::MAX),
        interface: None,
        vf: None,
    }
}

/// The class whose edits a container gets: those of an interface without the preload are of a class of their own.
fn effective_class(offer: &Offer, allocated: &AllocatedDevice) -> Result<Class> {
    let Some(preload) = &allocated.parameters.preload else {
        return Ok(offer.class);
    };
    match (offer.class, preload.value) {
        (Class::Nic, false) => Ok(Class::NicPlain),
        (Class::Nic, true) | (Class::NicPlain | Class::NicNodes, false) => Ok(offer.class),
        _ if preload.is_of_request => Err(misplaced_error("preload", "nic", offer)),
        _ => Ok(offer.class),
    }
}

fn profile_name<'a>(
    offer: &Offer,
    allocated: &'a AllocatedDevice,
) -> Result<Option<&'a DeviceName>> {
    let Some(profile) = &allocated.parameters.profile else {
        return Ok(None);
    };
    match offer.class {
        Class::Nic | Class::NicPlain | Class::NicNodes => Ok(Some(&profile.value)),
        _ if profile.is_of_request => {
            Err(misplaced_error("profile", "nic, nic-plain or nic-nodes", offer))
        }
        _ => Ok(None),
    }
}
