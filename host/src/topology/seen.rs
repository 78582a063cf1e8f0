//! What a topology is made of, before it is put together.

use onload_core::lease::Listed;

use crate::discover::inventory::Inventory;
use crate::host::Host;
use crate::pools::Pools;
use crate::status::Grantee;

/// What a topology is made of.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'s> {
    /// The host.
    pub host: &'s Host,
    pub inventory: &'s Inventory,
    pub pools: &'s Pools,
    /// Its leases; none where they are not known, as to everybody but root.
    pub leases: Option<&'s [Listed]>,
    /// What containers were made with, as far as that is known.
    pub grantees: &'s [Grantee],
}
