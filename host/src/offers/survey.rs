//! Reads all of a host that its offers are made of.

use std::path::PathBuf;

use onload_cdi::Registry;
use onload_core::config::Config;
use onload_lease::LeaseEntry;

use super::build;
use crate::devices::HostDevice;
use crate::devices::inventory::Inventory;
use crate::host::Host;
use crate::leases;
use crate::pools::{self, PoolSet};

#[derive(Debug)]
pub struct Survey {
    pub inventory: Inventory,
    pub pools: PoolSet,
    pub specs: Registry,
    pub leases: Vec<LeaseEntry>,
}

impl Survey {
    /// `spec_dirs`: each has a higher priority than the one before. An error means that leases cannot be read, so that
    /// any device may be held; what else cannot be read is in the inventory's `unread` and the registry's errors.
    pub fn read(host: &Host, config: &Config, spec_dirs: &[PathBuf]) -> anyhow::Result<Self> {
        let (inventory, pools) = pools::discover_with_pools(host, config);
        // The leases are the last to be read: of all of this they change most often.
        Ok(Survey {
            inventory,
            pools,
            specs: Registry::scan(spec_dirs),
            leases: leases::list(host)?,
        })
    }

    pub fn offers(&self) -> Vec<HostDevice> {
        build::build_offers(&self.inventory, &self.specs, &self.pools, &self.leases)
    }
}
