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
use crate::spec_index::SpecFiles;

#[derive(Debug)]
pub struct Survey {
    pub inventory: Inventory,
    pub pools: PoolSet,
    /// The specifications of our device classes.
    pub specs: Registry,
    pub spec_files: SpecFiles,
    pub leases: Vec<LeaseEntry>,
}

impl Survey {
    /// `spec_dirs`: each has a higher priority than the one before. An error means that leases cannot be read, so that
    /// any device may be held; what else cannot be read is in the inventory's `unread` and the registry's errors.
    pub fn read(host: &Host, config: &Config, spec_dirs: &[PathBuf]) -> anyhow::Result<Self> {
        let (inventory, pools) = pools::discover_with_pools(host, config);
        let (specs, spec_files) = host.spec_index().scan(spec_dirs);
        // The leases are the last to be read: of all of this they change most often.
        let leases = leases::list(host)?;
        Ok(Survey { inventory, pools, specs, spec_files, leases })
    }

    pub fn offers(&self) -> Vec<HostDevice> {
        build::build_offers(&self.inventory, &self.specs, &self.pools, &self.leases)
    }
}
