//! Reads all of a host that its offers are made of.

use std::path::PathBuf;

use onload_cdi::Registry;
use onload_core::config::Config;
use onload_core::lease::Listed;

use super::offer::Offer;
use super::offering;
use crate::discover::inventory::Inventory;
use crate::host::Host;
use crate::leases::{self, UnknownLeases};
use crate::pools::{self, Pools};

/// A host at one moment.
#[derive(Debug)]
pub struct Survey {
    /// What discovery found. What it says of pools stands here too.
    pub inventory: Inventory,
    /// The pools of the configuration.
    pub pools: Pools,
    pub specs: Registry,
    /// The leases, those that are over too.
    pub leases: Vec<Listed>,
}

impl Survey {
    /// Discovers what a host has, and reads its leases and the specifications of some directories, each of
    /// which has a higher priority than the one before.
    ///
    /// # Errors
    /// [`UnknownLeases`]: any device may be held then. What else cannot be read is in the inventory's `unread`
    /// and the registry's errors.
    pub fn read(
        host: &Host,
        config: &Config,
        spec_dirs: &[PathBuf],
    ) -> Result<Self, UnknownLeases> {
        let (inventory, pools) = pools::survey(host, config);
        // The leases are the last to be read: of all of this they change most often.
        Ok(Survey {
            inventory,
            pools,
            specs: Registry::scan(spec_dirs),
            leases: leases::list(host)?,
        })
    }

    /// What the host offers.
    #[must_use]
    pub fn offers(&self) -> Vec<Offer> {
        offering::offers(&self.inventory, &self.specs, &self.pools, &self.leases)
    }
}
