//! What containers of a claim get. Nothing is read or written here.

mod described;
mod interface;
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

use super::allocation::Allocated;
use super::metadata::Described;
use super::own_spec::{Leased, Variables, own_name, request_name};
use super::parameters::misplaced;
use crate::dra::slices::pf_of;
use crate::host_state::Snapshot;
use crate::names::{DeviceNames, NodeName};
use crate::resources::{Function, variables};
use crate::wire::dra::Device;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Surroundings<'a> {
    pub(crate) node: &'a NodeName,
    pub(crate) names: &'a DeviceNames,
    pub(crate) snapshot: &'a Snapshot,
    /// The CDI devices that specifications on disk have now.
    pub(crate) specs: &'a BTreeSet<String>,
}

/// What kubelet is answered, and what has to be done before.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Decision {
    pub(crate) devices: Vec<Device>,
    pub(crate) leased: Vec<Leased>,
    /// What nobody else may have then: the physical function of a virtual one, and those made of a physical one.
    pub(crate) beside: Vec<Leased>,
    /// What containers are told that asked for resources.
    pub(crate) variables: Variables,
    pub(crate) described: Vec<Described>,
}

/// Decides for each device of an allocation: one that cannot be given refuses all.
pub(crate) fn decide(
    all: Vec<Allocated>,
    uid: &ClaimUid,
    around: Surroundings<'_>,
) -> Result<Decision> {
    let mut decision = Decision { variables: around.variables(&all)?, ..Decision::default() };
    for allocated in all {
        let given = around.give(&allocated, uid, &mut decision);
        let mut cdi_device_ids = given.with_context(|| of_request(&allocated.request))?;
        cdi_device_ids.push(request_name(uid, &allocated.request));
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

fn of_request(request: &str) -> String {
    format!("request {}", Quoted(request))
}

impl Surroundings<'_> {
    /// Notes what is to be done for a device; the CDI devices that give it.
    fn give(
        &self,
        allocated: &Allocated,
        uid: &ClaimUid,
        decision: &mut Decision,
    ) -> Result<Vec<String>> {
        let offer = self.offer(allocated)?;
        let class = class(offer, allocated)?;
        let profile = profile(offer, allocated)?;
        let in_pod = interface::in_pod(self.snapshot, offer, allocated)?;
        let is_leased = self.snapshot.lease_hooks.contains_key(&class);
        decision.described.push(self.describe(allocated, offer));
        if allocated.is_admin && (is_leased || offer.sharing == Sharing::Exclusive) {
            // Who only watches takes a device away from nobody, also where no hook leases it.
            return Ok(Vec::new());
        }
        let own = self.cdi_devices(offer, class)?;
        let leased = |name| leased(&allocated.request, offer, class, name);
        let mut leased: Vec<Leased> = own.iter().map(leased).collect();
        for leased in &mut leased {
            let vf = interface::function(self.snapshot, &leased.device, is_leased, allocated)?;
            // An interface is one CDI device.
            leased.interface.clone_from(&in_pod);
            // The device's own hook does what the operator alone says.
            let is_said = in_pod.is_some() || allocated.parameters.vlan.is_some();
            leased.vf = vf.filter(|_| is_said);
        }
        let is_set_up = leased.iter().any(|leased| leased.vf.is_some());
        let profile = self.profile(profile)?;
        let mut ids = Vec::new();
        if is_leased {
            interface::refuse_twice(&decision.leased, &leased)?;
            // The hook of the claim has to come before the device's own, which then finds that the container has the
            // device already.
            ids.extend(leased.iter().map(|leased| own_name(uid, &leased.device)));
            decision.leased.extend(leased);
            let family = self.family(&allocated.request, offer);
            decision.beside.extend(family);
        }
        // An interface has nothing but its hook, which would want the function as the operator alone says. That of a vfio
        // function leaves to the claim's what that has set up, and brings nodes.
        if !(is_set_up && class == Class::Netdev) {
            ids.extend(own.iter().map(|name| cdi(class, name)));
        }
        ids.extend(profile);
        Ok(ids)
    }

    fn offer(&self, allocated: &Allocated) -> Result<&Offer> {
        let (pool, device) = (&allocated.pool, &allocated.device);
        let offers = &self.snapshot.offers;
        let found = self.names.offer(offers, self.node, pool, device);
        found.ok_or_else(|| {
            let quoted = Quoted(device);
            match self.why_not_offered(pool, device) {
                Some(reason) => anyhow!("device {quoted} is not offered: {reason}"),
                None => anyhow!(
                    "this node has no device {quoted} in pool {}; delete the pod, so that its claim is allocated anew",
                    Quoted(pool)
                ),
            }
        })
    }

    /// What a device plugin tells of the functions of each request that is for a resource.
    fn variables(&self, devices: &[Allocated]) -> Result<Variables> {
        let mut requests: BTreeMap<&str, (&ResourceName, Vec<&Offer>)> = BTreeMap::new();
        for allocated in devices {
            let Some(resource) = &allocated.resource else {
                continue;
            };
            let offer = self.offer(allocated);
            let offer = offer.with_context(|| of_request(&allocated.request))?;
            let request = requests.entry(&allocated.request);
            request.or_insert((resource, Vec::new())).1.push(offer);
        }
        let told = requests.into_iter().map(|(request, (resource, offers))| {
            let functions = offers.into_iter().map(|offer| self.function(offer));
            (request.to_owned(), variables(resource, functions))
        });
        Ok(told.filter(|(_, variables)| !variables.is_empty()).collect())
    }

    fn function<'o>(&'o self, offer: &'o Offer) -> Function<'o> {
        let nodes = self.snapshot.nodes.get(&(offer.class, offer.name.clone()));
        Function {
            class: offer.class,
            name: offer.name.as_str(),
            pci: offer.pci,
            nodes: nodes.map_or(&[], Vec::as_slice),
        }
    }

    /// The functions that exclude one: who has them may have the same hardware.
    fn family(&self, request: &str, offer: &Offer) -> Vec<Leased> {
        let is_of =
            |child: &Offer, parent: &Offer| parent.pci.is_some() && pf_of(child) == parent.pci;
        let others = self.snapshot.offers.iter();
        let others =
            others.filter(|other| offer.class.is_iommu_group() && other.class == offer.class);
        let family = others.filter(|other| is_of(other, offer) || is_of(offer, other));
        let all = family.flat_map(|other| cdi_names(other).chain([other.name.clone()]));
        let all: BTreeSet<DeviceName> = all.collect();
        let leased =
            all.iter().map(|name| Leased { most: 1, ..leased(request, offer, offer.class, name) });
        leased.collect()
    }

    /// What discovery says of a device that has this name, or had it.
    fn why_not_offered(&self, pool: &str, device: &str) -> Option<String> {
        let class = self.node.class_of(pool)?;
        let mut not_offered = self.snapshot.not_offered.iter();
        let found = not_offered.find(|refused| {
            let name = DeviceName::try_from(refused.name.as_str());
            refused.kind == class.into()
                && name.is_ok_and(|name| self.names.device(class, &name, None) == device)
        })?;
        Some(found.reason.clone())
    }

    fn cdi_devices(&self, offer: &Offer, class: Class) -> Result<Vec<DeviceName>> {
        let mut names: Vec<DeviceName> = cdi_names(offer).collect();
        if names.is_empty() {
            names.push(offer.name.clone());
        }
        let has = |name: &&DeviceName| self.specs.contains(&cdi(class, name));
        match names.iter().find(|name| !has(name)) {
            None => Ok(names),
            Some(name) => bail!(self.missing_spec(offer, class, name)),
        }
    }

    /// Why a container would not find the device, in the words of discovery where it has some.
    fn missing_spec(&self, offer: &Offer, class: Class, name: &DeviceName) -> String {
        let (id, written_by) = (cdi(class, name), self.snapshot.written_by);
        match &offer.health {
            Health::Unhealthy(reason) if class == offer.class => {
                format!("{id}: {}", written_by.reason(reason))
            }
            _ => written_by.no_spec(&id),
        }
    }

    fn profile(&self, profile: Option<&DeviceName>) -> Result<Option<String>> {
        let Some(name) = profile else {
            return Ok(None);
        };
        let id = cdi(Class::Profile, name);
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
fn cdi_names(offer: &Offer) -> impl Iterator<Item = DeviceName> {
    let names = offer.cdi.iter().filter_map(|name| name.split_once('='));
    names.filter_map(|(_, name)| DeviceName::try_from(name).ok())
}

fn cdi(class: Class, name: &DeviceName) -> String {
    format!("{}={name}", class.cdi_kind())
}

fn leased(request: &str, offer: &Offer, class: Class, name: &DeviceName) -> Leased {
    let name = name.clone();
    Leased {
        request: request.to_owned(),
        device: LeasedDevice { class, name },
        most: offer.max_holders().unwrap_or(u32::MAX),
        interface: None,
        vf: None,
    }
}

/// The class whose edits a container gets: those of an interface without the preload are of a class of their own.
fn class(offer: &Offer, allocated: &Allocated) -> Result<Class> {
    let Some(preload) = &allocated.parameters.preload else {
        return Ok(offer.class);
    };
    match (offer.class, preload.value) {
        (Class::Nic, false) => Ok(Class::NicPlain),
        (Class::Nic, true) | (Class::NicPlain | Class::NicNodes, false) => Ok(offer.class),
        _ if preload.is_of_request => Err(misplaced("preload", "nic", offer)),
        _ => Ok(offer.class),
    }
}

fn profile<'a>(offer: &Offer, allocated: &'a Allocated) -> Result<Option<&'a DeviceName>> {
    let Some(profile) = &allocated.parameters.profile else {
        return Ok(None);
    };
    match offer.class {
        Class::Nic | Class::NicPlain | Class::NicNodes => Ok(Some(&profile.value)),
        _ if profile.is_of_request => {
            Err(misplaced("profile", "nic, nic-plain or nic-nodes", offer))
        }
        _ => Ok(None),
    }
}
