//! Pools: sets of devices of one class, of which a container gets a free one. They come from the configuration, with a
//! pool `any` for each class whose devices have a limit of containers. On hosts with GPUs the class rdma has one too,
//! for containers that request the nearest device.

use std::collections::{BTreeMap, BTreeSet};

use onload_cdi::{CdiVersion, DeviceName};
use onload_core::class::Class;
use onload_core::config::{CONFIG_PATH, Config, LeasesConfig, PoolConfig, Share};
use onload_core::nearness::{GpuNearness, Nearness};
use onload_core::pool::{ANY, MAX_ANNOTATION_BYTES, MAX_MEMBERS, Pool, PoolMember, UNCOUNTED};
use onload_sys::pci::PciAddress;
use onload_sys::text::{ShortList, format_count};

use crate::devices::gpu_nics::GpuNicMap;
use crate::devices::inventory::Inventory;
use crate::devices::{
    FunctionIndex, HostDevice, Selection, discover, group_inseparable, pool_nearness, select,
};
use crate::discover::exclusion::Exclusion;
use crate::discover::pci::PciFunction;
use crate::discover::taken_names::check_name;
use crate::host::Host;

/// The first version of CDI in which a device has annotations, which list the members.
const ANNOTATIONS: CdiVersion = CdiVersion::V0_6_0;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPool {
    pub class: Class,
    pub name: DeviceName,
    pub pool: Pool,
    pub nearness: Nearness,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolSet {
    pub offered: Vec<NamedPool>,
    /// The drained members of the pools.
    pub drained: Vec<NamedPool>,
    pub not_offered: Vec<Exclusion>,
    pub warnings: Vec<String>,
    /// The number of containers that may have a device of each class at once, in any pool.
    pub shares: LeasesConfig,
}

/// Discovers a host and its pools. The inventory includes the exclusions and warnings of the pools.
pub fn discover_with_pools(host: &Host, config: &Config) -> (Inventory, PoolSet) {
    let mut inventory = discover(host, config);
    let mut pools = resolve(&inventory, config);
    inventory.not_offered.append(&mut pools.not_offered);
    inventory.not_offered.sort();
    inventory.warnings.append(&mut pools.warnings);
    inventory.warnings.sort();
    (inventory, pools)
}

pub fn resolve(inventory: &Inventory, config: &Config) -> PoolSet {
    let function_index = FunctionIndex::from_inventory(inventory);
    let gpu_nics = GpuNicMap::from_inventory(inventory);
    let pooled = config.pools.values().map(|pool| pool.class);
    let leased = Class::ALL.into_iter();
    let shares = class_shares(inventory, config);
    let leased = leased.filter(|class| shares.share(*class).is_some());
    let near_gpus = (!gpu_nics.gpus.is_empty()).then_some(Class::Rdma);
    let classes: BTreeSet<Class> = pooled.chain(leased).chain(near_gpus).collect();
    let mut pools = PoolSet { shares: shares.clone(), ..PoolSet::default() };
    for class in classes {
        let devices = ClassDevices {
            class,
            candidates: pool_candidates(inventory, class),
            gpu_nics: &gpu_nics,
            function_index: &function_index,
            inventory,
            config,
            shares: &shares,
        };
        devices.add_pools(&mut pools);
    }
    pools
}

fn pool_candidates(inventory: &Inventory, class: Class) -> Vec<Vec<&HostDevice>> {
    let devices = inventory.with_drained().filter(|device| device.class == class);
    group_inseparable(devices.filter(|device| !device.is_loopback()))
}

/// Returns the number of containers per device of each class on this host: in mode exclusive an RDMA device is in a
/// single network namespace.
fn class_shares(inventory: &Inventory, config: &Config) -> LeasesConfig {
    let mut shares = config.leases.clone();
    if inventory.is_rdma_exclusive() {
        let one = Share::try_from(1).ok();
        shares.share.extend(one.map(|one| (Class::Rdma, one)));
    }
    shares
}

impl PoolSet {
    /// Returns why readers of CDI up to that version get no pools, or `None` if they do.
    pub fn left_out_reason(newest: CdiVersion) -> Option<String> {
        (newest < ANNOTATIONS).then(|| {
            format!(
                "readers of CDI {newest} do not support annotations of a device, which list the \
                 members of a pool; raise --max-cdi-version to {ANNOTATIONS}"
            )
        })
    }

    pub fn drop_unsupported(&mut self, newest: CdiVersion) {
        let Some(reason) = PoolSet::left_out_reason(newest) else {
            return;
        };
        let left_out = std::mem::take(&mut self.offered);
        if left_out.is_empty() {
            return;
        }
        let names: Vec<String> =
            left_out.iter().map(|pool| format!("{}={}", pool.class, pool.name)).collect();
        self.warnings.push(format!("pools are omitted ({}): {reason}", ShortList(&names)));
        let exclusions = left_out
            .iter()
            .map(|pool| Exclusion::new(pool.class, pool.name.as_str(), reason.as_str()));
        self.not_offered.extend(exclusions);
    }
}

struct ClassDevices<'i> {
    class: Class,
    /// The devices that containers get together.
    candidates: Vec<Vec<&'i HostDevice>>,
    gpu_nics: &'i GpuNicMap<'i>,
    function_index: &'i FunctionIndex<'i>,
    inventory: &'i Inventory,
    config: &'i Config,
    shares: &'i LeasesConfig,
}

impl ClassDevices<'_> {
    fn add_pools(&self, pools: &mut PoolSet) {
        let (class, any) = (self.class, DeviceName::try_from(ANY));
        let mut named_pools = Vec::new();
        let is_near_gpus = class == Class::Rdma && !self.gpu_nics.gpus.is_empty();
        let share = self.shares.share(class).or(is_near_gpus.then_some(UNCOUNTED));
        if let (Some(share), Ok(name)) = (share, any)
            && !self.candidates.is_empty()
        {
            let all = self.candidates.iter().collect();
            match self.build_pool(name, all, share, pools) {
                Ok(pool) => named_pools.push(pool),
                Err(reason) => self.refuse(ANY, reason, pools),
            }
        }
        let taken = self.names();
        let pool_configs = self.config.pools.iter();
        for (name, pool) in pool_configs.filter(|(_, pool)| pool.class == class) {
            let pool_name = self.check_pool_name(name, &taken);
            let result = pool_name.and_then(|name| self.build_named_pool(name, pool, pools));
            match result {
                Ok(pool) => named_pools.push(pool),
                Err(reason) => {
                    let is_drained = |drained_pool: &NamedPool| {
                        drained_pool.class == class && drained_pool.name.as_str() == name
                    };
                    if !pools.drained.iter().any(is_drained) {
                        pools
                            .warnings
                            .push(format!("pool {class}={name} is not offered: {reason}"));
                    }
                    self.refuse(name, reason, pools);
                }
            }
        }
        pools.warnings.extend(find_overlaps(&named_pools));
        pools.warnings.extend(self.mixed_warning(&named_pools));
        named_pools.sort_by(|one, other| one.name.cmp(&other.name));
        pools.offered.append(&mut named_pools);
    }

    /// Warns that a request for any vfio function may yield other devices than NICs, since functions outside of
    /// configured pools are not distinguished.
    fn mixed_warning(&self, named_pools: &[NamedPool]) -> Option<String> {
        let class = self.class;
        let own_names: BTreeSet<&str> = named_pools
            .iter()
            .filter(|pool| pool.name.as_str() != ANY)
            .flat_map(|pool| &pool.pool.members)
            .map(|member| member.name.as_str())
            .collect();
        let (nics, other_devices): (Vec<&&HostDevice>, Vec<&&HostDevice>) = self
            .candidates
            .iter()
            .filter_map(|each| each.first())
            .filter(|one| !one.is_drained && !own_names.contains(one.name.as_str()))
            .partition(|device| self.is_nic(device));
        let first = other_devices.first().filter(|_| class == Class::Vfio && !nics.is_empty())?;
        let names: Vec<String> = other_devices.iter().map(|one| one.name.to_string()).collect();
        Some(format!(
            "{class}=any includes functions that are not NICs: {}; request them by a separate pool, or run \"onload-ctk drain {class}={}\"",
            ShortList(&names),
            first.name
        ))
    }

    /// Returns whether a vfio device contains a network function.
    fn is_nic(&self, device: &HostDevice) -> bool {
        device
            .pci
            .iter()
            .chain(&device.aliases)
            .any(|pci| self.inventory.functions.get(*pci).is_some_and(PciFunction::is_network))
    }

    fn refuse(&self, name: &str, reason: String, pools: &mut PoolSet) {
        pools.not_offered.push(Exclusion::new(self.class, name, reason));
    }

    /// Returns the names of the class's devices and of all interfaces, which may be offered later.
    fn names(&self) -> BTreeSet<&str> {
        let offered = self.candidates.iter().flatten().map(|device| device.name.as_str());
        let interfaces = self.inventory.interfaces.iter();
        offered.chain(interfaces.map(|interface| interface.name.as_str())).collect()
    }

    fn check_pool_name(&self, name: &str, taken: &BTreeSet<&str>) -> Result<DeviceName, String> {
        let otherwise = "choose another name for the pool";
        let legal = check_name(name).map_err(|problem| format!("{problem}; {otherwise}"))?;
        if taken.contains(name) || name.parse::<PciAddress>().is_ok() {
            return Err(format!("{name:?} is the name of a device; {otherwise}"));
        }
        Ok(legal)
    }

    /// Builds a pool, with drained members separate.
    fn build_pool(
        &self,
        name: DeviceName,
        candidates: Vec<&Vec<&HostDevice>>,
        share: u32,
        pools: &mut PoolSet,
    ) -> Result<NamedPool, String> {
        let class = self.class;
        let (drained, offered): (Vec<_>, Vec<_>) = candidates
            .into_iter()
            .partition(|candidate| candidate.iter().any(|one| one.is_drained));
        let (drained, offered) = (first_devices(drained), first_devices(offered));
        let pool_of = |devices: &[&HostDevice]| {
            let members = devices.iter().map(|device| PoolMember {
                name: device.name.clone(),
                numa_node: device.numa_node,
            });
            Pool { members: members.collect(), share }
        };
        if !drained.is_empty() {
            pools.drained.push(NamedPool {
                class,
                name: name.clone(),
                pool: pool_of(&drained),
                nearness: Nearness::default(),
            });
        }
        if let Some(reason) = self.drained_reason(&drained).filter(|_| offered.is_empty()) {
            return Err(reason);
        }
        check_size(class, name, pool_of(&offered), pool_nearness(self.gpu_nics, &offered))
    }

    fn build_named_pool(
        &self,
        name: DeviceName,
        pool: &PoolConfig,
        pools: &mut PoolSet,
    ) -> Result<NamedPool, String> {
        let class = self.class;
        let Selection { chosen, unmatched } =
            select(&self.candidates, &pool.select, self.function_index);
        let chosen: Vec<&Vec<&HostDevice>> = self
            .candidates
            .iter()
            .zip(chosen)
            .filter_map(|(candidate, is_chosen)| is_chosen.then_some(candidate))
            .collect();
        if chosen.is_empty() {
            return Err(self.empty_reason(&name, &unmatched));
        }
        let is_single = self.inventory.is_rdma_exclusive() && class == Class::Rdma;
        let own_share = pool.share.map(Share::get).filter(|_| !is_single);
        let share = own_share.or(self.shares.share(class)).unwrap_or(UNCOUNTED);
        if !unmatched.is_empty() {
            pools.warnings.push(format!(
                "pool {class}={name}: no {class} device matches {} in [pools.{name}]",
                ShortList(&unmatched)
            ));
        }
        self.build_pool(name, chosen, share, pools)
    }

    fn drained_reason(&self, drained: &[&HostDevice]) -> Option<String> {
        let name = &drained.first()?.name;
        let reason = self.inventory.drain.find(self.class, name.as_str())?;
        Some(format!("all of its devices are drained; {name} is {reason}"))
    }

    fn empty_reason(&self, name: &DeviceName, unmatched: &[String]) -> String {
        let class = self.class;
        let change = format!("change [pools.{name}] in {CONFIG_PATH}");
        if self.candidates.is_empty() {
            return format!(
                "this host offers no {class} device; \"onload-ctk discover --explain\" says why"
            );
        }
        match unmatched {
            [] => format!("no {class} device matches all of its selectors; {change}"),
            words => format!("no {class} device matches {}; {change}", ShortList(words)),
        }
    }
}

fn first_devices<'i>(candidates: Vec<&Vec<&'i HostDevice>>) -> Vec<&'i HostDevice> {
    candidates.into_iter().filter_map(|each| each.first()).copied().collect()
}

fn check_size(
    class: Class,
    name: DeviceName,
    pool: Pool,
    nearness: Nearness,
) -> Result<NamedPool, String> {
    let count = pool.members.len();
    let bytes = annotation_bytes(&pool.to_annotations());
    if count > MAX_MEMBERS || bytes > MAX_ANNOTATION_BYTES {
        return Err(format!(
            "its {} {bytes} bytes of a specification, but a device may have at most \
             {MAX_ANNOTATION_BYTES} bytes and {MAX_MEMBERS} members; define smaller pools",
            format_count(count, "member takes", "members take")
        ));
    }
    let room = MAX_ANNOTATION_BYTES - bytes;
    Ok(NamedPool { class, name, pool, nearness: truncate(nearness, room) })
}

fn annotation_bytes(annotations: &BTreeMap<String, String>) -> usize {
    annotations.iter().map(|(key, value)| key.len() + value.len()).sum()
}

/// Truncates the nearness to the number of bytes that fit into a specification.
fn truncate(nearness: Nearness, room: usize) -> Nearness {
    let fits = |nearness: &Nearness| annotation_bytes(&nearness.to_annotations()) <= room;
    if fits(&nearness) {
        return nearness;
    }
    let gpus = nearness
        .gpus
        .into_iter()
        .map(|(address, gpu)| (address, GpuNearness { nics: Vec::new(), ..gpu }));
    let reason = "its NICs need more bytes than a specification allows; define smaller pools";
    let without =
        Nearness { nics: Vec::new(), gpus: gpus.collect(), unknown: Some(reason.to_owned()) };
    Some(without).filter(fits).unwrap_or_default()
}

/// Returns warnings for pools with common exclusive members. Leases prevent double use, but neither pool has as many
/// members as it seems.
fn find_overlaps(pools: &[NamedPool]) -> Vec<String> {
    let exclusive: Vec<(&NamedPool, BTreeSet<&str>)> = pools
        .iter()
        .filter(|pool| pool.pool.share == 1 && pool.name.as_str() != ANY)
        .map(|pool| (pool, pool.pool.members.iter().map(|member| member.name.as_str()).collect()))
        .collect();
    let mut warnings = Vec::new();
    for (index, (one, members)) in exclusive.iter().enumerate() {
        for (other, other_members) in &exclusive[index + 1..] {
            let common: Vec<String> =
                members.intersection(other_members).map(ToString::to_string).collect();
            if !common.is_empty() {
                let (class, common) = (one.class, ShortList(&common));
                warnings.push(format!(
                    "pools {class}={} and {class}={} share {common}: a container of one pool takes \
                     it from the other",
                    one.name, other.name
                ));
            }
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(name: &str, count: usize, length: usize) -> Pool {
        let member = |number: usize| PoolMember {
            name: format!("{name}{number:0length$}").parse().unwrap(),
            numa_node: Some(0),
        };
        Pool { members: (0..count).map(member).collect(), share: 1 }
    }

    fn offered(name: &str, pool: Pool) -> NamedPool {
        let name = name.parse().unwrap();
        check_size(Class::Vfio, name, pool, Nearness::default()).unwrap()
    }

    fn refusal(pool: Pool) -> String {
        check_size(Class::Vfio, "p".parse().unwrap(), pool, Nearness::default()).unwrap_err()
    }

    #[test]
    fn a_pool_is_offered_where_a_specification_can_list_it() {
        // With "@0" and a space 16 bytes each, less the space behind the last; 45 for the rest.
        let most = pool("d", (MAX_ANNOTATION_BYTES - 45 + 1) / 16, 12);
        let annotations = offered("p", most).pool.to_annotations();
        let bytes: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
        assert!((MAX_ANNOTATION_BYTES - 16..=MAX_ANNOTATION_BYTES).contains(&bytes), "{bytes}");
        assert_eq!(
            refusal(pool("d", 20_000, 12)),
            "its 20000 members take 320044 bytes of a specification, but a device may have at most \
             262144 bytes and 65536 members; define smaller pools"
        );
        assert!(refusal(pool("", MAX_MEMBERS + 1, 1)).starts_with("its 65537 members take "));
    }

    #[test]
    fn members_of_two_exclusive_pools_are_named_and_any_is_no_rival() {
        let shared_pool = |name: &str, share| {
            let mut pool = pool("d", 20, 1);
            pool.share = share;
            offered(name, pool)
        };
        let pools =
            [shared_pool("any", 1), shared_pool("a", 1), shared_pool("b", 1), shared_pool("c", 2)];
        let overlaps = find_overlaps(&pools);
        assert_eq!(overlaps.len(), 1, "{overlaps:?}");
        assert!(
            overlaps[0].starts_with("pools vfio=a and vfio=b share d0, d1, d10, "),
            "{overlaps:?}"
        );
        assert!(
            overlaps[0].ends_with(" and 4 more: a container of one pool takes it from the other"),
            "{overlaps:?}"
        );
        assert_eq!(find_overlaps(&pools[..2]), [""; 0]);
    }
}
