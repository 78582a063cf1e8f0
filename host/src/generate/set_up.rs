//! What virtual functions are set up to be while a container has them, by the operator's configuration.

use std::collections::BTreeMap;

use onload_core::class::Class;
use onload_core::config::Config;
use onload_core::lease::Device;
use onload_core::vf::{GivenVf, VfConfig};

use crate::pools::NamedPool;

pub(super) struct SetUp<'c> {
    config: &'c Config,
    of_pools: BTreeMap<(Class, &'c str), &'c VfConfig>,
}

impl<'c> SetUp<'c> {
    pub(super) fn new(config: &'c Config, pools: &'c [NamedPool]) -> Self {
        let mut of_pools = BTreeMap::new();
        for pool in pools {
            let settings = config.pools.get(pool.name.as_str());
            let vf = settings.and_then(|settings| settings.vf.as_ref());
            for member in pool.pool.members.iter().filter(|_| vf.is_some()) {
                // Pools that have a device in common set it up alike, or are not offered.
                of_pools.extend(vf.map(|vf| ((pool.class, member.name.as_str()), vf)));
            }
        }
        SetUp { config, of_pools }
    }

    /// By the device's own section, else by a pool that has it: whoever has the device gets it so, by whatever name it was
    /// asked for.
    pub(super) fn of(&self, device: &Device) -> Option<GivenVf> {
        let name = device.name.as_str();
        let own = || self.config.netdev.get(name)?.vf.as_ref();
        let own = (device.class == Class::Netdev).then(own).flatten();
        let of_pool = || self.of_pools.get(&(device.class, name)).copied();
        Some(GivenVf {
            device: device.clone(),
            vf: own.or_else(of_pool)?.clone(),
        })
    }
}
