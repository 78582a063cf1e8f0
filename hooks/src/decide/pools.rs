//! Pools: a name for several devices, of which the container gets some that are free.
//!
//! Choosing is the one decision that depends on other containers. When nothing else can be refused, a reservation keeps
//! what was chosen until the container's createRuntime hook turns it into a lease.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onload_cdi::oci::{OciConfig, OciConfigError};
use onload_cdi::{ContainerEdits, HookName};
use onload_core::class::Class;
use onload_core::container_id::ContainerId;
use onload_core::device_id::DeviceId;
use onload_core::hook_arguments::HookArguments;
use onload_core::nearness::Nearness;
use onload_core::pool::{Numa, Pool};
use onload_core::request::{DeviceRef, DeviceValue, Origin, Request};
use onload_core::token::Token;
use onload_lease::MemberRequest;
use onload_lease::tickets::Ticket;
use onload_sys::error::{Context, Error, Result, bail, error};
use onload_sys::text::Quoted;

use super::gpus::ContainerGpus;
use super::host_view::{HookSettings, HostView};
use super::specs::OnloadSpecs;
use super::subject::{CONFIG_JSON, ContainerRef, DecisionSubject};

/// The devices that a container requests of pools and by tickets.
#[derive(Clone, Debug)]
pub struct PoolRequest {
    pub devices: Vec<MemberRequest>,
    /// The NUMA node of all members.
    pub numa: Numa,
    /// Devices that tickets reserve for the container, each with its ticket.
    pub named: Vec<(DeviceId, Token)>,
    pub id: ContainerId,
    pub bundle: PathBuf,
    /// The place of the first request.
    pub origin: Origin,
}

/// Devices for a container that is not created yet: chosen, and then reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The token that the container's hook must name.
    pub token: Token,
    /// The members, in the order of the device requests, and the devices by name.
    pub devices: Vec<DeviceId>,
}

/// A request and what was chosen for it.
#[derive(Clone, Debug)]
pub struct PoolChoice {
    pub request: PoolRequest,
    pub reservation: Reservation,
}

pub trait Pools {
    /// Chooses free members for a container, all or none. Reserves nothing.
    fn choose(&self, request: &PoolRequest) -> Result<Reservation>;

    /// Takes a ticket for a container. `task` is the host's directory that only its task has.
    fn ticket(
        &self,
        id: &Token,
        container: ContainerRef<'_>,
        task: Option<&Path>,
    ) -> Result<Ticket>;
}

/// Devices, each with the token of its reservation.
type ReservedMembers = Vec<(DeviceId, Token)>;

/// The members that each pool gave.
pub(super) type MembersByPool = BTreeMap<(Class, String), Vec<String>>;

/// A request whose pools are replaced by members.
#[derive(Clone, Debug, Default)]
pub(super) struct Chosen {
    pub(super) request: Option<Request>,
    pub(super) given: MembersByPool,
    pub(super) choice: Option<PoolChoice>,
    members: ReservedMembers,
}

/// Chooses members for the pools in a request, in addition to those in the container's tickets.
pub(super) fn choose(
    subject: DecisionSubject<'_>,
    specs: &Arc<OnloadSpecs>,
    host: &dyn HostView,
    pools: &dyn Pools,
) -> Result<Chosen> {
    let request = subject.request;
    let device_requests = device_requests(subject, specs, host)?;
    // A name that nothing offers is refused later, with those that are.
    if let Some(near) = &request.near
        && device_requests.is_empty()
        && is_in_specs(request, specs)
    {
        return Err(no_pool_error(&near.origin));
    }
    let named = ticket_devices(subject, specs);
    let first = device_requests
        .first()
        .map(|device_request| device_request.class)
        .or_else(|| named.first().map(|(device, _)| device.class));
    let Some(first) = first.and_then(|class| request.devices.get(&class)) else {
        if let Some(numa) = &request.numa {
            return Err(no_pool_error(&numa.origin));
        }
        return Ok(Chosen::default());
    };
    let chosen = choose_members(subject, &device_requests, &named, pools, &first.origin);
    let (members, choice) = chosen.with_context(|| first.origin.to_string())?;
    let devices = members.iter().map(|(device, _)| device);
    let (request, given) = replace_pools(request, &device_requests, devices);
    Ok(Chosen { request: Some(request), given, choice, members })
}

/// The members with their tokens, and what is to be kept. A configuration that was edited before has its members
/// already, and keeps them.
fn choose_members(
    subject: DecisionSubject<'_>,
    device_requests: &[MemberRequest],
    named: &[(DeviceId, Token)],
    pools: &dyn Pools,
    origin: &Origin,
) -> Result<(ReservedMembers, Option<PoolChoice>)> {
    if let Some(members) =
        find_held_members(subject.config, device_requests, named).context(CONFIG_JSON)?
    {
        return Ok((members, None));
    }
    let numa = subject.request.numa.as_ref();
    let Some(id) = subject.container.id else {
        bail!(
            "the container's id is unknown, so nothing can be reserved for it; use the runtime \
             onload"
        );
    };
    let request = PoolRequest {
        devices: device_requests.to_vec(),
        numa: numa.map(|numa| numa.value).unwrap_or_default(),
        named: named.to_vec(),
        id: id.clone(),
        bundle: subject.container.bundle.to_owned(),
        origin: origin.clone(),
    };
    let reservation = pools.choose(&request)?;
    let members = reservation
        .devices
        .iter()
        .map(|device| (device.clone(), reservation.token.clone()))
        .collect();
    Ok((members, Some(PoolChoice { request, reservation })))
}

/// The devices that the container's tickets give it for itself, as far as its request names them still. A device
/// without a specification is rejected later.
fn ticket_devices(subject: DecisionSubject<'_>, specs: &OnloadSpecs) -> ReservedMembers {
    let mut ticket_devices = ReservedMembers::new();
    for (device, ticket) in subject.tickets {
        let name = device.name.as_str();
        let is_requested = subject.request.devices.get(&device.class).is_some_and(|entry| {
            matches!(entry.origin, Origin::Ticket(_))
                && entry.value.iter().any(|device_ref| device_ref.name == name)
        });
        if is_requested
            && specs.find(device.class, name).is_some()
            && !ticket_devices.iter().any(|(known, _)| known == device)
        {
            ticket_devices.push((device.clone(), ticket.clone()));
        }
    }
    ticket_devices
}

fn is_in_specs(request: &Request, specs: &OnloadSpecs) -> bool {
    request.devices.iter().all(|(class, entry)| {
        entry.value.iter().all(|device_ref| specs.find(*class, &device_ref.name).is_some())
    })
}

fn no_pool_error(origin: &Origin) -> Error {
    error!("{origin}: it has no effect without a pool, such as onload.dev/vfio: any; remove it")
}

/// Returns the number of members requested from each pool.
fn device_requests(
    subject: DecisionSubject<'_>,
    specs: &OnloadSpecs,
    host: &dyn HostView,
) -> Result<Vec<MemberRequest>> {
    let request = subject.request;
    let container_gpus = request
        .near
        .as_ref()
        .map(|_| ContainerGpus::read(subject.config, &host.sysfs(), host).context(CONFIG_JSON))
        .transpose()?;
    let mut device_requests = Vec::new();
    for (class, entry) in &request.devices {
        for device_ref in &entry.value {
            let device_request =
                device_request(*class, device_ref, &entry.value, specs, container_gpus.as_ref());
            device_requests.extend(device_request.with_context(|| entry.origin.to_string())?);
        }
    }
    Ok(device_requests)
}

/// Returns the request for members of a pool; `None` for a device, and for a name that no specification offers, which is refused later. `device_refs` is all that is requested of the class; members are chosen near
/// `container_gpus`.
fn device_request(
    class: Class,
    device_ref: &DeviceRef,
    device_refs: &[DeviceRef],
    specs: &OnloadSpecs,
    container_gpus: Option<&ContainerGpus>,
) -> Result<Option<MemberRequest>> {
    let name = &device_ref.name;
    let Some(resolved) = specs.find(class, name) else {
        return Ok(None);
    };
    let pool = Pool::from_annotations(&resolved.device.annotations)
        .with_context(|| format!("pool {class}={name}; run `onload-ctk cdi generate`"))?;
    let Some(mut pool) = pool else {
        if let Some(count) = device_ref.count {
            let count = format!("*{count}");
            bail!("{name} is a device, not a pool; remove {}", Quoted(&count));
        }
        return Ok(None);
    };
    let count = device_ref.count.unwrap_or(1);
    if let Some(gpus) = container_gpus {
        let nearness = Nearness::from_annotations(&resolved.device.annotations, pool.members.len());
        let sorted = nearness.and_then(|nearness| gpus.sort(&mut pool, &nearness, count));
        sorted.with_context(|| format!("pool {class}={name}, near the container's GPUs"))?;
    }
    // Its file may be newer or older than that of the devices.
    pool.members.retain(|member| specs.find(class, member.name.as_str()).is_some());
    if pool.members.is_empty() {
        bail!(
            "no specification offers a member of pool {class}={name}; run `onload-ctk cdi generate`{}",
            specs.describe_problems()
        );
    }
    // Devices requested by name do not count as members of the pool.
    pool.members
        .retain(|member| !device_refs.iter().any(|other| other.name == member.name.as_str()));
    let name = resolved.name.device.clone();
    Ok(Some(MemberRequest {
        in_order: container_gpus.is_some(),
        ..MemberRequest::for_pool(class, name, count, pool)
    }))
}

/// The members that a configuration holds already, with the tokens in its hooks; `None` if it does not
/// hold all that is wanted. Only engines and the operator's specifications write hooks.
fn find_held_members(
    config: &OciConfig,
    device_requests: &[MemberRequest],
    named: &[(DeviceId, Token)],
) -> Result<Option<ReservedMembers>, OciConfigError> {
    let mut granted = ReservedMembers::new();
    for hook in config.hooks(HookName::CreateRuntime)? {
        let args = hook.args.unwrap_or_default();
        let arguments = HookArguments::from_command(&args).map(|(_, arguments)| arguments);
        if let Some(HookArguments { lease, token: Some(token), .. }) = arguments {
            granted.extend(lease.into_iter().map(|device| (device, token.clone())));
        }
    }
    let mut members = Vec::new();
    for device_request in device_requests {
        for _ in 0..device_request.count {
            let Some(index) = granted.iter().position(|(device, _)| {
                device.class == device_request.class
                    && device_request.pool.members.iter().any(|member| member.name == device.name)
            }) else {
                return Ok(None);
            };
            members.push(granted.swap_remove(index));
        }
    }
    for (device, _) in named {
        let Some(index) = granted.iter().position(|(held, _)| held == device) else {
            return Ok(None);
        };
        members.push(granted.swap_remove(index));
    }
    Ok(Some(members))
}

/// The request with members in place of pools, and which those are; they are in the order of the device requests.
fn replace_pools<'a>(
    request: &Request,
    device_requests: &[MemberRequest],
    mut members: impl Iterator<Item = &'a DeviceId>,
) -> (Request, MembersByPool) {
    let mut request = request.clone();
    let mut members_by_pool = MembersByPool::new();
    for (class, entry) in &mut request.devices {
        let mut names: Vec<DeviceRef> = Vec::new();
        for device_ref in std::mem::take(&mut entry.value) {
            let pool = device_ref.name.clone();
            let device_request = device_requests.iter().find(|device_request| {
                device_request.class == *class && device_request.name.as_str() == pool
            });
            let add: Vec<DeviceRef> = match device_request {
                Some(device_request) => members
                    .by_ref()
                    .take(usize::try_from(device_request.count).unwrap_or(usize::MAX))
                    .map(|device| DeviceRef { name: device.name.to_string(), count: None })
                    .collect(),
                None => vec![device_ref],
            };
            let names_of_pool = add.iter().map(|device_ref| device_ref.name.clone());
            members_by_pool.insert((*class, pool), names_of_pool.collect());
            for name in add {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        entry.value = names;
    }
    if let Some(entry) = &mut request.addresses {
        redirect_to_members(&mut entry.value, &members_by_pool, &[Class::Netdev]);
    }
    if let Some(entry) = &mut request.vlans {
        redirect_to_members(&mut entry.value, &members_by_pool, &Class::FUNCTION_CLASSES);
    }
    (request, members_by_pool)
}

/// Applies settings for a pool to the member that was chosen from it.
fn redirect_to_members<T>(
    values: &mut [DeviceValue<T>],
    members_by_pool: &MembersByPool,
    classes: &[Class],
) {
    for value in values {
        let index = usize::try_from(value.member).unwrap_or(usize::MAX);
        let member = classes
            .iter()
            .find_map(|class| members_by_pool.get(&(*class, value.name.clone())))
            .and_then(|members| members.get(index.checked_sub(1)?));
        if let Some(member) = member {
            (value.name, value.member) = (member.clone(), 1);
        }
    }
}

impl Chosen {
    /// Makes the members' hooks name their reservation. Members whose edits have no hook with a lease get a hook that
    /// only leases.
    pub(super) fn name_tokens(&self, edits: &mut ContainerEdits, settings: &HookSettings) {
        let mut named_devices = BTreeSet::new();
        for hook in &mut edits.hooks {
            let Some((_, mut arguments)) = HookArguments::from_command(&hook.args) else {
                continue;
            };
            if let Some((device, token)) =
                self.members.iter().find(|(device, _)| arguments.lease.contains(device))
            {
                named_devices.insert(device.clone());
                arguments.token = Some(token.clone());
                arguments.replace_in(&mut hook.args);
            }
        }
        for (device, token) in &self.members {
            if named_devices.contains(device) {
                continue;
            }
            let arguments = HookArguments {
                lease: vec![device.clone()],
                token: Some(token.clone()),
                ..HookArguments::default()
            };
            for stage in [HookName::CreateRuntime, HookName::Poststop] {
                let mut hook = settings.own_hook(stage);
                arguments.replace_in(&mut hook.args);
                edits.hooks.push(hook);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_follows_the_member_that_its_pool_gave() {
        let annotations = BTreeMap::from([
            ("onload.dev/netdev".to_owned(), "ens9,fast*2".to_owned()),
            (
                "onload.dev/address".to_owned(),
                "fast#2=192.0.2.2/24,fast=192.0.2.1/24,ens9=192.0.2.9/24".to_owned(),
            ),
        ]);
        let request = Request::parse(&annotations).unwrap().unwrap();
        let pool = Pool { members: Vec::new(), share: 1 };
        let device_request =
            MemberRequest::for_pool(Class::Netdev, "fast".parse().unwrap(), 2, pool);
        let members = ["ens1v3", "ens1v1"]
            .map(|name| DeviceId { class: Class::Netdev, name: name.parse().unwrap() });
        let (resolved, given) = replace_pools(&request, &[device_request], members.iter());
        let of_pool = &given[&(Class::Netdev, "fast".to_owned())];
        assert_eq!(of_pool, &["ens1v3", "ens1v1"]);
        let names: Vec<String> =
            resolved.devices[&Class::Netdev].value.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["ens9", "ens1v3", "ens1v1"]);
        let addresses: Vec<String> =
            resolved.addresses.unwrap().value.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["ens1v1=192.0.2.2/24", "ens1v3=192.0.2.1/24", "ens9=192.0.2.9/24"]);
    }
}
